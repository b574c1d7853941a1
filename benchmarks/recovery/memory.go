package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/benchmarks/internal/result"
)

// The memory of a recovery, as the operating system sees it. This program starts
// itself again, under GOMEMLIMIT, as a service that recovers all partitions and
// holds the newest value of each key; in the end the child reads the highest
// resident set that it ever had. The figure is of the whole process: the
// runtime, the clients, the state, and what the recovery itself takes.
//
// A child, since the set of the process that filled the topics says nothing; and
// the peak, since what is left afterwards does not tell what was needed.

const (
	memoryLimit = 256 << 20
	concurrency = 8
	childFlag   = "child"
)

// memory is a case that measures memory.
type memory struct {
	name    string
	filling filling
}

// childSpec is what a child is told, and childReport what it answers.
type childSpec struct {
	Brokers          []string
	Input, Snapshots string
	Group            string
	Partitions       int
}

type childReport struct {
	Records, Fetched    int64
	Keys, Live          int64
	GoMemLimit, PeakRSS int64
	Seconds             float64
}

func (m memory) run(ctx context.Context, cfg config, out *result.Lines, progress func(string, ...any)) error {
	return m.filling.with(ctx, cfg.brokers, func(t *topics) error {
		found := remembered{Case: m.name, Bytes: m.filling.bytes(), Partitions: m.filling.partitions, Concurrency: min(concurrency, m.filling.partitions),
			Unit: "bytes", Limit: memoryLimit, Rounds: cfg.rounds}
		var seconds []float64
		for round := range cfg.rounds {
			got, err := startChild(ctx, childSpec{cfg.brokers, t.input, t.snapshots, fmt.Sprintf("%s-%d", t.snapshots, round), m.filling.partitions})
			if err != nil {
				return err
			}
			if got.Records != int64(m.filling.records) || got.Keys != int64(m.filling.keys) {
				return fmt.Errorf("%d snapshots of %d keys were recovered instead of %d of %d", got.Records, got.Keys, m.filling.records, m.filling.keys)
			}
			progress("%s: %.1f MiB at the most, in %.1f s", m.name, float64(got.PeakRSS)/(1<<20), got.Seconds)
			found.Records, found.Fetched, found.Live, found.GoMemLimit = got.Records, got.Fetched, got.Live, got.GoMemLimit
			found.PeakRSS = max(found.PeakRSS, got.PeakRSS)
			seconds = append(seconds, got.Seconds)
		}
		found.Seconds = math.Round(result.Median(seconds)*1000) / 1000
		return out.Write(found)
	})
}

// startChild runs a child to its end.
func startChild(ctx context.Context, spec childSpec) (got childReport, err error) {
	encoded, err := json.Marshal(spec)
	if err != nil {
		return got, err
	}
	self, err := os.Executable()
	if err != nil {
		return got, err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, self, "-"+childFlag, string(encoded))
	cmd.Env = append(os.Environ(), fmt.Sprintf("GOMEMLIMIT=%d", memoryLimit))
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return got, fmt.Errorf("the recovering process failed: %w\n%s", err, stderr.Bytes())
	}
	if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
		return got, fmt.Errorf("the recovering process said %q: %w", stdout.Bytes(), err)
	}
	return got, nil
}

// recoverAsChild is the child: it recovers all partitions, reports and ends.
func recoverAsChild(ctx context.Context, encoded string, stdout io.Writer) error {
	var spec childSpec
	if err := json.Unmarshal([]byte(encoded), &spec); err != nil {
		return fmt.Errorf("-%s %q: %w", childFlag, encoded, err)
	}
	var mu sync.Mutex
	var report childReport
	var states []map[string][]byte
	began := time.Now()
	member := service{brokers: spec.Brokers, input: spec.Input, snapshots: spec.Snapshots, group: spec.Group, partitions: spec.Partitions}
	err := member.each(ctx, func(ctx context.Context, p *persistence.Partition) error {
		state, got, err := recoverMap(ctx, p)
		mu.Lock()
		defer mu.Unlock()
		states = append(states, state)
		report.Records += got.Records
		report.Fetched += got.Bytes
		report.Seconds = time.Since(began).Seconds()
		return err
	}, persistence.RecoveryConcurrency(concurrency))
	if err != nil {
		return err
	}
	for _, state := range states {
		t := tallyOf(0, state)
		report.Keys += t.keys
		report.Live += t.live
	}
	report.GoMemLimit = debug.SetMemoryLimit(-1)
	if report.PeakRSS, err = peakRSS(); err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(report)
}

// peakRSS is the highest resident set that this process ever had, in bytes.
func peakRSS() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("the memory cases need Linux: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			var kib int64
			if _, err := fmt.Sscanf(rest, "%d kB", &kib); err != nil {
				return 0, fmt.Errorf("/proc/self/status says %q: %w", line, err)
			}
			return kib << 10, nil
		}
	}
	return 0, errors.New("/proc/self/status has no VmHWM")
}

package main

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/benchmarks/internal/result"
)

// Recovery beside a bare loop. Every reader reads the same log of one partition
// from its start to its end, committed records only, into a map of the newest
// value of each key:
//
//	ours                      Recover as it is by default: every snapshot is a copy
//	ours, uncopied            Recover with UncopiedSnapshots: slices of what was fetched
//	kgo-loop                  a kgo consumer with its defaults, and a copy of each value that it stores
//	kgo-loop-16MiB            the same, and asks for 16 MiB at a time instead of 1 MiB
//	kgo-loop-16MiB-uncopied   the same, and stores slices of what was fetched
//
// Those are compared that store the same: copies, which keep nothing else in
// memory, or slices, which keep what was fetched with them.
//
// A round is each reader once, those that are compared one after the other, and
// every second round the other way round, so that a change of the machine's mood
// meets all of them. Before each clock starts, all free memory goes back to the
// operating system: what the last reader left behind would be a present to the next
// one, and whoever follows the greediest would be the fastest. The clocks do not
// include connecting, nor the takeover. Ratios are taken within rounds.

// A reader reads the log once.
type reader func(context.Context) (tally, time.Duration, error)

// comparison is a case that compares.
type comparison struct {
	name    string
	filling filling
}

func (c comparison) run(ctx context.Context, cfg config, out *result.Lines, progress func(string, ...any)) error {
	return c.filling.with(ctx, cfg.brokers, func(t *topics) error {
		first := service{brokers: cfg.brokers, input: t.input, snapshots: t.snapshots, group: t.snapshots + "-copied", partitions: 1}
		second := first
		second.group = t.snapshots + "-uncopied"
		return first.each(ctx, func(ctx context.Context, copied *persistence.Partition) error {
			return second.each(ctx, func(ctx context.Context, uncopied *persistence.Partition) error {
				return c.compare(ctx, cfg.rounds, map[string]reader{
					ours:             recovering(copied),
					oursUncopied:     recovering(uncopied),
					kgoLoop:          loop{cfg.brokers, t, kgoDefaultBytes, true}.read,
					kgoLarge:         loop{cfg.brokers, t, 16 << 20, true}.read,
					kgoLargeUncopied: loop{cfg.brokers, t, 16 << 20, false}.read,
				}, out, progress)
			}, persistence.UncopiedSnapshots())
		})
	})
}

// The readers' names.
const (
	ours             = "ours"
	oursUncopied     = "ours, uncopied"
	kgoLoop          = "kgo-loop"
	kgoLarge         = "kgo-loop-16MiB"
	kgoLargeUncopied = "kgo-loop-16MiB-uncopied"
)

func recovering(p *persistence.Partition) reader {
	return func(ctx context.Context) (tally, time.Duration, error) {
		began := time.Now()
		state, got, err := recoverMap(ctx, p)
		took := time.Since(began)
		return tallyOf(got.Records, state), took, err
	}
}

// compare runs the rounds and writes the results.
func (c comparison) compare(ctx context.Context, rounds int, readers map[string]reader, out *result.Lines, progress func(string, ...any)) error {
	names := []string{kgoLargeUncopied, oursUncopied, kgoLarge, ours, kgoLoop}
	perSecond := make(map[string][]float64)
	want := tally{records: int64(c.filling.records), keys: int64(c.filling.keys)}
	for round := range rounds + 1 { // the first one warms up
		slices.Reverse(names)
		for _, name := range names {
			debug.FreeOSMemory()
			got, took, err := readers[name](ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if want.live == 0 {
				want.live, want.sum = got.live, got.sum
			}
			if got != want {
				return fmt.Errorf("%s read %+v instead of %+v", name, got, want)
			}
			if round > 0 {
				perSecond[name] = append(perSecond[name], float64(got.records)/took.Seconds())
			}
		}
	}
	for _, name := range names {
		progress("%s: %-23s %.0f records/s (%.0f to %.0f)", c.name, name, result.Median(perSecond[name]), slices.Min(perSecond[name]), slices.Max(perSecond[name]))
	}
	for _, pair := range []struct{ name, ours, peer string }{
		{c.name, ours, kgoLoop},
		{c.name, ours, kgoLarge},
		{c.name + "-uncopied", oursUncopied, kgoLargeUncopied},
	} {
		if err := out.Write(result.Compare(pair.name, "records/s", perSecond[pair.ours], pair.peer, perSecond[pair.peer])); err != nil {
			return err
		}
	}
	return nil
}

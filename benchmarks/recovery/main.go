// Recovery measures how fast snapshots are read back, beside a bare franz-go
// consumer loop that does the same, and how much memory it takes. Each result is a
// JSON object on a line of the standard output; the rest goes to the standard error.
//
// What is compared, and why that is fair, is in compare.go; the memory of a process
// of its own, in memory.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/kafkafence/persistence/benchmarks/internal/result"
	"github.com/kafkafence/persistence/integration/kafkatest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// config is what the flags say.
type config struct {
	brokers []string // none: start one
	rounds  int
	cases   *regexp.Regexp
	scale   float64
	child   string // the spec of a child process; see memory.go
}

func parse(args []string, stderr io.Writer) (config, error) {
	var cfg config
	fs := flag.NewFlagSet("recovery", flag.ContinueOnError)
	fs.SetOutput(stderr)
	brokers := fs.String("brokers", "", "measure on these brokers, `host:port,...`; without it, on KAFKA_BROKERS or a Kafka that is started for it")
	fs.IntVar(&cfg.rounds, "rounds", 5, "how many rounds are measured, after one that is not")
	cases := fs.String("case", "", "measure only the cases whose name matches this `regexp`, for instance memory or zstd")
	fs.Float64Var(&cfg.scale, "scale", 1, "how many records there are, to the full number; less is quicker and says less")
	fs.StringVar(&cfg.child, childFlag, "", "used by the memory cases when they start this program again")
	fs.Usage = func() {
		fmt.Fprintln(stderr, "Usage: go run ./recovery [flags]\n\n"+
			"Measures recovery on a real Kafka. Takes some minutes and up to 3 GiB of disk.")
		fmt.Fprintln(stderr)
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		return config{}, err
	}
	if *brokers != "" {
		cfg.brokers = strings.Split(*brokers, ",")
	}
	var err error
	if cfg.cases, err = regexp.Compile(*cases); err != nil {
		return config{}, fmt.Errorf("-case %q: a regular expression is expected: %w", *cases, err)
	}
	switch {
	case fs.NArg() > 0:
		return config{}, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case cfg.rounds < 1:
		return config{}, fmt.Errorf("-rounds %d: at least 1 is needed", cfg.rounds)
	case cfg.scale <= 0 || cfg.scale > 1:
		return config{}, fmt.Errorf("-scale %v: more than 0 and at most 1 is allowed", cfg.scale)
	}
	return cfg, nil
}

// run is the whole program. It returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 2
	}
	if cfg.child != "" {
		err = recoverAsChild(ctx, cfg.child, stdout)
	} else {
		err = measure(ctx, cfg, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintln(stderr, "recovery:", err)
		return 1
	}
	return 0
}

// measure runs the cases that were asked for, one after another.
func measure(ctx context.Context, cfg config, stdout, stderr io.Writer) (err error) {
	var cases []benchmark
	for _, b := range benchmarks(cfg) {
		if cfg.cases.MatchString(b.name) {
			cases = append(cases, b)
		}
	}
	if len(cases) == 0 {
		return fmt.Errorf("-case %q matches none of the cases", cfg.cases)
	}
	progress := func(format string, args ...any) { fmt.Fprintf(stderr, format+"\n", args...) }
	if len(cfg.brokers) == 0 {
		cluster, err := kafkatest.New(ctx, kafkatest.Logf(progress))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cluster.Close()) }()
		progress("Kafka %s from %s", cluster.Version(), cluster.Backend())
		cfg.brokers = cluster.Brokers()
	}
	for _, b := range cases {
		progress("%s: filling", b.name)
		if err := b.run(ctx, cfg, result.NewLines(stdout), progress); err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
	}
	return nil
}

// benchmark is one case.
type benchmark struct {
	name string
	run  func(ctx context.Context, cfg config, out *result.Lines, progress func(string, ...any)) error
}

// benchmarks are all the cases.
func benchmarks(cfg config) (all []benchmark) {
	for _, f := range []filling{
		{records: 100_000, valueBytes: 1 << 10, keys: 10_000, partitions: 1},
		{records: 2_000_000, valueBytes: 100, keys: 10_000, partitions: 1},
		{records: 20_000, valueBytes: 10 << 10, keys: 10_000, partitions: 1},
	} {
		for _, f.zstd = range []bool{false, true} {
			f := f.scaled(cfg.scale)
			name := "recovery-" + f.String()
			all = append(all, benchmark{name, comparison{name, f}.run})
		}
	}
	for _, m := range []struct {
		name    string
		filling filling
	}{
		{"recovery-memory", filling{records: 209_715, valueBytes: 10 << 10, keys: 1_000, partitions: 1}},
		{"recovery-memory-16-partitions", filling{records: 209_715, valueBytes: 10 << 10, keys: 1_000, partitions: 16}},
	} {
		for _, m.filling.zstd = range []bool{false, true} {
			name := m.name + suffix(m.filling.zstd)
			all = append(all, benchmark{name, memory{name, m.filling.scaled(cfg.scale)}.run})
		}
	}
	return all
}

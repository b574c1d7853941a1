// Write measures how fast fenced writes are, beside a producer without a fence and
// other transactional clients, on the same broker in one run. Each result is a JSON
// object on a line of the standard output; the rest goes to the standard error.
//
// The contestants, each of which writes the same records to a topic of one
// partition, acknowledged by all replicas, without compression:
//
//	ours            Partition.Write: one goroutine, or one for each write
//	plain           an idempotent franz-go producer: the floor, with no fence and no offset
//	session         franz-go's GroupTransactSession: polls an input record for each transaction
//	kafka-clients   Apache's Java client in its own group commit: a transaction for each
//	                batch, with the group's offset; with its defaults, and tuned, in both
//	                orders of offset and records
//
// A round is each contestant once, every second round the other way round, after one
// that warms everything up. Ratios are taken within rounds.
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
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"

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
	scale   float64
	cases   *regexp.Regexp
	java    bool
	profile string
}

func parse(args []string, stderr io.Writer) (config, error) {
	var cfg config
	fs := flag.NewFlagSet("write", flag.ContinueOnError)
	fs.SetOutput(stderr)
	brokers := fs.String("brokers", "", "measure on these brokers, `host:port,...`; without it, on KAFKA_BROKERS or a Kafka that is started for it")
	fs.IntVar(&cfg.rounds, "rounds", 5, "how many rounds are measured, after one that is not")
	fs.Float64Var(&cfg.scale, "scale", 1, "how many writes there are, to the full number; less is quicker and says less")
	cases := fs.String("case", "", "measure only the cases whose name matches this `regexp`")
	fs.BoolVar(&cfg.java, "java", true, "with the Java client, which needs Java 17 and Maven")
	fs.StringVar(&cfg.profile, "cpuprofile", "", "write a profile of the Go side to this `file`")
	if err := fs.Parse(args); err != nil {
		return cfg, err
	}
	if *brokers != "" {
		cfg.brokers = strings.Split(*brokers, ",")
	}
	var err error
	if cfg.cases, err = regexp.Compile(*cases); err != nil {
		return cfg, fmt.Errorf("-case %q: a regular expression is expected: %w", *cases, err)
	}
	switch {
	case fs.NArg() > 0:
		return cfg, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case cfg.rounds < 1 || cfg.scale <= 0 || cfg.scale > 1:
		return cfg, fmt.Errorf("-rounds %d, -scale %v: at least 1, and more than 0 and at most 1, are allowed", cfg.rounds, cfg.scale)
	}
	return cfg, nil
}

// run is the whole program. It returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, err)
		return 2
	}
	progress := func(format string, args ...any) { fmt.Fprintf(stderr, format+"\n", args...) }
	if err := measure(ctx, cfg, result.NewLines(stdout), progress); err != nil {
		fmt.Fprintln(stderr, "write:", err)
		return 1
	}
	return 0
}

// workload is a case.
type workload struct {
	name   string
	writes int
	bytes  int
	burst  bool // all at once, or one after another
}

var workloads = []workload{
	{"one-writer-500x50B", 500, 50, false},
	{"burst-2000x10KiB", 2_000, 10 << 10, true},
	{"burst-10000x10KiB", 10_000, 10 << 10, true},
	{"burst-100000x100B", 100_000, 100, true},
}

// contestant writes. Open comes before the rounds, and close after them.
type contestant interface {
	open(ctx context.Context, input, state string) error
	write(ctx context.Context, w workload) (time.Duration, error)
	close() error
}

type named struct {
	name string
	contestant
}

func measure(ctx context.Context, cfg config, out *result.Lines, progress func(string, ...any)) (err error) {
	if len(cfg.brokers) == 0 {
		cluster, err := kafkatest.New(ctx, kafkatest.Logf(progress), kafkatest.JVMArgs("-Xmx2g", "-XX:TieredStopAtLevel=4"))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cluster.Close()) }()
		progress("Kafka %s from %s", cluster.Version(), cluster.Backend())
		cfg.brokers = cluster.Brokers()
	}
	if cfg.profile != "" {
		f, err := os.Create(cfg.profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	for _, w := range workloads {
		if !cfg.cases.MatchString(w.name) {
			continue
		}
		w.writes = max(int(float64(w.writes)*cfg.scale), 10)
		if err := compare(ctx, cfg, w, out, progress); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return nil
}

// contestants of a workload; the first is ours.
func contestants(cfg config, w workload, progress func(string, ...any)) []named {
	all := []named{{"ours", &ours{brokers: cfg.brokers}}, {"plain", &plain{brokers: cfg.brokers}}}
	if w.burst {
		if cfg.java {
			all = append(all, named{"kafka-clients tuned, 256 a transaction, records first", &clients{brokers: cfg.brokers, tuned: true, batch: 256, progress: progress}},
				named{"kafka-clients tuned, 256 a transaction, offset first", &clients{brokers: cfg.brokers, tuned: true, batch: 256, offsetFirst: true, progress: progress}})
		}
		return all
	}
	all = append(all, named{"session", &session{brokers: cfg.brokers}})
	if cfg.java {
		all = append(all, named{"kafka-clients, records first", &clients{brokers: cfg.brokers, batch: 1, progress: progress}},
			named{"kafka-clients tuned, records first", &clients{brokers: cfg.brokers, tuned: true, batch: 1, progress: progress}},
			named{"kafka-clients tuned, offset first", &clients{brokers: cfg.brokers, tuned: true, batch: 1, offsetFirst: true, progress: progress}})
	}
	return all
}

func compare(ctx context.Context, cfg config, w workload, out *result.Lines, progress func(string, ...any)) (err error) {
	t, err := newTopics(cfg.brokers)
	if err != nil {
		return err
	}
	defer t.close()
	all := contestants(cfg, w, progress)
	perSecond := make(map[string][]float64)
	order := slices.Clone(all)
	for i, c := range order {
		input, state, err := t.create(ctx, i, (cfg.rounds+1)*w.writes)
		if err == nil {
			err = c.open(ctx, input, state)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		defer func() { err = errors.Join(err, c.close()) }()
	}
	for round := range cfg.rounds + 1 { // the first one warms up
		slices.Reverse(order)
		for _, c := range order {
			took, err := c.write(ctx, w)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			rate := float64(w.writes) / took.Seconds()
			progress("%s: round %d: %-52s %8.0f writes/s", w.name, round, c.name, rate)
			if round > 0 {
				perSecond[c.name] = append(perSecond[c.name], rate)
			}
		}
	}
	for i, c := range all {
		if err := t.check(ctx, i, int64((cfg.rounds+1)*w.writes)); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if i > 0 {
			if err := out.Write(result.Compare(w.name, "writes/s", perSecond["ours"], c.name, perSecond[c.name])); err != nil {
				return err
			}
		}
	}
	return nil
}

// Flow measures a flow's throughput from end to end beside Kafka Streams with
// exactly_once_v2, on the same broker in one run. Each result is a JSON object on a
// line of the standard output; the rest goes to the standard error.
//
// Both fold the same input of 50-byte events of 10,000 keys, which is there before
// they start: a key's state is how many of its events there were, and the last one.
// Both persist every 100 ms. The clock runs from the first event that is folded to
// when the group's committed offset, which is in the last transaction, has reached the
// end of the input; the same eyes look at both, every 5 ms. Then the state that a
// read_committed reader finds is checked.
//
// A round is each contestant once, every second round the other way round, after one
// that warms everything up. The peer's virtual machine lives through all rounds.
// Ratios are taken within rounds.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
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
	events  int
	keys    int
	peer    bool
	profile string
}

// every is how often both persist.
const every = 100 * time.Millisecond

func parse(args []string, stderr io.Writer) (config, error) {
	var cfg config
	fs := flag.NewFlagSet("flow", flag.ContinueOnError)
	fs.SetOutput(stderr)
	brokers := fs.String("brokers", "", "measure on these brokers, `host:port,...`; without it, on KAFKA_BROKERS or a Kafka that is started for it")
	fs.IntVar(&cfg.rounds, "rounds", 5, "how many rounds are measured, after one that is not")
	fs.IntVar(&cfg.events, "events", 1_000_000, "how many events there are")
	fs.IntVar(&cfg.keys, "keys", 10_000, "how many keys they have")
	peer := fs.String("peer", "kafka-streams", "kafka-streams, which needs Java 17 and Maven, or none")
	fs.StringVar(&cfg.profile, "cpuprofile", "", "write a profile of our side to this `file`")
	if err := fs.Parse(args); err != nil {
		return cfg, err
	}
	if *brokers != "" {
		cfg.brokers = strings.Split(*brokers, ",")
	}
	cfg.peer = *peer == "kafka-streams"
	switch {
	case fs.NArg() > 0:
		return cfg, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case *peer != "kafka-streams" && *peer != "none":
		return cfg, fmt.Errorf("-peer %q: kafka-streams and none are allowed", *peer)
	case cfg.rounds < 1 || cfg.keys < 1 || cfg.events < cfg.keys:
		return cfg, fmt.Errorf("-rounds %d, -keys %d, -events %d: at least one each, and an event for each key, are needed", cfg.rounds, cfg.keys, cfg.events)
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
	if err := measure(ctx, cfg, result.NewLines(stdout), stderr); err != nil {
		fmt.Fprintln(stderr, "flow:", err)
		return 1
	}
	return 0
}

func measure(ctx context.Context, cfg config, out *result.Lines, stderr io.Writer) (err error) {
	progress := func(format string, args ...any) { fmt.Fprintf(stderr, format+"\n", args...) }
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
	var streams *streams
	if cfg.peer {
		if streams, err = startStreams(ctx, cfg.brokers, progress); err != nil {
			return err
		}
		defer streams.Close()
	}
	for _, partitions := range []int32{1, 4} {
		if err := compare(ctx, cfg, partitions, streams, out, progress); err != nil {
			return err
		}
	}
	return nil
}

// contestant folds an input whose events are all there.
type contestant struct {
	name string
	// start begins, and calls first when the first event is folded. It returns
	// where the state is in the end, and a function that ends it.
	start func(ctx context.Context, group, input string, partitions int32, first func()) (state string, stop func() error, err error)
}

// compare runs the rounds of a case and writes the results.
func compare(ctx context.Context, cfg config, partitions int32, streams *streams, out *result.Lines, progress func(string, ...any)) error {
	t, err := newTopics(cfg.brokers)
	if err != nil {
		return err
	}
	defer t.close()
	name := fmt.Sprintf("flow-50B-%d-keys-%d-partitions", cfg.keys, partitions)
	progress("%s: filling the input with %d events", name, cfg.events)
	if err := t.fill(ctx, partitions, cfg.events, cfg.keys); err != nil {
		return err
	}
	contestants := []contestant{{"ours", ours(cfg.brokers)}}
	if streams != nil {
		contestants = append(contestants, contestant{"kafka-streams exactly_once_v2", streams.contestant("stock")},
			contestant{"kafka-streams exactly_once_v2, tuned", streams.contestant("tuned")})
	}
	perSecond := make(map[string][]float64)
	for round := range cfg.rounds + 1 { // the first one warms up
		slices.Reverse(contestants)
		for _, c := range contestants {
			took, err := t.race(ctx, c, cfg)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			progress("%s: round %d: %-37s %8.0f events/s", name, round, c.name, float64(cfg.events)/took.Seconds())
			if round > 0 {
				perSecond[c.name] = append(perSecond[c.name], float64(cfg.events)/took.Seconds())
			}
		}
	}
	slices.SortFunc(contestants, func(a, b contestant) int { return strings.Compare(a.name, b.name) })
	for _, c := range contestants {
		if c.name == "ours" {
			continue
		}
		if err := out.Write(result.Compare(name, "events/s", perSecond["ours"], c.name, perSecond[c.name])); err != nil {
			return err
		}
	}
	if streams == nil {
		return out.Write(result.Compare(name, "events/s", perSecond["ours"], "none", perSecond["ours"]))
	}
	return nil
}

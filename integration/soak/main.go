// Soak runs a flow for a long time while its processes and its brokers are killed
// and paused at random, and checks in the end that the effect of every input is
// there exactly once, in outputs, dead letters and state, for a read_committed
// reader. The last line begins with ok or failed.
//
//	run      starts a cluster of three nodes, and tells the story        main.go
//	members  three processes, this program started again, of one group   member.go
//	naive    the same without the fence, which the check must see        naive.go
//	chaos    kills and pauses, from a seed                                chaos.go
//	feed     numbered inputs, all the while                               feed.go
//	reader   everything that is committed, as it comes                    reader.go
//	check    what is wrong with it, without I/O                           check.go
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/kafkafence/persistence/integration/kafkatest"
)

func main() {
	memberMain()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// config is what the flags say.
type config struct {
	lasts   time.Duration
	seed    uint64
	fence   bool
	persist time.Duration // 0: each event
	rate    int           // inputs a second
	pace    time.Duration // about how often something is killed or paused
}

func parse(args []string, stderr io.Writer) (config, error) {
	cfg := config{}
	fs := flag.NewFlagSet("soak", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.DurationVar(&cfg.lasts, "for", 10*time.Minute, "how long there is chaos")
	fs.Uint64Var(&cfg.seed, "seed", 0, "of the chaos, to have the same again; 0: another each time")
	fence := fs.String("fence", "on", "off: a plain producer and ordinary commits instead of the library, which must fail")
	fs.DurationVar(&cfg.persist, "persist", 100*time.Millisecond, "how often state is persisted; 0: with each event")
	fs.IntVar(&cfg.rate, "rate", 300, "inputs a second")
	fs.DurationVar(&cfg.pace, "pace", 4*time.Second, "about how often a member and a broker are killed or paused")
	if err := fs.Parse(args); err != nil {
		return cfg, err
	}
	cfg.fence = *fence == "on"
	switch {
	case fs.NArg() > 0:
		return cfg, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case *fence != "on" && *fence != "off":
		return cfg, fmt.Errorf("-fence %q: on and off are allowed", *fence)
	case cfg.lasts < time.Second || cfg.pace < 100*time.Millisecond:
		return cfg, fmt.Errorf("-for %v, -pace %v: at least 1s and 100ms are allowed", cfg.lasts, cfg.pace)
	case cfg.rate < 1 || cfg.persist < 0:
		return cfg, fmt.Errorf("-rate %d, -persist %v: at least 1 and 0 are allowed", cfg.rate, cfg.persist)
	}
	if cfg.seed == 0 {
		cfg.seed = rand.Uint64()
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
	began := time.Now()
	tell := func(format string, args ...any) {
		fmt.Fprintf(stderr, "%6.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	verdict, err := soak(ctx, cfg, tell)
	if err != nil {
		fmt.Fprintln(stdout, "failed:", err)
		return 1
	}
	fmt.Fprintln(stdout, verdict)
	if !verdict.ok() {
		return 1
	}
	return 0
}

// soak is the story. The error is of what kept it from being told.
func soak(ctx context.Context, cfg config, tell func(string, ...any)) (verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.lasts+5*time.Minute)
	defer cancel()
	tell("seed %d, fence %v, for %v", cfg.seed, cfg.fence, cfg.lasts)
	cluster, err := kafkatest.New(ctx, kafkatest.Nodes(3), kafkatest.NodeControl(), kafkatest.Logf(tell))
	if err != nil {
		return verdict{}, err
	}
	defer cluster.Close()
	tell("Kafka %s from %s, three nodes", cluster.Version(), cluster.Backend())
	w, err := newWorld(ctx, cluster.Brokers())
	if err != nil {
		return verdict{}, err
	}
	defer w.close()

	members := newMembers(cfg, w, tell)
	defer members.killAll()
	for range memberCount {
		if err := members.start(); err != nil {
			return verdict{}, err
		}
	}
	reader, err := w.read(ctx, w.input, w.output, w.dead)
	if err != nil {
		return verdict{}, err
	}
	defer reader.close()
	feed := w.feed(ctx, cfg.rate)
	defer feed.stop()

	hurt, err := chaos(ctx, cfg, w, cluster, members, reader, feed, tell)
	if err != nil {
		return verdict{}, err
	}

	tell("the chaos is over; waiting until all inputs are committed")
	feed.stop()
	if err := members.settle(ctx, cfg.fence); err != nil {
		return verdict{}, err
	}
	if err := w.awaitCommitted(ctx, members, tell); err != nil {
		return verdict{}, err
	}
	if err := members.stopAll(ctx); err != nil {
		return verdict{}, err
	}
	return conclude(ctx, w, reader, feed, hurt, tell)
}

// conclude reads what there is in the end, and checks it.
func conclude(ctx context.Context, w *world, reader *reader, feed *feed, hurt injuries, tell func(string, ...any)) (verdict, error) {
	tell("reading everything that is committed")
	if err := reader.catchUp(ctx); err != nil {
		return verdict{}, err
	}
	states, err := w.read(ctx, w.state)
	if err != nil {
		return verdict{}, err
	}
	defer states.close()
	if err := states.catchUp(ctx); err != nil {
		return verdict{}, err
	}
	logs := reader.logs()
	logs.acknowledged = feed.acknowledged()
	logs.states = states.states()
	v := check(logs)
	v.kills, v.pauses, v.ahead = hurt.kills, hurt.pauses, reader.ahead(hurt.suspects)
	return v, nil
}

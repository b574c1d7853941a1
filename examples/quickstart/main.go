// Quickstart folds the events of an input topic into a balance for each of some
// thousand accounts, and keeps the balances with the library.
//
// Two members share the partitions. One of them is cut off in the middle
// without a goodbye, the other takes its partitions over, and later a third
// joins. In the end the balances are read back by a fresh recovery, and each is
// compared with what it must be: no event lost, none counted twice.
//
// How the library is used is in member.go; how a fold meets the same event again
// and does not count it twice, in fold.go. The rest is the stage.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// config is what the flags say.
type config struct {
	brokers    string
	events     int
	keys       int
	partitions int
	seed       uint64
	after      time.Duration // how long events still come when the cut-off member has timed out, about
	log        *slog.Logger
	fold       func(*account, *kgo.Record) (bool, error)
}

func parse(args []string, stderr io.Writer) (config, error) {
	cfg := config{log: slog.New(slog.DiscardHandler), fold: fold, after: 5 * time.Second}
	fs := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&cfg.brokers, "brokers", "", "run on these brokers, `host:port,...`; without it, on a cluster in this process")
	fs.IntVar(&cfg.events, "events", 60_000, "how many events are produced")
	fs.IntVar(&cfg.keys, "keys", 3_000, "how many keys they are for")
	fs.IntVar(&cfg.partitions, "partitions", 6, "how many partitions the topics have")
	fs.Uint64Var(&cfg.seed, "seed", 1, "what the events are drawn from")
	verbose := fs.Bool("v", false, "show the library's log, on the standard error")
	fs.Usage = func() {
		fmt.Fprintln(stderr, "Usage: go run ./examples/quickstart [flags]\n\n"+
			"Folds numbered events into snapshots while members of the group come and go,\n"+
			"then proves that none was lost and none counted twice. Takes about 8 s in this\n"+
			"process, and up to 20 s on a real cluster, whose topics it deletes afterwards.")
		fmt.Fprintln(stderr)
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		return config{}, err
	}
	if *verbose {
		cfg.log = slog.New(slog.NewTextHandler(stderr, nil))
	}
	switch {
	case fs.NArg() > 0:
		return config{}, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case cfg.partitions < 2:
		return config{}, fmt.Errorf("-partitions %d: at least 2 are needed, one for each member", cfg.partitions)
	case cfg.keys < 1 || cfg.events < cfg.keys:
		return config{}, fmt.Errorf("-events %d -keys %d: at least one key, and one event for each, are needed", cfg.events, cfg.keys)
	}
	return cfg, nil
}

// run is the program: it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "quickstart:", err)
		return 2
	}
	return play(ctx, cfg, stdout)
}

// play tells the story and ends with its verdict.
func play(ctx context.Context, cfg config, stdout io.Writer) int {
	s := newStory(cfg, stdout)
	v, err := s.tell(ctx)
	switch {
	case err != nil:
		fmt.Fprintln(stdout, "failed:", err)
	case v.wrong != "":
		fmt.Fprintf(stdout, "failed: events=%d keys=%d owners=%d lost=%d duplicated=%d: %s\n", cfg.events, v.keys, s.board.owners(), v.lost, v.duplicated, v.wrong)
	default:
		fmt.Fprintf(stdout, "ok: events=%d keys=%d owners=%d lost=%d duplicated=%d\n", cfg.events, v.keys, s.board.owners(), v.lost, v.duplicated)
		return 0
	}
	return 1
}

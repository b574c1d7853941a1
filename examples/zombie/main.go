// Zombie shows how a stale owner corrupts state, and how the library prevents
// it: the same story, told twice at the same time on topics of their own.
//
// An account is fed by deposits of 10. Its owner has snapshotted 100, folds in
// one more deposit, and is paused before it writes 110. The group gives the
// partition to a second owner, which goes on to 150, snapshots that, and
// commits its offset. Then the first one wakes up, does not know yet, and writes
// what it was about to write.
//
//	plain.go   without the library: the write is accepted
//	fenced.go  with it: the write is refused
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
	"strconv"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/examples/internal/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// patience bounds the whole program, which takes a fraction of it.
const patience = time.Minute

// The plot. Offsets and balances go together: each deposit is 10.
const (
	account = "account-1"
	deposit = 10

	first  = 10 // the first owner snapshots 100 here
	stale  = 11 // and is paused with 110 here
	newer  = 15 // the second owner snapshots 150 here
	ending = 17 // the third ends with 170 here
)

// outcome is what became of one telling.
type outcome struct {
	stale     int   // the first owner's balance, not written when it was paused
	newer     int   // the second owner's, snapshotted
	write     error // what the first one's write was answered with
	refused   bool
	byBroker  bool  // and not by the member itself
	committed int64 // the group's offset after all that
	recovered int   // the balance that the next owner recovers
	resumed   int64 // the offset that it goes on from
	final     int   // the balance after two more deposits
}

// run is the program: it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("zombie", flag.ContinueOnError)
	fs.SetOutput(stderr)
	brokers := fs.String("brokers", "", "run on these brokers, `host:port,...`; without it, on a cluster in this process")
	verbose := fs.Bool("v", false, "show the library's log, on the standard error")
	fs.Usage = func() {
		fmt.Fprintln(stderr, "Usage: go run ./examples/zombie [flags]\n\n"+
			"Lets a stale owner write its snapshot, without the library and with it, and\n"+
			"shows what becomes of the state. Takes about 3 s in this process, and up to\n"+
			"20 s on a real cluster, whose topics it deletes afterwards.")
		fmt.Fprintln(stderr)
		fs.PrintDefaults()
	}
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err == nil && fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if err != nil {
		fmt.Fprintln(stderr, "zombie:", err)
		return 2
	}
	log := slog.New(slog.DiscardHandler)
	if *verbose {
		log = slog.New(slog.NewTextHandler(stderr, nil))
	}

	plain, fenced, err := tell(ctx, *brokers, stdout, log)
	if err != nil {
		fmt.Fprintln(stdout, "failed:", err)
		return 1
	}
	compare(stdout, plain, fenced)
	lost := ending*deposit - plain.final
	switch {
	case fenced.final != ending*deposit || !fenced.refused:
		fmt.Fprintf(stdout, "failed: with the library the balance is %d where it must be %d\n", fenced.final, ending*deposit)
	case lost == 0:
		fmt.Fprintln(stdout, "failed: without the library nothing was lost, so this run shows nothing")
	default:
		fmt.Fprintf(stdout, "ok: without the library %d of %d were lost; with it the stale write was refused by %s and nothing was lost\n",
			lost, ending*deposit, fenced.fence())
		return 0
	}
	return 1
}

func (o outcome) fence() string {
	if o.byBroker {
		return "the broker"
	}
	return "its own member, which had been told of its loss by then"
}

// tell tells the story twice, side by side.
func tell(ctx context.Context, brokers string, stdout io.Writer, log *slog.Logger) (plain, fenced outcome, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not done within %v", patience))
	defer cancel()
	c, err := cluster.Open(ctx, brokers)
	if err != nil {
		return plain, fenced, err
	}
	t := terminal{w: stdout, began: time.Now()}
	defer func() {
		if err := c.Close(); err != nil {
			t.say("", "tidying up: %v", err)
		}
	}()
	t.say("", "on %s", c)

	ctx, abandon := context.WithCancelCause(ctx)
	defer abandon(nil)
	var both sync.WaitGroup
	one := func(name string, tell func(context.Context, *stage) (outcome, error), into *outcome) error {
		s, err := newStage(ctx, c, name, &t, log)
		if err != nil {
			return err
		}
		both.Go(func() {
			defer s.bank.Close()
			var err error
			if *into, err = tell(ctx, s); err != nil {
				abandon(fmt.Errorf("%s: %w", name, err))
			}
		})
		return nil
	}
	err = one("without", tellPlain, &plain)
	if err == nil {
		err = one("with", tellFenced, &fenced)
	}
	if err != nil {
		abandon(err)
	}
	both.Wait()
	return plain, fenced, context.Cause(ctx)
}

// compare prints the two outcomes.
func compare(w io.Writer, plain, fenced outcome) {
	fmt.Fprintln(w)
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	row := func(what string, cell func(o outcome) string) {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", what, cell(plain), cell(fenced))
	}
	fmt.Fprintln(tw, "\twithout the library\twith it")
	row("owner 1, paused with", func(o outcome) string { return strconv.Itoa(o.stale) })
	row("owner 2, snapshotted", func(o outcome) string { return strconv.Itoa(o.newer) })
	row("owner 1 wakes up and writes", func(o outcome) string {
		if o.refused {
			return "refused"
		}
		return "accepted"
	})
	row("committed offset", func(o outcome) string { return strconv.FormatInt(o.committed, 10) })
	row("owner 3 recovers", func(o outcome) string { return fmt.Sprintf("%d, resumes at %d", o.recovered, o.resumed) })
	row("two deposits later", func(o outcome) string { return strconv.Itoa(o.final) })
	row(fmt.Sprintf("where %d is right", ending*deposit), func(o outcome) string {
		return fmt.Sprintf("%d lost", ending*deposit-o.final)
	})
	tw.Flush()
	fmt.Fprintf(w, "\nrefused by %s:\n  %v\n\n", fenced.fence(), fenced.write)
}

// terminal prints what happens.
type terminal struct {
	mu    sync.Mutex
	w     io.Writer
	began time.Time
}

func (t *terminal) say(who, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.w, "%5.1fs  %-8s %s\n", time.Since(t.began).Seconds(), who, fmt.Sprintf(format, args...))
}

// stage is what both tellings play on: an input topic with one partition, a
// snapshot topic, a group.
type stage struct {
	cluster   *cluster.Cluster
	input     string
	snapshots string
	group     string
	bank      *kgo.Client // makes the deposits
	deposits  int
	log       *slog.Logger
	say       func(format string, args ...any)
}

func newStage(ctx context.Context, c *cluster.Cluster, name string, t *terminal, log *slog.Logger) (*stage, error) {
	s := &stage{
		cluster: c, log: log,
		input: c.Topic("zombie-" + name + "-deposits"), snapshots: c.Topic("zombie-" + name + "-balances"), group: c.Group("zombie-" + name),
		say: func(format string, args ...any) { t.say(name, format, args...) },
	}
	compact := "compact"
	if err := c.CreateTopic(ctx, s.input, 1, nil); err != nil {
		return nil, err
	}
	if err := c.CreateTopic(ctx, s.snapshots, 1, map[string]*string{"cleanup.policy": &compact}); err != nil {
		return nil, err
	}
	var err error
	s.bank, err = kgo.NewClient(kgo.SeedBrokers(c.Brokers...), kgo.DefaultProduceTopic(s.input))
	return s, err
}

// depositUntil makes deposits until the input ends at an offset.
func (s *stage) depositUntil(ctx context.Context, offset int) error {
	for ; s.deposits < offset; s.deposits++ {
		r := &kgo.Record{Key: []byte(account), Value: []byte(strconv.Itoa(deposit))}
		if err := s.bank.ProduceSync(ctx, r).FirstErr(); err != nil {
			return err
		}
	}
	return nil
}

// member are the kgo options of an owner in the group.
func (s *stage) member() []kgo.Opt {
	return []kgo.Opt{kgo.SeedBrokers(s.cluster.Brokers...), kgo.ConsumerGroup(s.group), kgo.ConsumeTopics(s.input),
		kgo.SessionTimeout(s.cluster.Session), kgo.HeartbeatInterval(s.cluster.Session / 10)}
}

func amount(text []byte) (int, error) {
	n, err := strconv.Atoi(string(text))
	if err != nil {
		return 0, fmt.Errorf("not an amount: %w", err)
	}
	return n, nil
}

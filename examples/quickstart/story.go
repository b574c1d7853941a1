package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/kafkafence/persistence/examples/internal/cluster"
)

// patience bounds the whole story, which takes a fraction of it.
const patience = time.Minute

// story is one run of the example.
type story struct {
	cfg   config
	began time.Time
	board *board

	cluster   *cluster.Cluster
	input     string
	snapshots string
	group     string

	background sync.WaitGroup
	abandon    context.CancelCauseFunc

	terminal struct {
		sync.Mutex
		io.Writer
	}
}

func newStory(cfg config, stdout io.Writer) *story {
	s := &story{cfg: cfg, began: time.Now()}
	s.terminal.Writer = stdout
	s.board = newBoard(s.say)
	return s
}

func (s *story) say(format string, args ...any) {
	s.terminal.Lock()
	defer s.terminal.Unlock()
	fmt.Fprintf(s.terminal.Writer, "%5.1fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// tell is the story from beginning to end.
func (s *story) tell(ctx context.Context) (v verdict, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not done within %v", patience))
	defer cancel()
	ctx, s.abandon = context.WithCancelCause(ctx)
	defer s.abandon(nil)

	if s.cluster, err = cluster.Open(ctx, s.cfg.brokers); err != nil {
		return v, err
	}
	defer func() {
		if err := s.cluster.Close(); err != nil {
			s.say("tidying up: %v", err)
		}
	}()
	s.input, s.snapshots, s.group = s.cluster.Topic("quickstart-events"), s.cluster.Topic("quickstart-accounts"), s.cluster.Group("quickstart")
	if err := s.cluster.CreateTopic(ctx, s.input, s.cfg.partitions, nil); err != nil {
		return v, err
	}
	s.say("on %s: %s to %s", s.cluster, s.input, s.snapshots)

	f, err := s.live(ctx)
	if err != nil {
		return v, err
	}
	accounts, err := s.readBack(ctx, f.ends)
	if err != nil {
		return v, err
	}
	return compare(f.ledger, accounts), nil
}

// live is the part with the members in it.
func (s *story) live(ctx context.Context) (f *feed, err error) {
	// Whatever happens, the members stop in order before live returns. They
	// do not end with ctx but are closed, so that a failure leaves them time
	// to flush.
	var members []*member
	join := func(name string) *member {
		var m *member
		if err == nil {
			if m, err = s.start(context.WithoutCancel(ctx), name); err == nil {
				members = append(members, m)
			}
		}
		return m
	}
	side, endSide := context.WithCancel(ctx)
	defer func() {
		endSide()
		for _, m := range members {
			s.background.Go(m.stop)
		}
		s.background.Wait()
	}()

	f = s.startFeed(side, s.cluster.Session+s.cfg.after)
	s.background.Go(func() { s.report(side, f) })

	a := join("A")
	if err != nil {
		return nil, err
	}
	if err := s.wait(ctx, "A to own all partitions", func() bool { return s.board.owned(a.name) == s.cfg.partitions }); err != nil {
		return nil, err
	}
	b := join("B")
	if err != nil {
		return nil, err
	}
	if err := s.wait(ctx, "B to be busy", func() bool {
		return s.board.owned(b.name) > 0 && (s.board.progress(b.name) >= int64(s.cfg.events/20) || f.ended.Load())
	}); err != nil {
		return nil, err
	}

	b.cutOff()
	if err := s.wait(ctx, "A to take over from B", func() bool { return s.board.owned(a.name) == s.cfg.partitions }); err != nil {
		return nil, err
	}

	c := join("C")
	if err != nil {
		return nil, err
	}
	if err := s.wait(ctx, "C to be given partitions", func() bool { return s.board.owned(c.name) > 0 }); err != nil {
		return nil, err
	}
	if err := s.wait(ctx, "everything to be produced and persisted", func() bool {
		if !f.ended.Load() {
			return false
		}
		for id, end := range f.ends {
			if s.board.at(int32(id)) < end {
				return false
			}
		}
		return true
	}); err != nil {
		return nil, err
	}
	s.say("all %d events are persisted; %d came again after a takeover and were left out", f.produced.Load(), s.board.skipped())
	s.say("the members stop")
	return f, nil
}

// report puts a line on the terminal every half second.
func (s *story) report(ctx context.Context, f *feed) {
	t := time.NewTicker(500 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			s.say("%s", s.board.status(s.cfg.partitions, f.produced.Load()))
		case <-ctx.Done():
			return
		}
	}
}

// wait waits for a condition.
func (s *story) wait(ctx context.Context, what string, condition func() bool) error {
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for !condition() {
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("while waiting for %s: %w", what, context.Cause(ctx))
		}
	}
	return nil
}

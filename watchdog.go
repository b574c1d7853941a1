package persistence

import (
	"context"
	"fmt"
	"time"
)

// A handler that is stuck, in a deadlock or a call that never returns, would keep
// its partition for ever: the group hears only heartbeats, and kgo has no
// max.poll.interval.ms. The watchdog looks at each partition now and then:
// records wait for the handler, and for a while it has neither polled, nor
// advanced, nor had a write under way. A write that takes long is no sign of it:
// that has deadlines of its own.

// StuckChoice is what HandlerTimeout does about a handler that is stuck.
type StuckChoice int

const (
	// Report logs it as an error, calls Trace.HandlerStuck, and makes
	// Health.Alive fail.
	Report StuckChoice = iota
	// EndRun does so, and Run gives all partitions up and ends with a
	// *HandlerStuckError: one partition alone cannot be given back to a group.
	EndRun
)

func (c StuckChoice) String() string {
	if c < 0 || int(c) >= len(stuckChoices) {
		return fmt.Sprintf("StuckChoice(%d)", int(c))
	}
	return stuckChoices[c]
}

var stuckChoices = [...]string{"Report", "EndRun"}

// HandlerStuckError says that a handler makes no progress.
type HandlerStuckError struct {
	Topic     string
	Partition int32
	Records   int           // that wait for it, at least
	Stuck     time.Duration // since its last sign of progress
}

func (e *HandlerStuckError) Error() string {
	return fmt.Sprintf("persistence: the handler of partition %d of %s is stuck: %d records wait, and for %v it has neither polled, nor advanced, nor written; "+
		"a dump of the goroutines (SIGQUIT, or net/http/pprof) shows where it is", e.Partition, e.Topic, e.Records, e.Stuck.Round(time.Millisecond))
}

// signs are a handler's last signs of progress.
type signs struct {
	records int       // that wait
	waiting time.Time // since when there are some
	last    time.Time // progress
	writing bool
}

// stuck is how long a handler has made no progress; 0 if there is none to make.
func (s signs) stuck(now time.Time) time.Duration {
	if s.records == 0 || s.writing {
		return 0
	}
	since := s.last
	if s.waiting.After(since) {
		since = s.waiting
	}
	return now.Sub(since)
}

// moves notes a sign of progress.
func (p *Partition) moves() { p.moved.Store(time.Now().UnixNano()) }

func (p *Partition) signs() signs {
	s := signs{last: time.Unix(0, p.moved.Load()), writing: p.writes.Load() > 0}
	s.records, s.waiting = p.inbox.backlog()
	return s
}

// watchLoop looks at all handlers.
func (m *Module) watchLoop(ctx context.Context) {
	if m.cfg.handlerTimeout == 0 {
		return
	}
	t := time.NewTicker(max(m.cfg.handlerTimeout/4, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		for _, p := range m.handles() {
			if p.giveUpReason() == nil {
				m.watch(p, p.signs(), time.Now())
			}
		}
	}
}

// watch judges one handler.
func (m *Module) watch(p *Partition, s signs, now time.Time) {
	stuck := s.stuck(now)
	if stuck < m.cfg.handlerTimeout {
		if p.stuck.Swap(nil) != nil {
			p.log.Info("the handler goes on")
		}
		return
	}
	e := &HandlerStuckError{Topic: m.input.Name, Partition: p.id, Records: s.records, Stuck: stuck}
	if p.stuck.Swap(e) != nil {
		return // told already
	}
	p.log.Error("the handler is stuck", "records", s.records, "for", stuck.Round(time.Millisecond), "then", m.cfg.stuckChoice)
	if m.cfg.trace.HandlerStuck != nil {
		m.cfg.trace.HandlerStuck(*e)
	}
	if m.cfg.stuckChoice == EndRun {
		m.fail(e)
	}
}

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/examples/internal/cluster"
)

// member is one instance of the service: one Module, which takes part in the
// group. In real life each runs in a process of its own.
type member struct {
	name   string
	story  *story
	wire   *cluster.Wire
	module *persistence.Module
	done   chan struct{} // closed when Run has returned
	err    error         // what it returned
}

// options are what every member of the service has in common.
func (s *story) options(kafka ...kgo.Opt) []persistence.Option {
	return []persistence.Option{
		persistence.Kafka(kgo.SeedBrokers(s.cluster.Brokers...), kgo.ConsumerGroup(s.group), kgo.ConsumeTopics(s.input),
			kgo.SessionTimeout(s.cluster.Session), kgo.HeartbeatInterval(s.cluster.Session/6)),
		persistence.Kafka(kafka...),
		persistence.SnapshotTopic(s.snapshots),
		persistence.CreateSnapshotTopic(-1, nil), // or create it yourself: compacted, with as many partitions as the input
		persistence.TransactionalIDPrefix(s.group),
		persistence.Logger(s.cfg.log),
	}
}

// start makes a member and lets it run.
func (s *story) start(ctx context.Context, name string) (*member, error) {
	m := &member{name: name, story: s, wire: cluster.NewWire(), done: make(chan struct{})}
	var err error
	m.module, err = persistence.New(append(s.options(kgo.Dialer(m.wire.Dial)), persistence.WithTrace(s.board.trace(name)))...)
	if err != nil {
		return nil, err
	}
	s.say("member %s joins", name)
	go func() {
		defer close(m.done)
		m.err = m.module.Run(ctx, m.own)
		switch {
		case m.err != nil && m.wire.IsCut():
			s.say("member %s: %v", name, m.err)
		case m.err != nil:
			s.abandon(fmt.Errorf("member %s: %w", name, m.err))
		}
	}()
	return m, nil
}

// own is one ownership of one partition: called when it has been taken over, and
// to return when it is given up. The state belongs to the ownership; the next
// one, here or elsewhere, recovers its own.
func (m *member) own(ctx context.Context, p *persistence.Partition) error {
	accounts := make(map[string]*account)
	recovered, err := p.Recover(ctx,
		func(s persistence.Snapshot) error { return load(accounts, s) },
		func() { clear(accounts) })
	if err != nil {
		return err
	}
	m.story.board.recovered(m.name, p, recovered.Took, len(accounts))

	for {
		events, err := p.Poll(ctx)
		if err != nil {
			// Given up. Everything polled so far is written, so there
			// is nothing to flush.
			return err
		}
		changed := make(map[string]*account)
		for _, r := range events {
			key := string(r.Key)
			if accounts[key] == nil {
				accounts[key] = newAccount()
			}
			switch ok, err := m.story.cfg.fold(accounts[key], r); {
			case err != nil:
				return err
			case ok:
				changed[key] = accounts[key]
			default:
				m.story.board.replayed()
			}
		}
		if err := write(ctx, p, changed); err != nil {
			// Not written, or at least not known to be: the state in
			// memory is ahead of the snapshots, so it must go.
			return err
		}
		// Only now, when their effect is persisted, are the events done. The
		// next transaction carries the offset. (Batch.Through of Apply would
		// have put it into the same one.)
		last := events[len(events)-1]
		if err := p.Advance(last); err != nil {
			return err
		}
		m.story.board.persisted(p.ID(), last.Offset+1)
	}
}

// write snapshots the accounts that changed, in one transaction.
func write(ctx context.Context, p *persistence.Partition, changed map[string]*account) error {
	if len(changed) == 0 {
		return nil
	}
	snapshots := make([]persistence.Snapshot, 0, len(changed))
	for key, a := range changed {
		s, err := a.snapshot(key)
		if err != nil {
			return err
		}
		snapshots = append(snapshots, s)
	}
	return p.Write(ctx, snapshots...)
}

// cutOff is what a pulled cable does: nothing reaches the brokers any more, no
// write, no abort, and no word that the member leaves the group.
func (m *member) cutOff() {
	m.wire.Cut()
	m.story.say("member %s cut off; the group will notice within %v", m.name, m.story.cluster.Session)
}

// stop gives the partitions up in order and leaves the group.
func (m *member) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := m.module.Close(ctx); err != nil {
		m.story.say("member %s: %v", m.name, err)
	}
	<-m.done
}

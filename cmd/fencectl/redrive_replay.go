package main

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
)

// The replay is a service without state, on the library itself: a transaction holds
// the events of some letters and the offset behind them, under the group's fence. So
// a run that is killed leaves each letter either replayed and behind the offset, or
// neither.
//
// It is not a flow.Transform, since that has no end: a handler of its own stops at
// the plan's last letter of each partition, and the run is over when all have.
//
// Static membership makes the next run of a group take over at once from one that
// was killed, and fences off one that still runs.

const (
	redriveMember  = "fencectl-redrive" // group.instance.id
	redriveSession = 10 * time.Second
	// A transaction's letters: enough to be quick, few enough to fit in memory.
	lettersPerTransaction = 100
)

// replaying is one run.
type replaying struct {
	*session
	last map[int32]int64    // as planned
	stop context.CancelFunc // of Run

	mu    sync.Mutex
	todo  map[int32]bool // partitions that are not done
	tally tally          // what was committed
}

// replay carries the plan out, and says what was committed, whatever the error.
func (s *session) replay(ctx context.Context, p redrivePlan) (tally, error) {
	opts, err := s.clientOptions()
	if err != nil {
		return newTally(), err
	}
	m, err := persistence.New(
		persistence.Kafka(opts...),
		persistence.Kafka(kgo.ConsumerGroup(s.group), kgo.ConsumeTopics(s.redrive.topic), kgo.RecordPartitioner(kgo.ManualPartitioner()),
			kgo.InstanceID(redriveMember), kgo.Balancers(kgo.RangeBalancer()), kgo.SessionTimeout(redriveSession)),
		persistence.Stateless(),
		persistence.TransactionalIDPrefix(s.prefix),
		persistence.OnMismatch(persistence.OffsetBelowInput, persistence.Accept), // retention has removed letters
		persistence.Logger(slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: slog.LevelWarn}))),
	)
	if err != nil {
		return newTally(), &usageError{err}
	}
	run, stop := context.WithCancel(ctx)
	defer stop()
	r := &replaying{session: s, last: p.last, stop: stop, todo: make(map[int32]bool), tally: newTally()}
	for id := range p.last {
		r.todo[id] = true
	}
	err = m.Run(run, r.own)
	if closed := m.Close(context.WithoutCancel(ctx)); err == nil {
		err = closed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && len(r.todo) > 0 {
		err = context.Cause(ctx)
	}
	return r.tally, err
}

// own replays the letters of a partition up to the plan's last one, and keeps the
// partition until the run is over.
func (r *replaying) own(ctx context.Context, p *persistence.Partition) error {
	last, planned := r.last[p.ID()]
	for done := !planned || p.Resume() > last; !done; {
		polled, err := p.Poll(ctx)
		if err != nil {
			return err
		}
		for letters := range slices.Chunk(polled, lettersPerTransaction) {
			if done, err = r.apply(ctx, p, letters, last); err != nil {
				return err
			}
			if done || isClosed(p.Revoked()) {
				break
			}
		}
	}
	r.finish(p.ID())
	<-p.Revoked()
	_, err := p.Poll(ctx) // says why, at once
	return err
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// apply commits letters in one transaction, those behind the last left out. done is
// true when the last is behind.
func (r *replaying) apply(ctx context.Context, p *persistence.Partition, letters []*kgo.Record, last int64) (done bool, err error) {
	var batch persistence.Batch
	became := newTally()
	for _, record := range letters {
		if record.Offset > last {
			break
		}
		batch.Through = record
		l, err := parseLetter(record)
		switch {
		case err != nil: // the plan has allowed it
			became.malformed++
		case !r.redrive.wants(l):
			became.passed++
		default:
			to := r.redrive.target(l)
			became.replayed[to]++
			batch.Outputs = append(batch.Outputs, l.event(to.topic))
		}
	}
	if err := p.Apply(ctx, batch); err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tally.add(became)
	return letters[len(letters)-1].Offset >= last, nil
}

// finish ends the run with its last partition.
func (r *replaying) finish(partition int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if delete(r.todo, partition); len(r.todo) == 0 {
		r.stop()
	}
}

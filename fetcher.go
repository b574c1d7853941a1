package persistence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/internal/cursor"
	"github.com/kafkafence/persistence/internal/format"
	"github.com/kafkafence/persistence/internal/wire"
)

// The reading half of a recovery: what a fetch means is decided by next,
// outOfRange and lineage; the fetcher sends them, a step ahead of the delivery.

// step is what follows from a fetch.
type step int

const (
	onward  step = iota // the position moved
	done                // everything below the target is read
	waiting             // nothing to read yet
	restart             // the log start overtook the position
	cutOff              // the log ends below the target
)

// next decides what a fetch means that returned no error.
func next(position, target int64, b cursor.Batch) step {
	switch {
	case b.Next >= target:
		return done
	case b.Next > position:
		return onward
	case b.LogStart > position:
		return restart
	case b.Empty && b.LastStableOffset >= target:
		return done // the rest is compacted away
	default:
		return waiting
	}
}

// outOfRange decides what OFFSET_OUT_OF_RANGE means, given the log's bounds as
// read after it.
func outOfRange(position, target int64, b bounds) step {
	switch {
	case b.start > position:
		return restart
	case b.end >= 0 && b.end < target:
		return cutOff
	default:
		return waiting // a leader that has not caught up
	}
}

// delivery is what the fetcher hands over: records, or the order to forget, or
// how it ended.
type delivery struct {
	records []*kgo.Record
	release func() // ends the use of the records
	bytes   int
	pos     int64
	forget  bool
	done    bool
	err     error
}

// fetcher reads ahead of the delivery by one fetch.
type fetcher struct {
	r     *recovery
	epoch int32 // the leader epoch up to which the log is known to be whole
	clock *stall
	out   chan delivery
}

func newFetcher(r *recovery) *fetcher {
	return &fetcher{r: r, epoch: r.epoch, clock: newStall(r.stallTimeout, time.Now()), out: make(chan delivery)}
}

// send hands over, and leaves the time that it takes out of the deadline.
func (f *fetcher) send(ctx context.Context, d delivery) bool {
	select {
	case f.out <- d:
	case <-ctx.Done():
		return false
	}
	f.clock.progress(time.Now())
	return true
}

// own gives the records bytes of their own: what a fetch returned is one buffer,
// and a single slice of it keeps all of it in memory. It is done here and not in
// the delivery, which has the receiver's work.
func own(records []*kgo.Record) {
	for _, r := range records {
		r.Key, r.Value = bytes.Clone(r.Key), bytes.Clone(r.Value)
		for i := range r.Headers {
			if h := &r.Headers[i]; !format.Reserved(h.Key) {
				h.Value = bytes.Clone(h.Value)
			}
		}
	}
}

// lineage checks, when the leader has changed, that the new one's log still has
// everything below the target. A log that was cut and has grown again since
// looks whole by its offsets.
func (f *fetcher) lineage(ctx context.Context, b cursor.Batch) (step, error) {
	if f.epoch < 0 || b.Epoch <= f.epoch {
		return onward, nil
	}
	ctx, cancel := f.clock.bound(ctx)
	defer cancel()
	end, err := wire.EpochEnd(ctx, f.r.cl, b.Leader, f.r.topic.Name, f.r.partition, f.epoch)
	if err != nil {
		return waiting, fmt.Errorf("asking where leader epoch %d ended: %w", f.epoch, err)
	}
	if end >= 0 && end < f.r.stats.Target {
		return cutOff, nil
	}
	f.epoch = b.Epoch
	return onward, nil
}

func (f *fetcher) run(ctx context.Context) {
	r := f.r
	position, target := r.pos, r.stats.Target
	if position >= target {
		f.send(ctx, delivery{done: true, pos: position})
		return
	}
	cur := cursor.New(r.cl, r.topic, r.partition, 0).Reuse(r.keep != keepSlices)
	defer cur.ReadAhead(ctx)()
	var last error   // of the requests since the last progress
	seen := noBounds // by the last fetch, if it was answered
	pause := time.Duration(0)
	for {
		cur.AskFor(r.fetchBytes(r.slots.running()))
		bounded, cancel := f.clock.bound(ctx)
		b, err := cur.Fetch(bounded, position)
		cancel()
		var s step
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && last == nil && f.clock.left(time.Now()) <= 0 {
			// The deadline cut the request short, which says nothing.
			f.send(ctx, delivery{err: r.stalled(ctx, f.clock, position, seen, nil)})
			return
		}
		seen = noBounds
		switch {
		case err == nil:
			seen = bounds{b.LogStart, b.LastStableOffset, b.HighWatermark, b.Epoch}
			if s, last = f.lineage(ctx, b); s == onward {
				s = next(position, target, b)
			}
		case ctx.Err() != nil:
			return
		case errors.Is(err, kerr.OffsetOutOfRange):
			bounded, cancel := f.clock.bound(ctx)
			now, lookErr := readBounds(bounded, r.cl, r.topic.Name, r.partition)
			cancel()
			s, last = waiting, err
			if lookErr == nil {
				b.LogStart = now.start
				s = outOfRange(position, target, now)
			}
		case isImpossible(err) || errors.Is(err, cursor.ErrRecreated):
			f.send(ctx, delivery{err: r.impossible(err)})
			return
		default:
			s = waiting
			if !errors.Is(err, cursor.ErrThrottled) {
				last = err
			}
		}
		switch s {
		case done, onward:
			pause = 0
			if r.keep == keepCopies {
				own(b.Records)
			}
			if len(b.Records) > 0 || b.Next > position {
				if !f.send(ctx, delivery{records: b.Records, release: b.Release, bytes: b.Bytes, pos: b.Next}) {
					return
				}
			}
			position = b.Next
			if s == done {
				f.send(ctx, delivery{done: true, pos: max(position, target)})
				return
			}
			continue
		case restart:
			r.log.Warn("the snapshot log's start overtook the recovery; starting over", "position", position, "log_start", b.LogStart)
			if !f.send(ctx, delivery{forget: true}) {
				return
			}
			position, pause = b.LogStart, 0
			if position >= target {
				f.send(ctx, delivery{done: true, pos: position})
				return
			}
			continue
		case cutOff:
			f.send(ctx, delivery{err: r.stalled(ctx, f.clock, position, seen, last)})
			return
		}
		if f.clock.left(time.Now()) <= 0 {
			f.send(ctx, delivery{err: r.stalled(ctx, f.clock, position, seen, last)})
			return
		}
		pause = min(max(pause*2, 2*time.Millisecond), 250*time.Millisecond)
		sleep(ctx, min(pause, max(f.clock.left(time.Now()), 0)))
	}
}

package persistence

import (
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

// Recovery delivers every snapshot committed below the high watermark that is
// captured at its start, or an error. The target never moves.
//
//	capture log start and high watermark
//	until the position reaches the target
//	  fetch (committed records, and the position behind everything returned)
//	    progress: the stall deadline starts again
//	    nothing, and the last stable offset has reached the target: done
//	    nothing, and it has not: a transaction is open; ask again
//	    out of range: below the log start, begin again and let the receiver
//	    forget; above the log end, the log was truncated
//	  hand over what was read, while the next fetch is under way
//
// The end is a position and never a record: the last offset below a high
// watermark is nearly always a commit marker, and the last record may have
// been aborted or compacted away. The bound is the high watermark and not what
// a read_committed reader takes for the end, the last stable offset: an open
// transaction pins that below snapshots that are committed, and a recovery
// bounded by it would miss them.

// fetchBytes is how much a recovery asks for at a time. One fetch is under
// way, one is decoded, one waits, and one is being handed over.
const fetchBytes = 4 << 20

// Recovered says what a recovery read.
type Recovered struct {
	Records    int64 // delivered, tombstones included
	Tombstones int64
	Keyless    int64 // records without a key, skipped
	Bytes      int64 // as fetched
	Target     int64 // the high watermark up to which everything was read
	Restarts   int   // times the log start overtook the position
	Took       time.Duration
}

// Recover reads every committed snapshot of the partition, oldest first, and
// calls each for one after the other; a later snapshot of a key replaces an
// earlier one, and a nil Value means that the key is gone. Snapshots that this
// handle wrote before the call are included. The snapshot and its bytes are
// the receiver's.
//
// When records that were not read yet are deleted from the log's start
// meanwhile (DeleteRecords), what was delivered may hold keys that are gone:
// forget is called, and everything is delivered again.
//
// Recover blocks until all is read. It waits for open transactions of others
// on the snapshot partition, and rides out broker failures; after
// RecoveryStallTimeout without progress it fails with a *RecoveryStalledError.
// Other errors: that of each; ErrRevoked, ErrLost and ErrClosed as soon as the
// partition is to be given up; ctx's. After an error nothing is known to be
// complete. At most RecoveryConcurrency recoveries run at a time.
func (p *Partition) Recover(ctx context.Context, each func(Snapshot) error, forget func()) (Recovered, error) {
	if each == nil || forget == nil {
		return Recovered{}, errors.New("persistence: Recover: both functions are required")
	}
	if err := p.giveUpReason(); err != nil {
		return Recovered{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.takeoverCtx, func() { cancel(context.Cause(p.takeoverCtx)) })()

	r := p.m.newRecovery(p)
	err := r.run(ctx, noPosition, func(rec *kgo.Record) error {
		user, source, _ := format.SplitHeaders(rec.Headers)
		return each(Snapshot{Key: rec.Key, Value: rec.Value, SourceOffset: source, Headers: user, LogOffset: rec.Offset, Timestamp: rec.Timestamp})
	}, forget)
	return r.stats, err
}

// committableOf reads the highest committable offset that the snapshots below
// target give, or noPosition.
func (m *Module) committableOf(ctx context.Context, p *Partition, target int64) (int64, error) {
	highest := noPosition
	r := m.newRecovery(p)
	err := r.run(ctx, target, func(rec *kgo.Record) error {
		if _, _, at := format.SplitHeaders(rec.Headers); at > highest {
			highest = at
		}
		return nil
	}, func() { highest = noPosition })
	return highest, err
}

// recovery is one run through a snapshot partition.
type recovery struct {
	m     *Module
	p     *Partition
	stats Recovered
	began time.Time
	pos   int64 // of the delivery
}

// bounds of a log, -1 where unknown.
type bounds struct{ start, stable, end int64 }

func (m *Module) newRecovery(p *Partition) *recovery {
	return &recovery{m: m, p: p, began: time.Now(), pos: noPosition, stats: Recovered{Target: noPosition}}
}

// delivery is what the fetcher hands over: records, or the order to forget, or
// how it ended.
type delivery struct {
	records []*kgo.Record
	bytes   int
	pos     int64
	forget  bool
	done    bool
	err     error
}

// run reads up to target, or to the high watermark of now.
func (r *recovery) run(ctx context.Context, target int64, each func(*kgo.Record) error, forget func()) (err error) {
	select {
	case r.m.recoveries <- struct{}{}:
		defer func() { <-r.m.recoveries }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	r.began = time.Now()
	trace := &r.m.cfg.trace
	defer func() {
		r.stats.Took = time.Since(r.began)
		if trace.RecoveryDone != nil && r.stats.Target >= 0 {
			trace.RecoveryDone(r.info(err))
		}
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	f := &fetcher{r: r, clock: newStall(r.m.cfg.stallTimeout, time.Now()), out: make(chan delivery, 1)}
	if err := f.capture(ctx, target); err != nil {
		return err
	}
	if trace.RecoveryStarted != nil {
		trace.RecoveryStarted(r.info(nil))
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.run(ctx)
	}()
	defer func() {
		cancel(nil)
		<-ended
	}()
	progress := time.NewTicker(5 * time.Second)
	defer progress.Stop()
	for {
		select {
		case d := <-f.out:
			switch {
			case d.err != nil:
				return d.err
			case d.done:
				r.pos = d.pos
				r.p.log.Info("recovered", "records", r.stats.Records, "bytes", r.stats.Bytes, "target", r.stats.Target, "took", time.Since(r.began))
				return nil
			case d.forget:
				r.stats.Restarts++
				r.stats.Records, r.stats.Tombstones, r.stats.Keyless = 0, 0, 0
				forget()
			default:
				if err := r.deliver(ctx, d, each); err != nil {
					return err
				}
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-progress.C:
			r.p.log.Info("recovering", "position", r.pos, "target", r.stats.Target, "records", r.stats.Records, "bytes", r.stats.Bytes, "for", time.Since(r.began).Round(time.Second))
			if trace.RecoveryProgress != nil {
				trace.RecoveryProgress(r.info(nil))
			}
		}
	}
}

func (r *recovery) info(err error) RecoveryInfo {
	return RecoveryInfo{Topic: r.m.snapshot.Name, Partition: r.p.id, Position: r.pos, Target: r.stats.Target, Records: r.stats.Records,
		Tombstones: r.stats.Tombstones, Keyless: r.stats.Keyless, Bytes: r.stats.Bytes, Restarts: r.stats.Restarts, Took: time.Since(r.began), Err: err}
}

func (r *recovery) deliver(ctx context.Context, d delivery, each func(*kgo.Record) error) error {
	r.pos = d.pos
	r.stats.Bytes += int64(d.bytes)
	for _, rec := range d.records {
		if rec.Offset >= r.stats.Target {
			break // appended since the target was captured
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if rec.Key == nil {
			r.stats.Keyless++
			continue
		}
		r.stats.Records++
		if rec.Value == nil {
			r.stats.Tombstones++
		}
		if err := each(rec); err != nil {
			return err
		}
	}
	return nil
}

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

// fetcher reads ahead of the delivery by one fetch.
type fetcher struct {
	r     *recovery
	clock *stall
	out   chan delivery
}

// bound limits one request, so that an unreachable broker leaves time
// for another try within the stall deadline.
func (f *fetcher) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(10*time.Second, max(f.clock.left(time.Now()), time.Millisecond)))
}

// capture fixes the target.
func (f *fetcher) capture(ctx context.Context, target int64) error {
	for pause := 5 * time.Millisecond; ; pause = min(pause*2, time.Second) {
		bounded, cancel := f.bound(ctx)
		b, err := f.r.bounds(bounded)
		cancel()
		if err == nil {
			if target == noPosition {
				target = b.end
			}
			f.r.stats.Target, f.r.pos = target, b.start
			if b.stable < target {
				f.r.p.log.Warn("a transaction is open on the snapshot partition; recovery waits until it is over",
					"last_stable_offset", b.stable, "high_watermark", b.end, "transaction", f.r.m.openTransactions(ctx, f.r.p.id))
			}
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if isImpossible(err) {
			return fmt.Errorf("persistence: recovery of partition %d of snapshot topic %s: %w", f.r.p.id, f.r.m.snapshot.Name, err)
		}
		if f.clock.left(time.Now()) <= 0 {
			return f.r.stalled(ctx, f.clock, f.r.pos, err)
		}
		sleep(ctx, pause)
	}
}

// bounds reads the log's bounds.
func (r *recovery) bounds(ctx context.Context) (b bounds, err error) {
	b = bounds{-1, -1, -1}
	if b.start, err = wire.ListOffset(ctx, r.m.reader, r.m.snapshot.Name, r.p.id, wire.LogStart, false); err != nil {
		return bounds{-1, -1, -1}, err
	}
	if b.end, err = wire.ListOffset(ctx, r.m.reader, r.m.snapshot.Name, r.p.id, wire.LogEnd, false); err != nil {
		return bounds{b.start, -1, -1}, err
	}
	b.stable, err = wire.ListOffset(ctx, r.m.reader, r.m.snapshot.Name, r.p.id, wire.LogEnd, true)
	return b, err
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

func (f *fetcher) run(ctx context.Context) {
	r := f.r
	position, target := r.pos, r.stats.Target
	if position >= target {
		f.send(ctx, delivery{done: true, pos: position})
		return
	}
	cur := cursor.New(r.m.reader, r.m.snapshot, r.p.id, fetchBytes)
	defer cur.ReadAhead(ctx)()
	var last error // of the requests since the last progress
	pause := time.Duration(0)
	for {
		bounded, cancel := f.bound(ctx)
		b, err := cur.Fetch(bounded, position)
		cancel()
		var s step
		switch {
		case err == nil:
			s, last = next(position, target, b), nil
		case ctx.Err() != nil:
			return
		case errors.Is(err, kerr.OffsetOutOfRange):
			bounded, cancel := f.bound(ctx)
			now, lookErr := r.bounds(bounded)
			cancel()
			s, last = waiting, err
			if lookErr == nil {
				b.LogStart = now.start
				s = outOfRange(position, target, now)
			}
		case isImpossible(err) || errors.Is(err, cursor.ErrRecreated):
			f.send(ctx, delivery{err: fmt.Errorf("persistence: recovery of partition %d of snapshot topic %s: %w", r.p.id, r.m.snapshot.Name, err)})
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
			if len(b.Records) > 0 || b.Next > position {
				if !f.send(ctx, delivery{records: b.Records, bytes: b.Bytes, pos: b.Next}) {
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
			r.p.log.Warn("the snapshot log's start overtook the recovery; starting over", "position", position, "log_start", b.LogStart)
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
			f.send(ctx, delivery{err: r.stalled(ctx, f.clock, position, last)})
			return
		}
		if f.clock.left(time.Now()) <= 0 {
			f.send(ctx, delivery{err: r.stalled(ctx, f.clock, position, last)})
			return
		}
		pause = min(max(pause*2, 2*time.Millisecond), 250*time.Millisecond)
		sleep(ctx, min(pause, max(f.clock.left(time.Now()), 0)))
	}
}

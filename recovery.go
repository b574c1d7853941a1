package persistence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/internal/format"
	"github.com/kafkafence/persistence/internal/wire"
)

// Recovery delivers every snapshot committed below the high watermark that is
// captured at its start, or an error. The target never moves.
//
//	capture log start, high watermark and leader epoch
//	until the position reaches the target
//	  fetch (committed records, and the position behind everything returned)
//	    progress: the stall deadline starts again
//	    nothing, and the last stable offset has reached the target: done
//	    nothing, and it has not: a transaction is open; ask again
//	    another leader epoch: its log must still have the target
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
//
// Memory is bounded whatever the size of the topic: two answers of the leader
// (one under way, one being decoded) and two decoded parts (one being made, one being
// handed over).

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
// the receiver's to keep, and keep nothing else in memory (see
// UncopiedSnapshots).
//
// When records that were not read yet are deleted from the log's start
// meanwhile (DeleteRecords), what was delivered may hold keys that are gone:
// forget is called, and everything is delivered again.
//
// Recover blocks until all is read. It waits for open transactions of others
// on the snapshot partition, and rides out broker failures; after
// RecoveryStallTimeout without progress, or at once where none can be made, it
// fails with a *RecoveryStalledError, whose Diagnosis says why and what to do.
// A *MismatchError says that the snapshots do not belong to the input. Other
// errors: that of each; ErrStateless; ErrRevoked, ErrLost and ErrClosed as soon as the
// partition is to be given up; ctx's. After an error nothing is known to be
// complete. At most RecoveryConcurrency recoveries run at a time, the smallest
// first, within RecoveryMaxBytes together.
func (p *Partition) Recover(ctx context.Context, each func(Snapshot) error, forget func()) (Recovered, error) {
	if each == nil || forget == nil {
		return Recovered{}, errors.New("persistence: Recover: both functions are required")
	}
	if p.m.cfg.stateless {
		return Recovered{}, fmt.Errorf("persistence: Recover: %w", ErrStateless)
	}
	if err := p.giveUpReason(); err != nil {
		return Recovered{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.takeoverCtx, func() { cancel(context.Cause(p.takeoverCtx)) })()

	latest := noPosition // source offset
	r := p.m.newRecovery(p)
	r.keep = keepCopies
	if p.m.cfg.uncopied {
		r.keep = keepSlices
	}
	err := r.run(ctx, noPosition, func(rec *kgo.Record) error {
		user, source, _ := format.SplitHeaders(rec.Headers)
		if format.IsRebuild(rec.Headers) {
			latest = noPosition
		}
		latest = max(latest, source)
		return each(Snapshot{Key: rec.Key, Value: rec.Value, SourceOffset: source, Headers: user, LogOffset: rec.Offset, Timestamp: rec.Timestamp})
	}, forget)
	if err == nil {
		err = p.m.checkSources(ctx, p, latest)
	}
	if err != nil {
		r.publish(err)
	}
	return r.stats, err
}

// RecoverMap is Recover into a map: the newest snapshot of each key, without
// the keys that are gone. All live keys are in memory then.
func (p *Partition) RecoverMap(ctx context.Context) (map[string]Snapshot, Recovered, error) {
	state := make(map[string]Snapshot)
	stats, err := p.Recover(ctx, func(s Snapshot) error {
		if s.Value == nil {
			delete(state, string(s.Key))
		} else {
			state[string(s.Key)] = s
		}
		return nil
	}, func() { clear(state) })
	if err != nil {
		return nil, stats, err
	}
	return state, stats, nil
}

// recovery is one run through a snapshot partition.
type recovery struct {
	cl           *kgo.Client
	topic        wire.Topic
	partition    int32
	stallTimeout time.Duration
	fetchBytes   func(running int) int32
	keep         keeping
	slots        *recoverySlots // nil: no other recoveries to mind
	log          *slog.Logger
	trace        *Trace
	show         func(*RecoveryInfo) // is told the state, often

	stats  Recovered
	began  time.Time
	start  int64 // of the log, when the target was captured
	stable int64
	epoch  int32 // of the leader then
	pos    int64 // of the delivery
}

// keeping says what the receiver of a recovery does with the bytes.
type keeping int

const (
	keepNothing keeping = iota
	keepCopies          // it may keep them, and gets copies
	keepSlices          // it may keep them, and gets slices of what was fetched
)

func (m *Module) newRecovery(p *Partition) *recovery {
	return &recovery{
		cl: m.reader, topic: m.snapshot, partition: p.id, stallTimeout: m.cfg.stallTimeout, fetchBytes: m.cfg.fetchBytes,
		slots: m.recoveries, log: p.log, trace: &m.cfg.trace, show: p.recovery.Store,
	}
}

// run reads up to target, or to the high watermark of now.
func (r *recovery) run(ctx context.Context, target int64, each func(*kgo.Record) error, forget func()) (err error) {
	r.began, r.start, r.pos, r.epoch, r.stats.Target = time.Now(), noPosition, noPosition, noEpoch, noPosition
	r.publish(nil)
	defer func() {
		r.stats.Took = time.Since(r.began)
		info := r.publish(err)
		if r.trace.RecoveryDone != nil && r.stats.Target >= 0 {
			r.trace.RecoveryDone(*info)
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := r.capture(ctx, target); err != nil {
		return err
	}
	r.publish(nil)
	if r.slots != nil {
		if !r.slots.enter(ctx, r.stats.Target-r.start) {
			return context.Cause(ctx)
		}
		defer r.slots.leave()
	}
	r.began = time.Now()
	if info := r.publish(nil); r.trace.RecoveryStarted != nil {
		r.trace.RecoveryStarted(*info)
	}

	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()
	f := newFetcher(r)
	background.Go(func() { f.run(ctx) })
	background.Go(func() { r.warnIfHeld(ctx) })
	progress := time.NewTicker(progressInterval)
	defer progress.Stop()
	told := noPosition
	for {
		select {
		case d := <-f.out:
			switch {
			case d.err != nil:
				return d.err
			case d.done:
				r.pos = d.pos
				r.log.Info("recovered", "records", r.stats.Records, "bytes", r.stats.Bytes, "target", r.stats.Target, "took", time.Since(r.began))
				return nil
			case d.forget:
				r.stats.Restarts++
				r.stats.Records, r.stats.Tombstones, r.stats.Keyless = 0, 0, 0
				forget()
			default:
				if err := r.deliver(ctx, d, each); err != nil {
					return err
				}
				r.publish(nil)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-progress.C:
			info := r.publish(nil)
			r.logProgress(info, told)
			told = info.Position
			if r.trace.RecoveryProgress != nil {
				r.trace.RecoveryProgress(*info)
			}
		}
	}
}

// progressInterval is how often a recovery tells how far it is.
const progressInterval = 5 * time.Second

// logProgress tells how far a slow recovery is, compared with the last time.
func (r *recovery) logProgress(info *RecoveryInfo, before int64) {
	sofar := []any{"position", info.Position, "target", info.Target, "records", info.Records, "bytes", info.Bytes, "for", info.Took.Round(time.Second)}
	if info.Position == before {
		r.log.Info("recovery stands still", append(sofar, "fails_after", r.stallTimeout)...)
		return
	}
	rate := func(n int64) int64 { return int64(float64(n) / info.Took.Seconds()) }
	r.log.Info("recovering", append(sofar, "records_per_second", rate(info.Records), "bytes_per_second", rate(info.Bytes),
		"estimate", info.Left().Round(time.Second))...)
}

// publish shows the state of the recovery to Health.
func (r *recovery) publish(err error) *RecoveryInfo {
	info := &RecoveryInfo{Topic: r.topic.Name, Partition: r.partition, Start: r.start, Position: r.pos, Target: r.stats.Target, Records: r.stats.Records,
		Tombstones: r.stats.Tombstones, Keyless: r.stats.Keyless, Bytes: r.stats.Bytes, Restarts: r.stats.Restarts, Took: time.Since(r.began), Err: err}
	r.show(info)
	return info
}

func (r *recovery) deliver(ctx context.Context, d delivery, each func(*kgo.Record) error) error {
	r.pos = d.pos
	r.stats.Bytes += int64(d.bytes)
	for _, rec := range d.records {
		if rec.Offset >= r.stats.Target {
			break // appended since the target was captured
		}
		if ctx.Err() != nil {
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
	d.release()
	return nil
}

// capture fixes the target.
func (r *recovery) capture(ctx context.Context, target int64) error {
	clock := newStall(r.stallTimeout, time.Now())
	for pause := 5 * time.Millisecond; ; pause = min(pause*2, time.Second) {
		bounded, cancel := clock.bound(ctx)
		b, err := readBounds(bounded, r.cl, r.topic.Name, r.partition)
		cancel()
		if err == nil {
			if target == noPosition {
				target = b.end
			}
			r.stats.Target, r.pos, r.start, r.epoch, r.stable = target, b.start, b.start, b.epoch, b.stable
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if isImpossible(err) {
			return r.impossible(err)
		}
		if clock.left(time.Now()) <= 0 {
			return r.stalled(ctx, clock, r.pos, noBounds, err)
		}
		sleep(ctx, pause)
	}
}

func (r *recovery) impossible(err error) error {
	return fmt.Errorf("persistence: recovery of partition %d of snapshot topic %s: %w", r.partition, r.topic.Name, err)
}

// warnIfHeld says at once what a recovery will have to wait for.
func (r *recovery) warnIfHeld(ctx context.Context) {
	if r.stable >= r.stats.Target {
		return
	}
	d := conclude(lookUp(ctx, r.cl, r.topic.Name, r.partition, r.stats.Target, r.epoch))
	if d.Condition == Readable || ctx.Err() != nil {
		return // over meanwhile
	}
	r.log.Warn("the snapshot partition cannot be read up to its end yet; recovery waits", "target", r.stats.Target,
		"last_stable_offset", d.LastStableOffset, "waits_at_most", r.stallTimeout, "condition", d.Condition, "diagnosis", d)
}

// stalled makes the error of a recovery that stands still. seen are the bounds
// that the last fetch told, if it was answered.
func (r *recovery) stalled(ctx context.Context, clock *stall, position int64, seen bounds, cause error) error {
	f := lookUp(ctx, r.cl, r.topic.Name, r.partition, r.stats.Target, r.epoch)
	if f.bounds.end < 0 && seen.end >= 0 {
		f.bounds = seen
		f.notes = append(f.notes, "the log's bounds now; they are as of the last fetch")
		if f.unreachable != nil {
			f.notes = append(f.notes, f.unreachable.Error())
			f.unreachable = nil
		}
	}
	d := conclude(f)
	if d.Condition == Readable {
		d.Condition = ConditionUnknown
		d.Finding += " now, and yet it was not"
	}
	return &RecoveryStalledError{Topic: r.topic.Name, Partition: r.partition, Target: r.stats.Target, Position: position,
		Stalled: clock.stalled(time.Now()), Diagnosis: d, Cause: cause}
}

package persistence

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/internal/format"
	"github.com/kafkafence/persistence/internal/wire"
)

// agree carries out what reconcile decides.
func (m *Module) agree(p *Partition, facts takeoverFacts) (plan, error) {
	decided := reconcile(facts, m.cfg.choice)
	if decided.needScan {
		// Not under the takeover's deadline: reading has its own.
		seen, err := m.newRecovery(p).scan(p.takeoverCtx, facts.snapshots.end)
		if err != nil {
			return plan{}, err
		}
		facts.scanned = &seen
		decided = reconcile(facts, m.cfg.choice)
	}
	for _, f := range decided.findings {
		m.reportMismatch(p, f.MismatchError, f.choice)
	}
	if decided.err != nil {
		return plan{}, decided.err
	}
	if decided.rebuild && !m.cfg.stateless {
		keys, err := m.liveKeys(p.takeoverCtx, p, facts.snapshots.end)
		if err != nil {
			return plan{}, err
		}
		p.rebuild = keys
	}
	return decided, nil
}

// reportMismatch tells what was found and what is done about it.
func (m *Module) reportMismatch(p *Partition, e *MismatchError, c Choice) {
	if c != Fail { // else it is the error of Run
		p.log.Warn("committed offset, snapshots and input do not agree", "mismatch", e.Mismatch.String(), "choice", c, "error", e)
	}
	if m.cfg.trace.Mismatch != nil {
		m.cfg.trace.Mismatch(MismatchInfo{MismatchError: e, Choice: c})
	}
}

func lookUpSpan(ctx context.Context, cl *kgo.Client, topic string, partition int32) (s span, err error) {
	if s.start, err = wire.ListOffset(ctx, cl, topic, partition, wire.LogStart, false); err != nil {
		return s, err
	}
	s.end, err = wire.ListOffset(ctx, cl, topic, partition, wire.LogEnd, false)
	return s, err
}

// scan reads all snapshots below target for what their headers say.
func (r *recovery) scan(ctx context.Context, target int64) (scan, error) {
	nothing := scan{committable: noPosition, source: noPosition}
	seen := nothing
	err := r.run(ctx, target, func(rec *kgo.Record) error {
		_, source, committable := format.SplitHeaders(rec.Headers)
		if format.IsRebuild(rec.Headers) {
			seen = nothing
		}
		if id := format.InputIDOf(rec.Headers); id != "" {
			seen.inputID = id
		}
		seen.records++
		seen.committable, seen.source = max(seen.committable, committable), max(seen.source, source)
		return nil
	}, func() { seen = nothing })
	return seen, err
}

// liveKeys reads which keys have a snapshot below target.
func (m *Module) liveKeys(ctx context.Context, p *Partition, target int64) ([][]byte, error) {
	live := make(map[string]struct{})
	err := m.newRecovery(p).run(ctx, target, func(rec *kgo.Record) error {
		if rec.Value == nil {
			delete(live, string(rec.Key))
		} else {
			live[string(rec.Key)] = struct{}{}
		}
		return nil
	}, func() { clear(live) })
	keys := make([][]byte, 0, len(live))
	for _, k := range slices.Sorted(maps.Keys(live)) {
		keys = append(keys, []byte(k))
	}
	return keys, err
}

// wipe deletes the snapshots of a partition that is to be rebuilt. One
// transaction carries all tombstones and the offset to start again from, so that
// a crash leaves either the old state or none.
func (p *Partition) wipe() error {
	if len(p.rebuild) == 0 {
		return nil
	}
	tombstones := make([]Snapshot, len(p.rebuild))
	for i, k := range p.rebuild {
		tombstones[i] = Snapshot{Key: k, SourceOffset: noPosition, rebuild: true}
	}
	p.rebuild = nil
	if err := p.Apply(p.handlerCtx, Batch{Snapshots: tombstones}); err != nil {
		return fmt.Errorf("deleting the snapshots before they are rebuilt: %w", err)
	}
	p.log.Warn("all snapshots were deleted, to be rebuilt", "keys", len(tombstones), "resume", p.Resume())
	return nil
}

// checkSources compares the highest source offset of the snapshots with the
// input log. They were written by earlier owners from events of this log, so
// its end was past them at the takeover already. A source of 0 proves nothing: it
// is also what a writer leaves that does not use it.
func (m *Module) checkSources(ctx context.Context, p *Partition, source int64) error {
	if source <= 0 || source < p.inputEnd {
		return nil
	}
	var log span
	err := p.persist(ctx, "looking up the input log", func() (err error) {
		log, err = lookUpSpan(ctx, m.reader, m.input.Name, p.id)
		return err
	})
	if err != nil || source < log.end {
		return err
	}
	e := &MismatchError{SourceAboveInput, Agreement{Topic: m.input.Name, SnapshotTopic: m.snapshot.Name, Partition: p.id,
		InputStart: log.start, InputEnd: log.end, Source: source,
		Committed: p.Resume(), Start: noPosition, End: noPosition, VouchedEnd: noPosition, Committable: noPosition}}
	c := m.cfg.choice(SourceAboveInput)
	m.reportMismatch(p, e, c)
	if c == Fail {
		return e
	}
	return nil
}

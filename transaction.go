package persistence

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/internal/cursor"
	"github.com/kafkafence/persistence/internal/format"
	"github.com/kafkafence/persistence/internal/wire"
)

// One transaction, from the offset commit to its settled outcome. groupcommit.go
// has the outline.

// attempt is one transaction's outcome.
type attempt struct {
	verdict    verdict
	generation int32
	name       string
	pos        position
	end        int64       // the snapshot partition's end if it committed
	witness    *kgo.Record // one that it produced
	survived   *FenceInfo
	err        error
}

// attempt runs one transaction.
func (g *groupCommit) attempt(ctx context.Context, batch []*write, deadline time.Time) (a attempt) {
	fail := func(s stage, err error) attempt {
		a.verdict, a.err = judge(s, err), fmt.Errorf("%v: %w", s, err)
		// The client's transaction is open; only a new producer is certain
		// to have none.
		g.needsRenew = a.err
		return a
	}
	member, ok := g.live(&a)
	if !ok {
		return a
	}
	if err := g.broker.begin(); err != nil {
		return fail(stageBegin, err)
	}

	a.pos = g.offsets.committable()
	snapshots := 0
	for _, w := range batch {
		if w.through.offset > a.pos.offset {
			a.pos = w.through
		}
		snapshots += len(w.snapshots)
	}
	a.end = g.end
	if snapshots > 0 {
		a.end += int64(snapshots) + 1 // and the marker
	}
	g.sequence++
	a.name = strconv.FormatInt(g.sequence, 36)
	pos := wire.Position{Offset: a.pos.offset, Epoch: a.pos.epoch, Metadata: format.Metadata{End: a.end, Owner: g.nonce, Transaction: a.name, Input: g.inputID}.String()}

	bounded, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if v, err := g.gated(bounded, &a, member, func(m wire.Member) error { return g.broker.commitOffset(bounded, m, pos) }); err != nil {
		fail(stageOffsets, err)
		a.verdict = v
		return a
	}

	records := g.records(batch, a.pos.offset)
	if errs := g.broker.produce(bounded, records); len(errs) > 0 {
		v := fail(stageProduce, errs[0])
		// One that says what is wrong with a record counts most.
		for _, err := range errs {
			if isRecordRefused(err) {
				v = fail(stageProduce, err)
				break
			}
		}
		return v
	}
	if err := g.broker.open(); err != nil {
		return fail(stageProduce, err)
	}
	a.witness = records[0]
	// From here on the transaction may commit. Its bound is when the broker
	// ends it by itself.
	if err := g.broker.end(bounded); err != nil {
		return fail(stageEnd, err)
	}
	g.landed(a, records)
	return a
}

// live reads the membership that a request is to carry, and reports false if
// nothing may be sent. The generation first, then the handle: see fence.go.
func (g *groupCommit) live(a *attempt) (wire.Member, bool) {
	member := g.broker.member()
	a.generation = member.Generation
	if err := g.broker.open(); err != nil {
		a.verdict, a.err = unlanded, err
		return member, false
	}
	if !joined(member) {
		a.verdict, a.err = impossible, ErrNotJoined
		return member, false
	}
	return member, true
}

// position is what a commit outside of a transaction carries now.
func (g *groupCommit) position() wire.Position {
	at := g.offsets.committable()
	return wire.Position{Offset: at.offset, Epoch: at.epoch, Metadata: format.Metadata{End: g.end, Owner: g.nonce, Input: g.inputID}.String()}
}

// joined reports whether the coordinator would check the membership: against an
// empty group it takes a commit that names none.
func joined(m wire.Member) bool { return m.ID != "" && m.Generation > 0 }

// survived tells of a fence that the ownership survived.
func (g *groupCommit) survived(f *FenceInfo) {
	if f == nil {
		return
	}
	g.log.Info("a write was refused under one generation and committed under the next; the partition stayed here",
		"refused", f.Refused, "generation", f.Current, "waited", f.Waited)
	if g.trace.FenceSurvived != nil {
		g.trace.FenceSurvived(*f)
	}
}

// gated sends what carries the generation, and sends it again under the next
// generation when one is refused and the ownership goes on.
func (g *groupCommit) gated(ctx context.Context, a *attempt, member wire.Member, send func(wire.Member) error) (verdict, error) {
	for {
		err := send(member)
		v := judge(stageOffsets, err)
		if v != askOwnership {
			return v, err
		}
		began := time.Now()
		info := FenceInfo{Topic: g.topic, Partition: g.partition, Refused: member.Generation, Err: err}
		how := awaitOwnership(ctx, g.fenceWait, member.Generation, func() int32 { return g.broker.member().Generation }, g.broker.open)
		member = g.broker.member()
		info.Current, info.Waited = member.Generation, time.Since(began)
		if how == movedOn && g.broker.open() == nil && joined(member) {
			a.generation, a.survived = member.Generation, &info
			continue
		}
		if reason := g.broker.open(); reason != nil || how == closed {
			return unlanded, join(g.why(ctx), err)
		}
		if g.trace.Fenced != nil {
			g.trace.Fenced(info)
		}
		return askOwnership, info.fatal()
	}
}

// fatal is the error of an ownership that stayed refused.
func (f FenceInfo) fatal() error {
	return fmt.Errorf("%w: generation %d was refused and no newer one came within %v: %w", ErrFenced, f.Refused, f.Waited.Round(time.Millisecond), f.Err)
}

// landed notes what a committed transaction moved.
func (g *groupCommit) landed(a attempt, records []*kgo.Record) {
	g.offsets.settled(a.pos)
	g.end = max(g.end, a.end)
	for _, r := range records {
		if r.Topic == g.snapshots && r.Offset+2 > g.end {
			g.end = r.Offset + 2
		}
	}
}

// settle finds out what became of a transaction whose end got no clear answer.
// Its offset commit was accepted, so it is pending until the transaction is
// over; once nothing is pending, the metadata of the committed offset names
// the last transaction that committed. While it is pending, a new producer's
// InitProducerID ends it. Where a later commit has covered the metadata, the log
// tells whether a record of the transaction became visible.
func (g *groupCommit) settle(ctx context.Context, a attempt, deadline time.Time) attempt {
	lost := a.err
	unknown := func(err error) attempt {
		a.verdict, a.err = unsettled, fmt.Errorf("%w: %w", ErrUnknownOutcome, join(err, lost))
		return a
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(pause*2, 500*time.Millisecond) {
		if err := g.broker.open(); err != nil {
			return unknown(err)
		}
		if !time.Now().Before(deadline) {
			return unknown(fmt.Errorf("not settled within %v", g.patience))
		}
		metadata, err := g.broker.lastCommit(ctx)
		if errors.Is(err, kerr.UnstableOffsetCommit) && !isProducerFenced(lost) {
			// Not once somebody else has the epoch: then it is theirs that
			// is pending, and it will be over soon.
			if err = g.renew(ctx); err == nil {
				continue
			}
		}
		if err != nil {
			g.log.Warn("a transaction's outcome is not settled yet", "error", err)
			sleep(ctx, pause)
			continue
		}
		m, _ := format.ParseMetadata(metadata)
		mine := m.Owner == g.nonce
		if mine && m.Transaction == a.name {
			return g.didCommit(a)
		}
		hidden := !mine && metadata != g.inherited || // somebody else has committed since
			mine && g.forgetful || mine && m.Transaction == "" && g.offsets.inDoubt()
		if !hidden {
			return g.didNotCommit(a)
		}
		// The metadata cannot tell. The log can, unless it was compacted.
		switch fate, err := g.broker.fate(ctx, a.witness); {
		case err != nil || fate == cursor.Open:
			g.log.Warn("a transaction's outcome is not settled yet", "error", err)
			sleep(ctx, pause)
		case fate == cursor.Committed:
			return g.didCommit(a)
		case fate == cursor.Aborted:
			return g.didNotCommit(a)
		default:
			return unknown(fmt.Errorf("its records are compacted away, and the offset was committed anew since (%q)", metadata))
		}
	}
}

func (g *groupCommit) didCommit(a attempt) attempt {
	g.log.Info("the reply to a commit was lost; it did commit", "error", a.err)
	g.landed(a, nil)
	a.verdict, a.err = committed, nil
	return a
}

func (g *groupCommit) didNotCommit(a attempt) attempt {
	g.log.Info("the reply to a commit was lost; it did not commit and is tried again", "error", a.err)
	a.verdict = unlanded
	if isProducerFenced(a.err) {
		a.verdict = producerGone
	}
	return a
}

// renewConfirmed replaces the producer. One that was fenced may have been
// fenced by the partition's next owner, whose producer would be fenced in turn;
// so the generation is asked first.
func (g *groupCommit) renewConfirmed(ctx context.Context, deadline time.Time) (a attempt) {
	bounded, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if isProducerFenced(g.needsRenew) {
		member, ok := g.live(&a)
		if !ok {
			return a
		}
		pos := g.position()
		v, err := g.gated(bounded, &a, member, func(m wire.Member) error { return g.broker.confirm(bounded, m, pos) })
		if err != nil {
			a.verdict, a.err = v, err
			return a
		}
		g.offsets.settled(position{pos.Offset, pos.Epoch})
	}
	if err := g.renew(bounded); err != nil {
		a.verdict, a.err = judge(stageBegin, err), err
	}
	return a
}

// renew replaces the producer.
func (g *groupCommit) renew(ctx context.Context) error {
	// Opened again only for an ownership that is still one: a stale owner
	// that takes the epoch would fence the valid owner's producer.
	if err := g.broker.open(); err != nil {
		return err
	}
	why := g.needsRenew
	if err := g.broker.renew(ctx, why); err != nil {
		return fmt.Errorf("replacing the producer: %w", err)
	}
	g.needsRenew = nil
	g.broker.doubtful() // what is still under way has an old epoch now
	return nil
}

// records builds what the batch puts into the logs, in the order of its writes.
func (g *groupCommit) records(batch []*write, committable int64) []*kgo.Record {
	n := countRecords(batch)
	records := make([]*kgo.Record, 0, n)
	block := make([]kgo.Record, 0, n)
	var last *kgo.Record // snapshot
	for _, w := range batch {
		for i := range w.snapshots {
			s := &w.snapshots[i]
			headers := format.AppendHeaders(s.Headers, s.SourceOffset, committable)
			if s.rebuild {
				headers = format.AppendRebuild(headers)
			}
			block = append(block, kgo.Record{Topic: g.snapshots, Partition: g.partition, Key: s.Key, Value: s.Value, Headers: headers})
			last = &block[len(block)-1]
			records = append(records, last)
		}
		for _, o := range w.outputs {
			// A copy: kgo fills in what it sends, and a batch may be sent
			// again.
			block = append(block, *o)
			r := &block[len(block)-1]
			r.Context = nil
			records = append(records, r)
		}
	}
	if last != nil {
		last.Headers = format.AppendInputID(last.Headers, g.inputID)
	}
	return records
}

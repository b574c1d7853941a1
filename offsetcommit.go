package persistence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence/internal/wire"
)

// Commits without a transaction.
//
// An advance that no transaction carries is committed with an ordinary
// OffsetCommit under the member's generation, which the coordinator checks in
// the same way: one request for all idle partitions of the member together. A
// transaction with nothing but an offset would cost each partition three round
// trips, and kgo does not end a transaction in which it produced nothing.
//
// Such a commit must come strictly between a partition's transactions, so it
// holds the partition's gate: the outcome of everything before it is settled,
// and nothing begins before it is answered.
//
// One whose answer does not come may still be on its way, and carries the
// generation that is live: if it arrives late it moves the committed offset
// back. Nothing in the protocol prevents that. So from then on the offset is
// committed anew at every interval and at the end, until the ownership is over:
// a step back lasts for one interval, and costs a replay at most.

// offsetWatch is a hook on the client that commits offsets.
type offsetWatch struct{ m *Module }

// OnBrokerE2E is called by kgo.
func (w offsetWatch) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e2e kgo.BrokerE2E) {
	if kmsg.Key(key) != kmsg.OffsetCommit || e2e.Err() == nil {
		return
	}
	// Several may be under way; it does not matter which one it was.
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	for _, p := range w.m.mu.partitions {
		p.offsets.raiseDoubt()
	}
}

var _ kgo.HookBrokerE2E = offsetWatch{}

// commitLoop commits what was advanced to, every CommitInterval.
func (m *Module) commitLoop(ctx context.Context) {
	t := time.NewTicker(m.cfg.commitInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		var held []*Partition
		for _, p := range m.handles() {
			// One whose gate is taken has a transaction that carries the offset.
			if p.isOwned() && p.commit.exclusive.tryEnter() {
				held = append(held, p)
			}
		}
		// Bounded, since the partitions cannot write meanwhile.
		bounded, cancel := context.WithTimeout(ctx, ownershipWait(m.cfg.user.heartbeatInterval, m.cfg.user.serverSide))
		errs := m.commitOffsets(bounded, held)
		cancel()
		for _, p := range held {
			p.commit.exclusive.leave()
			if err := errs[p.id]; err != nil && ctx.Err() == nil && p.giveUpReason() == nil {
				p.log.Warn("the offset was not committed; the next interval tries again", "error", err)
			}
		}
	}
}

// commitOne commits one partition's advance now.
func (m *Module) commitOne(ctx context.Context, p *Partition) error {
	if !p.isOwned() {
		return ErrNotOwned
	}
	if !p.commit.exclusive.enter(ctx) {
		return context.Cause(ctx)
	}
	defer p.commit.exclusive.leave()
	began, refused := time.Now(), m.member().Generation
	err := m.commitUntil(ctx, []*Partition{p})[p.id]
	if isOwnershipQuestion(err) && ctx.Err() == nil && p.open() == nil {
		info := FenceInfo{Topic: m.input.Name, Partition: p.id, Refused: refused, Current: m.member().Generation, Waited: time.Since(began), Err: err}
		if m.cfg.trace.Fenced != nil {
			m.cfg.trace.Fenced(info)
		}
		err = info.fatal()
		m.fenced(p, err)
	}
	return err
}

// commitFinally commits the last advances of partitions that are given up.
func (m *Module) commitFinally(ctx context.Context, parts []*Partition) {
	var held []*Partition
	for _, p := range parts {
		p.mu.Lock()
		looped := p.mu.looping && p.mu.state != dead
		p.mu.Unlock()
		if !looped {
			continue
		}
		select {
		case <-p.loopDone: // no more transactions
			if p.commit.exclusive.enter(ctx) {
				held = append(held, p)
			}
		default:
		}
	}
	errs := m.commitUntil(ctx, held)
	for _, p := range held {
		p.commit.exclusive.leave()
		if err := errs[p.id]; err != nil {
			p.log.Warn("the last offset was not committed; the next owner processes the events behind it again", "error", err)
		}
	}
}

// commitUntil commits, and tries again while the group is in between two
// generations, as long as a fence would be waited out.
func (m *Module) commitUntil(ctx context.Context, held []*Partition) map[int32]error {
	ctx, cancel := context.WithTimeout(ctx, ownershipWait(m.cfg.user.heartbeatInterval, m.cfg.user.serverSide))
	defer cancel()
	refused := make(map[int32]error)
	for {
		errs := m.commitOffsets(ctx, held)
		again := false
		for id, err := range errs {
			if isOwnershipQuestion(err) {
				refused[id], again = err, true
			} else if ctx.Err() != nil && refused[id] != nil {
				errs[id] = refused[id] // says more than that the time was up
			}
		}
		if !again || !sleep(ctx, 5*time.Millisecond) {
			return errs
		}
	}
}

// commitOffsets commits what the partitions advanced to, in one request, and
// returns what failed. The caller holds their gates. Nothing to
// commit sends nothing.
func (m *Module) commitOffsets(ctx context.Context, held []*Partition) map[int32]error {
	failed := make(map[int32]error)
	began := time.Now()
	member := m.member() // before the handles are checked: see fence.go
	due := make(map[int32]wire.Position)
	at := make(map[int32]position)
	for _, p := range held {
		if _, dirty := p.offsets.dirty(); !dirty {
			continue
		}
		if err := p.open(); err != nil {
			failed[p.id] = err
			continue
		}
		due[p.id] = p.commit.position()
		at[p.id] = position{due[p.id].Offset, due[p.id].Epoch}
	}
	if len(due) == 0 {
		return failed
	}
	var err error
	var results map[int32]error
	if !joined(member) {
		err = ErrNotJoined
	} else if results, err = wire.OffsetCommit(ctx, m.reader, member, m.input, due); err != nil {
		err = fmt.Errorf("OffsetCommit: %w", err)
	}
	committed := make(map[int32]int64, len(at))
	var first error
	for _, p := range held {
		pos, ok := at[p.id]
		if !ok {
			continue
		}
		if e := errors.Join(err, results[p.id]); e != nil {
			failed[p.id], first = e, e
			continue
		}
		p.offsets.settled(pos)
		committed[p.id] = pos.offset
	}
	if m.cfg.trace.OffsetsCommitted != nil {
		m.cfg.trace.OffsetsCommitted(OffsetsInfo{Topic: m.input.Name, Generation: member.Generation, Offsets: committed, Took: time.Since(began), Err: first})
	}
	return failed
}

package persistence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Ownerships come and go in kgo's group callbacks, which the group waits for.
// So nothing long happens in them: a takeover only starts there, and a revoke
// is bounded by RevokeTimeout.
//
//	assigned  pause the partition; start the takeover; wait for its
//	          InitProducerID, shortly, since kgo fetches the committed offset
//	          next and would sleep a second over a crashed owner's open
//	          transaction
//	revoked   tell the handlers; wait for them; drain the queues; commit what
//	          was advanced to, in one request; close the handles
//	lost      close the handles; send nothing
//
// After revoked or lost has returned, no write of these ownerships can land: the
// handle is closed before the member can have a newer generation.

// initWait is how long the assigned callback waits for InitProducerID.
const initWait = time.Second

func (m *Module) onAssigned(ctx context.Context, cl *kgo.Client, assigned map[string][]int32) {
	var fresh []*Partition
	m.mu.Lock()
	if !m.mu.stopping {
		for _, id := range assigned[m.input.Name] {
			p := m.newPartition(id)
			m.mu.partitions[id] = p
			delete(m.mu.refused, id)
			m.handlers.Add(1)
			fresh = append(fresh, p)
		}
	}
	m.mu.Unlock()
	if ids := assigned[m.input.Name]; len(ids) > 0 {
		m.consumer.PauseFetchPartitions(map[string][]int32{m.input.Name: ids})
	}
	for _, p := range fresh {
		go m.own(p)
	}
	wait := time.NewTimer(initWait)
	defer wait.Stop()
	for _, p := range fresh {
		select {
		case <-p.initialised:
		case <-wait.C:
			// Go on: kgo tries the offset fetch again until it is stable.
			wait.Reset(0)
		}
	}
	if m.cfg.user.onAssigned != nil {
		m.cfg.user.onAssigned(ctx, cl, assigned)
	}
}

// onOffsetsFetched sees where kgo would start to consume. The takeover decides;
// a missing offset only needs to be some number, as the partition is paused.
func (m *Module) onOffsetsFetched(_ context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	for id, o := range offsets[m.input.Name] {
		at := o.EpochOffset().Offset
		if at < 0 {
			offsets[m.input.Name][id] = kgo.NewOffset().At(0)
		}
		m.mu.Lock()
		p := m.mu.partitions[id]
		m.mu.Unlock()
		if p != nil {
			p.locate(at)
		}
	}
	return offsets, nil
}

func (m *Module) onRevoked(ctx context.Context, cl *kgo.Client, revoked map[string][]int32) {
	bound, cancel := context.WithTimeoutCause(context.Background(), m.cfg.revokeTimeout, fmt.Errorf("RevokeTimeout of %v passed", m.cfg.revokeTimeout))
	defer cancel()
	m.giveUp(bound, m.lookUp(revoked), ErrRevoked)
	if m.cfg.user.onRevoked != nil {
		m.cfg.user.onRevoked(ctx, cl, revoked)
	}
}

func (m *Module) onLost(ctx context.Context, cl *kgo.Client, lost map[string][]int32) {
	parts := m.lookUp(lost)
	for _, p := range parts {
		p.kill(ErrLost)
	}
	for _, p := range parts {
		<-p.over
		m.forget(p, ErrLost, 0)
	}
	if m.cfg.user.onLost != nil {
		m.cfg.user.onLost(ctx, cl, lost)
	}
}

// lookUp returns the handles of partitions that are being taken away.
func (m *Module) lookUp(gone map[string][]int32) []*Partition {
	m.mu.Lock()
	defer m.mu.Unlock()
	var parts []*Partition
	for _, id := range gone[m.input.Name] {
		delete(m.mu.refused, id)
		if p := m.mu.partitions[id]; p != nil {
			parts = append(parts, p)
		}
	}
	return parts
}

// forget removes a handle that is over.
func (m *Module) forget(p *Partition, why error, took time.Duration) {
	m.mu.Lock()
	mine := m.mu.partitions[p.id] == p
	if mine {
		delete(m.mu.partitions, p.id)
	}
	m.mu.Unlock()
	if !mine {
		return
	}
	p.log.Info("partition given up", "reason", why, "took", took)
	if m.cfg.trace.GivenUp != nil {
		m.cfg.trace.GivenUp(GiveUpInfo{Topic: m.input.Name, Partition: p.id, Reason: why, Took: took})
	}
}

// own takes a partition over and runs its handler, again and again while the
// partition stays assigned but was fenced or refused.
func (m *Module) own(p *Partition) {
	defer m.handlers.Done()
	for p != nil {
		err := m.takeOver(p)
		p.markInitialised()
		if err != nil || !p.startLoop() {
			close(p.handlerDone)
			p = m.takeoverFailed(p, err)
			continue
		}
		m.mu.Lock()
		handler := m.mu.handler
		m.mu.Unlock()
		if err = p.wipe(); err == nil {
			err = handler(p.handlerCtx, p)
		}
		close(p.handlerDone)
		m.handlerReturned(p, err)
		p = m.retake(p)
	}
}

// handlerReturned decides what the end of a handler means.
func (m *Module) handlerReturned(p *Partition, err error) {
	reason := p.giveUpReason()
	over := errors.Is(err, ErrRevoked) || errors.Is(err, ErrLost) || errors.Is(err, ErrFenced) || errors.Is(err, ErrClosed) ||
		p.handlerCtx.Err() != nil && errors.Is(err, p.handlerCtx.Err())
	switch {
	case reason == nil && err == nil:
		m.fail(fmt.Errorf("persistence: the handler of partition %d of %s returned nil although the partition is still owned; a handler goes on until Poll returns an error", p.id, m.input.Name))
	case reason == nil || err != nil && !over:
		m.fail(fmt.Errorf("persistence: the handler of partition %d of %s failed: %w", p.id, m.input.Name, err))
	}
}

// giveUp ends ownerships in order, all of them within ctx, and returns what was
// cut off.
func (m *Module) giveUp(ctx context.Context, parts []*Partition, why error) (cut []Unflushed) {
	if len(parts) == 0 {
		return nil
	}
	began := time.Now()
	for _, p := range parts {
		p.beginRevoke(why)
	}
	for _, p := range parts {
		select {
		case <-p.handlerDone:
		case <-ctx.Done():
		}
	}
	for _, p := range parts {
		p.queue.drain(why)
	}
	for _, p := range parts {
		p.awaitLoop(ctx)
	}
	m.commitFinally(ctx, parts)
	for _, p := range parts {
		if u, ok := p.unflushed(); ok && ctx.Err() != nil {
			p.log.Error("not everything was flushed in time; the next owner processes it again", "reason", context.Cause(ctx),
				"writes", u.Writes, "handler_running", u.HandlerRunning, "offset_not_committed", u.Committable)
			cut = append(cut, u)
		}
		p.stopHandler(why)
		p.kill(why)
	}
	for _, p := range parts {
		<-p.over
		m.forget(p, why, time.Since(began))
	}
	return cut
}

// awaitLoop waits until the queue is drained.
func (p *Partition) awaitLoop(ctx context.Context) {
	p.mu.Lock()
	looping := p.mu.looping
	p.mu.Unlock()
	if !looping {
		return
	}
	select {
	case <-p.loopDone:
	case <-ctx.Done():
	}
}

// unflushed is what an ownership still has to do, if anything.
func (p *Partition) unflushed() (u Unflushed, left bool) {
	u = Unflushed{Partition: p.id, Writes: p.unanswered(), Committable: noPosition}
	select {
	case <-p.handlerDone:
	default:
		u.HandlerRunning = true
	}
	if pos, dirty := p.offsets.dirty(); dirty {
		u.Committable = pos.offset
	}
	return u, u.HandlerRunning || u.Writes > 0 || u.Committable != noPosition
}

package persistence

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// What follows when a partition stays assigned without being owned: because its
// ownership was fenced, or because its takeover failed. Either may pass, so the
// partition is taken over again, with a new handle, recovery and position.

// fenceCount is how often a partition was fenced under one generation.
type fenceCount struct {
	generation int32
	times      int
}

// maxFences is how often a partition may be fenced and taken over again while
// the generation stands still.
const maxFences = 3

// fenced ends an ownership that stayed refused. The owning goroutine of its
// producer calls it.
func (m *Module) fenced(p *Partition, err error) {
	p.log.Error("fenced: this ownership is over", "error", err)
	p.kill(err)
	if errors.Is(err, ErrProducerConflict) {
		m.fail(fmt.Errorf("persistence: partition %d of %s: %w", p.id, m.input.Name, err))
	}
}

// retake makes a new handle for a partition whose ownership was fenced although
// it stays assigned: state and position start again from what is committed.
// Nil: it is not to be taken over again.
func (m *Module) retake(p *Partition) *Partition {
	why := p.giveUpReason()
	if !errors.Is(why, ErrFenced) {
		return nil
	}
	<-p.over
	if !m.awaitAcceptance(p) {
		return nil
	}
	generation := m.member().Generation
	m.mu.Lock()
	if m.mu.partitions[p.id] != p || m.mu.stopping {
		m.mu.Unlock()
		return nil // revoked, lost or closed meanwhile
	}
	count := m.mu.fences[p.id]
	if count.generation != generation {
		count = fenceCount{generation: generation}
	}
	count.times++
	m.mu.fences[p.id] = count
	var again *Partition
	if count.times < maxFences {
		again = m.newPartition(p.id)
		again.locate(noPosition) // kgo's own fetch is long over, and its position is past what is committed
		m.mu.partitions[p.id] = again
	}
	m.mu.Unlock()
	if again == nil {
		m.failFenced(p, count.times, generation, why)
		return nil
	}
	p.log.Warn("the partition is still assigned here; taking it over anew", "generation", generation)
	if m.cfg.trace.GivenUp != nil {
		m.cfg.trace.GivenUp(GiveUpInfo{Topic: m.input.Name, Partition: p.id, Reason: why})
	}
	m.consumer.PauseFetchPartitions(m.only(p.id))
	return again
}

// awaitAcceptance waits until the coordinator takes this member for an owner
// again, and reports false when the partition is gone, or when that does not
// come about. A takeover begins with InitProducerID, which would take the epoch
// from the partition's new owner, if there is one.
func (m *Module) awaitAcceptance(p *Partition) bool {
	wait := ownershipWait(m.cfg.user.heartbeatInterval, m.cfg.user.serverSide) + m.cfg.user.sessionTimeout
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	refusal := p.giveUpReason() // the coordinator's last word
	for pause := 5 * time.Millisecond; ; pause = min(pause*2, 500*time.Millisecond) {
		m.mu.Lock()
		gone := m.mu.partitions[p.id] != p || m.mu.stopping
		m.mu.Unlock()
		if gone {
			return false
		}
		member := m.member()
		err := ErrNotJoined
		if joined(member) {
			err = m.confirm(ctx, p, member, p.commit.position())
		}
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			refusal = err
		}
		if !sleep(ctx, pause) {
			m.failFenced(p, 1, member.Generation, refusal)
			return false
		}
	}
}

func (m *Module) failFenced(p *Partition, times int, generation int32, err error) {
	if !errors.Is(err, ErrFenced) {
		err = join(ErrFenced, err)
	}
	m.fail(fmt.Errorf("persistence: partition %d of %s was fenced %d times under generation %d although it stays assigned: %w",
		p.id, m.input.Name, times, generation, err))
}

// takeoverFailed ends an ownership that never began, and returns the next
// handle if the partition is to be tried again.
func (m *Module) takeoverFailed(p *Partition, err error) *Partition {
	switch {
	case p.giveUpReason() != nil || err == nil:
		return nil // given up meanwhile; whoever did that finishes it
	case !errors.Is(err, ErrPartitionMismatch):
		m.fail(err)
		return nil
	}
	// Only this partition: the others are where their events are.
	p.log.Error("partition refused", "error", err)
	p.kill(err)
	<-p.over
	m.mu.Lock()
	mine := m.mu.partitions[p.id] == p
	if mine {
		delete(m.mu.partitions, p.id)
		m.mu.refused[p.id] = err
	}
	m.mu.Unlock()
	if !mine {
		return nil
	}
	return m.awaitCounts(p.id, err)
}

// refusedInterval is how often a refused partition is looked at again.
const refusedInterval = 5 * time.Second

// awaitCounts waits until the snapshot topic has a refused partition, and makes
// a handle for it then; nil if it was taken away meanwhile.
func (m *Module) awaitCounts(id int32, refusal error) *Partition {
	t := time.NewTicker(refusedInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-m.ending:
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), refusedInterval)
		err := m.checkPartition(ctx, id)
		cancel()
		m.mu.Lock()
		if m.mu.refused[id] != refusal || m.mu.stopping {
			m.mu.Unlock()
			return nil
		}
		if err != nil {
			m.mu.Unlock()
			continue
		}
		p := m.newPartition(id)
		p.locate(noPosition)
		m.mu.partitions[id] = p
		delete(m.mu.refused, id)
		m.mu.Unlock()
		return p
	}
}

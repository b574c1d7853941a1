package persistence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/internal/format"
	"github.com/kafkafence/persistence/internal/wire"
)

// A takeover, in an order that matters:
//
//	InitProducerID    what a crashed owner left open is aborted or completed,
//	                  so neither its offsets nor its records are pending
//	offset fetch      stable: nothing can change it any more but this owner
//	high watermark    captured after both, so that it covers every snapshot
//	                  that the committed offset counts on
//	reconcile         committed offset, snapshots and input log must agree
//
// Recovery reads up to a high watermark that is captured no earlier.

// isOwned reports whether the takeover is done and the ownership not over.
func (p *Partition) isOwned() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.state == owned || p.mu.state == revoking && p.mu.looping
}

// locate notes where kgo starts to consume.
func (p *Partition) locate(at int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.located:
	default:
		p.mu.kgoAt = at
		close(p.located)
	}
}

func (p *Partition) markInitialised() { p.initOnce.Do(func() { close(p.initialised) }) }

// takeOver makes a partition ready to be read and written. Trouble that may pass
// is ridden out, for RecoveryStallTimeout.
func (m *Module) takeOver(p *Partition) error {
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(p.takeoverCtx, m.cfg.stallTimeout,
		fmt.Errorf("the takeover did not finish within %v (RecoveryStallTimeout)", m.cfg.stallTimeout))
	defer cancel()

	if err := m.checkPartition(ctx, p.id); err != nil {
		return err
	}
	err := p.persist(ctx, "initialising the producer", func() error {
		next, err := m.newProducer(ctx, p.id)
		if err == nil && !p.setProducer(next) {
			err = p.open()
		}
		return err
	})
	if err != nil {
		return err
	}
	p.markInitialised()

	var last wire.Committed
	err = p.persist(ctx, "fetching the committed offset", func() (err error) {
		last, err = wire.StableOffset(ctx, m.reader, m.cfg.user.group, m.input, p.id)
		return err
	})
	if err != nil {
		return err
	}
	facts := takeoverFacts{stateless: m.cfg.stateless, input: m.input.Name, snapshotTopic: m.snapshot.Name, partition: p.id,
		committed: last, inputID: format.TopicID(m.input.ID)}
	err = p.persist(ctx, "looking up the logs", func() (err error) {
		if !m.cfg.stateless {
			if facts.snapshots, err = lookUpSpan(ctx, m.reader, m.snapshot.Name, p.id); err != nil {
				return err
			}
		}
		facts.inputLog, err = lookUpSpan(ctx, m.reader, m.input.Name, p.id)
		return err
	})
	if err != nil {
		return err
	}
	plan, err := m.agree(p, facts)
	if err != nil {
		return err
	}
	resume := plan.resume
	if resume.offset < 0 {
		err := p.persist(ctx, "resolving the start offset", func() error {
			at, err := m.startOffset(ctx, p.id)
			resume = position{at, noEpoch}
			return err
		})
		if err != nil {
			return err
		}
	}

	// kgo must have its own fetch behind it before it can be moved.
	select {
	case <-p.located:
	case <-p.takeoverCtx.Done():
		return context.Cause(p.takeoverCtx)
	}
	p.mu.Lock()
	p.mu.resume, p.inputEnd = resume, facts.inputLog.end
	p.mu.Unlock()
	p.offsets.start(resume)
	end := facts.snapshots.end
	if m.cfg.stateless {
		end = format.Unknown
	}
	p.commit = &groupCommit{
		topic: m.input.Name, partition: p.id, snapshots: m.snapshot.Name,
		maxWrites: m.cfg.maxWrites, maxBytes: m.cfg.maxBytes,
		patience: m.cfg.txnTimeout, fenceWait: ownershipWait(m.cfg.user.heartbeatInterval, m.cfg.user.serverSide),
		broker: m.newBroker(p), queue: p.queue, offsets: &p.offsets, trace: &m.cfg.trace, log: p.log,
		nonce: nonce(), inputID: facts.inputID, inherited: last.Metadata, end: end, exclusive: newGate(),
		fatal: func(err error) { m.fenced(p, err) },
	}
	info := TakeoverInfo{Topic: m.input.Name, Partition: p.id, Generation: m.member().Generation,
		Resume: resume.offset, ResumeFrom: plan.from, HighWatermark: facts.snapshots.end, Took: time.Since(began)}
	p.log.Info("partition taken over", "generation", info.Generation, "resume", info.Resume, "from", plan.from,
		"snapshot_end", facts.snapshots.end, "took", info.Took)
	if m.cfg.trace.TakenOver != nil {
		m.cfg.trace.TakenOver(info)
	}
	return nil
}

// persist tries again what fails for reasons that may pass.
func (p *Partition) persist(ctx context.Context, what string, try func() error) error {
	for pause := 5 * time.Millisecond; ; pause = min(pause*2, time.Second) {
		err := try()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			err = join(context.Cause(ctx), err)
		case !isImpossible(err):
			p.log.Warn("takeover: "+what+" failed; trying again", "error", err)
			sleep(ctx, pause)
			continue
		}
		if err := p.giveUpReason(); err != nil {
			return err
		}
		return fmt.Errorf("persistence: taking over partition %d of %s: %s: %w", p.id, p.m.input.Name, what, err)
	}
}

// startOffset resolves the user's start policy to a number.
func (m *Module) startOffset(ctx context.Context, partition int32) (int64, error) {
	policy := m.cfg.user.start
	if policy.exact >= 0 {
		return policy.exact, nil
	}
	at, err := wire.ListOffset(ctx, m.reader, m.input.Name, partition, policy.timestamp, true)
	if err == nil && at < 0 { // no record as late as the timestamp
		at, err = wire.ListOffset(ctx, m.reader, m.input.Name, partition, wire.LogEnd, true)
	}
	return at, err
}

// isGroupFatal is true for what ends a membership for good.
func isGroupFatal(err error) bool {
	return isAny(err, kerr.FencedInstanceID, kerr.UnreleasedInstanceID, kerr.InconsistentGroupProtocol, kerr.InvalidSessionTimeout,
		kerr.GroupMaxSizeReached, kerr.UnsupportedAssignor) || errors.Is(err, kgo.ErrClientClosed)
}

// nonce is a random name for an ownership, unique over all of them.
func nonce() string { return strconv.FormatUint(rand.Uint64(), 36) }

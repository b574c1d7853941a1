package persistence

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// poller is the goroutine that polls the consumer. Whatever moves the consumer's
// position is done by it, between polls, so that no polled records are under way
// meanwhile.
type poller struct {
	mu        sync.Mutex
	todo      []func()
	interrupt context.CancelFunc
}

func (m *Module) onPoller(fn func()) {
	m.poller.mu.Lock()
	defer m.poller.mu.Unlock()
	m.poller.todo = append(m.poller.todo, fn)
	if m.poller.interrupt != nil {
		m.poller.interrupt()
	}
}

func (m *Module) pollLoop(ctx context.Context) {
	for ctx.Err() == nil {
		poll, cancel := context.WithCancel(ctx)
		m.poller.mu.Lock()
		todo := m.poller.todo
		m.poller.todo, m.poller.interrupt = nil, cancel
		m.poller.mu.Unlock()
		for _, fn := range todo {
			fn()
		}
		fetches := m.consumer.PollFetches(poll)
		cancel()
		fetches.EachPartition(m.dispatch)
	}
}

// nudgeInterval is how long a fetch that kgo has forgotten is missing.
const nudgeInterval = 250 * time.Millisecond

// nudgeLoop has kgo look again whether there is something to fetch. Its fetch loop
// of a broker reads the consumer's session first and joins it then. If the session is
// replaced in between, as SetOffsets and every rebalance do, the loop ends, and
// what the new session told it meanwhile is lost: nothing more is fetched from that
// broker, until something else tells it (franz-go v1.22.3; seen in one of some
// thousand takeovers). Resuming nothing tells it, and sends nothing where there is
// nothing to fetch.
func (m *Module) nudgeLoop(ctx context.Context) {
	t := time.NewTicker(nudgeInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			m.consumer.ResumeFetchPartitions(nil)
		case <-ctx.Done():
			return
		}
	}
}

// dispatch hands fetched records to their owner.
func (m *Module) dispatch(f kgo.FetchTopicPartition) {
	if errors.Is(f.Err, context.Canceled) || errors.Is(f.Err, kgo.ErrClientClosed) {
		return
	}
	if f.Topic != m.input.Name {
		if f.Err != nil {
			m.groupError(f.Err)
		}
		return
	}
	m.mu.Lock()
	p := m.mu.partitions[f.Partition]
	m.mu.Unlock()
	if p == nil {
		if f.Err != nil {
			m.cfg.logger.Warn("an error of a partition that is not owned", "topic", f.Topic, "partition", f.Partition, "error", f.Err)
		}
		return
	}
	var err error
	if f.Err != nil {
		err = fmt.Errorf("persistence: partition %d of %s: %w: %w", f.Partition, f.Topic, ErrInput, f.Err)
		p.log.Error("the input cannot be read on", "error", f.Err)
	}
	p.inbox.deliver(p, f.Records, err)
}

// startFetching runs on the poller.
func (m *Module) startFetching(p *Partition) {
	p.mu.Lock()
	resume, at, gone := p.mu.resume, p.mu.kgoAt, p.mu.reason != nil
	p.mu.Unlock()
	if gone {
		return
	}
	if at != resume.offset {
		m.consumer.SetOffsets(map[string]map[int32]kgo.EpochOffset{m.input.Name: {p.id: {Epoch: resume.epoch, Offset: resume.offset}}})
	}
	p.inbox.start()
	m.consumer.ResumeFetchPartitions(m.only(p.id))
}

// groupError is what kgo says when the group session ended in an error. It joins
// again by itself, which helps unless nobody will ever let it in.
func (m *Module) groupError(err error) {
	if isImpossible(err) || isGroupFatal(err) {
		m.fail(fmt.Errorf("persistence: group %s: %w", m.cfg.user.group, err))
		return
	}
	m.cfg.logger.Warn("the group session ended in an error; joining again", "group", m.cfg.user.group, "error", err)
}

package persistence

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/internal/wire"
)

// Handler is one ownership of one partition. It is called when the partition
// has been taken over, in a goroutine of its own, and must return when the
// partition is given up: when Poll returns ErrRevoked or Partition.Revoked is
// closed (flush first, writes still work), or when ctx ends (the partition is
// lost, or there is no time left). ctx is the one to give to Recover, Poll and
// the writes.
//
// An error that is not about giving up (ErrRevoked, ErrLost, ErrFenced,
// ErrClosed, ctx's own) ends Run. So does returning nil while the partition is
// still owned.
type Handler func(ctx context.Context, p *Partition) error

// Module is one member of a consumer group that keeps its state in a compacted
// topic. Its methods are safe for concurrent use.
type Module struct {
	cfg      config
	consumer *kgo.Client // the group's member
	reader   *kgo.Client // everything else but producing

	input            wire.Topic
	snapshot         wire.Topic
	snapshotMaxBytes atomic.Int32

	recoveries *recoverySlots
	poller     poller

	mu struct {
		sync.Mutex
		running    bool
		stopping   bool
		handler    Handler
		partitions map[int32]*Partition
		refused    map[int32]error // assigned, but not taken over, and why
		fences     map[int32]fenceCount
		inputs     int // partitions of the input topic
		snapshots  int
		failed     error // what Run ends with
	}
	handlers  sync.WaitGroup // added to with mu held, while not stopping
	failure   chan error     // the first error that ends Run
	stop      chan struct{}  // closed by Close
	stopOnce  sync.Once
	stopCtx   atomic.Pointer[context.Context] // Close's, bounding the shutdown
	ending    chan struct{}                   // closed when Run begins to end
	ended     chan struct{}                   // closed when it has ended
	closeOnce sync.Once
	closed    chan struct{} // closed when all clients are
	flushErr  error         // what Run could not flush; read after ended
}

// New checks the configuration, all of it, and makes a Module. It does not talk
// to Kafka; Run does. Close must be called in the end, whether Run was or not.
func New(opts ...Option) (*Module, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	m := &Module{
		cfg:        cfg,
		input:      wire.Topic{Name: cfg.user.topic},
		snapshot:   wire.Topic{Name: cfg.snapshotTopic},
		recoveries: newRecoverySlots(cfg.recoveries),
		failure:    make(chan error, 1),
		stop:       make(chan struct{}),
		ending:     make(chan struct{}),
		ended:      make(chan struct{}),
		closed:     make(chan struct{}),
	}
	m.mu.partitions = make(map[int32]*Partition)
	m.mu.refused = make(map[int32]error)
	m.mu.fences = make(map[int32]fenceCount)
	if err = kgo.ValidateOpts(m.producerOptions(transactionalID(cfg.prefix, math.MaxInt32), 2)...); err != nil {
		return nil, fmt.Errorf("persistence: the configuration cannot be used:\nKafka, for the producers: %w", err)
	}
	if m.consumer, err = kgo.NewClient(m.consumerOptions()...); err != nil {
		return nil, fmt.Errorf("persistence: the configuration cannot be used:\nKafka: %w", err)
	}
	if m.reader, err = kgo.NewClient(append(m.plainOptions(), kgo.WithHooks(offsetWatch{m}))...); err != nil {
		m.consumer.Close()
		return nil, fmt.Errorf("persistence: the configuration cannot be used:\nKafka: %w", err)
	}
	return m, nil
}

// Client returns the consumer's client, for look-ups and metrics. It joins the
// group when Run has checked the cluster. Polling it, seeking, or committing
// with it takes records and offsets from under the library.
func (m *Module) Client() *kgo.Client { return m.consumer }

// Partition returns the current handle of a partition, for code outside its
// handler. The error is ErrNotOwned if this member does not own it or has not
// finished taking it over, or says why it was refused.
func (m *Module) Partition(id int32) (*Partition, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.mu.refused[id]; err != nil {
		return nil, err
	}
	p := m.mu.partitions[id]
	if p == nil || !p.isOwned() {
		return nil, fmt.Errorf("persistence: partition %d of %s: %w", id, m.cfg.user.topic, ErrNotOwned)
	}
	return p, nil
}

// Run checks the cluster, joins the group, and calls the handler for each
// partition that is assigned to this member, until ctx ends, a handler fails,
// or Close is called. Then it gives all partitions up as if they were revoked
// (no new records, flush, commit), leaves the group, and returns: nil after ctx
// or Close, else what went wrong, and an *UnflushedError if there was not
// enough time to flush. It can be called once.
//
// Handlers have RevokeTimeout to flush; one that has not returned after twice
// that is named in the error and left behind.
func (m *Module) Run(ctx context.Context, handler Handler) error {
	if handler == nil {
		return errors.New("persistence: Run: a handler is required")
	}
	m.mu.Lock()
	if m.mu.running || m.mu.stopping {
		m.mu.Unlock()
		return errors.New("persistence: Run can be called once, and not after Close; make a new Module")
	}
	m.mu.running, m.mu.handler = true, handler
	m.mu.Unlock()
	defer close(m.ended)

	work, cancel := context.WithCancel(context.Background())
	defer cancel()
	setup, cancelSetup := context.WithCancel(ctx)
	defer cancelSetup()
	go func() {
		select {
		case <-m.stop:
			cancelSetup()
		case <-setup.Done():
		}
	}()
	if err := m.preflight(setup); err != nil {
		if setup.Err() != nil {
			return nil
		}
		m.failed(err)
		return err
	}

	var loops sync.WaitGroup
	loops.Go(func() { m.pollLoop(work) })
	loops.Go(func() { m.nudgeLoop(work) })
	loops.Go(func() { m.commitLoop(work) })
	loops.Go(func() { m.watchLoop(work) })
	m.consumer.AddConsumeTopics(m.input.Name)

	var failure error
	select {
	case <-ctx.Done():
	case <-m.stop:
	case failure = <-m.failure:
		m.failed(failure)
		m.cfg.logger.Error("giving up all partitions", "topic", m.input.Name, "error", failure)
	}
	err := m.shutDown()
	cancel()
	loops.Wait()
	return errors.Join(failure, err)
}

// handles are those of all partitions that are assigned and not refused.
func (m *Module) handles() []*Partition {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.mu.partitions))
}

// shutDown gives everything up and leaves the group.
func (m *Module) shutDown() error {
	m.mu.Lock()
	m.mu.stopping = true
	m.mu.Unlock()
	all := m.handles()
	close(m.ending)

	bound, cancel := m.shutdownContext()
	defer cancel()
	var flushErr error
	if cut := m.giveUp(bound, all, ErrClosed); len(cut) > 0 {
		slices.SortFunc(cut, func(a, b Unflushed) int { return int(a.Partition - b.Partition) })
		flushErr = &UnflushedError{Partitions: cut, Err: context.Cause(bound)}
	}

	leave, cancelLeave := context.WithTimeout(context.Background(), m.cfg.revokeTimeout)
	defer cancelLeave()
	if err := m.consumer.LeaveGroupContext(leave); err != nil {
		m.cfg.logger.Warn("the group was not left in order; it goes on without this member after the session timeout",
			"group", m.cfg.user.group, "error", err)
	}
	m.flushErr = flushErr
	return errors.Join(flushErr, m.awaitHandlers(all))
}

// shutdownContext bounds the flush by RevokeTimeout and by Close's context,
// which may come later.
func (m *Module) shutdownContext() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), m.cfg.revokeTimeout, fmt.Errorf("RevokeTimeout of %v passed", m.cfg.revokeTimeout))
	ctx, cut := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-m.stop:
		case <-ctx.Done():
			return
		}
		closing := *m.stopCtx.Load()
		select {
		case <-closing.Done():
			cut(context.Cause(closing))
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cut(nil)
		cancel()
	}
}

// awaitHandlers waits for handlers that were told to return.
func (m *Module) awaitHandlers(all []*Partition) error {
	done := make(chan struct{})
	go func() {
		m.handlers.Wait()
		close(done)
	}()
	t := time.NewTimer(m.cfg.revokeTimeout)
	defer t.Stop()
	select {
	case <-done:
		return nil
	case <-t.C:
	}
	var stuck []int32
	for _, p := range all {
		select {
		case <-p.handlerDone:
		default:
			stuck = append(stuck, p.id)
		}
	}
	return fmt.Errorf("persistence: the handlers of partitions %v of %s did not return; their context has ended and their writes are refused", stuck, m.input.Name)
}

// Close ends Run as if its ctx had ended, waits for it, and closes all clients.
// It blocks until then. If ctx ends first, the flush is cut short. An
// *UnflushedError lists what was not flushed, if anything. Where the group does not
// answer, the consumer's client is left to close when it does, after RevokeTimeout or
// when ctx ends. Close may be called more than once, but not by a handler, for which
// it would wait.
func (m *Module) Close(ctx context.Context) error {
	m.stopCtx.CompareAndSwap(nil, &ctx)
	m.stopOnce.Do(func() { close(m.stop) })
	m.mu.Lock()
	running := m.mu.running
	m.mu.stopping = true
	m.mu.Unlock()
	if running {
		<-m.ended
	}
	m.closeClients(ctx)
	if running && m.flushErr != nil {
		return m.flushErr
	}
	return nil
}

// closeClients closes the clients that are not a partition's. kgo waits for an answer
// to JoinGroup, which a coordinator that waits for another member gives only when
// the rebalance timeout has passed.
func (m *Module) closeClients(ctx context.Context) {
	m.closeOnce.Do(func() {
		go func() {
			defer close(m.closed)
			m.consumer.Close()
			m.reader.Close()
		}()
	})
	bound, cancel := context.WithTimeout(context.Background(), m.cfg.revokeTimeout)
	defer cancel()
	// Closing what answers takes no time to speak of, so it has a moment even if
	// ctx has ended.
	defer context.AfterFunc(ctx, func() { time.AfterFunc(time.Second, cancel) })()
	select {
	case <-m.closed:
		return
	case <-bound.Done():
	}
	m.cfg.logger.Warn("the group's client is waiting for an answer to its last request, and closes when that comes; nothing is owned any more", "group", m.cfg.user.group)
}

// fail ends Run with an error; the first one counts.
func (m *Module) fail(err error) {
	select {
	case m.failure <- err:
	default:
		m.cfg.logger.Error("a further failure while giving up", "topic", m.input.Name, "error", err)
	}
}

// failed notes for Health what Run ends with.
func (m *Module) failed(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.failed = err
}

func (m *Module) only(partition int32) map[string][]int32 {
	return map[string][]int32{m.input.Name: {partition}}
}

package persistence

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence/internal/cursor"
	"github.com/kafkafence/persistence/internal/wire"
)

// producer is one partition's transactional client. It is used by one
// goroutine, and replaced, not repaired, when anything goes wrong: a new client
// begins with InitProducerID, which leaves nothing of the old one open.
type producer struct {
	cl    *kgo.Client
	id    string
	group string
	// version is the transaction.version that the client was made for.
	version int16
	watch   *watch
	loaded  map[string]bool // topics that kgo has stored the partitions of
	closing sync.Once
}

// transactionalID names a partition's producer. The middle word keeps it apart
// from the ids that applications choose for producers of their own: two
// producers that share an id fence each other.
func transactionalID(prefix string, partition int32) string {
	return prefix + "-snapshot-" + strconv.Itoa(int(partition))
}

// newProducer makes the client and initialises it, which waits until whatever
// the transactional id had open is over. It is tried once.
func (m *Module) newProducer(ctx context.Context, partition int32) (*producer, error) {
	version, err := wire.TransactionVersion(ctx, m.reader)
	if err != nil {
		return nil, fmt.Errorf("asking for transaction.version: %w", err)
	}
	p := &producer{id: transactionalID(m.cfg.prefix, partition), group: m.cfg.user.group, version: version, watch: new(watch), loaded: make(map[string]bool)}
	p.cl, err = kgo.NewClient(m.producerOptions(p.id, version, kgo.WithHooks(p.watch))...)
	if err != nil {
		return nil, err
	}
	if _, _, err := p.cl.ProducerID(ctx); err != nil {
		p.close()
		return nil, fmt.Errorf("InitProducerID for %s: %w", p.id, err)
	}
	return p, nil
}

// close cuts the connections; nothing is sent. It may be called twice, by the
// owning goroutine and from outside.
func (p *producer) close() { p.closing.Do(p.cl.Close) }

func (p *producer) commitOffset(ctx context.Context, m wire.Member, topic wire.Topic, partition int32, pos wire.Position) error {
	id, epoch, err := p.cl.ProducerID(ctx)
	if err != nil {
		return err
	}
	wp := wire.Producer{TransactionalID: p.id, ID: id, Epoch: epoch}
	if p.version < 2 {
		if err := wire.AddOffsetsToTxn(ctx, p.cl, wp, p.group); err != nil {
			return err
		}
	}
	return wire.TxnOffsetCommit(ctx, p.cl, wp, m, topic, partition, pos)
}

// produce sends the records and waits for all of them, or until ctx ends: the
// records' own context is the client's, since a cancelled produce leaves the
// client in doubt, and the caller replaces the producer after any error.
func (p *producer) produce(ctx context.Context, records []*kgo.Record) []error {
	if len(records) == 0 {
		return nil
	}
	var (
		left = int64(len(records))
		done = make(chan struct{})
		errs = make(chan error, len(records))
	)
	for _, r := range records {
		p.cl.Produce(p.cl.Context(), r, func(_ *kgo.Record, err error) {
			if err != nil {
				errs <- err
			}
			if atomic.AddInt64(&left, -1) == 0 {
				close(done)
			}
		})
	}
	select {
	case <-done:
	case <-ctx.Done():
		return []error{fmt.Errorf("the records were not all acknowledged in time: %w", context.Cause(ctx))}
	}
	close(errs)
	var failed []error
	for err := range errs {
		failed = append(failed, err)
	}
	if len(failed) == 0 {
		if err := p.awaitLoaded(ctx, records); err != nil {
			return []error{err}
		}
	}
	return failed
}

// awaitLoaded waits until kgo has stored the partitions of topics that this
// client produced to for the first time. kgo sends the records that waited for
// a topic's metadata before it stores what it learned, and EndTransaction looks
// at what is stored: called in between, it finds nothing produced, and then
// aborts the transaction, or sends nothing at all, and returns nil. Purging a
// topic that cannot exist does nothing but wait for the metadata update that is
// under way.
func (p *producer) awaitLoaded(ctx context.Context, records []*kgo.Record) error {
	fresh := false
	for _, r := range records {
		fresh = fresh || !p.loaded[r.Topic]
	}
	if !fresh {
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.cl.PurgeTopicsFromProducing("")
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("the topics' metadata was not stored in time: %w", context.Cause(ctx))
	}
	for _, r := range records {
		p.loaded[r.Topic] = true
	}
	return nil
}

// errNotEnded means that kgo took the transaction for one with nothing to end.
var errNotEnded = errors.New("the client ended the transaction without asking the broker to")

func (p *producer) end(ctx context.Context) error {
	before := p.watch.ended.Load()
	err := p.cl.EndTransaction(ctx, kgo.TryCommit)
	if err == nil && p.watch.ended.Load() == before {
		return errNotEnded // the caller finds out what became of it
	}
	return err
}

// watch is a hook that follows the client's requests of the transaction
// protocol.
type watch struct {
	// ended counts the answers to EndTxn.
	ended atomic.Int64
	// doubt is raised by a request whose answer did not come, at any try.
	// Below transaction.version 2 such a request may still be on its way and
	// take effect in a later transaction of the same producer epoch, even if
	// a retry of it succeeded.
	doubt atomic.Bool
}

// OnBrokerE2E is called by kgo, before whoever waits for the answer has it.
func (w *watch) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e2e kgo.BrokerE2E) {
	switch k := kmsg.Key(key); k {
	case kmsg.AddPartitionsToTxn, kmsg.AddOffsetsToTxn, kmsg.EndTxn, kmsg.TxnOffsetCommit:
		if e2e.Err() != nil {
			w.doubt.Store(true)
		} else if k == kmsg.EndTxn {
			w.ended.Add(1)
		}
	}
}

var _ kgo.HookBrokerE2E = new(watch)

// newBroker connects a group commit to Kafka.
func (m *Module) newBroker(p *Partition) broker {
	return broker{
		member: m.member,
		open:   p.open,
		begin:  func() error { return p.producer().cl.BeginTransaction() },
		commitOffset: func(ctx context.Context, member wire.Member, pos wire.Position) error {
			return p.producer().commitOffset(ctx, member, m.input, p.id, pos)
		},
		produce: func(ctx context.Context, records []*kgo.Record) []error { return p.producer().produce(ctx, records) },
		end:     func(ctx context.Context) error { return p.producer().end(ctx) },
		renew: func(ctx context.Context, why error) error {
			began := time.Now()
			// The old one first: its connections may hold requests.
			p.producer().close()
			next, err := m.newProducer(ctx, p.id)
			if err != nil {
				return err
			}
			if !p.setProducer(next) {
				return p.open()
			}
			if m.cfg.trace.ProducerRenewed != nil {
				id, epoch, _ := next.cl.ProducerID(ctx)
				m.cfg.trace.ProducerRenewed(RenewInfo{Topic: m.input.Name, Partition: p.id, ProducerID: id, ProducerEpoch: epoch, Reason: why, Took: time.Since(began)})
			}
			p.log.Info("producer replaced", "reason", why, "took", time.Since(began))
			return nil
		},
		confirm: func(ctx context.Context, member wire.Member, pos wire.Position) error {
			return m.confirm(ctx, p, member, pos)
		},
		lastCommit: func(ctx context.Context) (string, error) {
			c, err := wire.CommittedOffset(ctx, m.reader, m.cfg.user.group, m.input, p.id)
			return c.Metadata, err
		},
		fate: func(ctx context.Context, r *kgo.Record) (cursor.Fate, error) {
			return cursor.New(m.reader, wire.Topic{Name: r.Topic}, r.Partition, 1<<20).Fate(ctx, r.Offset)
		},
		doubtful: func() bool {
			pr := p.producer()
			return pr.watch.doubt.Swap(false) && pr.version < 2
		},
	}
}

// confirm asks the coordinator whether it takes the member for an owner, with an
// offset commit that changes nothing but the metadata.
func (m *Module) confirm(ctx context.Context, p *Partition, member wire.Member, pos wire.Position) error {
	results, err := wire.OffsetCommit(ctx, m.reader, member, m.input, map[int32]wire.Position{p.id: pos})
	if err != nil {
		return err
	}
	return results[p.id]
}

// member reads the consumer's live membership.
func (m *Module) member() wire.Member {
	id, generation := m.consumer.GroupMetadata()
	return wire.Member{Group: m.cfg.user.group, ID: id, InstanceID: m.cfg.user.instanceID, Generation: generation}
}

// batchMaxBytes bounds a produced batch by what the snapshot topic takes.
func (m *Module) batchMaxBytes(topic string) int32 {
	limit := int32(1000012)
	if m.cfg.user.batchMaxBytes != nil {
		limit = m.cfg.user.batchMaxBytes(topic)
	}
	if topic == m.cfg.snapshotTopic {
		if n := m.snapshotMaxBytes.Load(); n > 0 {
			limit = min(limit, n)
		}
	}
	return limit
}

// batchOverhead is what a record batch and a record's own fields take at most
// besides key, value and headers.
const batchOverhead = 128

// checkSize refuses a record that cannot fit a batch by itself, before it joins
// others.
func (m *Module) checkSize(topic string, size int) error {
	if limit := int(m.batchMaxBytes(topic)); size+batchOverhead > limit {
		return fmt.Errorf("%w: %d bytes for topic %s, where %d are allowed (the lower of max.message.bytes and kgo.ProducerBatchMaxBytes, less %d for the batch)",
			ErrRecordTooLarge, size, topic, limit-batchOverhead, batchOverhead)
	}
	return nil
}

func headerSize(hs []kgo.RecordHeader) int {
	n := 0
	for i := range hs {
		n += len(hs[i].Key) + len(hs[i].Value) + 10
	}
	return n
}

// asTooLarge names a broker's own refusal as this library does.
func asTooLarge(err error) error {
	if isTooLarge(err) && !errors.Is(err, ErrRecordTooLarge) {
		return fmt.Errorf("%w: %w", ErrRecordTooLarge, err)
	}
	return err
}

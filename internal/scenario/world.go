// Package scenario is the suite that every kind of cluster must pass: the same
// stories on an in-process cluster and on a real one.
package scenario

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/cursor"
	"github.com/kafkafence/persistence/internal/wire"
)

// Backend is a cluster to run on.
type Backend struct {
	Brokers []string
	// Opts are what a client needs to reach it, besides the brokers.
	Opts []kgo.Opt
	// Dial is how a Network reaches it; nil: as kgo does.
	Dial func(ctx context.Context, network, host string) (net.Conn, error)
	// TransactionVersion is the cluster's.
	TransactionVersion int
	// Cleaner: the log cleaner runs by itself, as a topic's settings say.
	Cleaner bool
}

// Patience bounds every wait of the suite. Nothing is expected to take long;
// a slow machine only makes a failure late.
const Patience = 60 * time.Second

// World is one story's topics, group and names on a cluster.
type World struct {
	testing.TB
	Backend
	Ctx        context.Context
	Input      string
	State      string // snapshot topic
	Group      string
	Prefix     string
	Partitions int32
	Admin      *kgo.Client // manual partitions, no group
}

var worlds atomic.Int64

// NewWorld makes the topics.
func NewWorld(t testing.TB, b Backend, partitions int32) *World {
	t.Helper()
	name := fmt.Sprintf("s%d-%d-%d", os.Getpid(), worlds.Add(1), time.Now().UnixNano()%1e9)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	w := &World{TB: t, Backend: b, Ctx: ctx, Input: name + "-in", State: name + "-state", Group: name, Prefix: name, Partitions: partitions}
	// A broker may not know yet of a topic that another one has made.
	w.Admin = w.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(10*time.Millisecond), kgo.UnknownTopicRetries(-1))
	w.CreateTopic(w.Input, partitions, nil)
	w.CreateTopic(w.State, partitions, map[string]string{"cleanup.policy": "compact"})
	return w
}

// Client makes a client that is closed with the story.
func (w *World) Client(opts ...kgo.Opt) *kgo.Client {
	w.Helper()
	all := append([]kgo.Opt{kgo.SeedBrokers(w.Brokers...), kgo.DisableClientMetrics()}, w.Opts...)
	cl, err := kgo.NewClient(append(all, opts...)...)
	require.NoError(w, err)
	w.Cleanup(cl.Close)
	return cl
}

// CreateTopic makes a topic and waits until it has leaders.
func (w *World) CreateTopic(topic string, partitions int32, configs map[string]string) {
	w.Helper()
	cs := make(map[string]*string)
	for k, v := range configs {
		cs[k] = &v
	}
	adm := kadm.NewClient(w.Admin)
	_, err := adm.CreateTopic(w.Ctx, partitions, -1, cs, topic)
	require.NoError(w, err)
	w.Eventually("topic "+topic+" has leaders", func() bool {
		offsets, err := adm.ListEndOffsets(w.Ctx, topic)
		return err == nil && offsets.Error() == nil && len(offsets[topic]) == int(partitions)
	})
}

// Eventually waits for a condition.
func (w *World) Eventually(what string, condition func() bool) {
	w.Helper()
	deadline := time.Now().Add(Patience)
	for !condition() {
		if time.Now().After(deadline) {
			w.Fatalf("%s: not within %v", what, Patience)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Produce writes events with these values, and their value as key, to an input
// partition.
func (w *World) Produce(partition int32, values ...string) []*kgo.Record {
	w.Helper()
	var rs []*kgo.Record
	for _, v := range values {
		rs = append(rs, &kgo.Record{Topic: w.Input, Partition: partition, Key: []byte(v), Value: []byte(v)})
	}
	require.NoError(w, w.Admin.ProduceSync(w.Ctx, rs...).FirstErr())
	return rs
}

// Options are a module's, with everything small and quick; more come after.
func (w *World) Options(kafka []kgo.Opt, more ...persistence.Option) []persistence.Option {
	all := append([]kgo.Opt{kgo.SeedBrokers(w.Brokers...), kgo.ConsumerGroup(w.Group), kgo.ConsumeTopics(w.Input),
		kgo.HeartbeatInterval(300 * time.Millisecond), kgo.FetchMaxWait(100 * time.Millisecond)}, w.Opts...)
	return append([]persistence.Option{
		persistence.Kafka(append(all, kafka...)...),
		persistence.SnapshotTopic(w.State),
		persistence.TransactionalIDPrefix(w.Prefix),
		persistence.CommitInterval(50 * time.Millisecond),
		persistence.RecoveryMaxBytes(12 << 20), // fetches of 4 MiB: see PutMuch
		persistence.Logger(slog.New(slog.NewTextHandler(logWriter{w.TB}, &slog.HandlerOptions{Level: slog.LevelDebug}))),
	}, more...)
}

// logWriter sends a module's log to the test's, while it runs.
type logWriter struct{ t testing.TB }

func (l logWriter) Write(b []byte) (int, error) {
	l.t.Helper()
	l.t.Log(string(b[:len(b)-1]))
	return len(b), nil
}

// Owner is one ownership as a handler sees it.
type Owner struct {
	*persistence.Partition
	Ctx       context.Context
	State     map[string]string // as recovered
	Recovered persistence.Recovered

	release chan struct{}
	once    sync.Once
	mu      sync.Mutex
	events  []*kgo.Record
	Revoked chan struct{} // closed when Poll said that it is over
	Err     error         // what Poll said; read after Revoked
}

// Release lets the handler return after Poll has said that it is over. Until
// then a revoke waits, so that a story can flush.
func (o *Owner) Release() { o.once.Do(func() { close(o.release) }) }

// Member is one module that runs.
type Member struct {
	w      *World
	Module *persistence.Module
	cancel context.CancelFunc
	owners chan *Owner
	done   chan struct{}
	err    error
	hold   bool
}

// Start runs a member whose handler recovers into a map and then polls. Its
// ownerships are handed out by Own. If hold is set, a revoke waits for
// Owner.Release.
func (w *World) Start(hold bool, opts ...persistence.Option) *Member {
	w.Helper()
	return w.StartKafka(hold, nil, opts...)
}

// StartKafka is Start with further kgo options.
func (w *World) StartKafka(hold bool, kafka []kgo.Opt, opts ...persistence.Option) *Member {
	w.Helper()
	m, err := persistence.New(w.Options(kafka, opts...)...)
	require.NoError(w, err)
	ctx, cancel := context.WithCancel(w.Ctx)
	mem := &Member{w: w, Module: m, cancel: cancel, owners: make(chan *Owner, 1000), done: make(chan struct{}), hold: hold}
	go func() {
		defer close(mem.done)
		mem.err = m.Run(ctx, mem.handle)
	}()
	w.Cleanup(func() { mem.Stop() })
	return mem
}

func (m *Member) handle(ctx context.Context, p *persistence.Partition) error {
	o := &Owner{Partition: p, Ctx: ctx, State: make(map[string]string), release: make(chan struct{}), Revoked: make(chan struct{})}
	var err error
	o.Recovered, err = p.Recover(ctx, func(s persistence.Snapshot) error {
		if s.Value == nil {
			delete(o.State, string(s.Key))
		} else {
			o.State[string(s.Key)] = string(s.Value)
		}
		return nil
	}, func() { clear(o.State) })
	if err != nil {
		return err
	}
	m.owners <- o
	for {
		rs, err := p.Poll(ctx)
		if err != nil {
			o.Err = err
			close(o.Revoked)
			if m.hold {
				select {
				case <-o.release:
				case <-ctx.Done():
				}
			}
			return err
		}
		o.mu.Lock()
		o.events = append(o.events, rs...)
		o.mu.Unlock()
	}
}

// Own waits for the member's next ownership.
func (m *Member) Own() *Owner {
	m.w.Helper()
	select {
	case o := <-m.owners:
		m.w.Cleanup(o.Release)
		return o
	case <-m.done:
		m.w.Fatalf("Run ended before an ownership: %v", m.err)
	case <-time.After(Patience):
		m.w.Fatalf("no ownership within %v", Patience)
	}
	return nil
}

// OwnAll waits for n ownerships, by partition.
func (m *Member) OwnAll(n int) map[int32]*Owner {
	m.w.Helper()
	all := make(map[int32]*Owner, n)
	for range n {
		o := m.Own()
		all[o.ID()] = o
	}
	return all
}

// Events waits for the owner's next n input records.
func (o *Owner) Events(t testing.TB, n int) []*kgo.Record {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for {
		o.mu.Lock()
		got := len(o.events)
		if got >= n {
			next := o.events[:n:n]
			o.events = o.events[n:]
			o.mu.Unlock()
			return next
		}
		o.mu.Unlock()
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d events within %v", got, n, Patience)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Stop closes the module in order and returns what Run returned.
func (m *Member) Stop() error {
	m.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	_ = m.Module.Close(ctx)
	<-m.done
	return m.err
}

// Wait waits for Run to end by itself.
func (m *Member) Wait() error {
	m.w.Helper()
	select {
	case <-m.done:
		return m.err
	case <-time.After(Patience):
		m.w.Fatalf("Run did not end within %v", Patience)
		return nil
	}
}

// Read returns the committed records of a partition up to the high watermark,
// with their offsets: what a read_committed reader sees in the end.
func (w *World) Read(topic string, partition int32) []*kgo.Record {
	w.Helper()
	details, err := kadm.NewClient(w.Admin).ListTopics(w.Ctx, topic)
	require.NoError(w, err)
	end := w.End(topic, partition)
	c := cursor.New(w.Admin, wire.Topic{Name: topic, ID: details[topic].ID}, partition, 1<<20)
	position, err := wire.ListOffset(w.Ctx, w.Admin, topic, partition, wire.LogStart, false)
	require.NoError(w, err)
	var all []*kgo.Record
	deadline := time.Now().Add(Patience)
	for position < end {
		b, err := c.Fetch(w.Ctx, position)
		if err != nil {
			require.True(w, kerr.IsRetriable(err) && time.Now().Before(deadline), "%v", err)
			continue
		}
		all = append(all, b.Records...)
		if b.Next == position {
			if b.Empty && b.LastStableOffset >= end {
				break
			}
			require.True(w, time.Now().Before(deadline), "stuck at %d of %d, last stable offset %d", position, end, b.LastStableOffset)
			time.Sleep(2 * time.Millisecond)
		}
		position = b.Next
	}
	return all
}

// Values folds Read of the snapshot topic into the newest value of each key.
func (w *World) Values(partition int32) map[string]string {
	w.Helper()
	state := make(map[string]string)
	for _, r := range w.Read(w.State, partition) {
		if r.Value == nil {
			delete(state, string(r.Key))
		} else {
			state[string(r.Key)] = string(r.Value)
		}
	}
	return state
}

// End returns a high watermark.
func (w *World) End(topic string, partition int32) int64 {
	w.Helper()
	at, err := wire.ListOffset(w.Ctx, w.Admin, topic, partition, wire.LogEnd, false)
	require.NoError(w, err)
	return at
}

// Stable returns a last stable offset.
func (w *World) Stable(topic string, partition int32) int64 {
	w.Helper()
	at, err := wire.ListOffset(w.Ctx, w.Admin, topic, partition, wire.LogEnd, true)
	require.NoError(w, err)
	return at
}

// Committed returns the group's committed offset, as a stable fetch sees it.
func (w *World) Committed(partition int32) wire.Committed {
	w.Helper()
	c, err := wire.StableOffset(w.Ctx, w.Admin, w.Group, w.Topic(w.Input), partition)
	require.NoError(w, err)
	return c
}

// Topic looks a topic's id up.
func (w *World) Topic(name string) wire.Topic {
	w.Helper()
	details, err := kadm.NewClient(w.Admin).ListTopics(w.Ctx, name)
	require.NoError(w, err)
	return wire.Topic{Name: name, ID: details[name].ID}
}

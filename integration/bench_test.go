package integration

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/integration/kafkatest"
	"github.com/kafkafence/persistence/internal/scenario"
	"github.com/kafkafence/persistence/internal/wire"
)

// quiet keeps a module's log out of the figures.
var quiet = persistence.Logger(slog.New(slog.DiscardHandler))

func benchWorld(b *testing.B, partitions int32) *scenario.World {
	c := kafkatest.Shared(b, kafkatest.TransactionVersion(2))
	return scenario.NewWorld(b, scenario.Backend{Brokers: c.Brokers(), TransactionVersion: 2}, partitions)
}

// One writer, one small write after another: ours, and the order that suggests
// itself, beside each other in turn. produce-first sends the record, then the
// offset, then the end.
func BenchmarkSequentialWrites(b *testing.B) {
	const writes, rounds = 500, 5
	w := benchWorld(b, 2)
	m := w.Start(false, quiet)
	owners := m.OwnAll(2)
	ours := func() time.Duration {
		began := time.Now()
		for i := range writes {
			require.NoError(b, owners[0].Write(w.Ctx, persistence.Snapshot{Key: fmt.Appendf(nil, "k%d", i), Value: []byte("value-small"), SourceOffset: 0}))
		}
		return time.Since(began)
	}
	first := newProduceFirst(b, w, m)
	naive := func() time.Duration {
		began := time.Now()
		for i := range writes {
			first.write(fmt.Appendf(nil, "k%d", i), []byte("value-small"))
		}
		return time.Since(began)
	}
	for range 3 { // a broker that was just started is slow
		ours()
		naive()
	}
	b.ResetTimer()
	for b.Loop() {
		var a, n []time.Duration
		for range rounds {
			a, n = append(a, ours()/writes), append(n, naive()/writes)
		}
		b.ReportMetric(millis(median(a)), "ms/write")
		b.ReportMetric(millis(median(n)), "produce-first-ms/write")
		b.ReportMetric(float64(median(n))/float64(median(a)), "times-slower")
		b.Logf("ours %v, produce-first %v", a, n)
	}
	b.ReportMetric(0, "ns/op")
}

// produceFirst is a transactional writer in the obvious order, for comparison.
type produceFirst struct {
	b  *testing.B
	w  *scenario.World
	m  *persistence.Module
	cl *kgo.Client
	in wire.Topic
}

func newProduceFirst(b *testing.B, w *scenario.World, m *scenario.Member) *produceFirst {
	cl := w.Client(kgo.TransactionalID(w.Prefix+"-naive"), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0),
		kgo.ConcurrentTransactionsBackoff(time.Millisecond), kgo.MetadataMinAge(10*time.Millisecond))
	return &produceFirst{b: b, w: w, m: m.Module, cl: cl, in: w.Topic(w.Input)}
}

func (p *produceFirst) write(key, value []byte) {
	ctx := context.Background()
	require.NoError(p.b, p.cl.BeginTransaction())
	require.NoError(p.b, p.cl.ProduceSync(ctx, &kgo.Record{Topic: p.w.State, Partition: 1, Key: key, Value: value}).FirstErr())
	id, epoch, err := p.cl.ProducerID(ctx)
	require.NoError(p.b, err)
	member, generation := p.m.Client().GroupMetadata()
	require.NoError(p.b, wire.TxnOffsetCommit(ctx, p.cl, wire.Producer{TransactionalID: p.w.Prefix + "-naive", ID: id, Epoch: epoch},
		wire.Member{Group: p.w.Group, ID: member, Generation: generation}, p.in, 1, wire.Position{Epoch: -1}))
	require.NoError(p.b, p.cl.EndTransaction(ctx, kgo.TryCommit))
}

// Many partitions on one member: how long until each can be written, and what
// each costs.
func BenchmarkOwnedPartitions(b *testing.B) {
	for _, n := range []int32{1, 200} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := benchWorld(b, n)
			for b.Loop() {
				w.Group = fmt.Sprintf("%s-%d", w.Group, time.Now().UnixNano())
				conns := new(connections)
				before := measure(conns)
				began := time.Now()
				m := w.StartKafka(false, []kgo.Opt{kgo.WithHooks(conns), kgo.SessionTimeout(10 * time.Second)}, quiet)
				owners := m.OwnAll(int(n))
				assigned := time.Since(began)
				var wg sync.WaitGroup
				for _, o := range owners {
					wg.Go(func() {
						err := o.Write(w.Ctx, persistence.Snapshot{Key: []byte("k"), Value: []byte("v"), SourceOffset: 0})
						if err != nil {
							b.Error(err)
						}
					})
				}
				wg.Wait()
				writable := time.Since(began)
				after := measure(conns)
				b.ReportMetric(float64(assigned.Milliseconds()), "ms-to-taken-over")
				b.ReportMetric(float64(writable.Milliseconds()), "ms-to-all-written")
				b.ReportMetric(float64(after.conns-before.conns)/float64(n), "connections/partition")
				b.ReportMetric(float64(after.goroutines-before.goroutines)/float64(n), "goroutines/partition")
				b.ReportMetric(float64(after.heap-before.heap)/1024/float64(n), "heapKiB/partition")
				b.ReportMetric(float64(after.rss)/1024, "rssMiB")
				require.NoError(b, m.Stop())
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// connections counts the connections that are open, over all clients.
type connections struct {
	mu sync.Mutex
	n  int
}

func (c *connections) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	c.add(err == nil, 1)
}
func (c *connections) OnBrokerDisconnect(kgo.BrokerMetadata, net.Conn) { c.add(true, -1) }
func (c *connections) add(ok bool, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ok {
		c.n += n
	}
}

type cost struct {
	conns, goroutines int
	heap              int64
	rss               int64 // KiB
}

func measure(c *connections) cost {
	runtime.GC()
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	got := cost{goroutines: runtime.NumGoroutine(), heap: int64(ms.HeapInuse + ms.StackInuse)}
	c.mu.Lock()
	got.conns = c.n
	c.mu.Unlock()
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			fmt.Sscan(rest, &got.rss)
		}
	}
	return got
}

func median(ds []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(ds))[len(ds)/2]
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

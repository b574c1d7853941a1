package scenario

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/wire"
)

// churn is a service whose members come and go and whose network fails, and
// that counts its events by key. Each event puts one record out.
type churn struct {
	w        *World
	out      string
	kafka    []kgo.Opt
	more     []persistence.Option
	handler  persistence.Handler
	produced map[int32]int
	seen     map[int32]int64 // committed offsets
}

// counter is one member of it.
type counter struct {
	w       *World
	module  *persistence.Module
	net     *Network
	cancel  context.CancelFunc
	ended   sync.WaitGroup
	err     error // of Run
	crashed bool
}

const churnKeys = 5

func (c *churn) start() *counter {
	n := c.w.NewNetwork()
	m, err := persistence.New(c.w.Options(append([]kgo.Opt{n.Opt(), kgo.RecordPartitioner(kgo.ManualPartitioner())}, c.kafka...), c.more...)...)
	require.NoError(c.w, err)
	ctx, cancel := context.WithCancel(c.w.Ctx)
	k := &counter{w: c.w, module: m, net: n, cancel: cancel}
	k.ended.Go(func() { k.err = m.Run(ctx, c.handler) })
	c.w.Cleanup(k.stop)
	return k
}

func (k *counter) stop() {
	k.cancel()
	k.ended.Wait()
	_ = k.module.Close(context.Background())
	if !k.crashed && k.err != nil {
		k.w.Errorf("Run: %v", k.err)
	}
}

// crash ends a member as if its process was killed: the group hears of it from
// somebody else.
func (c *churn) crash(k *counter) {
	id, _ := k.module.Client().GroupMetadata()
	k.crashed = true
	k.net.Cut()
	c.w.Evict(id)
}

// handle commits its events in batches of five, each with its counts and its
// outputs.
func (c *churn) handle(ctx context.Context, p *persistence.Partition) error {
	counts := make(map[string]int)
	_, err := p.Recover(ctx, func(s persistence.Snapshot) (err error) {
		counts[string(s.Key)], err = strconv.Atoi(string(s.Value))
		return err
	}, func() { clear(counts) })
	if err != nil {
		return err
	}
	return c.inFives(ctx, p, func(b *persistence.Batch, e *kgo.Record) {
		key := string(e.Key)
		counts[key]++
		b.Snapshots = append(b.Snapshots, snapshot(key, strconv.Itoa(counts[key]), e.Offset))
	})
}

// handleStateless is handle without the counts.
func (c *churn) handleStateless(ctx context.Context, p *persistence.Partition) error {
	return c.inFives(ctx, p, func(*persistence.Batch, *kgo.Record) {})
}

func (c *churn) inFives(ctx context.Context, p *persistence.Partition, fold func(*persistence.Batch, *kgo.Record)) error {
	for {
		events, err := p.Poll(ctx)
		if err != nil {
			return err
		}
		for len(events) > 0 {
			n := min(5, len(events))
			b := persistence.Batch{Through: events[n-1]}
			for _, e := range events[:n] {
				fold(&b, e)
				b.Outputs = append(b.Outputs, &kgo.Record{Topic: c.out, Partition: e.Partition, Value: strconv.AppendInt(nil, e.Offset, 10)})
			}
			if err := p.Apply(ctx, b); err != nil {
				return err
			}
			events = events[n:]
		}
	}
}

// produce appends events to every partition.
func (c *churn) produce(n int) {
	for id := range c.w.Partitions {
		var rs []*kgo.Record
		for range n {
			rs = append(rs, &kgo.Record{Topic: c.w.Input, Partition: id, Key: fmt.Append(nil, "k", c.produced[id]%churnKeys)})
			c.produced[id]++
		}
		require.NoError(c.w, c.w.Admin.ProduceSync(c.w.Ctx, rs...).FirstErr())
	}
}

// settled waits until everything that was produced is committed, and no offset
// may go back meanwhile.
func (c *churn) settled() {
	c.w.Helper()
	input := c.w.Topic(c.w.Input)
	c.w.Eventually("all events to be processed", func() bool {
		for id := range c.w.Partitions {
			at, err := wire.StableOffset(c.w.Ctx, c.w.Admin, c.w.Group, input, id)
			if err != nil { // there is no group yet
				return false
			}
			require.GreaterOrEqual(c.w, max(at.Offset, 0), c.seen[id], "the committed offset of partition %d went back", id)
			c.seen[id] = max(at.Offset, 0)
			if at.Offset != int64(c.produced[id]) {
				return false
			}
		}
		return true
	})
}

// Members join, leave and crash and requests are lost while events come in:
// the effect of each event, in state and output, is there once.
func (p protocol) everyEventCountsOnce(w *World) {
	c := p.churn(w)
	c.handler = c.handle
	p.tell(c)
	for id := range w.Partitions {
		state := make(map[string]string)
		for i := range churnKeys {
			state[fmt.Sprint("k", i)] = strconv.Itoa(c.produced[id] / churnKeys)
		}
		require.Equal(w, state, w.Values(id), "partition %d", id)
	}
}

// The same for a service without state, which needs no topic for it.
func (p protocol) everyEventCountsOnceWithoutState(w *World) {
	c := p.churn(w)
	c.handler, c.more = c.handleStateless, []persistence.Option{persistence.SnapshotTopic(""), persistence.Stateless()}
	p.tell(c)
	for id := range w.Partitions {
		require.Zero(w, w.End(w.State, id))
	}
}

func (p protocol) churn(w *World) *churn {
	return &churn{w: w, out: w.outputTopic(w.Partitions, nil), kafka: p.kafka, produced: make(map[int32]int), seen: make(map[int32]int64)}
}

// tell is the story, up to the outputs.
func (p protocol) tell(c *churn) {
	w := c.w
	a := c.start()
	c.produce(50)
	c.settled()
	var b, d *counter
	steps := []func(){
		func() { b = c.start() },
		func() { a.net.Next(kmsg.EndTxn, LoseReply) },
		func() { b.net.Next(kmsg.EndTxn, LoseRequest) },
		func() { a.stop() },
		func() { d = c.start() },
		func() { b.net.Next(kmsg.Produce, LoseReply) },
		func() { d.net.Next(kmsg.TxnOffsetCommit, LoseReply) },
		func() {
			if p.name == "KIP848" { // whose members only a timeout can throw out
				b.stop()
			} else {
				c.crash(b)
			}
		},
		func() { a = c.start() },
		func() { d.net.Next(kmsg.TxnOffsetCommit, LoseRequest) },
		func() { d.net.Next(kmsg.EndTxn, Delay) },
		func() { d.stop() },
	}
	for i, step := range steps {
		c.produce(30)
		step()
		if i%3 == 2 {
			c.settled()
		}
	}
	c.produce(30)
	c.settled()
	a.stop()
	for id := range w.Partitions {
		n := c.produced[id]
		want := make([]string, n)
		for i := range want {
			want[i] = strconv.Itoa(i)
		}
		require.Equal(w, want, w.log(c.out, id), "partition %d", id)
	}
}

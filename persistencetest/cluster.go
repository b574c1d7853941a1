package persistencetest

import (
	"context"
	"hash/fnv"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/scenario"
)

// Run runs one member of a service until ctx ends, and returns what Module.Run
// did. It makes a module with opts, which have the cluster, the group, the topics
// and the prefix, and options of its own after them, if any, and closes it.
type Run func(ctx context.Context, opts ...persistence.Option) error

// Cluster is a Kafka cluster of three brokers with an input topic and a snapshot
// topic, in a bubble of virtual time. Its methods fail the test where they cannot
// do what they say, and are for the test's goroutine.
type Cluster struct {
	w         *scenario.World
	stateless bool
	inputs    map[int32]span // where the committed events end
}

// Bubble makes a cluster whose topics have this many partitions, and calls tell
// with it, in virtual time: see testing/synctest. When tell returns, members that
// still run are stopped.
func Bubble(t *testing.T, partitions int32, tell func(c *Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { tell(newCluster(t, partitions)) })
}

func newCluster(t testing.TB, partitions int32) *Cluster {
	var network kfake.VirtualNetwork
	c, err := kfake.NewCluster(kfake.Ports(9092, 9093, 9094), kfake.ListenFn(network.Listen))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return &Cluster{w: scenario.NewWorld(t, scenario.Backend{Brokers: c.ListenAddrs(), Opts: []kgo.Opt{kgo.Dialer(network.DialContext)},
		Dial: network.DialContext, TransactionVersion: 2}, partitions), inputs: make(map[int32]span)}
}

// Input is the name of the input topic.
func (c *Cluster) Input() string { return c.w.Input }

// CreateTopic makes a topic for outputs, with as many partitions as the input has.
func (c *Cluster) CreateTopic(name string) {
	c.w.Helper()
	c.w.CreateTopic(name, c.w.Partitions, nil)
}

// Produce writes events to the input, in order, each to the partition of its key.
// Their Topic and Partition are filled in.
func (c *Cluster) Produce(events ...*kgo.Record) {
	c.w.Helper()
	for _, e := range events {
		own := *e
		own.Topic, own.Partition = c.w.Input, c.partitionOf(e.Key)
		require.NoError(c.w, c.w.Admin.ProduceSync(c.w.Ctx, &own).FirstErr())
	}
}

func (c *Cluster) partitionOf(key []byte) int32 {
	h := fnv.New32a()
	_, _ = h.Write(key)
	return int32(h.Sum32() % uint32(c.w.Partitions))
}

// Committed is the group's offset of an input partition; -1: none.
func (c *Cluster) Committed(partition int32) int64 {
	c.w.Helper()
	return c.w.Committed(partition).Offset
}

// State is the newest committed snapshot of each key.
func (c *Cluster) State() map[string]string {
	c.w.Helper()
	all := make(map[string]string)
	for id := range c.w.Partitions {
		maps.Copy(all, c.w.Values(id))
	}
	return all
}

// Read returns the records of a topic that are committed, each partition's in order.
func (c *Cluster) Read(topic string) (all []*kgo.Record) {
	c.w.Helper()
	for id := range c.w.Partitions {
		all = append(all, c.w.Read(topic, id)...)
	}
	return all
}

// Eventually waits until a condition holds, for a minute of virtual time.
func (c *Cluster) Eventually(what string, condition func() bool) {
	c.w.Helper()
	for began := time.Now(); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			c.w.Fatalf("waiting for %s: not within a minute of virtual time", what)
		}
	}
}

// Settle waits until the group has committed the end of the input, while members
// run; if all have ended, it fails with their errors.
func (c *Cluster) Settle(members ...*Member) {
	c.w.Helper()
	c.Eventually("all events to be committed", func() bool {
		running := 0
		for _, m := range members {
			select {
			case <-m.ended:
			default:
				running++
			}
		}
		for id := range c.w.Partitions {
			end, at := c.endOfEvents(id), max(c.w.Committed(id).Offset, 0)
			if at > c.w.End(c.w.Input, id) {
				c.w.Fatalf("offset %d of partition %d is committed, and the input ends at %d", at, id, end)
			}
			if at >= end {
				continue
			}
			if running == 0 {
				for _, m := range members {
					c.w.Errorf("a member ended: %v", m.err)
				}
				c.w.Fatalf("no member runs, and offset %d of partition %d is committed, where events end at %d", at, id, end)
			}
			return false
		}
		return true
	})
}

// span is where a log ends, and where its committed events do: it may end in
// aborted ones and markers, which no committed offset passes.
type span struct{ log, events int64 }

func (c *Cluster) endOfEvents(partition int32) int64 {
	end := c.w.End(c.w.Input, partition)
	if known := c.inputs[partition]; known.log == end {
		return known.events
	}
	s := span{log: end}
	if events := c.w.Read(c.w.Input, partition); len(events) > 0 {
		s.events = events[len(events)-1].Offset + 1
	}
	c.inputs[partition] = s
	return s.events
}

// Rewind sets the group's offset back to the start of the input, as an operator
// does. The group must have no members.
func (c *Cluster) Rewind() {
	c.w.Helper()
	for id := range c.w.Partitions {
		c.w.CommitByHand(id, 0)
	}
}

// Member is a member of the service that runs.
type Member struct {
	c      *Cluster
	net    *scenario.Network
	cancel context.CancelFunc
	ended  chan struct{}
	err    error
	cut    bool
}

// Start starts a member of the service.
func (c *Cluster) Start(run Run) *Member {
	c.w.Helper()
	net := c.w.NewNetwork()
	opts := c.w.Options([]kgo.Opt{net.Opt(), kgo.SessionTimeout(6 * time.Second), kgo.RebalanceTimeout(6 * time.Second)})
	if c.stateless {
		opts = append(opts, persistence.SnapshotTopic(""), persistence.Stateless())
	}
	ctx, cancel := context.WithCancel(c.w.Ctx)
	m := &Member{c: c, net: net, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(m.ended)
		m.err = run(ctx, opts...)
	}()
	c.w.Cleanup(func() { _ = m.Stop() })
	return m
}

// Stop ends the member in order, and returns what its Run did.
func (m *Member) Stop() error {
	m.cancel()
	<-m.ended
	return m.err
}

// Wait waits until the member has ended by itself, and returns what its Run did.
func (m *Member) Wait() error {
	m.c.w.Helper()
	t := time.NewTimer(time.Minute)
	defer t.Stop()
	select {
	case <-m.ended:
	case <-t.C:
		m.c.w.Fatalf("a member that should have ended by itself goes on")
	}
	return m.err
}

// Crash cuts the member off the cluster for good, without a word to the group: to
// everybody else its process was killed. The group goes on without it after the
// session timeout, which is six seconds.
func (m *Member) Crash() {
	m.cut = true
	m.net.Cut()
}

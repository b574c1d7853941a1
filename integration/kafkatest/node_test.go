package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestThreeNodesOutliveAKilledOneWhichRejoins(t *testing.T) {
	c := Start(t, Nodes(3), NodeControl())
	ctx := within(t, 90*time.Second)
	topic := c.Topic(t, 3)
	client := newClient(t, c, kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	admin := kadm.NewClient(client)
	produceToAll := func() {
		t.Helper()
		for p := range int32(3) {
			require.NoError(t, client.ProduceSync(ctx, &kgo.Record{Partition: p, Value: []byte("v")}).FirstErr())
		}
	}
	produceToAll()

	require.NoError(t, c.Node(1).Kill(ctx))
	produceToAll()
	requireTopic(t, ctx, admin, topic, func(p kadm.PartitionDetail) error {
		if p.Leader == 1 || len(p.ISR) != 2 {
			return fmt.Errorf("partition %d is led by %d with replicas %v in sync", p.Partition, p.Leader, p.ISR)
		}
		return nil
	})

	require.NoError(t, c.Node(1).Start(ctx))
	racks, err := c.Node(0).brokerRacks(ctx)
	require.NoError(t, err)
	require.Equal(t, map[int32]string{0: "node0-start1", 1: "node1-start2", 2: "node2-start1"}, racks)
	requireTopic(t, ctx, admin, topic, func(p kadm.PartitionDetail) error {
		if len(p.ISR) != 3 {
			return fmt.Errorf("partition %d has replicas %v in sync", p.Partition, p.ISR)
		}
		return nil
	})
	produceToAll()
}

// requireTopic waits until check is satisfied with all partitions.
func requireTopic(t *testing.T, ctx context.Context, admin *kadm.Client, topic string, check func(kadm.PartitionDetail) error) {
	t.Helper()
	require.NoError(t, poll(ctx, func(ctx context.Context) error {
		topics, err := admin.ListTopics(ctx, topic)
		if err != nil {
			return err
		}
		for _, p := range topics[topic].Partitions.Sorted() {
			if err := errors.Join(p.Err, check(p)); err != nil {
				return err
			}
		}
		return nil
	}))
}

func TestANodeIsControlled(t *testing.T) {
	c := Start(t, NodeControl())
	ctx := within(t, 90*time.Second)
	topic := c.Topic(t, 1)
	node := c.Node(0)
	admin := kadm.NewClient(newClient(t, c))
	produce := func(ctx context.Context) error {
		client, err := kgo.NewClient(kgo.SeedBrokers(c.Brokers()...), kgo.DefaultProduceTopic(topic))
		require.NoError(t, err)
		defer client.Close()
		return client.ProduceSync(ctx, kgo.StringRecord("v")).FirstErr()
	}
	// requireRecords also shows that each start finds the data of the last.
	requireRecords := func(n int64) {
		t.Helper()
		offsets, err := admin.ListEndOffsets(ctx, topic)
		require.NoError(t, err)
		end, _ := offsets.Lookup(topic, 0)
		require.NoError(t, end.Err)
		require.Equal(t, n, end.Offset)
	}
	requireSilence := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		_, err := node.brokerRacks(ctx)
		require.Error(t, err)
	}

	require.NoError(t, produce(ctx))
	requireRecords(1)

	require.NoError(t, node.Pause(ctx))
	requireSilence()
	require.ErrorContains(t, node.Pause(ctx), "it is paused")
	require.ErrorContains(t, node.Stop(ctx), "it is paused")
	require.ErrorContains(t, node.Start(ctx), "it is paused")
	require.NoError(t, node.Resume(ctx))
	require.NoError(t, produce(ctx))
	requireRecords(2)

	require.NoError(t, node.Stop(ctx))
	requireSilence()
	require.ErrorContains(t, node.Stop(ctx), "it is stopped")
	require.ErrorContains(t, node.Kill(ctx), "it is stopped")
	require.ErrorContains(t, node.Resume(ctx), "it is stopped")
	require.NoError(t, node.Start(ctx))
	require.NoError(t, produce(ctx))
	requireRecords(3)

	require.NoError(t, node.Kill(ctx))
	requireSilence()
	require.NoError(t, node.Start(ctx))
	require.ErrorContains(t, node.Start(ctx), "it is running")
	require.NoError(t, produce(ctx))
	requireRecords(4)

	// A paused node can be killed.
	require.NoError(t, node.Pause(ctx))
	require.NoError(t, node.Kill(ctx))
	require.NoError(t, node.Start(ctx))
	requireRecords(4)

	// A node that ends by itself is noticed, and can be started again.
	require.NoError(t, node.machine.kill(ctx))
	require.ErrorContains(t, node.Pause(ctx), "ended by itself")
	require.NoError(t, node.Start(ctx))
	requireRecords(4)

	// And a paused one does not keep the cluster from being closed.
	require.NoError(t, node.Pause(ctx))
}

func TestControlMustBeAskedFor(t *testing.T) {
	c := Shared(t)
	err := c.Node(0).Kill(t.Context())
	require.ErrorIs(t, err, ErrNoNodeControl)
	require.ErrorContains(t, err, "NodeControl")
}

func TestNoNodeIsNil(t *testing.T) {
	c := &Cluster{backend: backendJava, nodes: []*Node{{id: 0}}}
	require.ErrorContains(t, c.Node(1).Kill(t.Context()), "there is no node 1")
	require.ErrorContains(t, c.Node(-1).Kill(t.Context()), "there is no node -1")
	require.Empty(t, c.Node(1).Log())

	given := &Cluster{backend: backendBrokers}
	require.ErrorIs(t, given.Node(0).Pause(t.Context()), ErrNoNodeControl)
}

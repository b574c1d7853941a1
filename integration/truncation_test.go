package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/integration/kafkatest"
	"github.com/kafkafence/persistence/internal/scenario"
)

// Real truncations: of the snapshot partition's two replicas one is down while
// snapshots are acknowledged by the other alone, which is then killed. An unclean
// leader election makes the first one the leader, without them.
//
// The brokers form the controllers' quorum and hold the internal topics too, so that
// two of the three must run: the leader is killed only after, and its follower
// started at once.

// unclean is a world whose snapshot topic can lose its end.
type unclean struct {
	*scenario.World
	leader, follower *kafkatest.Node
}

func newUnclean(t *testing.T, c *kafkatest.Cluster) *unclean {
	t.Helper()
	w := scenario.NewWorld(t, scenario.Backend{Brokers: c.Brokers(), TransactionVersion: 2}, 1)
	u := &unclean{World: w, leader: c.Node(1), follower: c.Node(2)}
	w.State += "-unclean"
	r := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = w.State, -1, -1
	a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
	a.Partition, a.Replicas = 0, []int32{int32(u.leader.ID()), int32(u.follower.ID())}
	topic.ReplicaAssignment = append(topic.ReplicaAssignment, a)
	for name, value := range map[string]string{"cleanup.policy": "compact", "min.insync.replicas": "1", "unclean.leader.election.enable": "true"} {
		cfg := kmsg.NewCreateTopicsRequestTopicConfig()
		cfg.Name, cfg.Value = name, kmsg.StringPtr(value)
		topic.Configs = append(topic.Configs, cfg)
	}
	r.Topics = append(r.Topics, topic)
	resp, err := r.RequestWith(w.Ctx, w.Admin)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(resp.Topics[0].ErrorCode))
	u.await("both replicas are in sync", func(p kadm.PartitionDetail) bool { return p.Leader == int32(u.leader.ID()) && len(p.ISR) == 2 })
	return u
}

func (u *unclean) await(what string, holds func(kadm.PartitionDetail) bool) {
	u.Helper()
	u.Eventually(what, func() bool {
		topics, err := kadm.NewClient(u.Admin).ListTopics(u.Ctx, u.State)
		return err == nil && len(topics[u.State].Partitions) == 1 && holds(topics[u.State].Partitions[0])
	})
}

// alone stops the follower: from now on the leader acknowledges alone.
func (u *unclean) alone() {
	u.Helper()
	require.NoError(u, u.follower.Stop(u.Ctx))
	u.await("the leader is alone", func(p kadm.PartitionDetail) bool { return p.Leader == int32(u.leader.ID()) && len(p.ISR) == 1 })
}

// elect makes the follower the leader of a log without what was written alone.
func (u *unclean) elect() {
	u.Helper()
	require.NoError(u, u.leader.Kill(u.Ctx))
	require.NoError(u, u.follower.Start(u.Ctx))
	u.await("the follower leads", func(p kadm.PartitionDetail) bool { return p.Leader == int32(u.follower.ID()) })
}

// repair brings the old leader back, for the next test.
func (u *unclean) repair() {
	u.Helper()
	require.NoError(u, u.leader.Start(u.Ctx))
}

func TestATruncationIsNoticed(t *testing.T) {
	t.Parallel()
	c := kafkatest.Start(t, kafkatest.Nodes(3), kafkatest.NodeControl())

	// An open transaction holds the recovery until the log is cut. It must fail then
	// and not at its deadline, for there is nothing to wait for.
	for name, grows := range map[string]bool{"in the middle of a recovery": false, "in the middle of a recovery, and the log has grown again": true} {
		t.Run(name, func(t *testing.T) {
			u := newUnclean(t, c)
			u.Seed()
			left := u.End(u.State, 0)
			u.alone()
			u.Foreign("open").Begin("open", "1")
			u.Put("lost", "1", "lost", "2", "lost", "3")
			target := u.End(u.State, 0)

			n := u.NewNetwork()
			held := make(chan struct{})
			book := u.Book()
			m := u.Handle(func(ctx context.Context, p *persistence.Partition) error {
				_, err := p.Recover(ctx, func(persistence.Snapshot) error {
					select {
					case <-held:
					default:
						close(held)
					}
					return nil
				}, func() {})
				return err
			}, []kgo.Opt{n.Opt()}, persistence.Logger(book.Logger()))
			<-held
			u.Eventually("it waits", func() bool { return book.Has("level=WARN", `condition="transaction open"`) })
			fetches := n.All(kmsg.Fetch, scenario.Hold) // until the log is as it is to be seen
			u.elect()
			if grows {
				u.Put("other", "1", "other", "2", "other", "3", "other", "4", "other", "5")
				require.Greater(t, u.End(u.State, 0), target)
			}
			fetches.Release()
			err := m.Wait()
			var stalled *persistence.RecoveryStalledError
			require.ErrorAs(t, err, &stalled)
			t.Log(err)
			d := stalled.Diagnosis
			require.Equal(t, persistence.LogTruncated, d.Condition)
			require.Equal(t, target, stalled.Target)
			require.Equal(t, left, d.LostFrom)
			require.Greater(t, d.LeaderEpoch, d.TargetEpoch)
			require.EqualValues(t, u.follower.ID(), d.Leader)
			require.ErrorContains(t, err, fmt.Sprintf("offsets %d to %d are gone from the log: they were written under leader epoch %d at the latest, and broker %d leads with epoch %d",
				left, target-1, d.TargetEpoch, d.Leader, d.LeaderEpoch))
			require.Less(t, stalled.Stalled, 2*time.Minute, "at once and not at the deadline")
			u.repair()
		})
	}

	// Between two runs it is the takeover that notices, and resuming from what is left
	// heals the state.
	t.Run("between two runs", func(t *testing.T) {
		u := newUnclean(t, c)
		write := func(o *scenario.Owner, values ...string) {
			u.Produce(0, values...)
			for _, e := range o.Events(u, len(values)) {
				require.NoError(t, o.Apply(u.Ctx, persistence.Batch{Through: e, Snapshots: []persistence.Snapshot{{Key: e.Key, Value: e.Value, SourceOffset: e.Offset}}}))
			}
		}
		m := u.Start(false)
		o := m.Own()
		write(o, "1", "2", "3")
		u.Settle()
		u.alone()
		write(o, "4", "5", "6")
		require.NoError(t, m.Stop())
		u.elect()

		err := u.Start(false).Wait()
		require.ErrorIs(t, err, persistence.SnapshotsTruncated)
		t.Log(err)
		m = u.Start(false, persistence.OnMismatch(persistence.SnapshotsTruncated, persistence.Resume))
		o = m.Own()
		require.EqualValues(t, 3, o.Resume())
		require.Equal(t, map[string]string{"1": "1", "2": "2", "3": "3"}, o.State)
		for _, e := range o.Events(u, 3) {
			require.NoError(t, o.Apply(u.Ctx, persistence.Batch{Through: e, Snapshots: []persistence.Snapshot{{Key: e.Key, Value: e.Value, SourceOffset: e.Offset}}}))
		}
		require.NoError(t, m.Stop())
		m = u.Start(false)
		require.Len(t, m.Own().State, 6)
		require.NoError(t, m.Stop())
		u.repair()
	})
}

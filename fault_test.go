package persistence_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/scenario"
)

// What only an in-process cluster can be told to answer.

// ownershipErrors are the answers to an offset commit that ask who owns the
// partition.
var ownershipErrors = []*kerr.Error{kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.FencedInstanceID, kerr.StaleMemberEpoch,
	kerr.FencedMemberEpoch, kerr.GroupIDNotFound, kerr.RebalanceInProgress}

func value(v string) persistence.Snapshot {
	return persistence.Snapshot{Key: []byte("k"), Value: []byte(v), SourceOffset: 0}
}

// values reads what a read_committed reader sees of a partition.
func values(w *scenario.World, topic string, partition int32) []string {
	all := []string{}
	for _, r := range w.Read(topic, partition) {
		all = append(all, string(r.Value))
	}
	return all
}

func forEachError(t *testing.T, errs []*kerr.Error, test func(t *testing.T, c *kfake.Cluster, w *scenario.World, err *kerr.Error)) {
	c, backend := newCluster(t, 2)
	for _, err := range errs {
		t.Run(err.Message, func(t *testing.T) {
			t.Parallel()
			test(t, c, scenario.NewWorld(t, backend, 1), err)
		})
	}
}

func TestAWriteRefusedUnderOneGenerationCommitsUnderTheNext(t *testing.T) {
	forEachError(t, ownershipErrors, func(t *testing.T, c *kfake.Cluster, w *scenario.World, err *kerr.Error) {
		var survived atomic.Int64
		slow := []kgo.Opt{kgo.HeartbeatInterval(time.Second)} // and so is the patience with a refusal
		m := w.StartKafka(false, slow, persistence.WithTrace(persistence.Trace{
			FenceSurvived: func(i persistence.FenceInfo) {
				if errors.Is(i.Err, err) {
					survived.Add(1)
				}
			},
		}))
		o := m.Own()
		_, generation := m.Module.Client().GroupMetadata()
		fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Group: w.Group, Err: err, Count: -1,
			When: func(r kmsg.Request) bool { return r.(*kmsg.TxnOffsetCommitRequest).Generation == generation }})
		result := make(chan error, 1)
		go func() { result <- o.Write(w.Ctx, value("1")) }()
		patient, cancel := context.WithTimeout(w.Ctx, scenario.Patience)
		defer cancel()
		require.NoError(t, fault.Wait(patient, 1))
		w.StartKafka(false, slow) // moves the generation, and gets nothing
		require.NoError(t, scenario.Await(w, result))
		require.EqualValues(t, 1, survived.Load())
		require.NoError(t, o.Ctx.Err())
		require.Equal(t, []string{"1"}, values(w, w.State, 0))
	})
}

func TestAWriteThatStaysRefusedEndsTheOwnershipAndThePartitionIsTakenOverAnew(t *testing.T) {
	forEachError(t, ownershipErrors, func(t *testing.T, c *kfake.Cluster, w *scenario.World, err *kerr.Error) {
		var fenced atomic.Int64
		m := w.StartKafka(false, []kgo.Opt{kgo.HeartbeatInterval(100 * time.Millisecond)}, persistence.WithTrace(persistence.Trace{
			Fenced: func(persistence.FenceInfo) { fenced.Add(1) },
		}))
		o := m.Own()
		w.Produce(0, "a", "b")
		require.NoError(t, o.Apply(w.Ctx, persistence.Batch{Snapshots: []persistence.Snapshot{value("1")}, Through: o.Events(w, 2)[0]}))
		fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Group: w.Group, Err: err, Count: -1})
		refused := o.Write(w.Ctx, value("refused"))
		require.ErrorIs(t, refused, persistence.ErrFenced)
		require.ErrorIs(t, refused, err)
		require.NotErrorIs(t, refused, persistence.ErrUnknownOutcome)
		fault.Remove()

		scenario.Await(w, o.Revoked)
		require.ErrorIs(t, o.Err, persistence.ErrFenced, "the handler is told")
		require.ErrorIs(t, context.Cause(o.Ctx), persistence.ErrFenced)
		again := m.Own()
		require.Equal(t, map[string]string{"k": "1"}, again.State, "recovered anew")
		require.Equal(t, "b", string(again.Events(w, 1)[0].Value), "and its events again from the committed offset on")
		require.ErrorIs(t, o.Write(w.Ctx, value("old")), persistence.ErrFenced)
		require.NoError(t, again.Write(w.Ctx, value("2")))
		require.Equal(t, []string{"1", "2"}, values(w, w.State, 0))
		require.EqualValues(t, 1, fenced.Load())
	})
}

func TestRunEndsWhenAPartitionIsFencedAgainAndAgainUnderOneGeneration(t *testing.T) {
	forEachError(t, ownershipErrors, func(t *testing.T, c *kfake.Cluster, w *scenario.World, err *kerr.Error) {
		m := w.StartKafka(false, []kgo.Opt{kgo.HeartbeatInterval(100 * time.Millisecond)})
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Group: w.Group, Err: err, Count: -1})
		for range 3 {
			require.ErrorIs(t, m.Own().Write(w.Ctx, value("refused")), persistence.ErrFenced)
		}
		ended := m.Wait()
		require.ErrorIs(t, ended, persistence.ErrFenced)
		require.ErrorIs(t, ended, err)
		require.ErrorContains(t, ended, "fenced 3 times")
		require.Empty(t, values(w, w.State, 0))
	})
}

// A batch goes to four partitions of a topic besides the snapshots; the produce
// to one of them is answered with an error. Whatever the error and whichever
// the partition, all of the batch is visible, once, or nothing.
func TestABatchIsWholeWhateverAProduceIsAnswered(t *testing.T) {
	const once, always = 1, -1
	cases := []struct {
		err   *kerr.Error
		count int
		want  error // of the library; nil: committed
	}{
		{kerr.NotLeaderForPartition, once, nil},
		{kerr.RequestTimedOut, once, nil},
		{kerr.NotEnoughReplicasAfterAppend, once, nil},
		{kerr.UnknownServerError, once, nil},
		{kerr.OutOfOrderSequenceNumber, once, nil},
		{kerr.UnknownProducerID, once, nil},
		{kerr.InvalidProducerEpoch, once, nil},
		{kerr.ProducerFenced, once, nil},
		{kerr.TransactionAbortable, once, nil},
		{kerr.InvalidTxnState, once, nil},
		{kerr.MessageTooLarge, always, persistence.ErrRecordTooLarge},
		{kerr.InvalidRecord, always, kerr.InvalidRecord},
		{kerr.PolicyViolation, always, kerr.PolicyViolation},
		{kerr.TopicAuthorizationFailed, always, kerr.TopicAuthorizationFailed},
	}
	c, backend := newCluster(t, 2)
	for _, tc := range cases {
		t.Run(tc.err.Message, func(t *testing.T) {
			t.Parallel()
			w := scenario.NewWorld(t, backend, 1)
			out := w.Input + "-out"
			w.CreateTopic(out, 4, nil)
			w.Produce(0, "a", "b", "c", "d")
			o := w.StartKafka(false, []kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner())}, persistence.CommitInterval(time.Hour)).Own()
			events := o.Events(w, 4)
			var want []string
			committed := o.Resume()
			for k := range int32(4) {
				fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: out, Partitions: []int32{k}, Err: tc.err, Count: tc.count})
				name := fmt.Sprint("batch ", k)
				b := persistence.Batch{Snapshots: []persistence.Snapshot{value(name)}, Through: events[k]}
				for p := range int32(4) {
					b.Outputs = append(b.Outputs, &kgo.Record{Topic: out, Partition: p, Value: []byte(name)})
				}
				err := o.Apply(w.Ctx, b)
				require.Positive(t, fault.Hits())
				fault.Remove()
				if tc.want != nil {
					require.ErrorIs(t, err, tc.want)
					require.NotErrorIs(t, err, persistence.ErrUnknownOutcome)
				} else {
					require.NoError(t, err)
					want, committed = append(want, name), events[k].Offset+1
				}
			}
			require.NoError(t, o.Write(w.Ctx, value("last")))
			require.Equal(t, append(slices.Clone(want), "last"), values(w, w.State, 0))
			for p := range int32(4) {
				require.ElementsMatch(t, want, values(w, out, p), "partition %d", p)
			}
			require.Equal(t, committed, w.Committed(0).Offset)
		})
	}
}

// The transaction coordinator may say "not yet" or "not here" to any request. A
// write rides it out, and fails once and by name if it never ends.
func TestAWriteRidesOutABusyCoordinator(t *testing.T) {
	for version := range 3 {
		keys := []kmsg.Key{kmsg.TxnOffsetCommit, kmsg.EndTxn}
		if version < 2 {
			keys = append(keys, kmsg.AddOffsetsToTxn, kmsg.AddPartitionsToTxn)
		}
		c, backend := newCluster(t, version)
		for _, key := range keys {
			for _, err := range []*kerr.Error{kerr.ConcurrentTransactions, kerr.CoordinatorLoadInProgress, kerr.NotCoordinator, kerr.CoordinatorNotAvailable} {
				t.Run(fmt.Sprintf("%d/%s/%s", version, key.Name(), err.Message), func(t *testing.T) {
					t.Parallel()
					w := scenario.NewWorld(t, backend, 1)
					n := w.NewNetwork()
					o := w.StartKafka(false, []kgo.Opt{n.Opt()}, persistence.TransactionTimeout(10*time.Second)).Own()
					require.NoError(t, o.Write(w.Ctx, value("1")))
					mark := n.Mark()
					fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{key}, TxnID: w.Prefix + "-snapshot-0", Err: err, Count: 3})
					require.NoError(t, o.Write(w.Ctx, value("2")))
					require.Positive(t, fault.Hits(), "%d sent", n.Count(mark, key))
					fault.Remove()
					require.NoError(t, o.Write(w.Ctx, value("3")))
					require.Equal(t, []string{"1", "2", "3"}, values(w, w.State, 0))
				})
			}
		}
	}
}

func TestAWriteFailsByNameWhenTheCoordinatorStaysBusy(t *testing.T) {
	c, backend := newCluster(t, 2)
	for key, stage := range map[kmsg.Key]string{kmsg.TxnOffsetCommit: "committing the offset", kmsg.EndTxn: "ending the transaction"} {
		for _, err := range []*kerr.Error{kerr.ConcurrentTransactions, kerr.CoordinatorLoadInProgress, kerr.NotCoordinator} {
			t.Run(key.Name()+"/"+err.Message, func(t *testing.T) {
				t.Parallel()
				w := scenario.NewWorld(t, backend, 1)
				o := w.Start(false, persistence.TransactionTimeout(time.Second)).Own()
				fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{key}, TxnID: w.Prefix + "-snapshot-0", Err: err, Count: -1})
				failed := o.Write(w.Ctx, value("busy"))
				require.ErrorContains(t, failed, stage)
				fault.Remove()
				require.NoError(t, o.Write(w.Ctx, value("2")))
				want := []string{"2"}
				if got := values(w, w.State, 0); !errors.Is(failed, persistence.ErrUnknownOutcome) || len(got) == 1 {
					require.Equal(t, want, got)
				}
			})
		}
	}
}

// InitProducerID is what a takeover begins with.
func TestATakeoverRidesOutABusyCoordinator(t *testing.T) {
	forEachError(t, []*kerr.Error{kerr.ConcurrentTransactions, kerr.CoordinatorLoadInProgress, kerr.NotCoordinator, kerr.CoordinatorNotAvailable},
		func(t *testing.T, c *kfake.Cluster, w *scenario.World, err *kerr.Error) {
			fault := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, TxnID: w.Prefix + "-snapshot-0", Err: err, Count: 3})
			require.NoError(t, w.Start(false).Own().Write(w.Ctx, value("1")))
			require.Equal(t, 3, fault.Hits())
		})
}

// A write under the handler's context is answered by the ownership, not by the
// context that ends with it: what is lost before its transaction ends was
// certainly not written.
func TestAWriteUnderTheHandlersContextHearsThatThePartitionIsLost(t *testing.T) {
	c, backend := newCluster(t, 2)
	w := scenario.NewWorld(t, backend, 1)
	n := w.NewNetwork()
	m := w.StartKafka(false, []kgo.Opt{n.Opt(), kgo.HeartbeatInterval(100 * time.Millisecond)})
	for range 3 {
		o := m.Own()
		held := n.Next(kmsg.Produce, scenario.Hold)
		result := make(chan error, 1)
		go func() { result <- o.Write(o.Ctx, value("never")) }()
		held.Await()
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, TopLevel: true, Err: kerr.UnknownMemberID, When: heartbeatOf(w.Group)})
		err := scenario.Await(w, result)
		require.ErrorIs(t, err, persistence.ErrLost)
		require.NotErrorIs(t, err, persistence.ErrUnknownOutcome)
		held.Release()
	}
	require.Empty(t, values(w, w.State, 0))
}

// heartbeatOf picks a group's heartbeats: a fault at the top level does not
// look at the group.
func heartbeatOf(group string) func(kmsg.Request) bool {
	return func(r kmsg.Request) bool {
		switch r := r.(type) {
		case *kmsg.HeartbeatRequest:
			return r.Group == group
		case *kmsg.ConsumerGroupHeartbeatRequest:
			return r.Group == group
		}
		return false
	}
}

// A heartbeat that says that the group went on without this member: its
// partitions are lost, nothing is sent for them, and it comes back with new
// handles.
func TestPartitionsAreLostWhenAHeartbeatSaysSo(t *testing.T) {
	classic, next := []kgo.Opt{kgo.HeartbeatInterval(100 * time.Millisecond)}, []kgo.Opt{kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer())}
	cases := []struct {
		name  string
		kafka []kgo.Opt
		key   kmsg.Key
		err   *kerr.Error
	}{
		{"classic", classic, kmsg.Heartbeat, kerr.UnknownMemberID},
		{"classic", classic, kmsg.Heartbeat, kerr.IllegalGeneration},
		{"KIP-848", next, kmsg.ConsumerGroupHeartbeat, kerr.FencedMemberEpoch},
	}
	c, backend := newCluster(t, 2)
	for _, tc := range cases {
		t.Run(tc.name+"/"+tc.err.Message, func(t *testing.T) {
			t.Parallel()
			w := scenario.NewWorld(t, backend, 3)
			n := w.NewNetwork()
			m := w.StartKafka(true, append(tc.kafka, n.Opt()), persistence.CommitInterval(time.Hour))
			owners := m.OwnAll(3)
			for id, o := range owners {
				w.Produce(id, "a")
				require.NoError(t, o.Write(w.Ctx, value("1")))
				require.NoError(t, o.Advance(o.Events(w, 1)[0]))
			}
			mark := n.Mark()
			c.Fault(kfake.Fault{Keys: []kmsg.Key{tc.key}, TopLevel: true, Err: tc.err, When: heartbeatOf(w.Group)})
			for _, o := range owners {
				scenario.Await(w, o.Ctx.Done())
				require.ErrorIs(t, context.Cause(o.Ctx), persistence.ErrLost)
			}
			for id, o := range m.OwnAll(3) {
				require.Zero(t, o.Resume())
				require.Equal(t, map[string]string{"k": "1"}, o.State)
				require.ErrorIs(t, owners[id].Write(w.Ctx, value("old")), persistence.ErrLost)
			}
			require.Zero(t, n.Count(mark, scenario.Writes...), "nothing is sent for what is lost")
		})
	}
}

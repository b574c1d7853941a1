package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
)

// What is checked about the topics: before the group is joined, and while they
// change.
var topicStories = []Story{
	{Name: "AMissingInputTopicIsRefused", Tell: missingInput},
	{Name: "AMissingSnapshotTopicIsRefused", Tell: missingSnapshots},
	{Name: "ASnapshotTopicIsCreatedLikeTheInput", Tell: createdSnapshots, Partitions: 5},
	{Name: "ASnapshotTopicThatDeletesIsRefused", Tell: deletingSnapshots},
	{Name: "DifferentPartitionCountsAreRefusedBeforeJoining", Tell: differentCounts, Partitions: 16},
	{Name: "PartitionsThatTheInputGainedAreRefusedAndTheOthersGoOn", Tell: inputGrows, Partitions: 8},
	{Name: "ARefusedPartitionIsTakenOverWhenTheSnapshotTopicHasGrown", Tell: snapshotsGrowLater},
	{Name: "APartitionAddedToBothTopicsStartsAtTheEarliestOffset", Tell: bothGrow, Partitions: 2},
	{Name: "AnInputOffsetBelowTheLogIsAnErrorAndNoReset", Tell: inputBelowTheLog},
	{Name: "AnInputOffsetBeyondTheLogIsAnErrorAndNoReset", Tell: inputBeyondTheLog},
	{Name: "AnInputThatRetentionOvertakesIsAnErrorAndNoReset", Tell: inputOvertaken},
	{Name: "OffsetsAreCommittedWithTheirLeaderEpoch", Tell: leaderEpochs},
}

// An input topic that does not exist is named, and not created.
func missingInput(w *World) {
	w.Input += "-missing"
	err := w.Start(false).Wait()
	require.EqualError(w, err, "persistence: input topic "+w.Input+" does not exist")
	w.neverJoined()
	require.False(w, w.exists(w.Input))
}

// So is a snapshot topic, unless CreateSnapshotTopic is set.
func missingSnapshots(w *World) {
	w.State += "-missing"
	err := w.Start(false).Wait()
	require.ErrorContains(w, err, fmt.Sprintf("snapshot topic %s does not exist; create it with 1 partitions and cleanup.policy=compact", w.State))
	w.neverJoined()
	require.False(w, w.exists(w.State))
}

// A snapshot topic that the module creates has the input's partition count,
// whatever the broker's default is, is compacted, and has the user's settings.
func createdSnapshots(w *World) {
	w.State += "-created"
	m := w.Start(false, persistence.CreateSnapshotTopic(1, map[string]string{"delete.retention.ms": "123456"}))
	for _, o := range m.OwnAll(5) {
		require.NoError(w, o.Write(w.Ctx, snapshots("k", "1")...))
	}
	require.NoError(w, m.Stop())
	adm := kadm.NewClient(w.Admin)
	details, err := adm.ListTopics(w.Ctx, w.State)
	require.NoError(w, err)
	require.Len(w, details[w.State].Partitions, 5)
	require.Equal(w, 1, details[w.State].Partitions.NumReplicas())
	require.Equal(w, "compact", w.setting(w.State, "cleanup.policy"))
	require.Equal(w, "123456", w.setting(w.State, "delete.retention.ms"))
}

// Retention would delete the state of keys that do not change. The error says
// so, and how to put it right.
func deletingSnapshots(w *World) {
	for _, policy := range []string{"delete", "compact,delete"} {
		state := w.State + "-" + policy[:3]
		w.CreateTopic(state, 1, map[string]string{"cleanup.policy": policy})
		err := w.Start(false, persistence.SnapshotTopic(state)).Wait()
		require.ErrorContains(w, err, fmt.Sprintf("snapshot topic %s has cleanup.policy=%s", state, policy))
		require.ErrorContains(w, err, "would be lost")
		require.ErrorContains(w, err, fmt.Sprintf("kafka-configs.sh --alter --entity-type topics --entity-name %s --add-config cleanup.policy=compact", state))
	}
	w.neverJoined()
}

// A key's state would not be in the partition of its events.
func differentCounts(w *World) {
	w.State += "-eight"
	w.CreateTopic(w.State, 8, map[string]string{"cleanup.policy": "compact"})
	err := w.Start(false).Wait()
	require.ErrorIs(w, err, persistence.ErrPartitionMismatch)
	require.ErrorContains(w, err, fmt.Sprintf("input topic %s has 16 partitions and snapshot topic %s has 8", w.Input, w.State))
	w.neverJoined()
}

// freshMetadata makes a consumer notice new partitions soon.
var freshMetadata = []kgo.Opt{kgo.MetadataMinAge(50 * time.Millisecond), kgo.MetadataMaxAge(200 * time.Millisecond)}

// The input grows under a running member. The new partitions have no snapshots
// to be in, so they are refused, one by one; the old ones go on.
func inputGrows(w *World) {
	book := w.Book()
	m := w.StartKafka(false, freshMetadata, persistence.Logger(book.Logger()))
	owners := m.OwnAll(8)
	w.grow(w.Input, 8)
	w.Eventually("partition 12 is refused", func() bool {
		_, err := m.Module.Partition(12)
		return errors.Is(err, persistence.ErrPartitionMismatch)
	})
	_, err := m.Module.Partition(12)
	require.ErrorContains(w, err, fmt.Sprintf("partition 12 of %s is not taken over: the input has 16 partitions and snapshot topic %s has 8", w.Input, w.State))
	require.True(w, book.Has("level=WARN", "keys have moved to other partitions", "partitions=16", "snapshot_partitions=8"))
	w.Eventually("all new partitions are refused", func() bool {
		for id := range int32(8) {
			if _, err := m.Module.Partition(8 + id); !errors.Is(err, persistence.ErrPartitionMismatch) {
				return false
			}
		}
		return true
	})
	refused := m.Module.Health().Partitions[12]
	require.Equal(w, persistence.StageRefused, refused.Stage)
	require.ErrorIs(w, refused.Err, persistence.ErrPartitionMismatch)
	require.ErrorIs(w, m.Module.Health().Ready(), persistence.ErrPartitionMismatch)
	require.NoError(w, m.Module.Health().Alive())
	for id := range int32(8) {
		o := owners[id]
		if o.closed() { // an eager rebalance takes all away and gives them back
			o = m.Own()
		}
		w.Produce(o.ID(), "e")
		rs := o.Events(w, 1)
		require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Snapshots: snapshots("e", "1"), Through: rs[0]}))
		require.EqualValues(w, 1, w.Committed(o.ID()).Offset)
	}
	require.Equal(w, 8, w.partitions(w.State), "the snapshot topic does not grow by itself")
	require.NoError(w, m.Stop())
}

// The snapshot topic grows after the input: the refused partitions are taken
// over then, without a rebalance.
func snapshotsGrowLater(w *World) {
	m := w.StartKafka(false, freshMetadata)
	m.OwnAll(1)
	w.grow(w.Input, 1)
	w.Eventually("partition 1 is refused", func() bool {
		_, err := m.Module.Partition(1)
		return errors.Is(err, persistence.ErrPartitionMismatch)
	})
	w.grow(w.State, 1)
	o := m.Own()
	for o.ID() != 1 { // partition 0 again, after a rebalance
		o = m.Own()
	}
	require.NoError(w, o.Write(w.Ctx, snapshots("e", "1")...))
	require.NoError(w, m.Stop())
}

// Both topics grow, and events come before anybody owns the new partition. It
// starts at its first event, so that none is skipped.
func bothGrow(w *World) {
	m := w.StartKafka(false, freshMetadata)
	m.OwnAll(2)
	w.grow(w.State, 1)
	w.grow(w.Input, 1)
	w.Eventually("the new partition can be written", func() bool {
		return w.Admin.ProduceSync(w.Ctx, &kgo.Record{Topic: w.Input, Partition: 2, Value: []byte("first")}).FirstErr() == nil
	})
	for {
		o := m.Own()
		if o.ID() != 2 {
			continue
		}
		require.Zero(w, o.Resume())
		require.Equal(w, "first", string(o.Events(w, 1)[0].Value))
		require.NoError(w, o.Write(w.Ctx, snapshots("k", "1")...))
		break
	}
	require.NoError(w, m.Stop())
}

// Retention has passed the committed offset: events are gone that were never
// processed.
func inputBelowTheLog(w *World) {
	w.Produce(0, "1", "2", "3", "4", "5")
	m := w.Start(false)
	o := m.Own()
	require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Snapshots: snapshots("k", "1"), Through: o.Events(w, 5)[1]}))
	require.NoError(w, m.Stop())
	w.DeleteRecords(w.Input, 0, 4)
	w.inputRefused(persistence.OffsetBelowInput)
	require.EqualValues(w, 2, w.Committed(0).Offset)
}

// The committed offset was never in this log: the topic was recreated, or the
// offset reset by hand.
func inputBeyondTheLog(w *World) {
	w.Produce(0, "1", "2", "3")
	w.CommitByHand(0, 100)
	w.inputRefused(persistence.OffsetAboveInput)
	require.EqualValues(w, 100, w.Committed(0).Offset)
}

// CommitByHand sets the group's offset as an operator's tool does.
func (w *World) CommitByHand(partition int32, offset int64) {
	w.Helper()
	var at kadm.Offsets
	at.AddOffset(w.Input, partition, offset, -1)
	w.Eventually("the group has no members", func() bool {
		return kadm.NewClient(w.Admin).CommitAllOffsets(w.Ctx, w.Group, at) == nil
	})
}

// Retention passes the position while a recovery takes its time.
func inputOvertaken(w *World) {
	w.Produce(0, "1", "2", "3", "4", "5")
	var events []*kgo.Record
	m := w.Handle(func(ctx context.Context, p *persistence.Partition) error {
		if err := w.deleteRecords(w.Input, 0, 4); err != nil {
			return err
		}
		for {
			rs, err := p.Poll(ctx)
			if err != nil {
				return err
			}
			events = append(events, rs...)
		}
	}, nil)
	err := m.Wait()
	require.ErrorIs(w, err, persistence.ErrInput)
	require.ErrorIs(w, err, kerr.OffsetOutOfRange)
	require.Empty(w, events)
	require.EqualValues(w, -1, w.Committed(0).Offset)
}

// inputRefused runs a member that must end over its input without an event.
func (w *World) inputRefused(why persistence.Mismatch) {
	w.Helper()
	err := w.Handle(func(context.Context, *persistence.Partition) error {
		return errors.New("the handler was started")
	}, nil).Wait()
	require.ErrorIs(w, err, persistence.ErrInput)
	require.ErrorIs(w, err, why)
	require.ErrorContains(w, err, w.Input)
}

// With its epoch, a committed offset on a log that was truncated since can be
// told apart.
func leaderEpochs(w *World) {
	w.Produce(0, "1", "2")
	m := w.Start(false)
	o := m.Own()
	rs := o.Events(w, 2)
	require.GreaterOrEqual(w, rs[0].LeaderEpoch, int32(0))
	require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Snapshots: snapshots("k", "1"), Through: rs[0]}))
	require.Equal(w, rs[0].LeaderEpoch, w.Committed(0).Epoch, "in a transaction")
	require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Through: rs[1]}))
	require.EqualValues(w, 2, w.Committed(0).Offset)
	require.Equal(w, rs[1].LeaderEpoch, w.Committed(0).Epoch, "outside of one")
	require.NoError(w, m.Stop())
}

// neverJoined asserts that the group never came to be.
func (w *World) neverJoined() {
	w.Helper()
	groups, err := kadm.NewClient(w.Admin).DescribeGroups(w.Ctx, w.Group)
	require.NoError(w, err)
	g := groups[w.Group]
	if !errors.Is(g.Err, kerr.GroupIDNotFound) {
		require.NoError(w, g.Err)
		require.Equal(w, "Dead", g.State)
	}
}

func (w *World) exists(topic string) bool {
	w.Helper()
	details, err := kadm.NewClient(w.Admin).ListTopics(w.Ctx, topic)
	require.NoError(w, err)
	return details.Has(topic)
}

func (w *World) partitions(topic string) int {
	w.Helper()
	details, err := kadm.NewClient(w.Admin).ListTopics(w.Ctx, topic)
	require.NoError(w, err)
	return len(details[topic].Partitions)
}

func (w *World) setting(topic, name string) string {
	w.Helper()
	rcs, err := kadm.NewClient(w.Admin).DescribeTopicConfigs(w.Ctx, topic)
	require.NoError(w, err)
	rc, err := rcs.On(topic, nil)
	require.NoError(w, err)
	for _, c := range rc.Configs {
		if c.Key == name {
			return c.MaybeValue()
		}
	}
	return ""
}

// grow adds partitions and waits until they have leaders.
func (w *World) grow(topic string, by int) {
	w.Helper()
	want := w.partitions(topic) + by
	adm := kadm.NewClient(w.Admin)
	rs, err := adm.CreatePartitions(w.Ctx, by, topic)
	require.NoError(w, err)
	require.NoError(w, rs.Error())
	w.Eventually("the new partitions have leaders", func() bool {
		offsets, err := adm.ListEndOffsets(w.Ctx, topic)
		return err == nil && offsets.Error() == nil && len(offsets[topic]) == want
	})
}

// closed reports whether the ownership is over.
func (o *Owner) closed() bool {
	select {
	case <-o.Revoked:
		return true
	default:
		return false
	}
}

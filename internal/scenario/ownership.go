package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/wire"
)

// Who may write: takeover, fence, revoke, lost.
var ownershipStories = append([]Story{
	{Name: "FirstWriteOfAnOwnershipCarriesTheResumeOffset", Tell: firstWriteIsGated},
	{Name: "FirstWriteCarriesTheResumeOffsetWhenStartingAtTheEnd", Tell: firstWriteAtEnd},
	{Name: "AnUnfencedStaleOwnerCorruptsTheState", Tell: corruption},
	{Name: "AStaleOwnerCannotOverwriteNewerSnapshots", Tell: corruptionPrevented},
	{Name: "AStaleOwnerIsRefusedBeforeTheNewOwnerHasAProducer", Tell: staleBeforeInit},
	{Name: "AStaleOwnersOffsetIsRefusedWithoutATransactionToo", Tell: staleOffset},
	{Name: "AStaleGenerationAloneIsRefused", Tell: staleGeneration},
	{Name: "AnOwnerWithAnotherPrefixIsFencedByItsGeneration", Tell: otherPrefix},
	{Name: "TakeoverAbortsAnOpenTransactionAtOnce", Tell: takeoverAborts},
	{Name: "AWriteThatIsRefusedInARebalanceCommitsUnderTheNextGeneration", Tell: survivedFence},
	{Name: "ALostPartitionIsDeadAtOnce", Tell: lostIsDead},
	{Name: "NothingIsSentForLostPartitions", Tell: severalLost, Partitions: 3},
	{Name: "AHandleThatOutlivesItsOwnershipIsRefused", Tell: oldHandle},
	{Name: "NothingIsWrittenWithoutAMembership", Tell: noMembership},
	{Name: "AHandlerThatIsStuckLosesItsPartitionAfterTheRevokeTimeout", Tell: stuckHandler, Partitions: 2},
	{Name: "ARevokeIsBoundedWhenATransactionHangs", Tell: revokeWithHungTransaction, Partitions: 2},
	{Name: "AStaticMemberRecoversAfterARestart", Tell: staticRestart},
	{Name: "TheOldProcessOfAStaticMemberIsRefused", Tell: staticOldProcess},
	{Name: "CloseInTheMiddleOfARebalanceLeavesNothingBehind", Tell: closeInRebalance, Partitions: 4},
}, forProtocols()...)

// protocol is a way of a group to hand out its partitions.
type protocol struct {
	name  string
	kafka []kgo.Opt
	eager bool // every rebalance revokes everything
}

var protocols = []protocol{
	{name: "Eager", kafka: []kgo.Opt{kgo.Balancers(kgo.RangeBalancer())}, eager: true},
	{name: "Cooperative", kafka: []kgo.Opt{kgo.Balancers(kgo.CooperativeStickyBalancer())}},
	{name: "KIP848", kafka: []kgo.Opt{kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer())}},
}

// forProtocols makes the stories that are told of each protocol.
func forProtocols() (all []Story) {
	for _, p := range protocols {
		all = append(all,
			Story{Name: "WritersLiveThroughARebalanceUnder" + p.name, Tell: p.writersLiveOn, Partitions: 2},
			Story{Name: "ARevokeFlushesWhatIsQueuedUnder" + p.name, Tell: p.revokeFlushes, Partitions: 4},
			Story{Name: "EveryEventCountsOnceThroughChurnUnder" + p.name, Tell: p.everyEventCountsOnce, Partitions: 4},
			Story{Name: "EveryEventCountsOnceWithoutStateUnder" + p.name, Tell: p.everyEventCountsOnceWithoutState, Partitions: 4},
		)
	}
	return all
}

func snapshot(key, value string, source int64) persistence.Snapshot {
	return persistence.Snapshot{Key: []byte(key), Value: []byte(value), SourceOffset: source}
}

// The first transaction of an ownership is gated too, by the offset that it
// resumed from.
func firstWriteIsGated(w *World) {
	w.Produce(0, "a", "b", "c")
	m := w.Start(false, persistence.CommitInterval(time.Hour))
	o := m.Own()
	require.EqualValues(w, -1, w.Committed(0).Offset)
	require.NoError(w, o.Write(w.Ctx, snapshot("k", "1", 0)))
	c := w.Committed(0)
	require.EqualValues(w, 0, c.Offset, "the first transaction commits the offset resumed from")
	require.Contains(w, c.Metadata, "txn=")
	require.Equal(w, map[string]string{"k": "1"}, w.Values(0))
	require.NoError(w, m.Stop())
}

// With a start at the end, the resumed offset is the end as it was at the
// takeover, for the fence and the consumer alike, whatever comes later.
func firstWriteAtEnd(w *World) {
	w.Produce(0, "a", "b", "c")
	m := w.StartKafka(false, []kgo.Opt{kgo.ConsumeStartOffset(kgo.NewOffset().AtEnd())}, persistence.CommitInterval(time.Hour))
	o := m.Own()
	require.EqualValues(w, 3, o.Resume())
	w.Produce(0, "d", "e")
	require.NoError(w, o.Write(w.Ctx, snapshot("k", "1", 2)))
	require.EqualValues(w, 3, w.Committed(0).Offset)
	require.Equal(w, "d", string(o.Events(w, 2)[0].Value), "nothing is skipped")
	require.NoError(w, m.Stop())
}

// naive is a service without a fence: an ordinary group, an ordinary producer,
// and commits by hand. Its state is how many events it has seen.
type naive struct {
	w        *World
	cl       *kgo.Client // consumer
	producer *kgo.Client
	count    int
	position int64
}

func (w *World) naive(kafka ...kgo.Opt) *naive {
	return &naive{w: w, producer: w.Client(kgo.RecordPartitioner(kgo.ManualPartitioner())),
		cl: w.Client(append([]kgo.Opt{kgo.ConsumerGroup(w.Group), kgo.ConsumeTopics(w.Input), kgo.DisableAutoCommit(),
			kgo.HeartbeatInterval(100 * time.Millisecond)}, kafka...)...)}
}

func (n *naive) recover() {
	if v := n.w.Values(0)["count"]; v != "" {
		_, err := fmt.Sscan(v, &n.count)
		require.NoError(n.w, err)
	}
}

func (n *naive) fold(upTo int64) {
	for n.position < upTo {
		for _, r := range n.cl.PollFetches(n.w.Ctx).Records() {
			n.count++
			n.position = r.Offset + 1
		}
	}
}

// flush writes the snapshot, which lands whoever owns the partition, and
// commits, which the group refuses to all but the owner.
func (n *naive) flush() error {
	r := &kgo.Record{Topic: n.w.State, Partition: 0, Key: []byte("count"), Value: fmt.Append(nil, n.count)}
	require.NoError(n.w, n.producer.ProduceSync(n.w.Ctx, r).FirstErr())
	id, generation := n.cl.GroupMetadata()
	results, err := wire.OffsetCommit(n.w.Ctx, n.w.Admin, wire.Member{Group: n.w.Group, ID: id, Generation: generation}, n.w.Topic(n.w.Input),
		map[int32]wire.Position{0: {Offset: n.position, Epoch: -1}})
	require.NoError(n.w, err)
	return results[0]
}

// What the library is for: without a fence, a stale owner overwrites the
// newer snapshot, and the next recovery has lost events, silently.
func corruption(w *World) {
	w.Produce(0, "a", "b", "c")
	n := w.NewNetwork()
	stale := w.naive(n.Opt())
	stale.fold(3)
	n.Strand(stale.cl)

	w.Produce(0, "d", "e")
	owner := w.naive()
	owner.recover()
	owner.fold(5)
	require.NoError(w, owner.flush())
	require.Equal(w, "5", w.Values(0)["count"])

	require.Error(w, stale.flush(), "only its offset is refused")
	require.EqualValues(w, 5, w.Committed(0).Offset)
	require.Equal(w, "3", w.Values(0)["count"], "five events are committed, and three are in the state")
}

// The same with the library: the stale owner's snapshot is refused with its
// offset.
func corruptionPrevented(w *World) {
	w.Produce(0, "a", "b", "c")
	n := w.NewNetwork()
	a := w.StartKafka(false, []kgo.Opt{n.Opt()})
	stale := a.Own()
	events := stale.Events(w, 3)
	n.Strand(a.Module.Client())

	w.Produce(0, "d", "e")
	var renewed atomic.Int64
	b := w.Start(false, persistence.WithTrace(persistence.Trace{ProducerRenewed: func(persistence.RenewInfo) { renewed.Add(1) }}))
	owner := b.Own()
	last := owner.Events(w, 5)[4]
	require.NoError(w, owner.Apply(w.Ctx, persistence.Batch{Snapshots: []persistence.Snapshot{snapshot("count", "5", 4)}, Through: last}))

	err := stale.Apply(w.Ctx, persistence.Batch{Snapshots: []persistence.Snapshot{snapshot("count", "3", 2)}, Through: events[2]})
	require.ErrorIs(w, err, persistence.ErrFenced)
	require.NotErrorIs(w, err, persistence.ErrUnknownOutcome)
	require.EqualValues(w, 5, w.Committed(0).Offset)
	require.Equal(w, map[string]string{"count": "5"}, w.Values(0))

	require.NoError(w, owner.Write(w.Ctx, snapshot("after", "1", 4)))
	require.Zero(w, renewed.Load(), "the owner was disturbed")
	require.NoError(w, b.Stop())
	next := w.Start(false).Own()
	require.Equal(w, map[string]string{"count": "5", "after": "1"}, next.State)
	require.EqualValues(w, 5, next.Resume())
}

// A stale owner that has only an offset to commit is refused in the same way,
// and what its handler is told does not end the module.
func staleOffset(w *World) {
	w.Produce(0, "a", "b")
	n := w.NewNetwork()
	a := w.StartKafka(false, []kgo.Opt{n.Opt()}, persistence.CommitInterval(time.Hour))
	stale := a.Own()
	events := stale.Events(w, 2)
	heartbeats := n.Strand(a.Module.Client())
	owner := w.Start(false).Own()
	require.NoError(w, owner.Apply(w.Ctx, persistence.Batch{Through: owner.Events(w, 2)[1]}))
	err := stale.Apply(w.Ctx, persistence.Batch{Through: events[0]})
	require.ErrorIs(w, err, persistence.ErrFenced)
	require.EqualValues(w, 2, w.Committed(0).Offset)
	heartbeats.Release()
	Await(w, stale.Ctx.Done())
	require.NoError(w, a.Stop())
}

// The generation is the fence, not the producer's epoch: a stale owner that
// wakes before the new owner's InitProducerID still has a valid producer.
func staleBeforeInit(w *World) {
	w.Produce(0, "a")
	na, nb := w.NewNetwork(), w.NewNetwork()
	a := w.StartKafka(false, []kgo.Opt{na.Opt()})
	stale := a.Own()
	require.NoError(w, stale.Write(w.Ctx, snapshot("k", "1", 0)))
	na.Strand(a.Module.Client())
	init := nb.All(kmsg.InitProducerID, Hold)
	b := w.StartKafka(false, []kgo.Opt{nb.Opt()})
	init.Await()

	mark := na.Mark()
	require.ErrorIs(w, stale.Write(w.Ctx, snapshot("k", "stale", 0)), persistence.ErrFenced)
	var refused error
	for _, e := range na.Log(mark) {
		if e.Key() == kmsg.TxnOffsetCommit.Int16() {
			refused = e.OffsetError()
		}
	}
	require.True(w, errors.Is(refused, kerr.UnknownMemberID) || errors.Is(refused, kerr.IllegalGeneration), "%v", refused)
	require.Zero(w, na.Count(mark, kmsg.Produce), "the fence comes before the records")
	init.Release()
	require.Equal(w, map[string]string{"k": "1"}, b.Own().State)
}

// A producer that nobody fences, with a transactional id of its own, is
// refused for its generation alone.
func staleGeneration(w *World) {
	w.Produce(0, "a", "b")
	m := w.Start(false)
	o := m.Own()
	require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Snapshots: []persistence.Snapshot{snapshot("k", "1", 0)}, Through: o.Events(w, 2)[0]}))
	id, generation := m.Module.Client().GroupMetadata()
	old := wire.Member{Group: w.Group, ID: id, Generation: generation}

	w.Start(false) // gets nothing, but moves the generation
	w.Eventually("the generation to move", func() bool {
		_, now := m.Module.Client().GroupMetadata()
		return now > generation
	})
	gone := old
	gone.ID += "-gone"
	for _, member := range []wire.Member{old, gone} {
		p := w.Client(kgo.TransactionalID(w.Prefix+"-rogue"), kgo.RecordPartitioner(kgo.ManualPartitioner()),
			kgo.MaxVersions(wire.PinVersions(nil, int16(w.TransactionVersion))))
		require.NoError(w, p.BeginTransaction())
		require.NoError(w, p.ProduceSync(w.Ctx, &kgo.Record{Topic: w.State, Key: []byte("k"), Value: []byte("rogue")}).FirstErr())
		err := w.txnOffsetCommit(p, w.Prefix+"-rogue", member, wire.Position{Offset: 2, Epoch: -1})
		require.True(w, errors.Is(err, kerr.IllegalGeneration) || errors.Is(err, kerr.UnknownMemberID), "%v", err)
		p.PurgeTopicsFromProducing("")
		require.NoError(w, p.EndTransaction(w.Ctx, kgo.TryAbort))
		require.Equal(w, map[string]string{"k": "1"}, w.Values(0))
		require.EqualValues(w, 1, w.Committed(0).Offset)
	}
}

// txnOffsetCommit commits an offset of partition 0 in a client's transaction.
func (w *World) txnOffsetCommit(p *kgo.Client, transactionalID string, m wire.Member, pos wire.Position) error {
	w.Helper()
	id, epoch, err := p.ProducerID(w.Ctx)
	require.NoError(w, err)
	wp := wire.Producer{TransactionalID: transactionalID, ID: id, Epoch: epoch}
	if w.TransactionVersion < 2 {
		require.NoError(w, wire.AddOffsetsToTxn(w.Ctx, p, wp, m.Group))
	}
	return wire.TxnOffsetCommit(w.Ctx, p, wp, m, w.Topic(w.Input), 0, pos)
}

// Two deployments of one group with different prefixes do not fence each
// other's producers. The takeover waits out what the old owner has pending, and
// the generation refuses whatever it begins after.
func otherPrefix(w *World) {
	na, nb := w.NewNetwork(), w.NewNetwork()
	a := w.StartKafka(false, []kgo.Opt{na.Opt()})
	stale := a.Own()
	require.NoError(w, stale.Write(w.Ctx, snapshot("k", "1", 0)))
	end := na.Next(kmsg.EndTxn, Hold)
	result := make(chan error, 1)
	go func() { result <- stale.Write(w.Ctx, snapshot("k", "2", 0)) }()
	end.Await()
	na.Strand(a.Module.Client())

	second := *w
	second.Prefix += "-second"
	b := second.StartKafka(false, []kgo.Opt{nb.Opt()})
	w.Eventually("the takeover to ask for the offset again and again", func() bool { return nb.Count(0, kmsg.OffsetFetch) > 3 })
	require.Empty(w, b.owners, "it waits")
	end.Release()
	require.NoError(w, Await(w, result))
	owner := b.Own()
	require.Equal(w, map[string]string{"k": "2"}, owner.State)
	require.ErrorIs(w, stale.Write(w.Ctx, snapshot("k", "stale", 0)), persistence.ErrFenced)
	require.NoError(w, owner.Write(w.Ctx, snapshot("k", "3", 0)))
	require.Equal(w, map[string]string{"k": "3"}, w.Values(0))
}

// An owner that crashed in a transaction holds up neither the next owner's
// offset fetch nor its recovery: its InitProducerID ends the transaction.
func takeoverAborts(w *World) {
	w.Produce(0, "a", "b")
	n := w.NewNetwork()
	a := w.StartKafka(false, []kgo.Opt{n.Opt(), kgo.SessionTimeout(2 * time.Second)})
	o := a.Own()
	events := o.Events(w, 2)
	require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Snapshots: []persistence.Snapshot{snapshot("k", "1", 0)}, Through: events[0]}))
	end := n.Next(kmsg.EndTxn, Hold)
	result := make(chan error, 1)
	go func() {
		result <- o.Apply(w.Ctx, persistence.Batch{Snapshots: []persistence.Snapshot{snapshot("k", "2", 1)}, Through: events[1]})
	}()
	end.Await()
	require.Less(w, w.Stable(w.State, 0), w.End(w.State, 0))
	id, _ := a.Module.Client().GroupMetadata()
	n.Cut()
	w.Evict(id)

	began := time.Now()
	b := w.Start(false)
	next := b.Own()
	require.Equal(w, w.End(w.State, 0), w.Stable(w.State, 0))
	require.Equal(w, map[string]string{"k": "1"}, next.State)
	require.EqualValues(w, 1, next.Resume())
	require.Less(w, time.Since(began), 20*time.Second, "the transaction timeout is a minute")
	require.NoError(w, a.Stop())
	require.Error(w, Await(w, result))
}

// A partition that is lost is dead at once: the context ends with the reason,
// and everyone who waits is told.
func lostIsDead(w *World) {
	n := w.NewNetwork()
	m := w.StartKafka(true, []kgo.Opt{n.Opt()})
	o := m.Own()
	end := n.Next(kmsg.EndTxn, Hold)
	batch := func(key string) persistence.Batch {
		return persistence.Batch{Snapshots: []persistence.Snapshot{snapshot(key, "1", 0)}}
	}
	inFlight := w.Queue(w.Ctx, o, batch("in flight"))
	end.Await()
	queued := w.Queue(w.Ctx, o, batch("queued"))
	id, _ := m.Module.Client().GroupMetadata()
	w.Evict(id)
	Await(w, o.Ctx.Done())
	require.ErrorIs(w, context.Cause(o.Ctx), persistence.ErrLost)
	Await(w, o.Revoked)
	require.ErrorIs(w, o.Err, persistence.ErrLost)
	err := Await(w, queued)
	require.ErrorIs(w, err, persistence.ErrLost)
	require.NotErrorIs(w, err, persistence.ErrUnknownOutcome)
	err = Await(w, inFlight)
	require.ErrorIs(w, err, persistence.ErrLost)
	require.ErrorIs(w, err, persistence.ErrUnknownOutcome, "its EndTxn was under way")
	require.ErrorIs(w, o.Write(w.Ctx, snapshot("late", "1", 0)), persistence.ErrLost)
	end.Release()

	again := m.Own()
	require.NotContains(w, again.State, "queued")
	require.NotContains(w, again.State, "late")
}

// When partitions are lost nothing is sent for any of them: no flush, no
// commit, no end of a transaction.
func severalLost(w *World) {
	n := w.NewNetwork()
	m := w.StartKafka(false, []kgo.Opt{n.Opt()}, persistence.CommitInterval(time.Hour))
	for id, o := range m.OwnAll(3) {
		w.Produce(id, "a")
		require.NoError(w, o.Advance(o.Events(w, 1)[0]))
	}
	joins := n.All(kmsg.JoinGroup, Hold)
	id, _ := m.Module.Client().GroupMetadata()
	mark := n.Mark()
	w.Evict(id)
	joins.Await() // it comes back when it has given up
	require.Zero(w, n.Count(mark, Writes...))
	joins.Release()
	for _, o := range m.OwnAll(3) {
		require.Zero(w, o.Resume())
	}
	require.Zero(w, n.Count(mark, Writes...))
}

// A handle is one ownership, not a partition: one from before is refused even
// where the same member owns the partition again.
func oldHandle(w *World) {
	m := w.Start(false)
	old := m.Own()
	require.NoError(w, old.Write(w.Ctx, snapshot("k", "1", 0)))
	id, _ := m.Module.Client().GroupMetadata()
	w.Evict(id)
	now := m.Own()
	require.NoError(w, now.Write(w.Ctx, snapshot("k", "2", 0)))
	require.ErrorIs(w, old.Write(w.Ctx, snapshot("k", "old", 0)), persistence.ErrLost)
	require.ErrorIs(w, old.Delete(w.Ctx, []byte("k"), 0), persistence.ErrLost)
	w.Produce(0, "a")
	event := now.Events(w, 1)[0]
	require.ErrorIs(w, old.Advance(event), persistence.ErrLost)
	require.ErrorIs(w, old.Apply(w.Ctx, persistence.Batch{Through: event}), persistence.ErrLost)
	require.Equal(w, map[string]string{"k": "2"}, w.Values(0))
	current, err := m.Module.Partition(0)
	require.NoError(w, err)
	require.Same(w, now.Partition, current)
}

// Without a membership nothing is sent at all: the coordinator of an empty
// group checks nothing.
func noMembership(w *World) {
	n := w.NewNetwork()
	m := w.StartKafka(false, []kgo.Opt{n.Opt()})
	o := m.Own()
	joins := n.All(kmsg.JoinGroup, Hold)
	id, _ := m.Module.Client().GroupMetadata()
	w.Evict(id)
	joins.Await()
	mark := n.Mark()
	require.ErrorIs(w, o.Write(w.Ctx, snapshot("k", "1", 0)), persistence.ErrLost)
	_, err := m.Module.Partition(0)
	require.ErrorIs(w, err, persistence.ErrNotOwned)
	joins.Release()
	o = m.Own()
	require.NoError(w, m.Stop())
	require.ErrorIs(w, o.Write(w.Ctx, snapshot("k", "1", 0)), persistence.ErrClosed)
	require.Zero(w, n.Count(mark, Writes...))
	require.Empty(w, w.Values(0))
}

// A handler that does not return when its partition is revoked cannot hold the
// group up for longer than the timeout: then the handle is dead.
func stuckHandler(w *World) {
	a := w.Start(true, persistence.RevokeTimeout(200*time.Millisecond))
	owners := a.OwnAll(2)
	moved := w.Start(false).Own()
	old := owners[moved.ID()]
	Await(w, old.Revoked)
	Await(w, old.Ctx.Done())
	require.ErrorIs(w, context.Cause(old.Ctx), persistence.ErrRevoked)
	require.ErrorIs(w, old.Write(w.Ctx, snapshot("k", "late", 0)), persistence.ErrRevoked)
	require.NoError(w, moved.Write(w.Ctx, snapshot("k", "1", 0)))
	require.Equal(w, map[string]string{"k": "1"}, w.Values(moved.ID()))
}

// A transaction that hangs in the network does not hold a revoke up either. Its
// caller is told that the outcome is not known, and the next owner's takeover
// decides it.
func revokeWithHungTransaction(w *World) {
	n := w.NewNetwork()
	a := w.StartKafka(false, []kgo.Opt{n.Opt()}, persistence.RevokeTimeout(200*time.Millisecond))
	owners := a.OwnAll(2)
	end := n.All(kmsg.EndTxn, Hold)
	results := [2]chan error{make(chan error, 1), make(chan error, 1)}
	for id, o := range owners {
		go func() { results[id] <- o.Write(w.Ctx, snapshot("k", "hung", 0)) }()
	}
	w.Eventually("both transactions to hang", func() bool { return end.Hits() == 2 })
	b := w.Start(false)
	var err error
	stayed := int32(0)
	select {
	case err = <-results[0]:
		stayed = 1
	case err = <-results[1]:
	}
	require.ErrorIs(w, err, persistence.ErrRevoked)
	require.ErrorIs(w, err, persistence.ErrUnknownOutcome)
	end.Release()
	require.NoError(w, Await(w, results[stayed]))
	moved := b.Own()
	require.Equal(w, 1-stayed, moved.ID())
	require.Equal(w, w.Values(moved.ID()), moved.State, "settled before the recovery")
	require.NoError(w, moved.Write(w.Ctx, snapshot("k", "1", 0)))
	require.Equal(w, map[string]string{"k": "1"}, w.Values(moved.ID()))
}

// A static member that restarts within its session timeout gets its partition
// back without a rebalance, and recovers all the same.
func staticRestart(w *World) {
	w.Produce(0, "a")
	kafka := []kgo.Opt{kgo.InstanceID("one"), kgo.SessionTimeout(30 * time.Second)}
	a := w.StartKafka(false, kafka)
	o := a.Own()
	require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Snapshots: []persistence.Snapshot{snapshot("k", "1", 0)}, Through: o.Events(w, 1)[0]}))
	require.NoError(w, a.Stop())
	next := w.StartKafka(false, kafka).Own()
	require.Equal(w, map[string]string{"k": "1"}, next.State)
	require.EqualValues(w, 1, next.Resume())
	require.NoError(w, next.Write(w.Ctx, snapshot("k", "2", 0)))
}

// The old process of a static member that was started twice is refused, as its
// commits carry the instance id.
func staticOldProcess(w *World) {
	n := w.NewNetwork()
	kafka := []kgo.Opt{kgo.InstanceID("one"), kgo.SessionTimeout(30 * time.Second)}
	a := w.StartKafka(false, append(kafka, n.Opt()))
	old := a.Own()
	require.NoError(w, old.Write(w.Ctx, snapshot("k", "1", 0)))
	heartbeats := n.All(kmsg.Heartbeat, Hold)
	heartbeats.Await()
	b := w.StartKafka(false, kafka)
	now := b.Own()
	mark := n.Mark()
	err := old.Write(w.Ctx, snapshot("k", "old", 0))
	require.ErrorIs(w, err, persistence.ErrFenced)
	require.ErrorIs(w, err, kerr.FencedInstanceID)
	for _, e := range n.Log(mark) {
		if r, ok := e.Request.(*kmsg.TxnOffsetCommitRequest); ok {
			require.NotNil(w, r.InstanceID)
			require.Equal(w, "one", *r.InstanceID)
		}
	}
	require.NoError(w, now.Write(w.Ctx, snapshot("k", "2", 0)))
	require.Equal(w, map[string]string{"k": "2"}, w.Values(0))
	heartbeats.Release()
	require.ErrorIs(w, a.Wait(), kerr.FencedInstanceID, "there is no way back in for it")
}

// writer writes to an ownership until that refuses, and returns why. Between
// two writes it leaves a moment: the in-process cluster takes any pending
// commit of a group for one of the partition asked for.
func (w *World) writer(o *Owner, done *atomic.Int64) error {
	for i := 0; ; i++ {
		if err := o.Write(w.Ctx, snapshot("count", fmt.Sprint(i), 0)); err != nil {
			return err
		}
		done.Add(1)
		time.Sleep(2 * time.Millisecond)
	}
}

// While a second member joins, writers go on on every partition. The partition
// that stays has no error, although its generation moved under it; the other's
// old handle is refused by the library itself, since the member's new
// generation would pass the broker.
func (p protocol) writersLiveOn(w *World) {
	var survived atomic.Int64
	n := w.NewNetwork()
	a := w.StartKafka(false, append(p.kafka, n.Opt()), persistence.WithTrace(persistence.Trace{
		FenceSurvived: func(persistence.FenceInfo) { survived.Add(1) },
		Fenced:        func(i persistence.FenceInfo) { w.Errorf("fenced: %+v", i) },
	}))
	owners := a.OwnAll(2)
	var writes [2]atomic.Int64
	var ended [2]chan error
	for id, o := range owners {
		ended[id] = make(chan error, 1)
		go func() { ended[id] <- w.writer(o, &writes[id]) }()
	}
	w.Eventually("both partitions to be written", func() bool { return writes[0].Load() > 5 && writes[1].Load() > 5 })
	_, generation := a.Module.Client().GroupMetadata()
	b := w.StartKafka(false, p.kafka)
	moved := b.Own()
	stays := 1 - moved.ID()
	err := Await(w, ended[moved.ID()])
	require.ErrorIs(w, err, persistence.ErrRevoked)
	require.NotErrorIs(w, err, persistence.ErrUnknownOutcome)
	require.Equal(w, fmt.Sprint(writes[moved.ID()].Load()-1), moved.State["count"], "the new owner has all that was acknowledged")

	w.Eventually("the generation to move", func() bool {
		_, now := a.Module.Client().GroupMetadata()
		return now > generation
	})
	if p.eager {
		require.ErrorIs(w, Await(w, ended[stays]), persistence.ErrRevoked)
		again := a.Own()
		require.Equal(w, stays, again.ID())
		require.Equal(w, fmt.Sprint(writes[stays].Load()-1), again.State["count"])
		require.NoError(w, again.Write(w.Ctx, snapshot("count", "again", 0)))
	} else {
		before := writes[stays].Load()
		w.Eventually("the partition that stays to be written on", func() bool { return writes[stays].Load() > before+5 })
		select {
		case err := <-ended[stays]:
			w.Fatalf("the partition that stays was refused: %v", err)
		default:
		}
	}
	mark := n.Mark()
	require.ErrorIs(w, owners[moved.ID()].Write(w.Ctx, snapshot("count", "late", 0)), persistence.ErrRevoked)
	for _, e := range n.Log(mark) {
		if r, ok := e.Request.(*kmsg.TxnOffsetCommitRequest); ok {
			require.False(w, strings.HasSuffix(r.TransactionalID, fmt.Sprint("-", moved.ID())), "the late write went out")
		}
	}
	require.NoError(w, moved.Write(w.Ctx, snapshot("count", "moved", 0)))
	w.Logf("%s: %d fences survived", p.name, survived.Load())
	require.NoError(w, a.Stop())
}

// A write that meets a rebalance after the coordinator has moved on, and before
// the member has heard of it, is refused, and commits under the generation that
// the member then hears of.
func survivedFence(w *World) {
	var survived atomic.Int64
	n := w.NewNetwork()
	a := w.StartKafka(false, []kgo.Opt{n.Opt()}, persistence.WithTrace(persistence.Trace{
		FenceSurvived: func(i persistence.FenceInfo) {
			if i.Current > i.Refused {
				survived.Add(1)
			}
		},
	}))
	o := a.Own()
	require.NoError(w, o.Write(w.Ctx, snapshot("k", "1", 0)))
	join := n.Next(kmsg.JoinGroup, HoldReply)
	w.Start(false) // gets nothing
	join.Await()
	mark := n.Mark()
	result := make(chan error, 1)
	go func() { result <- o.Write(w.Ctx, snapshot("k", "2", 0)) }()
	w.Eventually("the write to be refused", func() bool {
		for _, e := range n.Log(mark) {
			if e.Key() == kmsg.TxnOffsetCommit.Int16() && errors.Is(e.OffsetError(), kerr.IllegalGeneration) {
				return true
			}
		}
		return false
	})
	join.Release()
	require.NoError(w, Await(w, result))
	require.EqualValues(w, 1, survived.Load())
	require.Equal(w, map[string]string{"k": "2"}, w.Values(0))
	require.NoError(w, o.Ctx.Err(), "the ownership went on")
	require.NoError(w, o.Write(w.Ctx, snapshot("k", "3", 0)))
}

// A revoke gives the handlers time to flush: what they wrote and advanced to
// is committed, for all revoked partitions within one budget, and the next
// owner goes on there.
func (p protocol) revokeFlushes(w *World) {
	const writers = 5
	a := w.StartKafka(true, p.kafka, persistence.CommitInterval(time.Hour))
	owners := a.OwnAll(4)
	events := make(map[int32][]*kgo.Record)
	for id, o := range owners {
		w.Produce(id, "a", "b", "c")
		events[id] = o.Events(w, 3)
	}
	b := w.StartKafka(false, p.kafka)
	flush := func(o *Owner) {
		<-o.Revoked
		if !errors.Is(o.Err, persistence.ErrRevoked) {
			return
		}
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				if err := o.Write(w.Ctx, snapshot(fmt.Sprint(i), "flushed", 2)); err != nil {
					w.Errorf("partition %d: %v", o.ID(), err)
				}
			})
		}
		wg.Wait()
		if err := o.Advance(events[o.ID()][2]); err != nil {
			w.Errorf("partition %d: %v", o.ID(), err)
		}
		o.Release()
	}
	var flushes sync.WaitGroup
	for _, o := range owners {
		flushes.Go(func() { flush(o) })
	}
	moved := b.OwnAll(2)
	for id, o := range moved {
		require.EqualValues(w, 3, o.Resume(), "partition %d", id)
		require.Len(w, o.State, writers)
		require.ErrorIs(w, owners[id].Write(w.Ctx, snapshot("late", "1", 2)), persistence.ErrRevoked)
		require.EqualValues(w, 3, w.Committed(id).Offset)
	}
	if p.eager {
		for _, o := range a.OwnAll(2) {
			require.EqualValues(w, 3, o.Resume())
			require.Len(w, o.State, writers)
			o.Release()
		}
	}
	stopped := make(chan error, 1)
	go func() { stopped <- a.Stop() }()
	for id, o := range owners {
		if _, ok := moved[id]; !ok && !p.eager {
			<-o.Revoked
			o.Release()
		}
	}
	require.NoError(w, Await(w, stopped))
	flushes.Wait()
}

// releaseLater lets the handlers of later ownerships return at once: on a slow
// machine a member may be given a partition back that it has just given up.
func (m *Member) releaseLater() {
	for {
		select {
		case o := <-m.owners:
			o.Release()
		case <-m.done:
			return
		}
	}
}

// Close in the middle of a rebalance, with partitions being revoked and writes
// under way, leaves no connection, and no offset is ever committed below one
// that was committed before.
func closeInRebalance(w *World) {
	n := w.NewNetwork()
	a := w.StartKafka(true, []kgo.Opt{n.Opt()}, persistence.CommitInterval(10*time.Millisecond))
	owners := a.OwnAll(4)
	go a.releaseLater()
	var wg sync.WaitGroup
	for id, o := range owners {
		w.Produce(id, "a", "b", "c", "d", "e", "f")
		events := o.Events(w, 6)
		apply := func(i int) error {
			r := events[i]
			return o.Apply(w.Ctx, persistence.Batch{Snapshots: []persistence.Snapshot{snapshot("k", fmt.Sprint(i), r.Offset)}, Through: r})
		}
		require.NoError(w, apply(0))
		wg.Go(func() {
			for i := range events {
				_ = apply(i)
				_ = o.Advance(events[i])
			}
		})
	}
	b := w.StartKafka(false, []kgo.Opt{n.Opt()})
	revoked := make(chan *Owner, 4)
	for _, o := range owners {
		go func() {
			<-o.Revoked
			revoked <- o
		}()
	}
	Await(w, revoked) // its handler does not return yet, so the group waits
	stopped := make(chan error, 1)
	go func() { stopped <- a.Stop() }()
	for _, o := range owners {
		o.Release()
	}
	require.NoError(w, Await(w, stopped))
	wg.Wait()
	for id, o := range owners {
		require.Error(w, o.Write(w.Ctx, snapshot("late", "1", 0)), "partition %d", id)
	}
	got := b.OwnAll(4)
	for id, o := range got {
		require.Equal(w, w.Committed(id).Offset, o.Resume())
	}
	require.NoError(w, b.Stop())
	require.Zero(w, n.Open(), "connections are left")
	w.checkNeverBack(n)
}

// checkNeverBack fails if a committed offset was followed by a lower one.
func (w *World) checkNeverBack(n *Network) {
	w.Helper()
	committed := make(map[int32]int64)
	pending := make(map[string]map[int32]int64)
	commit := func(offsets map[int32]int64) {
		for id, at := range offsets {
			require.GreaterOrEqual(w, at, committed[id], "partition %d", id)
			committed[id] = at
		}
	}
	for _, e := range n.Log(0) {
		switch r := e.Request.(type) {
		case *kmsg.OffsetCommitRequest:
			a, ok := e.Answer.(*kmsg.OffsetCommitResponse)
			if !ok {
				continue
			}
			offsets := make(map[int32]int64)
			for _, p := range r.Topics[0].Partitions {
				offsets[p.Partition] = p.Offset
			}
			for _, p := range a.Topics[0].Partitions {
				if p.ErrorCode != 0 {
					delete(offsets, p.Partition)
				}
			}
			commit(offsets)
		case *kmsg.TxnOffsetCommitRequest:
			if e.OffsetError() == nil {
				p := r.Topics[0].Partitions[0]
				pending[r.TransactionalID] = map[int32]int64{p.Partition: p.Offset}
			}
		case *kmsg.EndTxnRequest:
			if a, ok := e.Answer.(*kmsg.EndTxnResponse); ok && a.ErrorCode == 0 && r.Commit {
				commit(pending[r.TransactionalID])
			}
			delete(pending, r.TransactionalID)
		}
	}
	require.NotEmpty(w, maps.Keys(committed))
}

package persistencetest

import (
	"errors"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/scenario"
)

// Scenarios are all there are.
func Scenarios() []Scenario {
	return []Scenario{
		{Name: "members come and go", tell: (*story).comeAndGo,
			Doc: "A member joins, the first one leaves in order, and another joins, while events come in."},
		{Name: "stale owner", tell: (*story).staleOwner,
			Doc: "A member stands still with a transaction begun, until another has its partitions and has processed everything; then it wakes and goes on with it."},
		{Name: "crash before the end", tell: (*story).crashBeforeTheEnd,
			Doc: "A member is gone after its records were written, and before EndTxn."},
		{Name: "crash after the end", tell: (*story).crashAfterTheEnd,
			Doc: "A member is gone after its transaction committed, and before it heard of that."},
		{Name: "generation moves", tell: (*story).generationMoves,
			Doc: "A member joins while a transaction of another is between its offset commit and its end."},
		{Name: "lost replies", tell: (*story).lostReplies,
			Doc: "Requests of the transaction protocol are lost on their way, and replies on theirs, one after another."},
		{Name: "duplicate delivery", needsState: true, tell: (*story).duplicateDelivery,
			Doc: "The group's offset is set back to the start of the input: all events come again. A service without state cannot tell, so it is left out there."},
		{Name: "hanging transaction", needsState: true, tell: (*story).hangingTransaction,
			Doc: "Somebody else has a transaction open on the snapshot topic, with committed snapshots above it: recovery must wait until it is over, and not begin with less."},
		{Name: "trailing markers", tell: (*story).trailingMarkers,
			Doc: "The logs end in aborted records and markers."},
		{Name: "truncation", needsState: true, tell: (*story).truncation,
			Doc: "Committed snapshots are gone from the cluster: the service must refuse to start, with a *persistence.MismatchError. Leave this scenario out if an OnMismatch of yours says otherwise."},
	}
}

// patience is how long a fault may wait for its request.
const patience = "a transaction of the service to come this far (does it write within a minute of virtual time?)"

func (k *story) await(f *scenario.Fault) {
	k.Helper()
	k.Eventually(patience, func() bool { return f.Hits() > 0 })
}

func (k *story) comeAndGo() {
	a := k.start()
	k.third()
	k.Settle(a)
	b := k.start()
	k.third()
	require.NoError(k, a.Stop())
	k.Settle(b)
	c := k.start()
	k.third()
	k.Settle(b, c)
	require.NoError(k, b.Stop())
	k.Settle(c)
	require.NoError(k, c.Stop())
}

func (k *story) staleOwner() {
	a := k.start()
	k.third()
	k.Settle(a)
	beats := a.net.All(kmsg.Heartbeat, scenario.Hold)
	begun := a.net.Next(kmsg.TxnOffsetCommit, scenario.Hold)
	k.third()
	k.await(begun)
	b := k.start()
	k.Settle(b)
	begun.Release()
	beats.Release()
	k.third()
	k.Settle(a, b)
	k.end(a, b)
}

// crash ends a member at a point of a transaction, and another goes on.
func (k *story) crash(at kmsg.Key, how scenario.Action) {
	a := k.start()
	k.third()
	k.Settle(a)
	reached := a.net.Next(at, how)
	k.third()
	k.await(reached)
	a.Crash()
	b := k.start()
	k.third()
	k.Settle(b)
	require.NoError(k, b.Stop())
}

func (k *story) crashBeforeTheEnd() { k.crash(kmsg.EndTxn, scenario.Hold) }
func (k *story) crashAfterTheEnd()  { k.crash(kmsg.EndTxn, scenario.HoldReply) }

func (k *story) generationMoves() {
	a := k.start()
	k.third()
	k.Settle(a)
	inside := a.net.Next(kmsg.EndTxn, scenario.Hold)
	k.third()
	k.await(inside)
	mark := a.net.Mark()
	b := k.start()
	k.Eventually("the first member to join again", func() bool { return a.net.Count(mark, kmsg.JoinGroup) > 0 || a.net.Count(mark, kmsg.Heartbeat) > 10 })
	inside.Release()
	k.third()
	k.Settle(a, b)
	k.end(a, b)
}

func (k *story) lostReplies() {
	a := k.start()
	k.produce(1)
	k.Settle(a)
	var faults []*scenario.Fault
	for _, key := range []kmsg.Key{kmsg.TxnOffsetCommit, kmsg.Produce, kmsg.EndTxn} {
		faults = append(faults, a.net.Next(key, scenario.LoseRequest), a.net.Next(key, scenario.LoseReply), a.net.Next(key, scenario.LoseReply).Final())
	}
	for k.next < len(k.s.Events) {
		k.produce(1)
		k.Settle(a)
	}
	require.NoError(k, a.Stop())
	if faults[0].Hits() == 0 {
		k.Fatalf("the service made no transaction that a request could be lost of")
	}
}

func (k *story) duplicateDelivery() {
	a := k.start()
	k.third()
	k.third()
	k.Settle(a)
	require.NoError(k, a.Stop())
	k.Rewind()
	b := k.start()
	k.third()
	k.Settle(b)
	require.NoError(k, b.Stop())
}

func (k *story) hangingTransaction() {
	a := k.start()
	k.third()
	k.Settle(a)
	require.NoError(k, a.Stop())
	foreign := k.w.Foreign("hanging")
	foreign.BeginOn(0)
	b := k.start()
	k.third()
	time.Sleep(30 * time.Second)
	if k.Committed(0) == k.endOfEvents(0) && k.eventsOf(0) {
		k.Errorf("partition 0 was processed although an open transaction hides committed snapshots: was it recovered?")
	}
	foreign.End(kgo.TryAbort)
	k.third()
	k.Settle(b)
	require.NoError(k, b.Stop())
}

// eventsOf reports whether the second third has events of a partition.
func (k *story) eventsOf(partition int32) bool {
	n := len(k.s.Events) / 3
	for _, e := range k.s.Events[n : 2*n] {
		if k.partitionOf(e.Key) == partition {
			return true
		}
	}
	return false
}

func (k *story) trailingMarkers() {
	abort := func(topics ...string) {
		producer := k.w.Client(kgo.TransactionalID(k.w.Input+"-aborting"), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(10*time.Millisecond))
		require.NoError(k, producer.BeginTransaction())
		for _, topic := range topics {
			for id := range k.w.Partitions {
				require.NoError(k, producer.ProduceSync(k.w.Ctx, &kgo.Record{Topic: topic, Partition: id, Key: []byte("aborted"), Value: []byte("aborted")}).FirstErr())
			}
		}
		producer.PurgeTopicsFromProducing("") // so that the client knows what it has produced
		require.NoError(k, producer.EndTransaction(k.w.Ctx, kgo.TryAbort))
	}
	topics := []string{k.w.Input, k.w.State}
	if k.s.Stateless {
		topics = topics[:1]
	}
	abort(topics...)
	a := k.start()
	k.third()
	abort(topics...)
	k.third()
	k.Settle(a)
	require.NoError(k, a.Stop())
	abort(topics...)
	b := k.start()
	k.third()
	k.Settle(b)
	require.NoError(k, b.Stop())
}

func (k *story) truncation() {
	a := k.start()
	k.third()
	k.third()
	k.Settle(a)
	require.NoError(k, a.Stop())
	k.w.Recreate(k.w.State)
	b := k.start()
	k.third()
	err := b.Wait()
	var mismatch *persistence.MismatchError
	if !errors.As(err, &mismatch) {
		k.Errorf("its snapshots are gone, and the service ended with %v instead of a *persistence.MismatchError", err)
	}
	k.over = true
}

// end stops members, of which one was refused and may have ended with that.
func (k *story) end(members ...*Member) {
	k.Helper()
	for _, m := range members {
		if err := m.Stop(); err != nil && !errors.Is(err, persistence.ErrFenced) && !errors.Is(err, persistence.ErrLost) {
			k.Errorf("a member ended: %v", err)
		}
	}
}

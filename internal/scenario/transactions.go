package scenario

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/wire"
)

// What a transaction makes visible: all of a batch or nothing, once.
var transactionStories = append([]Story{
	{Name: "TwoServicesWithOnePrefixAreToldSo", Tell: twoServices},
	{Name: "AProducerFencedFromOutsideIsReplaced", Tell: fencedFromOutside},
	{Name: "ATransactionHeldPastItsTimeoutIsFollowedByAGoodOne", Tell: heldPastTimeout},
	{Name: "ABatchIsNeverCommittedInPart", Tell: batchInPart, Partitions: 4},
	{Name: "AnAdvanceWithNothingToWriteIsCommitted", Tell: advanceOnly},
	{Name: "OnlyTheCallerOfATooLargeRecordFails", Tell: tooLarge},
	{Name: "OnlyTheCallerOfARecordThatTheBrokerFindsTooLargeFails", Tell: tooLargeForBroker},
	{Name: "AWriteWhoseCallerGoesBeforeItsTurnIsNotMade", Tell: withdrawn},
	{Name: "CloseFlushesThenCommitsThenLeaves", Tell: closeInOrder},
	{Name: "CloseWithNoTimeListsWhatWasNotFlushed", Tell: closeShort},
	{Name: "ALostReplyOfAnyRequestCostsNothing", Tell: lostReplies},
	{Name: "ATakeoverOutlivesALostReplyOfAnyRequest", Tell: lostInTakeover},
	{Name: "ALateEndTxnEndsANaiveLoopsNextTransactionBelowVersion2", Tell: lateEndTxn},
	{Name: "ALateRequestDoesNotTouchALaterTransaction", Tell: lateRequests},
	{Name: "ALateOffsetCommitDoesNotMoveTheOffsetBack", Tell: lateOffsetCommit},
	{Name: "ALateInitProducerIDCostsAProducerAndNothingElse", Tell: lateInit},
	{Name: "OutputsAreVisibleIfTheBatchCommitted", Tell: outputs},
	{Name: "ConcurrentWritesAreAllThere", Tell: concurrentWrites},
}, lostEndStories()...)

// outputTopic makes a further topic.
func (w *World) outputTopic(partitions int32, configs map[string]string) string {
	w.Helper()
	topic := w.Input + "-out"
	w.CreateTopic(topic, partitions, configs)
	return topic
}

// noise is a value that does not compress.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

// Two services of different groups with the same prefix fence each other's
// producers for ever; both are right by their own group's generation. One of
// them is told what that means, and stops.
func twoServices(w *World) {
	second := *w
	second.Group += "-second"
	results := make(chan error, 2)
	for _, world := range []*World{w, &second} {
		m := world.Start(false)
		o := m.Own()
		go func() {
			for i := 0; ; i++ {
				if err := o.Write(w.Ctx, snapshot("k", fmt.Sprint(i), 0)); err != nil {
					results <- errors.Join(err, m.Wait())
					return
				}
			}
		}()
	}
	err := Await(w, results)
	require.ErrorIs(w, err, persistence.ErrProducerConflict)
	require.ErrorContains(w, err, "second service")
}

// When another InitProducerID takes the epoch in mid-transaction, the producer
// is replaced and the batch committed, once.
func fencedFromOutside(w *World) {
	n := w.NewNetwork()
	w.Produce(0, "a")
	m := w.StartKafka(false, []kgo.Opt{n.Opt()})
	o := m.Own()
	event := o.Events(w, 1)[0]
	require.NoError(w, o.Write(w.Ctx, snapshot("k", "1", 0)))
	produce := n.Next(kmsg.Produce, Hold)
	result := make(chan error, 1)
	go func() {
		result <- o.Apply(w.Ctx, persistence.Batch{Snapshots: []persistence.Snapshot{snapshot("k", "2", 0)}, Through: event})
	}()
	produce.Await()
	other := w.Client(kgo.TransactionalID(w.Prefix + "-snapshot-0"))
	_, _, err := other.ProducerID(w.Ctx)
	require.NoError(w, err)
	produce.Release()
	require.NoError(w, Await(w, result))
	require.Equal(w, []string{"1", "2"}, w.log(w.State, 0))
	require.EqualValues(w, 1, w.Committed(0).Offset)
	require.NoError(w, o.Ctx.Err())
}

// log is the values that a read_committed reader sees.
func (w *World) log(topic string, partition int32) []string {
	w.Helper()
	values := []string{}
	for _, r := range w.Read(topic, partition) {
		values = append(values, string(r.Value))
	}
	return values
}

// A batch whose transaction is held past its timeout fails and says that it
// did not happen; the next one has a new producer and nothing is lost.
func heldPastTimeout(w *World) {
	n := w.NewNetwork()
	m := w.StartKafka(false, []kgo.Opt{n.Opt()}, persistence.TransactionTimeout(time.Second))
	o := m.Own()
	require.NoError(w, o.Write(w.Ctx, snapshot("k", "1", 0)))
	produce := n.All(kmsg.Produce, Hold)
	err := o.Write(w.Ctx, snapshot("k", "held", 0))
	require.ErrorContains(w, err, "TransactionTimeout")
	require.NotErrorIs(w, err, persistence.ErrUnknownOutcome)
	produce.Release()
	require.NoError(w, o.Write(w.Ctx, snapshot("k", "2", 0)))
	require.Equal(w, []string{"1", "2"}, w.log(w.State, 0))
	require.NoError(w, o.Ctx.Err())
}

// lostEnd is a request to end a transaction that got no answer.
type lostEnd struct {
	what  string
	do    Action
	then  string // what happens just then
	final bool   // kgo does not try again by itself, so the library has to settle it
}

func lostEndStories() (all []Story) {
	for _, c := range []lostEnd{{what: "Reply", do: LoseReply}, {what: "Request", do: LoseRequest}} {
		for _, c.then = range []string{"", "ThoughItsCallerHasGone", "ByAShutdown"} {
			c.final = false
			all = append(all, Story{Name: "ALostEndTxn" + c.what + "IsTriedAgain" + c.then, Tell: c.tell})
			c.final = true
			all = append(all, Story{Name: "ALostEndTxn" + c.what + "IsSettled" + c.then, Tell: c.tell})
		}
	}
	return all
}

// Whether the transaction had committed or not, its records are there once, and
// never in the next transaction.
func (c lostEnd) tell(w *World) {
	out := w.outputTopic(1, nil)
	n := w.NewNetwork()
	w.Produce(0, "a", "b")
	m := w.StartKafka(true, []kgo.Opt{n.Opt()}, persistence.CommitInterval(time.Hour))
	o := m.Own()
	events := o.Events(w, 2)
	batch := func(value string, through *kgo.Record) persistence.Batch {
		return persistence.Batch{Snapshots: []persistence.Snapshot{snapshot("k", value, through.Offset)},
			Outputs: []*kgo.Record{{Topic: out, Value: []byte(value)}}, Through: through}
	}
	end := n.Next(kmsg.EndTxn, c.do)
	if c.final {
		end.Final()
	}
	ctx, cancel := context.WithCancel(w.Ctx)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- o.Apply(ctx, batch("1", events[0])) }()
	end.Await()
	switch c.then {
	case "":
		require.NoError(w, Await(w, result))
	case "ThoughItsCallerHasGone":
		cancel()
		if err := Await(w, result); err != nil {
			require.ErrorIs(w, err, persistence.ErrUnknownOutcome)
		}
	case "ByAShutdown":
		o.Release()
		require.NoError(w, m.Stop())
		require.NoError(w, Await(w, result))
		m = w.Start(false)
		o = m.Own()
		require.EqualValues(w, 1, o.Resume())
		require.Equal(w, map[string]string{"k": "1"}, o.State)
	}
	require.NoError(w, o.Apply(w.Ctx, batch("2", events[1])))
	require.Equal(w, []string{"1", "2"}, w.log(w.State, 0))
	require.Equal(w, []string{"1", "2"}, w.log(out, 0))
	require.EqualValues(w, 2, w.Committed(0).Offset)
}

// A batch of several records of which one is refused leaves nothing, whichever
// it is, and its offset stays.
func batchInPart(w *World) {
	out := w.outputTopic(4, map[string]string{"max.message.bytes": "2000"})
	w.Produce(0, "a")
	m := w.StartKafka(false, []kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner())}, persistence.CommitInterval(time.Hour))
	o := m.OwnAll(4)[0]
	event := o.Events(w, 1)[0]
	for k := range 4 {
		b := persistence.Batch{Snapshots: []persistence.Snapshot{snapshot("k", "never", 0)}, Through: event}
		for i := range 4 {
			r := &kgo.Record{Topic: out, Partition: int32(i), Value: []byte("never")}
			if i == k {
				r.Value = noise(4000)
			}
			b.Outputs = append(b.Outputs, r)
		}
		err := o.Apply(w.Ctx, b)
		require.ErrorIs(w, err, persistence.ErrRecordTooLarge, "record %d", k)
		require.NotErrorIs(w, err, persistence.ErrUnknownOutcome)
	}
	require.NoError(w, o.Write(w.Ctx, snapshot("k", "1", 0)))
	for i := range int32(4) {
		require.Empty(w, w.Read(out, i))
	}
	require.Equal(w, []string{"1"}, w.log(w.State, 0))
	require.Zero(w, w.Committed(0).Offset)
}

// What is advanced to moves the group's offset although nothing is written, and
// without anything to commit nothing is sent.
func advanceOnly(w *World) {
	n := w.NewNetwork()
	w.Produce(0, "a", "b", "c")
	m := w.StartKafka(false, []kgo.Opt{n.Opt()})
	o := m.Own()
	events := o.Events(w, 3)
	mark := n.Mark()
	require.NoError(w, o.Advance(events[1]))
	w.Eventually("the offset to be committed", func() bool { return w.Committed(0).Offset == 2 })
	require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Through: events[2]}))
	require.EqualValues(w, 3, w.Committed(0).Offset)
	require.NoError(w, o.Advance(events[0]), "going back changes nothing")
	require.Zero(w, n.Count(mark, kmsg.TxnOffsetCommit, kmsg.EndTxn, kmsg.Produce))

	mark = n.Mark()
	w.Eventually("some commit intervals to pass", func() bool { return n.Count(mark, kmsg.Heartbeat) >= 2 })
	require.Zero(w, n.Count(mark, Writes...))
	require.NoError(w, m.Stop())
	require.Zero(w, n.Count(mark, Writes...))
	require.EqualValues(w, 3, w.Committed(0).Offset)

	// A transaction's own offset and one without do not get in each other's way.
	o = w.Start(false).Own()
	require.EqualValues(w, 3, o.Resume())
	require.NoError(w, o.Write(w.Ctx, snapshot("k", "1", 2)))
	require.EqualValues(w, 3, w.Committed(0).Offset)
}

// batched queues writes behind one that is held, so that they share a
// transaction, and returns what each was told.
func (w *World) batched(n *Network, o *Owner, batches ...persistence.Batch) []error {
	w.Helper()
	end := n.Next(kmsg.EndTxn, Hold)
	first := make(chan error, 1)
	go func() { first <- o.Write(w.Ctx, snapshot("first", "1", 0)) }()
	end.Await()
	queued := make([]<-chan error, len(batches))
	for i, b := range batches {
		queued[i] = w.Queue(w.Ctx, o, b)
	}
	end.Release()
	require.NoError(w, Await(w, first))
	errs := make([]error, len(batches))
	for i, c := range queued {
		errs[i] = Await(w, c)
	}
	return errs
}

// A record over the limit is refused before it joins others, and before
// anything is sent.
func tooLarge(w *World) {
	n := w.NewNetwork()
	w.Produce(0, "a")
	m := w.StartKafka(false, []kgo.Opt{n.Opt()}, persistence.CommitInterval(time.Hour))
	o := m.Own()
	event := o.Events(w, 1)[0]
	mark := n.Mark()
	large := persistence.Batch{Snapshots: []persistence.Snapshot{{Key: []byte("large"), Value: noise(2 << 20)}}, Through: event}
	err := o.Apply(w.Ctx, large)
	require.ErrorIs(w, err, persistence.ErrRecordTooLarge)
	require.ErrorContains(w, err, `"large"`)
	require.Zero(w, n.Count(mark, Writes...))
	errs := w.batched(n, o, large, persistence.Batch{Snapshots: []persistence.Snapshot{snapshot("small", "1", 0)}})
	require.ErrorIs(w, errs[0], persistence.ErrRecordTooLarge)
	require.NoError(w, errs[1])
	require.Equal(w, map[string]string{"first": "1", "small": "1"}, w.Values(0))
	require.Zero(w, w.Committed(0).Offset, "the failed event is not passed")
}

// The same where only the broker finds it too large: the limit was lowered
// since the module asked for it.
func tooLargeForBroker(w *World) {
	n := w.NewNetwork()
	w.Produce(0, "a")
	m := w.StartKafka(false, []kgo.Opt{n.Opt()}, persistence.CommitInterval(time.Hour))
	o := m.Own()
	event := o.Events(w, 1)[0]
	limit := "2000"
	_, err := kadm.NewClient(w.Admin).AlterTopicConfigs(w.Ctx, []kadm.AlterConfig{{Name: "max.message.bytes", Value: &limit}}, w.State)
	require.NoError(w, err)
	probe := w.Client(kgo.TransactionalID(w.Prefix+"-probe"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	w.Eventually("the limit to be in force", func() bool {
		require.NoError(w, probe.BeginTransaction())
		err := probe.ProduceSync(w.Ctx, &kgo.Record{Topic: w.State, Value: noise(4000)}).FirstErr()
		require.NoError(w, probe.EndTransaction(w.Ctx, kgo.TryAbort))
		return errors.Is(err, kerr.MessageTooLarge)
	})
	var batches []persistence.Batch
	want := map[string]string{"first": "1"}
	for i := range 7 {
		s := snapshot(fmt.Sprint(i), "small", 0)
		batches = append(batches, persistence.Batch{Snapshots: []persistence.Snapshot{s}})
		if i != 4 {
			want[string(s.Key)] = "small"
		}
	}
	batches[4] = persistence.Batch{Snapshots: []persistence.Snapshot{{Key: []byte("4"), Value: noise(4000)}}, Through: event}
	for i, err := range w.batched(n, o, batches...) {
		if i == 4 {
			require.ErrorIs(w, err, persistence.ErrRecordTooLarge)
			require.NotErrorIs(w, err, persistence.ErrUnknownOutcome)
			continue
		}
		require.NoError(w, err, "write %d", i)
	}
	require.Equal(w, want, w.Values(0))
	require.Zero(w, w.Committed(0).Offset, "the failed event is not passed")
	require.NoError(w, o.Write(w.Ctx, snapshot("after", "1", 0)))
	require.NoError(w, o.Ctx.Err())
}

// A caller that stops waiting before a transaction took its write can be sure
// that it is not made.
func withdrawn(w *World) {
	n := w.NewNetwork()
	m := w.StartKafka(false, []kgo.Opt{n.Opt()})
	o := m.Own()
	end := n.Next(kmsg.EndTxn, Hold)
	first := make(chan error, 1)
	go func() { first <- o.Write(w.Ctx, snapshot("first", "1", 0)) }()
	end.Await()
	ctx, cancel := context.WithCancel(w.Ctx)
	second := w.Queue(ctx, o, persistence.Batch{Snapshots: []persistence.Snapshot{snapshot("second", "1", 0)}})
	cancel()
	err := Await(w, second)
	require.ErrorIs(w, err, context.Canceled)
	require.NotErrorIs(w, err, persistence.ErrUnknownOutcome)
	end.Release()
	require.NoError(w, Await(w, first))
	require.NoError(w, o.Write(w.Ctx, snapshot("third", "1", 0)))
	require.Equal(w, map[string]string{"first": "1", "third": "1"}, w.Values(0))
}

// Close takes no more events, flushes, commits, leaves the group, and closes
// the producers, in this order; everyone who waits is answered.
func closeInOrder(w *World) {
	n := w.NewNetwork()
	w.Produce(0, "a", "b")
	m := w.StartKafka(true, []kgo.Opt{n.Opt()}, persistence.CommitInterval(time.Hour))
	o := m.Own()
	events := o.Events(w, 2)
	end := n.Next(kmsg.EndTxn, Hold)
	results := make(chan error, 3)
	write := func(key string) { results <- o.Write(w.Ctx, snapshot(key, "1", 0)) }
	go write("in flight")
	end.Await()
	stopped := make(chan error, 1)
	go func() { stopped <- m.Stop() }()
	Await(w, o.Revoked)
	require.ErrorIs(w, o.Err, persistence.ErrClosed)
	w.Produce(0, "c")
	go write("queued")
	go write("queued too")
	require.NoError(w, o.Advance(events[1]))
	mark := n.Mark()
	end.Release()
	for range 3 {
		require.NoError(w, Await(w, results))
	}
	o.Release()
	require.NoError(w, Await(w, stopped))
	require.Empty(w, o.events, "no new records")
	require.Equal(w, map[string]string{"in flight": "1", "queued": "1", "queued too": "1"}, w.Values(0))
	require.EqualValues(w, 2, w.Committed(0).Offset)
	require.Zero(w, n.Open())
	last := -1
	log := n.Log(mark)
	for i, e := range log {
		switch kmsg.Key(e.Key()) {
		case kmsg.Produce, kmsg.EndTxn, kmsg.TxnOffsetCommit, kmsg.OffsetCommit:
			last = i
		case kmsg.LeaveGroup:
			require.Positive(w, last, "flushed before the group was left")
			last = len(log)
		}
	}
	require.Equal(w, len(log), last, "nothing is written after the group was left")
}

// Close without time returns at once, says what was left, and everyone who
// waits is told.
func closeShort(w *World) {
	n := w.NewNetwork()
	w.Produce(0, "a")
	m := w.StartKafka(true, []kgo.Opt{n.Opt()}, persistence.CommitInterval(time.Hour))
	o := m.Own()
	require.NoError(w, o.Advance(o.Events(w, 1)[0]))
	produce := n.All(kmsg.Produce, Hold)
	var results []<-chan error
	for i := range 3 {
		results = append(results, w.Queue(w.Ctx, o, persistence.Batch{Snapshots: []persistence.Snapshot{snapshot(fmt.Sprint(i), "1", 0)}}))
	}
	produce.Await()
	short, cancel := context.WithCancel(w.Ctx)
	cancel()
	var unflushed *persistence.UnflushedError
	require.ErrorAs(w, m.Module.Close(short), &unflushed)
	require.Equal(w, []persistence.Unflushed{{Partition: 0, Writes: 3, HandlerRunning: true, Committable: 1}}, unflushed.Partitions)
	for _, c := range results {
		err := Await(w, c)
		require.ErrorIs(w, err, persistence.ErrClosed)
		require.NotErrorIs(w, err, persistence.ErrUnknownOutcome, "nothing was to be ended yet")
	}
	require.Zero(w, n.Open())
}

// Whichever request of a transaction gets no answer, whether it arrived or not
// and whether kgo tries it again or not: the write is there, once.
func lostReplies(w *World) {
	n := w.NewNetwork()
	m := w.StartKafka(false, []kgo.Opt{n.Opt()}, persistence.CommitInterval(time.Hour))
	o := m.Own()
	keys := []kmsg.Key{kmsg.TxnOffsetCommit, kmsg.Produce, kmsg.EndTxn}
	if w.TransactionVersion < 2 {
		keys = append(keys, kmsg.AddOffsetsToTxn, kmsg.AddPartitionsToTxn)
	}
	var values []string
	for _, key := range keys {
		for _, do := range []Action{LoseReply, LoseRequest} {
			for _, final := range []bool{false, true} {
				value := fmt.Sprint(key.Name(), do, final)
				w.Produce(0, value)
				event := o.Events(w, 1)[0]
				f := n.Next(key, do)
				if final {
					f.Final()
				}
				require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Snapshots: []persistence.Snapshot{snapshot("k", value, event.Offset)}, Through: event}), value)
				require.Positive(w, f.Hits(), value)
				values = append(values, value)
				require.EqualValues(w, len(values), w.Committed(0).Offset, value)
			}
		}
	}
	require.Equal(w, values, w.log(w.State, 0))
	require.NoError(w, o.Ctx.Err())
}

// A member starts although one request, of whichever kind, gets no answer, and
// although kgo does not try those of the takeover again.
func lostInTakeover(w *World) {
	var last string
	for _, key := range []kmsg.Key{kmsg.ApiVersions, kmsg.Metadata, kmsg.FindCoordinator, kmsg.JoinGroup, kmsg.SyncGroup, kmsg.InitProducerID,
		kmsg.OffsetFetch, kmsg.ListOffsets, kmsg.Fetch, kmsg.Heartbeat} {
		for _, do := range []Action{LoseReply, LoseRequest} {
			n := w.NewNetwork()
			f := n.Next(key, do)
			switch key {
			case kmsg.InitProducerID, kmsg.OffsetFetch, kmsg.ListOffsets, kmsg.Fetch:
				f.Final()
			}
			m := w.StartKafka(false, []kgo.Opt{n.Opt()})
			o := m.Own()
			require.Equal(w, last, o.State["k"])
			last = fmt.Sprint(key.Name(), do)
			require.NoError(w, o.Write(w.Ctx, snapshot("k", last, 0)))
			f.Await()
			require.NoError(w, m.Stop())
		}
	}
}

// Below transaction.version 2, a request to end a transaction that is delayed
// in the network ends whatever transaction is open when it arrives: here one
// that its producer aborts. From 2 on the broker refuses it.
func lateEndTxn(w *World) {
	n := w.NewNetwork()
	p := w.Client(n.Opt(), kgo.TransactionalID(w.Prefix+"-naive"), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MaxVersions(wire.PinVersions(nil, int16(w.TransactionVersion))))
	produce := func(value string) {
		require.NoError(w, p.BeginTransaction())
		require.NoError(w, p.ProduceSync(w.Ctx, &kgo.Record{Topic: w.State, Key: []byte("k"), Value: []byte(value)}).FirstErr())
		p.PurgeTopicsFromProducing("") // kgo may not have stored the topic yet, and would end nothing
	}
	produce("1")
	require.NoError(w, p.EndTransaction(w.Ctx, kgo.TryCommit))
	late := n.Next(kmsg.EndTxn, Delay)
	produce("2")
	require.NoError(w, p.EndTransaction(w.Ctx, kgo.TryCommit), "tried again by kgo")
	produce("aborted")
	late.Deliver()
	_ = p.EndTransaction(w.Ctx, kgo.TryAbort)
	want := []string{"1", "2"}
	if w.TransactionVersion < 2 {
		want = append(want, "aborted")
	}
	require.Equal(w, want, w.log(w.State, 0))
}

// With the library, no request that is late touches a later transaction: it
// has a newer epoch by then.
func lateRequests(w *World) {
	n := w.NewNetwork()
	var values []string
	m := w.StartKafka(false, []kgo.Opt{n.Opt()})
	o := m.Own()
	write := func(value string) error {
		w.Produce(0, value)
		event := o.Events(w, 1)[0]
		values = append(values, value)
		return o.Apply(w.Ctx, persistence.Batch{Snapshots: []persistence.Snapshot{snapshot("k", value, event.Offset)}, Through: event})
	}
	keys := []kmsg.Key{kmsg.TxnOffsetCommit, kmsg.EndTxn}
	if w.TransactionVersion < 2 {
		keys = append(keys, kmsg.AddOffsetsToTxn)
	}
	for i, key := range keys {
		late := n.Next(key, Delay)
		require.NoError(w, write(fmt.Sprint(2*i)))
		require.Positive(w, late.Hits())
		w.Read(w.State, 0) // a broker may answer before it has written the marker
		before := w.End(w.State, 0)
		end := n.Next(kmsg.EndTxn, Hold)
		result := make(chan error, 1)
		go func() { result <- write(fmt.Sprint(2*i + 1)) }()
		end.Await()
		late.Deliver()
		require.Equal(w, before, w.Stable(w.State, 0), "a late %s ended the transaction", key.Name())
		end.Release()
		require.NoError(w, Await(w, result))
		w.Eventually("the offset is "+fmt.Sprint(2*i+2)+" after a late "+key.Name(), func() bool { return w.Committed(0).Offset == int64(2*i+2) })
	}
	require.Equal(w, values, w.log(w.State, 0))
}

// A commit without a transaction may be late too, and carries the generation
// that is still live.
func lateOffsetCommit(w *World) {
	n := w.NewNetwork()
	w.Produce(0, "a", "b", "c")
	m := w.StartKafka(false, []kgo.Opt{n.Opt()}, persistence.CommitInterval(time.Hour))
	o := m.Own()
	events := o.Events(w, 3)
	late := n.Next(kmsg.OffsetCommit, Delay)
	require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Through: events[0]}))
	require.Positive(w, late.Hits())
	require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Snapshots: []persistence.Snapshot{snapshot("k", "1", 1)}, Through: events[1]}))
	require.EqualValues(w, 2, w.Committed(0).Offset)
	late.Deliver()
	require.NoError(w, m.Stop())
	require.EqualValues(w, 2, w.Start(false).Own().Resume())
}

// An InitProducerID that is late takes the epoch in mid-transaction. The batch
// is settled and committed, once.
func lateInit(w *World) {
	n := w.NewNetwork()
	late := n.Next(kmsg.InitProducerID, Delay)
	m := w.StartKafka(false, []kgo.Opt{n.Opt()})
	o := m.Own()
	require.Positive(w, late.Hits())
	end := n.Next(kmsg.EndTxn, Hold)
	result := make(chan error, 1)
	go func() { result <- o.Write(w.Ctx, snapshot("k", "1", 0)) }()
	end.Await()
	late.Deliver()
	end.Release()
	require.NoError(w, Await(w, result))
	require.NoError(w, o.Write(w.Ctx, snapshot("k", "2", 0)))
	require.Equal(w, []string{"1", "2"}, w.log(w.State, 0))
	require.NoError(w, o.Ctx.Err())
}

// Outputs appear to a read_committed reader with the batch, not before it and
// not without it, in the partitions that the user's partitioner says.
func outputs(w *World) {
	out := w.outputTopic(3, nil)
	n := w.NewNetwork()
	w.Produce(0, "a")
	third := kgo.BasicConsistentPartitioner(func(string) func(*kgo.Record, int) int {
		return func(*kgo.Record, int) int { return 2 }
	})
	m := w.StartKafka(false, []kgo.Opt{n.Opt(), kgo.RecordPartitioner(third)})
	o := m.Own()
	batch := persistence.Batch{Snapshots: []persistence.Snapshot{snapshot("k", "1", 0)}, Through: o.Events(w, 1)[0],
		Outputs: []*kgo.Record{{Topic: out, Key: []byte("x"), Value: []byte("1")}, {Topic: out, Value: []byte("2")}}}
	end := n.Next(kmsg.EndTxn, Hold)
	result := make(chan error, 1)
	go func() { result <- o.Apply(w.Ctx, batch) }()
	end.Await()
	require.EqualValues(w, 2, w.End(out, 2))
	require.Zero(w, w.Stable(out, 2))
	end.Release()
	require.NoError(w, Await(w, result))
	require.Equal(w, []string{"1", "2"}, w.log(out, 2))

	m.cancel()
	Await(w, o.Revoked)
	require.NoError(w, m.Stop())
	require.ErrorIs(w, o.Apply(w.Ctx, batch), persistence.ErrClosed)
	require.Equal(w, []string{"1", "2"}, w.log(out, 2))
	require.Empty(w, w.Read(out, 0))
	require.Empty(w, w.Read(out, 1))
}

// Writes of many keys from many goroutines are all there afterwards.
func concurrentWrites(w *World) {
	const writes = 2000
	m := w.Start(false)
	o := m.Own()
	want := make(map[string]string, writes)
	var wg sync.WaitGroup
	for i := range writes {
		key, value := fmt.Sprint("key", i), fmt.Sprint("value", i)
		want[key] = value
		wg.Go(func() {
			if err := o.Write(w.Ctx, snapshot(key, value, 0)); err != nil {
				w.Errorf("%s: %v", key, err)
			}
		})
	}
	wg.Wait()
	require.Equal(w, want, w.Values(0))
	require.NoError(w, m.Stop())
	require.Equal(w, want, w.Start(false).Own().State)
}

package scenario

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
)

// Every ending of a snapshot log, under every state that a transaction on it can
// be in. A cell of this table is one snapshot partition:
//
//	            none  previous owner's  commits  aborts  never ends  hangs
//	ending 1     .           .             .        .        .         .
//	ending 2     .           .             .        .        .         .
//
// A row is a story. Its log is laid out in steps; one of them opens the state's
// transaction, below the ending itself, so that what is above it has to wait. A
// patient member then recovers all cells at once, the transactions that end do so
// under its eyes, and an impatient member recovers what never ends.
//
// What hangs needs brokers that can be brought to it: HangingEndings is that
// column, for the tests that have some.
var endingStories = append(everyEnding(),
	Story{Name: "DiagnoseSaysWhatTheProducerKnows", Tell: diagnosedLikeTheProducer, Partitions: 3},
	Story{Name: "RecoveryOfEveryCompressionInOneLog", Tell: everyCompression})

// logEndings are the rows. delivers is what a recovery delivers, in order; held
// is where the record of the state's transaction is among them.
var logEndings = []logEnding{
	{name: "ARecord",
		steps:    []layStep{put("a=1"), hold, put("b=1")},
		delivers: []string{"a=1", held, "b=1"}},
	{name: "ACommitMarker",
		steps:    []layStep{put("a=1"), hold, transaction(kgo.TryCommit, "b=1", "c=1")},
		delivers: []string{"a=1", held, "b=1", "c=1"}},
	{name: "AnAbortMarker",
		steps:    []layStep{put("a=1"), hold, transaction(kgo.TryAbort, "a=2", "b=2")},
		delivers: []string{"a=1", held}},
	{name: "ACommittedRecordBehindAbortedOnes",
		steps:    []layStep{transaction(kgo.TryAbort, "a=2"), hold, transaction(kgo.TryAbort, "b=2"), transaction(kgo.TryCommit, "a=1")},
		delivers: []string{held, "a=1"}},
	{name: "NothingButAbortedTransactions",
		steps:    []layStep{transaction(kgo.TryAbort, "a=2"), hold, transaction(kgo.TryAbort, "b=2"), transaction(kgo.TryAbort, "c=2")},
		delivers: []string{held}},
	{name: "NothingButControlBatches",
		steps:    []layStep{transaction(kgo.TryCommit, "a=1"), transaction(kgo.TryAbort, "a=2"), transaction(kgo.TryCommit, "b=1"), trim(1), hold},
		delivers: []string{held}},
	{name: "NothingEverWritten",
		steps:    []layStep{hold},
		delivers: []string{held}},
	{name: "NothingLeft",
		steps:    []layStep{put("a=1", "b=1"), transaction(kgo.TryCommit, "c=1"), trim(0), hold},
		delivers: []string{held}},
	// The last batch of a log is never compacted away, so that a gap ends in one. An
	// in-process cluster does not clean by itself: the root package has a test of
	// it.
	{name: "AGapThatCompactionLeft",
		cleaned:  true,
		steps:    []layStep{hold},
		delivers: []string{"a=1", "b=1", held}},
	// The recovery waits at a transaction that is deleted from the log's start.
	{name: "RecordsWhoseStartIsDeletedMeanwhile",
		steps:    []layStep{put("a=1"), bar, put("b=1"), hold, put("c=1")},
		before:   []string{"a=1"},
		during:   overtake,
		delivers: []string{held, "c=1"}},
	{name: "NothingBecauseItWasCutBelowTheTarget",
		elsewhere: "a lone broker loses no acknowledged records. By answers of an in-process cluster: the root package's truncation and lineage tests; by an unclean election: integration's three nodes"},
}

// transactionStates are the columns.
var transactionStates = []transactionState{
	{name: "none"},
	{name: "open by the previous owner, whose transactional id the takeover has", previousOwner: true},
	{name: "open by others, and commits while the recovery waits", foreign: true, ends: true, commits: kgo.TryCommit},
	{name: "open by others, and aborts while the recovery waits", foreign: true, ends: true, commits: kgo.TryAbort},
	{name: "open by others, and never ends", foreign: true, stalls: persistence.TransactionOpen},
}

var hangs = transactionState{name: "hangs", stalls: persistence.TransactionHanging}

type logEnding struct {
	name     string
	steps    []layStep
	delivers []string
	cleaned  bool // compacted before the steps are laid; what is delivered are the newest of each key
	// during makes a recovery start over, once it has delivered before.
	before    []string
	during    func(c *endingCell)
	elsewhere string // why it cannot be made here, and where it is
}

type transactionState struct {
	name          string
	previousOwner bool
	foreign       bool
	ends          bool
	commits       kgo.TransactionEndTry
	stalls        persistence.Condition // what stops it for good; ConditionUnknown: nothing
}

// endingCell is an ending under a state, on one partition.
type endingCell struct {
	logEnding
	transactionState
	*World
	partition int32
	hang      func(partition int32) // writes a record of a hanging transaction

	holder *kgo.Client // of the state's transaction
	at     int64       // where that is
	barred *kgo.Client // has another one open, until during is over
	target int64       // the high watermark when all is laid
}

// held stands for the record of the state's transaction.
const held = "held=1"

// layStep writes to the cell's log.
type layStep func(c *endingCell)

// put writes records, each a batch of its own.
func put(records ...string) layStep {
	return func(c *endingCell) {
		for _, r := range records {
			c.write(c.Admin, r)
		}
	}
}

// transaction is one that is over.
func transaction(how kgo.TransactionEndTry, records ...string) layStep {
	return func(c *endingCell) {
		f := c.Foreign(fmt.Sprintf("laid%d-%d", c.partition, c.end())).Client
		c.begin(f, records...)
		c.finish(f, how, c.partition)
	}
}

// hold opens the state's transaction.
func hold(c *endingCell) {
	c.at = c.end()
	switch {
	case c.previousOwner:
		c.holder = c.Client(kgo.TransactionalID(fmt.Sprintf("%s-snapshot-%d", c.Prefix, c.partition)), kgo.TransactionTimeout(5*time.Minute),
			kgo.RecordPartitioner(kgo.ManualPartitioner()))
	case c.foreign:
		c.holder = c.Foreign(fmt.Sprint("holds", c.partition)).Client
	case c.stalls == persistence.TransactionHanging:
		c.hang(c.partition)
		return
	default:
		return
	}
	c.begin(c.holder, held)
}

// bar opens a transaction that a recovery waits at first.
func bar(c *endingCell) {
	c.barred = c.Foreign(fmt.Sprint("bars", c.partition)).Client
	c.begin(c.barred, "barred=1")
}

// trim deletes everything but the last few offsets.
func trim(but int64) layStep {
	return func(c *endingCell) { c.DeleteRecords(c.State, c.partition, c.end()-but) }
}

// overtake deletes what a recovery has read, and the transaction that it waits
// at.
func overtake(c *endingCell) {
	c.DeleteRecords(c.State, c.partition, c.at)
	c.finish(c.barred, kgo.TryAbort, c.partition)
}

func (c *endingCell) begin(cl *kgo.Client, records ...string) {
	c.Helper()
	require.NoError(c, cl.BeginTransaction())
	c.write(cl, records...)
}

func (c *endingCell) write(cl *kgo.Client, records ...string) {
	c.Helper()
	var pairs []string
	for _, r := range records {
		key, value, _ := strings.Cut(r, "=")
		pairs = append(pairs, key, value)
	}
	require.NoError(c, cl.ProduceSync(c.Ctx, c.records(c.partition, pairs...)...).FirstErr())
}

// finish ends a transaction, and waits until readers of the partitions see its
// marker, which nobody else writes to meanwhile. Others may stay open, unlike with
// End.
func (w *World) finish(cl *kgo.Client, how kgo.TransactionEndTry, partitions ...int32) {
	w.Helper()
	var before []int64
	for _, id := range partitions {
		before = append(before, w.End(w.State, id))
	}
	cl.PurgeTopicsFromProducing("") // kgo may not have stored the topic yet, and would end nothing
	require.NoError(w, cl.EndTransaction(w.Ctx, how))
	for i, id := range partitions {
		w.Eventually("the transaction's marker is written", func() bool { return w.End(w.State, id) > before[i] })
	}
}

// ownOnce has an owner go through one event of each partition without a snapshot.
// The takeovers that follow find its commits, and leave the reading to Recover.
func (w *World) ownOnce() {
	w.Helper()
	for id := range w.Partitions {
		w.Produce(id, "event")
	}
	m := w.Start(false)
	for _, o := range m.OwnAll(int(w.Partitions)) {
		require.NoError(w, o.Advance(o.Events(w, 1)[0]))
	}
	require.NoError(w, m.Stop())
}

func (c *endingCell) end() int64 { return c.End(c.State, c.partition) }

// stuck reports whether no recovery can be done.
func (c *endingCell) stuck() bool { return c.stalls != persistence.ConditionUnknown }

// below are the records in front of the one of the state's transaction.
func (c *endingCell) below() []string {
	return c.delivers[:slices.Index(c.delivers, held)]
}

// want are the records that a recovery delivers before it is done, or stalls.
func (c *endingCell) want() []string {
	var want []string
	for _, r := range c.delivers {
		switch {
		case r != held:
			want = append(want, r)
		case c.stuck():
			return want
		case c.ends && c.commits == kgo.TryCommit:
			want = append(want, r)
		}
	}
	return want
}

func everyEnding() (all []Story) {
	for _, e := range logEndings {
		if e.elsewhere != "" {
			continue
		}
		all = append(all, Story{Name: "RecoveryUnderEachTransactionOfALogThatEndsIn/" + e.name, Partitions: int32(len(transactionStates)), Cleaner: e.cleaned,
			Tell: func(w *World) {
				if e.cleaned {
					w.cleanedState()
				}
				var cells []*endingCell
				for i, s := range transactionStates {
					cells = append(cells, &endingCell{logEnding: e, transactionState: s, World: w, partition: int32(i)})
				}
				w.recoverCells(cells)
			}})
	}
	return all
}

// HangingEndings is the column of the table for a transaction that hangs: the
// world has a partition for each ending. hang writes the record "held"="1" to a
// snapshot partition, in such a transaction. The command that the diagnosis gives
// is carried out, and the next recovery is done.
func HangingEndings(w *World, hang func(partition int32)) {
	var cells []*endingCell
	for i, e := range endingsOfHanging() {
		cells = append(cells, &endingCell{logEnding: e, transactionState: hangs, World: w, partition: int32(i), hang: hang})
	}
	for _, c := range w.recoverCells(cells) {
		d := c.err.Diagnosis
		require.True(w, d.Transactions[0].Hanging, c)
		require.Equal(w, []string{fmt.Sprintf(abortCommand, strings.Join(w.Brokers, ","), w.State, c.cell.partition, c.cell.at)}, d.Commands)
		w.runAbort(d.Commands[0])
	}
	w.Settle()
	for _, c := range cells {
		c.stalls = persistence.ConditionUnknown // its record is never seen
	}
	m := w.drain(cells)
	for _, c := range cells {
		m.done(c)
	}
	require.NoError(w, m.Stop())
}

const abortCommand = "kafka-transactions.sh --bootstrap-server %s abort --topic %s --partition %d --start-offset %d"

// runAbort does what Apache Kafka's tool does at the command: it looks up whose
// transaction begins at the offset, and writes its marker.
func (w *World) runAbort(command string) {
	w.Helper()
	var brokers, topic string
	var partition int32
	var start int64
	_, err := fmt.Sscanf(command, abortCommand, &brokers, &topic, &partition, &start)
	require.NoError(w, err)
	adm := kadm.NewClient(w.Admin)
	at := make(kadm.TopicsSet)
	at.Add(topic, partition)
	described, err := adm.DescribeProducers(w.Ctx, at)
	require.NoError(w, err)
	producers := described[topic].Partitions[partition].ActiveProducers.Sorted()
	i := slices.IndexFunc(producers, func(p kadm.DescribedProducer) bool { return p.CurrentTxnStartOffset == start })
	require.GreaterOrEqual(w, i, 0, "%s: no transaction begins there: %v", command, producers)
	p := producers[i]
	rs, err := adm.WriteTxnMarkers(w.Ctx, kadm.TxnMarkers{ProducerID: p.ProducerID, ProducerEpoch: p.ProducerEpoch,
		CoordinatorEpoch: max(p.CoordinatorEpoch, 0), Topics: at})
	require.NoError(w, err)
	require.NoError(w, rs[p.ProducerID].Topics[topic].Partitions[partition].Err)
}

// HangingPartitions is how many partitions the world of HangingEndings has.
func HangingPartitions() int32 { return int32(len(endingsOfHanging())) }

// endingsOfHanging are those that share a topic: not the one that needs a topic
// which is cleaned at once.
func endingsOfHanging() []logEnding {
	return slices.DeleteFunc(slices.Clone(logEndings), func(e logEnding) bool { return e.elsewhere != "" || e.cleaned })
}

// cleanedState makes a snapshot topic in each of whose partitions compaction has
// taken something away, and "a"="1" and "b"="1" are what is left.
func (w *World) cleanedState() {
	w.State += "-cleaned"
	w.CreateTopic(w.State, w.Partitions, map[string]string{"cleanup.policy": "compact", "segment.ms": "200", "segment.bytes": "1048576",
		"min.cleanable.dirty.ratio": "0.0", "delete.retention.ms": "0", "min.compaction.lag.ms": "0", "max.compaction.lag.ms": "500"})
	written := 0
	w.Eventually("the cleaner has taken records away everywhere", func() bool {
		written += 2
		for id := range w.Partitions {
			require.NoError(w, w.Admin.ProduceSync(w.Ctx, w.records(id, "a", "1", "b", "1")...).FirstErr())
		}
		for id := range w.Partitions {
			if len(w.Read(w.State, id)) == written {
				time.Sleep(100 * time.Millisecond) // a segment is rolled by a later write, and only a rolled one is cleaned
				return false
			}
		}
		return true
	})
}

// recoverCells lays the cells, and recovers them. The result are those that
// stalled.
func (w *World) recoverCells(cells []*endingCell) []stalledCell {
	w.Helper()
	w.ownOnce()
	for _, c := range cells {
		for _, step := range c.steps {
			step(c)
		}
		c.target = c.end()
	}

	patient := w.drain(cells)
	for _, c := range cells {
		if c.during != nil {
			patient.reaches(c, c.before)
			c.during(c)
			w.Eventually(fmt.Sprintf("%s: the receiver is told to forget", c), func() bool { return patient.forgot(c) == 1 })
		}
		if c.ends {
			patient.waits(c)
			c.finish(c.holder, c.commits, c.partition)
		}
		if c.stuck() {
			continue
		}
		got := patient.done(c)
		want := c.target
		if c.previousOwner {
			want++ // the marker of the abort, which the takeover has waited for
		}
		require.Equal(w, want, got.Target, c)
		require.Equal(w, patient.forgot(c), got.Restarts, c)
	}
	stuck := slices.DeleteFunc(slices.Clone(cells), func(c *endingCell) bool { return !c.stuck() })
	for _, c := range stuck {
		patient.waits(c)
	}
	require.NoError(w, patient.Stop())

	// It bounds the takeovers too, which take their time on a machine that is busy.
	impatient := w.drain(stuck, persistence.RecoveryStallTimeout(5*time.Second))
	var stalled []stalledCell
	for _, c := range stuck {
		stalled = append(stalled, stalledCell{c, impatient.stalled(c)})
	}
	require.NoError(w, impatient.Stop())

	diagnoses, err := persistence.Diagnose(w.Ctx, w.Admin, w.State)
	require.NoError(w, err)
	for _, c := range cells {
		want := persistence.Readable
		if c.stuck() {
			want = c.stalls
		}
		require.Equal(w, want, diagnoses[c.partition].Condition, "%s: %v", c, diagnoses[c.partition])
	}
	return stalled
}

type stalledCell struct {
	cell *endingCell
	err  *persistence.RecoveryStalledError
}

func (c *endingCell) String() string {
	return fmt.Sprintf("partition %d: a log that ends in %s, a transaction that is %s", c.partition, c.logEnding.name, c.transactionState.name)
}

// drain is a member that recovers cells and tells what it got.
type drain struct {
	*Member
	w     *World
	ended map[int32]chan drained
	mu    struct {
		sync.Mutex
		begun   map[int32]bool
		got     map[int32][]string // since the last order to forget
		forgets map[int32]int
	}
}

// drained is how a recovery ended.
type drained struct {
	persistence.Recovered
	err error
}

func (w *World) drain(cells []*endingCell, opts ...persistence.Option) *drain {
	w.Helper()
	d := &drain{w: w, ended: make(map[int32]chan drained)}
	d.mu.begun, d.mu.got, d.mu.forgets = make(map[int32]bool), make(map[int32][]string), make(map[int32]int)
	for _, c := range cells {
		d.ended[c.partition] = make(chan drained, 1)
	}
	d.Member = w.Handle(d.handle, nil, append(opts, persistence.RecoveryConcurrency(int(w.Partitions)), persistence.WithTrace(persistence.Trace{
		RecoveryStarted: func(i persistence.RecoveryInfo) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.mu.begun[i.Partition] = true
		},
	}))...)
	return d
}

func (d *drain) handle(ctx context.Context, p *persistence.Partition) error {
	if ended, ok := d.ended[p.ID()]; ok {
		got, err := p.Recover(ctx, func(s persistence.Snapshot) error {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.mu.got[p.ID()] = append(d.mu.got[p.ID()], fmt.Sprintf("%s=%s", s.Key, s.Value))
			return nil
		}, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.mu.got[p.ID()] = nil
			d.mu.forgets[p.ID()]++
		})
		ended <- drained{got, err}
	}
	for {
		if _, err := p.Poll(ctx); err != nil {
			return err
		}
	}
}

func (d *drain) delivered(c *endingCell) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	got := slices.Clone(d.mu.got[c.partition])
	if c.cleaned { // how much of the older records is still there is the cleaner's affair
		slices.Sort(got)
		got = slices.Compact(got)
	}
	return got
}

func (d *drain) forgot(c *endingCell) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.forgets[c.partition]
}

// reaches waits until a recovery has begun and delivered exactly these records.
func (d *drain) reaches(c *endingCell, records []string) {
	d.w.Helper()
	d.w.Eventually(fmt.Sprintf("%s: recovered as far as %v", c, records), func() bool {
		d.mu.Lock()
		begun := d.mu.begun[c.partition]
		d.mu.Unlock()
		return begun && slices.Equal(records, d.delivered(c))
	})
}

// waits checks that a recovery gets to the state's transaction, and not past it.
func (d *drain) waits(c *endingCell) {
	d.w.Helper()
	d.reaches(c, c.below())
	select {
	case got := <-d.ended[c.partition]:
		d.w.Fatalf("%s: the recovery ended before the transaction: %+v", c, got)
	default:
	}
}

// done waits for a recovery that succeeds, and checks what it delivered.
func (d *drain) done(c *endingCell) persistence.Recovered {
	d.w.Helper()
	got := Await(d.w, d.ended[c.partition])
	require.NoError(d.w, got.err, c)
	require.Equal(d.w, c.want(), d.delivered(c), c)
	return got.Recovered
}

// stalled waits for a recovery that stalls where the state's transaction begins.
func (d *drain) stalled(c *endingCell) *persistence.RecoveryStalledError {
	d.w.Helper()
	got := Await(d.w, d.ended[c.partition])
	var stalled *persistence.RecoveryStalledError
	require.ErrorAs(d.w, got.err, &stalled, c)
	require.Equal(d.w, c.want(), d.delivered(c), c)
	require.Equal(d.w, c.at, stalled.Position, c)
	require.Equal(d.w, c.at, stalled.Diagnosis.LastStableOffset, c)
	require.Equal(d.w, stalled.Diagnosis.HighWatermark, stalled.Target, c)
	require.Equal(d.w, c.stalls, stalled.Diagnosis.Condition, "%s: %v", c, stalled)
	require.Len(d.w, stalled.Diagnosis.Transactions, 1, c)
	require.Equal(d.w, c.at, stalled.Diagnosis.Transactions[0].StartOffset, c)
	return stalled
}

// The diagnosis of an open transaction holds what its producer, its coordinator
// and the clock say. Its neighbours are another transaction behind the first, and
// a partition that can be read.
func diagnosedLikeTheProducer(w *World) {
	began := time.Now()
	first, second := w.Foreign("first"), w.Foreign("second")
	first.BeginOn(0, 2)
	second.BeginOn(0)
	w.Put("upper", "1")

	all, err := persistence.Diagnose(w.Ctx, w.Admin, w.State)
	require.NoError(w, err)
	require.Len(w, all, 3)
	coordinators := kadm.NewClient(w.Admin).FindTxnCoordinators(w.Ctx, first.ID, second.ID)
	require.NoError(w, coordinators.Error())
	leader := func(partition int32) int32 {
		topics, err := kadm.NewClient(w.Admin).ListTopics(w.Ctx, w.State)
		require.NoError(w, err)
		return topics[w.State].Partitions[partition].Leader
	}
	for id, open := range [][]*Foreign{{first, second}, nil, {first}} {
		d := all[id]
		require.Equal(w, w.State, d.Topic)
		require.EqualValues(w, id, d.Partition)
		require.Equal(w, leader(int32(id)), d.Leader)
		require.EqualValues(w, 0, d.LogStart)
		require.EqualValues(w, 0, d.LastStableOffset)
		require.Equal(w, w.End(w.State, int32(id)), d.HighWatermark)
		require.Equal(w, d.HighWatermark, d.Target)
		require.EqualValues(w, -1, d.LostFrom)
		require.Empty(w, d.Notes)
		require.Len(w, d.Transactions, len(open))
		if len(open) == 0 {
			require.Equal(w, persistence.Readable, d.Condition)
			continue
		}
		require.Equal(w, persistence.TransactionOpen, d.Condition)
		for i, f := range open {
			t := d.Transactions[i]
			producer, epoch, err := f.ProducerID(w.Ctx)
			require.NoError(w, err)
			require.Equal(w, producer, t.ProducerID)
			require.Equal(w, epoch, t.ProducerEpoch)
			require.EqualValues(w, i, t.StartOffset)
			require.Equal(w, f.ID, t.TransactionalID)
			require.Equal(w, coordinators[f.ID].NodeID, t.Coordinator)
			require.Equal(w, "Ongoing", t.State)
			require.False(w, t.Hanging)
			for _, at := range []time.Time{t.Started, t.LastWritten} {
				require.WithinRange(w, at, began.Add(-time.Second), time.Now().Add(time.Second))
			}
			require.Equal(w, 5*time.Minute, t.Timeout)
			require.Equal(w, t.Started.Add(5*time.Minute), t.Expires())
		}
		require.Contains(w, d.Finding, first.ID)
		require.Equal(w, []string{fmt.Sprintf("kafka-transactions.sh --bootstrap-server %s forceTerminateTransaction --transactionalId %s",
			strings.Join(w.Brokers, ","), first.ID)}, d.Commands)
	}
	some, err := persistence.Diagnose(w.Ctx, w.Admin, w.State, 2, 1)
	require.NoError(w, err)
	require.Equal(w, []int32{2, 1}, []int32{some[0].Partition, some[1].Partition})

	w.finish(first.Client, kgo.TryCommit, 0, 2)
	some, err = persistence.Diagnose(w.Ctx, w.Admin, w.State)
	require.NoError(w, err)
	require.Equal(w, persistence.Readable, some[2].Condition)
	require.Equal(w, second.ID, some[0].Transactions[0].TransactionalID)
	second.End(kgo.TryAbort)

	_, err = persistence.Diagnose(w.Ctx, w.Admin, w.State, 1, 3)
	require.EqualError(w, err, fmt.Sprintf("persistence: diagnosing topic %s: it has no partition 3, only 0 to 2", w.State))
	_, err = persistence.Diagnose(w.Ctx, w.Admin, w.State+"-missing")
	require.ErrorIs(w, err, kerr.UnknownTopicOrPartition)
}

// Batches of every compression lie in one log, several records in each, and
// aborted ones in between.
func everyCompression(w *World) {
	w.ownOnce()
	codecs := []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()}
	var committed, aborted []*kgo.Client
	for i, codec := range codecs {
		opts := []kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(10 * time.Millisecond)}
		committed = append(committed, w.Client(opts...))
		aborted = append(aborted, w.Client(append(opts, kgo.TransactionalID(fmt.Sprint(w.Input, "-aborts-", i)))...))
	}
	var want []string
	for round := range 3 {
		for i := range codecs {
			var rs, lost []*kgo.Record
			for n := range 20 {
				value := fmt.Sprintf("%d-%d-%d-%s", round, i, n, strings.Repeat("x", 500))
				rs = append(rs, &kgo.Record{Topic: w.State, Key: fmt.Append(nil, n), Value: []byte(value)})
				lost = append(lost, &kgo.Record{Topic: w.State, Key: fmt.Append(nil, n), Value: []byte("aborted " + value)})
				want = append(want, value)
			}
			require.NoError(w, aborted[i].BeginTransaction())
			require.NoError(w, aborted[i].ProduceSync(w.Ctx, lost...).FirstErr())
			require.NoError(w, committed[i].ProduceSync(w.Ctx, rs...).FirstErr())
			(&Foreign{Client: aborted[i], w: w}).End(kgo.TryAbort)
		}
	}
	compressions := make(map[uint8]int)
	for _, r := range w.Read(w.State, 0) {
		compressions[r.Attrs.CompressionType()]++
	}
	require.Equal(w, map[uint8]int{0: 60, 1: 60, 2: 60, 3: 60, 4: 60}, compressions, "records that were compressed in each way")

	var got []string
	m := w.Handle(func(ctx context.Context, p *persistence.Partition) error {
		if _, err := p.Recover(ctx, func(s persistence.Snapshot) error { got = append(got, string(s.Value)); return nil }, func() { got = nil }); err != nil {
			return err
		}
		return ErrDone
	}, nil)
	require.ErrorIs(w, m.Wait(), ErrDone)
	require.Equal(w, want, got)
}

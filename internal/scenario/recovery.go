package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/format"
)

// What a recovery delivers, when it may end, and where the input resumes.
var recoveryStories = slices.Concat([]Story{
	{Name: "RecoveryWaitsOutAForeignTransactionThatCommits", Tell: foreignTransaction(kgo.TryCommit)},
	{Name: "RecoveryWaitsOutAForeignTransactionThatAborts", Tell: foreignTransaction(kgo.TryAbort)},
	{Name: "RecoveryLeavesOutWhatIsAppendedAfterItBegan", Tell: appendedAfterTheTarget},
	{Name: "RecoveryDeliversDeletionsAndSkipsKeylessRecords", Tell: tombstonesAndKeyless},
	{Name: "RecoveryReturnsHeadersAndSourceOffsets", Tell: headersComeBack},
	{Name: "RecoveryReadsWhatEveryClientMayWrite", Tell: everyEncoding},
	{Name: "RecoveryIncludesWhatItsOwnHandleWrote", Tell: recoverAgain},
	{Name: "RecoveryEndsWithItsReceiverAndItsContext", Tell: recoveryEndsEarly},
	{Name: "RecoveryBeginsAtALogStartAboveZero", Tell: logStartAboveZero},
	{Name: "RecoveryStartsOverWhenTheLogStartOvertakesIt", Tell: logStartOvertakes},
	{Name: "RecoveryNamesATransactionThatNeverEnds", Tell: func(w *World) { w.Seed(); transactionNeverEnds(w) }},
	{Name: "TakeoverNamesATransactionThatNeverEnds", Tell: transactionNeverEnds},
	{Name: "RecoveryOfARecreatedTopicFails", Tell: recreatedInMidRecovery},
	{Name: "InputResumesFromSnapshotsWhenTheGroupsOffsetsAreGone", Tell: resumeFromSnapshots, Partitions: 3},
	{Name: "InputStartsWhereTheStartPolicySays", Tell: startPolicies},
	{Name: "TakeoverRefusesASnapshotTopicThatWasRecreated", Tell: recreatedBetweenRuns},
	{Name: "TakeoverRightAfterAWriteIsNotTakenForATruncation", Tell: takeoverRightAfterAWrite},
	{Name: "RecoveryOverAGap", Tell: func(w *World) { RecoverOverAGap(w, nil) }, Cleaner: true},
}, recoveriesRebalanced())

// Somebody else's open transaction pins the last stable offset below a snapshot
// that is committed: recovery waits until it is over, and has that snapshot.
func foreignTransaction(end kgo.TransactionEndTry) func(w *World) {
	return func(w *World) {
		w.Seed()
		f := w.Foreign("migration")
		f.Begin("open", "1")
		w.Put("upper", "1")

		book := w.Book()
		var resolved, early atomic.Bool
		m := w.Start(false, persistence.Logger(book.Logger()), persistence.WithTrace(persistence.Trace{
			RecoveryDone: func(persistence.RecoveryInfo) { early.Store(early.Load() || !resolved.Load()) },
		}))
		w.Eventually("a warning names the transaction", func() bool {
			return book.Has("level=WARN", `condition="transaction open"`, f.ID)
		})
		resolved.Store(true)
		f.End(end)

		want := map[string]string{"seed": "0", "upper": "1"}
		if end == kgo.TryCommit {
			want["open"] = "1"
		}
		o := m.Own()
		require.False(w, early.Load(), "the recovery ended before the transaction did")
		require.Equal(w, want, o.State)
		require.NoError(w, m.Stop())
	}
}

// RecoverOverAGap is the story of offsets that compaction took away. compact
// runs the log cleaner; nil waits for the cluster's own.
func RecoverOverAGap(w *World, compact func()) {
	w.State += "-cleaned"
	w.CreateTopic(w.State, 1, map[string]string{"cleanup.policy": "compact", "segment.ms": "200", "segment.bytes": "1048576",
		"min.cleanable.dirty.ratio": "0.0", "delete.retention.ms": "0", "min.compaction.lag.ms": "0", "max.compaction.lag.ms": "500"})
	written := 0
	put := func(value string) {
		written += 3
		w.Put("a", value, "b", value, "c", value)
		f := w.Foreign("migration")
		f.Begin("a", value)
		f.End(kgo.TryAbort)
	}
	for i := range 5 {
		put(fmt.Sprint(i))
	}
	if compact != nil {
		compact()
	}
	// A segment is rolled by a later write, and only a rolled one is cleaned.
	w.Eventually("the cleaner has taken records away", func() bool {
		if len(w.Read(w.State, 0)) < written {
			return true
		}
		time.Sleep(100 * time.Millisecond)
		put("5")
		return false
	})
	want := w.Values(0)
	end := w.End(w.State, 0)
	m := w.Start(false)
	o := m.Own()
	require.Equal(w, want, o.State)
	require.Len(w, o.State, 3)
	require.Equal(w, end, o.Recovered.Target)
	require.Less(w, o.Recovered.Records, end)
	require.NoError(w, m.Stop())
}

// Somebody appends while a recovery runs, so that its fetches return records
// past the target. It ends, and delivers none of those.
func appendedAfterTheTarget(w *World) {
	w.Seed()
	w.Put("a", "1")
	target := w.End(w.State, 0)
	var appended error
	m := w.Start(false, persistence.WithTrace(persistence.Trace{
		RecoveryStarted: func(persistence.RecoveryInfo) {
			appended = w.Admin.ProduceSync(w.Ctx, w.records(0, "a", "2", "late", "1")...).FirstErr()
		},
	}))
	o := m.Own()
	require.NoError(w, appended)
	require.Equal(w, target, o.Recovered.Target)
	require.Equal(w, map[string]string{"seed": "0", "a": "1"}, o.State)
	require.NoError(w, m.Stop())
}

// A tombstone deletes its key. A record without a key, left from a time when
// the topic was not compacted, is counted and not delivered.
func tombstonesAndKeyless(w *World) {
	w.State += "-once-deleting"
	w.CreateTopic(w.State, 1, map[string]string{"cleanup.policy": "delete"})
	w.Put("a", "1", "b", "1")
	require.NoError(w, w.Admin.ProduceSync(w.Ctx,
		&kgo.Record{Topic: w.State, Value: []byte("no key")},
		&kgo.Record{Topic: w.State, Key: []byte("a")}).FirstErr())
	compact := "compact"
	_, err := kadm.NewClient(w.Admin).AlterTopicConfigs(w.Ctx, []kadm.AlterConfig{{Name: "cleanup.policy", Value: &compact}}, w.State)
	require.NoError(w, err)
	w.Eventually("the brokers know of the change", func() bool { return w.setting(w.State, "cleanup.policy") == compact })

	m := w.Start(false)
	o := m.Own()
	require.Equal(w, map[string]string{"b": "1"}, o.State)
	require.EqualValues(w, 1, o.Recovered.Keyless)
	require.EqualValues(w, 1, o.Recovered.Tombstones)
	require.EqualValues(w, 3, o.Recovered.Records)
	require.NoError(w, o.Delete(w.Ctx, []byte("b"), -1))
	require.NoError(w, m.Stop())

	m = w.Start(false)
	o = m.Own()
	require.Empty(w, o.State)
	require.EqualValues(w, 2, o.Recovered.Tombstones)
	require.NoError(w, m.Stop())
}

// A user's headers come back without the library's own; a record that another
// program wrote has no source offset.
func headersComeBack(w *World) {
	w.Produce(0, "1", "2", "3", "4", "5")
	headers := []kgo.RecordHeader{{Key: "codec", Value: []byte("json")}, {Key: "codec", Value: nil}}
	m := w.Start(false)
	o := m.Own()
	require.NoError(w, o.Write(w.Ctx,
		persistence.Snapshot{Key: []byte("mine"), Value: []byte("1"), SourceOffset: 4, Headers: headers},
		persistence.Snapshot{Key: []byte("unknown"), Value: []byte("1"), SourceOffset: -1}))
	require.NoError(w, m.Stop())
	w.Settle()
	w.Put("theirs", "1")

	got := make(map[string]persistence.Snapshot)
	m = w.Handle(func(ctx context.Context, p *persistence.Partition) error {
		if _, err := p.Recover(ctx, func(s persistence.Snapshot) error { got[string(s.Key)] = s; return nil }, func() {}); err != nil {
			return err
		}
		return ErrDone
	}, nil)
	require.ErrorIs(w, m.Wait(), ErrDone)
	require.Equal(w, headers, got["mine"].Headers)
	require.EqualValues(w, 4, got["mine"].SourceOffset)
	require.EqualValues(w, -1, got["unknown"].SourceOffset)
	require.Empty(w, got["unknown"].Headers)
	require.EqualValues(w, -1, got["theirs"].SourceOffset)
	require.EqualValues(w, 3, got["theirs"].LogOffset, "two records and their marker come before it")
	require.WithinDuration(w, time.Now(), got["theirs"].Timestamp, 10*time.Minute)
}

// Other programs compress as they like, and a record may be larger than what is
// fetched at a time.
func everyEncoding(w *World) {
	w.State += "-large"
	w.CreateTopic(w.State, 1, map[string]string{"cleanup.policy": "compact", "max.message.bytes": "7000000"})
	want := map[string]string{"large": strings.Repeat("0123456789", 500_000)}
	for name, codec := range map[string]kgo.CompressionCodec{"large": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()} {
		if name != "large" {
			want[name] = strings.Repeat(name, 1000)
		}
		cl := w.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(codec), kgo.ProducerBatchMaxBytes(6_000_000))
		require.NoError(w, cl.ProduceSync(w.Ctx, w.records(0, name, want[name])...).FirstErr())
	}
	m := w.Start(false)
	require.Equal(w, want, m.Own().State)
	require.NoError(w, m.Stop())
}

// A handler that recovers again, having lost its state, finds its own writes.
func recoverAgain(w *World) {
	m := w.Start(false)
	o := m.Own()
	for i := range 5 {
		require.NoError(w, o.Write(w.Ctx, snapshots("k", fmt.Sprint(i))...))
		var got []string
		recovered, err := o.Recover(w.Ctx, func(s persistence.Snapshot) error { got = append(got, string(s.Value)); return nil }, func() { got = nil })
		require.NoError(w, err)
		require.EqualValues(w, i+1, recovered.Records)
		require.Equal(w, fmt.Sprint(i), got[i])
	}
	require.NoError(w, m.Stop())
}

// The receiver's error and the caller's context end a recovery, and nothing
// else: the partition is still owned.
func recoveryEndsEarly(w *World) {
	w.Put("a", "1", "b", "1")
	m := w.Start(false)
	o := m.Own()
	n := 0
	_, err := o.Recover(w.Ctx, func(persistence.Snapshot) error { n++; return ErrDone }, func() {})
	require.ErrorIs(w, err, ErrDone)
	require.Equal(w, 1, n)

	why := errors.New("no more time")
	ctx, cancel := context.WithCancelCause(w.Ctx)
	_, err = o.Recover(ctx, func(persistence.Snapshot) error { cancel(why); return nil }, func() {})
	require.ErrorIs(w, err, why)

	_, err = o.Recover(w.Ctx, nil, nil)
	require.ErrorContains(w, err, "both functions are required")
	require.NoError(w, o.Write(w.Ctx, snapshots("a", "2")...))
	require.NoError(w, m.Stop())
	_, err = o.Recover(w.Ctx, func(persistence.Snapshot) error { return nil }, func() {})
	require.ErrorIs(w, err, persistence.ErrClosed)
}

// What was deleted from the log's start before a recovery began is not missed.
func logStartAboveZero(w *World) {
	w.Put("a", "1", "b", "1", "c", "1")
	w.DeleteRecords(w.State, 0, 2)
	m := w.Start(false)
	o := m.Own()
	require.Equal(w, map[string]string{"c": "1"}, o.State)
	require.Zero(w, o.Recovered.Restarts)
	require.NoError(w, m.Stop())
}

// Records that a recovery has not reached yet are deleted in mid-drain. What
// it delivered so far may be gone too: the receiver forgets and gets all anew.
func logStartOvertakes(w *World) {
	w.Seed()
	last := w.PutMuch(24)
	var log []string
	var got persistence.Recovered
	m := w.Handle(func(ctx context.Context, p *persistence.Partition) (err error) {
		got, err = p.Recover(ctx, func(s persistence.Snapshot) error {
			log = append(log, string(s.Key))
			if len(log) == 1 {
				// At most two more fetches are read ahead meanwhile.
				return w.deleteRecords(w.State, 0, last-3)
			}
			return nil
		}, func() { log = append(log, "forget") })
		return cmp.Or(err, ErrDone)
	}, nil)
	require.ErrorIs(w, m.Wait(), ErrDone)
	require.Equal(w, 1, got.Restarts)
	require.EqualValues(w, 4, got.Records)
	at := slices.Index(log, "forget")
	require.Positive(w, at, "%v", log)
	require.Equal(w, "seed", log[0])
	require.Equal(w, []string{"20", "21", "22", "23"}, log[at+1:])
}

// A transaction that does not end stalls a recovery, or the takeover where it
// needs to read the snapshots. The error has the numbers and names who holds it.
func transactionNeverEnds(w *World) {
	f := w.Foreign("migration")
	open := w.End(w.State, 0)
	f.Begin("open", "1")
	w.Put("upper", "1")
	m := w.Start(false, persistence.RecoveryStallTimeout(2*time.Second))
	err := m.Wait()
	var stalled *persistence.RecoveryStalledError
	require.ErrorAs(w, err, &stalled)
	require.Equal(w, open, stalled.Position)
	require.Equal(w, open+2, stalled.Target)
	d := stalled.Diagnosis
	require.Equal(w, persistence.TransactionOpen, d.Condition)
	require.Equal(w, open, d.LastStableOffset)
	require.Equal(w, open+2, d.HighWatermark)
	require.GreaterOrEqual(w, stalled.Stalled, 2*time.Second)
	id, epoch, err := f.ProducerID(w.Ctx)
	require.NoError(w, err)
	require.Len(w, d.Transactions, 1)
	held := d.Transactions[0]
	require.Equal(w, f.ID, held.TransactionalID)
	require.Equal(w, id, held.ProducerID)
	require.Equal(w, epoch, held.ProducerEpoch)
	require.Equal(w, open, held.StartOffset)
	require.Equal(w, "Ongoing", held.State)
	require.WithinDuration(w, time.Now(), held.Started, time.Minute)
	require.Equal(w, held.Started.Add(held.Timeout), held.Expires())
	require.Contains(w, stalled.Error(), fmt.Sprintf("transactional id %q, producer id %d, epoch %d, open since offset %d", f.ID, id, epoch, open))
	require.Contains(w, stalled.Error(), "forceTerminateTransaction --transactionalId "+f.ID)
	f.End(kgo.TryAbort)
}

// The snapshot topic is deleted and made anew while it is read: an error, and
// no state.
func recreatedInMidRecovery(w *World) {
	w.Seed()
	w.PutMuch(24)
	reached, recreated := make(chan struct{}), make(chan struct{})
	recovered := make(chan error, 1)
	m := w.Handle(func(ctx context.Context, p *persistence.Partition) error {
		var once sync.Once
		_, err := p.Recover(ctx, func(persistence.Snapshot) error {
			once.Do(func() { close(reached) })
			select {
			case <-recreated:
			case <-ctx.Done():
			}
			return nil
		}, func() {})
		recovered <- err
		return err
	}, nil, persistence.RecoveryStallTimeout(5*time.Second))
	<-reached
	w.Recreate(w.State)
	close(recreated)
	require.Error(w, m.Wait())
	require.ErrorContains(w, <-recovered, "deleted and created again")
}

func recoveriesRebalanced() (all []Story) {
	for _, p := range protocols {
		all = append(all, Story{Name: "RecoveryEndsAtOnceWhenRevokedAndElseGoesOnUnder" + p.name, Tell: p.rebalancedInMidRecovery, Partitions: 4})
	}
	return all
}

// A revoke does not wait for a recovery: it ends at once, with ErrRevoked. A
// partition that is kept, or already recovering when others come, goes on with
// the recovery that it has.
func (p protocol) rebalancedInMidRecovery(w *World) {
	w.Seed()
	f := w.Foreign("migration")
	f.BeginOn(0, 1, 2, 3)
	revoked, kept, all := 2, 1, 6
	if p.eager {
		revoked, kept, all = 4, 3, 10
	}

	a, b := w.recoverers(p), w.recoverers(p)
	a.start()
	a.await(4)
	b.start()
	b.await(2)
	moved := slices.Collect(maps.Keys(b.begun()))
	w.Eventually("the revoked recoveries have ended", func() bool { return len(a.ended()) == revoked })
	for id, err := range a.ended() {
		require.ErrorIs(w, err, persistence.ErrRevoked)
		if !p.eager {
			require.Contains(w, moved, id)
		}
	}
	for _, g := range a.givenUp() {
		require.Less(w, g.Took, 5*time.Second)
	}

	require.NoError(w, b.Stop())
	w.Eventually("the partitions are back", func() bool {
		n := 0
		for _, times := range a.begun() {
			n += times
		}
		return n == all
	})
	f.End(kgo.TryAbort)
	w.Eventually("all are recovered", func() bool { return len(a.recovered()) == 4 })
	for id, times := range a.begun() {
		if !slices.Contains(moved, id) {
			require.Equal(w, kept, times, "recoveries of partition %d", id)
		}
	}
	require.NoError(w, a.Stop())
}

// recoverers is a member whose handlers tell what became of their recovery.
type recoverers struct {
	*Member
	w        *World
	protocol protocol
	mu       struct {
		sync.Mutex
		begun     map[int32]int
		ended     map[int32]error
		recovered map[int32]bool
		givenUp   []persistence.GiveUpInfo
	}
}

func (w *World) recoverers(p protocol) *recoverers {
	r := &recoverers{w: w, protocol: p}
	r.mu.begun, r.mu.ended, r.mu.recovered = make(map[int32]int), make(map[int32]error), make(map[int32]bool)
	return r
}

func (r *recoverers) start() {
	r.Member = r.w.Handle(func(ctx context.Context, p *persistence.Partition) error {
		_, err := p.Recover(ctx, func(persistence.Snapshot) error { return nil }, func() {})
		r.mu.Lock()
		if err != nil {
			r.mu.ended[p.ID()] = err
		} else {
			r.mu.recovered[p.ID()] = true
		}
		r.mu.Unlock()
		if err != nil {
			return err
		}
		_, err = p.Poll(ctx)
		return err
	}, r.protocol.kafka, persistence.WithTrace(persistence.Trace{
		RecoveryStarted: func(i persistence.RecoveryInfo) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.mu.begun[i.Partition]++
		},
		GivenUp: func(i persistence.GiveUpInfo) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.mu.givenUp = append(r.mu.givenUp, i)
		},
	}))
}

func (r *recoverers) begun() map[int32]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.mu.begun)
}

func (r *recoverers) ended() map[int32]error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.mu.ended)
}

func (r *recoverers) recovered() map[int32]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.mu.recovered)
}

func (r *recoverers) givenUp() []persistence.GiveUpInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.mu.givenUp)
}

func (r *recoverers) await(n int) {
	r.w.Helper()
	r.w.Eventually(fmt.Sprintf("%d recoveries have begun", n), func() bool { return len(r.begun()) == n })
}

// The group's offsets are gone, but the snapshots are there: every partition
// resumes from the highest offset that its snapshots call committable.
func resumeFromSnapshots(w *World) {
	for id := range w.Partitions {
		w.Produce(id, "1", "2", "3", "4")
	}
	m := w.Start(false)
	for id, o := range m.OwnAll(3) {
		rs := o.Events(w, 4)
		require.NoError(w, o.Write(w.Ctx, snapshots("j", "1")...))
		require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Snapshots: snapshots("k", "1"), Through: rs[id]}))
		// Copied here from elsewhere, out of order.
		require.NoError(w, w.Admin.ProduceSync(w.Ctx, &kgo.Record{Topic: w.State, Partition: id, Key: []byte("l"), Headers: format.AppendHeaders(nil, 0, 0)}).FirstErr())
		// Committed, but in no snapshot's header.
		require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Through: rs[3]}))
		require.EqualValues(w, 4, w.Committed(id).Offset)
	}
	require.NoError(w, m.Stop())
	w.DeleteGroup()

	m = w.Start(false)
	for id, o := range m.OwnAll(3) {
		require.EqualValues(w, id+1, o.Resume())
		require.EqualValues(w, id+1, o.Events(w, 1)[0].Offset)
		for _, r := range w.Read(w.State, id) {
			_, _, at := format.SplitHeaders(r.Headers)
			require.LessOrEqual(w, at, o.Resume())
		}
	}
	require.NoError(w, m.Stop())
}

// With neither offset nor snapshot, the start policy decides, and the first
// commit carries what it came to.
func startPolicies(w *World) {
	at := time.Now().Add(-time.Hour).Truncate(time.Second)
	for i := range 4 {
		require.NoError(w, w.Admin.ProduceSync(w.Ctx, &kgo.Record{Topic: w.Input, Value: []byte{byte(i)}, Timestamp: at.Add(time.Duration(i) * time.Minute)}).FirstErr())
	}
	for name, c := range map[string]struct {
		policy []kgo.Opt
		want   int64
	}{
		"default": {nil, 0},
		"start":   {[]kgo.Opt{kgo.ConsumeStartOffset(kgo.NewOffset().AtStart())}, 0},
		"end":     {[]kgo.Opt{kgo.ConsumeStartOffset(kgo.NewOffset().AtEnd())}, 4},
		"exact":   {[]kgo.Opt{kgo.ConsumeStartOffset(kgo.NewOffset().At(2))}, 2},
		"time":    {[]kgo.Opt{kgo.ConsumeResetOffset(kgo.NewOffset().AfterMilli(at.Add(time.Second).UnixMilli()))}, 1},
		"future":  {[]kgo.Opt{kgo.ConsumeResetOffset(kgo.NewOffset().AfterMilli(time.Now().Add(time.Hour).UnixMilli()))}, 4},
	} {
		w.Group, w.State = w.Input+"-"+name, w.Input+"-state-"+name
		w.CreateTopic(w.State, 1, map[string]string{"cleanup.policy": "compact"})
		m := w.StartKafka(false, c.policy)
		o := m.Own()
		require.Equal(w, c.want, o.Resume(), name)
		require.NoError(w, o.Write(w.Ctx, snapshots("k", "1")...))
		require.Equal(w, c.want, w.Committed(0).Offset, name)
		if c.want < 4 {
			require.Equal(w, c.want, o.Events(w, 1)[0].Offset, name)
		}
		require.NoError(w, m.Stop())
	}
}

// The commit's metadata vouches for the snapshots. A topic that was made anew
// ends below that: Run ends and names both numbers, unless told to go on.
func recreatedBetweenRuns(w *World) {
	m := w.Start(false)
	o := m.Own()
	require.NoError(w, o.Write(w.Ctx, snapshots("a", "1", "b", "1")...))
	require.NoError(w, m.Stop())
	w.Settle()
	end := w.End(w.State, 0)
	meta, ok := format.ParseMetadata(w.Committed(0).Metadata)
	require.True(w, ok)
	require.Equal(w, end, meta.End)
	w.Recreate(w.State)
	w.Put("x", "1")

	err := w.Start(false).Wait()
	require.ErrorIs(w, err, persistence.SnapshotsTruncated)
	var truncated *persistence.MismatchError
	require.ErrorAs(w, err, &truncated)
	require.Equal(w, end, truncated.VouchedEnd)
	require.EqualValues(w, 1, truncated.End)
	require.Contains(w, err.Error(), fmt.Sprintf("the snapshot log holds offsets 0 to 1, and the commit vouches for everything below %d", end))

	m = w.Start(false, persistence.OnMismatch(persistence.SnapshotsTruncated, persistence.Accept))
	o = m.Own()
	require.Equal(w, map[string]string{"x": "1"}, o.State)
	require.NoError(w, o.Write(w.Ctx, snapshots("a", "2")...))
	require.NoError(w, m.Stop())

	m = w.Start(false) // the loss has been accepted, and is not brought up again
	require.Equal(w, map[string]string{"x": "1", "a": "2"}, m.Own().State)
	require.NoError(w, m.Stop())
}

// A broker acknowledges a commit before it has written the transaction's
// markers, which the commit's metadata counts in. A new owner that comes at once
// waits for them, and misses nothing.
func takeoverRightAfterAWrite(w *World) {
	want := make(map[string]string)
	m := w.Start(false)
	o := m.Own()
	for i := range 8 {
		require.Equal(w, want, o.State)
		next := w.Start(false)
		if i%2 == 0 {
			f := w.Foreign(fmt.Sprint("aborts", i))
			f.Begin("k", "aborted")
			f.PurgeTopicsFromProducing("")
			require.NoError(w, f.EndTransaction(w.Ctx, kgo.TryAbort))
		}
		w.Produce(0, "e")
		rs := o.Events(w, 1)
		if i%3 == 0 {
			require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Through: rs[0]}))
		}
		key := fmt.Sprint("k", i)
		require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Snapshots: snapshots(key, "1"), Through: rs[0]}))
		want[key] = "1"
		require.NoError(w, m.Stop())
		m = next
		o = m.Own()
		require.EqualValues(w, i+1, o.Resume())
	}
	require.NoError(w, m.Stop())
}

// ErrDone ends a story's handler, and with it Run.
var ErrDone = errors.New("the story's handler is done")

// snapshots makes snapshots of keys and values in turn.
func snapshots(pairs ...string) []persistence.Snapshot {
	var all []persistence.Snapshot
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, persistence.Snapshot{Key: []byte(pairs[i]), Value: []byte(pairs[i+1]), SourceOffset: int64(i)})
	}
	return all
}

// records makes snapshot records of keys and values in turn.
func (w *World) records(partition int32, pairs ...string) []*kgo.Record {
	var rs []*kgo.Record
	for i := 0; i < len(pairs); i += 2 {
		rs = append(rs, &kgo.Record{Topic: w.State, Partition: partition, Key: []byte(pairs[i]), Value: []byte(pairs[i+1])})
	}
	return rs
}

// Put writes keys and values in turn to snapshot partition 0, past the library
// and without a transaction.
func (w *World) Put(pairs ...string) {
	w.Helper()
	require.NoError(w, w.Admin.ProduceSync(w.Ctx, w.records(0, pairs...)...).FirstErr())
}

// PutMuch writes n records of 900 kB, with keys from "0" on, so that a recovery
// of snapshot partition 0 needs a fetch for every four or five of them. It
// returns the last one's offset.
func (w *World) PutMuch(n int) int64 {
	w.Helper()
	cl := w.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerBatchMaxBytes(1000000))
	value := make([]byte, 900_000)
	rand.NewChaCha8([32]byte{}).Read(value)
	var last int64
	for i := range n {
		r := &kgo.Record{Topic: w.State, Key: fmt.Append(nil, i), Value: value}
		require.NoError(w, cl.ProduceSync(w.Ctx, r).FirstErr())
		last = r.Offset
	}
	return last
}

// Seed runs a member that writes "seed"="0" to each snapshot partition, so that
// later takeovers find a committed offset and leave the reading to Recover.
func (w *World) Seed() {
	w.Helper()
	m := w.Start(false)
	for _, o := range m.OwnAll(int(w.Partitions)) {
		require.NoError(w, o.Write(w.Ctx, persistence.Snapshot{Key: []byte("seed"), Value: []byte("0"), SourceOffset: -1}))
	}
	require.NoError(w, m.Stop())
	w.Settle()
}

// Handle runs a member with a handler of the story's own.
func (w *World) Handle(h persistence.Handler, kafka []kgo.Opt, opts ...persistence.Option) *Member {
	w.Helper()
	m, err := persistence.New(w.Options(kafka, opts...)...)
	require.NoError(w, err)
	ctx, cancel := context.WithCancel(w.Ctx)
	mem := &Member{w: w, Module: m, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(mem.done)
		mem.err = m.Run(ctx, h)
	}()
	w.Cleanup(func() { mem.Stop() })
	return mem
}

// Foreign is a transactional producer that is not the library's.
type Foreign struct {
	*kgo.Client
	ID string
	w  *World
}

// Foreign makes one. It does not time out while a story runs.
func (w *World) Foreign(name string) *Foreign {
	w.Helper()
	id := w.Input + "-" + name
	return &Foreign{ID: id, w: w, Client: w.Client(kgo.TransactionalID(id), kgo.TransactionTimeout(5*time.Minute),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(10*time.Millisecond))}
}

// Begin opens a transaction and writes keys and values in turn to snapshot
// partition 0.
func (f *Foreign) Begin(pairs ...string) {
	f.w.Helper()
	require.NoError(f.w, f.BeginTransaction())
	require.NoError(f.w, f.ProduceSync(f.w.Ctx, f.w.records(0, pairs...)...).FirstErr())
}

// BeginOn opens a transaction on several snapshot partitions.
func (f *Foreign) BeginOn(partitions ...int32) {
	f.w.Helper()
	require.NoError(f.w, f.BeginTransaction())
	for _, id := range partitions {
		require.NoError(f.w, f.ProduceSync(f.w.Ctx, f.w.records(id, "open", "1")...).FirstErr())
	}
}

// End commits or aborts, and waits until readers see it.
func (f *Foreign) End(how kgo.TransactionEndTry) {
	f.w.Helper()
	f.PurgeTopicsFromProducing("") // kgo may not have stored the topic yet, and would end nothing
	require.NoError(f.w, f.EndTransaction(f.w.Ctx, how))
	f.w.Settle()
}

// Settle waits until the markers of all ended transactions are in the snapshot
// topic: a broker answers before it has written them.
func (w *World) Settle() {
	w.Helper()
	w.Eventually("the transactions' markers are written", func() bool {
		for id := range w.Partitions {
			if w.Stable(w.State, id) != w.End(w.State, id) {
				return false
			}
		}
		return true
	})
}

// DeleteRecords moves a log's start.
func (w *World) DeleteRecords(topic string, partition int32, to int64) {
	w.Helper()
	require.NoError(w, w.deleteRecords(topic, partition, to))
}

// A broker deletes records only from a topic that is not just compacted.
func (w *World) deleteRecords(topic string, partition int32, to int64) error {
	var at kadm.Offsets
	at.AddOffset(topic, partition, to, -1)
	adm := kadm.NewClient(w.Admin)
	set := func(policy string) error {
		_, err := adm.AlterTopicConfigs(w.Ctx, []kadm.AlterConfig{{Name: "cleanup.policy", Value: &policy}}, topic)
		return err
	}
	if topic == w.State {
		if err := set("compact,delete"); err != nil {
			return err
		}
	}
	for {
		rs, err := adm.DeleteRecords(w.Ctx, at)
		if err == nil {
			err = rs.Error()
		}
		switch {
		case errors.Is(err, kerr.PolicyViolation): // not in effect yet
			time.Sleep(2 * time.Millisecond)
		case err != nil || topic != w.State:
			return err
		default:
			return set("compact")
		}
	}
}

// Recreate deletes a topic and makes it anew, compacted.
func (w *World) Recreate(topic string) {
	w.Helper()
	w.Admin.PurgeTopicsFromProducing(topic) // what it knows of the old one
	adm := kadm.NewClient(w.Admin)
	_, err := adm.DeleteTopic(w.Ctx, topic)
	require.NoError(w, err)
	compact := "compact"
	w.Eventually("the deletion is through", func() bool {
		_, err := adm.CreateTopic(w.Ctx, w.Partitions, -1, map[string]*string{"cleanup.policy": &compact}, topic)
		return err == nil
	})
	w.Eventually("topic "+topic+" has leaders", func() bool {
		offsets, err := adm.ListEndOffsets(w.Ctx, topic)
		return err == nil && offsets.Error() == nil && len(offsets[topic]) == int(w.Partitions)
	})
}

// DeleteGroup removes the group with its offsets, once all members have left.
func (w *World) DeleteGroup() {
	w.Helper()
	w.Eventually("the group is deleted", func() bool {
		_, err := kadm.NewClient(w.Admin).DeleteGroup(w.Ctx, w.Group)
		return err == nil || errors.Is(err, kerr.GroupIDNotFound)
	})
}

// Book collects what a module logs.
type Book struct {
	w     *World
	mu    sync.Mutex
	lines []string
}

// Book returns an empty one.
func (w *World) Book() *Book { return &Book{w: w} }

// Logger writes into the book, and to the test's log.
func (b *Book) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (b *Book) Write(line []byte) (int, error) {
	b.mu.Lock()
	b.lines = append(b.lines, string(line))
	b.mu.Unlock()
	return logWriter{b.w.TB}.Write(line)
}

// Has reports whether some line has all these parts.
func (b *Book) Has(parts ...string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.lines, func(line string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) })
	})
}

// Done is closed when Run has ended.
func (m *Member) Done() <-chan struct{} { return m.done }

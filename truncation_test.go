package persistence_test

import (
	"flag"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/format"
)

var restartSeed = flag.Uint64("restart.seed", 0, "seed of the run with many restarts that looks for false truncations; 0 picks one")

// The commit's metadata must never vouch for more than the snapshot partition
// holds, or an ordinary restart would be taken for a loss: not after aborted
// transactions, new producers, idle commits, outputs, compaction, or foreign
// writers, and not with any of them under way at a restart.
func TestOrdinaryRunsAreNeverTakenForATruncation(t *testing.T) {
	rng := seeded(t, "restart.seed", *restartSeed)
	w, c := clusterWorld(t, 1)
	output := w.Input + "-output"
	w.CreateTopic(output, 2, nil)
	var renewed, idle atomic.Int32
	want := make(map[string]string)
	for range 25 {
		m := w.Start(false, persistence.CommitInterval(10*time.Millisecond), persistence.WithTrace(persistence.Trace{
			ProducerRenewed:  func(persistence.RenewInfo) { renewed.Add(1) },
			OffsetsCommitted: func(persistence.OffsetsInfo) { idle.Add(1) },
		}))
		o := m.Own()
		require.Equal(w, want, o.State)
		for range rng.IntN(8) {
			key, value := fmt.Sprint("k", rng.IntN(5)), fmt.Sprint(rng.IntN(1000))
			batch := persistence.Batch{Snapshots: []persistence.Snapshot{{Key: []byte(key), Value: []byte(value), SourceOffset: -1}}}
			switch rng.IntN(8) {
			case 0:
				w.Produce(0, "e")
				batch.Through = o.Events(w, 1)[0]
			case 1: // no transaction carries this one
				w.Produce(0, "e")
				require.NoError(w, o.Advance(o.Events(w, 1)[0]))
				continue
			case 2:
				batch.Outputs = []*kgo.Record{{Topic: output, Value: []byte("o")}, {Topic: output, Value: []byte("o")}}
			case 3:
				batch = persistence.Batch{Outputs: []*kgo.Record{{Topic: output, Value: []byte("o")}}}
				key = ""
			case 4:
				key, err := []kmsg.Key{kmsg.Produce, kmsg.EndTxn, kmsg.TxnOffsetCommit}[rng.IntN(3)], kerr.UnknownServerError
				c.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: err}, kfake.Fault{Keys: []kmsg.Key{key}, Err: err, TopLevel: true})
			case 5:
				f := w.Foreign(fmt.Sprint("aborts", rng.Uint32()))
				f.Begin(key, "aborted")
				f.End(kgo.TryAbort)
				continue
			case 6:
				w.Settle()
				c.Compact()
				continue
			}
			require.NoError(w, o.Apply(w.Ctx, batch))
			if key != "" {
				want[key] = value
			}
		}
		require.NoError(w, m.Stop())
		meta, ok := format.ParseMetadata(w.Committed(0).Metadata)
		if ok {
			require.LessOrEqual(w, meta.End, w.End(w.State, 0))
		}
	}
	require.Positive(w, idle.Load())
	t.Logf("%d producers were renewed", renewed.Load())
}

// A commit outside of a transaction vouches for the same end as the
// transaction before it.
func TestAnIdleCommitStillVouchesForTheSnapshots(t *testing.T) {
	w, _ := clusterWorld(t, 1)
	w.Produce(0, "1", "2")
	m := w.Start(false)
	o := m.Own()
	rs := o.Events(w, 2)
	require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Snapshots: []persistence.Snapshot{{Key: []byte("k"), Value: []byte("1")}}, Through: rs[0]}))
	require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Through: rs[1]}))
	require.NoError(w, m.Stop())
	require.EqualValues(w, 2, w.Committed(0).Offset)
	meta, ok := format.ParseMetadata(w.Committed(0).Metadata)
	require.True(w, ok)
	require.Equal(w, w.End(w.State, 0), meta.End)
	require.Empty(w, meta.Transaction)
	w.Recreate(w.State)
	require.ErrorIs(w, w.Start(false).Wait(), persistence.SnapshotsTruncated)
}

// Only the partitions that lost something are the trouble, and the error says
// which. The group's offset stays, so that the operator can still choose.
func TestATruncationIsReportedForItsPartition(t *testing.T) {
	w, c := clusterWorld(t, 3)
	m := w.Start(false)
	for _, o := range m.OwnAll(3) {
		w.Produce(o.ID(), "e")
		if o.ID() != 1 {
			require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Through: o.Events(w, 1)[0]}))
			continue
		}
		require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Snapshots: []persistence.Snapshot{{Key: []byte("k"), Value: []byte("1")}}, Through: o.Events(w, 1)[0]}))
	}
	require.NoError(w, m.Stop())
	require.NoError(w, c.DeleteTopic(w.State))
	require.NoError(w, c.CreateTopic(w.State, 3, map[string]string{"cleanup.policy": "compact"}))
	err := w.Start(false).Wait()
	var truncated *persistence.MismatchError
	require.ErrorAs(w, err, &truncated)
	require.EqualValues(w, 1, truncated.Partition)
	require.EqualValues(w, 2, truncated.VouchedEnd)
	require.Zero(w, truncated.End)
	for id := range int32(3) {
		require.EqualValues(w, 1, w.Committed(id).Offset)
	}
}

// An offset that somebody else committed cannot vouch for anything: a warning.
func TestAnOffsetCommittedByOthersIsAWarningAndNoTruncation(t *testing.T) {
	w, c := clusterWorld(t, 1)
	w.Seed()
	w.CommitByHand(0, 0)
	require.NoError(w, c.DeleteTopic(w.State))
	require.NoError(w, c.CreateTopic(w.State, 1, map[string]string{"cleanup.policy": "compact"}))
	book := w.Book()
	m := w.Start(false, persistence.Logger(book.Logger()))
	require.Empty(w, m.Own().State)
	require.True(w, book.Has("level=WARN", "mismatch=OffsetBehind"))
	require.NoError(w, m.Stop())
}

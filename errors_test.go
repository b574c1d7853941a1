package persistence

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
)

func TestMessagesSayWhereWhatAndWhatToDo(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		says []string
	}{
		{
			"a write that was not made",
			&WriteError{Topic: "orders", Partition: 3, Generation: 12, Err: ErrFenced},
			[]string{"persistence: ", "partition 3 of orders", "generation 12", "the write was not made", "fenced: another owner has this partition"},
		},
		{
			"a write that may have been made",
			&WriteError{Topic: "orders", Partition: 3, Generation: 12, Err: fmt.Errorf("%w: %w", ErrUnknownOutcome, ErrLost)},
			[]string{"partition 3 of orders", "generation 12", "the write may have been made", "partition lost"},
		},
		{
			"truncation",
			&MismatchError{SnapshotsTruncated, Agreement{Topic: "orders", SnapshotTopic: "state", Partition: 4, VouchedEnd: 120, End: 100}},
			[]string{"partition 4 of orders", "snapshots in state", "acknowledged snapshots are missing", "offsets 0 to 100", "below 120",
				"restore the snapshot topic", "OnMismatch(SnapshotsTruncated, Accept)", "OnMismatch(SnapshotsTruncated, Resume)", "OnMismatch(SnapshotsTruncated, Rebuild)"},
		},
		{
			"a stall",
			&RecoveryStalledError{Topic: "state", Partition: 4, Target: 120, Position: 80, Stalled: 3 * time.Minute,
				Diagnosis: Diagnosis{Condition: TransactionOpen, LogStart: 7, LastStableOffset: 90, HighWatermark: 130, Finding: "one is open", Advice: "Wait"}, Cause: kerr.NotLeaderForPartition},
			[]string{"partition 4 of snapshot topic state", "no progress for 3m0s", "position 80", "target 120", "log start 7",
				"last stable offset 90", "high watermark 130", "one is open. Wait", "NOT_LEADER_FOR_PARTITION"},
		},
		{
			"what was not flushed",
			&UnflushedError{Err: context.DeadlineExceeded, Partitions: []Unflushed{
				{Partition: 2, Writes: 7, HandlerRunning: true, Committable: 55},
				{Partition: 5, Writes: 0, Committable: -1},
			}},
			[]string{"closed before everything was flushed", "deadline exceeded", "partition 2: 7 writes, handler still running, offset 55 not committed, partition 5: 0 writes"},
		},
		{"fenced", ErrFenced, []string{"another owner has this partition"}},
		{"not joined", ErrNotJoined, []string{"not a live member", "was not sent"}},
		{"a rival", ErrProducerConflict, []string{"transactional id", "TransactionalIDPrefix", "second service"}},
		{"unknown", ErrUnknownOutcome, []string{"may have committed"}},
		{"input", ErrInput, []string{"cannot be read on"}},
		{"mismatch", ErrPartitionMismatch, []string{"partition counts"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, s := range c.says {
				require.ErrorContains(t, c.err, s)
			}
		})
	}
}

func TestAStallLeavesOutWhatIsNotKnown(t *testing.T) {
	e := &RecoveryStalledError{Topic: "state", Target: -1, Position: -1, Diagnosis: conclude(facts{target: -1, leaderless: true, bounds: noBounds, notes: []string{"everything: no broker"}})}
	require.Equal(t, "persistence: recovery of partition 0 of snapshot topic state made no progress for 0s: "+
		"position -1, target -1, log start -1, last stable offset -1, high watermark -1: "+
		"the partition has no leader; its replicas are on brokers []. Bring one of them back: "+
		"kafka-topics.sh --bootstrap-server  --describe --topic  (not known: everything: no broker)", e.Error())
	require.NoError(t, errors.Unwrap(e))
}

func TestErrorsAreFoundThroughTheirChains(t *testing.T) {
	write := &WriteError{Topic: "orders", Err: fmt.Errorf("%w: generation 3 was refused: %w", ErrFenced, kerr.IllegalGeneration)}
	outer := fmt.Errorf("flow: %w", write)
	require.ErrorIs(t, outer, ErrFenced)
	require.ErrorIs(t, outer, kerr.IllegalGeneration)
	require.NotErrorIs(t, outer, ErrUnknownOutcome)
	var we *WriteError
	require.ErrorAs(t, outer, &we)
	require.Same(t, write, we)
	var ke *kerr.Error
	require.ErrorAs(t, outer, &ke)

	truncated := fmt.Errorf("taking over: %w", &MismatchError{SnapshotsTruncated, Agreement{End: 9}})
	require.ErrorIs(t, truncated, SnapshotsTruncated)
	require.NotErrorIs(t, truncated, SnapshotsEmptied)
	require.NotErrorIs(t, truncated, ErrInput)
	var me *MismatchError
	require.ErrorAs(t, truncated, &me)
	require.EqualValues(t, 9, me.End)
	for _, m := range []Mismatch{OffsetBelowInput, OffsetAboveInput} {
		require.ErrorIs(t, &MismatchError{Mismatch: m}, ErrInput)
		require.ErrorIs(t, &MismatchError{Mismatch: m}, m)
	}

	stalled := fmt.Errorf("recovering: %w", &RecoveryStalledError{Target: 4, Cause: kerr.OffsetOutOfRange})
	require.ErrorIs(t, stalled, kerr.OffsetOutOfRange)
	var se *RecoveryStalledError
	require.ErrorAs(t, stalled, &se)
	require.EqualValues(t, 4, se.Target)

	unflushed := fmt.Errorf("stopping: %w", &UnflushedError{Err: context.DeadlineExceeded})
	require.ErrorIs(t, unflushed, context.DeadlineExceeded)
	var ue *UnflushedError
	require.ErrorAs(t, unflushed, &ue)
}

func TestSentinelsAreToldApart(t *testing.T) {
	all := []error{ErrFenced, ErrRevoked, ErrLost, ErrClosed, ErrNotJoined, ErrNotOwned, ErrUnknownOutcome, ErrRecordTooLarge,
		ErrProducerConflict, ErrPartitionMismatch, ErrInput,
		OffsetMissing, OffsetAhead, OffsetBehind, OffsetBelowInput, OffsetAboveInput, InputRecreated, SourceAboveInput, SnapshotsTruncated, SnapshotsEmptied}
	messages := make(map[string]bool)
	for i, a := range all {
		messages[a.Error()] = true
		for j, b := range all {
			require.Equal(t, i == j, errors.Is(a, b), "%v, %v", a, b)
		}
	}
	require.Len(t, messages, len(all))
}

func TestJoinAddsACauseOnce(t *testing.T) {
	cause := errors.New("cause")
	require.Equal(t, ErrLost, join(ErrLost, nil))
	both := join(ErrLost, cause)
	require.ErrorIs(t, both, ErrLost)
	require.ErrorIs(t, both, cause)
	require.Equal(t, both, join(both, cause), "it is there already")
}

func TestABrokersTooLargeIsTheLibrarysToo(t *testing.T) {
	for _, err := range []error{kerr.MessageTooLarge, kerr.RecordListTooLarge} {
		named := asTooLarge(fmt.Errorf("producing: %w", err))
		require.ErrorIs(t, named, ErrRecordTooLarge)
		require.ErrorIs(t, named, err)
		require.Equal(t, named, asTooLarge(named), "once")
	}
	require.Equal(t, kerr.InvalidRecord, asTooLarge(kerr.InvalidRecord))
	require.NoError(t, asTooLarge(nil))
}

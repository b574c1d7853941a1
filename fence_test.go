package persistence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ownershipQuestions are the coordinator's answers that ask who the owner is.
var ownershipQuestions = []*kerr.Error{kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.FencedInstanceID, kerr.StaleMemberEpoch,
	kerr.FencedMemberEpoch, kerr.GroupIDNotFound, kerr.RebalanceInProgress}

func TestWhatAnErrorMeansAtEachStage(t *testing.T) {
	type row struct {
		err                          error
		begin, offsets, produce, end verdict
	}
	same := func(err error, v verdict) row { return row{err, v, v, v, unsettled} }
	rows := []row{
		{nil, committed, committed, committed, committed},
		same(errors.New("anything else"), unlanded),
		same(io.EOF, unlanded),
		same(context.Canceled, unlanded),
		same(context.DeadlineExceeded, unlanded),
		same(ErrNotJoined, unlanded),
		same(ErrRevoked, unlanded),
		same(kgo.ErrRecordTimeout, unlanded),
		same(kgo.ErrRecordRetries, unlanded),
		same(kgo.ErrClientClosed, impossible),

		// The coordinator's own trouble, and the broker's.
		same(kerr.CoordinatorNotAvailable, unlanded),
		same(kerr.CoordinatorLoadInProgress, unlanded),
		same(kerr.NotCoordinator, unlanded),
		same(kerr.ConcurrentTransactions, unlanded),
		same(kerr.RequestTimedOut, unlanded),
		same(kerr.NotLeaderForPartition, unlanded),
		same(kerr.NotEnoughReplicas, unlanded),
		same(kerr.NotEnoughReplicasAfterAppend, unlanded),
		same(kerr.KafkaStorageError, unlanded),
		same(kerr.UnknownServerError, unlanded),
		same(kerr.OperationNotAttempted, unlanded),
		same(kerr.ThrottlingQuotaExceeded, unlanded),

		// The producer.
		same(kerr.ProducerFenced, producerGone),
		same(kerr.InvalidProducerEpoch, producerGone),
		same(kerr.InvalidProducerIDMapping, producerGone),
		same(kerr.UnknownProducerID, producerGone),
		same(kerr.InvalidTxnState, producerGone),
		same(kerr.TransactionAbortable, producerGone),
		same(kerr.OutOfOrderSequenceNumber, producerGone),

		// A record that is never taken counts where records are.
		{kerr.MessageTooLarge, unlanded, unlanded, refused, unsettled},
		{kerr.RecordListTooLarge, unlanded, unlanded, refused, unsettled},
		{kerr.InvalidRecord, unlanded, unlanded, refused, unsettled},
		{kerr.InvalidTimestamp, unlanded, unlanded, refused, unsettled},
		{kerr.InvalidTopicException, unlanded, unlanded, refused, unsettled},
		{kerr.UnknownTopicOrPartition, unlanded, unlanded, refused, unsettled},
		{kerr.PolicyViolation, unlanded, unlanded, refused, unsettled},
		{kerr.UnsupportedForMessageFormat, unlanded, unlanded, refused, unsettled},
		{kerr.UnsupportedCompressionType, unlanded, unlanded, refused, unsettled},
		{kerr.CorruptMessage, unlanded, unlanded, refused, unsettled},
		{kerr.UnknownTopicID, unlanded, unlanded, refused, unsettled},
		{kerr.TopicAuthorizationFailed, impossible, impossible, refused, unsettled},

		// Only an operator can help.
		same(kerr.GroupAuthorizationFailed, impossible),
		same(kerr.TransactionalIDAuthorizationFailed, impossible),
		same(kerr.ClusterAuthorizationFailed, impossible),
		same(kerr.OffsetMetadataTooLarge, impossible),
		same(kerr.InvalidCommitOffsetSize, impossible),
		same(kerr.InvalidGroupID, impossible),
		same(kerr.InvalidTransactionTimeout, impossible),
		same(kerr.UnsupportedVersion, impossible),
		same(kerr.SaslAuthenticationFailed, impossible),
	}
	for _, err := range ownershipQuestions {
		// A question only where the generation is checked.
		rows = append(rows, row{err, unlanded, askOwnership, unlanded, unsettled})
	}
	for _, r := range rows {
		for _, c := range []struct {
			stage stage
			want  verdict
		}{{stageBegin, r.begin}, {stageOffsets, r.offsets}, {stageProduce, r.produce}, {stageEnd, r.end}} {
			require.Equal(t, c.want, judge(c.stage, r.err), "%v while %v", r.err, c.stage)
			if r.err != nil {
				wrapped := fmt.Errorf("%v: %w", c.stage, errors.Join(errors.New("beside"), r.err))
				require.Equal(t, c.want, judge(c.stage, wrapped), "%v, wrapped, while %v", r.err, c.stage)
			}
		}
	}
}

// Codes that are not in the table, and those that do not exist yet, must not be
// taken for success, and after the end never for a failure.
func TestNoErrorCodeIsSuccessAtAnyStage(t *testing.T) {
	for code := int16(-1); code < 300; code++ {
		err := kerr.ErrorForCode(code)
		if err == nil {
			require.Zero(t, code)
			continue
		}
		for s := stageBegin; s <= stageEnd; s++ {
			require.NotEqual(t, committed, judge(s, err), "code %d while %v", code, s)
			require.Equal(t, s == stageEnd, judge(s, err) == unsettled, "code %d while %v", code, s)
		}
	}
}

func TestAStageSaysWhatWasBeingDone(t *testing.T) {
	require.Equal(t, "starting the transaction", stageBegin.String())
	require.Equal(t, "committing the offset", stageOffsets.String())
	require.Equal(t, "producing", stageProduce.String())
	require.Equal(t, "ending the transaction", stageEnd.String())
}

func TestAwaitOwnership(t *testing.T) {
	const bound = time.Second
	for _, c := range []struct {
		name       string
		after      time.Duration // when generation and open change
		generation int32
		open       error
		cancel     bool
		want       answer
		took       time.Duration
	}{
		{name: "a newer generation", after: 300 * time.Millisecond, generation: 8, want: movedOn, took: 300 * time.Millisecond},
		{name: "the newer generation is there already", generation: 8, want: movedOn},
		{name: "nothing happens", generation: 7, want: stale, took: bound},
		{name: "no generation at all", after: 300 * time.Millisecond, generation: -1, want: stale, took: bound},
		{name: "not a member yet", after: 300 * time.Millisecond, generation: 0, want: stale, took: bound},
		{name: "the handle closes", after: 300 * time.Millisecond, generation: 7, open: ErrLost, want: closed, took: 300 * time.Millisecond},
		{name: "a newer generation, but the handle closed before it", after: 300 * time.Millisecond, generation: 8, open: ErrRevoked, want: closed, took: 300 * time.Millisecond},
		{name: "the context ends", after: 300 * time.Millisecond, generation: 7, cancel: true, want: closed, took: 300 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				changed := func() bool { return time.Since(began) >= c.after }
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.cancel {
					time.AfterFunc(c.after, cancel)
				}
				got := awaitOwnership(ctx, bound, 7, func() int32 {
					if changed() {
						return c.generation
					}
					return 7
				}, func() error {
					if changed() {
						return c.open
					}
					return nil
				})
				require.Equal(t, c.want, got)
				require.InDelta(t, c.took, time.Since(began), float64(3*time.Millisecond))
			})
		})
	}
}

// The handle may close between the two looks. Only a look at the handle that
// comes after the generation was read proves that this generation is ours.
func TestAwaitOwnershipReadsTheGenerationBeforeTheHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var shut error
		got := awaitOwnership(t.Context(), time.Second, 7, func() int32 {
			shut = ErrRevoked // a revoke, and the group moves on
			return 8
		}, func() error { return shut })
		require.Equal(t, closed, got)
	})
}

func TestOwnershipWaitIsThreeHeartbeats(t *testing.T) {
	require.Equal(t, 9*time.Second, ownershipWait(3*time.Second, false))
	require.Equal(t, 900*time.Millisecond, ownershipWait(300*time.Millisecond, false))
	require.Equal(t, 15*time.Second, ownershipWait(3*time.Second, true), "where the broker sets the interval, at least its default")
	require.Equal(t, 30*time.Second, ownershipWait(10*time.Second, true))
}

func TestRivalryCountsFencesInARowUnderOneGeneration(t *testing.T) {
	now := time.Unix(0, 0)
	type fence struct {
		generation int32
		after      time.Duration
	}
	row := func(n int, f fence) (fs []fence) {
		for range n {
			fs = append(fs, f)
		}
		return fs
	}
	for _, c := range []struct {
		name   string
		fences []fence
		want   bool // of the last
	}{
		{"one less than enough", row(maxProducerFences-1, fence{1, time.Second}), false},
		{"enough", row(maxProducerFences, fence{1, time.Second}), true},
		{"each just within the window", row(maxProducerFences, fence{1, producerFenceWindow}), true},
		{"each just outside of it", row(10*maxProducerFences, fence{1, producerFenceWindow + 1}), false},
		{"another generation starts anew", append(row(maxProducerFences-1, fence{1, 0}), row(maxProducerFences-1, fence{2, 0})...), false},
		{"a pause starts anew", append(row(maxProducerFences-1, fence{1, 0}), append([]fence{{1, time.Hour}}, row(maxProducerFences-2, fence{1, 0})...)...), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r rivalry
			var got bool
			for i, f := range c.fences {
				now = now.Add(f.after)
				if got = r.fenced(f.generation, now); i < len(c.fences)-1 {
					require.False(t, got, "fence %d", i)
				}
			}
			require.Equal(t, c.want, got)
		})
	}
}

package persistence_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/scenario"
)

// A leader changes while a recovery runs. Whether the new one's log still has what
// was below the target cannot be seen by its offsets, if it has grown again: the
// recovery asks it where the former epoch ended.

// lineage is a recovery of 25 records during which the leader moves, and what the
// new leaders were asked and answer.
type lineage struct {
	*testing.T
	w     *scenario.World
	c     *kfake.Cluster
	moves int // of the leader, one after each of the first records
	// answers says where an epoch ended, to the nth question from 0 on.
	answers func(l *lineage, n int) (end int64, err *kerr.Error)

	target  int64
	epoch   int32 // at the start
	offsets []int64
	got     persistence.Recovered
	err     error
	took    time.Duration // from the first move to the end

	mu    sync.Mutex
	asked []epochQuestion
}

type epochQuestion struct{ node, epoch int32 }

const lineageStall = 3 * time.Minute

func (l *lineage) run() {
	inVirtualTime(l.T, 1, func(w *scenario.World, c *kfake.Cluster) {
		l.w, l.c = w, c
		w.Seed()
		noise := rand.NewChaCha8([32]byte{})
		for i := range 24 { // two fit in a fetch
			value := make([]byte, 40<<10)
			noise.Read(value)
			w.Put(fmt.Sprint(i), string(value))
		}
		l.target, l.epoch = w.End(w.State, 0), c.PartitionInfo(w.State, 0).Epoch
		answer(c, l.answer)
		var moved time.Time
		m := w.Handle(func(ctx context.Context, p *persistence.Partition) error {
			l.got, l.err = p.Recover(ctx, func(s persistence.Snapshot) error {
				l.offsets = append(l.offsets, s.LogOffset)
				if n := len(l.offsets); n <= l.moves {
					moved = time.Now()
					return l.move()
				}
				return nil
			}, func() { l.offsets = nil })
			return cmp.Or(l.err, scenario.ErrDone)
		}, nil, persistence.RecoveryStallTimeout(lineageStall), persistence.RecoveryConcurrency(1), persistence.RecoveryMaxBytes(256<<10))
		<-m.Done()
		l.took = time.Since(moved)
		require.ErrorIs(w, m.Wait(), cmp.Or(l.err, scenario.ErrDone))
	})
}

func (l *lineage) move() error {
	return l.c.MoveTopicPartition(l.w.State, 0, (l.c.LeaderFor(l.w.State, 0)+1)%3)
}

func (l *lineage) answer(r *kmsg.OffsetForLeaderEpochRequest) (kmsg.Response, bool) {
	if r.Topics[0].Topic != l.w.State {
		return nil, false
	}
	l.mu.Lock()
	n := len(l.asked)
	l.asked = append(l.asked, epochQuestion{l.c.CurrentNode(), r.Topics[0].Partitions[0].LeaderEpoch})
	l.mu.Unlock()
	resp := r.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
	rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
	rt.Topic = l.w.State
	rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
	end, err := l.answers(l, n)
	if err != nil {
		rp.ErrorCode = err.Code
	}
	rp.LeaderEpoch, rp.EndOffset = r.Topics[0].Partitions[0].LeaderEpoch, end
	rt.Partitions = append(rt.Partitions, rp)
	resp.Topics = append(resp.Topics, rt)
	return resp, true
}

func (l *lineage) requireWhole() {
	l.Helper()
	require.NoError(l, l.err)
	require.Zero(l, l.got.Restarts)
	require.Len(l, l.offsets, 25)
	require.True(l, slices.IsSorted(l.offsets))
	require.Len(l, slices.Compact(l.offsets), 25, "every record once")
}

func (l *lineage) requireStalled() persistence.Diagnosis {
	l.Helper()
	var stalled *persistence.RecoveryStalledError
	require.ErrorAs(l, l.err, &stalled)
	require.Equal(l, l.target, stalled.Target)
	require.Less(l, stalled.Position, l.target)
	require.Less(l, len(l.offsets), 25, "nothing of the new leader's")
	return stalled.Diagnosis
}

func TestALogThatWasCutAndHasGrownAgainIsTruncated(t *testing.T) {
	l := &lineage{T: t, moves: 1, answers: func(l *lineage, _ int) (int64, *kerr.Error) { return l.target - 1, nil }}
	l.run()
	d := l.requireStalled()
	require.Equal(t, persistence.LogTruncated, d.Condition, "%v", d)
	require.Equal(t, l.target-1, d.LostFrom)
	require.Equal(t, l.target, d.HighWatermark, "as long as it was")
	require.Equal(t, l.epoch, d.TargetEpoch)
	require.Equal(t, l.epoch+1, d.LeaderEpoch)
	require.Less(t, l.took, 5*time.Second, "at once")
	require.Equal(t, epochQuestion{l.asked[0].node, l.epoch}, l.asked[0])
	require.Equal(t, d.Leader, l.asked[0].node, "the new leader was asked")
}

func TestALogThatANewLeaderHasWholeIsReadOn(t *testing.T) {
	for name, end := range map[string]func(l *lineage) int64{
		"its epoch ended at the target":    func(l *lineage) int64 { return l.target },
		"its epoch ended above the target": func(l *lineage) int64 { return l.target + 100 },
		"its epoch has not ended for it":   func(*lineage) int64 { return -1 },
	} {
		t.Run(name, func(t *testing.T) {
			l := &lineage{T: t, moves: 1, answers: func(l *lineage, _ int) (int64, *kerr.Error) { return end(l), nil }}
			l.run()
			l.requireWhole()
			require.Len(t, l.asked, 1)
			require.Equal(t, l.epoch, l.asked[0].epoch)
		})
	}
}

// What one leader has vouched for need not be asked of the next: only the epoch
// since.
func TestEachNewLeaderIsAskedAboutTheEpochBefore(t *testing.T) {
	l := &lineage{T: t, moves: 1, answers: func(l *lineage, n int) (int64, *kerr.Error) {
		if n == 0 {
			// It moves on while it answers.
			l.c.SleepControl(func() { require.NoError(l, l.move()) })
		}
		return l.target, nil
	}}
	l.run()
	l.requireWhole()
	var epochs []int32
	for _, q := range l.asked {
		epochs = append(epochs, q.epoch)
	}
	require.Equal(t, []int32{l.epoch, l.epoch + 1}, epochs)
	require.NotEqual(t, l.asked[0].node, l.asked[1].node)
}

// The second of two leaders has lost what the first had.
func TestALogThatWasCutByTheSecondNewLeaderIsTruncated(t *testing.T) {
	l := &lineage{T: t, moves: 1, answers: func(l *lineage, n int) (int64, *kerr.Error) {
		if n == 0 {
			l.c.SleepControl(func() { require.NoError(l, l.move()) })
			return l.target, nil
		}
		return 5, nil
	}}
	l.run()
	d := l.requireStalled()
	require.Equal(t, persistence.LogTruncated, d.Condition, "%v", d)
	require.EqualValues(t, 5, d.LostFrom)
	require.Equal(t, l.epoch+2, d.LeaderEpoch)
}

func TestALineageThatCannotBeLookedUpForAWhileIsAskedForAgain(t *testing.T) {
	for _, err := range []*kerr.Error{kerr.NotLeaderForPartition, kerr.UnknownLeaderEpoch, kerr.FencedLeaderEpoch, kerr.UnknownServerError, kerr.UnknownTopicOrPartition} {
		t.Run(err.Message, func(t *testing.T) {
			l := &lineage{T: t, moves: 1, answers: func(l *lineage, n int) (int64, *kerr.Error) {
				if n < 5 {
					return -1, err
				}
				return l.target, nil
			}}
			l.run()
			l.requireWhole()
			require.Len(t, l.asked, 6)
		})
	}
}

// No records of a leader are delivered that has not vouched for the log.
func TestALineageThatIsNeverToldIsAStall(t *testing.T) {
	l := &lineage{T: t, moves: 1, answers: func(*lineage, int) (int64, *kerr.Error) { return -1, kerr.UnknownServerError }}
	l.run()
	d := l.requireStalled()
	require.ErrorIs(t, l.err, kerr.UnknownServerError)
	require.Equal(t, persistence.ConditionUnknown, d.Condition, "%v", d)
	require.Contains(t, d.String(), "where leader epoch 0 ended: UNKNOWN_SERVER_ERROR")
	require.InDelta(t, lineageStall, l.took, float64(10*time.Second))
}

func TestALeaderThatStaysIsNotAskedAboutItsEpochs(t *testing.T) {
	l := &lineage{T: t, answers: func(*lineage, int) (int64, *kerr.Error) { return 0, nil }}
	l.run()
	l.requireWhole()
	require.Empty(t, l.asked)
}

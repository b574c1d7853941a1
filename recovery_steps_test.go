package persistence

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkafence/persistence/internal/cursor"
)

func TestWhatAFetchMeansForARecovery(t *testing.T) {
	const position, target = 10, 20
	for _, c := range []struct {
		name string
		b    cursor.Batch
		want step
	}{
		{"records", cursor.Batch{Next: 15, LastStableOffset: 20, HighWatermark: 20}, onward},
		{"one offset", cursor.Batch{Next: 11, LastStableOffset: 11, HighWatermark: 20}, onward},
		{"up to one below the target", cursor.Batch{Next: 19, LastStableOffset: 20, HighWatermark: 20}, onward},
		{"exactly to the target: the tail is a marker or a record", cursor.Batch{Next: 20, LastStableOffset: 20, HighWatermark: 20}, done},
		{"a batch that crosses the target", cursor.Batch{Next: 27, LastStableOffset: 30, HighWatermark: 30}, done},
		{"nothing left, the rest is compacted away", cursor.Batch{Next: 10, Empty: true, LastStableOffset: 20, HighWatermark: 20}, done},
		{"nothing left, and the log went on", cursor.Batch{Next: 10, Empty: true, LastStableOffset: 25, HighWatermark: 30}, done},
		{"a transaction is open at the position", cursor.Batch{Next: 10, Empty: true, LastStableOffset: 10, HighWatermark: 20}, waiting},
		{"a transaction is open just below the target", cursor.Batch{Next: 10, Empty: true, LastStableOffset: 19, HighWatermark: 20}, waiting},
		{"a replica that has not caught up", cursor.Batch{Next: 10, Empty: true, LastStableOffset: 12, HighWatermark: 12}, waiting},
		{"something that holds no whole batch", cursor.Batch{Next: 10, LastStableOffset: 20, HighWatermark: 20}, waiting},
		{"the log start is at the position", cursor.Batch{Next: 10, Empty: true, LogStart: 10, LastStableOffset: 10, HighWatermark: 20}, waiting},
		{"the log start overtook the position", cursor.Batch{Next: 10, Empty: true, LogStart: 11, LastStableOffset: 20, HighWatermark: 20}, restart},
		{"the log start overtook the target", cursor.Batch{Next: 10, Empty: true, LogStart: 40, LastStableOffset: 40, HighWatermark: 40}, restart},
		{"the log start is above what was read, which was there then", cursor.Batch{Next: 15, LogStart: 12, LastStableOffset: 20, HighWatermark: 20}, onward},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, next(position, target, c.b)) })
	}
}

func TestWhatOutOfRangeMeansForARecovery(t *testing.T) {
	const position, target = 10, 20
	for _, c := range []struct {
		name string
		b    bounds
		want step
	}{
		{"records were deleted past the position", bounds{start: 11, stable: 20, end: 20}, restart},
		{"records were deleted past the target", bounds{start: 50, stable: 50, end: 50}, restart},
		{"the log was truncated below the target", bounds{start: 0, stable: 8, end: 8}, cutOff},
		{"the log was truncated between position and target", bounds{start: 0, stable: 15, end: 15}, cutOff},
		{"the log was emptied and recreated", bounds{start: 0, stable: 0, end: 0}, cutOff},
		{"the log is whole again", bounds{start: 0, stable: 20, end: 20}, waiting},
		{"the log went on", bounds{start: 10, stable: 30, end: 30}, waiting},
		{"the end is not known", bounds{start: 0, stable: -1, end: -1}, waiting},
		{"nothing is known", bounds{start: -1, stable: -1, end: -1}, waiting},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, outOfRange(position, target, c.b)) })
	}
}

// A recovery is done only when everything below the target is read or known to
// be unreadable by anybody, and moves only forward.
func TestNoFetchEndsARecoveryBelowItsTarget(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 5))
	for range 20_000 {
		position := rng.Int64N(20)
		target := position + 1 + rng.Int64N(20)
		b := cursor.Batch{Next: position + rng.Int64N(25), LogStart: rng.Int64N(30), LastStableOffset: rng.Int64N(50)}
		b.Empty = b.Next == position && rng.IntN(4) > 0
		switch next(position, target, b) {
		case done:
			require.True(t, b.Next >= target || b.Empty && b.LastStableOffset >= target && b.LogStart <= position, "%d %d %+v", position, target, b)
		case onward:
			require.Greater(t, b.Next, position)
			require.Less(t, b.Next, target)
		case restart:
			require.Greater(t, b.LogStart, position)
		case waiting:
			require.Equal(t, b.Next, position)
		default:
			t.Fatalf("%d %d %+v", position, target, b)
		}
	}
}

func TestTheCommittableOffsetNeverGoesBack(t *testing.T) {
	var o offsets
	o.start(position{10, 3})
	require.Equal(t, position{10, 3}, o.committable(), "an ownership commits at least what it resumed from")
	_, dirty := o.dirty()
	require.False(t, dirty, "nothing is owed at the start")

	o.advance(position{15, 4})
	o.advance(position{12, 5})
	o.advance(position{15, 6})
	require.Equal(t, position{15, 4}, o.committable())
	at, dirty := o.dirty()
	require.True(t, dirty)
	require.Equal(t, position{15, 4}, at)

	o.settled(position{12, 3})
	_, dirty = o.dirty()
	require.True(t, dirty, "what is committed is behind")
	o.settled(position{15, 4})
	_, dirty = o.dirty()
	require.False(t, dirty)
	o.settled(position{11, 4})
	_, dirty = o.dirty()
	require.False(t, dirty, "a late answer changes nothing")

	o.settled(position{40, 7})
	require.Equal(t, position{40, 7}, o.committable(), "a batch's own offset was committed")
	_, dirty = o.dirty()
	require.False(t, dirty)
	o.advance(position{20, 7})
	require.Equal(t, position{40, 7}, o.committable())
}

func TestWhatWasAdvancedToStaysOwedWhileInDoubt(t *testing.T) {
	var o offsets
	o.start(position{10, 3})
	require.False(t, o.inDoubt())
	o.advance(position{15, 4})
	o.settled(position{15, 4})
	o.raiseDoubt()
	require.True(t, o.inDoubt())
	for range 2 { // a late commit may move it back at any time
		at, dirty := o.dirty()
		require.True(t, dirty)
		require.Equal(t, position{15, 4}, at)
		o.settled(at)
	}
}

func TestAnOwnershipMayStartAtZero(t *testing.T) {
	var o offsets
	o.start(position{0, -1})
	_, dirty := o.dirty()
	require.False(t, dirty)
	o.advance(position{offset: noPosition})
	require.Equal(t, position{0, -1}, o.committable(), "no position is no advance")
	o.advance(after(input(0)))
	require.Equal(t, position{1, 7}, o.committable())
}

func TestOffsetsMayBeMovedByAnybodyAtOnce(t *testing.T) {
	var o offsets
	var wg sync.WaitGroup
	for w := range int64(8) {
		wg.Go(func() {
			last := int64(-1)
			for i := range int64(500) {
				if w%2 == 0 {
					o.advance(position{i*8 + w, 0})
				} else {
					o.settled(position{i*8 + w, 0})
				}
				at := o.committable().offset
				if at < last {
					t.Errorf("went back from %d to %d", last, at)
				}
				last = at
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 499*8+7, o.committable().offset)
}

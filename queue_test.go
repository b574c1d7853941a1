package persistence

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// sized is a write of so many records and bytes.
func sized(records, bytes int) *write {
	return &write{snapshots: make([]Snapshot, records), bytes: bytes, done: make(chan error, 1)}
}

func TestBatchSize(t *testing.T) {
	for _, c := range []struct {
		name    string
		pending []*write
		want    int
	}{
		{"nothing waits", nil, 0},
		{"one", []*write{sized(1, 10)}, 1},
		{"all that fits", []*write{sized(1, 10), sized(1, 10), sized(2, 10)}, 3},
		{"exactly the bounds", []*write{sized(2, 50), sized(2, 50)}, 2},
		{"one record too many", []*write{sized(2, 1), sized(3, 1)}, 1},
		{"one byte too many", []*write{sized(1, 50), sized(1, 51)}, 1},
		{"the first alone is too long", []*write{sized(9, 1), sized(1, 1)}, 1},
		{"the first alone is too heavy", []*write{sized(1, 101), sized(1, 1)}, 1},
		{"a later one is too long, and waits", []*write{sized(1, 1), sized(9, 1), sized(1, 1)}, 1},
		{"outputs count like snapshots", []*write{{outputs: make([]*kgo.Record, 3)}, {outputs: make([]*kgo.Record, 1)}, sized(1, 0)}, 2},
		{"one without records", []*write{sized(4, 1), sized(0, 0), sized(1, 1)}, 2},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, batchSize(c.pending, 4, 100)) })
	}
}

func TestBatchSizeOfAnyQueueIsTheLongestThatFits(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		var pending []*write
		for range rng.IntN(8) {
			pending = append(pending, sized(rng.IntN(6), rng.IntN(60)))
		}
		fits := func(n int) bool {
			records, bytes := 0, 0
			for _, w := range pending[:n] {
				records += w.records()
				bytes += w.bytes
			}
			return n <= 1 || records <= 8 && bytes <= 100
		}
		n := batchSize(pending, 8, 100)
		require.True(t, fits(n))
		require.True(t, n == len(pending) || !fits(n+1), "another one would have fitted")
		require.True(t, n > 0 || len(pending) == 0)
	}
}

func TestAQueueIsTakenInOrder(t *testing.T) {
	q := newQueue()
	var all []*write
	for range 5 {
		w := sized(1, 1)
		all = append(all, w)
		require.NoError(t, q.push(w))
	}
	require.Equal(t, 5, q.len())
	first, done := q.take(3, 100)
	require.False(t, done)
	require.Equal(t, all[:3], first)
	late := sized(1, 1)
	require.NoError(t, q.push(late))
	rest, done := q.take(100, 100)
	require.False(t, done)
	require.Equal(t, []*write{all[3], all[4], late}, rest)
	require.Equal(t, all[:3], first, "what was taken is left alone")
	none, done := q.take(100, 100)
	require.Empty(t, none)
	require.False(t, done, "an empty queue is not at its end")
}

func TestAQueueWakesItsOwner(t *testing.T) {
	for name, act := range map[string]func(*queue){
		"push":  func(q *queue) { _ = q.push(sized(1, 1)) },
		"drain": func(q *queue) { q.drain(ErrRevoked) },
		"clear": func(q *queue) { q.clear(ErrLost) },
	} {
		q := newQueue()
		require.Empty(t, q.wake)
		act(q)
		act(q) // never blocks, although nobody has looked
		require.Len(t, q.wake, 1, name)
	}
}

func TestWithdrawTakesBackOnlyWhatStillWaits(t *testing.T) {
	q := newQueue()
	var ws []*write
	for range 4 {
		w := sized(1, 1)
		ws = append(ws, w)
		require.NoError(t, q.push(w))
	}
	batch, _ := q.take(1, 100)
	require.Equal(t, ws[:1], batch)
	require.False(t, q.withdraw(ws[0]), "a transaction has it")
	require.True(t, q.withdraw(ws[2]))
	require.False(t, q.withdraw(ws[2]), "once")
	require.False(t, q.withdraw(sized(1, 1)), "it never waited")
	rest, _ := q.take(100, 100)
	require.Equal(t, []*write{ws[1], ws[3]}, rest)
	require.Equal(t, ws[:1], batch, "what was taken is left alone")
}

func TestADrainedQueueEndsWhenItIsEmpty(t *testing.T) {
	q := newQueue()
	w := sized(1, 1)
	require.NoError(t, q.push(w))
	q.drain(ErrRevoked)
	q.drain(ErrLost)
	require.ErrorIs(t, q.push(sized(1, 1)), ErrRevoked, "the first reason stays")
	batch, done := q.take(100, 100)
	require.Equal(t, []*write{w}, batch)
	require.False(t, done, "what waited is still taken")
	batch, done = q.take(100, 100)
	require.Empty(t, batch)
	require.True(t, done)
}

func TestAClearedQueueHandsOverWhatWaits(t *testing.T) {
	q := newQueue()
	a, b := sized(1, 1), sized(1, 1)
	require.NoError(t, q.push(a))
	require.NoError(t, q.push(b))
	require.Equal(t, []*write{a, b}, q.clear(ErrLost))
	require.Empty(t, q.clear(ErrClosed), "once")
	require.ErrorIs(t, q.push(sized(1, 1)), ErrLost)
	require.False(t, q.withdraw(a), "whoever cleared it answers")
	_, done := q.take(100, 100)
	require.True(t, done)

	drained := newQueue()
	require.NoError(t, drained.push(a))
	drained.drain(ErrRevoked)
	require.Equal(t, []*write{a}, drained.clear(ErrLost))
	require.ErrorIs(t, drained.push(b), ErrRevoked)
}

// Each write leaves the queue by one door only, whatever happens meanwhile.
func TestEachWriteLeavesTheQueueOnce(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		q := newQueue()
		left := make(map[*write]string)
		leave := func(door string, ws ...*write) {
			for _, w := range ws {
				require.Empty(t, left[w], "left by %s before", left[w])
				left[w] = door
			}
		}
		var pushed []*write
		for step := range 300 {
			switch n := rng.IntN(20); {
			case n < 12:
				w := sized(1+rng.IntN(3), rng.IntN(10))
				if q.push(w) == nil {
					pushed = append(pushed, w)
				}
			case n < 15:
				batch, _ := q.take(4, 20)
				leave("take", batch...)
			case n < 19:
				if len(pushed) > 0 {
					if w := pushed[rng.IntN(len(pushed))]; q.withdraw(w) {
						leave("withdraw", w)
					}
				}
			case step > 250:
				leave("clear", q.clear(errors.New("over"))...)
			}
			waiting := slices.DeleteFunc(slices.Clone(pushed), func(w *write) bool { return left[w] != "" })
			require.Equal(t, len(waiting), q.len(), fmt.Sprintf("seed %d, step %d", seed, step))
		}
	}
}

package flow_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/flow"
)

// What a tick changes and emits is committed in one transaction, and each key's
// own outputs with it; a key that it skips is not written.
func TestATickIsCommittedTogether(t *testing.T) {
	b := newBench(t, 1)
	var folded atomic.Int32
	spec := counter(func(*flow.Key[int], *kgo.Record) error { folded.Add(1); return nil })
	spec.Persist, spec.Workers, spec.TickEvery = flow.Every(time.Hour), 3, time.Millisecond
	spec.Tick = func(_ context.Context, tick *flow.Tick[int]) error {
		if folded.Load() < 4 || !folded.CompareAndSwap(4, 5) {
			return nil
		}
		total := 0
		err := tick.Each(func(k *flow.Key[int]) error {
			total += k.State
			switch string(k.Key()) {
			case "a":
				k.State += 100
				k.Emit(&kgo.Record{Topic: "out", Value: []byte("a")})
			case "b":
				k.Delete()
			default:
				k.Skip()
			}
			require.Empty(b, k.EventID())
			return nil
		})
		tick.Emit(&kgo.Record{Topic: "out", Value: fmt.Appendf(nil, "total %d of partition %d", total, tick.Partition())})
		return err
	}
	f := start(b, spec)
	b.produce(0, "a=1", "a=1", "b=1", "c=1")
	b.eventually("it is committed", func() bool { return b.committed(0) == 4 })
	require.NoError(t, f.end())
	require.Equal(t, map[string]string{"a": "102", "c": "1"}, b.state(0))
	out := b.read("out", 0)
	require.Equal(t, []string{"a", "total 4 of partition 0"}, values(out))
	require.Equal(t, out[0].Offset+1, out[1].Offset, "no marker in between: it is one transaction")
	require.Len(t, b.read("state", 0), 3, "each key once")
}

// A tick waits for the folds, and folds wait for it.
func TestNothingIsFoldedDuringATick(t *testing.T) {
	b := newBench(t, 1)
	var folding, ticks, folds atomic.Int32
	var overlap atomic.Bool
	spec := counter(func(*flow.Key[int], *kgo.Record) error {
		folding.Add(1)
		defer folding.Add(-1)
		folds.Add(1)
		for range 100 {
			runtime.Gosched() // it takes a while
		}
		return nil
	})
	spec.Workers, spec.TickEvery = 4, time.Millisecond
	spec.Tick = func(_ context.Context, tick *flow.Tick[int]) error {
		if folding.Load() != 0 {
			overlap.Store(true)
		}
		before := folds.Load()
		sum := 0
		err := tick.Each(func(k *flow.Key[int]) error { sum += k.State; k.Skip(); return nil })
		if folding.Load() != 0 || folds.Load() != before {
			overlap.Store(true)
		}
		ticks.Add(1)
		return err
	}
	for i := range 300 {
		b.produce(0, fmt.Sprintf("k%d=1", i%20))
	}
	f := start(b, spec)
	b.eventually("all is committed, and it ticks", func() bool { return b.committed(0) == 300 && ticks.Load() > 5 })
	require.NoError(t, f.end())
	require.False(t, overlap.Load())
}

// Ticks see states that were recovered, and may set timers.
func TestATickSeesRecoveredStates(t *testing.T) {
	b := newBench(t, 1)
	f := start(b, counter(nil))
	b.produce(0, "a=1", "b=1")
	b.eventually("all is committed", func() bool { return b.committed(0) == 2 })
	require.NoError(t, f.end())

	var once atomic.Bool
	spec := counter(nil)
	spec.TickEvery = time.Millisecond
	spec.Tick = func(_ context.Context, tick *flow.Tick[int]) error {
		if !once.CompareAndSwap(false, true) {
			return nil
		}
		return tick.Each(func(k *flow.Key[int]) error {
			k.State += 10
			k.SetTimer("soon", time.Now().Add(time.Millisecond))
			return nil
		})
	}
	spec.Timer = func(_ context.Context, k *flow.Key[int], name string) error { k.State += 100; return nil }
	f = start(b, spec)
	b.eventually("the timers are called", func() bool { return maps.Equal(map[string]string{"a": "111", "b": "111"}, b.state(0)) })
	require.NoError(t, f.end())
}

// Nothing of a tick that fails is committed.
func TestATickThatFailsEndsTheFlow(t *testing.T) {
	b := newBench(t, 1)
	spec := counter(nil)
	spec.TickEvery = time.Millisecond
	spec.Tick = func(_ context.Context, tick *flow.Tick[int]) error {
		n := 0
		_ = tick.Each(func(k *flow.Key[int]) error { k.State = 1000; n++; return nil })
		tick.Emit(&kgo.Record{Topic: "out", Value: []byte("half")})
		if n < 2 {
			panic("not enough keys")
		}
		return errors.New("no good")
	}
	var failed *flow.FoldError
	require.ErrorAs(t, start(b, spec).wait(), &failed)
	require.Nil(t, failed.Key)
	require.ErrorContains(t, failed, "the tick of partition 0 of in failed: panic: not enough keys")
	require.Empty(t, b.read("out", 0))
	require.Empty(t, b.read("state", 0))

	_, err := flow.New(flow.Spec[int]{Codec: flow.JSON[int](1), Fold: func(context.Context, *flow.Key[int], *kgo.Record) error { return nil }, TickEvery: 1})
	require.ErrorContains(t, err, "Tick is required")
	spec.TickEvery = 0
	_, err = flow.New(spec)
	require.ErrorContains(t, err, "TickEvery 0s: at least 1ms")
}

package flow

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

func newWorker(fold func(*Key[map[string]int], *kgo.Record) error) *worker[map[string]int] {
	f, err := New(Spec[map[string]int]{Codec: JSON[map[string]int](1), Workers: 1,
		Fold: func(_ context.Context, k *Key[map[string]int], e *kgo.Record) error { return fold(k, e) }})
	if err != nil {
		panic(err)
	}
	return &worker[map[string]int]{spec: &f.spec, slots: f.slots, tag: codecTag(f.spec.Codec), drain: new(atomic.Bool), out: make(chan report, 10),
		wake: make(chan struct{}, 1), keys: make(map[string]*entry[map[string]int])}
}

func events(keys ...string) (all []*kgo.Record) {
	for i, k := range keys {
		all = append(all, &kgo.Record{Topic: "in", Key: []byte(k), Offset: int64(i)})
	}
	return all
}

// What a worker that drains leaves out is not persisted, and so not passed.
func TestWhatIsLeftOutIsNotPassed(t *testing.T) {
	w := newWorker(func(k *Key[map[string]int], _ *kgo.Record) error {
		k.State = map[string]int{"n": 1}
		return nil
	})
	all := events("a", "b", "c", "d")
	w.put(all[:2])
	n, err := w.work(context.Background())
	require.NoError(t, err)
	require.Equal(t, 2, n)
	w.drain.Store(true)
	w.put(all[2:])
	n, err = w.work(context.Background())
	require.NoError(t, err)
	require.Equal(t, 2, n, "they are through, in their way")
	s := w.collect(true, 3)
	require.Len(t, s.snapshots, 2)
	require.Same(t, all[2], s.low)
	require.Nil(t, w.collect(true, 3).snapshots, "once")
}

// While a key is being folded its state may be half done: it is left for the next
// time, together with its earlier events.
func TestAKeyThatIsBeingFoldedIsLeftForLater(t *testing.T) {
	half, goOn := make(chan struct{}), make(chan struct{})
	w := newWorker(func(k *Key[map[string]int], e *kgo.Record) error {
		if k.State == nil {
			k.State = make(map[string]int)
		}
		k.State["half"]++
		if e.Offset == 2 {
			half <- struct{}{}
			<-goOn
		}
		k.State["whole"]++
		return nil
	})
	all := events("a", "b", "a", "c")
	w.put(all)
	done := make(chan error, 1)
	go func() {
		for {
			if n, err := w.work(context.Background()); n == 0 || err != nil {
				done <- err
				return
			}
		}
	}()
	<-half
	s := w.collect(true, 3)
	require.Len(t, s.snapshots, 1)
	require.Equal(t, "b", string(s.snapshots[0].Key))
	require.Same(t, all[0], s.low)
	require.True(t, s.dirty)
	close(goOn)
	require.NoError(t, <-done)
	s = w.collect(true, 3)
	require.Len(t, s.snapshots, 2)
	require.JSONEq(t, `{"half":2,"whole":2}`, string(s.snapshots[0].Value))
	require.EqualValues(t, 2, s.snapshots[0].SourceOffset)
	require.Nil(t, s.low)
	require.False(t, s.dirty)
}

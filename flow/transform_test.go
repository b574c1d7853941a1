package flow_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/flow"
)

func transform(b *bench, spec flow.Transform, opts ...persistence.Option) *running {
	b.Helper()
	f, err := flow.NewTransform(spec)
	require.NoError(b, err)
	return b.run(f.Run, append([]persistence.Option{persistence.SnapshotTopic(""), persistence.Stateless()}, opts...)...)
}

// consuming are the options of another service, which reads another topic.
func consuming(topic, group string) []persistence.Option {
	return []persistence.Option{persistence.Kafka(kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group)), persistence.TransactionalIDPrefix(group)}
}

func upper(_ context.Context, e *kgo.Record) ([]*kgo.Record, error) {
	return []*kgo.Record{{Topic: "out", Value: append([]byte("to "), e.Value...)}}, nil
}

// Outputs come in the order of their events, whichever is transformed first, and
// no topic for snapshots is needed.
func TestOutputsComeInTheOrderOfTheirEvents(t *testing.T) {
	b := newBench(t, 1)
	_, err := kadm.NewClient(b.admin).DeleteTopic(b.ctx, "state")
	require.NoError(t, err)
	release := make(chan struct{})
	var fast sync.WaitGroup
	fast.Add(20)
	f := transform(b, flow.Transform{Workers: 40, Each: func(ctx context.Context, e *kgo.Record) ([]*kgo.Record, error) {
		if string(e.Value) == "slow" {
			<-release
		} else {
			fast.Done()
		}
		return upper(ctx, e)
	}})
	b.produce(0, "=slow")
	var want = []string{"to slow"}
	for i := range 20 {
		b.produce(0, fmt.Sprintf("=%d", i))
		want = append(want, fmt.Sprintf("to %d", i))
	}
	fast.Wait()
	require.Empty(t, b.read("out", 0), "the others wait for the slow one")
	require.LessOrEqual(t, b.committed(0), int64(0))
	close(release)
	b.eventually("all is committed", func() bool { return b.committed(0) == 21 })
	require.NoError(t, f.end())
	require.Equal(t, want, values(b.read("out", 0)))
	exists, err := kadm.NewClient(b.admin).ListTopics(b.ctx, "state")
	require.NoError(t, err)
	require.Error(t, exists["state"].Err)
}

// The events of a key are transformed one after another, while those of others
// overtake them.
func TestTheEventsOfAKeyAreTransformedInOrder(t *testing.T) {
	b := newBench(t, 1)
	var mu sync.Mutex
	var seen []string
	var others atomic.Int32
	overtaken := make(chan struct{})
	events := []string{"a=1", "a=2"}
	for i := range 40 {
		events = append(events, fmt.Sprintf("k%d=x", i))
	}
	b.produce(0, events...)
	f := transform(b, flow.Transform{Workers: 40, Each: func(_ context.Context, e *kgo.Record) ([]*kgo.Record, error) {
		if string(e.Key) != "a" {
			if others.Add(1) == 20 {
				close(overtaken)
			}
			return nil, nil
		}
		if string(e.Value) == "1" {
			<-overtaken
		}
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, string(e.Value))
		return nil, nil
	}})
	b.eventually("the offset passes events that became nothing", func() bool { return b.committed(0) == 42 })
	require.NoError(t, f.end())
	require.Equal(t, []string{"1", "2"}, seen)
}

// What is handed over in the middle is transformed again by the next owner, and
// its outputs are there once.
func TestAHandoverOfATransformKeepsEachOutputOnce(t *testing.T) {
	b := newBench(t, 1)
	var n atomic.Int32
	reached := make(chan struct{})
	f := transform(b, flow.Transform{Workers: 3, Each: func(ctx context.Context, e *kgo.Record) ([]*kgo.Record, error) {
		if n.Add(1) == 15 {
			close(reached)
		}
		return upper(ctx, e)
	}})
	var want []string
	for i := range 30 {
		b.produce(0, fmt.Sprintf("k%d=%d", i%7, i))
		want = append(want, fmt.Sprintf("to %d", i))
	}
	<-reached
	require.NoError(t, f.end())
	f = transform(b, flow.Transform{Workers: 3, Each: upper})
	b.eventually("all is committed", func() bool { return b.committed(0) == 30 })
	require.NoError(t, f.end())
	require.Equal(t, want, values(b.read("out", 0)))
}

// A revoke does not wait for retries: the event is left to the next owner, and
// what is behind it too.
func TestARevokeEndsTheRetries(t *testing.T) {
	b := newBench(t, 1)
	tried := make(chan struct{}, 1)
	f := transform(b, flow.Transform{Poison: flow.Retry(100, time.Hour, flow.DeadLetters("dead")), Workers: 2, Each: func(ctx context.Context, e *kgo.Record) ([]*kgo.Record, error) {
		if string(e.Value) == "bad" {
			select {
			case tried <- struct{}{}:
			default:
			}
			return nil, errors.New("not now")
		}
		return upper(ctx, e)
	}})
	b.produce(0, "a=1", "b=bad", "a=2")
	<-tried
	require.NoError(t, f.end())
	require.EqualValues(t, 1, b.committed(0))
	require.Equal(t, []string{"to 1"}, values(b.read("out", 0)))
	require.Empty(t, b.read("dead", 0))
	f = transform(b, flow.Transform{Each: upper})
	b.eventually("all is committed", func() bool { return b.committed(0) == 3 })
	require.NoError(t, f.end())
	require.Equal(t, []string{"to 1", "to bad", "to 2"}, values(b.read("out", 0)))
}

// A failing event is tried again and then goes to the dead letters, in its place;
// or it stops the transform.
func TestPoisonInATransform(t *testing.T) {
	b := newBench(t, 1)
	var ids []string
	var mu sync.Mutex
	spec := flow.Transform{Poison: flow.Retry(2, time.Millisecond, flow.DeadLetters("dead")), Each: func(ctx context.Context, e *kgo.Record) ([]*kgo.Record, error) {
		switch string(e.Value) {
		case "bad":
			mu.Lock()
			defer mu.Unlock()
			ids = append(ids, flow.EventID(e, 0))
			return []*kgo.Record{{Topic: "out", Value: []byte("half")}}, errors.New("no good")
		case "panic":
			panic("on purpose")
		}
		return upper(ctx, e)
	}}
	f := transform(b, spec)
	b.produce(0, "a=1", "a=bad", "=panic", "a=2")
	b.eventually("all is committed", func() bool { return b.committed(0) == 4 })
	require.NoError(t, f.end())
	require.Equal(t, []string{"to 1", "to 2"}, values(b.read("out", 0)))
	dead := b.read("dead", 0)
	require.Equal(t, []string{"bad", "panic"}, values(dead))
	require.Equal(t, []string{"in/0/1/0", "in/0/1/0", "in/0/1/0"}, ids)

	spec.Poison = flow.Stop()
	f = transform(b, spec)
	b.produce(0, "a=3", "c=bad")
	var failed *flow.FoldError
	require.ErrorAs(t, f.wait(), &failed)
	require.EqualValues(t, 5, failed.Offset)
	require.Equal(t, "c", string(failed.Key))
}

func TestATransformsFaultsAreReportedTogether(t *testing.T) {
	_, err := flow.NewTransform(flow.Transform{Workers: -1, MaxInFlight: -2, Poison: flow.Retry(-1, 0, flow.Stop())})
	for _, s := range []string{"Each: required", "Workers -1", "MaxInFlight -2", "Retry(-1, 0s)"} {
		require.ErrorContains(t, err, s)
	}
}

// A module without snapshots says so to whoever asks for them.
func TestAStatelessModuleHasNoSnapshots(t *testing.T) {
	b := newBench(t, 1)
	r := b.run(func(ctx context.Context, m *persistence.Module) error {
		return m.Run(ctx, func(ctx context.Context, p *persistence.Partition) error {
			_, err := p.Recover(ctx, func(persistence.Snapshot) error { return nil }, func() {})
			require.ErrorIs(b, err, persistence.ErrStateless)
			return p.Write(ctx, persistence.Snapshot{Key: []byte("k"), Value: []byte("v")})
		})
	}, persistence.SnapshotTopic(""), persistence.Stateless())
	require.ErrorIs(t, r.wait(), persistence.ErrStateless)
	require.Empty(t, b.read("state", 0))

	// A flow has state, and finds out at once.
	require.ErrorIs(t, start(b, counter(nil), persistence.SnapshotTopic(""), persistence.Stateless()).wait(), persistence.ErrStateless)
}

package flow_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/flow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a cluster with an input, a snapshot topic, and two for outputs.
type bench struct {
	*testing.T
	cluster *kfake.Cluster
	ctx     context.Context
	admin   *kgo.Client
	next    map[int32]int
}

func newBench(t *testing.T, partitions int32) *bench {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, "in", "out", "dead"))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	require.NoError(t, c.CreateTopic("state", partitions, map[string]string{"cleanup.policy": "compact"}))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	b := &bench{T: t, cluster: c, ctx: ctx, next: make(map[int32]int)}
	b.admin, err = kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	t.Cleanup(b.admin.Close)
	return b
}

// produce writes events "key=value" to a partition.
func (b *bench) produce(partition int32, events ...string) {
	b.Helper()
	for _, e := range events {
		key, value := cut(e)
		require.NoError(b, b.admin.ProduceSync(b.ctx, &kgo.Record{Topic: "in", Partition: partition, Key: key, Value: value}).FirstErr())
	}
}

func cut(e string) (key, value []byte) {
	k, v, _ := strings.Cut(e, "=")
	return []byte(k), []byte(v)
}

// running is a flow that runs.
type running struct {
	b    *bench
	stop context.CancelFunc
	done chan error
	mod  *persistence.Module
}

func start[S any](b *bench, spec flow.Spec[S], opts ...persistence.Option) *running {
	b.Helper()
	f, err := flow.New(spec)
	require.NoError(b, err)
	return b.run(f.Run, opts...)
}

func (b *bench) run(run func(context.Context, *persistence.Module) error, opts ...persistence.Option) *running {
	b.Helper()
	m, err := persistence.New(append([]persistence.Option{
		persistence.Kafka(kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.ConsumerGroup("g"), kgo.ConsumeTopics("in"), kgo.FetchMaxWait(50*time.Millisecond)),
		persistence.SnapshotTopic("state"), persistence.TransactionalIDPrefix("p"), persistence.CommitInterval(20 * time.Millisecond),
		persistence.Logger(slog.New(slog.DiscardHandler)),
	}, opts...)...)
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(b.ctx)
	r := &running{b: b, stop: cancel, done: make(chan error, 1), mod: m}
	go func() { r.done <- run(ctx, m) }()
	b.Cleanup(func() {
		cancel()
		_ = m.Close(context.Background())
	})
	return r
}

// end stops the flow in order.
func (r *running) end() error {
	r.b.Helper()
	r.stop()
	return r.wait()
}

func (r *running) wait() error {
	r.b.Helper()
	select {
	case err := <-r.done:
		_ = r.mod.Close(context.Background())
		return err
	case <-r.b.ctx.Done():
		r.b.Fatal("the flow did not end")
		return nil
	}
}

// read returns the committed records of a topic's partition.
func (b *bench) read(topic string, partition int32) []*kgo.Record {
	b.Helper()
	end, err := kadm.NewClient(b.admin).ListEndOffsets(b.ctx, topic)
	require.NoError(b, err)
	o, _ := end.Lookup(topic, partition)
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxWait(50*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}))
	require.NoError(b, err)
	defer cl.Close()
	var all []*kgo.Record
	for next := int64(0); next < o.Offset; {
		for _, r := range cl.PollFetches(b.ctx).Records() {
			if next = r.Offset + 1; !r.Attrs.IsControl() {
				all = append(all, r)
			}
		}
		require.NoError(b, b.ctx.Err())
	}
	return all
}

// state is the newest value of each key.
func (b *bench) state(partition int32) map[string]string {
	b.Helper()
	state := make(map[string]string)
	for _, r := range b.read("state", partition) {
		if r.Value == nil {
			delete(state, string(r.Key))
		} else {
			state[string(r.Key)] = string(r.Value)
		}
	}
	return state
}

func (b *bench) committed(partition int32) int64 {
	b.Helper()
	os, err := kadm.NewClient(b.admin).FetchOffsets(b.ctx, "g")
	if err != nil {
		return -1
	}
	if o, ok := os.Lookup("in", partition); ok {
		return o.At
	}
	return -1
}

func (b *bench) eventually(what string, condition func() bool) {
	b.Helper()
	require.Eventually(b, condition, 30*time.Second, 5*time.Millisecond, what)
}

func values(rs []*kgo.Record) (vs []string) {
	for _, r := range rs {
		vs = append(vs, string(r.Value))
	}
	return vs
}

func counter(fold func(*flow.Key[int], *kgo.Record) error) flow.Spec[int] {
	return flow.Spec[int]{Codec: flow.JSON[int](1), Fold: func(_ context.Context, k *flow.Key[int], e *kgo.Record) error {
		k.State++
		if fold != nil {
			return fold(k, e)
		}
		return nil
	}}
}

// For each policy: all events are folded once over several runs, the committed
// offset reaches the end, and the state is what a model's is.
func TestEachPolicyPersistsEverythingOnce(t *testing.T) {
	for name, policy := range map[string]flow.Persist{
		"each event": flow.EveryEvent(), "every three": flow.EveryN(3), "every 20 ms": flow.Every(20 * time.Millisecond), "every hour": flow.Every(time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 2)
			want := map[int32]map[string]string{0: {}, 1: {}}
			n := 0
			for range 3 {
				var folded atomic.Int32
				spec := counter(func(k *flow.Key[int], e *kgo.Record) error {
					folded.Add(1)
					k.Emit(&kgo.Record{Topic: "out", Key: e.Key, Value: fmt.Appendf(nil, "%s:%d", e.Value, k.State)})
					return nil
				})
				spec.Persist, spec.Workers = policy, 3
				if name == "every hour" {
					spec.Fold = func(_ context.Context, k *flow.Key[int], _ *kgo.Record) error { k.State++; folded.Add(1); return nil }
				}
				f := start(b, spec)
				for range 20 {
					partition, key := int32(n%2), fmt.Sprint("k", n%5)
					b.produce(partition, fmt.Sprintf("%s=%d", key, n))
					was, _ := strconv.Atoi(want[partition][key])
					want[partition][key] = fmt.Sprint(was + 1)
					n++
				}
				b.eventually("all are folded", func() bool { return folded.Load() == 20 })
				require.NoError(t, f.end())
				for id := range int32(2) {
					require.Equal(t, want[id], b.state(id))
					require.EqualValues(t, n/2, b.committed(id))
				}
			}
			if name == "every hour" {
				return
			}
			var out []string
			for id := range int32(2) {
				out = append(out, values(b.read("out", id))...)
			}
			seen := make(map[string]bool)
			for _, v := range out {
				event, _, _ := strings.Cut(v, ":")
				seen[event] = true
			}
			require.Len(t, seen, n)
			require.Len(t, out, n, "each output once")
		})
	}
}

// What a replay brings again is not folded again: an operator has reset the
// offset, keys that are deleted included.
func TestAReplayChangesNothing(t *testing.T) {
	b := newBench(t, 1)
	spec := counter(func(k *flow.Key[int], e *kgo.Record) error {
		if string(e.Value) == "delete" {
			k.Delete()
		}
		k.Emit(&kgo.Record{Topic: "out", Value: fmt.Appendf(nil, "%s%d", k.Key(), e.Offset)})
		return nil
	})
	f := start(b, spec)
	b.produce(0, "a=1", "b=1", "a=2", "b=delete", "c=1")
	b.eventually("all is committed", func() bool { return b.committed(0) == 5 })
	require.NoError(t, f.end())
	require.Equal(t, map[string]string{"a": "2", "c": "1"}, b.state(0))
	outputs := values(b.read("out", 0))
	require.ElementsMatch(t, []string{"a0", "b1", "a2", "b3", "c4"}, outputs)

	b.rewind(0)
	f = start(b, spec)
	b.produce(0, "b=1")
	b.eventually("the new event is committed", func() bool { return b.committed(0) == 6 })
	require.NoError(t, f.end())
	require.Equal(t, map[string]string{"a": "2", "b": "1", "c": "1"}, b.state(0))
	require.Equal(t, append(outputs, "b5"), values(b.read("out", 0)))
}

// A key that expired stays gone when its events are replayed, and an event after
// them begins anew.
func TestAReplayDoesNotBringAnExpiredKeyBack(t *testing.T) {
	b := newBench(t, 1)
	spec := counter(func(k *flow.Key[int], e *kgo.Record) error {
		k.ExpireAt(time.Now().Add(time.Millisecond))
		if string(e.Value) == "stay" {
			k.ExpireAt(time.Time{})
		}
		return nil
	})
	f := start(b, spec)
	b.produce(0, "a=1", "b=stay", "a=2")
	b.eventually("it has expired", func() bool { return b.committed(0) == 3 && len(b.state(0)) == 1 })
	require.NoError(t, f.end())
	b.rewind(0)
	f = start(b, spec)
	b.produce(0, "a=stay")
	b.eventually("the new event is committed", func() bool { return b.committed(0) == 4 })
	require.NoError(t, f.end())
	require.Equal(t, map[string]string{"a": "1", "b": "1"}, b.state(0))
}

// An operator who wants the events folded anew sets the offset back and has the
// state rebuilt.
func TestARewindWithRebuildFoldsAnew(t *testing.T) {
	b := newBench(t, 1)
	f := start(b, counter(nil))
	b.produce(0, "a=1", "b=1", "a=2")
	b.eventually("all is committed", func() bool { return b.committed(0) == 3 })
	require.NoError(t, f.end())
	b.rewind(0)
	byTen := counter(func(k *flow.Key[int], _ *kgo.Record) error { k.State += 9; return nil })
	f = start(b, byTen, persistence.OnMismatch(persistence.OffsetBehind, persistence.Rebuild))
	b.eventually("all is committed", func() bool { return b.committed(0) == 3 && b.state(0)["a"] == "20" })
	require.NoError(t, f.end())
	require.Equal(t, map[string]string{"a": "20", "b": "10"}, b.state(0))
}

// rewind sets the group's offset to the start, as an operator does.
func (b *bench) rewind(partition int32) {
	b.Helper()
	var back kadm.Offsets
	back.AddOffset("in", partition, 0, -1)
	b.eventually("the offset is reset", func() bool { return kadm.NewClient(b.admin).CommitAllOffsets(b.ctx, "g", back) == nil })
}

// Events that change nothing move the offset, without a snapshot.
func TestSkippedEventsMoveTheOffset(t *testing.T) {
	b := newBench(t, 1)
	f := start(b, counter(func(k *flow.Key[int], e *kgo.Record) error { k.Skip(); return nil }))
	b.produce(0, "a=1", "b=1", "a=2")
	b.eventually("the offset moves", func() bool { return b.committed(0) == 3 })
	require.NoError(t, f.end())
	require.Empty(t, b.read("state", 0))
}

// The committed offset waits for the slowest key, and nothing else does.
func TestOnlyTheCommittedOffsetWaitsForTheSlowestKey(t *testing.T) {
	b := newBench(t, 1)
	hold, started := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	defer release()
	spec := counter(func(k *flow.Key[int], e *kgo.Record) error {
		if string(e.Value) == "slow" {
			close(started)
			<-hold
		}
		return nil
	})
	spec.Workers = 64
	f := start(b, spec)
	b.produce(0, "a=1", "slow=1")
	b.eventually("both are committed", func() bool { return b.committed(0) == 2 })
	b.produce(0, "slow=slow")
	<-started
	var quick []string
	for i := range 30 {
		quick = append(quick, fmt.Sprintf("q%d=1", i))
	}
	b.produce(0, quick...)
	b.eventually("those of other workers are persisted", func() bool { return len(b.state(0)) > 20 })
	require.EqualValues(t, 2, b.committed(0))
	require.Equal(t, "1", b.state(0)["slow"])
	release()
	b.eventually("all is committed", func() bool { return b.committed(0) == 33 })
	require.NoError(t, f.end())
	require.Len(t, b.state(0), 32)
	require.Equal(t, "2", b.state(0)["slow"])
}

// A fold that fails is undone, whatever it did to its state in place.
func TestAFailedFoldIsUndone(t *testing.T) {
	b := newBench(t, 1)
	var tries atomic.Int32
	spec := flow.Spec[map[string]int]{
		Codec:  flow.JSON[map[string]int](1),
		Poison: flow.Retry(2, time.Millisecond, flow.DeadLetters("dead")),
		Fold: func(_ context.Context, k *flow.Key[map[string]int], e *kgo.Record) error {
			if k.State == nil {
				k.State = make(map[string]int)
			}
			k.State[string(e.Value)]++
			k.Emit(&kgo.Record{Topic: "out", Value: e.Value})
			switch string(e.Value) {
			case "bad":
				tries.Add(1)
				return errors.New("no good")
			case "panic":
				panic("on purpose")
			case "flaky":
				if tries.Add(1) == 4 {
					return errors.New("the first time only")
				}
			}
			return nil
		},
	}
	f := start(b, spec)
	b.produce(0, "a=1", "a=bad", "a=2", "a=panic", "b=bad2", "a=flaky")
	b.eventually("all is committed", func() bool { return b.committed(0) == 6 })
	require.NoError(t, f.end())
	require.Equal(t, map[string]string{"a": `{"1":1,"2":1,"flaky":1}`, "b": `{"bad2":1}`}, b.state(0))
	require.ElementsMatch(t, []string{"1", "2", "bad2", "flaky"}, values(b.read("out", 0)))
	dead := b.read("dead", 0)
	require.Equal(t, []string{"bad", "panic"}, values(dead))
	headers := make(map[string]string)
	for _, h := range dead[0].Headers {
		headers[h.Key] = string(h.Value)
	}
	require.Equal(t, "in", headers["kafka_dlt-original-topic"])
	require.Equal(t, "\x00\x00\x00\x00\x00\x00\x00\x01", headers["kafka_dlt-original-offset"])
	require.Equal(t, "\x00\x00\x00\x00", headers["kafka_dlt-original-partition"])
	require.Equal(t, "no good", headers["kafka_dlt-exception-message"])
	require.Equal(t, "3", headers["flow.attempts"])
	require.Equal(t, "a", headers["flow.key"])
}

// Dead letters are not written again by a replay, not even those of keys that
// have no state, or of events that have no key.
func TestDeadLettersGoOutOnce(t *testing.T) {
	b := newBench(t, 1)
	spec := counter(func(k *flow.Key[int], e *kgo.Record) error {
		if string(e.Value) == "bad" {
			return errors.New("no good")
		}
		return nil
	})
	spec.Poison = flow.DeadLetters("dead")
	for range 2 {
		f := start(b, spec)
		at := b.committed(0)
		b.produce(0, "x=bad", "a=1", "=nokey", "y=bad")
		b.eventually("all is committed", func() bool { return b.committed(0) == max(at, 0)+4 })
		require.NoError(t, f.end())
	}
	require.ElementsMatch(t, []string{"bad", "nokey", "bad", "bad", "nokey", "bad"}, values(b.read("dead", 0)))
	require.Equal(t, map[string]string{"a": "2"}, b.state(0))
}

// Without another policy a failed fold ends Run, and its event is folded by the
// next one.
func TestAFailureStopsTheFlow(t *testing.T) {
	b := newBench(t, 1)
	spec := counter(func(k *flow.Key[int], e *kgo.Record) error {
		if string(e.Value) == "bad" {
			return errors.New("no good")
		}
		return nil
	})
	f := start(b, spec)
	b.produce(0, "a=1")
	b.eventually("the first is committed", func() bool { return b.committed(0) == 1 })
	b.produce(0, "b=bad", "a=2")
	var failed *flow.FoldError
	require.ErrorAs(t, f.wait(), &failed)
	require.EqualValues(t, 1, failed.Offset)
	require.Equal(t, "b", string(failed.Key))
	require.ErrorContains(t, failed, "no good")
	require.EqualValues(t, 1, b.committed(0), "it is not passed")

	f = start(b, counter(nil))
	b.eventually("all is committed", func() bool { return b.committed(0) == 3 })
	require.NoError(t, f.end())
	require.Equal(t, map[string]string{"a": "2", "b": "1"}, b.state(0))
}

// Timers are called once, also after a restart; expiry deletes the key.
func TestTimersSurviveARestart(t *testing.T) {
	b := newBench(t, 1)
	var mu sync.Mutex
	due := time.Now().Add(time.Hour)
	spec := flow.Spec[int]{
		Codec: flow.JSON[int](1),
		Fold: func(_ context.Context, k *flow.Key[int], e *kgo.Record) error {
			k.State++
			mu.Lock()
			defer mu.Unlock()
			switch string(e.Value) {
			case "soon":
				k.SetTimer("wake", time.Now().Add(20*time.Millisecond))
			case "later":
				k.SetTimer("wake", due)
			case "cancel":
				k.CancelTimer("wake")
			case "expire":
				k.ExpireAt(time.Now().Add(20 * time.Millisecond))
			}
			return nil
		},
		Timer: func(_ context.Context, k *flow.Key[int], name string) error {
			k.State += 100
			k.Emit(&kgo.Record{Topic: "out", Value: []byte(name + " " + string(k.Key()))})
			require.Empty(t, k.EventID())
			return nil
		},
	}
	f := start(b, spec)
	b.produce(0, "a=soon", "b=later", "c=later", "c=cancel", "d=expire", "e=1")
	b.eventually("a's timer is committed, and d is gone", func() bool {
		return maps.Equal(map[string]string{"a": "101", "b": "1", "c": "2", "e": "1"}, b.state(0))
	})
	require.NoError(t, f.end())
	due = time.Now().Add(-time.Second)
	// The due time in b's snapshot is an hour away: it is set anew.
	f = start(b, spec)
	b.produce(0, "b=later")
	b.eventually("b's timer is committed", func() bool { return b.state(0)["b"] == "102" })
	require.NoError(t, f.end())
	f = start(b, spec)
	b.produce(0, "e=1")
	b.eventually("the next event is committed", func() bool { return b.committed(0) == 8 })
	require.NoError(t, f.end())
	require.Equal(t, []string{"wake a", "wake b"}, values(b.read("out", 0)), "each once")
	require.Equal(t, map[string]string{"a": "101", "b": "102", "c": "2", "e": "2"}, b.state(0))
}

// A timer that came due while nobody was there is called after the recovery.
func TestATimerThatIsOverdueIsCalledAfterRecovery(t *testing.T) {
	b := newBench(t, 1)
	at := time.Now().Add(300 * time.Millisecond)
	f := start(b, flow.Spec[int]{Codec: flow.JSON[int](1), Fold: func(_ context.Context, k *flow.Key[int], _ *kgo.Record) error {
		k.State = 1
		k.SetTimer("a&b=c", at)
		return nil
	}})
	b.produce(0, "k=1")
	b.eventually("it is committed", func() bool { return b.committed(0) == 1 })
	require.NoError(t, f.end())
	b.eventually("it is due", func() bool { return time.Now().After(at) })
	called := make(chan string, 1)
	f = start(b, flow.Spec[int]{Codec: flow.JSON[int](1), Fold: func(context.Context, *flow.Key[int], *kgo.Record) error { return nil },
		Timer: func(_ context.Context, k *flow.Key[int], name string) error { called <- name; k.State = 2; return nil }})
	require.Equal(t, "a&b=c", <-called)
	b.eventually("its effect is committed", func() bool { return b.state(0)["k"] == "2" })
	require.NoError(t, f.end())
}

// Older versions are upgraded and written back with the next event; a newer one
// is refused, and nothing is changed.
func TestVersions(t *testing.T) {
	b := newBench(t, 1)
	v1 := flow.Spec[int]{Codec: flow.JSON[int](1), Fold: func(_ context.Context, k *flow.Key[int], _ *kgo.Record) error { k.State++; return nil }}
	f := start(b, v1)
	b.produce(0, "a=1", "b=1")
	b.eventually("it is committed", func() bool { return b.committed(0) == 2 })
	require.NoError(t, f.end())

	type state struct{ Count, Twice int }
	v3 := flow.Spec[state]{
		Codec: flow.JSON[state](3,
			func(old []byte) ([]byte, error) { return fmt.Appendf(nil, `{"Count":%s}`, old), nil },
			func(old []byte) ([]byte, error) { return append(slices.Clone(old[:len(old)-1]), `,"Twice":2}`...), nil },
		),
		Fold: func(_ context.Context, k *flow.Key[state], _ *kgo.Record) error { k.State.Count++; return nil },
	}
	g := start(b, v3)
	b.produce(0, "a=2")
	b.eventually("it is committed", func() bool { return b.committed(0) == 3 })
	require.NoError(t, g.end())
	require.Equal(t, map[string]string{"a": `{"Count":2,"Twice":2}`, "b": "1"}, b.state(0))

	before := len(b.read("state", 0))
	err := start(b, v1).wait()
	require.ErrorIs(t, err, flow.ErrNewerSnapshot)
	require.ErrorContains(t, err, `it says "json/3", and this program writes "json/1"`)
	require.Len(t, b.read("state", 0), before)
	err = start(b, flow.Spec[[]byte]{Codec: flow.Bytes(), Fold: func(context.Context, *flow.Key[[]byte], *kgo.Record) error { return nil }}).wait()
	require.ErrorIs(t, err, flow.ErrOtherCodec)
}

func TestASpecificationsFaultsAreReportedTogether(t *testing.T) {
	_, err := flow.New(flow.Spec[int]{Persist: flow.Every(1), Workers: -1, MaxInFlight: -2, Poison: flow.Retry(-1, 0, flow.Stop())})
	for _, s := range []string{"Codec: required", "Fold: required", "Every(1ns): at least 1ms", "Workers -1", "MaxInFlight -2", "Retry(-1, 0s)"} {
		require.ErrorContains(t, err, s)
	}
	_, err = flow.New(flow.Spec[int]{Codec: flow.JSON[int](3, func(b []byte) ([]byte, error) { return b, nil }), Persist: flow.EveryN(-1),
		Fold: func(context.Context, *flow.Key[int], *kgo.Record) error { return nil }})
	require.ErrorContains(t, err, "1 upgrades for version 3: 2 are required")
	require.ErrorContains(t, err, "EveryN(-1)")
}

// EventID is the same whenever the event is folded.
func TestEventIDsAreStable(t *testing.T) {
	b := newBench(t, 1)
	var mu sync.Mutex
	var ids []string
	spec := counter(func(k *flow.Key[int], e *kgo.Record) error {
		mu.Lock()
		defer mu.Unlock()
		ids = append(ids, k.EventID(), k.EventID())
		if len(ids) == 4 {
			return errors.New("once more")
		}
		return nil
	})
	spec.Poison = flow.Retry(1, 0, flow.Stop())
	f := start(b, spec)
	b.produce(0, "a=1", "a=2")
	b.eventually("all is committed", func() bool { return b.committed(0) == 2 })
	require.NoError(t, f.end())
	require.Equal(t, []string{"in/0/0/0", "in/0/0/1", "in/0/1/0", "in/0/1/1", "in/0/1/0", "in/0/1/1"}, ids)
}

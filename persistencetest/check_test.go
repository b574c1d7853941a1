package persistencetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/flow"
)

func events(n int) (all []*kgo.Record) {
	for i := range n {
		all = append(all, &kgo.Record{Key: fmt.Append(nil, "k", i%4), Value: fmt.Append(nil, i)})
	}
	return all
}

// counting is a sound service: a flow that counts, and puts each count out.
func counting(change func(s *flow.Spec[int])) Run {
	return func(ctx context.Context, opts ...persistence.Option) error {
		spec := flow.Spec[int]{Codec: flow.JSON[int](1), Poison: flow.DeadLetters("dead"), Fold: func(_ context.Context, k *flow.Key[int], e *kgo.Record) error {
			if string(e.Value) == "7" {
				return errors.New("it is seven")
			}
			k.State++
			k.Emit(&kgo.Record{Topic: "out", Key: e.Key, Value: strconv.AppendInt(nil, int64(k.State), 10)})
			return nil
		}}
		if change != nil {
			change(&spec)
		}
		f, err := flow.New(spec)
		if err != nil {
			return err
		}
		m, err := persistence.New(opts...)
		if err != nil {
			return err
		}
		defer m.Close(context.Background())
		return f.Run(ctx, m)
	}
}

func counter(change func(s *flow.Spec[int])) Service {
	return Service{Run: counting(change), Events: events(24), Outputs: []string{"out", "dead"}}
}

// handler is a sound service on the root package.
func handler(fold func(counts map[string]persistence.Snapshot, e *kgo.Record) (persistence.Snapshot, bool)) Run {
	return func(ctx context.Context, opts ...persistence.Option) error {
		m, err := persistence.New(opts...)
		if err != nil {
			return err
		}
		defer m.Close(context.Background())
		return m.Run(ctx, func(ctx context.Context, p *persistence.Partition) error {
			counts, _, err := p.RecoverMap(ctx)
			for err == nil {
				var events []*kgo.Record
				if events, err = p.Poll(ctx); err != nil {
					return err
				}
				b := persistence.Batch{Through: events[len(events)-1]}
				for _, e := range events {
					s, ok := fold(counts, e)
					if !ok {
						continue
					}
					counts[string(e.Key)] = s
					b.Snapshots = append(b.Snapshots, s)
					b.Outputs = append(b.Outputs, &kgo.Record{Topic: "out", Key: e.Key, Value: s.Value})
				}
				err = p.Apply(ctx, b)
			}
			return err
		})
	}
}

func increment(counts map[string]persistence.Snapshot, e *kgo.Record) persistence.Snapshot {
	n, _ := strconv.Atoi(string(counts[string(e.Key)].Value))
	return persistence.Snapshot{Key: e.Key, Value: strconv.AppendInt(nil, int64(n+1), 10), SourceOffset: e.Offset}
}

func careful(counts map[string]persistence.Snapshot, e *kgo.Record) (persistence.Snapshot, bool) {
	if s, ok := counts[string(e.Key)]; ok && e.Offset <= s.SourceOffset {
		return persistence.Snapshot{}, false
	}
	return increment(counts, e), true
}

func TestASoundFlowPasses(t *testing.T) { Check(t, counter(nil)) }

func TestASoundHandlerPasses(t *testing.T) {
	Check(t, Service{Run: handler(careful), Events: events(24), Outputs: []string{"out"}, Partitions: 1})
}

func TestASoundTransformPasses(t *testing.T) {
	Check(t, Service{Stateless: true, Events: events(24), Outputs: []string{"out"}, Run: func(ctx context.Context, opts ...persistence.Option) error {
		f, err := flow.NewTransform(flow.Transform{Each: func(_ context.Context, e *kgo.Record) ([]*kgo.Record, error) {
			return []*kgo.Record{{Topic: "out", Key: e.Key, Value: e.Value}}, nil
		}})
		if err != nil {
			return err
		}
		m, err := persistence.New(opts...)
		if err != nil {
			return err
		}
		defer m.Close(context.Background())
		return f.Run(ctx, m)
	}})
}

// recorder is a test that may fail.
type recorder struct {
	testing.TB
	mu     sync.Mutex
	said   []string
	failed atomic.Bool
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed.Store(true)
	r.said = append(r.said, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); r.FailNow() }
func (r *recorder) Failed() bool                      { return r.failed.Load() }

// FailNow ends the goroutine, as that of a test does.
func (r *recorder) FailNow() { r.failed.Store(true); panic(stop{}) }

type stop struct{}

// findings runs a service in a scenario and returns what it says.
func findings(t *testing.T, name string, s Service) (said []string) {
	t.Helper()
	for _, scenario := range Scenarios() {
		if scenario.Name != name {
			continue
		}
		var want [2]outcome
		caught := func(f func(r *recorder)) {
			synctest.Test(t, func(t *testing.T) {
				r := &recorder{TB: t}
				defer func() {
					said = append(said, r.said...)
					if got := recover(); got != nil && got != (stop{}) {
						panic(got)
					}
				}()
				f(r)
			})
		}
		for i := range want {
			caught(func(r *recorder) { want[i] = reference(r, s) })
		}
		caught(func(r *recorder) { sameTwice(r, s, want) })
		if len(said) == 0 {
			caught(func(r *recorder) { scenario.check(r, s, want) })
		}
		return said
	}
	t.Fatalf("there is no scenario %q", name)
	return nil
}

// Each planted fault is found, in the scenario that is about it.
func TestPlantedFaultsAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		scenario string
		service  func() Service
		says     string
	}{
		"a replayed event is folded again": {"duplicate delivery", func() Service {
			return Service{Events: events(24), Outputs: []string{"out"}, Run: handler(func(counts map[string]persistence.Snapshot, e *kgo.Record) (persistence.Snapshot, bool) {
				return increment(counts, e), true
			})}
		}, "an event was folded twice"},
		"an output goes past the transaction": {"crash before the end", func() Service {
			s := counter(nil)
			s.Run = func(ctx context.Context, opts ...persistence.Option) error {
				var m *persistence.Module
				return withModule(ctx, opts, &m, func(f *flow.Spec[int]) {
					f.Fold = func(ctx context.Context, k *flow.Key[int], e *kgo.Record) error {
						k.State++
						return m.Client().ProduceSync(ctx, &kgo.Record{Topic: "out", Key: e.Key, Value: strconv.AppendInt(nil, int64(k.State), 10)}).FirstErr()
					}
				})
			}
			return s
		}, "did not go with the transaction"},
		"state outlives its ownership": {"crash before the end", func() Service {
			var mu sync.Mutex
			kept := make(map[string]map[string]int)
			s := counter(nil)
			s.Run = counting(func(f *flow.Spec[int]) {
				f.Fold = func(_ context.Context, k *flow.Key[int], e *kgo.Record) error {
					mu.Lock()
					defer mu.Unlock()
					if string(e.Value) == "0" { // the first of each run
						clear(kept)
					}
					if kept["kept"] == nil {
						kept["kept"] = make(map[string]int)
					}
					kept["kept"][string(e.Key)]++
					k.State = kept["kept"][string(e.Key)]
					return nil
				}
			})
			return s
		}, "found an effect that did not commit"},
		"an offset goes past what is persisted": {"crash after the end", func() Service {
			s := counter(nil)
			s.Run = handler(func(counts map[string]persistence.Snapshot, e *kgo.Record) (persistence.Snapshot, bool) {
				counts[string(e.Key)] = increment(counts, e)
				n, _ := strconv.Atoi(string(e.Value))
				return counts[string(e.Key)], string(e.Key) != "k1" || n >= 16
			})
			return s
		}, `key "k1" has the state`},
		"it is not deterministic": {"members come and go", func() Service {
			var n atomic.Int64
			return counter(func(f *flow.Spec[int]) {
				f.Fold = func(_ context.Context, k *flow.Key[int], e *kgo.Record) error { k.State = int(n.Add(1)); return nil }
			})
		}, "the service is not deterministic"},
		"a truncation is accepted": {"truncation", func() Service {
			s := counter(nil)
			run := s.Run
			s.Run = func(ctx context.Context, opts ...persistence.Option) error {
				return run(ctx, append(opts, persistence.OnMismatch(persistence.SnapshotsTruncated, persistence.Accept))...)
			}
			return s
		}, "should have ended by itself"},
		"it fails": {"members come and go", func() Service {
			return counter(func(f *flow.Spec[int]) {
				f.Fold = func(context.Context, *flow.Key[int], *kgo.Record) error { return errors.New("no good") }
				f.Poison = flow.Stop()
			})
		}, "no good"},
		"there is too little to do": {"members come and go", func() Service {
			s := counter(nil)
			s.Events = s.Events[:5]
			return s
		}, "at least six"},
	} {
		t.Run(name, func(t *testing.T) {
			said := findings(t, c.scenario, c.service())
			require.NotEmpty(t, said)
			require.Contains(t, fmt.Sprint(said), c.says)
		})
	}
}

func withModule(ctx context.Context, opts []persistence.Option, m **persistence.Module, change func(s *flow.Spec[int])) (err error) {
	spec := flow.Spec[int]{Codec: flow.JSON[int](1)}
	change(&spec)
	f, err := flow.New(spec)
	if err != nil {
		return err
	}
	if *m, err = persistence.New(opts...); err != nil {
		return err
	}
	defer (*m).Close(context.Background())
	return f.Run(ctx, *m)
}

package integration

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/flow"
	"github.com/kafkafence/persistence/integration/kafkatest"
	"github.com/kafkafence/persistence/internal/scenario"
)

// Members of a flow come and go while numbered events arrive. In the end each
// event has one output for a read_committed reader, each key's outputs are in
// order, and the state is the sum.
func TestAFlowIsExactlyOnceWhileMembersComeAndGo(t *testing.T) {
	const partitions, keys, events = 4, 10, 1600
	c := kafkatest.Shared(t, kafkatest.TransactionVersion(2))
	for name, policy := range map[string]flow.Persist{"each event": flow.EveryEvent(), "at intervals": flow.Every(30 * time.Millisecond)} {
		t.Run(name, func(t *testing.T) {
			w := scenario.NewWorld(t, scenario.Backend{Brokers: c.Brokers(), TransactionVersion: 2}, partitions)
			output := w.Input + "-out"
			w.CreateTopic(output, partitions, nil)
			counter, err := flow.New(flow.Spec[int]{Codec: flow.JSON[int](1), Persist: policy, Workers: 4,
				Fold: func(_ context.Context, k *flow.Key[int], e *kgo.Record) error {
					k.State++
					k.Emit(&kgo.Record{Topic: output, Key: e.Key, Value: fmt.Appendf(nil, "%d", k.State)})
					return nil
				}})
			require.NoError(t, err)
			start := func() (stop func()) {
				m, err := persistence.New(w.Options(nil, persistence.Logger(slog.New(slog.DiscardHandler)))...)
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(w.Ctx)
				ended := make(chan error, 1)
				go func() { ended <- counter.Run(ctx, m) }()
				return func() {
					cancel()
					require.NoError(t, <-ended)
					require.NoError(t, m.Close(w.Ctx))
				}
			}
			first := start()
			stop := start()
			for i := range events {
				key := fmt.Appendf(nil, "k%d", i%keys)
				require.NoError(t, w.Admin.ProduceSync(w.Ctx, &kgo.Record{Topic: w.Input, Partition: int32(i % keys % partitions), Key: key}).FirstErr())
				if i%400 == 399 {
					stop()
					stop = start()
				}
			}
			stop()
			w.Eventually("all is committed", func() bool {
				for id := range int32(partitions) {
					if w.Committed(id).Offset < w.End(w.Input, id) {
						return false
					}
				}
				return true
			})
			first()
			next := make(map[string]int)
			for id := range int32(partitions) {
				for key, value := range w.Values(id) {
					require.Equal(t, strconv.Itoa(events/keys), value, key)
				}
				for _, r := range w.Read(output, id) {
					next[string(r.Key)]++
					require.Equal(t, strconv.Itoa(next[string(r.Key)]), string(r.Value), "key %s", r.Key)
				}
			}
			require.Len(t, next, keys)
			for key, n := range next {
				require.Equal(t, events/keys, n, key)
			}
		})
	}
}

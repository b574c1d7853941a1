package integration

import (
	"cmp"
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/integration/kafkatest"
	"github.com/kafkafence/persistence/internal/scenario"
)

// What happens to a real cluster in the middle of a recovery: every snapshot comes
// once, in order, and nothing is a stall.
func TestARecoveryRidesOutWhatHappensToTheCluster(t *testing.T) {
	t.Parallel()
	c := kafkatest.Start(t, kafkatest.Nodes(3), kafkatest.NodeControl())
	leader := func(w *scenario.World) *kafkatest.Node {
		topics, err := kadm.NewClient(w.Admin).ListTopics(w.Ctx, w.State)
		require.NoError(t, err)
		return c.Node(int(topics[w.State].Partitions[0].Leader))
	}
	var throttled throttles
	for _, s := range []struct {
		name string
		do   func(w *scenario.World) (undo func())
	}{
		{"the leader moves", func(w *scenario.World) func() {
			n := leader(w)
			require.NoError(t, n.Stop(w.Ctx))
			return func() { require.NoError(t, n.Start(w.Ctx)) }
		}},
		{"the leader is killed and comes back", func(w *scenario.World) func() {
			n := leader(w)
			require.NoError(t, n.Kill(w.Ctx))
			require.NoError(t, n.Start(w.Ctx))
			return func() {}
		}},
		{"all brokers restart, one after another", func(w *scenario.World) func() {
			for i := range 3 {
				require.NoError(t, c.Node(i).Stop(w.Ctx))
				require.NoError(t, c.Node(i).Start(w.Ctx))
			}
			return func() {}
		}},
		{"the brokers throttle", func(w *scenario.World) func() {
			quota := func(remove bool) {
				id := "kgo" // the client id that kgo has by default
				_, err := kadm.NewClient(w.Admin).AlterClientQuotas(w.Ctx, []kadm.AlterClientQuotaEntry{{
					Entity: kadm.ClientQuotaEntity{{Type: "client-id", Name: &id}},
					Ops:    []kadm.AlterClientQuotaOp{{Key: "consumer_byte_rate", Value: 1 << 20, Remove: remove}},
				}})
				require.NoError(t, err)
			}
			quota(false)
			return func() {
				quota(true)
				require.Positive(t, throttled.n.Load(), "they did")
			}
		}},
	} {
		t.Run(s.name, func(t *testing.T) {
			w := scenario.NewWorld(t, scenario.Backend{Brokers: c.Brokers(), TransactionVersion: 2}, 1)
			w.Seed()
			const records = 24
			last := w.PutMuch(records)
			begun, goOn := make(chan struct{}), make(chan struct{})
			var offsets []int64
			var got persistence.Recovered
			m := w.Handle(func(ctx context.Context, p *persistence.Partition) error {
				var err error
				got, err = p.Recover(ctx, func(s persistence.Snapshot) error {
					if offsets = append(offsets, s.LogOffset); len(offsets) == 2 {
						close(begun)
						select {
						case <-goOn:
						case <-ctx.Done():
						}
					}
					return nil
				}, func() { offsets = nil })
				return cmp.Or(err, scenario.ErrDone)
			}, []kgo.Opt{kgo.WithHooks(&throttled)}, persistence.RecoveryStallTimeout(time.Minute))
			scenario.Await(w, begun)
			undo := s.do(w)
			close(goOn)
			require.ErrorIs(t, m.Wait(), scenario.ErrDone)
			require.Zero(t, got.Restarts)
			want := []int64{0}
			for at := last - records + 1; at <= last; at++ {
				want = append(want, at)
			}
			require.Equal(t, want, offsets)
			undo()
		})
	}
}

// throttles counts the answers that a broker delayed to enforce a quota.
type throttles struct{ n atomic.Int32 }

func (h *throttles) OnBrokerThrottle(kgo.BrokerMetadata, time.Duration, bool) { h.n.Add(1) }

package flow_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/flow"
	"github.com/kafkafence/persistence/internal/scenario"
)

// history notes what the folds of an event found. The state before an event is
// made of the events before it and nothing else; so an event that is folded again,
// after an abort, must find what it found the first time.
type history struct {
	mu     sync.Mutex
	before map[string]int // event: state
	again  int            // events folded again
	wrong  []string
}

func (h *history) note(event string, state int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	found, ok := h.before[event]
	switch {
	case !ok:
		h.before[event] = state
	case found != state:
		h.wrong = append(h.wrong, fmt.Sprintf("event %s found %d, and %d the next time", event, found, state))
	default:
		h.again++
	}
}

// Whatever becomes of a transaction, no fold ever finds an effect in its state
// that did not commit: a transaction that failed is made again as it was, or the
// ownership ends, and everything in memory with it.
func TestAbortsRewind(t *testing.T) {
	const events, keys = 120, 5
	type world struct {
		*scenario.World
		net    *scenario.Network
		module *persistence.Module
	}
	evict := func(w world) {
		id, _ := w.module.Client().GroupMetadata()
		w.Evict(id)
	}
	for name, c := range map[string]struct {
		fault func(w world) // in mid-stream
		again bool          // events are folded again
	}{
		"the offset commit does not arrive": {fault: func(w world) { w.net.Next(kmsg.TxnOffsetCommit, scenario.LoseRequest) }},
		"the offset commit's reply is lost": {fault: func(w world) { w.net.Next(kmsg.TxnOffsetCommit, scenario.LoseReply) }},
		"the records do not arrive":         {fault: func(w world) { w.net.Next(kmsg.Produce, scenario.LoseRequest) }},
		"the records' reply is lost":        {fault: func(w world) { w.net.Next(kmsg.Produce, scenario.LoseReply) }},
		"the end does not arrive":           {fault: func(w world) { w.net.Next(kmsg.EndTxn, scenario.LoseRequest).Final() }},
		"the end's reply is lost":           {fault: func(w world) { w.net.Next(kmsg.EndTxn, scenario.LoseReply).Final() }},
		"the owner is thrown out":           {fault: evict, again: true},
		"thrown out before the offset commit": {again: true, fault: func(w world) {
			held := w.net.Next(kmsg.TxnOffsetCommit, scenario.Hold)
			held.Await()
			evict(w)
			held.Release()
		}},
		"thrown out before the end": {again: true, fault: func(w world) {
			held := w.net.Next(kmsg.EndTxn, scenario.Hold)
			held.Await()
			evict(w)
			held.Release()
		}},
		"thrown out when the end's reply is lost": {again: true, fault: func(w world) {
			held := w.net.Next(kmsg.EndTxn, scenario.HoldReply)
			held.Await()
			evict(w)
			held.Release()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := kfake.MustCluster(kfake.NumBrokers(1))
			t.Cleanup(cluster.Close)
			w := world{World: scenario.NewWorld(t, scenario.Backend{Brokers: cluster.ListenAddrs(), TransactionVersion: 2}, 1)}
			out := w.Input + "-out"
			w.CreateTopic(out, 1, nil)
			w.net = w.NewNetwork()
			h := history{before: make(map[string]int)}
			struck := make(chan struct{})
			f, err := flow.New(flow.Spec[int]{Codec: flow.JSON[int](1), Workers: 64, MaxInFlight: 30,
				Fold: func(ctx context.Context, k *flow.Key[int], e *kgo.Record) error {
					if string(e.Key) == "k0" && e.Offset >= events/3 {
						// So that other keys are persisted ahead of the committed offset.
						select {
						case <-struck:
						case <-ctx.Done():
							return ctx.Err()
						}
					}
					h.note(k.EventID(), k.State)
					k.State++
					k.Emit(&kgo.Record{Topic: out, Key: e.Key, Value: strconv.AppendInt(nil, int64(k.State), 10)})
					return nil
				}})
			require.NoError(t, err)
			w.module, err = persistence.New(w.Options([]kgo.Opt{w.net.Opt()}, persistence.Logger(slog.New(slog.DiscardHandler)))...)
			require.NoError(t, err)
			ctx, stop := context.WithCancel(w.Ctx)
			ended := make(chan error, 1)
			go func() { ended <- f.Run(ctx, w.module) }()
			t.Cleanup(func() { stop(); _ = w.module.Close(context.Background()) })

			produce := func(n int) {
				for i := range n {
					require.NoError(t, w.Admin.ProduceSync(w.Ctx, &kgo.Record{Topic: w.Input, Key: fmt.Append(nil, "k", i%keys)}).FirstErr())
				}
			}
			produce(events / 3)
			w.Eventually("the first are committed", func() bool { return w.Committed(0).Offset == events/3 })
			var feeding sync.WaitGroup
			feeding.Go(func() { produce(events / 3) })
			w.Eventually("other keys are ahead of the committed offset", func() bool { return len(w.Read(out, 0)) > events/3+keys })
			c.fault(w)
			close(struck)
			feeding.Wait()
			produce(events / 3)
			w.Eventually("all is committed", func() bool { return w.Committed(0).Offset == events })
			stop()
			require.NoError(t, <-ended)

			h.mu.Lock()
			defer h.mu.Unlock()
			require.Empty(t, h.wrong)
			require.Len(t, h.before, events)
			if c.again {
				t.Logf("%d events were folded again", h.again)
			} else {
				require.Zero(t, h.again, "the transaction was made again as it was")
			}
			next := make(map[string]int)
			for _, r := range w.Read(out, 0) {
				next[string(r.Key)]++
				require.Equal(t, strconv.Itoa(next[string(r.Key)]), string(r.Value), "key %s", r.Key)
			}
			for key, value := range w.Values(0) {
				require.Equal(t, strconv.Itoa(events/keys), value, key)
				require.Equal(t, events/keys, next[key], key)
			}
		})
	}
}

package persistence_test

import (
	"cmp"
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/scenario"
)

// No recovery asks for more than its share of RecoveryMaxBytes leaves for a fetch.
func TestARecoveryAsksForItsShare(t *testing.T) {
	w, c := clusterWorld(t, 1)
	w.PutMuch(4)
	var most atomic.Int32
	c.ControlKey(kmsg.Fetch.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := kreq.(*kmsg.FetchRequest)
		for _, rt := range req.Topics {
			if rt.TopicID == c.TopicInfo(w.State).TopicID || rt.Topic == w.State {
				most.Store(max(most.Load(), req.MaxBytes, rt.Partitions[0].PartitionMaxBytes))
			}
		}
		return nil, nil, false
	})
	m := w.Start(false, persistence.RecoveryMaxBytes(3<<20), persistence.RecoveryConcurrency(2))
	require.Len(w, m.Own().State, 4, "batches larger than the share are read all the same")
	require.EqualValues(w, 1<<20, most.Load(), "it runs alone")
	require.NoError(w, m.Stop())
}

// A small snapshot that is kept does not keep what came with it in memory, unless
// that was asked for.
func TestAKeptSnapshotKeepsNothingElse(t *testing.T) {
	for name, c := range map[string]struct {
		opts    []persistence.Option
		keepsIt bool
	}{
		"copied":   {nil, false},
		"uncopied": {[]persistence.Option{persistence.UncopiedSnapshots()}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := clusterWorld(t, 1)
			plain := w.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(10*time.Millisecond))
			require.NoError(w, plain.ProduceSync(w.Ctx,
				&kgo.Record{Topic: w.State, Key: []byte("small"), Value: []byte("1")},
				&kgo.Record{Topic: w.State, Key: []byte("large"), Value: make([]byte, 500_000)}).FirstErr())
			require.Len(w, w.Read(w.State, 0), 2)

			var small []byte
			var large weak.Pointer[byte]
			m := w.Handle(func(ctx context.Context, p *persistence.Partition) error {
				_, err := p.Recover(ctx, func(s persistence.Snapshot) error {
					if string(s.Key) == "small" {
						small = s.Value
					} else {
						large = weak.Make(&s.Value[0])
					}
					return nil
				}, func() {})
				return cmp.Or(err, scenario.ErrDone)
			}, nil, c.opts...)
			require.ErrorIs(w, m.Wait(), scenario.ErrDone)
			runtime.GC()
			require.Equal(w, c.keepsIt, large.Value() != nil)
			require.Equal(w, "1", string(small))
		})
	}
}

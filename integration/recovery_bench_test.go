package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/scenario"
)

// A recovery into a map, and beside it, in turn, a bare kgo loop that does the
// same: read_committed from the start, until the position has reached the high
// watermark.
func BenchmarkRecovery(b *testing.B) {
	const rounds = 5
	for _, c := range []struct {
		records, bytes int
		compression    kgo.CompressionCodec
		name           string
	}{
		{100_000, 1024, kgo.NoCompression(), "100000x1KiB"},
		{2_000_000, 100, kgo.NoCompression(), "2000000x100B"},
		{100_000, 1024, kgo.ZstdCompression(), "100000x1KiB-zstd"},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := benchWorld(b, 1)
			fill(w, c.records, c.bytes, c.compression)
			o := w.Start(false, quiet).Own()
			ours := func() time.Duration {
				began := time.Now()
				state := make(map[string][]byte)
				got, err := o.Recover(w.Ctx, func(s persistence.Snapshot) error {
					state[string(s.Key)] = s.Value
					return nil
				}, func() { clear(state) })
				require.NoError(b, err)
				require.EqualValues(b, c.records, got.Records)
				return time.Since(began)
			}
			bare := func() time.Duration {
				began := time.Now()
				require.Equal(b, c.records, bareLoop(w))
				return time.Since(began)
			}
			ours() // warm
			bare()
			b.ResetTimer()
			for b.Loop() {
				var a, n []time.Duration
				for range rounds {
					a, n = append(a, ours()), append(n, bare())
				}
				perSecond := func(d time.Duration) float64 { return float64(c.records) / d.Seconds() }
				b.ReportMetric(perSecond(median(a)), "records/s")
				b.ReportMetric(perSecond(median(n)), "bare-loop-records/s")
				b.ReportMetric(float64(median(n))/float64(median(a)), "times-as-fast")
				b.Logf("ours %v, bare loop %v", a, n)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// fill writes snapshots of many keys in transactions of 5,000.
func fill(w *scenario.World, records, bytes int, codec kgo.CompressionCodec) {
	w.Helper()
	p := w.Client(kgo.TransactionalID(w.Prefix+"-fill"), kgo.DefaultProduceTopic(w.State), kgo.ProducerBatchCompression(codec))
	noise := make([]byte, bytes+records)
	for i := range noise {
		noise[i] = "abcdefghijklmnop"[rand.IntN(16)]
	}
	for i := 0; i < records; {
		require.NoError(w, p.BeginTransaction())
		for j := 0; j < 5000 && i < records; j++ {
			p.Produce(w.Ctx, &kgo.Record{Key: fmt.Appendf(nil, "key-%07d", i%(records/5)), Value: noise[i : i+bytes]}, func(_ *kgo.Record, err error) {
				if err != nil {
					w.Error(err)
				}
			})
			i++
		}
		require.NoError(w, p.Flush(w.Ctx))
		require.NoError(w, p.EndTransaction(w.Ctx, kgo.TryCommit))
	}
}

func bareLoop(w *scenario.World) (records int) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.Brokers...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{w.State: {0: kgo.NewOffset().AtStart()}}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxPartitionBytes(16<<20), kgo.FetchMaxBytes(64<<20))
	require.NoError(w, err)
	defer cl.Close()
	end := w.End(w.State, 0)
	state := make(map[string][]byte)
	for next := int64(0); next < end; {
		fetches := cl.PollFetches(context.Background())
		require.NoError(w, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			if next = r.Offset + 1; r.Attrs.IsControl() {
				return
			}
			records++
			state[string(r.Key)] = r.Value
		})
	}
	return records
}

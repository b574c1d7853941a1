package cursor

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestAnAnswerIsDecodedInParts has aborted and committed transactions of the same
// producer in parts of their own, so that each part must know which of the
// aborted ones were over before it.
func TestAnAnswerIsDecodedInParts(t *testing.T) {
	for name, codec := range map[string]kgo.CompressionCodec{
		"plain": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			cl := b.client(kgo.TransactionalID("writer"), kgo.ProducerBatchCompression(codec))
			other := b.client(kgo.ProducerBatchCompression(codec))
			var want []string
			offset := int64(0)
			noise := rand.NewChaCha8([32]byte{1})
			for i, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit, kgo.TryAbort, kgo.TryAbort, kgo.TryCommit, kgo.TryCommit, kgo.TryAbort} {
				require.NoError(t, cl.BeginTransaction())
				for j := range 2 {
					value := make([]byte, 300<<10)
					_, _ = noise.Read(value) // does not shrink, so that parts are cut alike
					key := fmt.Sprintf("%d-%d", i, j)
					require.NoError(t, cl.ProduceSync(b.ctx, &kgo.Record{Key: []byte(key), Value: value}).FirstErr())
					if end == kgo.TryCommit {
						want = append(want, fmt.Sprintf("%d:%s", offset, key))
					}
					offset++
				}
				b.write(other, fmt.Sprint("between-", i))
				want = append(want, fmt.Sprintf("%d:between-%d", offset, i))
				offset += 2 // and the marker
				cl.PurgeTopicsFromProducing("")
				require.NoError(t, cl.EndTransaction(b.ctx, end))
			}

			c := New(b.cl, b.topic, 0, 16<<20)
			answers, parts := 0, 0
			var got []string
			for position := int64(0); position < offset; parts++ {
				if c.rest == nil {
					answers++
				}
				batch, err := c.Fetch(b.ctx, position)
				require.NoError(t, err)
				require.Greater(t, batch.Next, position)
				require.LessOrEqual(t, batch.Bytes, 2*partBytes)
				for _, r := range batch.Records {
					got = append(got, fmt.Sprintf("%d:%s", r.Offset, r.Key))
				}
				position = batch.Next
			}
			require.Equal(t, want, got)
			require.Equal(t, 1, answers)
			require.Greater(t, parts, 5)
		})
	}
}

func TestAPositionElsewhereDropsWhatIsLeftOfAnAnswer(t *testing.T) {
	b := newBench(t)
	plain := b.client(kgo.ProducerBatchCompression(kgo.NoCompression()))
	big := bytes.Repeat([]byte("x"), 400<<10)
	for i := range 6 {
		require.NoError(t, plain.ProduceSync(b.ctx, &kgo.Record{Key: fmt.Append(nil, i), Value: big}).FirstErr())
	}
	c := New(b.cl, b.topic, 0, 16<<20)
	first, err := c.Fetch(b.ctx, 0)
	require.NoError(t, err)
	require.EqualValues(t, 2, first.Next)
	again, err := c.Fetch(b.ctx, 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, again.Records[0].Offset)
}

package cursor

import (
	"fmt"
	"maps"
	"runtime"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// What was released is decoded into again, and what was not is left alone.
func TestReleasedMemoryIsUsedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		bytes bool
		codec kgo.CompressionCodec
		again bool // the decoded bytes
	}{
		"compressed":             {true, kgo.ZstdCompression(), true},
		"compressed, kept":       {false, kgo.ZstdCompression(), false},
		"the broker's own bytes": {true, kgo.NoCompression(), false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			cl := b.client(kgo.ProducerBatchCompression(c.codec))
			value := make([]byte, 10_000)
			for i := range 4 {
				require.NoError(t, cl.ProduceSync(b.ctx, &kgo.Record{Key: fmt.Append(nil, i), Value: value}).FirstErr())
			}
			cur := b.cursor().Reuse(c.bytes)
			// read returns where the first record and all the values are.
			read := func(release bool) (*kgo.Record, map[*byte]bool) {
				batch, err := cur.Fetch(b.ctx, 0)
				require.NoError(t, err)
				require.Len(t, batch.Records, 4)
				values := make(map[*byte]bool)
				for i, r := range batch.Records {
					require.Equal(t, fmt.Sprint(i), string(r.Key))
					require.Equal(t, value, r.Value)
					values[&r.Value[0]] = true
				}
				if release {
					batch.Release()
				}
				return batch.Records[0], values
			}
			released, before := read(true)
			kept, after := read(false)
			require.Same(t, released, kept)
			require.Equal(t, c.again, maps.Equal(before, after))
			next, others := read(true)
			require.NotSame(t, kept, next, "it is in use")
			for at := range after {
				require.False(t, others[at])
			}
			require.Equal(t, "0", string(kept.Key))
		})
	}
}

// What was released keeps nothing in memory.
func TestReleasedRecordsKeepNoAnswer(t *testing.T) {
	b := newBench(t)
	plain := b.client(kgo.ProducerBatchCompression(kgo.NoCompression()))
	require.NoError(t, plain.ProduceSync(b.ctx, &kgo.Record{Key: []byte("k"), Value: make([]byte, 100_000)}).FirstErr())
	c := b.cursor().Reuse(true)
	batch, err := c.Fetch(b.ctx, 0)
	require.NoError(t, err)
	at := weak.Make(&batch.Records[0].Value[0])
	batch.Release()
	batch = Batch{}
	runtime.GC()
	require.Nil(t, at.Value())
	runtime.KeepAlive(c)
}

// Arenas serve many small batches and one that needs more than an arena.
func TestArenasFitAnyBatch(t *testing.T) {
	var b buffers
	seen := make(map[*kgo.Record]bool)
	lend := func(n int) {
		rs := b.GetRecords(n)
		require.Len(t, rs, n)
		require.Equal(t, n, cap(rs), "a batch must not reach into the next one's")
		for i := range rs {
			require.False(t, seen[&rs[i]])
			seen[&rs[i]] = true
		}
	}
	for _, n := range []int{1, 1, arenaRecords - 2, 1, arenaRecords, 3 * arenaRecords, 2} {
		lend(n)
	}
	release := b.settle()
	lend(5)
	release()
	rs := b.GetRecords(2 * arenaRecords)
	require.True(t, seen[&rs[0]], "the largest arena is free again")
}

package cursor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/kafkafence/persistence/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a cluster with one compacted topic of one partition.
type bench struct {
	*testing.T
	*kfake.Cluster
	ctx   context.Context
	topic wire.Topic
	cl    *kgo.Client
}

func newBench(t *testing.T) *bench {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(3))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	require.NoError(t, c.CreateTopic("state", 1, map[string]string{"cleanup.policy": "compact", "delete.retention.ms": "0"}))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	b := &bench{T: t, Cluster: c, ctx: ctx, topic: wire.Topic{Name: "state", ID: c.TopicInfo("state").TopicID}}
	b.cl = b.client()
	return b
}

func (b *bench) client(opts ...kgo.Opt) *kgo.Client {
	b.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.ListenAddrs()...), kgo.DisableClientMetrics(),
		kgo.MetadataMinAge(10 * time.Millisecond), kgo.DefaultProduceTopic("state")}, opts...)...)
	require.NoError(b, err)
	b.Cleanup(cl.Close)
	return cl
}

func (b *bench) cursor() *Cursor { return New(b.cl, b.topic, 0, 1<<20) }

// write produces a batch.
func (b *bench) write(cl *kgo.Client, keys ...string) {
	b.Helper()
	var rs []*kgo.Record
	for _, k := range keys {
		rs = append(rs, &kgo.Record{Key: []byte(k), Value: []byte("value of " + k)})
	}
	require.NoError(b, cl.ProduceSync(b.ctx, rs...).FirstErr())
}

// transaction writes a batch and, behind it, a marker.
func (b *bench) transaction(end kgo.TransactionEndTry, keys ...string) {
	b.Helper()
	b.open(keys...)(end)
}

// open writes a batch in a transaction and leaves it open.
func (b *bench) open(keys ...string) (end func(kgo.TransactionEndTry)) {
	b.Helper()
	cl := b.client(kgo.TransactionalID("writer-of-" + strings.Join(keys, "-")))
	require.NoError(b, cl.BeginTransaction())
	b.write(cl, keys...)
	cl.PurgeTopicsFromProducing("") // kgo may not have stored the topic yet, and would end nothing
	return func(end kgo.TransactionEndTry) {
		b.Helper()
		require.NoError(b, cl.EndTransaction(b.ctx, end))
	}
}

func (b *bench) bounds() *kfake.PartitionInfo { return b.PartitionInfo("state", 0) }

// read fetches from position until there is nothing more, and returns
// "offset:key" of each record, and where it ended.
func (b *bench) read(c *Cursor, position int64) (records []string, end int64) {
	b.Helper()
	for {
		batch, err := c.Fetch(b.ctx, position)
		require.NoError(b, err)
		require.GreaterOrEqual(b, batch.Next, position, "a position never goes back")
		require.Equal(b, batch.Empty, batch.Bytes == 0)
		last := position - 1
		for _, r := range batch.Records {
			require.Greater(b, r.Offset, last)
			require.Less(b, r.Offset, batch.Next, "the position is behind everything that was returned")
			last = r.Offset
			records = append(records, fmt.Sprintf("%d:%s", r.Offset, r.Key))
		}
		if batch.Empty {
			require.Equal(b, position, batch.Next)
			require.Empty(b, batch.Records)
			return records, position
		}
		require.Greater(b, batch.Next, position, "what is returned is progress")
		position = batch.Next
	}
}

func TestThePositionIsBehindMarkersAndAbortedRecords(t *testing.T) {
	b := newBench(t)
	b.write(b.cl, "a", "b")                // 0, 1
	b.transaction(kgo.TryCommit, "c")      // 2, marker 3
	b.transaction(kgo.TryAbort, "x", "y")  // 4, 5, marker 6
	b.write(b.cl, "d")                     // 7
	b.transaction(kgo.TryCommit, "e", "f") // 8, 9, marker 10
	b.transaction(kgo.TryAbort, "z")       // 11, marker 12
	all := []string{"0:a", "1:b", "2:c", "7:d", "8:e", "9:f"}
	behind := map[int64]int{0: 0, 1: 1, 2: 2, 3: 3, 4: 3, 5: 3, 6: 3, 7: 3, 8: 4, 9: 5, 10: 6, 11: 6, 12: 6, 13: 6}
	for position, skipped := range behind {
		records, end := b.read(b.cursor(), position)
		if skipped == len(all) {
			require.Empty(t, records, "from %d", position)
		} else {
			require.Equal(t, all[skipped:], records, "from %d, also inside of a batch", position)
		}
		require.EqualValues(t, 13, end, "from %d", position)
	}
	require.EqualValues(t, 13, b.bounds().HighWatermark)
}

func TestEachFetchReportsTheLogsBounds(t *testing.T) {
	b := newBench(t)
	b.write(b.cl, "a", "b")
	b.transaction(kgo.TryCommit, "c")
	require.NoError(t, b.DeleteRecords("state", 0, 1))
	b.open("x")
	batch, err := b.cursor().Fetch(b.ctx, 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, batch.LogStart)
	require.EqualValues(t, 4, batch.LastStableOffset)
	require.EqualValues(t, 5, batch.HighWatermark)
	require.EqualValues(t, 4, batch.Next)
	require.Positive(t, batch.Bytes)
	require.Equal(t, "value of b", string(batch.Records[0].Value))
	require.Equal(t, "state", batch.Records[0].Topic)
}

func TestAnOpenTransactionHoldsThePosition(t *testing.T) {
	b := newBench(t)
	b.write(b.cl, "a")
	end := b.open("x", "y") // 1, 2
	b.write(b.cl, "b")      // 3
	c := b.cursor()
	records, at := b.read(c, 0)
	require.Equal(t, []string{"0:a"}, records)
	require.EqualValues(t, 1, at)
	batch, err := c.Fetch(b.ctx, 1)
	require.NoError(t, err)
	require.True(t, batch.Empty)
	require.EqualValues(t, 1, batch.LastStableOffset)
	require.EqualValues(t, 4, batch.HighWatermark)
	end(kgo.TryCommit)
	records, at = b.read(c, 1)
	require.Equal(t, []string{"1:x", "2:y", "3:b"}, records)
	require.EqualValues(t, 5, at)
}

func TestThePositionCrossesWhatCompactionTookAway(t *testing.T) {
	b := newBench(t)
	b.write(b.cl, "first") // 0
	for range 5 {
		b.write(b.cl, "a", "b") // 1 to 10
	}
	b.transaction(kgo.TryCommit, "a", "b", "c") // 11 to 13, marker 14
	b.transaction(kgo.TryAbort, "c")            // 15, marker 16
	b.write(b.cl, "d")                          // 17
	whole, end := b.read(b.cursor(), 0)
	require.Len(t, whole, 15)
	require.EqualValues(t, 18, end)
	b.Compact()
	for position := int64(0); position <= 18; position++ {
		records, end := b.read(b.cursor(), position)
		require.EqualValues(t, 18, end, "from %d", position)
		var want []string
		for i, r := range []string{"0:first", "11:a", "12:b", "13:c", "17:d"} {
			if position <= []int64{0, 11, 12, 13, 17}[i] {
				want = append(want, r)
			}
		}
		require.Equal(t, want, records, "from %d, also inside of the gap", position)
	}
}

func TestALogThatWasEmptiedIsReadByItsPosition(t *testing.T) {
	b := newBench(t)
	c := b.cursor()
	batch, err := c.Fetch(b.ctx, 0)
	require.NoError(t, err)
	require.True(t, batch.Empty)
	require.Zero(t, batch.Next)

	b.write(b.cl, "a", "b", "c")
	require.NoError(t, b.DeleteRecords("state", 0, -1))
	batch, err = c.Fetch(b.ctx, 3)
	require.NoError(t, err)
	require.True(t, batch.Empty)
	require.Empty(t, batch.Records)
	require.EqualValues(t, 3, batch.Next)
	require.EqualValues(t, 3, batch.LogStart)
	require.EqualValues(t, 3, batch.LastStableOffset)
	require.EqualValues(t, 3, batch.HighWatermark)
}

func TestAPositionOutsideOfTheLogIsOutOfRange(t *testing.T) {
	b := newBench(t)
	b.write(b.cl, "a", "b", "c")
	require.NoError(t, b.DeleteRecords("state", 0, 2))
	c := b.cursor()
	for _, position := range []int64{0, 1, 4, 100} {
		_, err := c.Fetch(b.ctx, position)
		require.ErrorIs(t, err, kerr.OffsetOutOfRange, "%d", position)
	}
	records, end := b.read(c, 2)
	require.Equal(t, []string{"2:c"}, records)
	require.EqualValues(t, 3, end)
}

func TestAMovedLeaderIsFoundAgain(t *testing.T) {
	b := newBench(t)
	b.write(b.cl, "a")
	c := b.cursor()
	records, at := b.read(c, 0)
	require.Equal(t, []string{"0:a"}, records)
	for node := range int32(3) {
		old := b.LeaderFor("state", 0)
		require.NoError(t, b.MoveTopicPartition("state", 0, node))
		_, err := c.Fetch(b.ctx, at)
		if old != node {
			require.ErrorIs(t, err, kerr.NotLeaderForPartition)
		}
		// One error later the new leader is known.
		b.write(b.cl, fmt.Sprintf("k%d", node))
		records, at = b.read(c, at)
		require.Equal(t, []string{fmt.Sprintf("%d:k%d", node+1, node)}, records)
	}
}

func TestEachPartitionIsReadFromItsOwnLeader(t *testing.T) {
	b := newBench(t)
	require.NoError(t, b.CreateTopic("many", 3, nil))
	topic := wire.Topic{Name: "many", ID: b.TopicInfo("many").TopicID}
	cl := b.client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for p := range int32(3) {
		require.NoError(t, b.MoveTopicPartition("many", p, 2-p))
		require.NoError(t, cl.ProduceSync(b.ctx, &kgo.Record{Topic: "many", Partition: p, Key: fmt.Append(nil, "of-", p)}).FirstErr())
	}
	for p := range int32(3) {
		records, end := b.read(New(b.cl, topic, p, 1<<20), 0)
		require.Equal(t, []string{fmt.Sprint("0:of-", p)}, records)
		require.EqualValues(t, 1, end)
	}
}

func TestAPartitionWithoutALeaderIsAskedForAgain(t *testing.T) {
	b := newBench(t)
	b.write(b.cl, "a")
	c := b.cursor()
	leaderless := func(r kmsg.Request) (kmsg.Response, error, bool) {
		req := r.(*kmsg.MetadataRequest)
		resp := req.ResponseKind().(*kmsg.MetadataResponse)
		rt := kmsg.NewMetadataResponseTopic()
		rt.Topic, rt.TopicID = kmsg.StringPtr("state"), b.topic.ID
		rp := kmsg.NewMetadataResponseTopicPartition()
		rp.Leader, rp.ErrorCode = -1, kerr.LeaderNotAvailable.Code
		rt.Partitions = append(rt.Partitions, rp)
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	}
	b.ControlKey(kmsg.Metadata.Int16(), leaderless)
	_, err := c.Fetch(b.ctx, 0)
	require.ErrorIs(t, err, kerr.LeaderNotAvailable)
	records, _ := b.read(c, 0)
	require.Equal(t, []string{"0:a"}, records)
}

func TestWhatDoesNotExistIsAnError(t *testing.T) {
	b := newBench(t)
	_, err := New(b.cl, wire.Topic{Name: "missing"}, 0, 1<<20).Fetch(b.ctx, 0)
	require.ErrorIs(t, err, kerr.UnknownTopicOrPartition)
	_, err = New(b.cl, b.topic, 9, 1<<20).Fetch(b.ctx, 0)
	require.ErrorIs(t, err, kerr.UnknownTopicOrPartition)
	ended, cancel := context.WithCancel(b.ctx)
	cancel()
	_, err = b.cursor().Fetch(ended, 0)
	require.ErrorIs(t, err, context.Canceled)
}

// answer is what the next fetch is answered.
func (b *bench) answer(edit func(req *kmsg.FetchRequest, resp *kmsg.FetchResponse)) {
	b.ControlKey(kmsg.Fetch.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		req := r.(*kmsg.FetchRequest)
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		edit(req, resp)
		return resp, nil, true
	})
}

func TestAThrottledFetchIsNotAnEmptyLog(t *testing.T) {
	b := newBench(t)
	b.write(b.cl, "a")
	c := b.cursor()
	b.answer(func(_ *kmsg.FetchRequest, resp *kmsg.FetchResponse) { resp.ThrottleMillis = 1 })
	_, err := c.Fetch(b.ctx, 0)
	require.ErrorIs(t, err, ErrThrottled)
	records, _ := b.read(c, 0)
	require.Equal(t, []string{"0:a"}, records, "nothing was skipped")
}

func TestTheBrokersErrorsAreReturned(t *testing.T) {
	b := newBench(t)
	b.write(b.cl, "a")
	c := b.cursor()
	for _, code := range []*kerr.Error{kerr.FetchSessionTopicIDError, kerr.UnknownTopicID, kerr.UnknownServerError} {
		b.answer(func(_ *kmsg.FetchRequest, resp *kmsg.FetchResponse) { resp.ErrorCode = code.Code })
		_, err := c.Fetch(b.ctx, 0)
		require.ErrorIs(t, err, code)
	}
	for _, code := range []*kerr.Error{kerr.NotLeaderForPartition, kerr.FencedLeaderEpoch, kerr.TopicAuthorizationFailed, kerr.KafkaStorageError, kerr.OffsetOutOfRange} {
		f := b.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "state", Err: code})
		_, err := c.Fetch(b.ctx, 0)
		require.ErrorIs(t, err, code)
		require.Equal(t, 1, f.Hits())
	}
	records, _ := b.read(c, 0)
	require.Equal(t, []string{"0:a"}, records)
}

func TestAFetchAsksForCommittedRecordsOfTheLeaderAndDoesNotWait(t *testing.T) {
	b := newBench(t)
	b.write(b.cl, "a")
	var got kmsg.FetchRequest
	var node int32
	b.ControlKey(kmsg.Fetch.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		got, node = *r.(*kmsg.FetchRequest), b.CurrentNode()
		return nil, nil, false
	})
	_, err := New(b.cl, b.topic, 0, 12345).Fetch(b.ctx, 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, got.IsolationLevel)
	require.Zero(t, got.MaxWaitMillis)
	require.EqualValues(t, 12345, got.MaxBytes)
	require.Equal(t, b.topic.ID, got.Topics[0].TopicID)
	require.EqualValues(t, 12345, got.Topics[0].Partitions[0].PartitionMaxBytes)
	require.EqualValues(t, 1, got.Topics[0].Partitions[0].FetchOffset)
	require.EqualValues(t, -1, got.SessionEpoch, "no session is kept in the broker")
	require.Equal(t, b.LeaderFor("state", 0), node)
}

func TestEveryCodecIsRead(t *testing.T) {
	for name, codec := range map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			cl := b.client(kgo.ProducerBatchCompression(codec))
			value := bytes.Repeat([]byte("snapshot "), 3000)
			require.NoError(t, cl.ProduceSync(b.ctx, &kgo.Record{Key: []byte("a"), Value: value}, &kgo.Record{Key: []byte("b"), Value: value}).FirstErr())
			batch, err := b.cursor().Fetch(b.ctx, 0)
			require.NoError(t, err)
			require.Len(t, batch.Records, 2)
			require.EqualValues(t, 2, batch.Next)
			for _, r := range batch.Records {
				require.Equal(t, value, r.Value)
			}
			if name == "none" {
				require.Greater(t, batch.Bytes, 2*len(value))
			} else {
				require.Less(t, batch.Bytes, len(value), "bytes are counted as they came")
			}
		})
	}
}

func TestASmallFetchReadsTheLogInPieces(t *testing.T) {
	b := newBench(t)
	var want []string
	for i := range 20 {
		k := strings.Repeat("k", 300) + fmt.Sprint(i)
		want = append(want, fmt.Sprintf("%d:%s", i, k))
		b.write(b.cl, k)
	}
	small := New(b.cl, b.topic, 0, 1000)
	first, err := small.Fetch(b.ctx, 0)
	require.NoError(t, err)
	require.Less(t, len(first.Records), 20)
	records, end := b.read(small, 0)
	require.Equal(t, want, records)
	require.EqualValues(t, 20, end)

	tiny := New(b.cl, b.topic, 0, 1)
	records, _ = b.read(tiny, 0)
	require.Equal(t, want, records, "a batch larger than the fetch is still returned whole")
}

func TestTheFateOfARecordIsTold(t *testing.T) {
	b := newBench(t)
	b.write(b.cl, "plain")                      // 0
	b.transaction(kgo.TryCommit, "a", "b")      // 1, 2, marker 3
	b.transaction(kgo.TryAbort, "c", "d")       // 4, 5, marker 6
	b.write(b.cl, "a")                          // 7
	end := b.open("e")                          // 8
	b.write(b.cl, "behind an open transaction") // 9
	fates := func() (all []Fate) {
		for offset := range int64(10) {
			fate, err := New(b.cl, wire.Topic{Name: b.topic.Name}, 0, 1<<20).Fate(b.ctx, offset) // by the name alone
			require.NoError(t, err)
			all = append(all, fate)
		}
		return all
	}
	require.Equal(t, []Fate{Committed, Committed, Committed, Gone, Aborted, Aborted, Gone, Committed, Open, Open}, fates(), "markers are no records")
	end(kgo.TryAbort)
	require.Equal(t, []Fate{Committed, Committed, Committed, Gone, Aborted, Aborted, Gone, Committed, Aborted, Committed}, fates())
	b.Compact()
	require.Equal(t, Gone, fates()[1], "a newer record of its key has replaced it")
	_, err := b.cursor().Fate(b.ctx, 1000)
	require.ErrorIs(t, err, kerr.OffsetOutOfRange)
}

// Reading ahead changes nothing but when the broker is asked.
func TestReadingAheadReadsTheSame(t *testing.T) {
	b := newBench(t)
	for i := range 30 {
		b.transaction(kgo.TransactionEndTry(i%3 != 0), fmt.Sprint("x", i), fmt.Sprint("y", i))
	}
	want, end := b.read(New(b.cl, b.topic, 0, 200), 0)
	c := New(b.cl, b.topic, 0, 200)
	defer c.ReadAhead(b.ctx)()
	got, gotEnd := b.read(c, 0)
	require.Equal(t, want, got)
	require.Equal(t, end, gotEnd)
	// Another position than the one that was asked for ahead.
	first, err := c.Fetch(b.ctx, 0)
	require.NoError(t, err)
	again, err := c.Fetch(b.ctx, 0)
	require.NoError(t, err)
	require.Equal(t, first.Next, again.Next)
	// What was asked for ahead fails, and is asked for again.
	_, err = c.Fetch(b.ctx, 0)
	require.NoError(t, err)
	require.NoError(t, b.MoveTopicPartition("state", 0, (b.LeaderFor("state", 0)+1)%3))
	got, gotEnd = nil, 0
	for position := first.Next; ; {
		batch, err := c.Fetch(b.ctx, position)
		if err != nil {
			require.True(t, kerr.IsRetriable(err), "%v", err)
			continue
		}
		if batch.Empty {
			gotEnd = position
			break
		}
		for _, r := range batch.Records {
			got = append(got, fmt.Sprintf("%d:%s", r.Offset, r.Key))
		}
		position = batch.Next
	}
	require.Equal(t, end, gotEnd)
	require.Equal(t, want[len(want)-len(got):], got)
}

// It is only a guess, but it must never be made of what is not a whole batch.
func FuzzLastOffset(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 61))
	f.Fuzz(func(t *testing.T, in []byte) {
		require.GreaterOrEqual(t, lastOffset(in[:min(len(in), 60)]), int64(-1), "less than a header")
		_ = lastOffset(in)
	})
}

func TestADamagedBatchIsAnErrorAndNoProgress(t *testing.T) {
	b := newBench(t)
	b.write(b.cl, "a", "b")
	c := b.cursor()
	raw := kmsg.NewPtrFetchRequest()
	raw.MinBytes, raw.MaxBytes, raw.SessionEpoch = 1, 1<<20, -1
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID = b.topic.Name, b.topic.ID
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.PartitionMaxBytes = 1 << 20
	rt.Partitions = append(rt.Partitions, rp)
	raw.Topics = append(raw.Topics, rt)
	resp, err := b.cl.Broker(int(b.LeaderFor("state", 0))).Request(b.ctx, raw)
	require.NoError(t, err)
	whole := resp.(*kmsg.FetchResponse).Topics[0].Partitions[0].RecordBatches
	require.NotEmpty(t, whole)

	for name, damage := range map[string]func([]byte) []byte{
		"a flipped bit in the records": func(raw []byte) []byte { raw[len(raw)-1] ^= 1; return raw },
		"an unknown magic":             func(raw []byte) []byte { raw[16] = 9; return raw },
	} {
		t.Run(name, func(t *testing.T) {
			b.answer(func(req *kmsg.FetchRequest, resp *kmsg.FetchResponse) {
				rt := kmsg.NewFetchResponseTopic()
				rt.Topic, rt.TopicID = req.Topics[0].Topic, req.Topics[0].TopicID
				rp := kmsg.NewFetchResponseTopicPartition()
				rp.HighWatermark, rp.LastStableOffset, rp.LogStartOffset = 2, 2, 0
				rp.RecordBatches = damage(bytes.Clone(whole))
				rt.Partitions = append(rt.Partitions, rp)
				resp.Topics = append(resp.Topics, rt)
			})
			_, err := c.Fetch(b.ctx, 0)
			require.ErrorContains(t, err, "after offset 0")
			require.False(t, errors.Is(err, ErrThrottled))
			records, _ := b.read(c, 0)
			require.Equal(t, []string{"0:a", "1:b"}, records)
		})
	}
}

func TestARawCursorReturnsWhatIsNotCommittedAndTheMarkers(t *testing.T) {
	b := newBench(t)
	b.write(b.cl, "a")                // 0
	b.transaction(kgo.TryCommit, "c") // 1, marker 2
	b.transaction(kgo.TryAbort, "x")  // 3, marker 4
	b.open("o")                       // 5
	batch, err := New(b.cl, b.topic, 0, 1<<20).Raw().Fetch(b.ctx, 0)
	require.NoError(t, err)
	var got []string
	for _, r := range batch.Records {
		if r.Attrs.IsControl() {
			got = append(got, fmt.Sprintf("%d:marker", r.Offset))
		} else {
			got = append(got, fmt.Sprintf("%d:%s", r.Offset, r.Key))
		}
	}
	require.Equal(t, []string{"0:a", "1:c", "2:marker", "3:x", "4:marker", "5:o"}, got)
	require.EqualValues(t, 6, batch.Next)
}

package persistence

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/internal/wire"
)

// The first transaction of a client must be committed when its end says so,
// although kgo may not have stored the topic's partitions when the records are
// acknowledged. It takes a fresh client for each try.
func TestTheFirstTransactionOfAClientCommits(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "in", "state"))
	require.NoError(t, err)
	defer c.Close()
	m, err := New(Kafka(kgo.SeedBrokers(c.ListenAddrs()...), kgo.ConsumerGroup("g"), kgo.ConsumeTopics("in")),
		SnapshotTopic("state"), TransactionalIDPrefix("p"), Logger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	ctx := context.Background()
	defer m.Close(ctx)
	const tries = 300
	for i := range tries {
		p, err := m.newProducer(ctx, 0)
		require.NoError(t, err)
		require.NoError(t, p.cl.BeginTransaction())
		require.Empty(t, p.produce(ctx, []*kgo.Record{{Topic: "state", Key: fmt.Append(nil, i), Value: []byte("v")}}))
		require.NoError(t, p.end(ctx))
		p.close()
		// A record and its marker for each: an abort would be one too, so the
		// end alone does not tell.
		end, err := wire.ListOffset(ctx, m.reader, "state", 0, wire.LogEnd, true)
		require.NoError(t, err)
		require.EqualValues(t, 2*(i+1), end, "the transaction is still open")
	}
	var committed int
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"state": {0: kgo.NewOffset().AtStart()}}), kgo.KeepControlRecords())
	require.NoError(t, err)
	defer cl.Close()
	for next := int64(0); next < 2*tries; {
		fetches := cl.PollFetches(ctx)
		require.NoError(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			if next = r.Offset + 1; !r.Attrs.IsControl() {
				committed++
			}
		})
	}
	require.Equal(t, tries, committed, "acknowledged records were aborted")
}

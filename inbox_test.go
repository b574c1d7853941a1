package persistence

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// An error of the input may come when a handler polls already and the poller
// has not yet let the partition fetch.
func TestAnErrorBeforeTheFirstFetchWakesThePoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		m, err := New(Kafka(kgo.SeedBrokers("broker.invalid:9092"), kgo.ConsumerGroup("g"), kgo.ConsumeTopics("in")),
			SnapshotTopic("state"), TransactionalIDPrefix("p"), Logger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		defer m.Close(ctx)
		p := m.newPartition(0)
		defer p.kill(ErrClosed)
		polled := make(chan error, 1)
		go func() {
			_, err := p.Poll(ctx)
			polled <- err
		}()
		synctest.Wait()
		p.inbox.deliver(p, []*kgo.Record{{}}, nil) // from before: dropped
		p.inbox.deliver(p, nil, kerr.OffsetOutOfRange)
		require.ErrorIs(t, <-polled, kerr.OffsetOutOfRange)
	})
}

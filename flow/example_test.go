package flow_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/flow"
)

// A count for each key, exactly once, and a record to another topic for each
// third.
func Example() {
	cluster := kfake.MustCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders", "discounts"))
	defer cluster.Close()

	counter, err := flow.New(flow.Spec[int]{
		Codec: flow.JSON[int](1),
		Fold: func(_ context.Context, k *flow.Key[int], order *kgo.Record) error {
			k.State++
			if k.State%3 == 0 {
				k.Emit(&kgo.Record{Topic: "discounts", Key: order.Key, Value: fmt.Appendf(nil, "%s has ordered %d times", order.Key, k.State)})
			}
			return nil
		},
	})
	if err != nil {
		panic(err)
	}
	module, err := persistence.New(
		persistence.Kafka(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumerGroup("counter"), kgo.ConsumeTopics("orders")),
		persistence.SnapshotTopic("order-counts"),
		persistence.CreateSnapshotTopic(-1, nil),
		persistence.TransactionalIDPrefix("counter"),
		persistence.Logger(slog.New(slog.DiscardHandler)),
	)
	if err != nil {
		panic(err)
	}
	defer module.Close(context.Background())
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- counter.Run(ctx, module) }()

	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics("discounts"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		panic(err)
	}
	defer client.Close()
	for _, customer := range []string{"ann", "bob", "ann", "ann", "bob"} {
		client.ProduceSync(ctx, &kgo.Record{Topic: "orders", Key: []byte(customer)})
	}
	for _, r := range client.PollFetches(ctx).Records() {
		fmt.Println(string(r.Value))
	}
	stop()
	fmt.Println("stopped:", <-ended)
	// Output:
	// ann has ordered 3 times
	// stopped: <nil>
}

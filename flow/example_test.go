package flow_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/flow"
)

// countOrders is a whole service: it counts the orders of each customer, exactly once,
// until ctx ends.
func countOrders(ctx context.Context, brokers ...string) error {
	counter, err := flow.New(flow.Spec[int]{
		Codec: flow.JSON[int](1),
		Fold: func(_ context.Context, k *flow.Key[int], order *kgo.Record) error {
			k.State++
			k.Emit(&kgo.Record{Topic: "counts", Key: order.Key, Value: fmt.Appendf(nil, "%s: %d", order.Key, k.State)})
			return nil
		},
	})
	if err != nil {
		return err
	}
	module, err := persistence.New(
		persistence.Kafka(kgo.SeedBrokers(brokers...), kgo.ConsumerGroup("counter"), kgo.ConsumeTopics("orders")),
		persistence.SnapshotTopic("order-counts"), persistence.CreateSnapshotTopic(-1, nil),
		persistence.TransactionalIDPrefix("counter"),
		persistence.Logger(slog.New(slog.DiscardHandler)),
	)
	if err != nil {
		return err
	}
	defer module.Close(context.Background())
	return counter.Run(ctx, module)
}

// A count for each key, exactly once, and a record to another topic with each. The
// service stops after the first day, and the next one goes on from its state.
func Example() {
	cluster := kfake.MustCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders", "counts"))
	defer cluster.Close()
	client := reader(cluster, "counts")
	defer client.Close()
	for _, day := range [][]string{{"ann", "bob", "ann"}, {"bob", "ann"}} {
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- countOrders(ctx, cluster.ListenAddrs()...) }()
		for _, customer := range day {
			client.ProduceSync(ctx, &kgo.Record{Topic: "orders", Key: []byte(customer)})
		}
		for n := 0; n < len(day); {
			for _, r := range client.PollFetches(ctx).Records() {
				fmt.Println(string(r.Value))
				n++
			}
		}
		stop()
		fmt.Println("the day ends:", <-ended)
	}
	// Unordered output:
	// ann: 1
	// bob: 1
	// ann: 2
	// the day ends: <nil>
	// bob: 2
	// ann: 3
	// the day ends: <nil>
}

// Without state: each event becomes a record of another topic, exactly once and in
// order, or a dead letter.
func ExampleTransform() {
	cluster := kfake.MustCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "names", "greetings", "failed"))
	defer cluster.Close()

	greet, err := flow.NewTransform(flow.Transform{
		Each: func(_ context.Context, name *kgo.Record) ([]*kgo.Record, error) {
			if len(name.Value) == 0 {
				return nil, fmt.Errorf("nobody to greet")
			}
			return []*kgo.Record{{Topic: "greetings", Value: []byte("hello " + strings.ToUpper(string(name.Value)))}}, nil
		},
		Poison: flow.DeadLetters("failed"),
	})
	if err != nil {
		panic(err)
	}
	module, err := persistence.New(
		persistence.Kafka(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumerGroup("greeter"), kgo.ConsumeTopics("names")),
		persistence.Stateless(),
		persistence.TransactionalIDPrefix("greeter"),
		persistence.Logger(slog.New(slog.DiscardHandler)),
	)
	if err != nil {
		panic(err)
	}
	defer module.Close(context.Background())
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go greet.Run(ctx, module)

	client := reader(cluster, "greetings")
	defer client.Close()
	for _, name := range []string{"ann", "", "bob"} {
		client.ProduceSync(ctx, &kgo.Record{Topic: "names", Value: []byte(name)})
	}
	for n := 0; n < 2; {
		for _, r := range client.PollFetches(ctx).Records() {
			fmt.Println(string(r.Value))
			n++
		}
	}
	// Output:
	// hello ANN
	// hello BOB
}

// reader reads what is committed.
func reader(cluster *kfake.Cluster, topic string) *kgo.Client {
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		panic(err)
	}
	return client
}

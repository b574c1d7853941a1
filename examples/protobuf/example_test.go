package protobuf_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/examples/protobuf"
	"github.com/kafkafence/persistence/flow"
)

// fillBaskets counts the articles in each customer's basket, until ctx ends.
func fillBaskets(ctx context.Context, brokers ...string) error {
	baskets, err := flow.New(flow.Spec[*structpb.Struct]{
		Codec: protobuf.Codec[structpb.Struct](1),
		Fold: func(_ context.Context, k *flow.Key[*structpb.Struct], article *kgo.Record) error {
			if !k.Exists() {
				k.State = &structpb.Struct{Fields: make(map[string]*structpb.Value)}
			}
			name := string(article.Value)
			k.State.Fields[name] = structpb.NewNumberValue(k.State.Fields[name].GetNumberValue() + 1)
			return nil
		},
	})
	if err != nil {
		return err
	}
	module, err := persistence.New(
		persistence.Kafka(kgo.SeedBrokers(brokers...), kgo.ConsumerGroup("baskets"), kgo.ConsumeTopics("articles")),
		persistence.SnapshotTopic("baskets"),
		persistence.CreateSnapshotTopic(-1, nil),
		persistence.TransactionalIDPrefix("baskets"),
		persistence.Logger(slog.New(slog.DiscardHandler)),
	)
	if err != nil {
		return err
	}
	defer module.Close(context.Background())
	return baskets.Run(ctx, module)
}

// A basket for each customer, as a message with a map. The service stops between
// two days, and goes on from its snapshots. Another program reads them, as it
// reads any message.
func Example() {
	cluster := kfake.MustCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "articles"))
	defer cluster.Close()
	if err := cluster.CreateTopic("baskets", 1, map[string]string{"cleanup.policy": "compact"}); err != nil {
		panic(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics("baskets"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		panic(err)
	}
	defer client.Close()

	for _, day := range []string{"apple", "pear"} {
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			defer stop() // so that nobody waits for it
			ended <- fillBaskets(ctx, cluster.ListenAddrs()...)
		}()
		for _, customer := range []string{"ann", "bob"} {
			client.ProduceSync(ctx, &kgo.Record{Topic: "articles", Key: []byte(customer), Value: []byte(day)})
			for _, snapshot := range client.PollFetches(ctx).Records() {
				basket := new(structpb.Struct)
				if err := proto.Unmarshal(snapshot.Value, basket); err != nil {
					panic(err)
				}
				fmt.Println(string(snapshot.Key), basket.AsMap(), header(snapshot, "flow.codec"))
			}
		}
		stop()
		if err := <-ended; err != nil {
			panic(err)
		}
	}
	// Output:
	// ann map[apple:1] protobuf/1
	// bob map[apple:1] protobuf/1
	// ann map[apple:1 pear:1] protobuf/1
	// bob map[apple:1 pear:1] protobuf/1
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

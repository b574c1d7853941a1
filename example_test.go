package persistence_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
)

// A service that counts orders by article. It stops, starts again, and goes on
// from its state.
func Example() {
	cluster := kfake.MustCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	defer cluster.Close()

	// count processes orders until there are this many.
	count := func(orders int64) error {
		module, err := persistence.New(
			persistence.Kafka(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumerGroup("counter"), kgo.ConsumeTopics("orders")),
			persistence.SnapshotTopic("order-counts"),
			persistence.CreateSnapshotTopic(-1, nil),
			persistence.TransactionalIDPrefix("counter"),
			persistence.Logger(slog.New(slog.DiscardHandler)),
		)
		if err != nil {
			return err
		}
		defer module.Close(context.Background())
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		return module.Run(ctx, func(ctx context.Context, p *persistence.Partition) error {
			counts := make(map[string]int)
			_, err := p.Recover(ctx, func(s persistence.Snapshot) (err error) {
				counts[string(s.Key)], err = strconv.Atoi(string(s.Value))
				return err
			}, func() { clear(counts) })
			if err != nil {
				return err
			}
			fmt.Println("recovered", counts, "and resuming at offset", p.Resume())
			for {
				events, err := p.Poll(ctx)
				if err != nil {
					return err // stopping, or somebody else's now
				}
				var changed []persistence.Snapshot
				for _, e := range events {
					counts[string(e.Key)]++
					changed = append(changed, persistence.Snapshot{Key: e.Key, Value: strconv.AppendInt(nil, int64(counts[string(e.Key)]), 10), SourceOffset: e.Offset})
				}
				last := events[len(events)-1]
				if err := p.Apply(ctx, persistence.Batch{Snapshots: changed, Through: last}); err != nil {
					return err
				}
				if last.Offset+1 >= orders {
					stop()
				}
			}
		})
	}

	produce(cluster, "orders", "apple", "pear", "apple")
	if err := count(3); err != nil {
		fmt.Println(err)
	}
	produce(cluster, "orders", "pear", "plum")
	if err := count(5); err != nil {
		fmt.Println(err)
	}
	// Output:
	// recovered map[] and resuming at offset 0
	// recovered map[apple:2 pear:1] and resuming at offset 3
}

// Recovery delivers every snapshot that was committed, oldest first; a later one
// of a key replaces an earlier one.
func ExamplePartition_Recover() {
	cluster := kfake.MustCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	defer cluster.Close()
	produce(cluster, "orders", "apple", "apple", "pear", "pear")

	own(cluster, func(ctx context.Context, p *persistence.Partition) error {
		err := p.Write(ctx,
			persistence.Snapshot{Key: []byte("apple"), Value: []byte("2"), SourceOffset: 1},
			persistence.Snapshot{Key: []byte("pear"), Value: []byte("1"), SourceOffset: 2},
		)
		if err != nil {
			return err
		}
		return p.Delete(ctx, []byte("pear"), 3)
	})

	own(cluster, func(ctx context.Context, p *persistence.Partition) error {
		state := make(map[string]string)
		recovered, err := p.Recover(ctx,
			func(s persistence.Snapshot) error {
				fmt.Printf("%s=%s as of event %d\n", s.Key, s.Value, s.SourceOffset)
				if s.Value == nil {
					delete(state, string(s.Key))
				} else {
					state[string(s.Key)] = string(s.Value)
				}
				return nil
			},
			func() { clear(state) }, // all will be delivered again
		)
		fmt.Println(recovered.Records, "snapshots,", recovered.Tombstones, "deletion:", state)
		return err
	})
	// Output:
	// apple=2 as of event 1
	// pear=1 as of event 2
	// pear= as of event 3
	// 3 snapshots, 1 deletion: map[apple:2]
}

// The newest snapshot of each key, where that is all that is wanted.
func ExamplePartition_RecoverMap() {
	cluster := kfake.MustCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	defer cluster.Close()
	produce(cluster, "orders", "apple", "apple", "pear")

	own(cluster, func(ctx context.Context, p *persistence.Partition) error {
		err := p.Write(ctx,
			persistence.Snapshot{Key: []byte("apple"), Value: []byte("1"), SourceOffset: 0},
			persistence.Snapshot{Key: []byte("apple"), Value: []byte("2"), SourceOffset: 1},
			persistence.Snapshot{Key: []byte("pear"), Value: []byte("1"), SourceOffset: 2},
		)
		if err != nil {
			return err
		}
		state, _, err := p.RecoverMap(ctx)
		for key, s := range state {
			fmt.Printf("%s: %s\n", key, s.Value)
		}
		return err
	})
	// Unordered output:
	// apple: 2
	// pear: 1
}

// Endpoints for an orchestrator. A member that recovers is not ready; one whose
// recovery stalled, or whose Run failed, is not alive.
func ExampleModule_Health() {
	cluster := kfake.MustCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	defer cluster.Close()
	module, err := persistence.New(
		persistence.Kafka(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumerGroup("counter"), kgo.ConsumeTopics("orders")),
		persistence.SnapshotTopic("order-counts"),
		persistence.CreateSnapshotTopic(-1, nil),
		persistence.TransactionalIDPrefix("counter"),
		persistence.Logger(slog.New(slog.DiscardHandler)),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer module.Close(context.Background())

	endpoint := func(check func(persistence.Health) error) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if err := check(module.Health()); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/readyz", endpoint(persistence.Health.Ready))
	mux.Handle("/livez", endpoint(persistence.Health.Alive))

	get := func(path string) {
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		fmt.Print(path, " ", answer.Code, ": ", answer.Body)
	}
	get("/readyz")
	get("/livez")
	// Output:
	// /readyz 503: not a member of the group yet
	// /livez 200: ok
}

// What a health check or a tool can ask at any time: can everything in the
// snapshot topic be read, and if not, why, and what to do.
func ExampleDiagnose() {
	cluster := kfake.MustCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "order-counts"))
	defer cluster.Close()
	ctx := context.Background()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.TransactionalID("migration"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	if err := client.BeginTransaction(); err != nil {
		fmt.Println(err)
		return
	}
	client.ProduceSync(ctx, &kgo.Record{Topic: "order-counts", Key: []byte("apple")}) // and never ends it

	diagnoses, err := persistence.Diagnose(ctx, client, "order-counts")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, d := range diagnoses {
		fmt.Printf("partition %d: %v", d.Partition, d.Condition)
		for _, t := range d.Transactions {
			fmt.Printf(": %s, open since offset %d, ends by itself %v after it began", t.TransactionalID, t.StartOffset, t.Timeout)
		}
		fmt.Println()
	}
	// Output:
	// partition 0: transaction open: migration, open since offset 0, ends by itself 40s after it began
}

// State, outputs and the input offset become visible together, or not at all.
func ExamplePartition_Apply() {
	cluster := kfake.MustCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders", "invoices"))
	defer cluster.Close()
	produce(cluster, "orders", "apple", "pear")

	own(cluster, func(ctx context.Context, p *persistence.Partition) error {
		for n := 0; n < 2; {
			orders, err := p.Poll(ctx)
			if err != nil {
				return err
			}
			for _, order := range orders {
				n++
				err := p.Apply(ctx, persistence.Batch{
					Snapshots: []persistence.Snapshot{{Key: []byte("orders"), Value: strconv.AppendInt(nil, int64(n), 10), SourceOffset: order.Offset}},
					Outputs:   []*kgo.Record{{Topic: "invoices", Value: fmt.Appendf(nil, "invoice %d: one %s", n, order.Key)}},
					Through:   order,
				})
				if err != nil {
					return err
				}
			}
		}
		return nil
	})

	fmt.Println("committed offset:", committed(cluster))
	for _, invoice := range consume(cluster, "invoices", 2) {
		fmt.Println(string(invoice.Value))
	}
	// Output:
	// committed offset: 2
	// invoice 1: one apple
	// invoice 2: one pear
}

// Events that change nothing are advanced over. That costs no transaction: the
// next one carries the offset, or the next commit interval, or giving up.
func ExamplePartition_Advance() {
	cluster := kfake.MustCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	defer cluster.Close()
	produce(cluster, "orders", "apple", "pear", "plum")

	own(cluster, func(ctx context.Context, p *persistence.Partition) error {
		for {
			orders, err := p.Poll(ctx)
			if err != nil {
				return err
			}
			for _, order := range orders {
				if err := p.Advance(order); err != nil {
					return err
				}
				if string(order.Key) == "pear" {
					return nil // "plum" is not done
				}
			}
		}
	})

	fmt.Println("committed offset:", committed(cluster))
	// Output:
	// committed offset: 2
}

// own runs a member of the group "counter" that owns the one partition of
// "orders" until do is done.
func own(cluster *kfake.Cluster, do func(ctx context.Context, p *persistence.Partition) error) {
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
	err = module.Run(ctx, func(ctx context.Context, p *persistence.Partition) error {
		if err := do(ctx, p); err != nil {
			return err
		}
		stop()
		for {
			if _, err := p.Poll(ctx); err != nil {
				return err
			}
		}
	})
	if err != nil {
		fmt.Println(err)
	}
}

// produce writes events without a value.
func produce(cluster *kfake.Cluster, topic string, keys ...string) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.DefaultProduceTopic(topic))
	if err != nil {
		panic(err)
	}
	defer cl.Close()
	for _, key := range keys {
		if err := cl.ProduceSync(context.Background(), &kgo.Record{Key: []byte(key)}).FirstErr(); err != nil {
			panic(err)
		}
	}
}

// consume reads n committed records.
func consume(cluster *kfake.Cluster, topic string, n int) []*kgo.Record {
	cl, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		panic(err)
	}
	defer cl.Close()
	var records []*kgo.Record
	for len(records) < n {
		records = append(records, cl.PollFetches(context.Background()).Records()...)
	}
	return records
}

// committed fetches the offset that "counter" has committed.
func committed(cluster *kfake.Cluster) int64 {
	cl, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		panic(err)
	}
	defer cl.Close()
	offsets, err := kadm.NewClient(cl).FetchOffsets(context.Background(), "counter")
	if err != nil {
		panic(err)
	}
	o, _ := offsets.Lookup("orders", 0)
	return o.At
}

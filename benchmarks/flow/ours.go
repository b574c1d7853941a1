package main

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/flow"
)

// ours is a flow with its defaults.
func ours(brokers []string) func(context.Context, string, string, int32, func()) (string, func() error, error) {
	return func(ctx context.Context, group, input string, _ int32, first func()) (string, func() error, error) {
		var once sync.Once
		f, err := flow.New(flow.Spec[[]byte]{
			Codec:   flow.Bytes(),
			Persist: flow.Every(every),
			Fold: func(_ context.Context, k *flow.Key[[]byte], e *kgo.Record) error {
				once.Do(first)
				count := uint64(0)
				if k.Exists() {
					count = binary.BigEndian.Uint64(k.State)
				}
				k.State = slices.Clone(e.Value)
				binary.BigEndian.PutUint64(k.State, count+1)
				return nil
			},
		})
		if err != nil {
			return "", nil, err
		}
		m, err := persistence.New(
			persistence.Kafka(kgo.SeedBrokers(brokers...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(input)),
			persistence.SnapshotTopic(group+"-state"),
			persistence.CreateSnapshotTopic(-1, nil),
			persistence.TransactionalIDPrefix(group),
			persistence.Logger(slog.New(slog.DiscardHandler)),
		)
		if err != nil {
			return "", nil, err
		}
		run, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- f.Run(run, m) }()
		return group + "-state", func() error {
			cancel()
			return errors.Join(<-ended, m.Close(context.Background()))
		}, nil
	}
}

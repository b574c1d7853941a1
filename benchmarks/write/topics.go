package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// topics are an input and a state topic for each contestant of a case.
type topics struct {
	brokers []string
	client  *kgo.Client
	adm     *kadm.Client
	name    string
	created []string
}

func newTopics(brokers []string) (*topics, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		return nil, err
	}
	return &topics{brokers: brokers, client: cl, adm: kadm.NewClient(cl), name: "bench-write-" + strconv.FormatInt(time.Now().UnixNano(), 36)}, nil
}

func (t *topics) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, _ = t.adm.DeleteTopics(ctx, t.created...)
	t.client.Close()
}

func (t *topics) input(i int) string { return fmt.Sprintf("%s-%d-in", t.name, i) }
func (t *topics) state(i int) string { return fmt.Sprintf("%s-%d-state", t.name, i) }

// create makes a contestant's topics, the input with this many records.
func (t *topics) create(ctx context.Context, i, events int) (input, state string, err error) {
	compact := "compact"
	if _, err := t.adm.CreateTopic(ctx, 1, -1, nil, t.input(i)); err != nil {
		return "", "", err
	}
	if _, err := t.adm.CreateTopic(ctx, 1, -1, map[string]*string{"cleanup.policy": &compact}, t.state(i)); err != nil {
		return "", "", err
	}
	t.created = append(t.created, t.input(i), t.state(i))
	var failed error
	for range events {
		t.client.Produce(ctx, &kgo.Record{Topic: t.input(i), Value: []byte("event")}, func(_ *kgo.Record, err error) { failed = errors.Join(failed, err) })
	}
	return t.input(i), t.state(i), errors.Join(t.client.Flush(ctx), failed)
}

// check counts the records of a contestant's state, committed ones only.
func (t *topics) check(ctx context.Context, i int, want int64) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ends, err := t.adm.ListCommittedOffsets(ctx, t.state(i))
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return err
	}
	end, _ := ends.Lookup(t.state(i), 0)
	cl, err := kgo.NewClient(kgo.SeedBrokers(t.brokers...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{t.state(i): {0: kgo.NewOffset().AtStart()}}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxPartitionBytes(16<<20))
	if err != nil {
		return err
	}
	defer cl.Close()
	got := int64(0)
	for next := int64(0); next < end.Offset; {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("reading %s: %w", t.state(i), context.Cause(ctx))
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if next = r.Offset + 1; !r.Attrs.IsControl() {
				got++
			}
		})
	}
	if got != want {
		return fmt.Errorf("%d records are committed, instead of %d", got, want)
	}
	return nil
}

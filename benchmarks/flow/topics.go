package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const eventBytes = 50

// topics are those of one case, and what is looked at from outside.
type topics struct {
	brokers    []string
	client     *kgo.Client
	adm        *kadm.Client
	name       string
	input      string
	partitions int32
	created    []string
	runs       int
}

func newTopics(brokers []string) (*topics, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(1<<20-512),
		kgo.MetadataMinAge(10*time.Millisecond), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		return nil, err
	}
	name := "bench-flow-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	return &topics{brokers: brokers, client: cl, adm: kadm.NewClient(cl), name: name, input: name + "-in"}, nil
}

func (t *topics) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, _ = t.adm.DeleteTopics(ctx, t.created...)
	t.client.Close()
}

func (t *topics) create(ctx context.Context, topic string, configs map[string]*string) error {
	t.created = append(t.created, topic)
	_, err := t.adm.CreateTopic(ctx, t.partitions, -1, configs, topic)
	return err
}

// fill makes the input. The clients are not compressed, so that neither side is
// measured by its decompression.
func (t *topics) fill(ctx context.Context, partitions int32, events, keys int) error {
	t.partitions = partitions
	if err := t.create(ctx, t.input, nil); err != nil {
		return err
	}
	var failed error
	value := make([]byte, eventBytes)
	for i := range events {
		k := i % keys
		t.client.Produce(ctx, &kgo.Record{Topic: t.input, Partition: int32(k) % partitions, Key: fmt.Appendf(nil, "customer-%07d", k), Value: value}, func(_ *kgo.Record, err error) {
			if err != nil && failed == nil {
				failed = err
			}
		})
	}
	return errors.Join(t.client.Flush(ctx), failed)
}

// race runs a contestant once, and checks what it leaves.
func (t *topics) race(ctx context.Context, c contestant, cfg config) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	t.runs++
	group := fmt.Sprintf("%s-%d", t.name, t.runs)
	first := make(chan time.Time, 1)
	state, stop, err := c.start(ctx, group, t.input, t.partitions, func() { first <- time.Now() })
	if err != nil {
		return 0, err
	}
	t.created = append(t.created, state)
	end, err := t.awaitCommitted(ctx, group, int64(cfg.events))
	if err = errors.Join(err, stop()); err != nil {
		return 0, err
	}
	if err := t.check(ctx, state, cfg); err != nil {
		return 0, err
	}
	return end.Sub(<-first), nil
}

// awaitCommitted waits until the group has committed this many events, and returns
// when that was seen.
func (t *topics) awaitCommitted(ctx context.Context, group string, events int64) (time.Time, error) {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("waiting for the committed offset: %w", context.Cause(ctx))
		}
		found, err := t.adm.FetchOffsets(ctx, group)
		if err != nil {
			continue // the group is not there yet, or its offset is pending
		}
		sum := int64(0)
		for _, o := range found[t.input] {
			if o.Err == nil {
				sum += max(o.At, 0)
			}
		}
		if sum >= events {
			return time.Now(), nil
		}
	}
}

// check reads the state as a read_committed reader does.
func (t *topics) check(ctx context.Context, state string, cfg config) error {
	ends, err := t.adm.ListCommittedOffsets(ctx, state)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("the end of %s: %w", state, err)
	}
	left := make(map[int32]int64)
	from := make(map[int32]kgo.Offset)
	ends.Each(func(o kadm.ListedOffset) {
		if from[o.Partition] = kgo.NewOffset().AtStart(); o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	cl, err := kgo.NewClient(kgo.SeedBrokers(t.brokers...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{state: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		return err
	}
	defer cl.Close()
	counts := make(map[string]uint64, cfg.keys)
	for len(left) > 0 {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("reading %s: %w", state, context.Cause(ctx))
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
			if !r.Attrs.IsControl() && len(r.Value) == eventBytes {
				counts[string(r.Key)] = binary.BigEndian.Uint64(r.Value)
			}
		})
	}
	sum := uint64(0)
	for _, n := range counts {
		sum += n
	}
	if len(counts) != cfg.keys || sum != uint64(cfg.events) {
		return fmt.Errorf("the state in %s has %d keys that count %d events, instead of %d and %d", state, len(counts), sum, cfg.keys, cfg.events)
	}
	return nil
}

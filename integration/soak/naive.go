package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// naive is a member without the fence, as it is often written: state is recovered
// from the same topic when a partition comes, outputs and states are produced by
// an idempotent producer, and the offsets are committed when all is acknowledged.
// It is here to be caught.
func naive(ctx context.Context, w world) error {
	producer, err := kgo.NewClient(impatient(w.brokers)...)
	if err != nil {
		return err
	}
	defer producer.Close()
	states := make(map[int32]map[string]state) // only touched while a poll blocks rebalances, or by its callbacks
	consumer, err := kgo.NewClient(append(membership(w), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(ctx context.Context, _ *kgo.Client, assigned map[string][]int32) {
			for _, id := range assigned[w.input] {
				if states[id], err = recoverNaively(ctx, w, id); err != nil {
					panic(err)
				}
			}
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
			for _, id := range gone[w.input] {
				delete(states, id)
			}
		}))...)
	if err != nil {
		return err
	}
	defer consumer.Close()
	for ctx.Err() == nil {
		fetches := consumer.PollRecords(ctx, 500)
		var out []*kgo.Record
		fetches.EachRecord(func(e *kgo.Record) {
			number := numberOf(e.Value)
			if isPoison(number) {
				out = append(out, &kgo.Record{Topic: w.dead, Value: e.Value})
				return
			}
			s := states[e.Partition][string(e.Key)].fold(number)
			if states[e.Partition] == nil {
				states[e.Partition] = make(map[string]state)
			}
			states[e.Partition][string(e.Key)] = s
			text, _ := json.Marshal(s)
			out = append(out, &kgo.Record{Topic: w.output, Key: e.Key, Value: []byte(strconv.Itoa(number) + ":" + strconv.Itoa(s.Count))},
				&kgo.Record{Topic: w.state, Key: e.Key, Value: text})
		})
		if err := producer.ProduceSync(ctx, out...).FirstErr(); err != nil && ctx.Err() == nil {
			return err
		}
		if err := consumer.CommitUncommittedOffsets(ctx); err != nil && ctx.Err() == nil {
			fmt.Println("committing:", err)
		}
		consumer.AllowRebalance()
	}
	return nil
}

// recoverNaively reads the state topic up to its end. A partition's keys may be in
// any of its partitions, so all are read.
func recoverNaively(ctx context.Context, w world, id int32) (map[string]state, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cl, err := kgo.NewClient(append(impatient(w.brokers), kgo.ConsumeTopics(w.state), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, w.state)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, err
	}
	left := make(map[int32]int64)
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	all := make(map[string]state)
	for len(left) > 0 {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil, errors.Join(context.Cause(ctx), fetches.Err())
		}
		fetches.EachRecord(func(r *kgo.Record) {
			var s state
			if json.Unmarshal(r.Value, &s) == nil && int32(s.Last%keys%partitions) == id {
				all[string(r.Key)] = s
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return all, nil
}

package main

import (
	"context"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"
)

// plainOwner is what many services do: a consumer in a group, a producer for
// the snapshots, and nothing that ties the two together.
type plainOwner struct {
	stage    *stage
	consumer *kgo.Client
	producer *kgo.Client
	process  *pausable

	balance int
	next    int64       // the offset to consume next
	last    *kgo.Record // the last one consumed
}

// own joins the group and waits for the partition, then recovers.
func (s *stage) own(ctx context.Context) (o *plainOwner, err error) {
	o = &plainOwner{stage: s, process: newPausable()}
	context.AfterFunc(ctx, o.process.resume) // an interrupt wakes it, too
	assigned := make(chan struct{}, 10)
	o.consumer, err = kgo.NewClient(append(s.member(), kgo.DisableAutoCommit(), kgo.Dialer(o.process.dial),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, got map[string][]int32) {
			if len(got[s.input]) > 0 {
				assigned <- struct{}{}
			}
		}))...)
	if err != nil {
		return nil, err
	}
	o.producer, err = kgo.NewClient(kgo.SeedBrokers(s.cluster.Brokers...), kgo.DefaultProduceTopic(s.snapshots), kgo.Dialer(o.process.dial))
	if err != nil {
		o.consumer.Close()
		return nil, err
	}
	select {
	case <-assigned:
	case <-ctx.Done():
		o.stop()
		return nil, context.Cause(ctx)
	}
	if o.next, err = s.cluster.Committed(ctx, s.group, s.input, 0); err == nil {
		o.next = max(o.next, 0)
		o.balance, err = s.newest(ctx)
	}
	if err != nil {
		o.stop()
		return nil, err
	}
	return o, nil
}

// newest reads the snapshot topic to its end: the last one counts.
func (s *stage) newest(ctx context.Context) (balance int, err error) {
	end, err := s.cluster.End(ctx, s.snapshots, 0)
	if err != nil || end == 0 {
		return 0, err
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.cluster.Brokers...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{s.snapshots: {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	for {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return 0, err
		}
		for _, r := range fetches.Records() {
			if balance, err = amount(r.Value); err != nil || r.Offset >= end-1 {
				return balance, err
			}
		}
	}
}

// foldUntil folds deposits in until an offset, up to which they are made first.
func (o *plainOwner) foldUntil(ctx context.Context, offset int) error {
	if err := o.stage.depositUntil(ctx, offset); err != nil {
		return err
	}
	for o.next < int64(offset) {
		fetches := o.consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, r := range fetches.Records() {
			n, err := amount(r.Value)
			if err != nil {
				return err
			}
			o.balance += n
			o.next, o.last = r.Offset+1, r
		}
	}
	return nil
}

// snapshot writes the balance. Nothing asks whether the partition is still
// owned: it is a record like any other.
func (o *plainOwner) snapshot(ctx context.Context) error {
	return o.producer.ProduceSync(ctx, &kgo.Record{Key: []byte(account), Value: []byte(strconv.Itoa(o.balance))}).FirstErr()
}

// save snapshots and then commits the offset. The commit the group would refuse
// to a stale owner, but by then the snapshot is written.
func (o *plainOwner) save(ctx context.Context) error {
	if err := o.snapshot(ctx); err != nil {
		return err
	}
	return o.consumer.CommitRecords(ctx, o.last)
}

func (o *plainOwner) stop() {
	o.process.resume()
	o.consumer.Close()
	o.producer.Close()
}

func tellPlain(ctx context.Context, s *stage) (out outcome, err error) {
	one, err := s.own(ctx)
	if err != nil {
		return out, err
	}
	defer one.stop()
	if err := one.foldUntil(ctx, first); err != nil {
		return out, err
	}
	if err := one.save(ctx); err != nil {
		return out, err
	}
	s.say("owner 1: %d snapshotted, offset %d committed", one.balance, one.next)
	if err := one.foldUntil(ctx, stale); err != nil {
		return out, err
	}
	one.process.pause()
	out.stale = one.balance
	s.say("owner 1: paused with %d, not written yet", one.balance)

	two, err := s.own(ctx)
	if err != nil {
		return out, err
	}
	defer two.stop()
	s.say("owner 2: took over, recovered %d at offset %d", two.balance, two.next)
	if err := two.foldUntil(ctx, newer); err != nil {
		return out, err
	}
	if err := two.save(ctx); err != nil {
		return out, err
	}
	out.newer = two.balance
	s.say("owner 2: %d snapshotted, offset %d committed", two.balance, two.next)

	if err := one.snapshot(ctx); err != nil {
		out.refused, out.write = true, err
		s.say("owner 1: woke up, its snapshot of %d failed: %v", one.balance, err)
	} else {
		s.say("owner 1: woke up, its snapshot of %d was accepted", one.balance)
	}
	if out.committed, err = s.cluster.Committed(ctx, s.group, s.input, 0); err != nil {
		return out, err
	}
	one.stop()
	two.stop()

	three, err := s.own(ctx)
	if err != nil {
		return out, err
	}
	defer three.stop()
	out.recovered, out.resumed = three.balance, three.next
	s.say("owner 3: recovered %d at offset %d", three.balance, three.next)
	if err := three.foldUntil(ctx, ending); err != nil {
		return out, err
	}
	out.final = three.balance
	s.say("owner 3: %d", three.balance)
	return out, nil
}

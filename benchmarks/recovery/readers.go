package main

import (
	"bytes"
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
)

// tally is what a reader found. All readers of a log must find the same.
type tally struct {
	records int64  // delivered
	keys    int64  // that are alive
	live    int64  // bytes of their newest snapshots
	sum     uint64 // of the keys with their newest values, in any order
}

func tallyOf(records int64, state map[string][]byte) tally {
	t := tally{records: records, keys: int64(len(state))}
	for k, v := range state {
		t.live += int64(len(k) + len(v))
		t.sum += maphash.String(tallySeed, k) * maphash.Bytes(tallySeed, v)
	}
	return t
}

var tallySeed = maphash.MakeSeed()

// fold is what all readers do with a snapshot.
func fold(state map[string][]byte, key, value []byte) {
	if value == nil {
		delete(state, string(key))
		return
	}
	state[string(key)] = value
}

// recoverMap is a recovery by this library.
func recoverMap(ctx context.Context, p *persistence.Partition) (map[string][]byte, persistence.Recovered, error) {
	state := make(map[string][]byte)
	got, err := p.Recover(ctx, func(s persistence.Snapshot) error {
		fold(state, s.Key, s.Value)
		return nil
	}, func() { clear(state) })
	return state, got, err
}

// service is a member of a group of its own.
type service struct {
	brokers          []string
	input, snapshots string
	group            string
	partitions       int
}

// each takes all partitions over, calls use for each, and ends when all of them
// have returned.
func (s service) each(ctx context.Context, use func(context.Context, *persistence.Partition) error, opts ...persistence.Option) error {
	m, err := persistence.New(append([]persistence.Option{
		persistence.Kafka(kgo.SeedBrokers(s.brokers...), kgo.ConsumerGroup(s.group), kgo.ConsumeTopics(s.input), kgo.DisableClientMetrics()),
		persistence.SnapshotTopic(s.snapshots),
		persistence.TransactionalIDPrefix(s.group),
		persistence.Logger(slog.New(slog.DiscardHandler)),
	}, opts...)...)
	if err != nil {
		return err
	}
	running, enough := context.WithCancel(ctx)
	defer enough()
	var used atomic.Int32
	err = m.Run(running, func(ctx context.Context, p *persistence.Partition) error {
		if err := use(ctx, p); err != nil {
			return err
		}
		if int(used.Add(1)) == s.partitions {
			enough()
		}
		for {
			if _, err := p.Poll(ctx); err != nil {
				return err
			}
		}
	})
	err = errors.Join(err, m.Close(context.Background()))
	if err == nil && int(used.Load()) < s.partitions {
		err = context.Cause(ctx)
	}
	return err
}

// loop is the bare loop: a kgo consumer that reads until it is behind the end
// that it looked up at its beginning.
type loop struct {
	brokers    []string
	topics     *topics
	fetchBytes int32
	// clone makes the loop copy the values that it stores. Without it they are
	// slices of what was fetched, and each of them keeps all that was
	// fetched with it in memory.
	clone bool
}

const kgoDefaultBytes = 1 << 20

// read returns how long it took, from the moment that the client was connected.
func (l loop) read(ctx context.Context) (tally, time.Duration, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(l.brokers...), kgo.DisableClientMetrics(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxPartitionBytes(l.fetchBytes))
	if err != nil {
		return tally{}, 0, err
	}
	defer cl.Close()
	if err := cl.Ping(ctx); err != nil {
		return tally{}, 0, err
	}
	began := time.Now()
	end, err := l.topics.end(ctx)
	if err != nil {
		return tally{}, 0, err
	}
	cl.AddConsumePartitions(map[string]map[int32]kgo.Offset{l.topics.snapshots: {0: kgo.NewOffset().AtStart()}})
	state := make(map[string][]byte)
	records := int64(0)
	for next := int64(0); next < end; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return tally{}, 0, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if next = r.Offset + 1; r.Attrs.IsControl() {
				return
			}
			records++
			value := r.Value
			if l.clone {
				value = bytes.Clone(value)
			}
			fold(state, r.Key, value)
		})
	}
	took := time.Since(began)
	return tallyOf(records, state), took, nil
}

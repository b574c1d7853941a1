package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// feed produces the events, evenly over some seconds, and keeps a ledger of its
// own: what each account must hold in the end.
type feed struct {
	produced atomic.Int64
	ended    atomic.Bool

	// To be read when it has ended.
	ledger map[string]entry
	ends   []int64 // of the input partitions
}

// entry is what an account must hold.
type entry struct {
	events  int64
	balance int64
}

const tick = 50 * time.Millisecond

func (s *story) startFeed(ctx context.Context, over time.Duration) *feed {
	f := &feed{ledger: make(map[string]entry), ends: make([]int64, s.cfg.partitions)}
	s.background.Go(func() {
		if err := f.run(ctx, s, over); err != nil {
			s.abandon(fmt.Errorf("producing: %w", err))
		}
		f.ended.Store(true)
	})
	return f
}

func (f *feed) run(ctx context.Context, s *story, over time.Duration) error {
	// An ordinary producer: whoever feeds the input need not know of the
	// library.
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.cluster.Brokers...), kgo.DefaultProduceTopic(s.input))
	if err != nil {
		return err
	}
	defer cl.Close()
	rng := rand.New(rand.NewPCG(s.cfg.seed, 0))
	pace := time.NewTicker(tick)
	defer pace.Stop()
	each := max(1, s.cfg.events/int(over/tick))
	for made := 0; made < s.cfg.events; {
		var records []*kgo.Record
		for range min(each, s.cfg.events-made) {
			key := made // each key once, and then any
			if key >= s.cfg.keys {
				key = rng.IntN(s.cfg.keys)
			}
			r, err := f.draw(fmt.Sprintf("account-%d", key+1), rng)
			if err != nil {
				return err
			}
			records = append(records, r)
			made++
		}
		if err := cl.ProduceSync(ctx, records...).FirstErr(); err != nil {
			return err
		}
		for _, r := range records {
			f.ends[r.Partition] = max(f.ends[r.Partition], r.Offset+1)
		}
		f.produced.Add(int64(len(records)))
		select {
		case <-pace.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// draw makes the next event of a key and enters it into the ledger.
func (f *feed) draw(key string, rng *rand.Rand) (*kgo.Record, error) {
	e := f.ledger[key]
	amount := rng.Int64N(201) - 100
	e.events++
	e.balance += amount
	f.ledger[key] = e
	value, err := json.Marshal(event{N: e.events, Amount: amount})
	return &kgo.Record{Key: []byte(key), Value: value}, err
}

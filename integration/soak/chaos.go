package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kafkafence/persistence/integration/kafkatest"
)

// injuries is what was done.
type injuries struct {
	kills, pauses int
	suspects      []suspect
}

// asleep is how long a paused member sleeps, which is longer than its session.
const asleep = 5 * time.Second

// chaos goes on for as long as it is told. Two hands hurt at the same time, one
// the members and one the brokers, so that both meet. Never more than one broker
// and one member are down at a time, and in the end everything is up again.
// Meanwhile the committed offsets are looked at.
func chaos(ctx context.Context, cfg config, w *world, cluster *kafkatest.Cluster, ms *members, r *reader, f *feed, tell func(string, ...any)) (injuries, error) {
	began := time.Now()
	bound, cancel := context.WithTimeout(ctx, cfg.lasts)
	defer cancel()
	failed, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	stop := context.AfterFunc(failed, cancel)
	defer stop()

	var done injuries
	var mu sync.Mutex
	count := func(n *int) {
		mu.Lock()
		defer mu.Unlock()
		*n++
	}
	var hands sync.WaitGroup
	hand := func(stream uint64, hurt func(rng *rand.Rand) error) {
		rng := rand.New(rand.NewPCG(cfg.seed, stream))
		hands.Go(func() {
			for wait(bound, between(rng, cfg.pace/2, cfg.pace*3/2)) {
				if err := hurt(rng); err != nil {
					fail(err)
					return
				}
			}
		})
	}
	hand(1, func(rng *rand.Rand) error {
		if err := ms.replace(); err != nil {
			return err
		}
		n, kill := rng.IntN(memberCount), rng.IntN(2) == 0
		m := ms.pick(n)
		switch {
		case m == nil:
			return nil
		case kill:
			tell("killing %s", m.name)
			count(&done.kills)
			return ms.kill(m)
		}
		tell("pausing %s", m.name)
		count(&done.pauses)
		ms.freeze(m)
		wait(bound, asleep)
		ms.thaw(m)
		return nil
	})
	hand(2, func(rng *rand.Rand) error {
		node, kill, down := cluster.Node(rng.IntN(3)), rng.IntN(2) == 0, between(rng, time.Second, 6*time.Second)
		if kill {
			tell("killing broker %d", node.ID())
			count(&done.kills)
			if err := node.Kill(ctx); err != nil {
				return fmt.Errorf("killing broker %d: %w", node.ID(), err)
			}
			wait(bound, down)
			if err := node.Start(ctx); err != nil {
				return fmt.Errorf("starting broker %d again: %w", node.ID(), err)
			}
			return nil
		}
		tell("pausing broker %d for %v", node.ID(), down.Round(100*time.Millisecond))
		count(&done.pauses)
		if err := node.Pause(ctx); err != nil {
			return fmt.Errorf("pausing broker %d: %w", node.ID(), err)
		}
		wait(bound, down)
		if err := node.Resume(ctx); err != nil {
			return fmt.Errorf("resuming broker %d: %w", node.ID(), err)
		}
		return nil
	})
	hands.Go(func() {
		for told := time.Now(); wait(bound, 2*time.Second); {
			found := look(bound, w, r)
			mu.Lock()
			done.suspects = append(done.suspects, found...)
			hurt := done
			mu.Unlock()
			if time.Since(told) >= 10*time.Second {
				told = time.Now()
				l := r.logs()
				tell("%v of %v: %d inputs, %d outputs and %d dead letters committed, %d kills, %d pauses", time.Since(began).Round(time.Second), cfg.lasts,
					f.count(), len(l.outputs), len(l.dead), hurt.kills, hurt.pauses)
			}
		}
	})
	hands.Wait()
	if err := context.Cause(failed); err != nil {
		return done, err
	}
	return done, nil
}

// look finds committed offsets that may be ahead. Where a broker does not answer,
// the next look will do.
func look(ctx context.Context, w *world, r *reader) []suspect {
	bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	committed, err := w.committed(bounded) // first
	at := time.Now()
	if err != nil || r.catchUp(bounded) != nil {
		return nil
	}
	return r.suspects(committed, at)
}

func between(rng *rand.Rand, a, b time.Duration) time.Duration {
	return a + time.Duration(rng.Int64N(int64(b-a)))
}

// wait returns false if ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

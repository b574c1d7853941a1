package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// feed produces numbered inputs. kgo's idempotent producer makes each once,
// whatever happens to the brokers.
type feed struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	mu     sync.Mutex
	next   int
	acked  map[int]struct{}
}

func (w *world) feed(ctx context.Context, rate int) *feed {
	ctx, cancel := context.WithCancel(ctx)
	f := &feed{cancel: cancel, acked: make(map[int]struct{})}
	f.done.Go(func() { f.run(ctx, w, rate) })
	return f
}

func keyOf(number int) string { return fmt.Sprintf("k%02d", number%keys) }

func (f *feed) run(ctx context.Context, w *world, rate int) {
	const every = 20 * time.Millisecond
	t := time.NewTicker(every)
	defer t.Stop()
	owed := 0.0
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			// What is under way is part of the input.
			flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			_ = w.client.Flush(flush)
			return
		}
		for owed += float64(rate) * every.Seconds(); owed >= 1; owed-- {
			f.mu.Lock()
			n := f.next
			f.next++
			f.mu.Unlock()
			// Not under ctx: a record that is taken back has an unknown fate.
			w.client.Produce(context.Background(), &kgo.Record{Topic: w.input, Partition: int32(n % keys % partitions), Key: []byte(keyOf(n)), Value: []byte(strconv.Itoa(n))},
				func(_ *kgo.Record, err error) {
					if err == nil {
						f.mu.Lock()
						defer f.mu.Unlock()
						f.acked[n] = struct{}{}
					}
				})
		}
	}
}

// stop returns when everything is acknowledged.
func (f *feed) stop() {
	f.cancel()
	f.done.Wait()
}

func (f *feed) acknowledged() map[int]struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.acked
}

func (f *feed) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.acked)
}

package persistence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/internal/wire"
)

// chaos is a script of random trouble.
type chaos struct {
	rng    *rand.Rand
	mu     sync.Mutex
	rate   float64
	stolen bool // somebody else owns the partition, though the handle may be open
}

func (c *chaos) happens(share float64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.Float64() < c.rate*share
}

func (c *chaos) pick(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(n)
}

func (c *chaos) steal() { c.mu.Lock(); defer c.mu.Unlock(); c.stolen = true }

func (c *chaos) isStolen() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.stolen }

// dawdle takes some time, or what is left of ctx.
func (c *chaos) dawdle(ctx context.Context) error {
	if !sleep(ctx, time.Duration(c.pick(3000))*time.Microsecond) {
		return context.Cause(ctx)
	}
	return nil
}

var passing = []error{kerr.CoordinatorLoadInProgress, kerr.NotCoordinator, kerr.InvalidProducerEpoch, kerr.TransactionAbortable,
	kerr.RequestTimedOut, kerr.UnknownServerError, errors.New("connection reset"), context.DeadlineExceeded}

func (c *chaos) trouble(r *rig) {
	r.onMember = func(int) {
		if c.happens(0.02) {
			r.setMember("", -1)
			time.AfterFunc(time.Millisecond, func() { r.setMember("member", int32(c.pick(1000)+1)) })
		}
	}
	r.onOffset = func(ctx context.Context, _ int, m wire.Member) error {
		if err := c.dawdle(ctx); err != nil {
			return err
		}
		switch {
		case c.isStolen():
			return ownershipQuestions[c.pick(len(ownershipQuestions))]
		case c.happens(1):
			// A rebalance that leaves the partition here, now or in a while.
			time.AfterFunc(time.Duration(c.pick(50))*time.Millisecond, func() { r.setMember("member", m.Generation+1) })
			return ownershipQuestions[c.pick(len(ownershipQuestions))]
		case c.happens(1):
			return passing[c.pick(len(passing))]
		case c.happens(0.1):
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	r.onProduce = func(ctx context.Context, _ int, rs []*kgo.Record) []error {
		if err := c.dawdle(ctx); err != nil {
			return []error{err}
		}
		var errs []error
		for _, rec := range rs {
			if strings.Contains(string(rec.Key), "cursed") {
				errs = append(errs, kerr.MessageTooLarge)
			} else if c.happens(0.3) {
				errs = append(errs, passing[c.pick(len(passing))])
			}
		}
		if c.isStolen() && c.happens(5) {
			errs = append(errs, kerr.ProducerFenced)
		}
		return errs
	}
	r.onEnd = func(ctx context.Context, _ int) (bool, error) {
		if err := c.dawdle(ctx); err != nil {
			return c.pick(2) == 0, err
		}
		if c.isStolen() {
			return false, kerr.ProducerFenced
		}
		if c.happens(0.5) {
			r.setDoubt()
		}
		if c.happens(1) {
			landed := c.pick(2) == 0
			if !landed && c.happens(1) {
				r.abort()
			} else if c.happens(0.3) { // paused until the next owner has taken over
				c.steal()
			}
			if c.happens(0.5) { // the handle closes before it can be settled, or just after
				time.AfterFunc(time.Duration(c.pick(6000))*time.Microsecond, func() { r.kill(ErrLost) })
			}
			return landed, passing[c.pick(len(passing))]
		}
		return true, nil
	}
	r.onRenew = func(ctx context.Context, _ int) error {
		if err := c.dawdle(ctx); err != nil {
			return err
		}
		if c.happens(1) {
			return passing[c.pick(len(passing))]
		}
		return nil
	}
	r.onConfirm = r.onOffset
	r.onLast = func(ctx context.Context, _ int) error {
		if err := c.dawdle(ctx); err != nil {
			return err
		}
		if c.isStolen() {
			r.abort()
			if c.pick(2) == 0 {
				r.foreignCommit()
			}
		}
		if c.happens(1) {
			return passing[c.pick(len(passing))]
		}
		return nil
	}
}

// What callers are told must agree with the log, whatever goes wrong. Each seed
// is one ownership with its own bounds, its own amount of trouble, and its own
// end.
func TestEveryAnswerAgreesWithTheLogWhateverHappens(t *testing.T) {
	const workers, each = 10, 12
	var nils, refusals, unknowns atomic.Int64
	for seed := range uint64(100) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &chaos{rng: rand.New(rand.NewPCG(seed, 7))}
				c.rate = []float64{0, 0.02, 0.1, 0.3}[c.pick(4)]
				r := newRig(t, func(g *groupCommit) {
					g.maxWrites = 1 + c.pick(30)
					g.maxBytes = 200 + c.pick(3000)
					g.patience = time.Second
				})
				c.trouble(r)

				type result struct {
					keys    []string
					through int64
					err     error
				}
				var results [workers][]result
				var advanced sync.Map // offset+1 of each advance
				var wg sync.WaitGroup
				for w := range workers {
					wg.Go(func() {
						for i := range each {
							time.Sleep(time.Duration(c.pick(4000)) * time.Microsecond)
							var keys []string
							for j := range 1 + c.pick(3) {
								k := fmt.Sprintf("%d/%d/%d", w, i, j)
								if c.happens(0.2) {
									k += "/cursed"
								}
								keys = append(keys, k)
							}
							// A number that only this write can have committed.
							through := int64(-1)
							if c.pick(3) == 0 {
								through = int64(1000 + i*1000 + w)
							}
							ctx, cancel := context.Background(), context.CancelFunc(func() {})
							if c.happens(2) {
								ctx, cancel = context.WithTimeout(ctx, time.Duration(c.pick(10_000))*time.Microsecond)
							}
							err := r.put(ctx, through, keys...)
							cancel()
							results[w] = append(results[w], result{keys, through, err})
							if c.pick(4) == 0 {
								at := int64(500 + i*1000 + w)
								advanced.Store(at+1, true)
								_ = r.Advance(input(at))
							}
						}
					})
				}
				// The end comes in the middle, or after everything.
				finished := make(chan struct{})
				go func() { wg.Wait(); close(finished) }()
				if c.pick(2) == 0 {
					time.Sleep(time.Duration(c.pick(200)) * time.Millisecond)
					switch c.pick(3) {
					case 0:
						r.queue.drain(ErrRevoked)
					case 1:
						r.kill(ErrLost)
					case 2:
						c.steal() // seen by the fence, or some time later by the group
						time.AfterFunc(time.Duration(c.pick(4000))*time.Millisecond, func() { r.kill(ErrLost) })
					}
				}
				<-finished // everybody is answered
				r.kill(ErrClosed)
				<-r.over

				times := make(map[string]int)
				for _, k := range r.committed() {
					times[k]++
					require.Equal(t, 1, times[k], "%s is in the log twice", k)
				}
				offsets := map[int64]bool{0: true}
				place, transaction := make(map[string]int), make(map[string]int)
				for i, k := range r.committed() {
					place[k] = i
				}
				for i, b := range r.batches() {
					for _, k := range b {
						transaction[k] = i
					}
				}
				for w := range workers {
					require.Len(t, results[w], each)
					last := -1
					for _, res := range results[w] {
						in := 0
						for _, k := range res.keys {
							in += times[k]
						}
						require.Contains(t, []int{0, len(res.keys)}, in, "%v is in the log in part", res.keys)
						switch {
						case res.err == nil:
							nils.Add(1)
							require.NotZero(t, in, "%v was acknowledged and is not in the log", res.keys)
						case errors.Is(res.err, ErrUnknownOutcome):
							unknowns.Add(1)
						default:
							refusals.Add(1)
							require.Zero(t, in, "%v was refused and is in the log: %v", res.keys, res.err)
						}
						if in > 0 {
							offsets[res.through+1] = true
							for _, k := range res.keys {
								require.Greater(t, place[k], last, "a caller's writes are out of order")
								last = place[k]
								require.Equal(t, transaction[res.keys[0]], transaction[k], "%v is in two transactions", res.keys)
							}
						}
					}
				}
				before := int64(0)
				for _, tx := range r.commits() {
					at := tx.pos.Offset
					_, ok := advanced.Load(at)
					require.True(t, ok || offsets[at], "offset %d was committed, and nobody whose write is in the log said so", at)
					require.GreaterOrEqual(t, at, before, "the committed offset went back")
					before = at
				}
			})
		})
	}
	t.Logf("%d acknowledged, %d refused, %d unknown", nils.Load(), refusals.Load(), unknowns.Load())
	require.NotZero(t, nils.Load())
	require.NotZero(t, refusals.Load())
	require.NotZero(t, unknowns.Load())
}

package persistence_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/scenario"
)

// Recovery stories that need a cluster which can be made to misbehave, or a
// clock that can be made to run.

// clusterWorld is a world on a cluster of its own.
func clusterWorld(t *testing.T, partitions int32, opts ...kfake.Opt) (*scenario.World, *kfake.Cluster) {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(3)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return scenario.NewWorld(t, scenario.Backend{Brokers: c.ListenAddrs(), TransactionVersion: 2}, partitions), c
}

// inVirtualTime tells a story in a bubble with a cluster and a clock of its own.
func inVirtualTime(t *testing.T, partitions int32, tell func(w *scenario.World, c *kfake.Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var network kfake.VirtualNetwork
		c, err := kfake.NewCluster(kfake.Ports(9092, 9093, 9094), kfake.ListenFn(network.Listen))
		require.NoError(t, err)
		t.Cleanup(c.Close)
		tell(scenario.NewWorld(t, scenario.Backend{Brokers: c.ListenAddrs(), Opts: []kgo.Opt{kgo.Dialer(network.DialContext)}, Dial: network.DialContext, TransactionVersion: 2}, partitions), c)
	})
}

// claimEnd makes the cluster claim that snapshot partition 0 ends elsewhere,
// while end is not negative.
func claimEnd(w *scenario.World, c *kfake.Cluster, end *atomic.Int64) {
	end.Store(-1)
	c.ControlKey(kmsg.ListOffsets.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := kreq.(*kmsg.ListOffsetsRequest)
		at := end.Load()
		if at < 0 || req.IsolationLevel != 0 || req.Topics[0].Topic != w.State || req.Topics[0].Partitions[0].Timestamp != -1 {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		rt := kmsg.NewListOffsetsResponseTopic()
		rt.Topic = w.State
		rp := kmsg.NewListOffsetsResponseTopicPartition()
		rp.Offset = at
		rt.Partitions = append(rt.Partitions, rp)
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
}

func TestRecoveryStopsInsideABatchThatCrossesTheTarget(t *testing.T) {
	w, c := clusterWorld(t, 1)
	w.Seed()
	w.Put("a", "1", "b", "1", "c", "1", "d", "1") // one batch
	var end atomic.Int64
	claimEnd(w, c, &end)
	end.Store(4)
	m := w.Start(false)
	o := m.Own()
	require.EqualValues(w, 4, o.Recovered.Target)
	require.Equal(w, map[string]string{"seed": "0", "a": "1", "b": "1"}, o.State)
	require.NoError(w, m.Stop())
}

func TestRecoveryOverAGapThatCompactionLeft(t *testing.T) {
	w, c := clusterWorld(t, 1)
	scenario.RecoverOverAGap(w, c.Compact)
}

// The log turns out to end below the target, which only a truncation can
// cause. Whichever way the broker puts it: an error, never a hang or a reset.
func TestRecoveryFailsWhenTheLogEndsBelowItsTarget(t *testing.T) {
	const limit = 3 * time.Minute
	for name, c := range map[string]struct {
		fault *kerr.Error
		after time.Duration
	}{
		"the position is out of range": {kerr.OffsetOutOfRange, 0},
		"there is nothing to read":     {nil, limit},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, 1, func(w *scenario.World, cluster *kfake.Cluster) {
				w.Seed()
				w.Put("a", "1")
				real := w.End(w.State, 0)
				var claimed atomic.Int64
				claimEnd(w, cluster, &claimed)
				claimed.Store(real + 10)
				if c.fault != nil {
					cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: w.State, Err: c.fault, Count: -1})
				}
				var began time.Time
				m := w.Start(false, persistence.RecoveryStallTimeout(limit), persistence.WithTrace(persistence.Trace{
					RecoveryStarted: func(persistence.RecoveryInfo) { began = time.Now(); claimed.Store(-1) },
				}))
				<-m.Done()
				err := m.Wait()
				var stalled *persistence.RecoveryStalledError
				require.ErrorAs(w, err, &stalled)
				require.Equal(w, real+10, stalled.Target)
				d := stalled.Diagnosis
				require.Equal(w, persistence.LogTruncated, d.Condition)
				require.Equal(w, real, d.LostFrom)
				require.Equal(w, real, d.HighWatermark)
				require.Equal(w, real, d.LastStableOffset)
				require.Zero(w, d.LogStart)
				if c.fault == nil {
					require.Equal(w, real, stalled.Position)
				} else {
					require.Zero(w, stalled.Position)
					require.ErrorIs(w, err, c.fault)
				}
				require.ErrorContains(w, err, fmt.Sprintf("offsets %d to %d are gone from the log", real, real+9))
				require.WithinDuration(w, began.Add(c.after), time.Now(), time.Second)
			})
		})
	}
}

// What a broker says for a while, as when the leader moves or has not caught
// up, is ridden out from the same position: every record comes once, in order.
func TestRecoveryRidesOutWhatPasses(t *testing.T) {
	for _, err := range []*kerr.Error{
		kerr.OffsetOutOfRange, kerr.NotLeaderForPartition, kerr.FencedLeaderEpoch, kerr.UnknownTopicOrPartition, kerr.UnknownTopicID,
		kerr.LeaderNotAvailable, kerr.OffsetNotAvailable, kerr.KafkaStorageError, kerr.RequestTimedOut, kerr.UnknownServerError,
	} {
		t.Run(err.Message, func(t *testing.T) {
			inVirtualTime(t, 1, func(w *scenario.World, c *kfake.Cluster) {
				w.Seed()
				last := w.PutMuch(9)
				handle := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: w.State, Err: err, Count: 5,
					When: func(r kmsg.Request) bool { return r.(*kmsg.FetchRequest).Topics[0].Partitions[0].FetchOffset > 0 }})
				var offsets []int64
				m := w.Handle(func(ctx context.Context, p *persistence.Partition) error {
					got, err := p.Recover(ctx, func(s persistence.Snapshot) error { offsets = append(offsets, s.LogOffset); return nil }, func() {})
					if err == nil && got.Restarts > 0 {
						return fmt.Errorf("%d restarts", got.Restarts)
					}
					if err != nil {
						return err
					}
					return scenario.ErrDone
				}, nil)
				<-m.Done()
				require.ErrorIs(w, m.Wait(), scenario.ErrDone)
				require.EqualValues(w, 5, handle.Hits(), "the fault was met")
				want := []int64{0}
				for at := last - 8; at <= last; at++ {
					want = append(want, at)
				}
				require.Equal(w, want, offsets)
			})
		})
	}
}

// A leader that never gets as far as the position: the deadline, and no reset.
func TestRecoveryDoesNotResetAPositionThatStaysOutOfRange(t *testing.T) {
	inVirtualTime(t, 1, func(w *scenario.World, c *kfake.Cluster) {
		w.Seed()
		w.Put("a", "1")
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: w.State, Err: kerr.OffsetOutOfRange, Count: -1})
		m := w.Start(false, persistence.RecoveryStallTimeout(300*time.Millisecond))
		<-m.Done()
		err := m.Wait()
		var stalled *persistence.RecoveryStalledError
		require.ErrorAs(w, err, &stalled)
		require.ErrorIs(w, err, kerr.OffsetOutOfRange)
		require.Zero(w, stalled.Position)
		require.Equal(w, 300*time.Millisecond, stalled.Stalled)
	})
}

func TestRecoveryGoesOnWithTheNewLeader(t *testing.T) {
	w, c := clusterWorld(t, 1)
	w.Seed()
	w.PutMuch(24)
	move := func() error { return c.MoveTopicPartition(w.State, 0, (c.LeaderFor(w.State, 0)+1)%3) }
	n := 0
	m := w.Handle(func(ctx context.Context, p *persistence.Partition) error {
		_, err := p.Recover(ctx, func(persistence.Snapshot) error {
			if n++; n == 1 {
				return move()
			}
			return nil
		}, func() { n = 0 })
		if err != nil {
			return err
		}
		return scenario.ErrDone
	}, nil)
	require.ErrorIs(w, m.Wait(), scenario.ErrDone)
	require.Equal(w, 25, n)
}

func TestAnOpenTransactionStallsARecoveryAtTheDeadline(t *testing.T) {
	inVirtualTime(t, 1, func(w *scenario.World, _ *kfake.Cluster) {
		w.Seed()
		f := w.Foreign("migration")
		f.Begin("open", "1")
		var began time.Time
		m := w.Start(false, persistence.RecoveryStallTimeout(300*time.Millisecond), persistence.WithTrace(persistence.Trace{
			RecoveryStarted: func(persistence.RecoveryInfo) { began = time.Now() },
		}))
		<-m.Done()
		var stalled *persistence.RecoveryStalledError
		require.ErrorAs(w, m.Wait(), &stalled)
		require.Equal(w, 300*time.Millisecond, stalled.Stalled)
		require.WithinDuration(w, began.Add(300*time.Millisecond), time.Now(), 50*time.Millisecond)
		id, epoch, err := f.ProducerID(w.Ctx)
		require.NoError(w, err)
		d := stalled.Diagnosis
		require.Equal(w, persistence.TransactionOpen, d.Condition)
		require.Len(w, d.Transactions, 1)
		require.Equal(w, id, d.Transactions[0].ProducerID)
		require.Equal(w, epoch, d.Transactions[0].ProducerEpoch)
		require.EqualValues(w, 2, d.Transactions[0].StartOffset)
		require.Equal(w, f.ID, d.Transactions[0].TransactionalID)
	})
}

// Ten transactions end one after another, each just before the deadline.
func TestSlowButMovingIsNotAStall(t *testing.T) {
	inVirtualTime(t, 1, func(w *scenario.World, _ *kfake.Cluster) {
		w.Seed()
		var open []*scenario.Foreign
		want := map[string]string{"seed": "0"}
		for i := range 10 {
			f := w.Foreign(fmt.Sprint(i))
			f.Begin(fmt.Sprint(i), "1")
			open = append(open, f)
			want[fmt.Sprint(i)] = "1"
		}
		started := make(chan struct{})
		m := w.Start(false, persistence.RecoveryStallTimeout(300*time.Millisecond), persistence.WithTrace(persistence.Trace{
			RecoveryStarted: func(persistence.RecoveryInfo) { close(started) },
		}))
		<-started
		for _, f := range open {
			time.Sleep(250 * time.Millisecond)
			f.PurgeTopicsFromProducing("") // kgo may not have stored the topic yet, and would end nothing
			require.NoError(w, f.EndTransaction(w.Ctx, kgo.TryCommit))
		}
		o := m.Own()
		require.Equal(w, want, o.State)
		require.Greater(w, o.Recovered.Took, 2*time.Second)
		require.NoError(w, m.Stop())
	})
}

// The receiver takes ten times the deadline for each record, and several fetches
// wait for it. Even a fetch that fails once when its turn comes has time left.
func TestASlowReceiverIsNeverAStall(t *testing.T) {
	inVirtualTime(t, 1, func(w *scenario.World, c *kfake.Cluster) {
		w.Seed()
		w.PutMuch(24)
		first := make(map[int64]kmsg.Request) // at each position
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: w.State, Err: kerr.NotLeaderForPartition, Count: -1,
			When: func(r kmsg.Request) bool {
				at := r.(*kmsg.FetchRequest).Topics[0].Partitions[0].FetchOffset
				if first[at] == nil {
					first[at] = r
				}
				return first[at] == r
			}})
		n := 0
		m := w.Handle(func(ctx context.Context, p *persistence.Partition) error {
			_, err := p.Recover(ctx, func(persistence.Snapshot) error { n++; time.Sleep(3 * time.Second); return nil }, func() { n = 0 })
			if err != nil {
				return err
			}
			return scenario.ErrDone
		}, nil, persistence.RecoveryStallTimeout(300*time.Millisecond))
		<-m.Done()
		require.ErrorIs(w, m.Wait(), scenario.ErrDone)
		require.Equal(w, 25, n)
	})
}

// Whatever fails while a stall is looked into, the error is still the stall's.
func TestAFailingLookUpDoesNotHideAStall(t *testing.T) {
	for name, c := range map[string]struct {
		keys   []kmsg.Key
		silent bool // no answer at all
		known  bool // the log's bounds can be read
	}{
		"the log's bounds":              {keys: []kmsg.Key{kmsg.ListOffsets}, known: true},
		"the log's bounds, no answer":   {keys: []kmsg.Key{kmsg.ListOffsets}, silent: true, known: true},
		"the producers":                 {keys: []kmsg.Key{kmsg.DescribeProducers}, known: true},
		"the producers, no answer":      {keys: []kmsg.Key{kmsg.DescribeProducers}, silent: true, known: true},
		"the transactions":              {keys: []kmsg.Key{kmsg.ListTransactions}, known: true},
		"the transactions, no answer":   {keys: []kmsg.Key{kmsg.ListTransactions}, silent: true, known: true},
		"everything":                    {keys: []kmsg.Key{kmsg.ListOffsets, kmsg.DescribeProducers, kmsg.ListTransactions, kmsg.Metadata, kmsg.Fetch}},
		"everything and with no answer": {keys: []kmsg.Key{kmsg.ListOffsets, kmsg.DescribeProducers, kmsg.ListTransactions, kmsg.Fetch}, silent: true},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, 1, func(w *scenario.World, cluster *kfake.Cluster) {
				w.Seed()
				w.Foreign("migration").Begin("open", "1")
				var began atomic.Pointer[time.Time]
				m := w.Start(false, persistence.RecoveryStallTimeout(300*time.Millisecond), persistence.WithTrace(persistence.Trace{
					RecoveryStarted: func(persistence.RecoveryInfo) {
						now := time.Now()
						began.Store(&now)
						if !c.silent {
							cluster.Fault(kfake.Fault{Keys: c.keys, Err: kerr.UnknownServerError, Count: -1},
								kfake.Fault{Keys: c.keys, Err: kerr.UnknownServerError, Count: -1, TopLevel: true})
							return
						}
						for _, k := range c.keys {
							cluster.ControlKey(k.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
								cluster.KeepControl()
								return nil, nil, true
							})
						}
					},
				}))
				<-m.Done()
				err := m.Wait()
				var stalled *persistence.RecoveryStalledError
				require.ErrorAs(w, err, &stalled)
				require.EqualValues(w, 3, stalled.Target)
				if c.known {
					require.EqualValues(w, 2, stalled.Position)
					require.EqualValues(w, 2, stalled.Diagnosis.LastStableOffset)
					require.EqualValues(w, 3, stalled.Diagnosis.HighWatermark)
					require.Equal(w, persistence.TransactionOpen, stalled.Diagnosis.Condition)
					require.NotEmpty(w, stalled.Diagnosis.Notes)
				} else {
					d := stalled.Diagnosis
					require.EqualValues(w, -1, d.HighWatermark)
					require.True(w, d.Condition == persistence.LeaderUnreachable || d.Condition == persistence.ConditionUnknown && len(d.Notes) > 0, d)
				}
				require.Less(w, time.Since(*began.Load()), 30*time.Second)
			})
		})
	}
}

// A recovery takes many times the session and rebalance timeouts, and a second
// member joins meanwhile. The first one stays in the group, and the partition
// that it keeps is recovered once and then written.
func TestALongRecoveryKeepsTheMembership(t *testing.T) {
	inVirtualTime(t, 2, func(w *scenario.World, c *kfake.Cluster) {
		w.Seed()
		for i := range 60 {
			require.NoError(w, w.Admin.ProduceSync(w.Ctx, &kgo.Record{Topic: w.State, Key: fmt.Append(nil, i)}, &kgo.Record{Topic: w.State, Partition: 1, Key: fmt.Append(nil, i)}).FirstErr())
		}
		kafka := []kgo.Opt{kgo.SessionTimeout(6 * time.Second), kgo.RebalanceTimeout(10 * time.Second)}
		var begun, lost atomic.Int32
		kept := make(chan error, 2)
		recovering := make(chan struct{}, 2)
		a := w.Handle(func(ctx context.Context, p *persistence.Partition) error {
			begun.Add(1)
			recovering <- struct{}{}
			_, err := p.Recover(ctx, func(persistence.Snapshot) error { time.Sleep(time.Second); return nil }, func() {})
			if errors.Is(err, persistence.ErrRevoked) {
				return err
			}
			if err == nil {
				err = p.Write(ctx, persistence.Snapshot{Key: []byte("recovered"), Value: []byte("1")})
			}
			kept <- err
			for err == nil {
				_, err = p.Poll(ctx)
			}
			return err
		}, kafka, persistence.WithTrace(persistence.Trace{GivenUp: func(i persistence.GiveUpInfo) {
			if errors.Is(i.Reason, persistence.ErrLost) {
				lost.Add(1)
			}
		}}))
		<-recovering
		<-recovering
		time.Sleep(30 * time.Second)
		b := w.StartKafka(false, kafka)
		b.Own()
		require.Empty(w, kept)
		require.NoError(w, <-kept)
		require.EqualValues(w, 2, begun.Load(), "handlers")
		require.Zero(w, lost.Load())
		require.Len(w, c.GroupInfo(w.Group).Members, 2)
		require.NoError(w, b.Stop())
		require.NoError(w, a.Stop())
	})
}

// A revoke in the middle of a recovery takes no time at all, whether it is the
// handler's or the takeover's own, which looks for an offset to resume from.
func TestARevokeDoesNotWaitForARecovery(t *testing.T) {
	for name, seeded := range map[string]bool{"the handler's": true, "the takeover's": false} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, 1, func(w *scenario.World, _ *kfake.Cluster) {
				if seeded {
					w.Seed()
				}
				w.Foreign("migration").Begin("open", "1")
				started := make(chan struct{})
				recovered := make(chan error, 1)
				m := w.Handle(func(ctx context.Context, p *persistence.Partition) error {
					_, err := p.Recover(ctx, func(persistence.Snapshot) error { return nil }, func() {})
					recovered <- err
					return err
				}, nil, persistence.WithTrace(persistence.Trace{RecoveryStarted: func(persistence.RecoveryInfo) { close(started) }}))
				<-started
				time.Sleep(time.Second)
				began := time.Now()
				require.NoError(w, m.Stop())
				require.Less(w, time.Since(began), time.Second)
				if seeded {
					require.ErrorIs(w, <-recovered, persistence.ErrClosed)
				} else {
					require.Empty(w, recovered, "the handler never began")
				}
			})
		})
	}
}

// The leader epoch that is committed is the record's own, not the log's
// present one.
func TestOffsetsAreCommittedWithTheEpochOfTheirRecord(t *testing.T) {
	w, c := clusterWorld(t, 1)
	bump := func() {
		require.NoError(w, c.MoveTopicPartition(w.Input, 0, (c.LeaderFor(w.Input, 0)+1)%3))
	}
	bump()
	w.Produce(0, "1")
	epoch := c.PartitionInfo(w.Input, 0).Epoch
	require.Positive(w, epoch)
	m := w.Start(false)
	o := m.Own()
	rs := o.Events(w, 1)
	bump()
	require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Snapshots: []persistence.Snapshot{{Key: []byte("k")}}, Through: rs[0]}))
	require.Equal(w, epoch, w.Committed(0).Epoch)
	w.Produce(0, "2")
	rs = o.Events(w, 1)
	require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Through: rs[0]}))
	require.Equal(w, epoch+1, w.Committed(0).Epoch)
	require.NoError(w, m.Stop())
}

// The input's log was cut back below the committed offset, and the client finds
// that out by the leader epoch: it goes back by itself, but no event from there
// reaches the handler, which may be slow to ask.
func TestAnInputThatWasCutBackIsAnErrorAndNoReset(t *testing.T) {
	inVirtualTime(t, 1, func(w *scenario.World, c *kfake.Cluster) {
		w.Produce(0, "1", "2", "3", "4", "5")
		m := w.Start(false)
		o := m.Own()
		require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Through: o.Events(w, 5)[2]}))
		require.NoError(w, m.Stop())
		require.NoError(w, c.MoveTopicPartition(w.Input, 0, (c.LeaderFor(w.Input, 0)+1)%3))
		c.ControlKey(kmsg.OffsetForLeaderEpoch.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			resp := kreq.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
			rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
			rt.Topic = w.Input
			rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			rp.LeaderEpoch, rp.EndOffset = 0, 1
			rt.Partitions = append(rt.Partitions, rp)
			resp.Topics = append(resp.Topics, rt)
			return resp, nil, true
		})
		var events []*kgo.Record
		m = w.Handle(func(ctx context.Context, p *persistence.Partition) error {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			if _, err := p.Poll(ended); err == nil { // it only starts the fetching
				return errors.New("a poll without time returned")
			}
			time.Sleep(10 * time.Second)
			for {
				rs, err := p.Poll(ctx)
				if err != nil {
					return err
				}
				events = append(events, rs...)
			}
		}, nil)
		<-m.Done()
		err := m.Wait()
		require.ErrorIs(w, err, persistence.ErrInput)
		var loss *kgo.ErrDataLoss
		require.ErrorAs(w, err, &loss)
		require.Empty(w, events)
		require.EqualValues(w, 3, w.Committed(0).Offset)
	})
}

// Of many partitions, no more recover at a time than allowed. Waiting for a turn
// is not a stall.
func TestRecoveriesTakeTurns(t *testing.T) {
	inVirtualTime(t, 6, func(w *scenario.World, _ *kfake.Cluster) {
		w.Seed()
		var running, most, done atomic.Int32
		m := w.Handle(func(ctx context.Context, p *persistence.Partition) error {
			_, err := p.Recover(ctx, func(persistence.Snapshot) error {
				n := running.Add(1)
				defer running.Add(-1)
				for top := most.Load(); n > top && !most.CompareAndSwap(top, n); top = most.Load() {
				}
				time.Sleep(2 * time.Second)
				return nil
			}, func() {})
			if err != nil {
				return err
			}
			if done.Add(1) == 6 {
				return scenario.ErrDone
			}
			for {
				if _, err := p.Poll(ctx); err != nil {
					return err
				}
			}
		}, nil, persistence.RecoveryConcurrency(2), persistence.RecoveryStallTimeout(time.Second))
		<-m.Done()
		require.ErrorIs(w, m.Wait(), scenario.ErrDone)
		require.EqualValues(w, 2, most.Load())
	})
}

// A recovery that waits says so every five seconds.
func TestARecoveryReportsItsProgress(t *testing.T) {
	inVirtualTime(t, 1, func(w *scenario.World, _ *kfake.Cluster) {
		w.Seed()
		f := w.Foreign("migration")
		f.Begin("open", "1")
		book := w.Book()
		var mu sync.Mutex
		var reports []persistence.RecoveryInfo
		m := w.Start(false, persistence.Logger(book.Logger()), persistence.WithTrace(persistence.Trace{
			RecoveryProgress: func(i persistence.RecoveryInfo) {
				mu.Lock()
				defer mu.Unlock()
				reports = append(reports, i)
			},
		}))
		time.Sleep(12 * time.Second)
		f.End(kgo.TryCommit)
		o := m.Own()
		require.NoError(w, m.Stop())
		mu.Lock()
		defer mu.Unlock()
		require.Len(w, reports, 2)
		require.EqualValues(w, 2, reports[1].Position)
		require.EqualValues(w, 3, reports[1].Target)
		require.EqualValues(w, 1, reports[1].Records)
		require.Equal(w, 10*time.Second, reports[1].Took.Round(time.Second))
		require.True(w, book.Has("level=INFO", "msg=recovering", "position=2", "target=3", "records_per_second=", "bytes_per_second=", "estimate="))
		require.True(w, book.Has("level=INFO", `msg="recovery stands still"`, "position=2", "target=3", "for=10s", "fails_after=3m0s"))
		require.Equal(w, "1", o.State["open"])
	})
}

func TestARecoveryEstimatesTheTimeThatIsLeft(t *testing.T) {
	for _, c := range []struct {
		info persistence.RecoveryInfo
		want time.Duration
	}{
		{persistence.RecoveryInfo{Start: 100, Position: 150, Target: 400, Took: 10 * time.Second}, 50 * time.Second},
		{persistence.RecoveryInfo{Start: 100, Position: 100, Target: 400, Took: 10 * time.Second}, 0},
		{persistence.RecoveryInfo{Start: 100, Position: 400, Target: 400, Took: 10 * time.Second}, 0},
		{persistence.RecoveryInfo{Start: -1, Position: -1, Target: -1}, 0},
	} {
		require.Equal(t, c.want, c.info.Left())
	}
}

var modelSeed = flag.Uint64("model.seed", 0, "seed of the random histories that recoveries are compared with a model over; 0 picks one")

// seeded makes the random numbers of a test, and says how to have them again.
func seeded(t *testing.T, flag string, seed uint64) *rand.Rand {
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed: -%s=%d", flag, seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// Several producers commit, abort, delete, write without a key and interleave;
// the log is compacted and cut off at its start; the last transactions end while
// the recovery runs. Whatever the history, a recovery gives what a model of it
// does.
func TestRecoveryOfARandomHistoryAgreesWithAModel(t *testing.T) {
	rng := seeded(t, "model.seed", *modelSeed)
	w, c := clusterWorld(t, 1)
	for range 8 {
		h := newHistory(w, c, rng)
		for range 40 + rng.IntN(80) {
			h.step()
		}
		m := w.Start(false)
		h.endAll()
		o := m.Own()
		require.Equal(w, h.state(), o.State, "recovered up to %d", o.Recovered.Target)
		require.NoError(w, m.Stop())
	}
}

// history writes at random and keeps a model of the snapshot log.
type history struct {
	w    *scenario.World
	c    *kfake.Cluster
	rng  *rand.Rand
	log  []entry
	open []*openTxn
	idle []*scenario.Foreign
}

type entry struct {
	offset     int64
	key, value string
	deleted    bool
	txn        *openTxn // nil outside of one
}

type openTxn struct {
	f         *scenario.Foreign
	committed bool
}

var histories, historyProducers atomic.Int32

func newHistory(w *scenario.World, c *kfake.Cluster, rng *rand.Rand) *history {
	name := fmt.Sprintf("-h%d", histories.Add(1))
	w.State, w.Group = w.Input+name, w.Input+name
	w.CreateTopic(w.State, 1, map[string]string{"cleanup.policy": "compact"})
	h := &history{w: w, c: c, rng: rng, idle: make([]*scenario.Foreign, 3)}
	h.producers()
	return h
}

func (h *history) step() {
	switch n := h.rng.IntN(100); {
	case n < 35:
		h.write(h.w.Admin, nil)
	case n < 50 && len(h.idle) > 0:
		i := h.rng.IntN(len(h.idle))
		f := h.idle[i]
		h.idle = append(h.idle[:i], h.idle[i+1:]...)
		require.NoError(h.w, f.BeginTransaction())
		h.open = append(h.open, &openTxn{f: f})
	case n < 75 && len(h.open) > 0:
		txn := h.open[h.rng.IntN(len(h.open))]
		h.write(txn.f.Client, txn)
	case n < 90 && len(h.open) > 0:
		h.end(h.rng.IntN(len(h.open)))
	case n < 95:
		h.compact()
	case n < 97:
		at := h.c.PartitionInfo(h.w.State, 0)
		require.NoError(h.w, h.c.DeleteRecords(h.w.State, 0, at.LogStartOffset+h.rng.Int64N(1+(at.LastStableOffset-at.LogStartOffset)/2)))
	}
}

// compact keeps to what the cluster's cleaner gets right: it takes open
// transactions for committed, and may drop an abort's marker while it still
// lists the abort, which then hides what that producer id writes later.
func (h *history) compact() {
	h.endAll()
	h.c.Compact()
	h.producers()
}

// producers replaces all producers by new ones.
func (h *history) producers() {
	for i := range h.idle {
		h.idle[i] = h.w.Foreign(fmt.Sprint("p", historyProducers.Add(1)))
	}
}

// write produces a few records in one batch.
func (h *history) write(cl *kgo.Client, txn *openTxn) {
	var rs []*kgo.Record
	for range 1 + h.rng.IntN(3) {
		r := &kgo.Record{Topic: h.w.State}
		if n := h.rng.IntN(10); n > 0 {
			r.Key = fmt.Append(nil, "k", h.rng.IntN(6))
			if n > 2 {
				r.Value = fmt.Append(nil, h.rng.IntN(1000))
			}
		}
		rs = append(rs, r)
	}
	require.NoError(h.w, cl.ProduceSync(h.w.Ctx, rs...).FirstErr())
	for _, r := range rs {
		if r.Key != nil {
			h.log = append(h.log, entry{r.Offset, string(r.Key), string(r.Value), r.Value == nil, txn})
		}
	}
}

func (h *history) end(i int) {
	txn := h.open[i]
	h.open = append(h.open[:i], h.open[i+1:]...)
	txn.committed = h.rng.IntN(2) == 0
	txn.f.PurgeTopicsFromProducing("")
	require.NoError(h.w, txn.f.EndTransaction(h.w.Ctx, kgo.TransactionEndTry(txn.committed)))
	h.idle = append(h.idle, txn.f)
}

func (h *history) endAll() {
	for len(h.open) > 0 {
		h.end(h.rng.IntN(len(h.open)))
	}
}

func (h *history) state() map[string]string {
	state := make(map[string]string)
	start := h.c.PartitionInfo(h.w.State, 0).LogStartOffset
	for _, e := range h.log {
		switch {
		case e.offset < start || e.txn != nil && !e.txn.committed:
		case e.deleted:
			delete(state, e.key)
		default:
			state[e.key] = e.value
		}
	}
	return state
}

package persistence_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/scenario"
)

// A member is alive all along, and ready when all that it has is served.
func TestHealthFollowsAPartitionFromTakeoverToServing(t *testing.T) {
	inVirtualTime(t, 2, func(w *scenario.World, _ *kfake.Cluster) {
		w.Seed()
		w.Put("a", "1", "b", "1")
		recovering, goOn := make(chan struct{}), make(chan struct{})
		release := sync.OnceFunc(func() { close(goOn) })
		defer release()
		m := w.Handle(func(ctx context.Context, p *persistence.Partition) error {
			n := 0
			_, err := p.Recover(ctx, func(persistence.Snapshot) error {
				if n++; p.ID() == 0 && n == 2 {
					close(recovering)
					<-goOn
				}
				return nil
			}, func() {})
			for err == nil {
				_, err = p.Poll(ctx)
			}
			return err
		}, nil)
		require.ErrorContains(w, m.Module.Health().Ready(), "not a member of the group yet")
		require.NoError(w, m.Module.Health().Alive())

		<-recovering
		w.Eventually("partition 1 serves", func() bool {
			h := m.Module.Health()
			return len(h.Partitions) == 2 && h.Partitions[1].Stage == persistence.StageServing
		})
		h := m.Module.Health()
		require.True(w, h.Joined)
		require.Equal(w, persistence.StageRecovery, h.Partitions[0].Stage)
		require.EqualValues(w, 4, h.Partitions[0].Recovery.Target)
		require.EqualError(w, h.Ready(), "partition 0: recovery: at offset 0 of 4, 0 snapshots")
		require.NoError(w, h.Alive())

		release()
		w.Eventually("all is served", func() bool { return m.Module.Health().Ready() == nil })
		text, err := json.Marshal(m.Module.Health().Partitions[0])
		require.NoError(w, err)
		require.Contains(w, string(text), `"Stage":"serving"`)

		require.NoError(w, m.Stop())
		h = m.Module.Health()
		require.NoError(w, h.Err, "it was stopped, and did not fail")
		require.Error(w, h.Ready())
		require.NoError(w, h.Alive())
	})
}

// A member without partitions stands by: it is ready.
func TestAMemberWithoutPartitionsIsReady(t *testing.T) {
	inVirtualTime(t, 1, func(w *scenario.World, _ *kfake.Cluster) {
		a := w.Start(false)
		a.Own()
		b := w.Start(false)
		w.Eventually("both are ready", func() bool {
			return a.Module.Health().Ready() == nil && b.Module.Health().Ready() == nil
		})
		w.Eventually("one has the partition", func() bool {
			return len(a.Module.Health().Partitions)+len(b.Module.Health().Partitions) == 1
		})
	})
}

// While a recovery stands still the member is alive; when it has failed for that,
// it is not, even if the handler tries again.
func TestAStalledRecoveryIsNotAlive(t *testing.T) {
	inVirtualTime(t, 1, func(w *scenario.World, _ *kfake.Cluster) {
		w.Seed()
		f := w.Foreign("migration")
		f.Begin("open", "1")
		var failed atomic.Bool
		again := make(chan struct{})
		m := w.Handle(func(ctx context.Context, p *persistence.Partition) error {
			nothing := func(persistence.Snapshot) error { return nil }
			_, err := p.Recover(ctx, nothing, func() {})
			failed.Store(true)
			<-again
			if stalled := (*persistence.RecoveryStalledError)(nil); errors.As(err, &stalled) {
				_, err = p.Recover(ctx, nothing, func() {})
			}
			for err == nil {
				_, err = p.Poll(ctx)
			}
			return err
		}, nil, persistence.RecoveryStallTimeout(20*time.Second))
		w.Eventually("it recovers", func() bool {
			h := m.Module.Health()
			return len(h.Partitions) == 1 && h.Partitions[0].Recovery != nil && h.Partitions[0].Recovery.Target > 0
		})
		time.Sleep(15 * time.Second)
		require.NoError(w, m.Module.Health().Alive(), "it may still go on")
		require.Error(w, m.Module.Health().Ready())
		w.Eventually("it stalled", failed.Load)
		var stalled *persistence.RecoveryStalledError
		require.ErrorAs(w, m.Module.Health().Alive(), &stalled)
		require.ErrorAs(w, m.Module.Health().Ready(), &stalled)
		f.End(kgo.TryAbort)
		close(again)
		w.Eventually("it serves after all", func() bool { return m.Module.Health().Ready() == nil })
		require.NoError(w, m.Module.Health().Alive())
	})
}

// What ended Run stays the reason why the member is neither ready nor alive.
func TestAFailedRunIsNotAlive(t *testing.T) {
	inVirtualTime(t, 1, func(w *scenario.World, _ *kfake.Cluster) {
		m := w.Handle(func(context.Context, *persistence.Partition) error { return scenario.ErrDone }, nil)
		require.ErrorIs(w, m.Wait(), scenario.ErrDone)
		require.ErrorIs(w, m.Module.Health().Alive(), scenario.ErrDone)
		require.ErrorIs(w, m.Module.Health().Ready(), scenario.ErrDone)
	})
	w, c := clusterWorld(t, 1)
	require.NoError(t, c.DeleteTopic(w.Input))
	m := w.Start(false)
	require.Error(t, m.Wait())
	require.ErrorContains(t, m.Module.Health().Alive(), "does not exist", "the checks before joining count")
}

// A handler that leaves its records waiting is reported once, is not alive, and is
// alive again when it goes on.
func TestAStuckHandlerIsReported(t *testing.T) {
	inVirtualTime(t, 1, func(w *scenario.World, _ *kfake.Cluster) {
		w.Seed()
		w.Put("a", "1")
		reports := make(chan persistence.HandlerStuckError, 10)
		stuck, goOn := make(chan struct{}), make(chan struct{})
		m := w.Handle(func(ctx context.Context, p *persistence.Partition) error {
			_, err := p.Poll(ctx)
			close(stuck)
			<-goOn
			for err == nil {
				_, err = p.Poll(ctx)
			}
			return err
		}, nil, persistence.HandlerTimeout(10*time.Second, persistence.Report),
			persistence.WithTrace(persistence.Trace{HandlerStuck: func(e persistence.HandlerStuckError) { reports <- e }}))
		w.Produce(0, "first")
		<-stuck
		time.Sleep(30 * time.Second)
		require.Empty(w, reports, "nothing waits for it")
		w.Produce(0, "second", "third")
		e := <-reports
		require.GreaterOrEqual(w, e.Records, 1)
		require.GreaterOrEqual(w, e.Stuck, 10*time.Second)
		var found *persistence.HandlerStuckError
		require.ErrorAs(w, m.Module.Health().Alive(), &found)
		require.ErrorContains(w, found, "is stuck: ")
		time.Sleep(time.Minute)
		require.Empty(w, reports, "it is told once")
		close(goOn)
		w.Eventually("it is alive again", func() bool { return m.Module.Health().Alive() == nil })
		require.NoError(w, m.Stop())
	})
}

// With EndRun a stuck handler ends Run, so that others get the partitions.
func TestAStuckHandlerEndsRun(t *testing.T) {
	inVirtualTime(t, 1, func(w *scenario.World, _ *kfake.Cluster) {
		w.Produce(0, "first")
		stuck, goOn := make(chan struct{}), make(chan struct{})
		m := w.Handle(func(ctx context.Context, p *persistence.Partition) error {
			_, _ = p.Poll(ctx)
			close(stuck)
			<-goOn // whatever ctx says
			return nil
		}, nil, persistence.HandlerTimeout(10*time.Second, persistence.EndRun))
		<-stuck
		w.Produce(0, "second")
		other := w.Start(false)
		defer close(goOn)
		err := m.Wait()
		var found *persistence.HandlerStuckError
		require.ErrorAs(w, err, &found)
		require.ErrorContains(w, err, "the handlers of partitions [0] of")
		other.Own()
	})
}

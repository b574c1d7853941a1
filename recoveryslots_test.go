package persistence

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func (s *recoverySlots) state() (free, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free, len(s.waiting)
}

// As many run as there are slots, whoever comes and goes: no more, and while
// somebody waits no fewer.
func TestNoMoreRecoveriesRunThanThereAreSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots, recoveries = 3, 20
		s := newRecoverySlots(slots)
		var running atomic.Int32
		end := make(chan struct{})
		for i := range recoveries {
			go func() {
				if !s.enter(t.Context(), int64(i%7)) {
					t.Error("no slot, although the context goes on")
					return
				}
				running.Add(1)
				<-end
				running.Add(-1)
				s.leave()
			}()
		}
		for left := int32(recoveries); left > 0; left-- {
			synctest.Wait()
			require.Equal(t, min(left, slots), running.Load())
			end <- struct{}{}
		}
		synctest.Wait()
		free, waiting := s.state()
		require.Equal(t, slots, free)
		require.Zero(t, waiting)
	})
}

func TestTheSmallestRecoveryThatWaitsIsNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRecoverySlots(1)
		require.True(t, s.enter(t.Context(), 1000), "a free slot is for whoever comes")
		type turn struct{ size, came int64 }
		turns := make(chan turn)
		var wg sync.WaitGroup
		for came, size := range []int64{50, 7, 900, 7, 0, 300} {
			wg.Go(func() {
				if s.enter(t.Context(), size) {
					turns <- turn{size, int64(came)}
				}
			})
			synctest.Wait() // until it waits
		}
		for _, want := range []turn{{0, 4}, {7, 1}, {7, 3}, {50, 0}, {300, 5}, {900, 2}} {
			s.leave()
			require.Equal(t, want, <-turns)
		}
		s.leave()
		wg.Wait()
		free, waiting := s.state()
		require.Equal(t, 1, free)
		require.Zero(t, waiting)
	})
}

func TestARecoveryThatIsCancelledWhileItWaitsLeavesTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRecoverySlots(1)
		require.True(t, s.enter(t.Context(), 0))
		ctx, cancel := context.WithCancel(t.Context())
		cancelled, other := make(chan bool, 1), make(chan bool, 1)
		go func() { cancelled <- s.enter(ctx, 1) }()
		go func() { other <- s.enter(t.Context(), 2) }()
		synctest.Wait()
		cancel()
		require.False(t, <-cancelled)
		require.Empty(t, other)
		s.leave()
		require.True(t, <-other, "the slot goes to the one that still waits")
		s.leave()
		free, _ := s.state()
		require.Equal(t, 1, free)
	})
}

// A slot is granted just when its waiter gives up: whichever comes first, the slot
// is either used or free again.
func TestNoSlotIsLostWhenAGrantMeetsACancel(t *testing.T) {
	var granted, cancelled int
	for range 2000 {
		synctest.Test(t, func(t *testing.T) {
			s := newRecoverySlots(1)
			require.True(t, s.enter(t.Context(), 0))
			ctx, cancel := context.WithCancel(t.Context())
			result := make(chan bool)
			go func() { result <- s.enter(ctx, 0) }()
			synctest.Wait() // until it waits
			go s.leave()
			go cancel()
			if <-result {
				granted++
				s.leave()
			} else {
				cancelled++
			}
			synctest.Wait()
			free, waiting := s.state()
			require.Equal(t, 1, free)
			require.Zero(t, waiting)
		})
	}
	require.Positive(t, granted)
	require.Positive(t, cancelled)
}

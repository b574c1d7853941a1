package persistence

import (
	"context"
	"slices"
	"sync"
)

// recoverySlots lets a bounded number of recoveries run at a time, of those that
// wait the smallest first: most partitions then serve sooner, and all of them take
// about as long together as in any other order.
type recoverySlots struct {
	mu      sync.Mutex
	all     int
	free    int
	waiting []*waitingRecovery
}

type waitingRecovery struct {
	size    int64
	granted chan struct{} // closed when it has its slot
}

func newRecoverySlots(n int) *recoverySlots { return &recoverySlots{all: n, free: n} }

// enter waits for a slot for a recovery of about size offsets, and reports
// whether it got one before ctx ended.
func (s *recoverySlots) enter(ctx context.Context, size int64) bool {
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		s.mu.Unlock()
		return true
	}
	w := &waitingRecovery{size: size, granted: make(chan struct{})}
	s.waiting = append(s.waiting, w)
	s.mu.Unlock()
	select {
	case <-w.granted:
		return true
	case <-ctx.Done():
	}
	s.mu.Lock()
	i := slices.Index(s.waiting, w)
	if i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 {
		s.leave() // it was given one just now
	}
	return false
}

// running is how many recoveries have a slot.
func (s *recoverySlots) running() int {
	if s == nil {
		return 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all - s.free
}

func (s *recoverySlots) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		s.free++
		return
	}
	smallest := 0
	for i, w := range s.waiting {
		if w.size < s.waiting[smallest].size {
			smallest = i
		}
	}
	close(s.waiting[smallest].granted)
	s.waiting = slices.Delete(s.waiting, smallest, smallest+1)
}

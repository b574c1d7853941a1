package persistence

import (
	"context"
	"time"
)

// stall is the no-progress deadline of a recovery: a recovery may take any
// time as long as its position moves, and fails when it does not for limit.
// Time that the receiver of the records takes does not count.
type stall struct {
	limit time.Duration
	since time.Time // of the last progress, or of the start
}

func newStall(limit time.Duration, now time.Time) *stall { return &stall{limit: limit, since: now} }

// progress restarts the clock.
func (s *stall) progress(now time.Time) { s.since = now }

// left is the time until the deadline, zero or less when it has passed.
func (s *stall) left(now time.Time) time.Duration { return s.limit - now.Sub(s.since) }

// stalled is the time since the last progress.
func (s *stall) stalled(now time.Time) time.Duration { return now.Sub(s.since) }

// bound limits one request, so that an unreachable broker leaves time for
// another try within the deadline.
func (s *stall) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(10*time.Second, max(s.left(time.Now()), time.Millisecond)))
}

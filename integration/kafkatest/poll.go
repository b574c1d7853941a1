package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const pollInterval = 20 * time.Millisecond

// permanentError ends a poll.
type permanentError struct{ err error }

func (e permanentError) Error() string { return e.err.Error() }

func permanent(err error) error { return permanentError{err} }

// poll calls check until it returns nil or a permanent error, which poll
// returns. When ctx ends first, the error tells what check said last.
func poll(ctx context.Context, check func(context.Context) error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last error
	for {
		select {
		case <-ctx.Done():
			if last == nil {
				return ctx.Err()
			}
			return fmt.Errorf("%w; last seen: %w", ctx.Err(), last)
		case <-timer.C:
		}
		err := check(ctx)
		if err == nil {
			return nil
		}
		if p, ok := errors.AsType[permanentError](err); ok {
			return p.err
		}
		// What a check says when ctx cut it short tells nothing.
		if ctx.Err() == nil || last == nil {
			last = err
		}
		timer.Reset(pollInterval)
	}
}

// withDefaultTimeout bounds ctx if it has no deadline.
func withDefaultTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
)

// fencedOwner is a member that keeps the balance with the library.
type fencedOwner struct {
	stage   *stage
	process *pausable
	module  *persistence.Module
	ended   chan error // what Run returned

	recovered chan held // after each takeover
	saved     chan held // after each write that committed
	refused   chan error

	// The balance with which the process is paused, between fold and write.
	pauseWith int
	asleep    chan struct{}
	awake     chan struct{}
	wake      func() // closes awake
}

// held is a balance and the offset to go on from.
type held struct {
	balance int
	next    int64
}

// join starts a member. It is paused when its balance is pauseWith, if ever.
func (s *stage) join(ctx context.Context, pauseWith int) (o *fencedOwner, err error) {
	o = &fencedOwner{stage: s, process: newPausable(), ended: make(chan error, 1), pauseWith: pauseWith,
		recovered: make(chan held, 100), saved: make(chan held, 100), refused: make(chan error, 100),
		asleep: make(chan struct{}), awake: make(chan struct{})}
	o.wake = sync.OnceFunc(func() { close(o.awake) })
	o.module, err = persistence.New(
		persistence.Kafka(s.member()...),
		persistence.Kafka(kgo.Dialer(o.process.dial)),
		persistence.SnapshotTopic(s.snapshots),
		persistence.TransactionalIDPrefix(s.group),
		persistence.Logger(s.log),
	)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, o.resume) // an interrupt wakes it, too
	go func() { o.ended <- o.module.Run(ctx, o.own) }()
	return o, nil
}

// own is one ownership of the partition.
func (o *fencedOwner) own(ctx context.Context, p *persistence.Partition) error {
	balance, through := 0, int64(-1) // through: the last deposit in the balance
	_, err := p.Recover(ctx, func(s persistence.Snapshot) (err error) {
		through = s.SourceOffset
		balance, err = amount(s.Value)
		return err
	}, func() { balance, through = 0, -1 })
	if err != nil {
		return err
	}
	o.recovered <- held{balance, p.Resume()}

	for {
		deposits, err := p.Poll(ctx)
		if err != nil {
			return err
		}
		for _, r := range deposits {
			if r.Offset <= through {
				continue // in the balance already
			}
			n, err := amount(r.Value)
			if err != nil {
				return err
			}
			balance, through = balance+n, r.Offset
		}

		o.perhapsPause(ctx, balance)

		// The balance, the offset and the generation of this member in one
		// transaction: a stale owner can move neither of the first two.
		err = p.Apply(ctx, persistence.Batch{
			Snapshots: []persistence.Snapshot{{Key: []byte(account), Value: []byte(strconv.Itoa(balance)), SourceOffset: through}},
			Through:   deposits[len(deposits)-1],
		})
		if err != nil {
			o.refused <- err
			return err // and with it goes the balance in memory
		}
		o.saved <- held{balance, through + 1}
	}
}

// perhapsPause is where the process of the first owner sleeps.
func (o *fencedOwner) perhapsPause(ctx context.Context, balance int) {
	if balance != o.pauseWith {
		return
	}
	o.process.pause()
	close(o.asleep)
	select {
	case <-o.awake:
	case <-ctx.Done():
	}
}

// await waits for something that an owner tells.
func await[T any](ctx context.Context, o *fencedOwner, what string, from <-chan T) (v T, err error) {
	select {
	case v = <-from:
		return v, nil
	case err := <-o.ended:
		o.ended <- err
		return v, fmt.Errorf("waiting for %s: the member ended: %w", what, err)
	case <-ctx.Done():
		return v, fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
	}
}

// foldUntil makes deposits up to an offset and waits until they are persisted.
func (o *fencedOwner) foldUntil(ctx context.Context, offset int) (h held, err error) {
	if err := o.stage.depositUntil(ctx, offset); err != nil {
		return h, err
	}
	for h.next < int64(offset) && err == nil {
		h, err = await(ctx, o, fmt.Sprintf("offset %d to be persisted", offset), o.saved)
	}
	return h, err
}

// resume ends the pause, if it is in one.
func (o *fencedOwner) resume() {
	o.process.resume()
	o.wake()
}

func (o *fencedOwner) stop() {
	o.resume()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := o.module.Close(ctx); err != nil {
		o.stage.say("closing: %v", err)
	}
}

func tellFenced(ctx context.Context, s *stage) (out outcome, err error) {
	one, err := s.join(ctx, stale*deposit)
	if err != nil {
		return out, err
	}
	defer one.stop()
	h, err := one.foldUntil(ctx, first)
	if err != nil {
		return out, err
	}
	s.say("owner 1: %d snapshotted, offset %d committed", h.balance, h.next)
	if err := s.depositUntil(ctx, stale); err != nil {
		return out, err
	}
	if _, err := await(ctx, one, "owner 1 to be paused", one.asleep); err != nil {
		return out, err
	}
	out.stale = one.pauseWith
	s.say("owner 1: paused with %d, not written yet", out.stale)

	two, err := s.join(ctx, -1)
	if err != nil {
		return out, err
	}
	defer two.stop()
	if h, err = await(ctx, two, "owner 2 to take over", two.recovered); err != nil {
		return out, err
	}
	s.say("owner 2: took over, recovered %d at offset %d", h.balance, h.next)
	if h, err = two.foldUntil(ctx, newer); err != nil {
		return out, err
	}
	out.newer = h.balance
	s.say("owner 2: %d snapshotted, offset %d committed", h.balance, h.next)

	one.wake()
	if out.write, err = wokenWrite(ctx, one); err != nil {
		return out, err
	}
	out.refused, out.byBroker = out.write != nil, refusedByBroker(out.write)
	if out.refused {
		s.say("owner 1: woke up, its snapshot of %d was refused", out.stale)
	} else {
		s.say("owner 1: woke up, its snapshot of %d was accepted", out.stale)
	}
	if out.committed, err = s.cluster.Committed(ctx, s.group, s.input, 0); err != nil {
		return out, err
	}
	one.stop()
	two.stop()

	three, err := s.join(ctx, -1)
	if err != nil {
		return out, err
	}
	defer three.stop()
	if h, err = await(ctx, three, "owner 3 to take over", three.recovered); err != nil {
		return out, err
	}
	out.recovered, out.resumed = h.balance, h.next
	s.say("owner 3: recovered %d at offset %d", h.balance, h.next)
	if h, err = three.foldUntil(ctx, ending); err != nil {
		return out, err
	}
	out.final = h.balance
	s.say("owner 3: %d", h.balance)
	return out, nil
}

// wokenWrite waits for what became of the stale write.
func wokenWrite(ctx context.Context, one *fencedOwner) (answer, err error) {
	select {
	case answer = <-one.refused:
		return answer, nil
	case <-one.saved:
		return nil, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for the stale write: %w", context.Cause(ctx))
	}
}

// refusedByBroker tells the two fences apart. The broker's comes with its error:
// it knows no member with this id and generation any more. Had the member heard
// of its loss before, the library would have refused the write itself, with
// ErrLost or ErrRevoked, and sent nothing.
func refusedByBroker(err error) bool {
	var broker *kerr.Error
	return errors.Is(err, persistence.ErrFenced) && errors.As(err, &broker)
}

package flow

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
)

// A worker owns a share of a partition's keys, by their hash: only its goroutine
// folds their events, so they stay in order. The driver puts events into its
// queue, and now and then collects what is to be persisted.
//
// The lock is not held during a fold, so that a slow one holds nobody up: its
// key is left out of what is collected meanwhile, since the fold may be changing
// its state.
//
// Invariant: an event is folded, or it is the first of what the worker says is not
// persisted, or behind it.
type worker[S any] struct {
	index     int
	spec      *Spec[S]
	slots     chan struct{}
	topic     string
	partition int32
	revoked   <-chan struct{}
	tag       []byte       // of the codec
	drain     *atomic.Bool // fold nothing more
	out       chan<- report
	wake      chan struct{}

	turn sync.Mutex // held while folding, and by a tick

	mu      sync.Mutex // the rest
	events  []*kgo.Record
	keys    map[string]*entry[S]
	dirty   []*entry[S] // in the order in which they became so
	graves  []*entry[S] // deleted before the takeover, and maybe replayed
	loose   []letter    // dead letters of events without a key
	timers  timerHeap[S]
	urgent  bool        // something must not wait for the policy
	current *kgo.Record // is being folded
	folding *entry[S]   // its key, or that of the timer that is being called
	left    *kgo.Record // the first event that was left out, since draining
}

// letter is a dead letter that no key's state vouches for: it goes out together
// with the offset that passes its event.
type letter struct{ event, record *kgo.Record }

// report tells the driver that events are through, and what waits.
type report struct {
	worker int
	events int
	dirty  bool
	urgent bool
	err    error
}

// share is a worker's part of a transaction.
type share struct {
	snapshots []persistence.Snapshot
	outputs   []*kgo.Record
	loose     []letter
	low       *kgo.Record // the first event that is not persisted with it; nil: all are
	dirty     bool        // something is left for another time
	err       error
}

// put hands events out.
func (w *worker[S]) put(events []*kgo.Record) {
	w.mu.Lock()
	w.events = append(w.events, events...)
	w.mu.Unlock()
	poke(w.wake)
}

// poke wakes who waits for a channel of capacity one.
func poke(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// run works until ctx ends. An error ends the flow.
func (w *worker[S]) run(ctx context.Context) {
	alarm := time.NewTimer(time.Hour)
	defer alarm.Stop()
	for {
		n, err := w.work(ctx)
		fired := false
		if err == nil && n == 0 {
			fired, err = w.fire(ctx)
		}
		if n > 0 || fired || err != nil {
			select {
			case w.out <- w.report(n, err):
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
		if n > 0 || fired {
			continue
		}
		alarm.Reset(w.untilTimer())
		select {
		case <-w.wake:
		case <-alarm.C:
		case <-ctx.Done():
			return
		}
	}
}

func (w *worker[S]) report(n int, err error) report {
	w.mu.Lock()
	defer w.mu.Unlock()
	return report{worker: w.index, events: n, dirty: len(w.dirty) > 0, urgent: w.urgent, err: err}
}

// A burst is bounded so that what was folded is told of, and others get the slot.
const (
	burstEvents = 256
	burstTime   = 2 * time.Millisecond
)

// work folds a burst of events.
func (w *worker[S]) work(ctx context.Context) (n int, err error) {
	if !w.hasEvents() {
		return 0, nil
	}
	select {
	case w.slots <- struct{}{}:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	defer func() { <-w.slots }()
	w.turn.Lock()
	defer w.turn.Unlock()
	for began := time.Now(); n < burstEvents && time.Since(began) < burstTime; n++ {
		more, err := w.step(ctx)
		if err != nil || !more {
			return n, err
		}
	}
	return n, nil
}

func (w *worker[S]) hasEvents() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.events) > 0
}

func (w *worker[S]) leave(event *kgo.Record) {
	if w.left == nil {
		w.left = event
	}
}

// step deals with the next event, and reports whether there was one.
func (w *worker[S]) step(ctx context.Context) (more bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events) == 0 {
		return false, nil
	}
	event := w.events[0]
	w.events[0] = nil
	w.events = w.events[1:]
	if w.drain.Load() {
		w.leave(event)
		return true, nil
	}
	key := w.spec.Key(event)
	if len(key) == 0 {
		if w.spec.Poison.topic == "" {
			return true, failed(event, nil, 1, ErrNoKey)
		}
		w.loose = append(w.loose, letter{event, w.spec.Poison.deadLetter(event, nil, 1, ErrNoKey)})
		w.urgent = true
		return true, nil
	}
	e := w.keys[string(key)]
	if e == nil {
		e = &entry[S]{key: string(key), source: -1}
	} else if event.Offset <= e.source {
		return true, nil // it is a part of the state
	}

	var k *Key[S]
	var attempts int
	w.unlocked(event, e, func() { k, attempts, err = w.try(ctx, e, event) })
	switch {
	case err == nil && !k.hasEffect():
		return true, nil
	case err == nil:
		w.apply(e, k)
	case ctx.Err() != nil:
		return true, context.Cause(ctx)
	case attempts == 0:
		return true, err
	case attempts <= w.spec.Poison.retries:
		w.leave(event) // revoked before it was tried as often as it may be
		return true, nil
	case w.spec.Poison.topic == "":
		return true, failed(event, key, attempts, err)
	default:
		e.outputs = append(e.outputs, w.spec.Poison.deadLetter(event, key, attempts, err))
		w.urgent = true
	}
	w.keys[e.key] = e
	e.source = event.Offset
	w.mark(e, event)
	return true, nil
}

// unlocked calls the user's code for a key.
func (w *worker[S]) unlocked(event *kgo.Record, e *entry[S], call func()) {
	w.current, w.folding = event, e
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.current, w.folding = nil, nil
	}()
	call()
}

// try folds an event, again if it fails and Poison says so. The entry is not
// changed, save that its state may have been changed in place by the last try.
// After no attempts it is not the event that is at fault.
func (w *worker[S]) try(ctx context.Context, e *entry[S], event *kgo.Record) (k *Key[S], attempts int, err error) {
	if err := e.decode(w.spec.Codec); err != nil {
		return nil, 0, err
	}
	undo, err := w.before(e)
	if err != nil {
		return nil, 0, err
	}
	var broken error
	attempts, err = w.spec.Poison.attempt(ctx, w.revoked, func() error {
		if broken != nil {
			return broken
		}
		k = &Key[S]{State: e.state, entry: e, event: event}
		err := guard(func() error { return w.spec.Fold(ctx, k, event) })
		if err != nil {
			broken = undo()
		}
		return err
	})
	if broken != nil {
		return nil, 0, broken
	}
	return k, attempts, err
}

// before keeps what a fold that fails is undone with: the state as bytes, since a
// fold may change it in place. Where a failure ends the flow nothing is kept.
func (w *worker[S]) before(e *entry[S]) (undo func() error, err error) {
	if w.spec.Poison.stops() {
		return func() error { return nil }, nil
	}
	if !e.exists {
		return func() error {
			var none S
			e.state = none
			return nil
		}, nil
	}
	kept, err := w.spec.Codec.Encode(e.state)
	if err != nil {
		return nil, fmt.Errorf("flow: key %q: its state cannot be encoded: %w", e.key, err)
	}
	return func() error {
		e.encoded, e.version, e.decoded = kept, w.spec.Codec.Version(), false
		return e.decode(w.spec.Codec)
	}, nil
}

// apply makes what a fold left the key's.
func (w *worker[S]) apply(e *entry[S], k *Key[S]) {
	e.state, e.exists, e.decoded = k.State, true, true
	for name, at := range k.timers {
		if at == 0 {
			delete(e.timers, name)
			continue
		}
		if e.timers == nil {
			e.timers = make(map[string]int64)
		}
		e.timers[name] = at
	}
	if k.deleted {
		e.bury()
	}
	if len(k.timers) > 0 {
		w.schedule(e)
	}
	if len(k.outputs) > 0 {
		e.outputs = append(e.outputs, k.outputs...)
		w.urgent = true
	}
}

// bury removes the state.
func (e *entry[S]) bury() {
	var none S
	e.state, e.exists, e.decoded, e.encoded, e.timers = none, false, false, nil, nil
}

// mark notes that a key is to be persisted; event is nil for a timer.
func (w *worker[S]) mark(e *entry[S], event *kgo.Record) {
	if !e.dirty {
		e.dirty = true
		w.dirty = append(w.dirty, e)
	}
	if e.first == nil {
		e.first = event
	}
	if e.folded++; w.spec.Persist.every > 0 && e.folded >= w.spec.Persist.every {
		w.urgent = true
	}
}

// collect gives what is to be persisted now: of all keys, or of those whose turn
// it is. All events up to an offset have been handed out.
func (w *worker[S]) collect(all bool, passed int64) (s share) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, event := range []*kgo.Record{w.left, w.current} {
		if event != nil {
			s.lower(event)
		}
	}
	if len(w.events) > 0 {
		s.lower(w.events[0])
	}
	s.loose, w.loose = w.loose, nil
	w.urgent = false
	keep := w.dirty[:0]
	for _, e := range w.dirty {
		turn := all || len(e.outputs) > 0 || e.first == nil || e.folded >= w.spec.Persist.every
		if e == w.folding || !turn {
			keep = append(keep, e)
			if e.first != nil {
				s.lower(e.first)
			}
			w.urgent = w.urgent || turn && !all
			continue
		}
		snapshot, err := e.snapshot(w.spec.Codec, w.tag)
		if err != nil {
			s.err = errors.Join(s.err, err)
			continue
		}
		s.snapshots = append(s.snapshots, snapshot)
		s.outputs = append(s.outputs, e.outputs...)
		e.dirty, e.first, e.folded, e.outputs = false, nil, 0, nil
		if !e.exists {
			delete(w.keys, e.key)
		}
	}
	clear(w.dirty[len(keep):])
	w.dirty, s.dirty = keep, len(keep) > 0
	for len(w.graves) > 0 && w.graves[0].source <= passed {
		if g := w.graves[0]; !g.dirty && !g.exists && g != w.folding && w.keys[g.key] == g {
			delete(w.keys, g.key)
		}
		w.graves = w.graves[1:]
	}
	return s
}

func (s *share) lower(event *kgo.Record) {
	if s.low == nil || event.Offset < s.low.Offset {
		s.low = event
	}
}

// timerHeap has the keys with timers, by the earliest. An entry may be in it more
// often; what does not match its key's next timer is out of date.
type timerHeap[S any] []alarm[S]

type alarm[S any] struct {
	at    int64
	entry *entry[S]
}

func (h timerHeap[S]) Len() int           { return len(h) }
func (h timerHeap[S]) Less(i, j int) bool { return h[i].at < h[j].at }
func (h timerHeap[S]) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *timerHeap[S]) Push(x any)        { *h = append(*h, x.(alarm[S])) }
func (h *timerHeap[S]) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

func (w *worker[S]) schedule(e *entry[S]) {
	if at := e.nextTimer(); at > 0 {
		heap.Push(&w.timers, alarm[S]{at, e})
	}
}

// untilTimer is how long no timer is due.
func (w *worker[S]) untilTimer() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.timers) == 0 || w.drain.Load() {
		return time.Hour
	}
	return max(time.Until(time.UnixMilli(w.timers[0].at)), 0)
}

// fire calls the timers that are due.
func (w *worker[S]) fire(ctx context.Context) (fired bool, err error) {
	w.turn.Lock()
	defer w.turn.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.timers) > 0 && !w.drain.Load() {
		now := time.Now().UnixMilli()
		if w.timers[0].at > now {
			break
		}
		a := heap.Pop(&w.timers).(alarm[S])
		e := a.entry
		if e.nextTimer() != a.at {
			continue
		}
		for _, name := range e.due(now) {
			if err := w.fireOne(ctx, e, name); err != nil {
				return fired, err
			}
			fired = true
		}
		w.schedule(e)
	}
	return fired, nil
}

func (w *worker[S]) fireOne(ctx context.Context, e *entry[S], name string) (err error) {
	w.urgent = true
	if name == expiry {
		e.bury()
		w.mark(e, nil)
		return nil
	}
	delete(e.timers, name)
	var k *Key[S]
	w.unlocked(nil, e, func() {
		if err = e.decode(w.spec.Codec); err != nil {
			return
		}
		k = &Key[S]{State: e.state, entry: e}
		err = guard(func() error {
			if w.spec.Timer == nil {
				return fmt.Errorf("timer %q is due, and the specification has no Timer", name)
			}
			return w.spec.Timer(ctx, k, name)
		})
	})
	if err != nil {
		return &FoldError{Topic: w.topic, Partition: w.partition, Offset: -1, Key: []byte(e.key), Attempts: 1, Err: err}
	}
	w.apply(e, k)
	w.mark(e, nil)
	return nil
}

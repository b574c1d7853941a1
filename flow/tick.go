package flow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Tick is one call of Spec.Tick. It must not be used after the call, nor by other
// goroutines.
type Tick[S any] struct {
	d       *driver[S]
	changed bool
	outputs []*kgo.Record
}

// Partition is the partition's number.
func (t *Tick[S]) Partition() int32 { return t.d.p.ID() }

// Each calls visit with each key of the partition that has a state, in no
// particular order, and returns its first error. Visit is like a fold: the key's
// state is written unless it says Skip. States that were recovered and not needed
// since are decoded for it.
func (t *Tick[S]) Each(visit func(k *Key[S]) error) error {
	for _, w := range t.d.workers {
		for _, e := range w.keys {
			if !e.exists {
				continue
			}
			changed, err := w.visit(e, visit)
			if err != nil {
				return err
			}
			t.changed = t.changed || changed
		}
	}
	return nil
}

// Emit sends records to any topics, in the transaction that commits what the tick
// changed. The records belong to the flow from then on.
func (t *Tick[S]) Emit(records ...*kgo.Record) {
	t.outputs = append(t.outputs, records...)
	t.changed = t.changed || len(records) > 0
}

// visit is a step that is not an event's.
func (w *worker[S]) visit(e *entry[S], visit func(k *Key[S]) error) (changed bool, err error) {
	if err := e.decode(w.spec.Codec); err != nil {
		return false, err
	}
	k := &Key[S]{State: e.state, entry: e}
	if err := visit(k); err != nil || !k.hasEffect() {
		return false, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.apply(e, k)
	w.mark(e, nil)
	return true, nil
}

type ticked struct {
	changed bool // something is to be committed
	outputs []*kgo.Record
	err     error
}

// tick calls Spec.Tick when all workers have come to the end of what they are
// folding, and makes them wait meanwhile. Nothing is persisted before it returns,
// so that what it changes is committed together.
func (d *driver[S]) tick(ctx context.Context) ticked {
	for _, w := range d.workers {
		w.turn.Lock()
		defer w.turn.Unlock()
		defer poke(w.wake) // it may have timers now
	}
	t := &Tick[S]{d: d}
	err := guard(func() error { return d.f.spec.Tick(ctx, t) })
	if err != nil {
		return ticked{err: &FoldError{Topic: d.p.Topic(), Partition: d.p.ID(), Offset: -1, Attempts: 1, Err: err}}
	}
	return ticked{changed: t.changed, outputs: t.outputs}
}

// checkTick finds the faults of a specification's tick.
func (s *Spec[S]) checkTick() error {
	switch {
	case s.Tick == nil && s.TickEvery != 0:
		return errors.New("TickEvery: Tick is required with it")
	case s.Tick != nil && s.TickEvery < time.Millisecond:
		return fmt.Errorf("TickEvery %v: at least 1ms is required with Tick", s.TickEvery)
	}
	return nil
}

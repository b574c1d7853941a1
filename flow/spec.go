package flow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
)

// Spec says what a flow does. Codec and Fold are required.
type Spec[S any] struct {
	// Codec reads and writes the state.
	Codec Codec[S]

	// Fold is called with each event, in order for each key, and changes
	// k.State. An event that is committed once may be folded more often: after a
	// crash, again from the state before it. An error or a panic is dealt with as
	// Poison says. ctx ends with the ownership of the partition.
	Fold func(ctx context.Context, k *Key[S], event *kgo.Record) error

	// Timer is called when a timer that was set with Key.SetTimer is due, in turn
	// with the events of its key. An error of it ends Run, whatever Poison says.
	Timer func(ctx context.Context, k *Key[S], name string) error

	// Tick is called for each partition every TickEvery, at least 1 ms. It can visit
	// all of the partition's keys, whose folds wait for it. What one call changes
	// and emits is committed together. A call that is due while the one before is
	// under way is left out. An error or a panic ends Run.
	Tick      func(ctx context.Context, t *Tick[S]) error
	TickEvery time.Duration

	// Key gives an event's key; the default is the record's. It must be the
	// same each time. All events of a key must be in one partition.
	Key func(event *kgo.Record) []byte

	// Persist says when state is written; the default is EveryEvent. Whatever
	// it says, outputs are committed at once, together with the state that
	// contains their event, and everything is when the partition is given up.
	Persist Persist

	// Poison says what becomes of an event whose fold fails; the default is Stop.
	Poison Poison

	// Workers bounds how many folds run at the same time, over all partitions of
	// the member; the default is GOMAXPROCS. More suit folds that wait.
	Workers int

	// MaxInFlight bounds how many events of a partition have been taken from the
	// consumer and not been folded; the default is 10,000. When it is reached the
	// partition is not polled.
	MaxInFlight int
}

// Persist is a policy of when state is written. The zero value is EveryEvent.
type Persist struct {
	every    int
	interval time.Duration
}

// EveryEvent writes a key's state after each of its events. Events that come
// while a transaction is under way go with the next one, in one snapshot for
// each key.
func EveryEvent() Persist { return EveryN(1) }

// EveryN writes a key's state after n of its events, at least 1, and that of all
// keys that have changed every 5 s, since the committed offset waits for each.
func EveryN(n int) Persist { return Persist{every: n, interval: 5 * time.Second} }

// Every writes the state of all keys that have changed, each time that the
// interval passes, at least 1 ms.
func Every(interval time.Duration) Persist { return Persist{interval: interval} }

// Flow is a Spec that was found to be sound. It may run over several modules.
type Flow[S any] struct {
	spec  Spec[S]
	slots chan struct{} // a token for each fold that runs
}

// New checks a Spec, and reports all faults together.
func New[S any](spec Spec[S]) (*Flow[S], error) {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if err := check(spec.Codec); err != nil {
		faults = append(faults, err)
	}
	if spec.Fold == nil {
		fault("Fold: required")
	}
	if spec.Key == nil {
		spec.Key = func(e *kgo.Record) []byte { return e.Key }
	}
	switch p := spec.Persist; {
	case p == Persist{}:
		spec.Persist = EveryEvent()
	case p.interval != 0 && p.interval < time.Millisecond:
		fault("Persist: Every(%v): at least 1ms is allowed", p.interval)
	case p.every < 0 || p.every == 0 && p.interval == 0:
		fault("Persist: EveryN(%d): at least 1 is allowed", p.every)
	}
	if err := spec.checkTick(); err != nil {
		faults = append(faults, err)
	}
	if err := spec.Poison.check(); err != nil {
		faults = append(faults, err)
	}
	checkBounds(fault, &spec.Workers, &spec.MaxInFlight)
	if len(faults) > 0 {
		return nil, fmt.Errorf("flow: the specification cannot be used:\n%w", errors.Join(faults...))
	}
	return &Flow[S]{spec: spec, slots: make(chan struct{}, spec.Workers)}, nil
}

// Run is module.Run with the flow as its handler, and blocks like it.
func (f *Flow[S]) Run(ctx context.Context, module *persistence.Module) error {
	return module.Run(ctx, f.Handle)
}

package flow

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
)

// Transform is a loop without state: each event becomes any number of records,
// exactly once. It runs over a module with [persistence.Stateless].
type Transform struct {
	// Each is called with each event and returns what it becomes, in any topics;
	// nothing is allowed. Events of one key are given in order, one after another;
	// others, and those without a key, side by side. An event whose outputs are
	// committed once may be given more often, after a crash: EventID is the same
	// each time. The outputs are the transform's from then on. An error or a panic
	// is dealt with as Poison says. ctx ends with the ownership of the partition.
	// Required.
	Each func(ctx context.Context, event *kgo.Record) (outputs []*kgo.Record, err error)

	// Poison says what becomes of an event for which Each fails; the default is
	// Stop.
	Poison Poison

	// Workers bounds how many calls of Each run at the same time, over all
	// partitions of the member; the default is GOMAXPROCS. More suit calls that
	// wait.
	Workers int

	// MaxInFlight bounds how many events of a partition have been taken from the
	// consumer and not been committed; the default is 10,000. When it is reached
	// the partition is not polled.
	MaxInFlight int
}

// Transformer is a Transform that was found to be sound. It may run over several
// modules.
type Transformer struct {
	spec  Transform
	slots chan struct{}
}

// NewTransform checks a Transform, and reports all faults together.
func NewTransform(spec Transform) (*Transformer, error) {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if spec.Each == nil {
		fault("Each: required")
	}
	if err := spec.Poison.check(); err != nil {
		faults = append(faults, err)
	}
	checkBounds(fault, &spec.Workers, &spec.MaxInFlight)
	if len(faults) > 0 {
		return nil, fmt.Errorf("flow: the transform cannot be used:\n%w", errors.Join(faults...))
	}
	return &Transformer{spec: spec, slots: make(chan struct{}, spec.Workers)}, nil
}

// checkBounds checks what flows and transforms have in common, and fills in
// defaults.
func checkBounds(fault func(string, ...any), workers, inFlight *int) {
	if *workers == 0 {
		*workers = runtime.GOMAXPROCS(0)
	}
	if *workers < 1 {
		fault("Workers %d: at least 1 is allowed, or 0 for GOMAXPROCS", *workers)
	}
	if *inFlight == 0 {
		*inFlight = 10_000
	}
	if *inFlight < 1 {
		fault("MaxInFlight %d: at least 1 is allowed, or 0 for the default", *inFlight)
	}
}

// Run is module.Run with the transform as its handler, and blocks like it.
func (t *Transformer) Run(ctx context.Context, module *persistence.Module) error {
	return module.Run(ctx, t.Handle)
}

// One ownership of a partition. Workers transform events side by side, and what
// is committed is always a run of events without a gap, from the committed offset
// on: with no state, the offset is all there is to tell that an event is done. So
// outputs come in the order of their events, and an event behind a slow one waits
// for it. One transaction is under way at a time, and what is done by its end
// makes up the next one.
//
// When the partition is given up, what is done up to the first gap is committed,
// and the rest is left to the next owner.
type transforming struct {
	t       *Transformer
	p       *persistence.Partition
	lanes   []*lane
	next    int           // the lane of the next event without a key
	waiting []*job        // what was handed out and is not committed, in order
	ready   int           // how many of them, from the first on, are transformed
	some    chan struct{} // some job is answered
}

// lane is a queue of events whose order counts: all those of a key are in one.
type lane struct {
	mu   sync.Mutex
	jobs []*job
	wake chan struct{}
}

// job is one event. answered is set when the other two are.
type job struct {
	event    *kgo.Record
	outputs  []*kgo.Record
	err      error
	answered atomic.Bool
}

// Handle is one ownership of one partition: a persistence.Handler, for those who
// call module.Run themselves.
func (t *Transformer) Handle(ctx context.Context, p *persistence.Partition) error {
	d := &transforming{t: t, p: p, some: make(chan struct{}, 1)}
	work, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for range t.spec.Workers {
		l := &lane{wake: make(chan struct{}, 1)}
		d.lanes = append(d.lanes, l)
		running.Go(func() { d.work(work, l) })
	}
	polls := make(chan polled)
	running.Go(func() { poll(work, p, polls) })
	return d.run(work, polls)
}

func (l *lane) take() []*job {
	l.mu.Lock()
	defer l.mu.Unlock()
	jobs := l.jobs
	l.jobs = nil
	return jobs
}

// work transforms the events of a lane.
func (d *transforming) work(ctx context.Context, l *lane) {
	for {
		jobs := l.take()
		if len(jobs) == 0 {
			select {
			case <-l.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		for _, j := range jobs {
			select {
			case d.t.slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			j.outputs, j.err = d.try(ctx, j.event)
			<-d.t.slots
			j.answered.Store(true)
			poke(d.some)
		}
	}
}

// errLeft marks an event that is left to the next owner.
var errLeft = errors.New("left to the next owner")

// try transforms an event, or makes a dead letter of it.
func (d *transforming) try(ctx context.Context, event *kgo.Record) (outputs []*kgo.Record, err error) {
	select {
	case <-d.p.Revoked():
		return nil, errLeft
	default:
	}
	poison := d.t.spec.Poison
	attempts, err := poison.attempt(ctx, d.p.Revoked(), func() (err error) {
		outputs, err = d.t.spec.Each(ctx, event)
		return err
	})
	switch {
	case err == nil:
		return outputs, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case attempts <= poison.retries:
		return nil, errLeft // revoked before it was tried as often as it may be
	case poison.topic != "":
		return []*kgo.Record{poison.deadLetter(event, event.Key, attempts, err)}, nil
	}
	return nil, failed(event, event.Key, attempts, err)
}

func (d *transforming) run(ctx context.Context, polls <-chan polled) error {
	var (
		applied  chan error // nil while no transaction is under way
		applying int        // events in it
		over     error      // why the partition is given up
	)
	revoked := d.p.Revoked()
	for {
		if err := d.advance(); err != nil {
			return err
		}
		if applied == nil && d.ready > 0 {
			batch := persistence.Batch{Through: d.waiting[d.ready-1].event}
			for _, j := range d.waiting[:d.ready] {
				batch.Outputs = append(batch.Outputs, j.outputs...)
			}
			applied, applying = make(chan error, 1), d.ready
			go func() { applied <- d.commit(ctx, batch) }()
		}
		if over != nil && applied == nil && d.settled() {
			return over
		}
		in := polls
		if len(d.waiting) >= d.t.spec.MaxInFlight || over != nil {
			in = nil
		}
		select {
		case got := <-in:
			switch {
			case got.err == nil:
				d.handOut(got.events)
			case isGivenUp(got.err):
				over = got.err
			default:
				return got.err
			}
		case <-revoked:
			revoked = nil
			if over == nil {
				_, over = d.p.Poll(ctx) // says why, at once
			}
		case <-d.some:
		case err := <-applied:
			if err != nil {
				return fmt.Errorf("flow: committing: %w", err)
			}
			applied = nil
			clear(d.waiting[:applying])
			d.waiting, d.ready = d.waiting[applying:], d.ready-applying
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// commit is Apply, or Advance where there is nothing to write, which does not wait.
func (d *transforming) commit(ctx context.Context, b persistence.Batch) error {
	if len(b.Outputs) == 0 {
		return d.p.Advance(b.Through)
	}
	return d.p.Apply(ctx, b)
}

// advance counts what is ready. An event that was left stops the count for good.
func (d *transforming) advance() error {
	for d.ready < len(d.waiting) && d.waiting[d.ready].answered.Load() {
		switch err := d.waiting[d.ready].err; {
		case errors.Is(err, errLeft):
			return nil
		case err != nil:
			return err
		}
		d.ready++
	}
	return nil
}

// settled reports whether all events are answered.
func (d *transforming) settled() bool {
	return !slices.ContainsFunc(d.waiting, func(j *job) bool { return !j.answered.Load() })
}

// handOut gives events to the lanes of their keys.
func (d *transforming) handOut(events []*kgo.Record) {
	jobs := make([]job, len(events))
	shares := make(map[*lane][]*job, len(d.lanes))
	for i, e := range events {
		jobs[i].event = e
		n := d.next
		if len(e.Key) > 0 {
			n = shard(e.Key, len(d.lanes))
		} else {
			d.next = (d.next + 1) % len(d.lanes)
		}
		shares[d.lanes[n]] = append(shares[d.lanes[n]], &jobs[i])
		d.waiting = append(d.waiting, &jobs[i])
	}
	for l, js := range shares {
		l.mu.Lock()
		l.jobs = append(l.jobs, js...)
		l.mu.Unlock()
		poke(l.wake)
	}
}

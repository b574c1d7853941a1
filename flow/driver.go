package flow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
)

// The driver is one ownership of a partition.
//
//	recover       snapshots go to the workers of their keys
//	until revoked
//	  poll        events go to the workers of their keys, no more than
//	              MaxInFlight
//	  tick        while all workers wait
//	  persist     when the policy says so, or something was emitted: ask all
//	              workers for their share, and commit the shares together, with
//	              the offset before the first event that is in none
//	revoked       workers leave out what waits; persist everything; return
//
// One transaction is under way at a time, and meanwhile workers fold on: what has
// changed by its end makes up the next one, so that transactions grow with the
// load. A failed one ends the ownership and with it everything that is in memory,
// so no effect that did not commit is ever built upon by another ownership.
type driver[S any] struct {
	f       *Flow[S]
	p       *persistence.Partition
	workers []*worker[S]
	drain   atomic.Bool
	running sync.WaitGroup

	reports chan report
	polled  chan polled

	inFlight int
	last     *kgo.Record   // the last event that was handed out
	state    []report      // the last report of each worker
	advanced int64         // the last offset that was advanced to, or given to a transaction
	due      bool          // the policy's interval has passed
	ticked   bool          // a tick has changed something since
	loose    []letter      // dead letters that wait for the offset
	extra    []*kgo.Record // outputs of a tick
}

type polled struct {
	events []*kgo.Record
	err    error
}

// Handle is one ownership of one partition: a persistence.Handler, for those who
// call module.Run themselves.
func (f *Flow[S]) Handle(ctx context.Context, p *persistence.Partition) error {
	d := &driver[S]{f: f, p: p, reports: make(chan report, f.spec.Workers), polled: make(chan polled), state: make([]report, f.spec.Workers), advanced: -1}
	for i := range f.spec.Workers {
		d.workers = append(d.workers, &worker[S]{index: i, spec: &f.spec, slots: f.slots, topic: p.Topic(), partition: p.ID(), revoked: p.Revoked(), tag: codecTag(f.spec.Codec), drain: &d.drain, out: d.reports,
			wake: make(chan struct{}, 1), keys: make(map[string]*entry[S])})
	}
	if err := d.recover(ctx); err != nil {
		return err
	}
	work, cancel := context.WithCancel(ctx)
	defer d.running.Wait()
	defer cancel()
	for _, w := range d.workers {
		d.running.Go(func() { w.run(work) })
	}
	d.running.Go(func() { poll(work, p, d.polled) })
	return d.run(work)
}

var seed = maphash.MakeSeed()

// shard spreads keys over n.
func shard(key []byte, n int) int { return int(maphash.Bytes(seed, key) % uint64(n)) }

func (d *driver[S]) workerOf(key []byte) *worker[S] { return d.workers[shard(key, len(d.workers))] }

func (d *driver[S]) recover(ctx context.Context) error {
	_, err := d.p.Recover(ctx, func(s persistence.Snapshot) error {
		e, err := recovered(d.f.spec.Codec, s)
		if err != nil {
			return err
		}
		w := d.workerOf(s.Key)
		if e.exists || e.source >= d.p.Resume() {
			w.keys[e.key] = e
		} else {
			delete(w.keys, e.key) // none of its events comes again
		}
		return nil
	}, func() {
		for _, w := range d.workers {
			clear(w.keys)
		}
	})
	if err != nil {
		return err
	}
	for _, w := range d.workers {
		for _, e := range w.keys {
			w.schedule(e)
			if !e.exists {
				w.graves = append(w.graves, e)
			}
		}
		slices.SortFunc(w.graves, func(a, b *entry[S]) int { return cmp.Compare(a.source, b.source) })
	}
	return nil
}

// poll polls ahead of the driver, by one batch.
func poll(ctx context.Context, p *persistence.Partition, to chan<- polled) {
	for {
		events, err := p.Poll(ctx)
		select {
		case to <- polled{events, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

func (d *driver[S]) run(ctx context.Context) error {
	var tick <-chan time.Time
	if every := d.f.spec.Persist.interval; every > 0 {
		t := time.NewTicker(every)
		defer t.Stop()
		tick = t.C
	}
	var ticks <-chan time.Time
	if every := d.f.spec.TickEvery; every > 0 {
		t := time.NewTicker(every)
		defer t.Stop()
		ticks = t.C
	}
	var (
		ticking chan ticked // nil while no tick is under way
		applied chan error  // nil while no transaction is under way
		over    error       // why the partition is given up
		final   bool        // everything was collected since
	)
	revoked := d.p.Revoked()
	for {
		var err error
		switch {
		case applied != nil || ticking != nil:
		case final:
			return over
		case over != nil && d.inFlight == 0:
			final = true
			applied, err = d.persist(ctx, true)
		case over == nil && d.wants():
			all := d.due || d.f.spec.Persist.every <= 1
			d.due, d.ticked = false, false
			applied, err = d.persist(ctx, all)
		case over == nil:
			err = d.skip()
		}
		if err != nil {
			return err
		}
		if final && applied == nil {
			return over
		}
		in := d.polled
		if d.inFlight >= d.f.spec.MaxInFlight || over != nil {
			in = nil
		}
		select {
		case got := <-in:
			if got.err != nil && !isGivenUp(got.err) {
				return got.err
			}
			if got.err != nil {
				over = d.giveUp(got.err)
				continue
			}
			d.handOut(got.events)
		case <-revoked:
			revoked = nil
			if over == nil {
				_, err := d.p.Poll(ctx) // says why, at once
				over = d.giveUp(err)
			}
		case r := <-d.reports:
			if r.err != nil {
				return r.err
			}
			d.inFlight -= r.events
			d.state[r.worker] = r
		case err := <-applied:
			applied = nil
			if err != nil {
				return fmt.Errorf("flow: committing: %w", err)
			}
		case <-tick:
			d.due = true
		case <-ticks:
			if ticking == nil && over == nil {
				ticking = make(chan ticked, 1)
				d.running.Go(func() { ticking <- d.tick(ctx) })
			}
		case got := <-ticking:
			if got.err != nil {
				return got.err
			}
			ticking = nil
			if got.changed {
				d.due, d.ticked, d.extra = true, true, append(d.extra, got.outputs...)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func isGivenUp(err error) bool {
	return errors.Is(err, persistence.ErrRevoked) || errors.Is(err, persistence.ErrClosed)
}

// giveUp makes the workers leave out what waits.
func (d *driver[S]) giveUp(why error) error {
	d.drain.Store(true)
	for _, w := range d.workers {
		poke(w.wake)
	}
	return why
}

// handOut gives events to the workers of their keys.
func (d *driver[S]) handOut(events []*kgo.Record) {
	shares := make(map[*worker[S]][]*kgo.Record, len(d.workers))
	for _, e := range events {
		w := d.workerOf(d.f.spec.Key(e))
		shares[w] = append(shares[w], e)
	}
	d.inFlight += len(events)
	d.last = events[len(events)-1]
	for w, es := range shares {
		w.put(es)
	}
}

// wants reports whether it is time to persist.
func (d *driver[S]) wants() bool {
	if d.ticked {
		return true
	}
	for _, r := range d.state {
		if r.urgent || r.dirty && (d.due || d.f.spec.Persist.every == 1) {
			return true
		}
	}
	return len(d.loose) > 0 && d.inFlight == 0
}

// persist collects and commits. The result is nil if there was nothing to commit
// but, at most, an offset.
func (d *driver[S]) persist(ctx context.Context, all bool) (applied chan error, err error) {
	passed := int64(-1)
	if d.last != nil {
		passed = d.last.Offset
	}
	shares := make([]share, len(d.workers))
	var collecting sync.WaitGroup
	for i, w := range d.workers {
		collecting.Go(func() { shares[i] = w.collect(all, passed) })
	}
	collecting.Wait()
	b, err := d.compose(shares)
	if err != nil {
		return nil, err
	}
	if len(b.Snapshots) == 0 && len(b.Outputs) == 0 {
		return nil, d.advance(b.Through)
	}
	applied = make(chan error, 1)
	d.running.Go(func() { applied <- d.p.Apply(ctx, b) })
	return applied, nil
}

// compose makes a batch of the shares. Through is the event before the first one
// that is not persisted with it.
func (d *driver[S]) compose(shares []share) (persistence.Batch, error) {
	var b persistence.Batch
	var all share
	for i, s := range shares {
		d.state[i].dirty, d.state[i].urgent = s.dirty, false
		all.err = errors.Join(all.err, s.err)
		b.Snapshots = append(b.Snapshots, s.snapshots...)
		b.Outputs = append(b.Outputs, s.outputs...)
		d.loose = append(d.loose, s.loose...)
		if s.low != nil {
			all.lower(s.low)
		}
	}
	b.Outputs, d.extra = append(b.Outputs, d.extra...), nil
	b.Through = d.last
	if all.low != nil && d.last != nil && all.low.Offset <= d.last.Offset {
		b.Through = nil
		if before := all.low.Offset - 1; before >= d.p.Resume() {
			b.Through = &kgo.Record{Topic: all.low.Topic, Partition: all.low.Partition, Offset: before, LeaderEpoch: all.low.LeaderEpoch}
		}
	}
	if b.Through != nil {
		d.advanced = max(d.advanced, b.Through.Offset)
		d.loose = slices.DeleteFunc(d.loose, func(l letter) bool {
			passed := l.event.Offset <= b.Through.Offset
			if passed {
				b.Outputs = append(b.Outputs, l.record)
			}
			return passed
		})
	}
	return b, all.err
}

// skip advances over events that left nothing to persist. No transaction is
// under way: one that failed would have been passed over.
func (d *driver[S]) skip() error {
	if d.inFlight > 0 || d.last == nil || d.last.Offset <= d.advanced || len(d.loose) > 0 {
		return nil
	}
	for _, r := range d.state {
		if r.dirty || r.urgent {
			return nil
		}
	}
	return d.advance(d.last)
}

func (d *driver[S]) advance(through *kgo.Record) error {
	if through == nil {
		return nil
	}
	d.advanced = max(d.advanced, through.Offset)
	return d.p.Advance(through)
}

package persistence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/internal/format"
	"github.com/kafkafence/persistence/internal/wire"
)

// Group commit: one goroutine owns a partition's producer and runs its
// transactions one after another. Writes that come while one is in flight form
// the next. Nobody waits for a batch to fill: a lone write goes at once.
//
//	forever
//	  take what is queued, up to the bounds
//	  until it committed or can't
//	    read the generation, then check the handle
//	    commit the offset in the transaction     (a stale owner stops here)
//	      refused: ask again under the next generation, in this transaction
//	    produce snapshots and outputs
//	    end the transaction
//	      no answer: look for this transaction's name in the metadata of the
//	      committed offset; while it is pending, replace the producer
//	  answer every caller
//
// Invariants: every transaction carries an offset commit with a live generation;
// the offset is what was advanced to before the transaction began, or the
// batch's own; a batch is tried again only when it is certain that it did not
// commit; after any failure the producer is replaced before the next
// transaction, which aborts whatever was open; every caller is answered once.
//
// The obvious order, produce first, is several times slower from
// transaction.version 2 on (the broker then waits in steps of 20 ms for the
// last transaction's markers) and lets a stale owner's records into the log,
// to be aborted there.

// position is an input offset to commit: the next to read, and the leader epoch
// of the record before it.
type position struct {
	offset int64
	epoch  int32
}

const noPosition int64 = -1

// after is the position behind an input record.
func after(r *kgo.Record) position { return position{r.Offset + 1, r.LeaderEpoch} }

// offsets is the committable offset of one ownership. It never goes back.
type offsets struct {
	mu struct {
		sync.Mutex
		committable position
		committed   position
	}
}

// start sets where the ownership resumed from; nothing is owed yet.
func (o *offsets) start(at position) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.committable, o.mu.committed = at, at
}

func (o *offsets) advance(to position) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if to.offset > o.mu.committable.offset {
		o.mu.committable = to
	}
}

func (o *offsets) committable() position {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.committable
}

// settled notes that the group's committed offset is at least p.
func (o *offsets) settled(p position) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p.offset > o.mu.committable.offset {
		o.mu.committable = p
	}
	if p.offset > o.mu.committed.offset {
		o.mu.committed = p
	}
}

// dirty is what was advanced to and not committed.
func (o *offsets) dirty() (position, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.committable, o.mu.committable.offset > o.mu.committed.offset
}

// broker is all that the group commit needs of the outside world. Each func is
// called by the owning goroutine only, one at a time, except open and member,
// which any goroutine may call.
type broker struct {
	// member reads the live membership.
	member func() wire.Member
	// open is nil while the ownership may write, and else why not.
	open func() error
	// begin opens the client's transaction; nothing is sent.
	begin func() error
	// commitOffset puts the offset into the transaction.
	commitOffset func(ctx context.Context, m wire.Member, pos wire.Position) error
	// produce sends the records and waits for all of them. It fills in their
	// offsets, and returns an error for each that failed.
	produce func(ctx context.Context, records []*kgo.Record) []error
	// end commits the transaction.
	end func(ctx context.Context) error
	// renew replaces the producer, which aborts or completes whatever the old
	// one left.
	renew func(ctx context.Context, why error) error
	// confirm commits the offset outside of a transaction, to ask the
	// coordinator whether the generation is still good.
	confirm func(ctx context.Context, m wire.Member, pos wire.Position) error
	// lastCommit fetches the metadata of the group's commit, if no
	// transaction is pending on it; if one is, UNSTABLE_OFFSET_COMMIT.
	lastCommit func(ctx context.Context) (string, error)
	// doubtful reports, once, that a request of the last transactions got no
	// answer at some try, so that it may still arrive.
	doubtful func() bool
}

// gate is a mutex that can be waited for with a context.
type gate chan struct{}

func newGate() gate { return make(gate, 1) }

func (g gate) enter(ctx context.Context) bool {
	select {
	case g <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (g gate) tryEnter() bool {
	select {
	case g <- struct{}{}:
		return true
	default:
		return false
	}
}

func (g gate) leave() { <-g }

// groupCommit is one ownership's group commit.
type groupCommit struct {
	topic      string
	partition  int32
	snapshots  string // topic
	maxWrites  int
	maxBytes   int
	patience   time.Duration // how long a batch is tried
	fenceWait  time.Duration
	broker     broker
	queue      *queue
	offsets    *offsets
	trace      *Trace
	log        *slog.Logger
	nonce      string // names this ownership's commits
	inherited  string // the commit's metadata at the takeover
	fatal      func(error)
	inFlight   atomic.Int64
	exclusive  gate  // held during a transaction, and by an offset commit outside of one
	end        int64 // the snapshot partition's end, as far as known
	sequence   int64
	needsRenew error // why the producer must be replaced before it is used
	rivals     rivalry
}

// run is the owning goroutine. It returns when the queue is drained or ctx, the
// ownership's own, ends.
func (g *groupCommit) run(ctx context.Context) {
	for {
		batch, done := g.queue.take(g.maxWrites, g.maxBytes)
		switch {
		case len(batch) > 0:
			g.inFlight.Store(int64(len(batch)))
			if !g.exclusive.enter(ctx) {
				g.refuse(batch, g.why(ctx))
				continue
			}
			g.commit(ctx, batch)
			g.inFlight.Store(0)
			g.tidy(ctx)
			g.exclusive.leave()
		case done:
			return
		default:
			select {
			case <-g.queue.wake:
			case <-ctx.Done():
				g.refuse(g.queue.clear(g.why(ctx)), g.why(ctx))
				return
			}
		}
	}
}

// tidy replaces a producer that may have something open, so that nothing stays
// pinned until the next write.
func (g *groupCommit) tidy(ctx context.Context) {
	g.doubt()
	if g.needsRenew != nil && !isProducerFenced(g.needsRenew) && g.broker.open() == nil && g.queue.len() == 0 {
		bounded, cancel := context.WithTimeout(ctx, g.patience)
		defer cancel()
		if err := g.renew(bounded); err != nil {
			g.log.Warn("the producer could not be replaced yet; the next write tries again", "error", err)
		}
	}
}

// doubt condemns a producer whose last requests may still be on their way.
func (g *groupCommit) doubt() {
	if g.needsRenew == nil && g.broker.doubtful() {
		g.needsRenew = errors.New("a request's reply was lost, and below transaction.version 2 it could still arrive in a later transaction")
	}
}

func (g *groupCommit) why(ctx context.Context) error {
	if err := g.broker.open(); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return ErrClosed
}

func (g *groupCommit) refuse(ws []*write, err error) {
	for _, w := range ws {
		g.answer(w, 0, err)
	}
}

func (g *groupCommit) answer(w *write, generation int32, err error) {
	if err != nil {
		err = &WriteError{Topic: g.topic, Partition: g.partition, Generation: generation, Err: err}
	}
	w.done <- err
}

// commit brings one batch to its end and answers all of it, keeping the
// batch's order where it must be split.
func (g *groupCommit) commit(ctx context.Context, batch []*write) {
	t := g.attempts(ctx, batch)
	if t.verdict == refused && len(batch) > 1 {
		half := len(batch) / 2
		g.commit(ctx, batch[:half])
		g.commit(ctx, batch[half:])
		return
	}
	for _, w := range batch {
		g.answer(w, t.generation, t.err)
	}
	if t.fatal {
		g.refuse(g.queue.clear(t.err), t.err)
		g.fatal(t.err)
	}
}

// trial is where the attempts at one batch ended.
type trial struct {
	verdict    verdict
	generation int32
	offset     int64
	attempts   int
	err        error
	fatal      bool // the ownership is over
}

// attempts tries a batch until it committed, cannot, or its time is up.
func (g *groupCommit) attempts(ctx context.Context, batch []*write) (t trial) {
	began := time.Now()
	defer func() {
		if g.trace.Transaction != nil {
			n := 0
			for _, w := range batch {
				n += w.records()
			}
			g.trace.Transaction(TransactionInfo{Topic: g.topic, Partition: g.partition, Generation: t.generation, Writes: len(batch),
				Records: n, Offset: t.offset, Attempts: t.attempts, Took: time.Since(began), Err: t.err})
		}
	}()
	deadline := began.Add(g.patience)
	var last error
	for pause := time.Duration(0); ; pause = min(max(pause*2, time.Millisecond), 500*time.Millisecond) {
		if err := g.broker.open(); err != nil {
			t.verdict, t.err = unlanded, join(err, last)
			return t
		}
		if left := time.Until(deadline); left <= 0 {
			t.verdict, t.err = unlanded, fmt.Errorf("not committed within %v (TransactionTimeout), after %d attempts: %w", g.patience, t.attempts, last)
			return t
		}
		if pause > 0 && !sleep(ctx, pause) {
			continue
		}
		var a attempt
		g.doubt()
		if g.needsRenew != nil {
			if a = g.renewConfirmed(ctx, deadline); a.err != nil && a.verdict != askOwnership && a.verdict != impossible {
				last = a.err
				continue
			}
		}
		if a.err == nil {
			t.attempts++
			survived := a.survived
			if a = g.attempt(ctx, batch, deadline); a.survived == nil {
				a.survived = survived
			}
		}
		t.generation, t.offset, last = a.generation, a.offset, a.err
		if a.verdict == unsettled {
			// However late it is, an answer is worth some more time.
			a = g.settle(ctx, a, later(deadline, time.Now().Add(g.patience/2)))
			last = a.err
		}
		switch a.verdict {
		case committed:
			t.verdict, t.err = committed, nil
			g.survived(a.survived)
			return t
		case askOwnership:
			// Stayed refused: it is somebody else's.
			t.verdict, t.err, t.fatal = askOwnership, a.err, true
			return t
		case producerGone:
			if isProducerFenced(a.err) && g.rivals.fenced(a.generation, time.Now()) {
				t.verdict, t.err, t.fatal = producerGone, fmt.Errorf("%w (%w)", ErrProducerConflict, a.err), true
				return t
			}
		case refused, impossible, unsettled:
			t.verdict, t.err = a.verdict, asTooLarge(a.err)
			return t
		}
		g.log.Debug("transaction failed and is tried again", "attempt", t.attempts, "error", last)
	}
}

// attempt is one transaction's outcome.
type attempt struct {
	verdict    verdict
	generation int32
	offset     int64
	name       string
	pos        position
	end        int64 // the snapshot partition's end if it committed
	survived   *FenceInfo
	err        error
}

// attempt runs one transaction.
func (g *groupCommit) attempt(ctx context.Context, batch []*write, deadline time.Time) (a attempt) {
	fail := func(s stage, err error) attempt {
		a.verdict, a.err = judge(s, err), fmt.Errorf("%v: %w", s, err)
		// The client's transaction is open; only a new producer is certain
		// to have none.
		g.needsRenew = a.err
		return a
	}
	// The generation first, then the handle: see fence.go.
	member := g.broker.member()
	a.generation = member.Generation
	if err := g.broker.open(); err != nil {
		a.verdict, a.err = unlanded, err
		return a
	}
	if member.ID == "" || member.Generation <= 0 {
		a.verdict, a.err = impossible, ErrNotJoined
		return a
	}
	if err := g.broker.begin(); err != nil {
		return fail(stageBegin, err)
	}

	a.pos = g.offsets.committable()
	snapshots := 0
	for _, w := range batch {
		if w.through.offset > a.pos.offset {
			a.pos = w.through
		}
		snapshots += len(w.snapshots)
	}
	a.offset = a.pos.offset
	a.end = g.end
	if snapshots > 0 {
		a.end += int64(snapshots) + 1 // and the marker
	}
	g.sequence++
	a.name = strconv.FormatInt(g.sequence, 36)
	pos := wire.Position{Offset: a.pos.offset, Epoch: a.pos.epoch, Metadata: format.Metadata{End: a.end, Owner: g.nonce, Transaction: a.name}.String()}

	bounded, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if v, err := g.gated(bounded, &a, member, func(m wire.Member) error { return g.broker.commitOffset(bounded, m, pos) }); err != nil {
		fail(stageOffsets, err)
		a.verdict = v
		return a
	}

	records := g.records(batch, snapshots, a.pos.offset)
	if errs := g.broker.produce(bounded, records); len(errs) > 0 {
		v := fail(stageProduce, errs[0])
		// One that says what is wrong with a record counts most.
		for _, err := range errs {
			if isRecordRefused(err) {
				v = fail(stageProduce, err)
				break
			}
		}
		return v
	}
	if err := g.broker.open(); err != nil {
		return fail(stageProduce, err)
	}
	// From here on the transaction may commit. Its bound is when the broker
	// ends it by itself.
	if err := g.broker.end(bounded); err != nil {
		return fail(stageEnd, err)
	}
	g.landed(a, records)
	return a
}

// survived tells of a fence that the ownership survived.
func (g *groupCommit) survived(f *FenceInfo) {
	if f == nil {
		return
	}
	g.log.Info("a write was refused under one generation and committed under the next; the partition stayed here",
		"refused", f.Refused, "generation", f.Current, "waited", f.Waited)
	if g.trace.FenceSurvived != nil {
		g.trace.FenceSurvived(*f)
	}
}

// gated sends what carries the generation, and sends it again under the next
// generation when one is refused and the ownership goes on.
func (g *groupCommit) gated(ctx context.Context, a *attempt, member wire.Member, send func(wire.Member) error) (verdict, error) {
	for {
		err := send(member)
		v := judge(stageOffsets, err)
		if v != askOwnership {
			return v, err
		}
		began := time.Now()
		info := FenceInfo{Topic: g.topic, Partition: g.partition, Refused: member.Generation, Err: err}
		how := awaitOwnership(ctx, g.fenceWait, member.Generation, func() int32 { return g.broker.member().Generation }, g.broker.open)
		member = g.broker.member()
		info.Current, info.Waited = member.Generation, time.Since(began)
		if how == movedOn && g.broker.open() == nil && member.ID != "" && member.Generation > 0 {
			a.generation, a.survived = member.Generation, &info
			continue
		}
		if reason := g.broker.open(); reason != nil || how == closed {
			return unlanded, join(g.why(ctx), err)
		}
		if g.trace.Fenced != nil {
			g.trace.Fenced(info)
		}
		return askOwnership, fmt.Errorf("%w: generation %d was refused and no newer one came within %v: %w",
			ErrFenced, info.Refused, info.Waited.Round(time.Millisecond), err)
	}
}

// landed notes what a committed transaction moved.
func (g *groupCommit) landed(a attempt, records []*kgo.Record) {
	g.offsets.settled(a.pos)
	g.end = max(g.end, a.end)
	for _, r := range records {
		if r.Topic == g.snapshots && r.Offset+2 > g.end {
			g.end = r.Offset + 2
		}
	}
}

// settle finds out what became of a transaction whose end got no clear answer.
// Its offset commit was accepted, so it is pending until the transaction is
// over; once nothing is pending, the metadata of the committed offset names
// the last transaction that committed. While it is pending, a new producer's
// InitProducerID ends it.
func (g *groupCommit) settle(ctx context.Context, a attempt, deadline time.Time) attempt {
	lost := a.err
	unknown := func(err error) attempt {
		a.verdict, a.err = unsettled, fmt.Errorf("%w: %w", ErrUnknownOutcome, join(err, lost))
		return a
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(pause*2, 500*time.Millisecond) {
		if err := g.broker.open(); err != nil {
			return unknown(err)
		}
		if !time.Now().Before(deadline) {
			return unknown(fmt.Errorf("not settled within %v", g.patience))
		}
		metadata, err := g.broker.lastCommit(ctx)
		if errors.Is(err, kerr.UnstableOffsetCommit) {
			if err = g.renew(ctx); err == nil {
				continue
			}
		}
		if err != nil {
			g.log.Warn("a transaction's outcome is not settled yet", "error", err)
			sleep(ctx, pause)
			continue
		}
		m, _ := format.ParseMetadata(metadata)
		switch {
		case m.Owner == g.nonce && m.Transaction == a.name:
			g.log.Info("the reply to a commit was lost; it did commit", "error", lost)
			g.landed(a, nil)
			a.verdict, a.err = committed, nil
			return a
		case m.Owner == g.nonce || metadata == g.inherited:
			g.log.Info("the reply to a commit was lost; it did not commit and is tried again", "error", lost)
			a.verdict, a.err = unlanded, lost
			if isProducerFenced(lost) {
				a.verdict = producerGone
			}
			return a
		default:
			// Whatever this one did is covered by a commit since.
			return unknown(fmt.Errorf("another owner has committed since (%q)", metadata))
		}
	}
}

// renewConfirmed replaces the producer. One that was fenced may have been
// fenced by the partition's next owner, whose producer would be fenced in turn;
// so the generation is asked first.
func (g *groupCommit) renewConfirmed(ctx context.Context, deadline time.Time) (a attempt) {
	bounded, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if isProducerFenced(g.needsRenew) {
		member := g.broker.member()
		a.generation = member.Generation
		if err := g.broker.open(); err != nil {
			a.verdict, a.err = unlanded, err
			return a
		}
		if member.ID == "" || member.Generation <= 0 {
			a.verdict, a.err = impossible, ErrNotJoined
			return a
		}
		at := g.offsets.committable()
		pos := wire.Position{Offset: at.offset, Epoch: at.epoch, Metadata: format.Metadata{End: g.end, Owner: g.nonce}.String()}
		v, err := g.gated(bounded, &a, member, func(m wire.Member) error { return g.broker.confirm(bounded, m, pos) })
		if err != nil {
			a.verdict, a.err = v, err
			return a
		}
		g.offsets.settled(at)
	}
	if err := g.renew(bounded); err != nil {
		a.verdict, a.err = judge(stageBegin, err), err
	}
	return a
}

// renew replaces the producer.
func (g *groupCommit) renew(ctx context.Context) error {
	// Opened again only for an ownership that is still one: a stale owner
	// that takes the epoch would fence the valid owner's producer.
	if err := g.broker.open(); err != nil {
		return err
	}
	why := g.needsRenew
	if err := g.broker.renew(ctx, why); err != nil {
		return fmt.Errorf("replacing the producer: %w", err)
	}
	g.needsRenew = nil
	g.broker.doubtful() // what is still under way has an old epoch now
	return nil
}

// records builds what the batch puts into the logs, in the order of its writes.
func (g *groupCommit) records(batch []*write, snapshots int, committable int64) []*kgo.Record {
	n := 0
	for _, w := range batch {
		n += w.records()
	}
	records := make([]*kgo.Record, 0, n)
	block := make([]kgo.Record, 0, n)
	for _, w := range batch {
		for i := range w.snapshots {
			s := &w.snapshots[i]
			block = append(block, kgo.Record{Topic: g.snapshots, Partition: g.partition, Key: s.Key, Value: s.Value,
				Headers: format.AppendHeaders(s.Headers, s.SourceOffset, committable)})
			records = append(records, &block[len(block)-1])
		}
		for _, o := range w.outputs {
			// A copy: kgo fills in what it sends, and a batch may be sent
			// again.
			block = append(block, *o)
			r := &block[len(block)-1]
			r.Context = nil
			records = append(records, r)
		}
	}
	return records
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// nonce is a random name for an ownership, unique over all of them.
func nonce() string { return strconv.FormatUint(rand.Uint64(), 36) }

// sleep waits, and reports false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// join adds a cause to an error where there is one.
func join(err, cause error) error {
	if cause == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w (%w)", err, cause)
}

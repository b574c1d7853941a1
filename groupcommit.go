package persistence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/internal/cursor"
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
//	      committed offset; while it is pending, replace the producer; where
//	      the metadata can't tell, look at what it produced
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
	// fate looks up what became of a record of an earlier transaction.
	fate func(ctx context.Context, r *kgo.Record) (cursor.Fate, error)
	// doubtful reports, once, that a request of the last transactions got no
	// answer at some try, so that it may still arrive.
	doubtful func() bool
}

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
	inputID    string // the input topic's id, for the commits
	inherited  string // the commit's metadata at the takeover
	fatal      func(error)
	inFlight   atomic.Int64
	exclusive  gate  // held during a transaction, and by an offset commit outside of one
	end        int64 // the snapshot partition's end, as far as known
	sequence   int64
	needsRenew error // why the producer must be replaced before it is used
	rivals     rivalry
	forgetful  bool // the committed offset may lack what a transaction committed
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
		// An old coordinator (seen with Kafka 3.3 and 3.9) refuses a late
		// TxnOffsetCommit for its epoch, but forgets the one that is pending
		// meanwhile: the offset then stays behind what was committed.
		g.forgetful = true
		g.offsets.raiseDoubt()
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
			g.trace.Transaction(TransactionInfo{Topic: g.topic, Partition: g.partition, Generation: t.generation, Writes: len(batch),
				Records: countRecords(batch), Offset: t.offset, Attempts: t.attempts, Took: time.Since(began), Err: t.err})
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
		t.generation, t.offset, last = a.generation, a.pos.offset, a.err
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

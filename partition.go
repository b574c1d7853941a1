package persistence

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/internal/format"
)

// Snapshot is one key's state.
type Snapshot struct {
	Key   []byte // required
	Value []byte // nil deletes the key
	// SourceOffset is the offset of the last input event folded into Value,
	// written into a header. Negative: not known, and no header is written.
	SourceOffset int64
	// Headers are the user's own. Names that begin with "persistence." are
	// taken.
	Headers []kgo.RecordHeader

	// LogOffset and Timestamp are where and when the snapshot was written.
	// Recover fills them in; a write ignores them.
	LogOffset int64
	Timestamp time.Time

	rebuild bool // a tombstone of a rebuild
}

// Batch is what one transaction makes visible together, or not at all.
type Batch struct {
	Snapshots []Snapshot
	// Outputs are records for any topics, partitioned as the user's kgo
	// options say. They are copied before they are sent.
	Outputs []*kgo.Record
	// Through is the input record up to which this batch completes the
	// input, as by Advance, but only if the batch commits. May be nil.
	Through *kgo.Record
}

// Partition is one ownership: one stay of one input partition at this member,
// from the takeover until it is given up. A handle that outlives its ownership
// is refused, even if the same member owns the partition again by then.
//
// All methods may be called by any number of goroutines at once, save that the
// records of one partition make sense only to one Poll after another.
type Partition struct {
	m   *Module
	id  int32
	log *slog.Logger

	queue   *queue
	commit  *groupCommit
	offsets offsets
	inbox   inbox

	recovery atomic.Pointer[RecoveryInfo] // the present or last one
	moved    atomic.Int64                 // when the handler last made progress, in nanoseconds
	writes   atomic.Int32                 // that the handler waits for
	stuck    atomic.Pointer[HandlerStuckError]
	inputEnd int64    // at the takeover
	rebuild  [][]byte // keys to delete before the handler starts

	// ctx is the ownership's own: its I/O runs under it until it is over.
	// takeoverCtx ends as soon as the ownership is to be given up, and
	// handlerCtx when the handler must not go on.
	ctx         context.Context
	cancel      context.CancelCauseFunc
	takeoverCtx context.Context
	abandon     context.CancelCauseFunc
	handlerCtx  context.Context
	stopHandler context.CancelCauseFunc

	initialised chan struct{} // closed: InitProducerID is done, or given up on
	located     chan struct{} // closed: kgo has fetched the committed offset
	handlerDone chan struct{} // closed: the handler returned, or never will run
	loopDone    chan struct{} // closed: the group commit ended, or never began
	over        chan struct{} // closed: the ownership is over and nothing of it is left

	initOnce sync.Once
	activate sync.Once
	mu       struct {
		sync.Mutex
		state    state
		reason   error     // why it is given up, from revoking on
		producer *producer // nil before the takeover
		kgoAt    int64     // where kgo starts to consume by itself
		resume   position
		looping  bool
		polled   bool // the handler has asked for events
	}
}

type state int

const (
	takingOver state = iota
	owned
	revoking // Poll says so, writes still work
	dead
)

func (m *Module) newPartition(id int32) *Partition {
	p := &Partition{
		m: m, id: id,
		log:         m.cfg.logger.With("topic", m.input.Name, "partition", id),
		queue:       newQueue(),
		inbox:       inbox{wake: make(chan struct{}, 1)},
		initialised: make(chan struct{}),
		located:     make(chan struct{}),
		handlerDone: make(chan struct{}),
		loopDone:    make(chan struct{}),
		over:        make(chan struct{}),
	}
	p.mu.kgoAt = noPosition
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	p.takeoverCtx, p.abandon = context.WithCancelCause(p.ctx)
	p.handlerCtx, p.stopHandler = context.WithCancelCause(p.ctx)
	return p
}

// Topic returns the input topic.
func (p *Partition) Topic() string { return p.m.input.Name }

// ID returns the partition number, of the input and the snapshot topic alike.
func (p *Partition) ID() int32 { return p.id }

// Revoked returns a channel that is closed when the partition is to be given up,
// for whatever reason, as Poll says. It is for a handler that waits for
// something else than Poll.
func (p *Partition) Revoked() <-chan struct{} { return p.takeoverCtx.Done() }

// Resume returns the input offset that this ownership resumed from.
func (p *Partition) Resume() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.resume.offset
}

// Write commits snapshots, all in one transaction together with the current
// offset advance. It blocks until the transaction has committed, and then
// returns nil; a *WriteError says why it has not. Writes that wait at the same
// time share a transaction. The order of one caller's writes is kept.
//
// The bytes are the library's until Write returns; when it returns with
// ErrUnknownOutcome because ctx ended, they must not be changed later either.
//
// ctx bounds only the caller's wait: a write whose caller has gone may still
// commit, and then the error is ErrUnknownOutcome.
//
// Errors, besides ctx's: ErrRecordTooLarge; ErrRevoked, ErrLost, ErrFenced and
// ErrClosed when the ownership is over; ErrNotJoined; ErrProducerConflict;
// ErrUnknownOutcome. Without ErrUnknownOutcome, nothing was written.
func (p *Partition) Write(ctx context.Context, snapshots ...Snapshot) error {
	return p.Apply(ctx, Batch{Snapshots: snapshots})
}

// Delete removes a key by writing a tombstone, as Write does. source is the
// offset of the last event folded in.
func (p *Partition) Delete(ctx context.Context, key []byte, source int64) error {
	return p.Apply(ctx, Batch{Snapshots: []Snapshot{{Key: key, SourceOffset: source}}})
}

// Apply commits a batch in one transaction: snapshots, outputs and input offset
// become visible to read_committed readers together or not at all. Otherwise it
// is like Write. A batch is never split over transactions, whatever its size;
// one with nothing but Through commits that offset,
// and an empty one does nothing.
func (p *Partition) Apply(ctx context.Context, b Batch) error {
	p.writes.Add(1)
	defer func() {
		p.moves()
		p.writes.Add(-1)
	}()
	w, err := p.newWrite(b)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil && w.records() == 0 {
		if err = p.open(); err == nil && w.through.offset != noPosition {
			p.offsets.advance(w.through)
			err = p.m.commitOne(ctx, p)
		}
		return p.writeError(err)
	}
	if err == nil {
		err = p.queue.push(w)
	}
	if err != nil {
		return p.writeError(err)
	}
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
	}
	if p.queue.withdraw(w) {
		return p.writeError(fmt.Errorf("the caller's context ended before a transaction took it: %w", context.Cause(ctx)))
	}
	if p.handlerCtx.Err() != nil {
		// The handler's context ends with the ownership, whose goroutine
		// answers then, and knows more than that.
		return <-w.done
	}
	select {
	case err := <-w.done:
		return err
	default:
		return p.writeError(fmt.Errorf("%w: the caller's context ended while its transaction was under way: %w", ErrUnknownOutcome, context.Cause(ctx)))
	}
}

func (p *Partition) writeError(err error) error {
	if err == nil {
		return nil
	}
	return &WriteError{Topic: p.m.input.Name, Partition: p.id, Generation: max(p.m.member().Generation, 0), Err: err}
}

// ownHeaders bounds what the library's own headers add to a snapshot.
const ownHeaders = 200

// newWrite checks a batch.
func (p *Partition) newWrite(b Batch) (*write, error) {
	w := &write{snapshots: b.Snapshots, outputs: b.Outputs, through: position{offset: noPosition}, done: make(chan error, 1)}
	if len(b.Snapshots) > 0 && p.m.cfg.stateless {
		return nil, ErrStateless
	}
	for i := range b.Snapshots {
		s := &b.Snapshots[i]
		if len(s.Key) == 0 {
			return nil, fmt.Errorf("snapshot %d has no key; a compacted topic needs one", i)
		}
		for _, h := range s.Headers {
			if format.Reserved(h.Key) {
				return nil, fmt.Errorf("snapshot %d has a header %q, which is the library's own", i, h.Key)
			}
		}
		n := len(s.Key) + len(s.Value) + headerSize(s.Headers) + ownHeaders
		if err := p.m.checkSize(p.m.cfg.snapshotTopic, n); err != nil {
			return nil, fmt.Errorf("snapshot %d, key %.64q: %w", i, s.Key, err)
		}
		w.bytes += n
	}
	for i, r := range b.Outputs {
		switch {
		case r == nil:
			return nil, fmt.Errorf("output %d is nil", i)
		case r.Topic == "":
			return nil, fmt.Errorf("output %d has no topic", i)
		case r.Topic == p.m.cfg.snapshotTopic:
			return nil, fmt.Errorf("output %d goes to the snapshot topic %s; use Snapshots", i, r.Topic)
		}
		n := len(r.Key) + len(r.Value) + headerSize(r.Headers)
		if err := p.m.checkSize(r.Topic, n); err != nil {
			return nil, fmt.Errorf("output %d: %w", i, err)
		}
		w.bytes += n
	}
	if b.Through != nil {
		if err := p.mine(b.Through); err != nil {
			return nil, fmt.Errorf("the batch's Through: %w", err)
		}
		w.through = after(b.Through)
	}
	return w, nil
}

func (p *Partition) mine(r *kgo.Record) error {
	if r.Topic != p.m.input.Name || r.Partition != p.id {
		return fmt.Errorf("record of partition %d of %s given to partition %d of %s", r.Partition, r.Topic, p.id, p.m.input.Name)
	}
	return nil
}

// Advance states that everything up to and including this input record is done:
// its effects are persisted, or it has none. The next transaction carries the
// offset, or the next CommitInterval. Advance does not block and does not wait;
// it never goes back, so that an earlier record changes nothing. After the
// ownership is over it returns why, and has no effect.
func (p *Partition) Advance(r *kgo.Record) error {
	if err := p.mine(r); err != nil {
		return fmt.Errorf("persistence: Advance: %w", err)
	}
	if err := p.open(); err != nil {
		return err
	}
	p.offsets.advance(after(r))
	p.moves()
	return nil
}

// Poll returns the partition's next input records, in order, and blocks until
// there are some. When the partition is to be given up it returns ErrRevoked at
// once: flush what must be flushed (writes still work, for RevokeTimeout at
// most) and return from the handler. Other errors: ErrLost, ErrFenced and
// ErrClosed when the ownership is over, ErrInput when the input cannot be read
// on, and ctx's.
//
// The first Poll starts the fetching: before it, nothing is fetched. The
// records are the caller's.
func (p *Partition) Poll(ctx context.Context) ([]*kgo.Record, error) {
	p.activate.Do(func() {
		p.mu.Lock()
		p.mu.polled = true
		p.mu.Unlock()
		p.m.onPoller(func() { p.m.startFetching(p) })
	})
	for {
		if err := p.giveUpReason(); err != nil {
			return nil, err
		}
		records, err := p.inbox.take(p)
		p.moves()
		if len(records) > 0 || err != nil {
			return records, err
		}
		select {
		case <-p.inbox.wake:
		case <-p.takeoverCtx.Done():
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// open is nil while the ownership may write, and why not otherwise.
func (p *Partition) open() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.state == dead {
		return p.mu.reason
	}
	return nil
}

// giveUpReason is nil until the ownership is to be given up.
func (p *Partition) giveUpReason() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.reason
}

func (p *Partition) producer() *producer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.producer
}

// setProducer installs a producer, unless the ownership is over.
func (p *Partition) setProducer(next *producer) bool {
	p.mu.Lock()
	if p.mu.state != dead {
		p.mu.producer = next
		p.mu.Unlock()
		return true
	}
	p.mu.Unlock()
	next.close()
	return false
}

// beginRevoke makes Poll say that the partition is to be given up, and ends a
// takeover or recovery at once.
func (p *Partition) beginRevoke(why error) {
	p.mu.Lock()
	if p.mu.state == dead || p.mu.state == revoking {
		p.mu.Unlock()
		return
	}
	p.mu.state, p.mu.reason = revoking, why
	p.abandon(why)
	p.mu.Unlock()
}

// kill ends the ownership: every later call is refused, and whatever waits is
// answered. Nothing more is sent. It may be called by any goroutine and any
// number of times; the first reason stays. over is closed when nothing of it is
// left.
func (p *Partition) kill(why error) {
	p.mu.Lock()
	if p.mu.state == dead {
		p.mu.Unlock()
		return
	}
	p.mu.state, p.mu.reason = dead, why
	looping := p.mu.looping
	p.cancel(why) // before anybody is told the reason
	p.mu.Unlock()

	for _, w := range p.queue.clear(why) {
		w.done <- p.writeError(why)
	}
	if !looping {
		close(p.loopDone)
	}
	p.inbox.drop()
	go func() {
		<-p.loopDone
		if pr := p.producer(); pr != nil {
			pr.close()
		}
		close(p.over)
	}()
}

// startLoop starts the group commit, unless the ownership is over or to be
// given up.
func (p *Partition) startLoop() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.state != takingOver {
		return false
	}
	p.mu.state, p.mu.looping = owned, true
	go func() {
		defer close(p.loopDone)
		p.commit.run(p.ctx)
	}()
	return true
}

// unanswered is how many writes are queued or in flight.
func (p *Partition) unanswered() int {
	p.mu.Lock()
	looping := p.mu.looping
	p.mu.Unlock()
	if !looping {
		return p.queue.len()
	}
	return p.queue.len() + int(p.commit.inFlight.Load())
}

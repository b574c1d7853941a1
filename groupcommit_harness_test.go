package persistence

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/internal/cursor"
	"github.com/kafkafence/persistence/internal/format"
	"github.com/kafkafence/persistence/internal/wire"
)

// ledger is the outside world of one group commit: a member, a coordinator and
// a log, all in memory. It fails the test where the real ones would be used
// wrongly: a transaction begun over an open one or with a producer that failed,
// an end with a part of the batch, calls at the same time.
//
// The on... funcs are the script. Each is told how often it was asked before,
// and stands in for what would go wrong; nil, or a nil error, is success.
type ledger struct {
	t testing.TB

	onMember  func(n int)
	onOffset  func(ctx context.Context, n int, m wire.Member) error
	onProduce func(ctx context.Context, n int, records []*kgo.Record) []error
	onEnd     func(ctx context.Context, n int) (landed bool, err error)
	onRenew   func(ctx context.Context, n int) error
	onConfirm func(ctx context.Context, n int, m wire.Member) error
	onLast    func(ctx context.Context, n int) error
	onFate    func(ctx context.Context, r *kgo.Record) (cursor.Fate, error)

	busy atomic.Bool
	mu   struct {
		sync.Mutex
		member    wire.Member
		txn       *openTxn
		spoilt    bool // a call failed and the producer was not renewed since
		doubt     bool
		end       int64 // of the snapshot partition, aborted records and markers included
		metadata  string
		log       []*kgo.Record // committed
		commits   []openTxn     // committed
		offsets   []wire.Member // of each offset commit that was sent
		produced  map[string]int
		why       []error // of each renewal
		calls     []string
		questions map[string]int
	}
}

type openTxn struct {
	pos     *wire.Position
	member  wire.Member
	records []*kgo.Record
	failed  bool
	outside bool // no transaction: an offset commit to confirm the ownership
}

func (tx *openTxn) keys() []string { return keysOf(tx.records) }

func keysOf(records []*kgo.Record) []string {
	keys := []string{}
	for _, r := range records {
		keys = append(keys, string(r.Key))
	}
	return keys
}

func newLedger(t testing.TB) *ledger {
	l := &ledger{t: t}
	l.mu.member = wire.Member{Group: "group", ID: "member", Generation: 1}
	l.mu.produced = make(map[string]int)
	l.mu.questions = make(map[string]int)
	return l
}

// asked counts a call; record makes it part of calls.
func (l *ledger) asked(what string, record bool) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if record {
		l.mu.calls = append(l.mu.calls, what)
	}
	l.mu.questions[what]++
	return l.mu.questions[what] - 1
}

// alone checks that the calls that are promised to come one at a time do.
func (l *ledger) alone() func() {
	if !l.busy.CompareAndSwap(false, true) {
		l.t.Error("two calls of the broker at the same time")
	}
	return func() { l.busy.Store(false) }
}

// spoil notes a failure: the producer is good for nothing until it is renewed.
func (l *ledger) spoil(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.spoilt = true
	if l.mu.txn != nil {
		l.mu.txn.failed = true
	}
	return err
}

func (l *ledger) member() wire.Member {
	if n := l.asked("member", false); l.onMember != nil {
		l.onMember(n)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.member
}

func (l *ledger) begin() error {
	defer l.alone()()
	l.asked("begin", true)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.txn != nil {
		l.t.Error("a transaction was begun over an open one")
	}
	if l.mu.spoilt {
		l.t.Error("a transaction was begun with a producer that had failed")
	}
	l.mu.txn = new(openTxn)
	return nil
}

func (l *ledger) commitOffset(ctx context.Context, m wire.Member, pos wire.Position) error {
	defer l.alone()()
	n := l.asked("offset", true)
	l.mu.Lock()
	l.mu.offsets = append(l.mu.offsets, m)
	if m.ID == "" || m.Generation <= 0 {
		l.t.Errorf("an offset was sent with member %q and generation %d, which no coordinator checks", m.ID, m.Generation)
	}
	if l.mu.txn == nil {
		l.t.Error("an offset was sent outside of a transaction")
	}
	l.mu.Unlock()
	if l.onOffset != nil {
		if err := l.onOffset(ctx, n, m); err != nil {
			if !isOwnershipQuestion(err) {
				l.spoil(err)
			}
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.txn.pos, l.mu.txn.member = &pos, m
	return nil
}

func (l *ledger) produce(ctx context.Context, records []*kgo.Record) []error {
	defer l.alone()()
	n := l.asked("produce", true)
	l.mu.Lock()
	if l.mu.txn == nil || l.mu.txn.pos == nil {
		l.t.Error("records were produced before the offset was accepted")
	}
	for _, r := range records {
		l.mu.produced[string(r.Key)]++
		if r.Topic == "state" {
			r.Offset = l.mu.end
			l.mu.end++
		}
	}
	l.mu.txn.records = append(l.mu.txn.records, records...)
	l.mu.Unlock()
	if l.onProduce != nil {
		if errs := l.onProduce(ctx, n, records); len(errs) > 0 {
			_ = l.spoil(errs[0])
			return errs
		}
	}
	return nil
}

func (l *ledger) endTxn(ctx context.Context) error {
	defer l.alone()()
	n := l.asked("end", true)
	landed, err := true, error(nil)
	if l.onEnd != nil {
		landed, err = l.onEnd(ctx, n)
	}
	l.mu.Lock()
	tx := l.mu.txn
	if tx == nil && !landed && err != nil {
		l.mu.Unlock()
		return l.spoil(err) // it was aborted meanwhile
	}
	if tx == nil || tx.pos == nil || tx.failed {
		l.t.Errorf("a transaction was to be committed that is not whole: %+v", tx)
	}
	if landed {
		l.land(tx)
		l.mu.txn = nil
	}
	l.mu.Unlock()
	if isProducerFenced(err) {
		l.abort() // whoever took the epoch ended what was open under the old one
	}
	if err != nil {
		return l.spoil(err)
	}
	return nil
}

// land commits. The caller holds the lock.
func (l *ledger) land(tx *openTxn) {
	for _, r := range tx.records {
		if r.Topic == "state" {
			l.mu.end++ // the marker
			break
		}
	}
	l.mu.log = append(l.mu.log, tx.records...)
	l.mu.commits = append(l.mu.commits, *tx)
	l.mu.metadata = tx.pos.Metadata
	meta, ok := format.ParseMetadata(tx.pos.Metadata)
	if !ok || meta.Owner == "" || meta.Transaction == "" {
		l.t.Errorf("the metadata %q does not name the owner and the transaction", tx.pos.Metadata)
	}
	if meta.End > l.mu.end {
		l.t.Errorf("a commit vouches for offsets below %d of a log that ends at %d", meta.End, l.mu.end)
	}
}

func (l *ledger) renew(ctx context.Context, why error) error {
	defer l.alone()()
	n := l.asked("renew", true)
	l.mu.Lock()
	l.mu.why = append(l.mu.why, why)
	l.mu.Unlock()
	if why == nil {
		l.t.Error("the producer was replaced for no reason")
	}
	if l.onRenew != nil {
		if err := l.onRenew(ctx, n); err != nil {
			return l.spoil(err)
		}
	}
	l.abort()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.spoilt = false
	return nil
}

// abort ends the open transaction, as the next InitProducerID or the
// coordinator's timeout does.
func (l *ledger) abort() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.txn != nil && len(l.mu.txn.records) > 0 {
		l.mu.end++ // the marker
	}
	l.mu.txn = nil
}

func (l *ledger) confirm(ctx context.Context, m wire.Member, pos wire.Position) error {
	defer l.alone()()
	n := l.asked("confirm", true)
	if m.ID == "" || m.Generation <= 0 {
		l.t.Errorf("an offset was sent with member %q and generation %d, which no coordinator checks", m.ID, m.Generation)
	}
	if l.onConfirm != nil {
		if err := l.onConfirm(ctx, n, m); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.metadata = pos.Metadata
	l.mu.commits = append(l.mu.commits, openTxn{pos: &pos, member: m, outside: true})
	return nil
}

func (l *ledger) lastCommit(ctx context.Context) (string, error) {
	defer l.alone()()
	n := l.asked("last", true)
	if l.onLast != nil {
		if err := l.onLast(ctx, n); err != nil {
			return "", err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.txn != nil && l.mu.txn.pos != nil {
		return "", kerr.UnstableOffsetCommit
	}
	return l.mu.metadata, nil
}

// fate says that the record is compacted away, unless a test knows better.
func (l *ledger) fate(ctx context.Context, r *kgo.Record) (cursor.Fate, error) {
	if l.onFate != nil {
		return l.onFate(ctx, r)
	}
	return cursor.Gone, nil
}

func (l *ledger) doubtful() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.mu.doubt
	l.mu.doubt = false
	return was
}

func (l *ledger) setDoubt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.doubt = true
}

func (l *ledger) setMember(id string, generation int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.member.ID, l.mu.member.Generation = id, generation
}

// foreignCommit is another owner's commit of the group's offset.
func (l *ledger) foreignCommit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.metadata = format.Metadata{End: l.mu.end, Owner: "another", Transaction: "1"}.String()
}

func (l *ledger) calls() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.mu.calls)
}

func (l *ledger) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.questions[what]
}

func (l *ledger) committed() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return keysOf(l.mu.log)
}

func (l *ledger) commits() []openTxn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.mu.commits)
}

// batches are the keys of each committed transaction.
func (l *ledger) batches() [][]string {
	var all [][]string
	for _, c := range l.commits() {
		if !c.outside {
			all = append(all, c.keys())
		}
	}
	return all
}

// rig is a partition that is owned and writes to a ledger.
type rig struct {
	*ledger
	*Partition
	traced struct {
		sync.Mutex
		transactions []TransactionInfo
		survived     []FenceInfo
		fenced       []FenceInfo
	}
	fatal struct {
		sync.Mutex
		errs []error
	}
}

const (
	testPatience  = 10 * time.Second
	testFenceWait = 3 * time.Second
)

func newRig(t testing.TB, tweak ...func(*groupCommit)) *rig {
	cfg := defaults()
	cfg.snapshotTopic = "state"
	cfg.logger = slog.New(slog.DiscardHandler)
	// A client that was never made has no group and no goroutines; the ledger
	// is the member.
	m := &Module{cfg: cfg, consumer: new(kgo.Client), input: wire.Topic{Name: "in"}, snapshot: wire.Topic{Name: "state"}}
	r := &rig{ledger: newLedger(t), Partition: m.newPartition(0)}
	r.commit = &groupCommit{
		topic: "in", partition: 0, snapshots: "state",
		maxWrites: cfg.maxWrites, maxBytes: cfg.maxBytes,
		patience: testPatience, fenceWait: testFenceWait,
		queue: r.queue, offsets: &r.offsets, log: r.Partition.log, nonce: "nonce", inherited: "inherited", exclusive: newGate(),
		broker: broker{
			member: r.ledger.member, open: r.Partition.open, begin: r.begin, commitOffset: r.commitOffset,
			produce: r.produce, end: r.endTxn, renew: r.renew, confirm: r.confirm, lastCommit: r.lastCommit, fate: r.fate, doubtful: r.doubtful,
		},
		trace: &Trace{
			Transaction: func(i TransactionInfo) {
				r.traced.Lock()
				defer r.traced.Unlock()
				r.traced.transactions = append(r.traced.transactions, i)
			},
			FenceSurvived: func(i FenceInfo) {
				r.traced.Lock()
				defer r.traced.Unlock()
				r.traced.survived = append(r.traced.survived, i)
			},
			Fenced: func(i FenceInfo) {
				r.traced.Lock()
				defer r.traced.Unlock()
				r.traced.fenced = append(r.traced.fenced, i)
			},
		},
		fatal: func(err error) {
			r.fatal.Lock()
			r.fatal.errs = append(r.fatal.errs, err)
			r.fatal.Unlock()
			r.kill(err)
		},
	}
	for _, f := range tweak {
		f(r.commit)
	}
	r.ledger.mu.metadata = "inherited"
	r.offsets.start(position{0, -1})
	require.True(t, r.startLoop())
	t.Cleanup(func() {
		r.kill(ErrClosed)
		<-r.over
	})
	return r
}

func (r *rig) fatals() []error {
	r.fatal.Lock()
	defer r.fatal.Unlock()
	return slices.Clone(r.fatal.errs)
}

func (r *rig) survived() []FenceInfo {
	r.traced.Lock()
	defer r.traced.Unlock()
	return slices.Clone(r.traced.survived)
}

func (r *rig) fenced() []FenceInfo {
	r.traced.Lock()
	defer r.traced.Unlock()
	return slices.Clone(r.traced.fenced)
}

func (r *rig) transactions() []TransactionInfo {
	r.traced.Lock()
	defer r.traced.Unlock()
	return slices.Clone(r.traced.transactions)
}

func input(offset int64) *kgo.Record {
	return &kgo.Record{Topic: "in", Partition: 0, Offset: offset, LeaderEpoch: 7}
}

// put is one write of keys; a through of -1 is none.
func (r *rig) put(ctx context.Context, through int64, keys ...string) error {
	b := Batch{}
	for _, k := range keys {
		b.Snapshots = append(b.Snapshots, Snapshot{Key: []byte(k), Value: []byte("v"), SourceOffset: 1})
	}
	if through >= 0 {
		b.Through = input(through)
	}
	return r.Apply(ctx, b)
}

func (r *rig) write(keys ...string) error { return r.put(context.Background(), -1, keys...) }

// outcome is a write that goes on by itself.
type outcome struct{ err chan error }

func (r *rig) start(ctx context.Context, through int64, keys ...string) *outcome {
	o := &outcome{make(chan error, 1)}
	go func() { o.err <- r.put(ctx, through, keys...) }()
	synctest.Wait() // it is queued now, or taken
	return o
}

// answered reports whether the write has returned.
func (o *outcome) answered() bool {
	synctest.Wait()
	return len(o.err) == 1
}

// gate holds the first transaction at its end until it is opened, so that what
// is written meanwhile queues.
func (r *rig) gate(t testing.TB) (open func()) {
	hold := make(chan struct{})
	r.onEnd = func(ctx context.Context, n int) (bool, error) {
		if n == 0 {
			<-hold
		}
		return true, nil
	}
	first := r.start(context.Background(), -1, "gate")
	require.False(t, first.answered())
	return func() {
		close(hold)
		require.NoError(t, <-first.err)
	}
}

// certainlyNot asserts an error that promises that nothing was written.
func certainlyNot(t testing.TB, err error) {
	t.Helper()
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrUnknownOutcome)
	var we *WriteError
	require.ErrorAs(t, err, &we)
	require.Equal(t, "in", we.Topic)
}

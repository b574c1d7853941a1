package persistence

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Option configures New. Options are applied in order; a later one replaces an
// earlier one, except Kafka, which adds.
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

type config struct {
	kafka []kgo.Opt
	user  userOptions // read from kafka

	snapshotTopic    string
	stateless        bool
	prefix           string
	commitInterval   time.Duration
	maxWrites        int
	maxBytes         int
	stallTimeout     time.Duration
	recoveries       int
	revokeTimeout    time.Duration // 0: half of the shorter of rebalance and session timeout
	txnTimeout       time.Duration
	create           bool
	replication      int16
	topicConfigs     map[string]string
	onMismatch       []mismatchChoice
	recoveryMaxBytes int
	uncopied         bool
	handlerTimeout   time.Duration // 0: none
	stuckChoice      StuckChoice
	watched          bool // HandlerTimeout was given
	logger           *slog.Logger
	trace            Trace
}

func defaults() config {
	return config{
		commitInterval:   5 * time.Second,
		maxWrites:        256,
		maxBytes:         8 << 20,
		stallTimeout:     3 * time.Minute,
		recoveries:       8,
		recoveryMaxBytes: 32 << 20,
		txnTimeout:       time.Minute,
		replication:      -1,
		logger:           slog.Default(),
	}
}

// Kafka gives the franz-go options of the service: brokers, TLS, SASL, hooks,
// balancers, fetch sizes, partition callbacks. Required, with at least
// kgo.SeedBrokers, kgo.ConsumerGroup and kgo.ConsumeTopics with the one input
// topic. They go to the consumer and to the producers alike; hooks see every
// client that the module makes.
//
// Options that would break the fence are refused by New by name: an auto-commit
// or transactional id of one's own, read_uncommitted, acks other than all,
// direct partitions, regular expressions, share groups. The module sets
// DisableAutoCommit and read_committed itself, turns lingering off in its
// producers (a write goes at once), and fetches with a max wait of 500 ms
// unless kgo.FetchMaxWait says otherwise. The user's own partition callbacks are
// called after the module's.
//
// kgo.ConsumeStartOffset (or ConsumeResetOffset) says where a partition starts
// that has neither a committed offset nor snapshots: its start (the default),
// its end, an exact offset or a time; say AtStart or AtEnd, since an offset that
// says neither is kgo's end. A position that has fallen out of the log
// is never reset: it ends the ownership with ErrInput.
func Kafka(opts ...kgo.Opt) Option {
	return option(func(c *config) { c.kafka = append(c.kafka, opts...) })
}

// SnapshotTopic names the compacted topic that holds the snapshots. Required,
// save with Stateless. It must have as many partitions as the input topic, and
// cleanup.policy=compact.
func SnapshotTopic(topic string) Option {
	return option(func(c *config) { c.snapshotTopic = topic })
}

// Stateless does without snapshots, in place of SnapshotTopic: for a loop that
// consumes, transforms and produces. Outputs and the input offset are in one
// transaction, under the same fence. There is no state to recover, so Recover and
// snapshots are refused, and only the offset tells what is done: Batch.Through
// must not pass an event whose outputs are not in this batch or an earlier one, and
// the outputs of an event beyond it would be made again after a crash.
func Stateless() Option {
	return option(func(c *config) { c.stateless = true })
}

// HandlerTimeout notices handlers that are stuck: while records wait, a handler
// has for d neither polled, nor advanced, nor had a write under way. At least
// 100 ms; without this option nobody looks, and a stuck handler keeps its partition
// as long as the process lives. A fold that may take long needs a longer d.
// Corresponds to max.poll.interval.ms, which franz-go does not have.
func HandlerTimeout(d time.Duration, then StuckChoice) Option {
	return option(func(c *config) { c.handlerTimeout, c.stuckChoice, c.watched = d, then, true })
}

// TransactionalIDPrefix is what the producers' transactional ids begin with:
// "PREFIX-snapshot-PARTITION". Required. It is like a group id: one for each
// service, the same for all its members and all its releases, and used by
// nobody else on the cluster. ACLs need Write and Describe on
// TransactionalId PREFIX-snapshot-*. Corresponds to transactional.id.
func TransactionalIDPrefix(prefix string) Option {
	return option(func(c *config) { c.prefix = prefix })
}

// CommitInterval is how often offsets that no transaction has carried are
// committed, for all partitions of the member in one request. At least 10 ms;
// the default is 5 s. Corresponds to auto.commit.interval.ms.
func CommitInterval(d time.Duration) Option {
	return option(func(c *config) { c.commitInterval = d })
}

// MaxWritesPerTransaction bounds how many records one transaction
// carries. One Write, Delete or Apply is never split, so a larger one goes
// alone. At least 1; the default is 256. Offset advances do not count.
func MaxWritesPerTransaction(n int) Option {
	return option(func(c *config) { c.maxWrites = n })
}

// MaxBytesPerTransaction bounds the bytes of keys, values and headers that one
// transaction carries, under the same rule as MaxWritesPerTransaction. At
// least 1; the default is 8 MiB.
func MaxBytesPerTransaction(n int) Option {
	return option(func(c *config) { c.maxBytes = n })
}

// RecoveryStallTimeout is how long a recovery may stand still before it fails
// with a *RecoveryStalledError. Each step forward restarts it, and time spent in
// the receiver does not count. It should exceed the longest transaction timeout
// of whoever writes to the snapshot topic. At least 1 ms; the default is 3 min.
func RecoveryStallTimeout(d time.Duration) Option {
	return option(func(c *config) { c.stallTimeout = d })
}

// RecoveryConcurrency bounds how many partitions recover at the same time; of
// those that wait the smallest goes first. At least 1; the default is 8.
func RecoveryConcurrency(n int) Option {
	return option(func(c *config) { c.recoveries = n })
}

// RecoveryMaxBytes bounds what all recoveries of the module together ask brokers
// for and have not delivered yet. Those that run have equal shares, and what was
// asked for under a larger share stays until it is delivered, so that just after
// others have started it may be half as much again. A batch that is larger than a
// share is read all the same, since the broker returns at least one, and
// compressed batches grow when they are decoded, one after another. At least 256
// KiB for each of RecoveryConcurrency; the default is 32 MiB.
func RecoveryMaxBytes(n int) Option {
	return option(func(c *config) { c.recoveryMaxBytes = n })
}

const minRecoveryBytes = 256 << 10

// fetchBytes is how much one fetch of a recovery asks for while this many run. A
// share holds one fetch that is under way, one that is being decoded, and about as
// much decoded.
func (c *config) fetchBytes(running int) int32 {
	return int32(min(c.recoveryMaxBytes/max(running, 1)/3, 16<<20))
}

// UncopiedSnapshots makes Recover hand over slices of the fetched batches
// instead of copies. It saves an allocation and a copy for each snapshot, and
// suits a receiver that decodes the bytes and drops them: one that keeps a
// slice keeps the whole batch in memory.
func UncopiedSnapshots() Option {
	return option(func(c *config) { c.uncopied = true })
}

// RevokeTimeout is how long the handlers of revoked partitions, all of them
// together, have to flush and return, from the moment that the group asks. It
// must be shorter than the group's rebalance timeout and session timeout
// (kgo.RebalanceTimeout, kgo.SessionTimeout), since the group waits meanwhile;
// the default is half of the shorter one. What is not flushed by then is
// refused, and processed again by the next owner.
func RevokeTimeout(d time.Duration) Option {
	return option(func(c *config) { c.revokeTimeout = d })
}

// TransactionTimeout is when the broker aborts a transaction on its own, and
// also how long a write is retried before it fails. At least 1 s and at most the
// broker's transaction.max.timeout.ms; the default is 1 min. Corresponds to
// transaction.timeout.ms.
func TransactionTimeout(d time.Duration) Option {
	return option(func(c *config) { c.txnTimeout = d })
}

// CreateSnapshotTopic makes Run create the snapshot topic if it is missing,
// with the partition count of the input topic, cleanup.policy=compact, and
// this replication factor (-1: the cluster's default). The configs are the
// topic's further settings. Without this option a missing topic is an error.
func CreateSnapshotTopic(replication int16, configs map[string]string) Option {
	return option(func(c *config) { c.create, c.replication, c.topicConfigs = true, replication, configs })
}

// OnMismatch says what a takeover does when the committed offset, the snapshots
// and the input do not agree; each Mismatch says which choices it has in the
// error, and which is the default: Fail wherever events or snapshots would be
// lost, Resume for OffsetMissing, Accept for OffsetBehind. Whatever the choice,
// it is logged, and told to Trace.Mismatch.
//
// Set anything else than the default for one deployment, once the cause has been
// dealt with: the first commit of the new owner makes everything agree again.
func OnMismatch(m Mismatch, c Choice) Option {
	return option(func(cfg *config) { cfg.onMismatch = append(cfg.onMismatch, mismatchChoice{m, c}) })
}

type mismatchChoice struct {
	mismatch Mismatch
	choice   Choice
}

// choice is what to do about a mismatch.
func (c *config) choice(m Mismatch) Choice {
	for _, o := range slices.Backward(c.onMismatch) {
		if o.mismatch == m {
			return o.choice
		}
	}
	return mismatches[m].choices[0]
}

// Logger receives what an operator wants to know: Info for changes of
// ownership, Warn for what was survived, Error for what needs a person. The
// default is slog.Default().
func Logger(l *slog.Logger) Option {
	return option(func(c *config) { c.logger = l })
}

// WithTrace sets the functions that follow what the module does.
func WithTrace(t Trace) Option {
	return option(func(c *config) { c.trace = t })
}

// newConfig applies the options and reports all faults together.
func newConfig(opts []Option) (config, error) {
	c := defaults()
	for _, o := range opts {
		if o != nil {
			o.apply(&c)
		}
	}
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	switch err := validTopic(c.snapshotTopic); {
	case c.stateless && c.snapshotTopic != "":
		fault("SnapshotTopic %q: not allowed together with Stateless, which has no snapshots", c.snapshotTopic)
	case c.stateless && c.create:
		fault("CreateSnapshotTopic: not allowed together with Stateless, which has no snapshots")
	case c.stateless:
	case c.snapshotTopic == "":
		fault(`SnapshotTopic "": %w, or Stateless for a service without state`, err)
	case err != nil:
		fault("SnapshotTopic %q: %w", c.snapshotTopic, err)
	}
	if c.prefix == "" {
		fault(`TransactionalIDPrefix "": a name that no other service on the cluster uses is required`)
	}
	if len(c.prefix) > maxPrefix {
		fault("TransactionalIDPrefix of %d characters: at most %d are allowed", len(c.prefix), maxPrefix)
	}
	if c.commitInterval < 10*time.Millisecond {
		fault("CommitInterval %v: at least 10ms is allowed", c.commitInterval)
	}
	if c.maxWrites < 1 {
		fault("MaxWritesPerTransaction %d: at least 1 is allowed", c.maxWrites)
	}
	if c.maxBytes < 1 {
		fault("MaxBytesPerTransaction %d: at least 1 is allowed", c.maxBytes)
	}
	if c.stallTimeout < time.Millisecond {
		fault("RecoveryStallTimeout %v: at least 1ms is allowed", c.stallTimeout)
	}
	if c.recoveries < 1 {
		fault("RecoveryConcurrency %d: at least 1 is allowed", c.recoveries)
	}
	if c.recoveryMaxBytes < minRecoveryBytes*c.recoveries {
		fault("RecoveryMaxBytes %d: at least %d is allowed, %d for each of the RecoveryConcurrency of %d", c.recoveryMaxBytes, minRecoveryBytes*c.recoveries, minRecoveryBytes, c.recoveries)
	}
	for _, o := range c.onMismatch {
		if !o.mismatch.known() {
			fault("OnMismatch(%s, %v): there is no such mismatch", o.mismatch.String(), o.choice)
		} else if allowed := mismatches[o.mismatch].choices; !slices.Contains(allowed, o.choice) {
			fault("OnMismatch(%s, %v): %v are allowed", o.mismatch.String(), o.choice, allowed)
		}
	}
	if c.txnTimeout < time.Second || c.txnTimeout > maxTransactionTimeout {
		fault("TransactionTimeout %v: at least 1s and at most %v are allowed, and at most the broker's transaction.max.timeout.ms", c.txnTimeout, maxTransactionTimeout)
	}
	if c.create && c.replication != -1 && c.replication < 1 {
		fault("CreateSnapshotTopic replication %d: at least 1 is allowed, or -1 for the cluster's default", c.replication)
	}
	if v, ok := c.topicConfigs["cleanup.policy"]; ok && v != "compact" {
		fault("CreateSnapshotTopic cleanup.policy=%s: only compact is allowed, since anything else deletes state", v)
	}
	if c.watched && c.handlerTimeout < 100*time.Millisecond {
		fault("HandlerTimeout %v: at least 100ms is allowed", c.handlerTimeout)
	}
	if c.stuckChoice != Report && c.stuckChoice != EndRun {
		fault("HandlerTimeout %v: Report and EndRun are allowed", c.stuckChoice)
	}
	if c.logger == nil {
		fault("Logger nil: a *slog.Logger is required; use slog.New(slog.DiscardHandler) for silence")
	}
	user, err := readUserOptions(c.kafka)
	if err != nil {
		faults = append(faults, err)
	} else {
		c.user = user
		limit := min(user.rebalanceTimeout, user.sessionTimeout)
		switch {
		case c.revokeTimeout == 0:
			c.revokeTimeout = limit / 2
		case c.revokeTimeout < 0 || c.revokeTimeout >= limit:
			fault("RevokeTimeout %v: more than 0 and less than %v is allowed, the shorter of the group's rebalance timeout (%v) and session timeout (%v)",
				c.revokeTimeout, limit, user.rebalanceTimeout, user.sessionTimeout)
		}
		if user.topic != "" && user.topic == c.snapshotTopic {
			fault("SnapshotTopic %q: it is the input topic; snapshots need a topic of their own", c.snapshotTopic)
		}
	}
	if len(faults) > 0 {
		return config{}, fmt.Errorf("persistence: the configuration cannot be used:\n%w", errors.Join(faults...))
	}
	return c, nil
}

const (
	maxPrefix = 249
	// What fits the protocol's milliseconds.
	maxTransactionTimeout = math.MaxInt32 * time.Millisecond
)

func validTopic(name string) error {
	switch {
	case name == "":
		return errors.New("a topic name is required")
	case name == "." || name == ".." || len(name) > 249:
		return errors.New(`a topic name has at most 249 characters and is not "." or ".."`)
	}
	for _, r := range name {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-' {
			return fmt.Errorf("%q is not allowed in a topic name, only letters, digits, '.', '_' and '-'", r)
		}
	}
	return nil
}

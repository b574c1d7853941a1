package persistence

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Condition is what keeps a snapshot partition from being read up to its high
// watermark.
type Condition int

const (
	// ConditionUnknown: none of the others could be made out. The Notes say
	// what was tried.
	ConditionUnknown Condition = iota
	// Readable: nothing does.
	Readable
	// TransactionOpen: a transaction is not over. It ends by itself, at its
	// timeout at the latest.
	TransactionOpen
	// TransactionHanging: a transaction is open on the partition that no
	// coordinator knows, so that nothing will ever end it but an operator.
	TransactionHanging
	// LogTruncated: the log has lost records below the target.
	LogTruncated
	// LeaderUnreachable: the partition has no leader, or it does not answer.
	LeaderUnreachable
)

var conditions = [...]string{"unknown", "readable", "transaction open", "transaction hanging", "log truncated", "leader unreachable"}

func (c Condition) String() string {
	if c < 0 || int(c) >= len(conditions) {
		return fmt.Sprintf("Condition(%d)", int(c))
	}
	return conditions[c]
}

// MarshalText makes a Condition readable in JSON.
func (c Condition) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// Diagnosis is what the brokers said about one partition of a snapshot topic,
// and what follows from it. A number that could not be read is -1, and Notes say
// why.
type Diagnosis struct {
	Condition Condition `json:"condition"`
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`

	// Target is the offset up to which everything has to be readable: a
	// recovery's captured high watermark, or the present one.
	Target           int64 `json:"target"`
	LogStart         int64 `json:"log_start"`
	LastStableOffset int64 `json:"last_stable_offset"`
	HighWatermark    int64 `json:"high_watermark"`

	Leader      int32 `json:"leader"` // broker id
	LeaderEpoch int32 `json:"leader_epoch"`

	// LostFrom is the first offset of what a truncation took, up to Target.
	// Else it is -1.
	LostFrom int64 `json:"lost_from"`
	// TargetEpoch is the leader epoch under which Target was captured, or -1.
	TargetEpoch int32 `json:"target_epoch"`

	// Transactions are those open on the partition, by start offset: the
	// first one holds the last stable offset.
	Transactions []OpenTransaction `json:"transactions,omitempty"`

	// Finding says in a few sentences what was found.
	Finding string `json:"finding"`
	// Advice says what can be done. Commands are for it, with Apache Kafka's
	// own tools; the brokers' address is the one this client was given.
	Advice   string   `json:"advice,omitempty"`
	Commands []string `json:"commands,omitempty"`
	// Notes are look-ups that failed, and so what is not known.
	Notes []string `json:"notes,omitempty"`
}

func (d Diagnosis) String() string {
	var b strings.Builder
	b.WriteString(d.Finding)
	if d.Advice != "" {
		fmt.Fprintf(&b, ". %s", d.Advice)
	}
	for _, c := range d.Commands {
		fmt.Fprintf(&b, ": %s", c)
	}
	if len(d.Notes) > 0 {
		fmt.Fprintf(&b, " (not known: %s)", strings.Join(d.Notes, "; "))
	}
	return b.String()
}

// OpenTransaction is a transaction that is open on a partition.
type OpenTransaction struct {
	// Of the partition's leader (DescribeProducers, KIP-664).
	ProducerID       int64     `json:"producer_id"`
	ProducerEpoch    int16     `json:"producer_epoch"`
	CoordinatorEpoch int32     `json:"coordinator_epoch"`
	StartOffset      int64     `json:"start_offset"` // its first record here
	LastWritten      time.Time `json:"last_written"`

	// Of its coordinator (ListTransactions, DescribeTransactions). Coordinator
	// is -1, and the others empty, where none knows it or could be asked.
	Coordinator     int32         `json:"coordinator"` // broker id
	TransactionalID string        `json:"transactional_id,omitempty"`
	State           string        `json:"state,omitempty"`
	Started         time.Time     `json:"started,omitzero"`
	Timeout         time.Duration `json:"timeout_ns,omitempty"` // transaction.timeout.ms

	// Hanging: every coordinator answered, and none will end it.
	Hanging bool `json:"hanging"`
}

// Expires is when the coordinator aborts the transaction on its own; zero where
// that is not known.
func (t OpenTransaction) Expires() time.Time {
	if t.Started.IsZero() || t.Timeout <= 0 {
		return time.Time{}
	}
	return t.Started.Add(t.Timeout)
}

func (t OpenTransaction) describe(now time.Time) string {
	var b strings.Builder
	if t.TransactionalID != "" {
		fmt.Fprintf(&b, "transactional id %q, ", t.TransactionalID)
	}
	fmt.Fprintf(&b, "producer id %d, epoch %d, open since offset %d, last written at %s",
		t.ProducerID, t.ProducerEpoch, t.StartOffset, t.LastWritten.UTC().Format(time.RFC3339))
	if t.Coordinator >= 0 {
		fmt.Fprintf(&b, ", coordinator broker %d, state %s", t.Coordinator, t.State)
	}
	if at := t.Expires(); !at.IsZero() {
		fmt.Fprintf(&b, ", started at %s, timeout %v", t.Started.UTC().Format(time.RFC3339), t.Timeout)
		if left := at.Sub(now).Round(time.Second); left > 0 {
			fmt.Fprintf(&b, ": it ends by itself in %v", left)
		} else {
			fmt.Fprintf(&b, ": overdue by %v", -left)
		}
	}
	return b.String()
}

// facts are what was looked up about a partition, before anything is made of
// them. What is not known is -1, or a note.
type facts struct {
	brokers   string // for commands
	topic     string
	partition int32
	now       time.Time

	target      int64
	targetEpoch int32
	epochEnd    int64 // where the leader says that the target's epoch ended

	leader      int32
	leaderless  bool // the cluster says that there is none
	leaderEpoch int32
	replicas    []int32
	bounds      bounds
	unreachable error // why the leader could not be asked

	transactions []OpenTransaction
	notes        []string
}

// conclude makes a diagnosis of the facts.
func conclude(f facts) Diagnosis {
	d := Diagnosis{Topic: f.topic, Partition: f.partition, Target: f.target, TargetEpoch: f.targetEpoch,
		LogStart: f.bounds.start, LastStableOffset: f.bounds.stable, HighWatermark: f.bounds.end,
		Leader: f.leader, LeaderEpoch: f.leaderEpoch, LostFrom: -1, Notes: f.notes}
	d.Transactions = slices.SortedFunc(slices.Values(f.transactions), func(a, b OpenTransaction) int { return int(a.StartOffset - b.StartOffset) })
	if d.Target < 0 {
		d.Target = f.bounds.end
	}
	switch {
	case f.bounds.end >= 0 && f.bounds.end < d.Target, f.epochEnd >= 0 && f.epochEnd < d.Target:
		d.truncated(f)
	case f.leaderless:
		d.Condition = LeaderUnreachable
		d.Finding = fmt.Sprintf("the partition has no leader; its replicas are on brokers %v", f.replicas)
		d.Advice = "Bring one of them back"
		d.Commands = []string{f.tool("topics") + " --describe --topic " + f.topic}
	case f.unreachable != nil && f.leader < 0:
		d.Condition = LeaderUnreachable
		d.Finding = fmt.Sprintf("the partition's leader cannot be found out: %v", f.unreachable)
		d.Advice = "See whether the brokers run, and whether this machine reaches them"
	case f.unreachable != nil:
		d.Condition = LeaderUnreachable
		d.Finding = fmt.Sprintf("the partition's leader, broker %d, does not answer: %v", f.leader, f.unreachable)
		d.Advice = "See whether the broker runs, and whether this machine reaches its advertised address"
	case f.bounds.end < 0:
		d.Condition = ConditionUnknown
		d.Finding = "the log's bounds cannot be read"
	case f.bounds.stable >= d.Target:
		d.Condition = Readable
		d.Finding = fmt.Sprintf("the log can be read up to %d", d.Target)
	default:
		d.held(f)
	}
	return d
}

func (d *Diagnosis) truncated(f facts) {
	d.Condition = LogTruncated
	d.LostFrom = f.bounds.end
	if f.epochEnd >= 0 && (d.LostFrom < 0 || f.epochEnd < d.LostFrom) {
		d.LostFrom = f.epochEnd
	}
	d.Finding = fmt.Sprintf("acknowledged records at offsets %d to %d are gone from the log", d.LostFrom, d.Target-1)
	if f.targetEpoch >= 0 && f.leaderEpoch > f.targetEpoch {
		d.Finding += fmt.Sprintf(": they were written under leader epoch %d at the latest, and broker %d leads with epoch %d, without them", f.targetEpoch, f.leader, f.leaderEpoch)
	}
	d.Finding += ". An unclean leader election, a lost disk or a recreated topic does this"
	d.Advice = "Restore the topic from a copy; or start again, and if that is refused, once with OnMismatch(SnapshotsTruncated, Resume), " +
		"which replays the events whose snapshots are gone, or with Rebuild"
}

// held is what to say of a log whose last stable offset is below the target.
func (d *Diagnosis) held(f facts) {
	d.Condition = TransactionOpen
	d.Finding = fmt.Sprintf("a transaction is open and holds the last stable offset at %d", f.bounds.stable)
	if len(d.Transactions) == 0 {
		d.Advice = "It ends by itself at its timeout, unless it hangs. Look it up"
		d.Commands = []string{fmt.Sprintf("%s describe-producers --topic %s --partition %d", f.tool("transactions"), f.topic, f.partition)}
		return
	}
	first := d.Transactions[0]
	d.Finding += ": " + first.describe(f.now)
	if n := len(d.Transactions) - 1; n > 0 {
		d.Finding += fmt.Sprintf(" (and %d more behind it)", n)
	}
	abort := fmt.Sprintf("%s abort --topic %s --partition %d --start-offset %d", f.tool("transactions"), f.topic, f.partition, first.StartOffset)
	switch {
	case first.Hanging:
		d.Condition = TransactionHanging
		d.Finding += ". No coordinator knows it as under way, so that nothing will end it"
		d.Advice = "If this client may describe every transactional id, abort it"
		d.Commands = []string{abort}
	case first.TransactionalID != "":
		d.Advice = "Wait, or see to the service that has this transactional id. To abort it and fence its producer (tools of Kafka 4.1 and newer)"
		d.Commands = []string{fmt.Sprintf("%s forceTerminateTransaction --transactionalId %s", f.tool("transactions"), first.TransactionalID)}
	default:
		d.Advice = "It ends by itself at its timeout, unless it hangs. Look its coordinator up"
		d.Commands = []string{f.tool("transactions") + " list"}
	}
}

func (f facts) tool(name string) string {
	return fmt.Sprintf("kafka-%s.sh --bootstrap-server %s", name, f.brokers)
}

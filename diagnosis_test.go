package persistence

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var diagnosedAt = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// readableFacts are of a log that can be read up to 20. The cases change them.
func readableFacts() facts {
	return facts{brokers: "kafka:9092", topic: "state", partition: 3, now: diagnosedAt, target: 20, targetEpoch: 4, epochEnd: -1,
		leader: 1, leaderEpoch: 4, replicas: []int32{1, 2}, bounds: bounds{start: 5, stable: 20, end: 20, epoch: 4}}
}

// openAt is a transaction that its coordinator knows.
func openAt(offset int64) OpenTransaction {
	return OpenTransaction{ProducerID: 7, ProducerEpoch: 2, CoordinatorEpoch: 1, StartOffset: offset, LastWritten: diagnosedAt.Add(-time.Minute),
		Coordinator: 2, TransactionalID: "migration", State: "Ongoing", Started: diagnosedAt.Add(-time.Minute), Timeout: 5 * time.Minute}
}

// Each rule by itself, and which one counts where several apply.
func TestWhatFollowsFromTheFacts(t *testing.T) {
	held := func(f *facts, transactions ...OpenTransaction) {
		f.bounds.stable, f.transactions = 10, transactions
	}
	unknownID := openAt(10)
	unknownID.TransactionalID, unknownID.State, unknownID.Coordinator, unknownID.Started, unknownID.Timeout = "", "", -1, time.Time{}, 0
	hanging := unknownID
	hanging.Hanging = true
	overdue := openAt(10)
	overdue.Timeout = 10 * time.Second

	for _, c := range []struct {
		name   string
		change func(f *facts)
		want   Condition
		says   string // all of String
	}{
		{"readable", func(*facts) {}, Readable, "the log can be read up to 20"},
		{"readable, and the log went on with a transaction above the target", func(f *facts) { f.bounds.end, f.bounds.stable = 40, 20 }, Readable,
			"the log can be read up to 20"},
		{"no target means the high watermark: readable", func(f *facts) { f.target, f.targetEpoch = -1, -1 }, Readable, "the log can be read up to 20"},
		{"no target means the high watermark: held", func(f *facts) { f.target, f.targetEpoch = -1, -1; held(f, openAt(10)) }, TransactionOpen,
			`a transaction is open and holds the last stable offset at 10: transactional id "migration", producer id 7, epoch 2, open since offset 10, last written at 2026-03-01T11:59:00Z, coordinator broker 2, state Ongoing, started at 2026-03-01T11:59:00Z, timeout 5m0s: it ends by itself in 4m0s. Wait, or see to the service that has this transactional id. To abort it and fence its producer (tools of Kafka 4.1 and newer): kafka-transactions.sh --bootstrap-server kafka:9092 forceTerminateTransaction --transactionalId migration`},

		{"open, past its timeout", func(f *facts) { held(f, overdue) }, TransactionOpen,
			`a transaction is open and holds the last stable offset at 10: transactional id "migration", producer id 7, epoch 2, open since offset 10, last written at 2026-03-01T11:59:00Z, coordinator broker 2, state Ongoing, started at 2026-03-01T11:59:00Z, timeout 10s: overdue by 50s. Wait, or see to the service that has this transactional id. To abort it and fence its producer (tools of Kafka 4.1 and newer): kafka-transactions.sh --bootstrap-server kafka:9092 forceTerminateTransaction --transactionalId migration`},
		{"open, by whom is not known", func(f *facts) {
			held(f, unknownID)
			f.notes = []string{"the transactional ids of the open transactions: no answer"}
		}, TransactionOpen,
			`a transaction is open and holds the last stable offset at 10: producer id 7, epoch 2, open since offset 10, last written at 2026-03-01T11:59:00Z. It ends by itself at its timeout, unless it hangs. Look its coordinator up: kafka-transactions.sh --bootstrap-server kafka:9092 list (not known: the transactional ids of the open transactions: no answer)`},
		{"open, and nothing is known of it", func(f *facts) { held(f) }, TransactionOpen,
			`a transaction is open and holds the last stable offset at 10. It ends by itself at its timeout, unless it hangs. Look it up: kafka-transactions.sh --bootstrap-server kafka:9092 describe-producers --topic state --partition 3`},
		{"several are open: the first by offset counts", func(f *facts) { held(f, hanging, openAt(12), openAt(5)) }, TransactionOpen,
			`a transaction is open and holds the last stable offset at 10: transactional id "migration", producer id 7, epoch 2, open since offset 5, last written at 2026-03-01T11:59:00Z, coordinator broker 2, state Ongoing, started at 2026-03-01T11:59:00Z, timeout 5m0s: it ends by itself in 4m0s (and 2 more behind it). Wait, or see to the service that has this transactional id. To abort it and fence its producer (tools of Kafka 4.1 and newer): kafka-transactions.sh --bootstrap-server kafka:9092 forceTerminateTransaction --transactionalId migration`},
		{"the first one hangs", func(f *facts) { held(f, openAt(12), hanging) }, TransactionHanging,
			`a transaction is open and holds the last stable offset at 10: producer id 7, epoch 2, open since offset 10, last written at 2026-03-01T11:59:00Z (and 1 more behind it). No coordinator knows it as under way, so that nothing will end it. If this client may describe every transactional id, abort it: kafka-transactions.sh --bootstrap-server kafka:9092 abort --topic state --partition 3 --start-offset 10`},

		{"cut below the target", func(f *facts) { f.bounds.end, f.bounds.stable = 15, 15 }, LogTruncated,
			`acknowledged records at offsets 15 to 19 are gone from the log. An unclean leader election, a lost disk or a recreated topic does this. Restore the topic from a copy; or start again, and if that is refused, once with OnMismatch(SnapshotsTruncated, Resume), which replays the events whose snapshots are gone, or with Rebuild`},
		{"cut below the target, by a new leader", func(f *facts) { f.bounds.end, f.bounds.stable, f.leaderEpoch = 15, 15, 6 }, LogTruncated,
			`acknowledged records at offsets 15 to 19 are gone from the log: they were written under leader epoch 4 at the latest, and broker 1 leads with epoch 6, without them. An unclean leader election, a lost disk or a recreated topic does this. Restore the topic from a copy; or start again, and if that is refused, once with OnMismatch(SnapshotsTruncated, Resume), which replays the events whose snapshots are gone, or with Rebuild`},
		{"cut below the target, and grown again", func(f *facts) { f.leaderEpoch, f.epochEnd = 5, 12; f.bounds.end, f.bounds.stable = 90, 90 }, LogTruncated,
			`acknowledged records at offsets 12 to 19 are gone from the log: they were written under leader epoch 4 at the latest, and broker 1 leads with epoch 5, without them. An unclean leader election, a lost disk or a recreated topic does this. Restore the topic from a copy; or start again, and if that is refused, once with OnMismatch(SnapshotsTruncated, Resume), which replays the events whose snapshots are gone, or with Rebuild`},
		{"the target's epoch ended at the target", func(f *facts) { f.leaderEpoch, f.epochEnd = 5, 20; f.bounds.end, f.bounds.stable = 90, 90 }, Readable,
			"the log can be read up to 20"},

		{"no leader", func(f *facts) { f.leader, f.leaderless, f.bounds = -1, true, noBounds }, LeaderUnreachable,
			`the partition has no leader; its replicas are on brokers [1 2]. Bring one of them back: kafka-topics.sh --bootstrap-server kafka:9092 --describe --topic state`},
		{"no answer", func(f *facts) { f.bounds, f.unreachable = noBounds, errors.New("i/o timeout") }, LeaderUnreachable,
			`the partition's leader, broker 1, does not answer: i/o timeout. See whether the broker runs, and whether this machine reaches its advertised address`},
		{"no broker answers", func(f *facts) {
			f.leader, f.bounds, f.unreachable = -1, noBounds, errors.New("no broker answers: i/o timeout")
		}, LeaderUnreachable,
			`the partition's leader cannot be found out: no broker answers: i/o timeout. See whether the brokers run, and whether this machine reaches them`},
		{"nothing known", func(f *facts) {
			f.leader, f.bounds, f.notes = -1, noBounds, []string{"the partition's leader: no broker", "more"}
		}, ConditionUnknown,
			`the log's bounds cannot be read (not known: the partition's leader: no broker; more)`},

		// What comes first where several apply.
		{"a truncated log with an open transaction is truncated", func(f *facts) { held(f, openAt(10)); f.bounds.end = 15 }, LogTruncated, ""},
		{"a truncated log whose transaction hangs is truncated", func(f *facts) { held(f, hanging); f.leaderEpoch, f.epochEnd = 5, 12 }, LogTruncated, ""},
		{"a log that was seen truncated is that, even if its leader is gone", func(f *facts) { f.leaderless, f.bounds.end = true, 15 }, LogTruncated, ""},
		{"a log that was seen truncated is that, even if its leader does not answer", func(f *facts) {
			f.bounds, f.unreachable, f.epochEnd = noBounds, errors.New("i/o timeout"), 12
		}, LogTruncated, ""},
		{"no leader is worse than a held log", func(f *facts) { held(f, openAt(10)); f.leaderless = true }, LeaderUnreachable, ""},
		{"no answer is worse than a held log", func(f *facts) { held(f, openAt(10)); f.unreachable = errors.New("i/o timeout") }, LeaderUnreachable, ""},
		{"unknown bounds are unknown, whatever is open", func(f *facts) { held(f, hanging); f.bounds = noBounds }, ConditionUnknown, ""},
		{"a log that can be read is that, whatever is open above the target", func(f *facts) { f.transactions = []OpenTransaction{hanging} }, Readable, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := readableFacts()
			c.change(&f)
			d := conclude(f)
			require.Equal(t, c.want, d.Condition, "%v", d)
			if c.says != "" {
				require.Equal(t, c.says, d.String())
			}
			if d.Condition == LogTruncated {
				require.GreaterOrEqual(t, d.LostFrom, int64(0))
				require.Less(t, d.LostFrom, d.Target)
			} else {
				require.EqualValues(t, -1, d.LostFrom)
			}
			require.True(t, slices.IsSortedFunc(d.Transactions, func(a, b OpenTransaction) int { return int(a.StartOffset - b.StartOffset) }))
		})
	}
}

func TestADiagnosisHoldsTheNumbersItWasMadeFrom(t *testing.T) {
	f := readableFacts()
	f.bounds.stable, f.transactions, f.notes = 10, []OpenTransaction{openAt(10)}, []string{"a note"}
	d := conclude(f)
	require.Equal(t, Diagnosis{Condition: TransactionOpen, Topic: "state", Partition: 3, Target: 20, TargetEpoch: 4,
		LogStart: 5, LastStableOffset: 10, HighWatermark: 20, Leader: 1, LeaderEpoch: 4, LostFrom: -1,
		Transactions: []OpenTransaction{openAt(10)}, Notes: []string{"a note"},
		Finding: d.Finding, Advice: d.Advice, Commands: d.Commands}, d)

	text, err := json.Marshal(d)
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(text, &fields))
	require.Equal(t, "transaction open", fields["condition"])
	require.EqualValues(t, 10, fields["last_stable_offset"])
	require.Equal(t, "migration", fields["transactions"].([]any)[0].(map[string]any)["transactional_id"])
}

func TestATransactionExpiresOnlyWhereItsTimesAreKnown(t *testing.T) {
	open := openAt(10)
	require.Equal(t, diagnosedAt.Add(4*time.Minute), open.Expires())
	open.Timeout = 0
	require.Zero(t, open.Expires())
	open = openAt(10)
	open.Started = time.Time{}
	require.Zero(t, open.Expires())
}

func TestConditionsHaveNames(t *testing.T) {
	names := make(map[string]bool)
	for c := ConditionUnknown; c <= LeaderUnreachable; c++ {
		names[c.String()] = true
	}
	require.Len(t, names, len(conditions))
	require.Equal(t, "Condition(6)", Condition(6).String())
	require.Equal(t, "Condition(-1)", Condition(-1).String())
}

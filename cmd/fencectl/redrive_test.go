package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/flow"
)

// deadBench is a bench with a topic of dead letters, orders-dead.
func deadBench(t *testing.T, partitions int32) *bench {
	t.Helper()
	b := newBench(t)
	require.NoError(t, b.cluster.CreateTopic("orders-dead", partitions, nil))
	b.cl = b.client()
	return b
}

// order writes events "key=value", each to the partition that its key ends with.
func (b *bench) order(events ...string) {
	b.Helper()
	for _, e := range events {
		key, value, _ := strings.Cut(e, "=")
		r := &kgo.Record{Topic: "orders", Partition: int32(key[len(key)-1] - '0'), Key: []byte(key), Value: []byte(value), Timestamp: time.UnixMilli(1_700_000_000_000),
			Headers: []kgo.RecordHeader{{Key: "trace", Value: []byte(e)}}}
		require.NoError(b, b.cl.ProduceSync(b.ctx, r).FirstErr())
	}
}

// startFlow starts a service that has a count for each key and makes dead letters
// of the orders that fail names. The result ends it when it has come to the end.
func (b *bench) startFlow(fail string) (end func()) {
	b.Helper()
	f, err := flow.New(flow.Spec[int]{
		Codec: flow.JSON[int](1),
		Fold: func(_ context.Context, k *flow.Key[int], order *kgo.Record) error {
			if fail != "" && strings.Contains(string(order.Value), fail) {
				return fmt.Errorf("no %s, please", order.Value)
			}
			k.State++
			return nil
		},
		Poison: flow.Retry(1, time.Microsecond, flow.DeadLetters("orders-dead")),
	})
	require.NoError(b, err)
	m, err := persistence.New(
		persistence.Kafka(kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.ConsumerGroup("g"), kgo.ConsumeTopics("orders"), kgo.FetchMaxWait(50*time.Millisecond)),
		persistence.SnapshotTopic("state"), persistence.TransactionalIDPrefix("p"), persistence.Logger(slog.New(slog.DiscardHandler)))
	require.NoError(b, err)
	ctx, stop := context.WithCancel(b.ctx)
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx, m) }()
	b.Cleanup(func() {
		stop()
		_ = m.Close(context.Background())
	})
	return func() {
		b.Helper()
		require.Eventually(b, func() bool { return b.lag("g", "orders") == 0 }, 30*time.Second, 10*time.Millisecond)
		stop()
		require.NoError(b, <-ended)
		require.NoError(b, m.Close(b.ctx))
	}
}

func (b *bench) fold(fail string) { b.startFlow(fail)() }

// lag is how many records a group has not processed.
func (b *bench) lag(group, topic string) (n int64) {
	b.Helper()
	committed, err := kadm.NewClient(b.cl).FetchOffsets(b.ctx, group)
	if err != nil {
		return -1
	}
	details, err := kadm.NewClient(b.cl).ListTopics(b.ctx, topic)
	require.NoError(b, err)
	for _, id := range details[topic].Partitions.Numbers() {
		o, _ := committed.Lookup(topic, id)
		for _, r := range b.read(topic, id) {
			if r.Offset >= o.At {
				n++
			}
		}
	}
	return n
}

// read returns the committed records of a partition.
func (b *bench) read(topic string, partition int32) (all []*kgo.Record) {
	b.Helper()
	s := &session{cl: b.cl, adm: kadm.NewClient(b.cl), err: new(bytes.Buffer)}
	t, err := s.topic(b.ctx, topic)
	require.NoError(b, err)
	require.NoError(b, s.readCommitted(b.ctx, t, partition, func(r *kgo.Record) { all = append(all, r) }))
	return all
}

func (b *bench) values(topic string, partition int32) (all []string) {
	b.Helper()
	for _, r := range b.read(topic, partition) {
		all = append(all, string(r.Value))
	}
	return all
}

// redrive runs the command, and returns the last object that it writes.
func (b *bench) redrive(want int, args ...string) (total map[string]any, note string) {
	b.Helper()
	text, note := b.call(want, append([]string{"redrive", "--topic", "orders-dead", "--format", "json"}, args...)...)
	if all := b.objects(text); len(all) > 0 {
		return all[len(all)-1], note
	}
	return nil, note
}

func TestRedriveWritesEachEventBackOnce(t *testing.T) {
	b := deadBench(t, 3)
	b.order("a0=1", "b1=bad 1", "a0=bad 2", "c0=bad 3", "b1=2", "b1=bad 4")
	b.fold("bad")
	text, _ := b.call(exitOK, "redrive", "--topic", "orders-dead")
	require.Regexp(t, `(?s)TOPIC +PARTITION +REPLAYED\norders +0 +2\norders +1 +2\n4 replayed, 0 passed over, 0 malformed`, text)
	require.Equal(t, []string{"1", "bad 2", "bad 3", "bad 2", "bad 3"}, sortedTail(b.values("orders", 0), 3))
	require.Equal(t, []string{"bad 1", "2", "bad 4", "bad 1", "bad 4"}, b.values("orders", 1), "those of one key in order")
	events := b.read("orders", 1)
	for i, original := range []*kgo.Record{events[0], events[2]} {
		again := events[3+i]
		require.Equal(t, original.Key, again.Key)
		require.Equal(t, original.Headers, again.Headers)
		require.Equal(t, original.Timestamp, again.Timestamp)
	}

	text, note := b.call(exitOK, "redrive", "--topic", "orders-dead")
	require.Contains(t, text, "0 replayed, 0 passed over")
	require.Contains(t, note, "nothing to replay")
	b.fold("") // the service was repaired
	text, _ = b.call(exitOK, "get", "b1", "--snapshots", "state")
	require.Equal(t, "3", text, "one that was folded at once, and two that were replayed")
}

// sortedTail sorts what comes after n, which is of several keys.
func sortedTail(all []string, n int) []string {
	tail := all[n:]
	if len(tail) == 2 && tail[0] > tail[1] {
		tail[0], tail[1] = tail[1], tail[0]
	}
	return all
}

// An event that fails again comes behind the end, and is not chased.
func TestRedriveEndsThoughEventsFailAgain(t *testing.T) {
	b := deadBench(t, 1)
	b.order("a0=bad 1", "a0=bad 2")
	end := b.startFlow("bad")
	require.Eventually(t, func() bool { return len(b.read("orders-dead", 0)) == 2 }, 30*time.Second, 10*time.Millisecond)
	for run := 1; run <= 2; run++ {
		total, _ := b.redrive(exitOK)
		require.EqualValues(t, 2, total["replayed"])
		require.Eventually(t, func() bool { return len(b.read("orders-dead", 0)) == 2+2*run }, 30*time.Second, 10*time.Millisecond)
	}
	end()
	require.Len(t, b.values("orders", 0), 6)
	for _, r := range b.read("orders-dead", 0) {
		require.Len(t, r.Headers, 8, "its own one, and one set of a dead letter's")
	}
}

func TestRedriveTakesOnlyWhatIsAskedFor(t *testing.T) {
	b := deadBench(t, 1)
	b.order("a0=bad apple", "b1=bad pear", "a0=bad plum", "b1=bad apple")
	b.fold("bad")
	require.NoError(t, b.cluster.CreateTopic("repair", 2, nil))

	text, note := b.call(exitOK, "redrive", "--topic", "orders-dead", "--dry-run")
	require.Regexp(t, `PARTITION +OFFSET +KEY +ORIGINAL TOPIC`, text)
	require.Regexp(t, `\n0 +\d+ +b1 +orders +1 +0 +2023-11-14T22:13:20Z +orders +2 +no bad pear, please\n`, text)
	require.Contains(t, text, "4 would be replayed")
	require.Contains(t, note, "group orders-dead-redrive has no offsets of topic orders-dead, so it begins with the first letter that is left")
	text, _ = b.call(exitOK, "redrive", "--topic", "orders-dead", "--dry-run", "--match", "apple", "--to", "repair", "--key-format", "hex", "--format", "json")
	rows := b.objects(text)
	require.Len(t, rows, 3)
	require.Equal(t, "repair", rows[0]["to"])
	require.Equal(t, true, rows[2]["dry_run"])
	require.EqualValues(t, 2, rows[2]["passed_over"])
	require.ElementsMatch(t, []any{"6130", "6231"}, []any{rows[0]["key"], rows[1]["key"]})
	_, err := kadm.NewClient(b.cl).FetchOffsets(b.ctx, "orders-dead-redrive")
	require.Error(t, err, "a dry run makes no group")

	total, note := b.redrive(exitOK, "--match", "cherry")
	require.EqualValues(t, 4, total["passed_over"])
	require.Contains(t, note, "the group stays where it is")
	total, _ = b.redrive(exitOK, "--max", "1")
	require.EqualValues(t, 1, total["replayed"])
	total, note = b.redrive(exitOK, "--match", "plum", "--to", "repair")
	require.NotContains(t, note, "has no offsets")
	require.EqualValues(t, 1, total["replayed"])
	require.EqualValues(t, 2, total["passed_over"])
	require.Equal(t, []string{"bad plum"}, b.values("repair", 0))
	total, _ = b.redrive(exitOK)
	require.EqualValues(t, 0, total["replayed"], "what was passed over is behind the group")
	total, _ = b.redrive(exitOK, "--group", "another", "--match", "pear")
	require.EqualValues(t, 1, total["replayed"])
	require.Equal(t, 5+1, len(b.values("orders", 0))+len(b.values("orders", 1)))
}

// One partition of the letters, while the others stay for another run.
func TestRedriveOfOnePartition(t *testing.T) {
	b := deadBench(t, 2)
	for p := range int32(2) {
		require.NoError(t, b.cl.ProduceSync(b.ctx, &kgo.Record{Topic: "orders-dead", Partition: p, Key: []byte("k"), Headers: letterHeaders(map[string][]byte{originalPartition: {0, 0, 0, byte(p)}})}).FirstErr())
	}
	total, _ := b.redrive(exitOK, "--partition", "1")
	require.EqualValues(t, 1, total["replayed"])
	require.Empty(t, b.read("orders", 0))
	require.Nil(t, b.read("orders", 1)[0].Value, "a tombstone stays one")
	total, _ = b.redrive(exitOK)
	require.EqualValues(t, 1, total["replayed"])
	require.Len(t, b.read("orders", 0), 1)
	require.Len(t, b.read("orders", 1), 1)
}

// Retention may remove letters before they are replayed.
func TestRedriveGoesOnBehindLettersThatAreGone(t *testing.T) {
	b := deadBench(t, 1)
	b.bad(4)
	b.redrive(exitOK, "--max", "1")
	gone := b.read("orders-dead", 0)[2].Offset
	_, err := kadm.NewClient(b.cl).DeleteRecords(b.ctx, kadm.OffsetsList{{Topic: "orders-dead", At: gone}}.Offsets())
	require.NoError(t, err)
	total, note := b.redrive(exitOK)
	require.EqualValues(t, 2, total["replayed"])
	require.Contains(t, note, "deleted from the input log before they were processed")
	require.Equal(t, []string{"bad 0", "bad 2", "bad 3"}, b.values("orders", 0)[4:])
}

// Letters that go between the look at them and the replay are not waited for.
func TestRedriveDoesNotWaitForLettersThatHaveGone(t *testing.T) {
	b := deadBench(t, 1)
	b.bad(2)
	held, release := b.hold(kmsg.JoinGroup, 1)
	ended := b.start(b.ctx)
	b.await(held)
	gone := kadm.OffsetsList{{Topic: "orders-dead", At: b.read("orders-dead", 0)[1].Offset + 1}}
	_, err := kadm.NewClient(b.cl).DeleteRecords(b.ctx, gone.Offsets())
	require.NoError(t, err)
	release(true)
	got := <-ended
	require.Equal(t, exitOK, got.status, got.stderr)
	require.Contains(t, got.stdout, "\n0 replayed")
}

func TestRedriveWritesNothingIfALetterCannotBeReplayed(t *testing.T) {
	for _, tc := range []struct {
		name    string
		changed map[string][]byte
		want    string
	}{
		{"malformed", map[string][]byte{originalPartition: nil, originalOffset: {1}},
			"record 1 of partition 0 of orders-dead is no dead letter: no header kafka_dlt-original-partition, header kafka_dlt-original-offset has 1 bytes, where 8 are allowed, big endian; --skip-malformed"},
		{"of a topic that is gone", map[string][]byte{originalPartition: {0, 0, 0, 0}, originalTopic: []byte("gone")},
			"letter 1 of partition 0 of orders-dead goes to topic gone, which does not exist"},
		{"of a partition that is gone", map[string][]byte{originalPartition: {0, 0, 0, 2}},
			"letter 1 of partition 0 of orders-dead goes to partition 2 of topic orders, which has only 0 to 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := deadBench(t, 1)
			sound := letterHeaders(map[string][]byte{originalPartition: {0, 0, 0, 1}})
			for _, headers := range [][]kgo.RecordHeader{sound, letterHeaders(tc.changed), sound} {
				require.NoError(t, b.cl.ProduceSync(b.ctx, &kgo.Record{Topic: "orders-dead", Key: []byte("k"), Headers: headers}).FirstErr())
			}
			total, note := b.redrive(exitWrong)
			require.Nil(t, total)
			require.Contains(t, note, tc.want)
			require.Contains(t, note, "nothing was replayed")
			require.Empty(t, b.read("orders", 1))
			b.redrive(exitWrong, "--dry-run")
			total, _ = b.redrive(exitOK, "--max", "1")
			require.EqualValues(t, 1, total["replayed"], "it is not looked at yet")
			if tc.name != "malformed" {
				return
			}
			total, _ = b.redrive(exitOK, "--skip-malformed")
			require.EqualValues(t, 1, total["malformed"])
			require.Len(t, b.read("orders", 1), 2)
		})
	}
}

func TestRedriveRefusesWhatIsNotItsOwn(t *testing.T) {
	b := deadBench(t, 1)
	b.order("a0=bad")
	b.fold("bad")
	_, note := b.redrive(exitUsage, "--to", "orders-dead")
	require.Contains(t, note, "it is the topic of the dead letters")
	_, note = b.redrive(exitUsage, "--group", "g")
	require.Contains(t, note, "it has offsets of topic orders too")
	_, note = b.redrive(exitUsage, "--prefix", strings.Repeat("x", 300))
	require.Contains(t, note, "TransactionalIDPrefix of 300 characters")
	_, note = b.call(exitBlind, "redrive", "--topic", "nothing")
	require.Contains(t, note, "topic nothing")
	require.Len(t, b.read("orders", 0), 1)
}

// ended is what came of a command that was started.
type ended struct {
	status         int
	stdout, stderr string
}

// start runs the command meanwhile.
func (b *bench) start(ctx context.Context) <-chan ended {
	done := make(chan ended, 1)
	go func() {
		var out, errs bytes.Buffer
		status := run(ctx, []string{"redrive", "--topic", "orders-dead", "--brokers", b.brokers}, &out, &errs)
		done <- ended{status, out.String(), errs.String()}
	}()
	return done
}

// process runs the command as a process of its own.
func (b *bench) process(args ...string) *exec.Cmd {
	b.Helper()
	cmd := exec.Command(os.Args[0], append(args, "--brokers", b.brokers)...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// hold makes the cluster hold the nth request of a kind of the redrive's only
// producer up until release is called, which says whether it is then handled or lost.
// held tells when it has come.
func (b *bench) hold(kind kmsg.Key, nth int) (held <-chan struct{}, release func(handle bool)) {
	come, gone := make(chan struct{}), make(chan bool, 1)
	seen := 0
	b.cluster.ControlKey(kind.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		if seen++; seen != nth {
			return nil, nil, false
		}
		close(come)
		handle := false
		b.cluster.SleepControl(func() { handle = <-gone })
		return nil, errors.New("lost"), !handle
	})
	return come, func(handle bool) { gone <- handle }
}

func (b *bench) await(c <-chan struct{}) {
	b.Helper()
	select {
	case <-c:
	case <-b.ctx.Done():
		b.Fatal("it did not come to this")
	}
}

// bad makes n orders of one key and their dead letters.
func (b *bench) bad(n int) (values []string) {
	b.Helper()
	var events []string
	for i := range n {
		values = append(values, fmt.Sprintf("bad %d", i))
		events = append(events, "a0="+values[i])
	}
	b.order(events...)
	b.fold("bad")
	require.Len(b, b.read("orders-dead", 0), n)
	return values
}

// A run that is killed leaves each letter replayed and behind the group's offset, or
// neither, wherever it was; the next run goes on at once.
func TestRedriveKilledInTheMiddleReplaysEachLetterOnce(t *testing.T) {
	const letters = 3 * lettersPerTransaction
	for _, tc := range []struct {
		name string
		kind kmsg.Key
		late bool // what was under way comes to the cluster after the next run
	}{
		{"between two transactions", kmsg.TxnOffsetCommit, false},
		{"with records written", kmsg.EndTxn, false},
		{"with the end under way", kmsg.EndTxn, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := deadBench(t, 1)
			want := b.bad(letters)
			held, release := b.hold(tc.kind, 2)
			first := b.process("redrive", "--topic", "orders-dead")
			b.await(held)
			require.NoError(t, first.Process.Kill())
			require.Error(t, first.Wait())
			if !tc.late {
				release(false)
			}
			total, _ := b.redrive(exitOK)
			if tc.late {
				release(true)
			}
			require.Equal(t, append(want, want...), b.values("orders", 0))
			require.Less(t, total["replayed"], float64(letters), "the first run had replayed some")
			require.Greater(t, total["replayed"], 0.0)
			require.EqualValues(t, 0, b.lag("orders-dead-redrive", "orders-dead"))
		})
	}
}

// A second run takes over from one that hangs, which is refused when it goes on.
func TestASecondRedriveTakesOver(t *testing.T) {
	b := deadBench(t, 1)
	want := b.bad(2 * lettersPerTransaction)
	held, release := b.hold(kmsg.EndTxn, 2)
	first := b.start(b.ctx)
	b.await(held)
	b.redrive(exitOK)
	release(true)
	got := <-first
	require.Equal(t, exitBlind, got.status)
	require.Contains(t, got.stderr, "run it again to go on")
	require.Equal(t, append(want, want...), b.values("orders", 0))
}

// What was replayed before an error is told, and the next run goes on behind it.
func TestRedriveThatFailsInTheMiddleIsGoneOnWith(t *testing.T) {
	b := deadBench(t, 1)
	want := b.bad(3 * lettersPerTransaction)
	var first kmsg.Request
	denied := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Group: "orders-dead-redrive", Err: kerr.GroupAuthorizationFailed, Count: -1, When: func(r kmsg.Request) bool {
		if first == nil {
			first = r
		}
		return r != first
	}})
	text, note := b.call(exitBlind, "redrive", "--topic", "orders-dead", "--timeout", "5s")
	done := len(b.values("orders", 0)) - len(want)
	require.Positive(t, done)
	require.Less(t, done, len(want))
	require.Contains(t, text, fmt.Sprintf("\n%d replayed", done))
	require.Contains(t, note, "not all was replayed; run it again to go on")
	denied.Remove()
	total, _ := b.redrive(exitOK)
	require.EqualValues(t, len(want)-done, total["replayed"])
	require.Equal(t, append(want, want...), b.values("orders", 0))
}

func TestRedriveThatIsInterruptedSaysSo(t *testing.T) {
	b := deadBench(t, 1)
	b.bad(2)
	held, release := b.hold(kmsg.InitProducerID, 1)
	defer release(false)
	ctx, interrupt := context.WithCancel(b.ctx)
	ended := b.start(ctx)
	b.await(held)
	interrupt()
	got := <-ended
	require.Equal(t, exitBlind, got.status)
	require.Contains(t, got.stdout, "\n0 replayed")
	require.Contains(t, got.stderr, "run it again to go on: context canceled")
}

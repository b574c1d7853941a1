package integration

import (
	"bytes"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/integration/kafkatest"
	"github.com/kafkafence/persistence/internal/scenario"
)

// fencectl as a user runs it, on a real cluster.
func TestFencectl(t *testing.T) {
	c := kafkatest.Shared(t, kafkatest.TransactionVersion(2))
	w := scenario.NewWorld(t, scenario.Backend{Brokers: c.Brokers(), TransactionVersion: 2}, 1)
	binary := filepath.Join(t.TempDir(), "fencectl")
	build := exec.CommandContext(w.Ctx, "go", "build", "-o", binary, "./cmd/fencectl")
	build.Dir = ".."
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	call := func(status int, args ...string) (stdout, stderr string) {
		t.Helper()
		var out, errs bytes.Buffer
		cmd := exec.CommandContext(w.Ctx, binary, append(args, "--brokers", strings.Join(c.Brokers(), ","))...)
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
			require.NoError(t, err)
		}
		require.Equal(t, status, cmd.ProcessState.ExitCode(), "%v\n%s\n%s", args, out.String(), errs.String())
		return out.String(), errs.String()
	}
	service := []string{"--group", w.Group, "--input", w.Input, "--snapshots", w.State}

	m := w.Start(false)
	o := m.Own()
	w.Produce(0, "a", "b", "a")
	for _, e := range o.Events(w, 3) {
		require.NoError(t, o.Apply(w.Ctx, persistence.Batch{Through: e, Snapshots: []persistence.Snapshot{{Key: e.Key, Value: e.Value, SourceOffset: e.Offset}}}))
	}
	require.NoError(t, m.Stop())
	w.Settle()

	text, _ := call(0, append([]string{"doctor", "--prefix", w.Prefix}, service...)...)
	for _, s := range []string{"ok    cleanup.policy: compact", "ok    transaction.version: 2", "ok    transaction.max.timeout.ms", "the cluster has no authorizer",
		"ok    prefix: 1 transactional ids of the service", "all 1 partitions can be read to their ends"} {
		require.Contains(t, text, s)
	}
	call(0, append([]string{"lag"}, service...)...)
	call(0, append([]string{"verify"}, service...)...)
	text, _ = call(0, "keys", "--snapshots", w.State)
	require.Len(t, strings.Split(strings.TrimSpace(text), "\n"), 3, "a head and two keys")
	text, note := call(0, "get", "a", "--snapshots", w.State)
	require.Equal(t, "a", text)
	require.Contains(t, note, "source offset 2, committable offset 3")

	f := w.Foreign("migration")
	f.Begin("a", "open")
	text, _ = call(0, "history", "a", "--snapshots", w.State)
	require.Equal(t, 2, strings.Count(text, "committed"))
	require.Equal(t, 1, strings.Count(text, "open"))
	text, _ = call(0, "transactions", "--snapshots", w.State)
	require.Contains(t, text, "forceTerminateTransaction --transactionalId "+f.ID)
	f.End(kgo.TryAbort)
	text, _ = call(0, "transactions", "--snapshots", w.State)
	require.Contains(t, text, "no transaction is open")

	dead := w.Input + "-dead"
	w.CreateTopic(dead, 1, nil)
	letter := &kgo.Record{Topic: dead, Key: []byte("a"), Value: []byte("again"), Headers: []kgo.RecordHeader{
		{Key: "kafka_dlt-original-topic", Value: []byte(w.Input)}, {Key: "kafka_dlt-original-partition", Value: []byte{0, 0, 0, 0}},
		{Key: "kafka_dlt-original-offset", Value: []byte{0, 0, 0, 0, 0, 0, 0, 1}}, {Key: "kafka_dlt-original-timestamp", Value: []byte{0, 0, 1, 0x90, 0, 0, 0, 0}},
		{Key: "kafka_dlt-exception-message", Value: []byte("no good")}, {Key: "flow.key", Value: []byte("a")}, {Key: "flow.attempts", Value: []byte("1")}}}
	require.NoError(t, w.Admin.ProduceSync(w.Ctx, letter).FirstErr())
	for _, replayed := range []string{"1 replayed", "0 replayed"} {
		text, _ = call(0, "redrive", "--topic", dead)
		require.Contains(t, text, replayed)
	}
	events := w.Read(w.Input, 0)
	require.Len(t, events, 4)
	require.Equal(t, "again", string(events[3].Value))

	w.CommitByHand(0, 1)
	text, _ = call(1, append([]string{"verify"}, service...)...)
	require.Contains(t, text, "OffsetBehind")
	call(1, "get", "nobody", "--snapshots", w.State)
	call(3, "get", "a", "--snapshots", "nothing")
}

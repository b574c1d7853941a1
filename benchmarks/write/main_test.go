package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/kafkafence/persistence/benchmarks/internal/result"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every case with few writes and without the Java client: what was written is
// counted by the command itself, and nothing is expected of the times.
func TestEveryCaseWritesItsResults(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	var stdout, stderr bytes.Buffer
	status := run(t.Context(), []string{"-brokers", strings.Join(c.ListenAddrs(), ","), "-java=false", "-rounds", "2", "-scale", "0.02"}, &stdout, &stderr)
	require.Zero(t, status, stderr.String())
	found := make(map[string][]string)
	for line := range strings.Lines(stdout.String()) {
		var r result.Compared
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		require.Positive(t, r.Ratio)
		require.Equal(t, 2, r.Rounds)
		found[r.Case] = append(found[r.Case], r.Peer)
	}
	require.Equal(t, map[string][]string{"one-writer-500x50B": {"plain", "session"}, "burst-2000x10KiB": {"plain"}, "burst-10000x10KiB": {"plain"}, "burst-100000x100B": {"plain"}}, found)
}

// What a contestant leaves is counted.
func TestAMissingRecordFails(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	tp, err := newTopics(c.ListenAddrs())
	require.NoError(t, err)
	defer tp.close()
	input, state, err := tp.create(t.Context(), 0, 1)
	require.NoError(t, err)
	p := &plain{brokers: c.ListenAddrs()}
	require.NoError(t, p.open(t.Context(), input, state))
	defer p.close()
	_, err = p.write(t.Context(), workload{writes: 3, bytes: 10})
	require.NoError(t, err)
	require.NoError(t, tp.check(t.Context(), 0, 3))
	require.ErrorContains(t, tp.check(t.Context(), 0, 4), "3 records are committed, instead of 4")
}

func TestTheFlagsAreChecked(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "0"}, {"-scale", "2"}, {"-case", "("}, {"more"}} {
		var stderr bytes.Buffer
		require.Equal(t, 2, run(t.Context(), args, &bytes.Buffer{}, &stderr), args)
		require.NotEmpty(t, stderr.String())
	}
}

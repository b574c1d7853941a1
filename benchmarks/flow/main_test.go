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

// Our side, with few events: the command checks the state itself, and nothing is
// expected of the times.
func TestTheFlowSideWritesItsResults(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	var stdout, stderr bytes.Buffer
	status := run(t.Context(), []string{"-brokers", strings.Join(c.ListenAddrs(), ","), "-peer", "none", "-rounds", "2", "-events", "2000", "-keys", "100"}, &stdout, &stderr)
	require.Zero(t, status, stderr.String())
	var cases []string
	for line := range strings.Lines(stdout.String()) {
		var r result.Compared
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		require.Positive(t, r.Ours)
		require.EqualValues(t, 2, r.Rounds)
		cases = append(cases, r.Case)
	}
	require.Equal(t, []string{"flow-50B-100-keys-1-partitions", "flow-50B-100-keys-4-partitions"}, cases)
}

// What a contestant leaves is checked.
func TestAWrongStateFails(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	tp, err := newTopics(c.ListenAddrs())
	require.NoError(t, err)
	defer tp.close()
	require.NoError(t, tp.fill(t.Context(), 1, 20, 5))
	_, err = tp.race(t.Context(), contestant{"ours", ours(c.ListenAddrs())}, config{events: 20, keys: 4})
	require.ErrorContains(t, err, "has 5 keys that count 20 events, instead of 4 and 20")
}

func TestTheFlagsAreChecked(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "0"}, {"-events", "1", "-keys", "2"}, {"-peer", "java"}, {"more"}} {
		var stderr bytes.Buffer
		require.Equal(t, 2, run(t.Context(), args, &bytes.Buffer{}, &stderr), args)
		require.NotEmpty(t, stderr.String())
	}
}

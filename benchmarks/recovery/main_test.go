package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/kafkafence/persistence/benchmarks/internal/result"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-"+childFlag { // started by a memory case
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

func fake(t *testing.T) (brokers string) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return strings.Join(c.ListenAddrs(), ",")
}

// strictly parses a line that has exactly the fields of a result.
func strictly(t *testing.T, line string, result any) {
	dec := json.NewDecoder(strings.NewReader(line))
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(result), line)
	require.False(t, dec.More(), line)
}

// Every case, with few records: what the readers read is compared by the cases
// themselves, and nothing is expected of the times.
func TestEveryCaseWritesItsResults(t *testing.T) {
	t.Setenv("GORACE", "atexit_sleep_ms=0") // of the children
	var stdout, stderr bytes.Buffer
	brokers := fake(t)
	status := run(t.Context(), []string{"-brokers", brokers, "-rounds", "2", "-scale", "0.002"}, &stdout, &stderr)
	require.Zero(t, status, stderr.String())
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers))
	require.NoError(t, err)
	defer cl.Close()
	left, err := kadm.NewClient(cl).ListTopics(t.Context())
	require.NoError(t, err)
	require.Empty(t, left.Names(), "topics of the cases")

	var names []string
	for line := range strings.Lines(stdout.String()) {
		if strings.Contains(line, "recovery-memory") {
			var r remembered
			strictly(t, line, &r)
			names = append(names, r.Case)
			require.EqualValues(t, 419, r.Records)
			require.Greater(t, r.Bytes, 10*r.Live, "snapshots are replaced by newer ones")
			wire := float64(r.Fetched) / float64(r.Bytes)
			if strings.HasSuffix(r.Case, "zstd") {
				require.InDelta(t, 0.55, wire, 0.1, "half of a value can be compressed")
			} else {
				require.InDelta(t, 1.05, wire, 0.05)
			}
			require.Greater(t, r.PeakRSS, r.Live)
			require.EqualValues(t, 256<<20, r.Limit)
			require.Equal(t, r.Limit, r.GoMemLimit, "what the child says")
			require.Equal(t, "bytes", r.Unit)
			require.Equal(t, 2, r.Rounds)
			continue
		}
		var r result.Compared
		strictly(t, line, &r)
		names = append(names, r.Case+" "+r.Peer)
		require.Positive(t, r.Ours)
		require.Positive(t, r.PeerValue)
		require.LessOrEqual(t, r.Min, r.Ratio)
		require.GreaterOrEqual(t, r.Max, r.Ratio)
		require.Equal(t, "records/s", r.Unit)
		require.Equal(t, 2, r.Rounds)
	}
	var want []string
	for _, c := range []string{"200x1KiB", "200x1KiB-zstd", "4000x100B", "4000x100B-zstd", "40x10KiB", "40x10KiB-zstd"} {
		c = "recovery-" + c
		want = append(want, c+" kgo-loop", c+" kgo-loop-16MiB", c+"-uncopied kgo-loop-16MiB-uncopied")
	}
	want = append(want, "recovery-memory", "recovery-memory-zstd", "recovery-memory-16-partitions", "recovery-memory-16-partitions-zstd")
	require.Equal(t, want, names)
}

// told returns a reader that has its answer ready.
func told(answer tally, err error) reader {
	return func(context.Context) (tally, time.Duration, error) { return answer, time.Second, err }
}

func TestReadersThatDisagreeFailTheCase(t *testing.T) {
	good := told(tally{5, 3, 300, 77}, nil)
	for name, c := range map[string]struct {
		bad  reader
		says string
	}{
		"fewer records":  {told(tally{4, 3, 300, 77}, nil), "kgo-loop read {records:4 keys:3 live:300 sum:77} instead of {records:5 keys:3 live:300 sum:77}"},
		"fewer keys":     {told(tally{5, 2, 300, 77}, nil), "keys:2"},
		"other sizes":    {told(tally{5, 3, 299, 77}, nil), "live:299"},
		"other values":   {told(tally{5, 3, 300, 78}, nil), "sum:78"},
		"nothing at all": {told(tally{}, nil), "records:0"},
		"a failed read":  {told(tally{5, 3, 300, 77}, errors.New("broken")), "kgo-loop: broken"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			readers := map[string]reader{ours: good, oursUncopied: good, kgoLoop: c.bad, kgoLarge: good, kgoLargeUncopied: good}
			err := comparison{"case", filling{records: 5, keys: 3}}.compare(t.Context(), 1, readers, result.NewLines(&out), t.Logf)
			require.ErrorContains(t, err, c.says)
			require.Empty(t, out.String())
		})
	}
}

func TestATallyTellsStatesApart(t *testing.T) {
	of := func(pairs ...string) tally {
		state := make(map[string][]byte)
		for i := 0; i < len(pairs); i += 2 {
			fold(state, []byte(pairs[i]), []byte(pairs[i+1]))
		}
		return tallyOf(0, state)
	}
	require.Equal(t, of("a", "1", "b", "2"), of("b", "2", "a", "0", "a", "1"))
	require.NotEqual(t, of("a", "1", "b", "2"), of("a", "2", "b", "1"))
	require.NotEqual(t, of("a", "1"), of("a", "2"))
}

func TestATombstoneEndsItsKey(t *testing.T) {
	state := make(map[string][]byte)
	fold(state, []byte("a"), []byte("1"))
	fold(state, []byte("b"), []byte("22"))
	fold(state, []byte("b"), []byte{})
	fold(state, []byte("a"), nil)
	require.Equal(t, map[string][]byte{"b": {}}, state)
}

func TestFaultyArgumentsAreNamed(t *testing.T) {
	for says, args := range map[string][]string{
		"-rounds 0: at least 1":         {"-rounds", "0", "-case", "nonsense"},
		"-scale 2: more than 0":         {"-scale", "2", "-case", "nonsense"},
		`-case "(": a regular`:          {"-case", "("},
		`unexpected argument "memory"`:  {"memory"},
		"flag provided but not defined": {"-nonsense"},
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 2, run(t.Context(), args, &stdout, &stderr))
		require.Contains(t, stderr.String(), says)
		require.Empty(t, stdout.String())
	}
	var stdout, stderr bytes.Buffer
	require.Equal(t, 1, run(t.Context(), []string{"-case", "nonsense"}, &stdout, &stderr))
	require.Contains(t, stderr.String(), `-case "nonsense" matches none of the cases`)
}

func TestAFailedChildTellsWhy(t *testing.T) {
	_, err := startChild(t.Context(), childSpec{Brokers: []string{fake(t)}, Input: "missing", Snapshots: "state", Group: "g", Partitions: 1})
	require.ErrorContains(t, err, "the recovering process failed: exit status 1")
	require.ErrorContains(t, err, "missing")
}

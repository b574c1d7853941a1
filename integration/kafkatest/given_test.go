package kafkatest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
)

// give starts a cluster and makes it the one that the environment names.
func give(t *testing.T) *Cluster {
	t.Helper()
	own := Start(t, TransactionVersion(1))
	t.Setenv("KAFKA_BROKERS", strings.Join(own.Brokers(), ","))
	t.Setenv("KAFKATEST_BACKEND", "")
	t.Setenv("REQUIRE_KAFKA", "")
	return own
}

func TestAGivenClusterIsUsedAsFarAsItServes(t *testing.T) {
	own := give(t)
	given := Start(t, TransactionVersion(1))
	require.Equal(t, backendBrokers, given.Backend())
	require.Equal(t, own.Brokers(), given.Brokers())
	require.NotEmpty(t, given.Version())
	requireTransaction(t, given)
	require.ErrorIs(t, given.Node(0).Kill(t.Context()), ErrNoNodeControl)

	// Closing it deletes its topics and leaves the others.
	ctx := within(t, 10*time.Second)
	kept := own.Topic(t, 1)
	gone := given.Topic(t, 1)
	require.NoError(t, given.Close())
	topics, err := kadm.NewClient(newClient(t, own)).ListTopics(ctx)
	require.NoError(t, err)
	require.Contains(t, topics, kept)
	require.NotContains(t, topics, gone)

	for _, test := range []struct {
		opt  Option
		lack string
	}{
		{Nodes(3), "1 brokers, not the 3"},
		{TransactionVersion(2), "transaction.version 1, not the 2"},
		{NodeControl(), "NodeControl"},
		{BrokerConfig("a.b", "c"), "BrokerConfig"},
		{Version(DefaultVersion), "Version"},
		{JVMArgs("-XX:+UseParallelGC"), "JVMArgs"},
	} {
		_, err := New(ctx, test.opt)
		require.ErrorIs(t, err, ErrUnavailable)
		require.ErrorContains(t, err, test.lack)
	}
}

func TestAnUnreachableGivenClusterIsAFault(t *testing.T) {
	ports, err := freePorts(1)
	require.NoError(t, err)
	defer releasePorts(ports)
	t.Setenv("KAFKA_BROKERS", localAddr(ports[0]))
	t.Setenv("KAFKATEST_BACKEND", "")
	_, err = New(within(t, 500*time.Millisecond))
	require.ErrorContains(t, err, "KAFKA_BROKERS="+localAddr(ports[0]))
	require.NotErrorIs(t, err, ErrUnavailable)
}

// fakeTB records what becomes of a test.
type fakeTB struct {
	testing.TB
	failed  bool
	said    string
	outcome string
	cleanup []func()
}

func (f *fakeTB) Helper()                      {}
func (f *fakeTB) Failed() bool                 { return f.failed }
func (f *fakeTB) Cleanup(c func())             { f.cleanup = append(f.cleanup, c) }
func (f *fakeTB) Logf(format string, a ...any) { f.said += fmt.Sprintf(format, a...) + "\n" }

func (f *fakeTB) Skipf(format string, a ...any) {
	f.said, f.outcome = fmt.Sprintf(format, a...), "skipped"
	panic(f)
}

func (f *fakeTB) Fatal(a ...any) {
	f.said, f.outcome = fmt.Sprint(a...), "failed"
	panic(f)
}

// run runs a test until it ends or is ended.
func (f *fakeTB) run(test func(testing.TB)) {
	defer func() {
		if r := recover(); r != nil && r != any(f) {
			panic(r)
		}
	}()
	test(f)
}

func TestATestIsSkippedOrFailsWithoutASuitableKafka(t *testing.T) {
	t.Setenv("KAFKA_BROKERS", "127.0.0.1:1")
	t.Setenv("KAFKATEST_BACKEND", "")
	for name, test := range map[string]func(testing.TB){
		"Start":  func(t testing.TB) { Start(t, NodeControl()) },
		"Shared": func(t testing.TB) { Shared(t, NodeControl()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("REQUIRE_KAFKA", "")
			skipped := &fakeTB{TB: t}
			skipped.run(test)
			require.Equal(t, "skipped", skipped.outcome)
			require.Contains(t, skipped.said, "NodeControl")

			t.Setenv("REQUIRE_KAFKA", "1")
			failed := &fakeTB{TB: t}
			failed.run(test)
			require.Equal(t, "failed", failed.outcome)
			require.Contains(t, failed.said, "NodeControl")
		})
	}
	require.NoError(t, StopShared()) // forget that there was none
}

func TestAFaultyOptionFailsTheTest(t *testing.T) {
	for name, test := range map[string]func(testing.TB){
		"Start":  func(t testing.TB) { Start(t, Nodes(2)) },
		"Shared": func(t testing.TB) { Shared(t, Nodes(2)) },
	} {
		t.Run(name, func(t *testing.T) {
			tb := &fakeTB{TB: t}
			tb.run(test)
			require.Equal(t, "failed", tb.outcome)
			require.Contains(t, tb.said, "Nodes(2)")
		})
	}
}

func TestAFailedTestLogsTheNodesLogs(t *testing.T) {
	c := Shared(t)
	require.Contains(t, c.Node(0).Log(), "Kafka Server started")

	tb := &fakeTB{TB: t}
	c.logIfFailed(tb)
	require.Empty(t, tb.said)
	tb.failed = true
	c.logIfFailed(tb)
	require.Contains(t, tb.said, "Kafka node 0 ("+c.Brokers()[0]+")")
}

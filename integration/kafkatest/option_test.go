package kafkatest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAllFaultyOptionsAreReportedAtOnce(t *testing.T) {
	_, err := newConfig([]Option{
		Nodes(2), TransactionVersion(3), Version("latest"), Logf(nil),
		BrokerConfig("node.id", "7"), BrokerConfig("a b", "c"),
	})
	for _, part := range []string{
		"Nodes(2)", "TransactionVersion(3)", `Version("latest")`, "Logf(nil)",
		`BrokerConfig("node.id")`, `BrokerConfig("a b")`,
	} {
		require.ErrorContains(t, err, part)
	}
	require.NotErrorIs(t, err, ErrUnavailable)
}

func TestVersions(t *testing.T) {
	for v, want := range map[string]bool{
		"4.4.0": true, "3.3.2": true, "4.5.0-SNAPSHOT": true,
		"": false, "latest": false, "../4.4.0": false, "4/../../x": false, "4.4.0 ": false,
	} {
		require.Equal(t, want, validVersion(v), "%q", v)
	}
}

func TestTheFeatureFlagDependsOnTheRelease(t *testing.T) {
	format := func(version string, opts ...Option) ([]string, error) {
		cfg, err := newConfig(opts)
		require.NoError(t, err)
		return cfg.formatArgs(version)
	}
	args, err := format("4.4.0")
	require.NoError(t, err)
	require.Empty(t, args)

	args, err = format("4.4.0", TransactionVersion(0))
	require.NoError(t, err)
	require.Equal(t, []string{"--feature", "transaction.version=0"}, args)

	args, err = format("3.9.1", TransactionVersion(0))
	require.NoError(t, err)
	require.Empty(t, args)

	// The environment chose that release, so the test can only be skipped.
	_, err = format("3.9.1", TransactionVersion(1))
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorContains(t, err, "needs Kafka 4.0")

	_, err = newConfig([]Option{Version("3.9.1"), TransactionVersion(1)})
	require.ErrorContains(t, err, "only Kafka 4.0 and later")
	_, err = newConfig([]Option{Version("3.9.1"), TransactionVersion(0)})
	require.NoError(t, err)
}

func TestClustersAreSharedByAllTheirOptions(t *testing.T) {
	keys := make(map[string]int)
	for i, opts := range [][]Option{
		{}, {Nodes(3)}, {TransactionVersion(0)}, {TransactionVersion(1)}, {Version("4.4.0")},
		{NodeControl()}, {JVMArgs("a", "b")}, {JVMArgs("a b")},
		{BrokerConfig("a", "1")}, {BrokerConfig("a", "2")},
	} {
		cfg, err := newConfig(opts)
		require.NoError(t, err)
		other, dup := keys[cfg.key()]
		require.False(t, dup, "options %d and %d", i, other)
		keys[cfg.key()] = i
	}
	a, err := newConfig([]Option{BrokerConfig("a", "1"), BrokerConfig("b", "2"), Nodes(1), Logf(t.Logf)})
	require.NoError(t, err)
	b, err := newConfig([]Option{BrokerConfig("b", "2"), BrokerConfig("a", "1")})
	require.NoError(t, err)
	require.Equal(t, a.key(), b.key())
}

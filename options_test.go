package persistence

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/kafkafence/persistence/internal/wire"
)

// The least that New accepts. The dialer fails the test: nothing here may need
// a broker.
func kafkaOpts(t testing.TB, more ...kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{
		kgo.SeedBrokers("broker.invalid:9092"), kgo.ConsumerGroup("orders"), kgo.ConsumeTopics("in"),
		kgo.Dialer(func(context.Context, string, string) (net.Conn, error) {
			t.Error("a broker was dialled")
			return nil, errors.New("no network here")
		}),
	}, more...)
}

func validOptions(t testing.TB, more ...Option) []Option {
	return append([]Option{Kafka(kafkaOpts(t)...), SnapshotTopic("state"), TransactionalIDPrefix("orders"), Logger(slog.New(slog.DiscardHandler))}, more...)
}

// configOf reads options in a bubble, which fails if it leaves a goroutine.
func configOf(t *testing.T, opts ...Option) (c config, err error) {
	synctest.Test(t, func(t *testing.T) {
		c, err = newConfig(opts)
		synctest.Wait()
	})
	return c, err
}

func TestTheDefaultsAreThoseThatAreDocumented(t *testing.T) {
	c, err := configOf(t, validOptions(t)...)
	require.NoError(t, err)
	require.Equal(t, 5*time.Second, c.commitInterval)
	require.Equal(t, 256, c.maxWrites)
	require.Equal(t, 8<<20, c.maxBytes)
	require.Equal(t, 3*time.Minute, c.stallTimeout)
	require.Equal(t, 8, c.recoveries)
	require.Equal(t, time.Minute, c.txnTimeout)
	require.Equal(t, 22500*time.Millisecond, c.revokeTimeout, "half of kgo's default of 45 s")
	require.False(t, c.create)
	require.Equal(t, 32<<20, c.recoveryMaxBytes)
	require.EqualValues(t, 32<<20/3, c.fetchBytes(1), "alone")
	require.EqualValues(t, 32<<20/24, c.fetchBytes(8))
	require.False(t, c.uncopied)
	for m := range mismatches {
		require.Equal(t, mismatches[m].choices[0], c.choice(Mismatch(m)))
	}
	require.Equal(t, "in", c.user.topic)
	require.Equal(t, "orders", c.user.group)
	require.Nil(t, c.user.instanceID)
	require.Equal(t, startPolicy{timestamp: wire.LogStart, exact: -1}, c.user.start)
	require.False(t, c.user.serverSide)

	d, err := configOf(t, Kafka(kafkaOpts(t)...), SnapshotTopic("state"), TransactionalIDPrefix("orders"))
	require.NoError(t, err)
	require.Same(t, slog.Default(), d.logger)
}

func TestOptionsReachTheConfiguration(t *testing.T) {
	logger := slog.New(slog.DiscardHandler)
	called := false
	c, err := configOf(t, validOptions(t,
		nil, // an optional option
		CommitInterval(10*time.Millisecond), MaxWritesPerTransaction(1), MaxBytesPerTransaction(1), RecoveryStallTimeout(time.Millisecond),
		RecoveryConcurrency(1), RevokeTimeout(time.Second), TransactionTimeout(time.Second), OnMismatch(OffsetAhead, Resume), OnMismatch(OffsetAhead, Accept), RecoveryMaxBytes(300<<10), UncopiedSnapshots(), Logger(logger),
		CreateSnapshotTopic(3, map[string]string{"segment.bytes": "1000"}),
		WithTrace(Trace{GivenUp: func(GiveUpInfo) { called = true }}),
		SnapshotTopic("A.b_c-9"),     // a later one replaces an earlier one
		Kafka(kgo.InstanceID("one")), // and this one adds
	)...)
	require.NoError(t, err)
	require.Equal(t, 10*time.Millisecond, c.commitInterval)
	require.Equal(t, 1, c.maxWrites)
	require.Equal(t, 1, c.maxBytes)
	require.Equal(t, time.Millisecond, c.stallTimeout)
	require.Equal(t, 1, c.recoveries)
	require.Equal(t, time.Second, c.revokeTimeout)
	require.Equal(t, time.Second, c.txnTimeout)
	require.Equal(t, Accept, c.choice(OffsetAhead))
	require.Equal(t, Fail, c.choice(OffsetBelowInput))
	require.EqualValues(t, 100<<10, c.fetchBytes(1))
	require.True(t, c.uncopied)
	require.True(t, c.create)
	require.EqualValues(t, 3, c.replication)
	require.Equal(t, map[string]string{"segment.bytes": "1000"}, c.topicConfigs)
	require.Same(t, logger, c.logger)
	require.Equal(t, "A.b_c-9", c.snapshotTopic)
	require.Equal(t, "in", c.user.topic)
	require.Equal(t, "one", *c.user.instanceID)
	c.trace.GivenUp(GiveUpInfo{})
	require.True(t, called)
}

type fault struct {
	name string
	opts []Option
	says []string // option, value, and what is allowed
}

func optionFaults() []fault {
	return []fault{
		{"no snapshot topic", []Option{SnapshotTopic("")}, []string{`SnapshotTopic ""`, "required"}},
		{"a snapshot topic with a space", []Option{SnapshotTopic("my state")}, []string{`SnapshotTopic "my state"`, "' '", "letters, digits"}},
		{"a snapshot topic that is a dot", []Option{SnapshotTopic("..")}, []string{`SnapshotTopic ".."`, "249"}},
		{"a long snapshot topic", []Option{SnapshotTopic(strings.Repeat("x", 250))}, []string{"SnapshotTopic", "at most 249"}},
		{"the input as the snapshot topic", []Option{SnapshotTopic("in")}, []string{`SnapshotTopic "in"`, "input topic", "their own"}},
		{"neither", []Option{SnapshotTopic("")}, []string{"or Stateless"}},
		{"both", []Option{Stateless()}, []string{`SnapshotTopic "state"`, "together with Stateless"}},
		{"a topic to create, for nothing", []Option{SnapshotTopic(""), Stateless(), CreateSnapshotTopic(-1, nil)}, []string{"CreateSnapshotTopic", "together with Stateless"}},
		{"a short handler timeout", []Option{HandlerTimeout(0, Report)}, []string{"HandlerTimeout 0s", "at least 100ms"}},
		{"a choice that there is not", []Option{HandlerTimeout(time.Second, 7)}, []string{"HandlerTimeout StuckChoice(7)", "EndRun"}},
		{"no prefix", []Option{TransactionalIDPrefix("")}, []string{`TransactionalIDPrefix ""`, "required"}},
		{"commit interval", []Option{CommitInterval(9 * time.Millisecond)}, []string{"CommitInterval 9ms", "at least 10ms"}},
		{"writes", []Option{MaxWritesPerTransaction(0)}, []string{"MaxWritesPerTransaction 0", "at least 1"}},
		{"bytes", []Option{MaxBytesPerTransaction(-1)}, []string{"MaxBytesPerTransaction -1", "at least 1"}},
		{"stall", []Option{RecoveryStallTimeout(0)}, []string{"RecoveryStallTimeout 0s", "at least 1ms"}},
		{"concurrency", []Option{RecoveryConcurrency(0)}, []string{"RecoveryConcurrency 0", "at least 1"}},
		{"transaction timeout", []Option{TransactionTimeout(999 * time.Millisecond)}, []string{"TransactionTimeout 999ms", "at least 1s"}},
		{"a transaction timeout that does not fit its field", []Option{TransactionTimeout(30 * 24 * time.Hour)}, []string{"TransactionTimeout", "720h"}},
		{"a prefix that makes no transactional id", []Option{TransactionalIDPrefix(strings.Repeat("x", 20_000))}, []string{"TransactionalIDPrefix"}},
		{"replication", []Option{CreateSnapshotTopic(0, nil)}, []string{"CreateSnapshotTopic replication 0", "at least 1", "-1"}},
		{"cleanup policy", []Option{CreateSnapshotTopic(1, map[string]string{"cleanup.policy": "compact,delete"})},
			[]string{"CreateSnapshotTopic cleanup.policy=compact,delete", "only compact"}},
		{"logger", []Option{Logger(nil)}, []string{"Logger nil", "slog.DiscardHandler"}},
		{"revoke timeout below zero", []Option{RevokeTimeout(-1)}, []string{"RevokeTimeout -1ns", "more than 0"}},
		{"revoke timeout as long as the session", []Option{RevokeTimeout(45 * time.Second)},
			[]string{"RevokeTimeout 45s", "less than 45s", "rebalance timeout (1m0s)", "session timeout (45s)"}},
		{"revoke timeout as long as a rebalance", []Option{RevokeTimeout(20 * time.Second), Kafka(kgo.RebalanceTimeout(20 * time.Second))},
			[]string{"RevokeTimeout 20s", "less than 20s", "rebalance timeout (20s)"}},
	}
}

func TestEachFaultIsRefusedByName(t *testing.T) {
	for _, f := range optionFaults() {
		t.Run(f.name, func(t *testing.T) {
			_, err := configOf(t, validOptions(t, f.opts...)...)
			require.Error(t, err)
			for _, s := range f.says {
				require.ErrorContains(t, err, s)
			}
			require.NotContains(t, strings.TrimPrefix(err.Error(), "persistence: the configuration cannot be used:\n"), "\n", "one fault")
			m, err := New(validOptions(t, f.opts...)...)
			require.Error(t, err)
			require.Nil(t, m)
		})
	}
}

// The options of kgo that break the fence, or that kgo refuses by itself.
func kafkaFaults() []fault {
	kafka := func(opts ...kgo.Opt) []Option { return []Option{Kafka(opts...)} }
	adjust := func(_ context.Context, o map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
		return o, nil
	}
	return []fault{
		{"auto commit marks", kafka(kgo.AutoCommitMarks()), []string{"kgo.AutoCommitMarks", "only this library commits"}},
		{"greedy auto commit", kafka(kgo.GreedyAutoCommit()), []string{"kgo.GreedyAutoCommit", "only this library commits"}},
		{"auto commit interval", kafka(kgo.AutoCommitInterval(time.Second)), []string{"kgo.AutoCommitInterval", "persistence.CommitInterval"}},
		{"transactional id", kafka(kgo.TransactionalID("mine")), []string{"kgo.TransactionalID:", "TransactionalIDPrefix"}},
		{"transaction timeout", kafka(kgo.TransactionTimeout(40 * time.Second)), []string{"kgo.TransactionTimeout", "persistence.TransactionTimeout"}},
		{"read_uncommitted", kafka(kgo.FetchIsolationLevel(kgo.ReadUncommitted())), []string{"kgo.FetchIsolationLevel", "only read_committed"}},
		{"control records", kafka(kgo.KeepControlRecords()), []string{"kgo.KeepControlRecords", "markers"}},
		{"regular expressions", kafka(kgo.ConsumeRegex()), []string{"kgo.ConsumeRegex", "by name"}},
		{"blocked rebalances", kafka(kgo.BlockRebalanceOnPoll()), []string{"kgo.BlockRebalanceOnPoll", "RevokeTimeout"}},
		{"manual flushing", kafka(kgo.ManualFlushing()), []string{"kgo.ManualFlushing"}},
		{"another topic always", kafka(kgo.DefaultProduceTopic("x"), kgo.DefaultProduceTopicAlways()), []string{"kgo.DefaultProduceTopicAlways", "another topic"}},
		{"no idempotence", kafka(kgo.DisableIdempotentWrite()), []string{"kgo.DisableIdempotentWrite", "idempotent"}},
		{"fewer acks", kafka(kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck())), []string{"kgo.RequiredAcks", "all in-sync replicas", "kgo.DisableIdempotentWrite"}},
		{"topics that spring up", kafka(kgo.AllowAutoTopicCreation()), []string{"kgo.AllowAutoTopicCreation", "CreateSnapshotTopic"}},
		{"adjusted offsets", kafka(kgo.AdjustFetchOffsetsFn(adjust)), []string{"kgo.AdjustFetchOffsetsFn"}},
		{"two topics", kafka(kgo.ConsumeTopics("in", "more")), []string{"kgo.ConsumeTopics", "exactly one", "got 2", `"in"`, `"more"`}},
		{"no topics", kafka(kgo.ConsumeTopics()), []string{"kgo.ConsumeTopics", "exactly one", "got 0"}},
		{"no group", kafka(kgo.ConsumerGroup("")), []string{"kgo.ConsumerGroup", "required"}},
		{"no reset but from a commit", kafka(kgo.ConsumeStartOffset(kgo.NewOffset().AtCommitted())), []string{"kgo.ConsumeStartOffset", "AtStart, AtEnd, At and AfterMilli"}},
		{"relative to the end", kafka(kgo.ConsumeStartOffset(kgo.NewOffset().AtEnd().Relative(-10))), []string{"kgo.ConsumeStartOffset", "AtStart, AtEnd, At and AfterMilli"}},
		{"relative to the start", kafka(kgo.ConsumeStartOffset(kgo.NewOffset().AtStart().Relative(3))), []string{"kgo.ConsumeStartOffset"}},
		{"relative to a reset offset", kafka(kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd().Relative(-10))), []string{"kgo.ConsumeStartOffset"}},
		{"back in time", kafka(kgo.ConsumeStartOffset(kgo.LookbackOffset(time.Hour))), []string{"kgo.ConsumeStartOffset"}},
		{"back in time by nothing", kafka(kgo.ConsumeStartOffset(kgo.LookbackOffset(0))), []string{"kgo.ConsumeStartOffset"}},
		{"a time before all times", kafka(kgo.ConsumeStartOffset(kgo.NewOffset().AfterMilli(-5))), []string{"kgo.ConsumeStartOffset"}},

		{"cancelled produces", kafka(kgo.AllowIdempotentProduceCancellation()), []string{"ancel"}},
		{"partitions", kafka(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"other": {0: kgo.NewOffset()}})), []string{"Kafka", "direct-partition", "group"}},
		{"partitions without a group", kafka(kgo.ConsumerGroup(""), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"other": {0: kgo.NewOffset()}})), []string{"Kafka", "group"}},
		{"a share group", kafka(kgo.ShareGroup("s")), []string{"Kafka", "ShareGroup"}},
		{"fewer acks with idempotence", kafka(kgo.RequiredAcks(kgo.NoAck())), []string{"Kafka", "acks"}},
		{"no brokers", kafka(kgo.SeedBrokers()), []string{"Kafka", "seed brokers"}},
		{"no codec", kafka(kgo.WithHooks(3)), []string{"Kafka", "hook"}},
	}
}

func TestKafkaOptionsThatBreakTheFenceAreRefusedByName(t *testing.T) {
	for _, f := range kafkaFaults() {
		t.Run(f.name, func(t *testing.T) {
			var err error
			synctest.Test(t, func(t *testing.T) {
				var m *Module
				if m, err = New(validOptions(t, f.opts...)...); err == nil {
					_ = m.Close(t.Context())
				}
			})
			require.Error(t, err)
			for _, s := range f.says {
				require.ErrorContains(t, err, s)
			}
		})
	}
}

func TestAllFaultsAreReportedTogether(t *testing.T) {
	var all []Option
	var says []string
	for _, f := range []fault{
		{opts: []Option{SnapshotTopic("my state")}, says: []string{`SnapshotTopic "my state"`}},
		{opts: []Option{TransactionalIDPrefix("")}, says: []string{"TransactionalIDPrefix"}},
		{opts: []Option{CommitInterval(0), MaxWritesPerTransaction(0), MaxBytesPerTransaction(0)}, says: []string{"CommitInterval", "MaxWritesPerTransaction", "MaxBytesPerTransaction"}},
		{opts: []Option{RecoveryStallTimeout(0), RecoveryConcurrency(0), TransactionTimeout(0)}, says: []string{"RecoveryStallTimeout", "RecoveryConcurrency", "TransactionTimeout 0s"}},
		{opts: []Option{CreateSnapshotTopic(-7, map[string]string{"cleanup.policy": "delete"}), Logger(nil)}, says: []string{"replication -7", "cleanup.policy=delete", "Logger"}},
		{opts: []Option{Kafka(kgo.ConsumeTopics("a", "b"), kgo.AutoCommitMarks(), kgo.AutoCommitInterval(time.Second), kgo.TransactionalID("x"), kgo.TransactionTimeout(time.Second),
			kgo.FetchIsolationLevel(kgo.ReadUncommitted()), kgo.ManualFlushing(), kgo.KeepControlRecords(), kgo.BlockRebalanceOnPoll(), kgo.ConsumeRegex(),
			kgo.ConsumeStartOffset(kgo.NewOffset().AtCommitted()))},
			says: []string{"kgo.ConsumeTopics", "kgo.AutoCommitMarks", "kgo.AutoCommitInterval", "kgo.TransactionalID:", "kgo.TransactionTimeout", "kgo.FetchIsolationLevel",
				"kgo.ManualFlushing", "kgo.KeepControlRecords", "kgo.BlockRebalanceOnPoll", "kgo.ConsumeRegex", "kgo.ConsumeStartOffset"}},
	} {
		all = append(all, f.opts...)
		says = append(says, f.says...)
	}
	_, err := configOf(t, validOptions(t, all...)...)
	require.Error(t, err)
	for _, s := range says {
		require.ErrorContains(t, err, s)
	}
	lines := strings.Split(err.Error(), "\n")
	require.Len(t, lines, 1+len(says), "a line for each, and one that says what they are: %v", err)
}

func TestNothingGivenNamesAllThatIsRequired(t *testing.T) {
	_, err := configOf(t)
	for _, s := range []string{"SnapshotTopic", "TransactionalIDPrefix", "Kafka"} {
		require.ErrorContains(t, err, s)
	}
	_, err = configOf(t, SnapshotTopic("state"), TransactionalIDPrefix("p"), Kafka(kgo.SeedBrokers("broker.invalid:9092")))
	require.ErrorContains(t, err, "kgo.ConsumerGroup")
	require.ErrorContains(t, err, "kgo.ConsumeTopics")
}

type countingHook struct{}

func (*countingHook) OnBrokerConnect(kgo.BrokerMetadata, time.Duration, net.Conn, error) {}

func TestTheUsersKafkaOptionsAreHonoured(t *testing.T) {
	called := make(map[string]int)
	callback := func(name string) partitionsFunc {
		return func(context.Context, *kgo.Client, map[string][]int32) { called[name]++ }
	}
	c, err := configOf(t, validOptions(t, Kafka(
		kgo.DisableAutoCommit(), // as the library does itself
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.InstanceID("pod-3"),
		kgo.OnPartitionsAssigned(callback("assigned")), kgo.OnPartitionsRevoked(callback("revoked")), kgo.OnPartitionsLost(callback("lost")),
		kgo.RecordPartitioner(kgo.RoundRobinPartitioner()),
		kgo.Balancers(kgo.RangeBalancer()),
		kgo.SessionTimeout(20*time.Second), kgo.RebalanceTimeout(10*time.Second), kgo.HeartbeatInterval(2*time.Second),
		kgo.ProducerBatchMaxBytes(5000),
		kgo.ServerSideBalancer(),
		kgo.MaxVersions(kversion.V3_0_0()),
	))...)
	require.NoError(t, err)
	u := c.user
	require.Equal(t, "pod-3", *u.instanceID)
	for name, f := range map[string]partitionsFunc{"assigned": u.onAssigned, "revoked": u.onRevoked, "lost": u.onLost} {
		require.NotNil(t, f, name)
		f(t.Context(), anyClient(t), nil)
		require.Equal(t, 1, called[name], name)
	}
	require.IsType(t, kgo.RoundRobinPartitioner(), u.partitioner)
	require.Equal(t, 20*time.Second, u.sessionTimeout)
	require.Equal(t, 10*time.Second, u.rebalanceTimeout)
	require.Equal(t, 2*time.Second, u.heartbeatInterval)
	require.Equal(t, 5*time.Second, c.revokeTimeout, "half of the shorter one")
	require.EqualValues(t, 5000, u.batchMaxBytes("any"))
	require.True(t, u.serverSide)
	max, ok := u.maxVersions.LookupMaxKeyVersion(kmsg.TxnOffsetCommit.Int16())
	require.True(t, ok)
	require.EqualValues(t, 3, max)
}

// anyClient is for callbacks: kgo's wrappers around them log with it.
func anyClient(t *testing.T) *kgo.Client {
	cl, err := kgo.NewClient(kafkaOpts(t)[0])
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return cl
}

// kgo puts a revoke of its own, which commits, in the place of a missing one.
func TestCallbacksThatWereNotGivenDoNothing(t *testing.T) {
	c, err := configOf(t, validOptions(t, Kafka(kgo.AutoCommitCallback(func(*kgo.Client, *kmsg.OffsetCommitRequest, *kmsg.OffsetCommitResponse, error) {
		t.Error("offsets were committed")
	})))...)
	require.NoError(t, err)
	cl := anyClient(t)
	for _, f := range []partitionsFunc{c.user.onAssigned, c.user.onRevoked, c.user.onLost} {
		if f != nil {
			f(t.Context(), cl, map[string][]int32{"in": {0}})
		}
	}
}

func TestStartOffsets(t *testing.T) {
	start, end := startPolicy{timestamp: wire.LogStart, exact: -1}, startPolicy{timestamp: wire.LogEnd, exact: -1}
	for _, c := range []struct {
		name string
		opt  kgo.Opt
		want startPolicy
	}{
		{"the start", kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), start},
		{"the end", kgo.ConsumeStartOffset(kgo.NewOffset().AtEnd()), end},
		{"zero", kgo.ConsumeStartOffset(kgo.NewOffset().At(0)), startPolicy{exact: 0}},
		{"an exact one", kgo.ConsumeStartOffset(kgo.NewOffset().At(12345)), startPolicy{exact: 12345}},
		{"a time", kgo.ConsumeStartOffset(kgo.NewOffset().AfterMilli(1700000000000)), startPolicy{timestamp: 1700000000000, exact: -1}},
		{"the epoch", kgo.ConsumeStartOffset(kgo.NewOffset().AfterMilli(0)), startPolicy{timestamp: 0, exact: -1}},
		{"without a reset, the start", kgo.ConsumeStartOffset(kgo.NoResetOffset().AtStart()), start},
		{"without a reset, the end", kgo.ConsumeStartOffset(kgo.NoResetOffset().AtEnd()), end},
		{"without a reset, a time", kgo.ConsumeStartOffset(kgo.NoResetOffset().AfterMilli(99)), startPolicy{timestamp: 99, exact: -1}},
		{"without a reset, an exact one", kgo.ConsumeStartOffset(kgo.NoResetOffset().At(7)), startPolicy{exact: 7}},
		{"a reset offset alone", kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()), end},
		{"a reset that rewinds starts nothing", kgo.ConsumeResetOffset(kgo.RewindOffset(time.Minute)), start},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := configOf(t, validOptions(t, Kafka(c.opt))...)
			require.NoError(t, err)
			require.Equal(t, c.want, cfg.user.start)
		})
	}
}

// New talks to nobody: the dialer fails the test, and the bubble fails it if a
// goroutine is left after Close.
func TestNewTalksToNobodyAndCloseLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := New(validOptions(t)...)
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, m.Close(t.Context()))
		require.NoError(t, m.Close(t.Context()), "again")
		err = m.Run(t.Context(), func(context.Context, *Partition) error { return nil })
		require.ErrorContains(t, err, "not after Close")
	})
}

func TestTheClientsKeepTheUsersOptions(t *testing.T) {
	hook := new(countingHook)
	callbacks := 0
	callback := func(context.Context, *kgo.Client, map[string][]int32) { callbacks++ }
	user := func(*testing.T) []kgo.Opt {
		return []kgo.Opt{
			kgo.SeedBrokers("broker.invalid:9092"), kgo.ConsumerGroup("orders"), kgo.ConsumeTopics("in"),
			kgo.ClientID("orders-7"),
			kgo.DialTLSConfig(&tls.Config{ServerName: "broker.invalid", MinVersion: tls.VersionTLS13}),
			kgo.SASL(scram.Auth{User: "u", Pass: "p"}.AsSha512Mechanism()),
			kgo.WithHooks(hook),
			kgo.WithLogger(kgo.BasicLogger(io.Discard, kgo.LogLevelDebug, nil)),
			kgo.ProducerBatchCompression(kgo.ZstdCompression(), kgo.NoCompression()),
			kgo.InstanceID("pod-3"),
			kgo.Rack("a"),
			kgo.DisableAutoCommit(),
			kgo.OnPartitionsAssigned(callback),
			kgo.OnPartitionsRevoked(callback),
			kgo.OnPartitionsLost(callback),
			kgo.MetadataMinAge(time.Second), kgo.MetadataMaxAge(time.Second),
			kgo.ProducerLinger(50 * time.Millisecond),
			kgo.MaxBufferedRecords(3), kgo.MaxBufferedBytes(9000), kgo.ProducerBatchMaxBytes(700_000),
			kgo.RecordPartitioner(kgo.LeastBackupPartitioner()),
			kgo.ConsumeStartOffset(kgo.NewOffset().At(5)),
			kgo.FetchMaxWait(70 * time.Millisecond),
		}
	}
	for name, more := range map[string][]kgo.Opt{
		"the default balancer":     nil,
		"an eager balancer":        {kgo.Balancers(kgo.RangeBalancer(), kgo.RoundRobinBalancer())},
		"balanced by the servers":  {kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer())},
		"pinned versions":          {kgo.MaxVersions(kversion.V2_8_0())},
		"a limit for each topic":   {kgo.ProducerBatchMaxBytesFn(func(string) int32 { return 4096 })},
		"static, with a long name": {kgo.InstanceID(strings.Repeat("i", 200))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, err := New(validOptions(t, option(func(c *config) { c.kafka = append(user(nil), more...) }), TransactionTimeout(20*time.Second))...)
				require.NoError(t, err)
				defer func() { require.NoError(t, m.Close(context.Background())) }()
				m.snapshotMaxBytes.Store(100_000)

				for _, version := range []int16{0, 1, 2} {
					opts := m.producerOptions(transactionalID("orders", 3), version, kgo.WithHooks(new(watch)))
					require.NoError(t, kgo.ValidateOpts(opts...))
				}
				producer, err := kgo.NewClient(m.producerOptions(transactionalID("orders", 3), 2, kgo.WithHooks(new(watch)))...)
				require.NoError(t, err)
				defer producer.Close()

				for what, cl := range map[string]*kgo.Client{"consumer": m.consumer, "reader": m.reader, "producer": producer} {
					require.Equal(t, "orders-7", cl.OptValue(kgo.ClientID), what)
					require.Equal(t, "a", cl.OptValue(kgo.Rack), what)
					require.NotNil(t, cl.OptValue(kgo.DialTLSConfig), what)
					require.Len(t, cl.OptValue(kgo.SASL), 1, what)
					require.Contains(t, cl.OptValue(kgo.WithHooks), hook, what)
					require.NotNil(t, cl.OptValue(kgo.WithLogger), what)
					require.Equal(t, true, cl.OptValue(kgo.DisableAutoCommit), what)
					require.Empty(t, cl.OptValue(kgo.ConsumeTopics), "%s: nothing is consumed before Run, and a group without topics is not joined", what)
				}
				require.Len(t, producer.OptValue(kgo.WithHooks), 2, "the user's hook and the library's")

				require.Equal(t, []any{"orders-snapshot-3", true}, producer.OptValues(kgo.TransactionalID))
				require.Equal(t, 20*time.Second, producer.OptValue(kgo.TransactionTimeout))
				require.Equal(t, time.Duration(0), producer.OptValue(kgo.ProducerLinger), "a write goes at once")
				require.EqualValues(t, math.MaxInt32, producer.OptValue(kgo.MaxBufferedRecords), "a transaction has its own bounds")
				require.EqualValues(t, 0, producer.OptValue(kgo.MaxBufferedBytes))
				require.Len(t, producer.OptValue(kgo.ProducerBatchCompression), 2)
				require.Equal(t, time.Millisecond, producer.OptValue(kgo.ConcurrentTransactionsBackoff))
				for _, cl := range []*kgo.Client{m.reader, producer} {
					require.Equal(t, 10*time.Millisecond, cl.OptValue(kgo.MetadataMinAge))
					for _, callback := range []any{kgo.OnPartitionsAssigned, kgo.OnPartitionsRevoked, kgo.OnPartitionsLost} {
						if f, _ := cl.OptValue(callback).(partitionsFunc); f != nil {
							f(t.Context(), cl, nil)
						}
					}
				}

				require.Zero(t, callbacks, "the user's callbacks are for the group's member")

				require.Equal(t, int8(1), m.consumer.OptValue(kgo.FetchIsolationLevel))
				require.Equal(t, 70*time.Millisecond, m.consumer.OptValue(kgo.FetchMaxWait))
				require.Equal(t, "orders", m.consumer.OptValue(kgo.ConsumerGroup))
				require.Equal(t, m.cfg.user.instanceID != nil, m.consumer.OptValues(kgo.InstanceID)[1])
				require.NotNil(t, m.consumer.OptValue(kgo.AdjustFetchOffsetsFn))
				require.Equal(t, m.cfg.user.serverSide, m.consumer.OptValue(kgo.ServerSideBalancer))
				require.Equal(t, kgo.NoResetOffset(), m.consumer.OptValue(kgo.ConsumeResetOffset), "a position is never reset")
			})
		})
	}
}

func TestFetchesWaitHalfASecondUnlessTheUserSaysOtherwise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := New(validOptions(t)...)
		require.NoError(t, err)
		defer func() { require.NoError(t, m.Close(context.Background())) }()
		require.Equal(t, 500*time.Millisecond, m.consumer.OptValue(kgo.FetchMaxWait))
	})
}

func TestTransactionalIDsAreStableAndTheirOwn(t *testing.T) {
	require.Equal(t, "orders-snapshot-3", transactionalID("orders", 3))
	require.Equal(t, "orders-snapshot-120", transactionalID("orders", 120))
}

func TestSnapshotsGoToTheirPartitionAndOutputsWhereTheUserSays(t *testing.T) {
	p := snapshotPartitioner{topic: "state", other: kgo.BasicConsistentPartitioner(func(string) func(*kgo.Record, int) int {
		return func(_ *kgo.Record, n int) int { return n - 1 }
	})}
	require.Equal(t, 3, p.ForTopic("state").Partition(&kgo.Record{Partition: 3}, 8))
	require.Equal(t, 7, p.ForTopic("out").Partition(&kgo.Record{Partition: 3}, 8))
}

func TestARecordThatCannotFitABatchIsRefusedBeforehand(t *testing.T) {
	for _, c := range []struct {
		name  string
		kafka []kgo.Opt
		topic int32 // the snapshot topic's max.message.bytes, 0: not known
		limit int
	}{
		{"kgo's default", nil, 0, 1000012},
		{"the topic's, lower", nil, 5000, 5000},
		{"kgo's, lower", []kgo.Opt{kgo.ProducerBatchMaxBytes(3000)}, 5000, 3000},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := configOf(t, validOptions(t, Kafka(c.kafka...))...)
			require.NoError(t, err)
			m := &Module{cfg: cfg, consumer: new(kgo.Client), input: wire.Topic{Name: "in"}, snapshot: wire.Topic{Name: "state"}}
			m.snapshotMaxBytes.Store(c.topic)
			require.NoError(t, m.checkSize("state", c.limit-batchOverhead))
			err = m.checkSize("state", c.limit-batchOverhead+1)
			require.ErrorIs(t, err, ErrRecordTooLarge)
			require.ErrorContains(t, err, fmt.Sprint(c.limit-batchOverhead+1))
			require.ErrorContains(t, err, fmt.Sprint(c.limit-batchOverhead))
			require.ErrorContains(t, err, "topic state")
			if c.topic > 0 && c.kafka == nil {
				require.NoError(t, m.checkSize("out", c.limit), "other topics have limits of their own")
			}

			p := m.newPartition(0)
			defer p.kill(ErrClosed)
			err = p.Write(t.Context(), Snapshot{Key: []byte("small"), Value: []byte("v")}, Snapshot{Key: []byte("big"), Value: make([]byte, c.limit)})
			require.ErrorIs(t, err, ErrRecordTooLarge)
			require.ErrorContains(t, err, `snapshot 1, key "big"`)
			err = p.Apply(t.Context(), Batch{Outputs: []*kgo.Record{{Topic: "out", Value: make([]byte, 2_000_000)}}})
			require.ErrorIs(t, err, ErrRecordTooLarge)
			require.ErrorContains(t, err, "output 0")
			require.Zero(t, p.queue.len(), "it joins no batch")
		})
	}
}

func TestABatchThatMakesNoSenseIsRefusedBeforehand(t *testing.T) {
	m := &Module{cfg: defaults(), consumer: new(kgo.Client), input: wire.Topic{Name: "in"}, snapshot: wire.Topic{Name: "state"}}
	m.cfg.snapshotTopic = "state"
	key := []byte("k")
	for _, c := range []struct {
		name string
		b    Batch
		says string
	}{
		{"no key", Batch{Snapshots: []Snapshot{{Key: key}, {Value: []byte("v")}}}, "snapshot 1 has no key"},
		{"an empty key", Batch{Snapshots: []Snapshot{{Key: []byte{}}}}, "snapshot 0 has no key"},
		{"the library's header", Batch{Snapshots: []Snapshot{{Key: key, Headers: []kgo.RecordHeader{{Key: "persistence.source-offset"}}}}}, `"persistence.source-offset"`},
		{"the library's other header", Batch{Snapshots: []Snapshot{{Key: key, Headers: []kgo.RecordHeader{{Key: "persistence.committable-offset"}}}}}, `"persistence.committable-offset"`},
		{"a nil output", Batch{Outputs: []*kgo.Record{nil}}, "output 0 is nil"},
		{"an output for no topic", Batch{Outputs: []*kgo.Record{{}}}, "output 0 has no topic"},
		{"an output for the snapshot topic", Batch{Outputs: []*kgo.Record{{Topic: "state"}}}, "use Snapshots"},
		{"another partition's record", Batch{Snapshots: []Snapshot{{Key: key}}, Through: &kgo.Record{Topic: "in", Partition: 4}}, "record of partition 4 of in given to partition 0 of in"},
		{"another topic's record", Batch{Snapshots: []Snapshot{{Key: key}}, Through: &kgo.Record{Topic: "out"}}, "record of partition 0 of out"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := m.newPartition(0)
			defer p.kill(ErrClosed)
			err := p.Apply(t.Context(), c.b)
			certainlyNot(t, err)
			require.ErrorContains(t, err, c.says)
			require.Zero(t, p.queue.len())
		})
	}
}

func TestAnEmptyBatchDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		require.NoError(t, r.Write(t.Context()))
		require.NoError(t, r.Apply(t.Context(), Batch{}))
		require.Empty(t, r.calls())
		r.kill(ErrLost)
		require.ErrorIs(t, r.Apply(t.Context(), Batch{}), ErrLost, "but says that the ownership is over")
	})
}

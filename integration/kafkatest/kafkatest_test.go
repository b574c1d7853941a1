package kafkatest

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(leftoverChild) != "" {
		leaveCluster() // does not return
	}
	goleak.VerifyTestMain(Main(m))
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func newClient(t *testing.T, c *Cluster, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(c.Brokers()...),
		// Notice soon that a leader has moved.
		kgo.MetadataMinAge(50 * time.Millisecond),
	}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return cl
}

func requireTransaction(t *testing.T, c *Cluster) {
	t.Helper()
	ctx := within(t, 30*time.Second)
	topic := c.Topic(t, 1, "cleanup.policy=compact")

	producer := newClient(t, c, kgo.TransactionalID(t.Name()), kgo.DefaultProduceTopic(topic))
	require.NoError(t, producer.BeginTransaction())
	require.NoError(t, producer.ProduceSync(ctx, kgo.KeyStringRecord("key", "value")).FirstErr())
	producer.PurgeTopicsFromProducing("") // kgo may not have stored the topic yet, and would end nothing
	require.NoError(t, producer.EndTransaction(ctx, kgo.TryCommit))

	consumer := newClient(t, c, kgo.ConsumeTopics(topic),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	fetches := consumer.PollFetches(ctx)
	require.NoError(t, fetches.Err())
	records := fetches.Records()
	require.Len(t, records, 1)
	require.Equal(t, "value", string(records[0].Value))
}

func TestARecordIsProducedInATransactionAndConsumed(t *testing.T) {
	c := Start(t)
	require.Len(t, c.Brokers(), 1)
	require.Contains(t, []string{backendDocker, backendJava, backendBrokers}, c.Backend())
	t.Logf("Kafka %s from %s", c.Version(), c.Backend())
	requireTransaction(t, c)
}

func TestTheTransactionVersionIsTheOneAskedFor(t *testing.T) {
	for level := range 3 {
		t.Run(fmt.Sprint(level), func(t *testing.T) {
			c := Start(t, TransactionVersion(level))
			got, err := finalizedLevel(within(t, 10*time.Second), newClient(t, c), "transaction.version")
			require.NoError(t, err)
			require.Equal(t, level, got)
			requireTransaction(t, c)
		})
	}
}

// Each older release costs a download the first time.
func TestOlderReleasesStart(t *testing.T) {
	for _, version := range []string{"3.9.1", "3.3.2"} {
		t.Run(version, func(t *testing.T) {
			c := Start(t, Version(version), TransactionVersion(0))
			require.Equal(t, version, c.Version())
			requireTransaction(t, c)
			if c.Backend() == backendJava {
				require.Contains(t, c.Node(0).Log(), "Kafka version: "+version)
			}
		})
	}
}

func TestABrokerSettingIsAppliedOverOurs(t *testing.T) {
	c := Start(t, BrokerConfig("group.min.session.timeout.ms", "1234"), BrokerConfig("message.max.bytes", "4321"))
	ctx := within(t, 10*time.Second)
	configs, err := kadm.NewClient(newClient(t, c)).DescribeBrokerConfigs(ctx, 0)
	require.NoError(t, err)
	config, err := configs.On("0", nil)
	require.NoError(t, err)
	values := make(map[string]string)
	for _, kv := range config.Configs {
		values[kv.Key] = kv.MaybeValue()
	}
	require.Equal(t, "1234", values["group.min.session.timeout.ms"])
	require.Equal(t, "4321", values["message.max.bytes"])

	// The release knows each of our own settings, or it would ignore it.
	for key, value := range quickSettings(1) {
		if key != "group.min.session.timeout.ms" {
			require.Equal(t, value, values[key], key)
		}
	}
}

func TestClosingTwiceIsHarmless(t *testing.T) {
	c := Start(t)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	_, err := c.CreateTopic(within(t, 10*time.Second), "late", 1)
	require.Error(t, err)
}

func TestStartEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := New(ctx)
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrUnavailable)
}

// stuckMachine is a broker that runs and never serves.
type stuckMachine struct{ machine }

func (stuckMachine) launch(context.Context, string) error { return nil }
func (stuckMachine) exited() bool                         { return false }
func (stuckMachine) log() string                          { return "still thinking" }

func TestAClusterThatGetsStuckIsToldWithItsLog(t *testing.T) {
	cfg, err := newConfig(nil)
	require.NoError(t, err)
	c := &Cluster{backend: backendJava, version: "1.2.3", config: cfg}
	defer func() { require.NoError(t, c.Close()) }()
	err = c.startOnFreePorts(within(t, 200*time.Millisecond), 1, func(ports []int) error {
		c.addNode(localAddr(ports[0]), stuckMachine{})
		return nil
	})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	for _, part := range []string{
		"start Kafka 1.2.3", "node 0 does not serve", "from the log of node 0", "still thinking",
	} {
		require.ErrorContains(t, err, part)
	}
}

package persistence_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/scenario"
)

// Checks before joining that need a cluster set up for them.

// Before 2.5 the coordinator does not look at the generation in a transaction,
// so there is no fence.
func TestBrokersWithoutTheGenerationCheckAreRefused(t *testing.T) {
	for _, c := range []struct {
		versions *kversion.Versions
		name     string
		refused  bool
	}{
		{kversion.V2_0_0(), "2.0", true},
		{kversion.V2_4_0(), "2.4", true},
		{kversion.V2_5_0(), "2.5", false},
		{kversion.V3_9_0(), "3.9", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, cluster := clusterWorld(t, 1, kfake.MaxVersions(c.versions))
			m := w.Start(false)
			if !c.refused {
				o := m.Own()
				require.NoError(w, o.Write(w.Ctx, persistence.Snapshot{Key: []byte("k"), Value: []byte("1")}))
				require.NoError(w, m.Stop())
				return
			}
			err := m.Wait()
			require.ErrorContains(w, err, "version 3 is needed, which came with Apache Kafka 2.5")
			require.Nil(w, cluster.GroupInfo(w.Group), "the group was joined")
		})
	}
}

// Nobody may create a topic by asking for it: it would have the broker's default
// of partitions. Where the brokers do so, the module does not ask, and the
// option that would make it ask is refused.
func TestMissingTopicsAreNotCreatedByTheBrokers(t *testing.T) {
	for _, missing := range []string{"input", "snapshot"} {
		t.Run(missing, func(t *testing.T) {
			w, c := clusterWorld(t, 3, kfake.AllowAutoTopicCreation(), kfake.DefaultNumPartitions(7))
			topic := &w.Input
			if missing == "snapshot" {
				topic = &w.State
			}
			*topic += "-missing"
			err := w.Start(false).Wait()
			require.ErrorContains(w, err, missing+" topic "+*topic+" does not exist")
			require.Nil(w, c.TopicInfo(*topic))
			require.Nil(w, c.GroupInfo(w.Group))

			_, err = persistence.New(w.Options([]kgo.Opt{kgo.AllowAutoTopicCreation()})...)
			require.ErrorContains(w, err, "kgo.AllowAutoTopicCreation")
		})
	}
}

func acl(resource kmsg.ACLResourceType, operation kmsg.ACLOperation) kfake.ACL {
	return kfake.ACL{Resource: resource, Name: "s", Pattern: kmsg.ACLResourcePatternTypePrefixed, Operation: operation, Allow: true}
}

// A service that may not read a topic's settings is warned that nobody checks
// them, and works.
func TestSettingsThatMayNotBeReadAreAWarning(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.EnableSASL(), kfake.EnableACLs(),
		kfake.Superuser("PLAIN", "admin", "admin"),
		kfake.User("PLAIN", "service", "service",
			acl(kmsg.ACLResourceTypeTopic, kmsg.ACLOperationRead), acl(kmsg.ACLResourceTypeTopic, kmsg.ACLOperationWrite),
			acl(kmsg.ACLResourceTypeGroup, kmsg.ACLOperationRead),
			acl(kmsg.ACLResourceTypeTransactionalId, kmsg.ACLOperationWrite), acl(kmsg.ACLResourceTypeTransactionalId, kmsg.ACLOperationDescribe)))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	as := func(user string) []kgo.Opt {
		return []kgo.Opt{kgo.SASL(plain.Auth{User: user, Pass: user}.AsMechanism())}
	}
	w := scenario.NewWorld(t, scenario.Backend{Brokers: c.ListenAddrs(), Opts: as("admin"), TransactionVersion: 2}, 1)
	w.Opts = as("service")
	book := w.Book()
	m := w.Start(false, persistence.Logger(book.Logger()))
	o := m.Own()
	require.True(w, book.Has("level=WARN", "settings may not be read", "allow DescribeConfigs"))
	w.Produce(0, "e")
	require.NoError(w, o.Apply(w.Ctx, persistence.Batch{Snapshots: []persistence.Snapshot{{Key: []byte("k"), Value: []byte("1")}}, Through: o.Events(w, 1)[0]}))
	require.EqualValues(w, 1, w.Committed(0).Offset)
	require.NoError(w, m.Stop())
}

// Other trouble with the settings is not mistaken for that.
func TestSettingsThatCannotBeReadEndRun(t *testing.T) {
	w, c := clusterWorld(t, 1)
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Err: kerr.InvalidRequest, Count: -1})
	err := w.Start(false).Wait()
	require.ErrorIs(w, err, kerr.InvalidRequest)
	require.ErrorContains(w, err, w.State)
	require.Nil(w, c.GroupInfo(w.Group))
}

func TestSnapshotsThatOneDiskCanLoseAreAWarning(t *testing.T) {
	const warning = "do not survive the loss of one disk"
	for _, c := range []struct {
		name        string
		brokers     int
		replication int16
		minInsync   string
		warned      bool
	}{
		{"one replica", 3, 1, "1", true},
		{"one in sync", 3, 3, "1", true},
		{"two in sync of three", 3, 3, "2", false},
		{"a single broker", 1, 1, "1", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, _ := clusterWorld(t, 1, kfake.NumBrokers(c.brokers))
			w.State += "-replicated"
			compact := "compact"
			_, err := kadm.NewClient(w.Admin).CreateTopic(w.Ctx, 1, c.replication, map[string]*string{"cleanup.policy": &compact, "min.insync.replicas": &c.minInsync}, w.State)
			require.NoError(w, err)
			book := w.Book()
			m := w.Start(false, persistence.Logger(book.Logger()))
			m.Own()
			require.Equal(w, c.warned, book.Has("level=WARN", warning, w.State))
			require.NoError(w, m.Stop())
		})
	}
}

package persistence_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence/internal/scenario"
)

// newCluster starts an in-process cluster at a transaction.version, and fails
// the test if this library sends it an offset commit that it could not fence.
func newCluster(t *testing.T, transactionVersion int) (*kfake.Cluster, scenario.Backend) {
	c, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.BrokerConfigs(map[string]string{
		"group.min.session.timeout.ms":         "1000",
		"group.consumer.heartbeat.interval.ms": "300",
	}))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	if transactionVersion < 2 {
		lowerTransactionVersion(t, c, int16(transactionVersion))
	}
	requireMemberships(t, c)
	return c, scenario.Backend{Brokers: c.ListenAddrs(), TransactionVersion: transactionVersion}
}

func lowerTransactionVersion(t *testing.T, c *kfake.Cluster, to int16) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	require.NoError(t, err)
	defer cl.Close()
	r := kmsg.NewPtrUpdateFeaturesRequest()
	f := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	f.Feature, f.MaxVersionLevel, f.UpgradeType, f.AllowDowngrade = "transaction.version", to, 3, true
	r.FeatureUpdates = append(r.FeatureUpdates, f)
	resp, err := r.RequestWith(context.Background(), cl)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(resp.ErrorCode))
	for _, f := range resp.Results {
		require.NoError(t, kerr.ErrorForCode(f.ErrorCode))
	}
}

// requireMemberships watches every offset commit of this library, which its
// metadata shows: one without a member, or without a live generation, would
// not be checked by the coordinator of an empty group.
func requireMemberships(t *testing.T, c *kfake.Cluster) {
	check := func(kind, member string, generation int32, metadata *string) {
		if metadata == nil || !strings.HasPrefix(*metadata, "persistence:") {
			return
		}
		if member == "" || generation <= 0 {
			t.Errorf("%s of member %q at generation %d", kind, member, generation)
		}
	}
	c.ControlKey(kmsg.TxnOffsetCommit.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		r := req.(*kmsg.TxnOffsetCommitRequest)
		check("TxnOffsetCommit", r.MemberID, r.Generation, r.Topics[0].Partitions[0].Metadata)
		return nil, nil, false
	})
	c.ControlKey(kmsg.OffsetCommit.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		r := req.(*kmsg.OffsetCommitRequest)
		check("OffsetCommit", r.MemberID, r.Generation, r.Topics[0].Partitions[0].Metadata)
		return nil, nil, false
	})
}

// The suite again, under the older ways of transactions, and with every offset
// commit watched.
func TestScenariosInProcessOnEveryTransactionVersion(t *testing.T) {
	for version := range 2 {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			_, backend := newCluster(t, version)
			scenario.Run(t, backend)
		})
	}
}

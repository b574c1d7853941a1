package persistence_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/kafkafence/persistence/internal/scenario"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The suite on an in-process cluster. integration runs the same on real ones.
func TestScenariosInProcess(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.BrokerConfigs(map[string]string{"group.min.session.timeout.ms": "1000"}))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	scenario.Run(t, scenario.Backend{Brokers: c.ListenAddrs(), TransactionVersion: 2})
}

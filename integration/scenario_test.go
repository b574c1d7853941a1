// Package integration runs what needs a real Apache Kafka.
package integration

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/kafkafence/persistence/integration/kafkatest"
	"github.com/kafkafence/persistence/internal/scenario"
)

func TestMain(m *testing.M) {
	childMain()
	goleak.VerifyTestMain(kafkatest.Main(m))
}

// The suite that the in-process cluster passes, on a real one, for each version
// of the transaction protocol.
func TestScenarios(t *testing.T) {
	for _, version := range []int{2, 1, 0} {
		t.Run(fmt.Sprintf("TransactionVersion%d", version), func(t *testing.T) {
			c := kafkatest.Shared(t, kafkatest.TransactionVersion(version))
			scenario.Run(t, scenario.Backend{Brokers: c.Brokers(), TransactionVersion: version, Cleaner: c.Backend() != "brokers"})
		})
	}
}

package persistence_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/kafkafence/persistence/internal/scenario"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The suite on an in-process cluster. integration runs the same on real ones.
func TestScenariosInProcess(t *testing.T) {
	_, backend := newCluster(t, 2)
	scenario.Run(t, backend)
}

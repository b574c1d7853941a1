package persistence_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/scenario"
)

// A member that is stopped while the coordinator keeps it waiting for others does
// not wait for them.
func TestCloseDoesNotWaitForAJoinThatIsNotAnswered(t *testing.T) {
	inVirtualTime(t, 1, func(w *scenario.World, _ *kfake.Cluster) {
		n := w.NewNetwork()
		join := n.All(kmsg.JoinGroup, scenario.Hold)
		m := w.StartKafka(false, []kgo.Opt{n.Opt()}, persistence.RevokeTimeout(3*time.Second))
		join.Await()
		began := time.Now()
		require.NoError(w, m.Stop())
		require.LessOrEqual(w, time.Since(began), 10*time.Second)
		join.Release()
	})
}

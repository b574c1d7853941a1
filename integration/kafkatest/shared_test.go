package kafkatest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSharedClusters(t *testing.T) {
	first := Shared(t)
	require.Same(t, first, Shared(t))
	requireTransaction(t, first)
	require.NotSame(t, first, Shared(t, BrokerConfig("message.max.bytes", "4321")))

	// A new one after the end of the old.
	require.NoError(t, StopShared())
	second := Shared(t)
	require.NotSame(t, first, second)
	requireTransaction(t, second)
}

type runner func() int

func (r runner) Run() int { return r() }

func TestMainStopsSharedClustersAfterTheTests(t *testing.T) {
	var c *Cluster
	code := Main(runner(func() int {
		c = Shared(t)
		requireTransaction(t, c)
		return 3
	})).Run()
	require.Equal(t, 3, code)
	_, err := c.CreateTopic(within(t, 10*time.Second), "late", 1)
	require.Error(t, err)
}

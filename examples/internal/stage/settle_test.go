package stage

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/kafkafence/persistence/examples/internal/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A member that processes an event of partition 1 and writes what follows from it
// to partition 0, after Settle has looked at partition 0.
func TestSettleSeesWhatIsWrittenWhileItLooks(t *testing.T) {
	fake := kfake.MustCluster(kfake.NumBrokers(1), kfake.SeedTopics(Partitions, "in"))
	defer fake.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, err := cluster.Open(ctx, fake.ListenAddrs()[0])
	require.NoError(t, err)
	defer c.Close()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	defer cl.Close()
	s := &Stage{Cluster: c, Client: cl}
	adm := kadm.NewClient(cl)
	commit := func(partition int32, at int64) {
		var o kadm.Offsets
		o.AddOffset("in", partition, at, -1)
		require.NoError(t, adm.CommitAllOffsets(ctx, "g", o))
	}
	produce := func(partition int32) {
		require.NoError(t, s.Produce(ctx, &kgo.Record{Topic: "in", Partition: partition, Value: []byte("x")}))
	}
	produce(0)
	commit(0, 1)
	produce(1)
	var looks atomic.Int32
	fake.ControlKey(int16(kmsg.OffsetFetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		switch looks.Add(1) {
		case 2:
			done := make(chan struct{})
			go func() { defer close(done); produce(0); commit(1, 1) }()
			fake.SleepControl(func() { <-done })
		case 4 * Partitions: // it has looked often enough
			cancel()
		}
		return nil, nil, false
	})
	require.ErrorIs(t, s.Settle(ctx, "g", "in"), context.Canceled, "partition 0 ends at 2, and 1 is committed")
}

package integration

import (
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/integration/kafkatest"
	"github.com/kafkafence/persistence/internal/scenario"
)

// Transactions that hang: the leader of a partition has one open, and no
// coordinator knows of it. They come about when a produce request outlives its
// transaction. Brokers from 3.6 on ask the coordinator before they append
// (KIP-890), so that they have to be told not to.

// Whatever the log ends in, a recovery says that the transaction hangs, and the
// command that it gives is the one that lets the next recovery through.
func TestRecoveryNamesATransactionThatHangs(t *testing.T) {
	for _, version := range []int{2, 1, 0} {
		t.Run(fmt.Sprintf("TransactionVersion%d", version), func(t *testing.T) {
			t.Parallel()
			c := kafkatest.Start(t, kafkatest.TransactionVersion(version), kafkatest.BrokerConfig("transaction.partition.verification.enable", "false"))
			w := scenario.NewWorld(t, scenario.Backend{Brokers: c.Brokers(), TransactionVersion: version}, scenario.HangingPartitions())
			scenario.HangingEndings(w, func(partition int32) { hang(w, partition) })
		})
	}
}

// hang appends a record of a transaction that its producer never began.
func hang(w *scenario.World, partition int32) {
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(kmsg.Produce.Int16(), 11) // a later one adds the partition to the transaction
	cl := w.Client(kgo.MaxVersions(versions))

	id := fmt.Sprintf("%s-hangs-%d", w.Input, partition)
	init := kmsg.NewPtrInitProducerIDRequest()
	init.TransactionalID, init.TransactionTimeoutMillis = &id, 60_000
	producer, err := init.RequestWith(w.Ctx, cl)
	require.NoError(w, err)
	require.NoError(w, kerr.ErrorForCode(producer.ErrorCode))

	r := kmsg.NewPtrProduceRequest()
	r.TransactionID, r.Acks, r.TimeoutMillis = &id, -1, 10_000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = w.State
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = partition, transactionalBatch(producer.ProducerID, producer.ProducerEpoch, "held", "1")
	rt.Partitions = append(rt.Partitions, rp)
	r.Topics = append(r.Topics, rt)
	resp, err := r.RequestWith(w.Ctx, cl)
	require.NoError(w, err)
	require.NoError(w, kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode))
}

// transactionalBatch encodes a producer's first batch, of one record.
func transactionalBatch(producer int64, epoch int16, key, value string) []byte {
	const transactional, lengthEnd, crcEnd = 0b1_0000, 12, 21
	record := kmsg.Record{Key: []byte(key), Value: []byte(value)}
	record.Length = int32(len(record.AppendTo(nil)) - 1)
	now := time.Now().UnixMilli()
	batch := kmsg.RecordBatch{PartitionLeaderEpoch: -1, Magic: 2, Attributes: transactional, FirstTimestamp: now, MaxTimestamp: now,
		ProducerID: producer, ProducerEpoch: epoch, NumRecords: 1, Records: record.AppendTo(nil)}
	batch.Length = int32(len(batch.AppendTo(nil)) - lengthEnd)
	batch.CRC = int32(crc32.Checksum(batch.AppendTo(nil)[crcEnd:], crc32.MakeTable(crc32.Castagnoli)))
	return batch.AppendTo(nil)
}

// A leader that hangs does not answer at first, and then the cluster takes the
// leadership from it, which nobody else can have.
func TestDiagnoseSaysThatTheOnlyReplicaIsGone(t *testing.T) {
	t.Parallel()
	c := kafkatest.Start(t, kafkatest.Nodes(3), kafkatest.NodeControl())
	w := scenario.NewWorld(t, scenario.Backend{Brokers: c.Brokers(), TransactionVersion: 2}, 1)
	topic := w.State + "-alone"
	adm := kadm.NewClient(w.Admin)
	_, err := adm.CreateTopic(w.Ctx, 1, 1, nil, topic)
	require.NoError(t, err)
	var d persistence.Diagnosis
	diagnosed := func(want persistence.Condition, says string) func() bool {
		return func() bool {
			all, err := persistence.Diagnose(w.Ctx, w.Admin, topic)
			if errors.Is(err, kerr.UnknownTopicOrPartition) { // not every broker has heard of it yet
				return false
			}
			require.NoError(t, err)
			d = all[0]
			return d.Condition == want && strings.Contains(d.Finding, says)
		}
	}
	w.Eventually("it can be read", diagnosed(persistence.Readable, "up to 0"))

	leader := c.Node(int(d.Leader))
	require.NoError(t, leader.Pause(w.Ctx))
	w.Eventually("it is missed", diagnosed(persistence.LeaderUnreachable, ""))
	w.Eventually("the leadership is taken from it", diagnosed(persistence.LeaderUnreachable,
		fmt.Sprintf("the partition has no leader; its replicas are on brokers [%d]", leader.ID())))
	require.NoError(t, leader.Resume(w.Ctx))
	w.Eventually("it can be read again", diagnosed(persistence.Readable, "up to 0"))
}

package persistence

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/kafkafence/persistence/internal/wire"
)

// A kgo option is opaque, but a client built from it answers OptValue. The
// client that the user's options are read with has an ended context, so that it
// never dials.

type partitionsFunc = func(context.Context, *kgo.Client, map[string][]int32)

// userOptions is what the module needs to know of the user's kgo options.
type userOptions struct {
	topic             string
	group             string
	instanceID        *string
	start             startPolicy
	onAssigned        partitionsFunc
	onRevoked         partitionsFunc
	onLost            partitionsFunc
	partitioner       kgo.Partitioner
	maxVersions       *kversion.Versions
	batchMaxBytes     func(string) int32
	sessionTimeout    time.Duration
	rebalanceTimeout  time.Duration
	heartbeatInterval time.Duration
	serverSide        bool // KIP-848 asked for
}

// Values that nobody would set: an option that still has one after the user's
// options were applied was not among them.
const (
	unsetInterval = 987654321 * time.Nanosecond
	unsetTxnLimit = 987654 * time.Millisecond
	unsetGroup    = "\x00"
)

// readUserOptions reads the options, and refuses those that would break the
// fence, all at once.
func readUserOptions(opts []kgo.Opt) (userOptions, error) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	probe := slices.Concat([]kgo.Opt{
		// In place of kgo's own, which would commit.
		kgo.OnPartitionsRevoked(func(context.Context, *kgo.Client, map[string][]int32) {}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.AutoCommitInterval(unsetInterval),
		kgo.TransactionTimeout(unsetTxnLimit),
		kgo.ConsumerGroup(unsetGroup),
	}, opts, []kgo.Opt{kgo.WithContext(ended)})
	cl, err := kgo.NewClient(probe...)
	if err != nil {
		// Without a group kgo takes no callback, and needs none put in place.
		cl, err = kgo.NewClient(probe[1:]...)
	}
	if err != nil {
		return userOptions{}, fmt.Errorf("Kafka: %w", err)
	}
	defer cl.Close()

	var faults []error
	refuse := func(option, why string) { faults = append(faults, fmt.Errorf("Kafka: kgo.%s: %s", option, why)) }
	refuseSet := func(option any, name, why string) {
		if set, _ := cl.OptValue(option).(bool); set {
			refuse(name, why)
		}
	}

	var u userOptions
	u.group, _ = cl.OptValue(kgo.ConsumerGroup).(string)
	if u.group == "" || u.group == unsetGroup {
		refuse("ConsumerGroup", "a group is required: its generation is the fence")
	}
	topics, _ := cl.OptValue(kgo.ConsumeTopics).([]string)
	if len(topics) != 1 {
		refuse("ConsumeTopics", fmt.Sprintf("exactly one input topic is required, got %d %q; run a Module for each", len(topics), topics))
	} else {
		u.topic = topics[0]
	}
	if v := cl.OptValues(kgo.TransactionalID); len(v) == 2 && v[1] == true {
		refuse("TransactionalID", "each partition has its own; set TransactionalIDPrefix instead")
	}
	if d, _ := cl.OptValue(kgo.TransactionTimeout).(time.Duration); d != unsetTxnLimit {
		refuse("TransactionTimeout", "set persistence.TransactionTimeout instead")
	}
	if level, _ := cl.OptValue(kgo.FetchIsolationLevel).(int8); level != 1 {
		refuse("FetchIsolationLevel", "only read_committed is allowed, else events of aborted transactions would be processed")
	}
	const commits = "only this library commits the group's offsets; leave auto-commit options out"
	refuseSet(kgo.AutoCommitMarks, "AutoCommitMarks", commits)
	refuseSet(kgo.GreedyAutoCommit, "GreedyAutoCommit", commits)
	if d, _ := cl.OptValue(kgo.AutoCommitInterval).(time.Duration); d != unsetInterval {
		refuse("AutoCommitInterval", commits+"; set persistence.CommitInterval instead")
	}
	if f, _ := cl.OptValue(kgo.AdjustFetchOffsetsFn).(func(context.Context, map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error)); f != nil {
		refuse("AdjustFetchOffsetsFn", "the consumer must start where the fence starts, so the library resolves the offsets")
	}
	if p, _ := cl.OptValue(kgo.ConsumePartitions).(map[string]map[int32]kgo.Offset); len(p) > 0 {
		refuse("ConsumePartitions", "a partition owned outside of the group has no generation and cannot be fenced")
	}
	if g, _ := cl.OptValue(kgo.ShareGroup).(string); g != "" {
		refuse("ShareGroup", "a share group does not give a partition to one owner")
	}
	refuseSet(kgo.ConsumeRegex, "ConsumeRegex", "exactly one input topic is required, by name")
	refuseSet(kgo.BlockRebalanceOnPoll, "BlockRebalanceOnPoll", "the library polls on its own; a handler has until RevokeTimeout to flush")
	refuseSet(kgo.KeepControlRecords, "KeepControlRecords", "handlers would be given markers as if they were events")
	refuseSet(kgo.AllowAutoTopicCreation, "AllowAutoTopicCreation", "a missing input or snapshot topic would spring up with the broker's default partition count and cleanup.policy; create the topics, or set CreateSnapshotTopic")
	refuseSet(kgo.DisableIdempotentWrite, "DisableIdempotentWrite", "transactions need the idempotent producer")
	refuseSet(kgo.ManualFlushing, "ManualFlushing", "each transaction sends what it holds by itself")
	refuseSet(kgo.DefaultProduceTopicAlways, "DefaultProduceTopicAlways", "it would send snapshots to another topic")
	if a, _ := cl.OptValue(kgo.RequiredAcks).(kgo.Acks); a != kgo.AllISRAcks() {
		refuse("RequiredAcks", "only all in-sync replicas are allowed, else an acknowledged snapshot could be lost")
	}
	start, _ := cl.OptValue(kgo.ConsumeStartOffset).(kgo.Offset)
	if u.start, err = newStartPolicy(start); err != nil {
		faults = append(faults, fmt.Errorf("Kafka: kgo.ConsumeStartOffset: %w", err))
	}

	if v := cl.OptValues(kgo.InstanceID); len(v) == 2 && v[1] == true {
		id := v[0].(string)
		u.instanceID = &id
	}
	u.onAssigned, _ = cl.OptValue(kgo.OnPartitionsAssigned).(partitionsFunc)
	u.onRevoked, _ = cl.OptValue(kgo.OnPartitionsRevoked).(partitionsFunc)
	u.onLost, _ = cl.OptValue(kgo.OnPartitionsLost).(partitionsFunc)
	u.partitioner, _ = cl.OptValue(kgo.RecordPartitioner).(kgo.Partitioner)
	u.maxVersions, _ = cl.OptValue(kgo.MaxVersions).(*kversion.Versions)
	u.batchMaxBytes, _ = cl.OptValue(kgo.ProducerBatchMaxBytesFn).(func(string) int32)
	u.sessionTimeout, _ = cl.OptValue(kgo.SessionTimeout).(time.Duration)
	u.rebalanceTimeout, _ = cl.OptValue(kgo.RebalanceTimeout).(time.Duration)
	u.heartbeatInterval, _ = cl.OptValue(kgo.HeartbeatInterval).(time.Duration)
	u.serverSide, _ = cl.OptValue(kgo.ServerSideBalancer).(bool)
	return u, errors.Join(faults...)
}

// startPolicy is where a partition begins that has neither a committed offset
// nor snapshots.
type startPolicy struct {
	timestamp int64 // for ListOffsets: wire.LogStart, wire.LogEnd, or milliseconds
	exact     int64 // -1: look timestamp up
}

// newStartPolicy finds out what a kgo.Offset stands for, which it tells only by
// comparison.
func newStartPolicy(o kgo.Offset) (startPolicy, error) {
	at := o.EpochOffset().Offset
	for _, base := range []kgo.Offset{kgo.NewOffset(), kgo.NoResetOffset()} {
		switch o {
		case base.AtStart():
			return startPolicy{timestamp: wire.LogStart, exact: -1}, nil
		case base.AtEnd():
			return startPolicy{timestamp: wire.LogEnd, exact: -1}, nil
		case base.At(at):
			return startPolicy{exact: at}, nil
		case base.AfterMilli(at):
			if at >= 0 {
				return startPolicy{timestamp: at, exact: -1}, nil
			}
		}
	}
	return startPolicy{}, fmt.Errorf("%v: AtStart, AtEnd, At and AfterMilli are allowed, the offsets that resolve to one number for the consumer and the fence alike", o)
}

// consumerOptions are those of the client that is the group's member. It joins
// only when the input topic is added.
func (m *Module) consumerOptions() []kgo.Opt {
	return slices.Concat([]kgo.Opt{kgo.FetchMaxWait(500 * time.Millisecond)}, m.cfg.kafka, []kgo.Opt{
		kgo.ConsumeTopics(),
		kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// Missing offsets are resolved at takeover; AtStart only marks them.
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.OnPartitionsAssigned(m.onAssigned),
		kgo.OnPartitionsRevoked(m.onRevoked),
		kgo.OnPartitionsLost(m.onLost),
		kgo.AdjustFetchOffsetsFn(m.onOffsetsFetched),
	})
}

// plainOptions are those of a client that consumes nothing. A group without
// topics is never joined.
func (m *Module) plainOptions() []kgo.Opt {
	return slices.Concat(m.cfg.kafka, []kgo.Opt{
		kgo.ConsumeTopics(),
		kgo.OnPartitionsAssigned(nil),
		kgo.OnPartitionsRevoked(nil),
		kgo.OnPartitionsLost(nil),
		kgo.DisableAutoCommit(),
		kgo.DisableClientMetrics(),
		// kgo answers look-ups of topics from what it saw within this time, and
		// its retry of a produce that met a still-ending transaction waits for
		// a metadata update: 5 s by default.
		kgo.MetadataMinAge(10 * time.Millisecond),
	})
}

// producerOptions are those of one partition's transactional producer.
func (m *Module) producerOptions(transactionalID string, transactionVersion int16, extra ...kgo.Opt) []kgo.Opt {
	return slices.Concat(m.plainOptions(), []kgo.Opt{
		kgo.MaxVersions(wire.PinVersions(m.cfg.user.maxVersions, transactionVersion)),
		kgo.TransactionalID(transactionalID),
		kgo.TransactionTimeout(m.cfg.txnTimeout),
		kgo.RecordPartitioner(snapshotPartitioner{m.cfg.snapshotTopic, m.cfg.user.partitioner}),
		kgo.ProducerBatchMaxBytesFn(m.batchMaxBytes),
		kgo.ProducerLinger(0),
		// What is buffered is one transaction, which has its own bounds.
		kgo.MaxBufferedRecords(math.MaxInt32),
		kgo.MaxBufferedBytes(0),
		kgo.ConcurrentTransactionsBackoff(time.Millisecond),
	}, extra)
}

// snapshotPartitioner keeps snapshots in the partition that they are given and
// leaves other topics to the user's partitioner.
type snapshotPartitioner struct {
	topic string
	other kgo.Partitioner
}

func (p snapshotPartitioner) ForTopic(topic string) kgo.TopicPartitioner {
	if topic == p.topic {
		return kgo.ManualPartitioner().ForTopic(topic)
	}
	return p.other.ForTopic(topic)
}

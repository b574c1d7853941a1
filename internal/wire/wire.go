// Package wire sends the requests that franz-go offers only through its own
// group consumer, or not at all: offset commits inside a transaction of
// another client's, plain offset commits under a given membership, stable
// offset fetches, and log bounds.
//
// Each function sends one request (resent while the answer says "not yet") and
// returns the broker's error as a *kerr.Error, undecided: what it means for
// the ownership is for the caller to say.
package wire

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// Topic is a topic's name and id: newer requests go by the id, older ones by
// the name, so both are filled in.
type Topic struct {
	Name string
	ID   [16]byte
}

// Member is a group membership as the coordinator checks it. Generation is
// the member epoch under KIP-848.
type Member struct {
	Group      string
	ID         string
	InstanceID *string
	Generation int32
}

// Position is an offset to commit: the next one to read, the leader epoch of
// the record before it (-1: unknown), and the commit's metadata.
type Position struct {
	Offset   int64
	Epoch    int32
	Metadata string
}

// Producer is what identifies a transaction's producer.
type Producer struct {
	TransactionalID string
	ID              int64
	Epoch           int16
}

// The waits between two tries of what the broker answers "not yet". Below a
// millisecond at first, since the markers of a small transaction take about
// that long.
const (
	minBackoff = 300 * time.Microsecond
	maxBackoff = 20 * time.Millisecond
)

// until resends while send answers with again, and ends with ctx.
func until(ctx context.Context, again *kerr.Error, send func() error) error {
	for backoff := minBackoff; ; backoff = min(backoff*3/2, maxBackoff) {
		err := send()
		if !errors.Is(err, again) {
			return err
		}
		t := time.NewTimer(backoff)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// AddOffsetsToTxn registers the group's offsets with the transaction, which
// the broker does by itself from transaction.version 2 on.
func AddOffsetsToTxn(ctx context.Context, cl *kgo.Client, p Producer, group string) error {
	return until(ctx, kerr.ConcurrentTransactions, func() error {
		r := kmsg.NewPtrAddOffsetsToTxnRequest()
		r.TransactionalID, r.ProducerID, r.ProducerEpoch, r.Group = p.TransactionalID, p.ID, p.Epoch, group
		resp, err := r.RequestWith(ctx, cl)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.ErrorCode)
	})
}

// TxnOffsetCommit puts one partition's offset into the open transaction; from
// transaction.version 2 on it also opens it.
func TxnOffsetCommit(ctx context.Context, cl *kgo.Client, p Producer, m Member, topic Topic, partition int32, pos Position) error {
	return until(ctx, kerr.ConcurrentTransactions, func() error {
		r := kmsg.NewPtrTxnOffsetCommitRequest()
		r.TransactionalID, r.ProducerID, r.ProducerEpoch = p.TransactionalID, p.ID, p.Epoch
		r.Group, r.MemberID, r.InstanceID, r.Generation = m.Group, m.ID, m.InstanceID, m.Generation
		t := kmsg.NewTxnOffsetCommitRequestTopic()
		t.Topic, t.TopicID = topic.Name, topic.ID
		tp := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		tp.Partition, tp.Offset, tp.LeaderEpoch, tp.Metadata = partition, pos.Offset, pos.Epoch, &pos.Metadata
		t.Partitions = append(t.Partitions, tp)
		r.Topics = append(r.Topics, t)
		resp, err := r.RequestWith(ctx, cl)
		if err != nil {
			return err
		}
		if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
			return fmt.Errorf("the broker answered TxnOffsetCommit for %d topics instead of one", len(resp.Topics))
		}
		return kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
	})
}

// OffsetCommit commits offsets of one topic outside of any transaction, under
// a membership. The result has an entry for each partition asked for.
func OffsetCommit(ctx context.Context, cl *kgo.Client, m Member, topic Topic, offsets map[int32]Position) (map[int32]error, error) {
	r := kmsg.NewPtrOffsetCommitRequest()
	r.Group, r.MemberID, r.InstanceID, r.Generation = m.Group, m.ID, m.InstanceID, m.Generation
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic, t.TopicID = topic.Name, topic.ID
	for partition, pos := range offsets {
		tp := kmsg.NewOffsetCommitRequestTopicPartition()
		tp.Partition, tp.Offset, tp.LeaderEpoch, tp.Metadata = partition, pos.Offset, pos.Epoch, &pos.Metadata
		t.Partitions = append(t.Partitions, tp)
	}
	r.Topics = append(r.Topics, t)
	resp, err := r.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	results := make(map[int32]error, len(offsets))
	for partition := range offsets {
		results[partition] = errors.New("the broker's answer to OffsetCommit leaves this partition out")
	}
	for _, rt := range resp.Topics {
		for _, rp := range rt.Partitions {
			results[rp.Partition] = kerr.ErrorForCode(rp.ErrorCode)
		}
	}
	return results, nil
}

// Committed is a partition's committed offset as a stable fetch sees it.
// Offset is -1 where the group has none.
type Committed struct {
	Offset   int64
	Epoch    int32
	Metadata string
}

// StableOffset fetches a committed offset, waiting while a transaction that
// may still change it is pending (RequireStable, KIP-447).
func StableOffset(ctx context.Context, cl *kgo.Client, group string, topic Topic, partition int32) (c Committed, err error) {
	err = until(ctx, kerr.UnstableOffsetCommit, func() error {
		c, err = CommittedOffset(ctx, cl, group, topic, partition)
		return err
	})
	return c, err
}

// CommittedOffset is StableOffset without the wait: while a transaction is
// pending, the error is UNSTABLE_OFFSET_COMMIT.
func CommittedOffset(ctx context.Context, cl *kgo.Client, group string, topic Topic, partition int32) (Committed, error) {
	r := kmsg.NewPtrOffsetFetchRequest()
	r.RequireStable = true
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = group
	gt := kmsg.NewOffsetFetchRequestGroupTopic()
	gt.Topic, gt.TopicID, gt.Partitions = topic.Name, topic.ID, []int32{partition}
	g.Topics = append(g.Topics, gt)
	r.Groups = append(r.Groups, g)
	resp, err := r.RequestWith(ctx, cl)
	if err != nil {
		return Committed{}, err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return Committed{}, err
	}
	for _, g := range resp.Groups { // kgo puts an older broker's answer in here too
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
			return Committed{}, err
		}
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				return committed(p.Offset, p.LeaderEpoch, p.Metadata), kerr.ErrorForCode(p.ErrorCode)
			}
		}
	}
	return Committed{}, fmt.Errorf("the broker's answer to OffsetFetch leaves out partition %d of %s", partition, topic.Name)
}

func committed(offset int64, epoch int32, metadata *string) Committed {
	c := Committed{Offset: max(offset, -1), Epoch: epoch}
	if metadata != nil {
		c.Metadata = *metadata
	}
	return c
}

// Timestamps that ListOffset understands besides milliseconds.
const (
	LogStart int64 = -2
	LogEnd   int64 = -1
)

// ListOffset looks up one offset of one partition: LogStart, LogEnd (the high
// watermark, or the last stable offset when committed), or the first offset
// at or after a timestamp (-1 if there is none).
func ListOffset(ctx context.Context, cl *kgo.Client, topic string, partition int32, at int64, committed bool) (int64, error) {
	offset, _, err := listOffset(ctx, cl, topic, partition, at, committed)
	return offset, err
}

// HighWatermark looks up a partition's high watermark, and the leader epoch
// under which it holds (-1 where a broker does not tell).
func HighWatermark(ctx context.Context, cl *kgo.Client, topic string, partition int32) (offset int64, epoch int32, err error) {
	return listOffset(ctx, cl, topic, partition, LogEnd, false)
}

func listOffset(ctx context.Context, cl *kgo.Client, topic string, partition int32, at int64, committed bool) (offset int64, epoch int32, err error) {
	r := kmsg.NewPtrListOffsetsRequest()
	r.ReplicaID = -1
	if committed {
		r.IsolationLevel = 1
	}
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Partition, p.Timestamp, p.CurrentLeaderEpoch = partition, at, -1
	t.Partitions = append(t.Partitions, p)
	r.Topics = append(r.Topics, t)
	resp, err := r.RequestWith(ctx, cl)
	if err != nil {
		return 0, -1, err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			return p.Offset, p.LeaderEpoch, kerr.ErrorForCode(p.ErrorCode)
		}
	}
	return 0, -1, fmt.Errorf("the broker's answer to ListOffsets leaves out partition %d of %s", partition, topic)
}

// EpochEnd asks the leader where a leader epoch ended in its log: the first
// offset of the next epoch that the log has, or the log's end. -1: it does not
// know. Corresponds to OffsetForLeaderEpoch (KIP-320).
func EpochEnd(ctx context.Context, cl *kgo.Client, leader int32, topic string, partition, epoch int32) (int64, error) {
	r := kmsg.NewPtrOffsetForLeaderEpochRequest()
	r.ReplicaID = -1
	t := kmsg.NewOffsetForLeaderEpochRequestTopic()
	t.Topic = topic
	p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	p.Partition, p.CurrentLeaderEpoch, p.LeaderEpoch = partition, -1, epoch
	t.Partitions = append(t.Partitions, p)
	r.Topics = append(r.Topics, t)
	kresp, err := cl.Broker(int(leader)).Request(ctx, r)
	if err != nil {
		return -1, err
	}
	for _, t := range kresp.(*kmsg.OffsetForLeaderEpochResponse).Topics {
		for _, p := range t.Partitions {
			return p.EndOffset, kerr.ErrorForCode(p.ErrorCode)
		}
	}
	return -1, fmt.Errorf("the broker's answer to OffsetForLeaderEpoch leaves out partition %d of %s", partition, topic)
}

// TransactionVersion asks a broker for the cluster's finalized
// transaction.version: 0 where there is none. The versions of requests that
// brokers advertise do not tell.
func TransactionVersion(ctx context.Context, cl *kgo.Client) (int16, error) {
	r := kmsg.NewPtrApiVersionsRequest()
	r.ClientSoftwareName, r.ClientSoftwareVersion = "persistence", "1"
	resp, err := r.RequestWith(ctx, cl)
	if err != nil {
		return 0, err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return 0, err
	}
	for _, f := range resp.FinalizedFeatures {
		if f.Name == "transaction.version" {
			return f.MaxVersionLevel, nil
		}
	}
	return 0, nil
}

// PinVersions caps what a transactional client sends to what the cluster's
// transaction.version allows: below 2, a TxnOffsetCommit of version 5 or later
// would skip registering the offsets. Capping it makes kgo keep to the older
// protocol throughout, even if the feature is raised while the client lives.
// Versions the user capped already (nil: none) are kept.
func PinVersions(user *kversion.Versions, transactionVersion int16) *kversion.Versions {
	if user == nil {
		user = kversion.Stable()
	}
	pinned := new(kversion.Versions)
	user.EachMaxKeyVersion(func(k, v int16) { pinned.SetMaxKeyVersion(k, v) })
	if key := kmsg.TxnOffsetCommit.Int16(); transactionVersion < 2 {
		if v, ok := pinned.LookupMaxKeyVersion(key); ok && v > 4 {
			pinned.SetMaxKeyVersion(key, 4)
		}
	}
	return pinned
}

// Package cursor reads one partition with exact positions.
//
// A consumer sees only records, so it cannot tell how far it has read where
// the log holds none to show: a commit marker, an aborted batch, a gap that
// compaction left. A Cursor issues plain fetches and reports the offset after
// everything that the broker returned, shown or not, beside the broker's own
// bounds of the log.
package cursor

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence/internal/wire"
)

// Cursor fetches one partition, read_committed unless Raw, from its leader. It is not
// safe for concurrent use. Its client should consume nothing: a broker answers
// the requests of one connection in order, so a consumer's long poll on it
// would hold each fetch up.
type Cursor struct {
	cl        *kgo.Client
	topic     wire.Topic
	partition int32
	maxBytes  int32
	leader    int32
	epoch     int32 // of the leader
	known     bool
	inflate   kgo.Decompressor
	raw       bool
	buffers   *buffers // nil: none is used again

	rest *response // of the last answer, not decoded yet

	aheadCtx context.Context // nil: no reading ahead
	ahead    *request
}

// request is a fetch that was sent ahead.
type request struct {
	position int64
	done     chan struct{}
	answer   *response
	err      error
}

// response is a leader's answer, and who gave it.
type response struct {
	*kmsg.FetchResponseTopicPartition
	leader, epoch int32
	position      int64 // what was asked for, then how far it was decoded
}

// New returns a cursor that asks for about maxBytes a fetch.
func New(cl *kgo.Client, topic wire.Topic, partition, maxBytes int32) *Cursor {
	return &Cursor{cl: cl, topic: topic, partition: partition, maxBytes: maxBytes, inflate: kgo.DefaultDecompressor()}
}

// Raw makes Fetch return everything that is in the log up to the high watermark:
// records of open and aborted transactions too, and control records, from which
// the fate of the others follows. It returns the cursor.
func (c *Cursor) Raw() *Cursor {
	c.raw = true
	return c
}

// Reuse makes Fetch decode into memory that Batch.Release has given back: the
// records, and with bytes what their slices are of too, if it was compressed. It
// returns the cursor.
func (c *Cursor) Reuse(bytes bool) *Cursor {
	c.buffers = new(buffers)
	if bytes {
		c.inflate = newInflater(c.buffers)
	}
	return c
}

// AskFor makes the next requests ask for about this many bytes.
func (c *Cursor) AskFor(maxBytes int32) { c.maxBytes = maxBytes }

// ReadAhead makes Fetch ask for what follows before it returns, so that the
// broker works while the caller does. ctx must outlive the Fetches. The function
// returned ends what is under way, and waits for it.
func (c *Cursor) ReadAhead(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	c.aheadCtx = ctx
	return func() {
		cancel()
		if c.ahead != nil {
			<-c.ahead.done
		}
	}
}

// Batch is a part of what the leader returned.
type Batch struct {
	Records []*kgo.Record // committed ones, unless Raw; their bytes are the caller's
	Next    int64         // the position after everything in the part
	Bytes   int           // as they came over the wire
	Empty   bool          // the broker had nothing at or after the position

	HighWatermark    int64
	LastStableOffset int64
	LogStart         int64

	Leader int32 // broker id
	Epoch  int32 // leader epoch, -1: the brokers do not tell

	release func()
}

// Release ends the use of the records, if the cursor is to Reuse them. It may be
// called by any goroutine, once; without it they are garbage like any other.
func (b Batch) Release() {
	if b.release != nil {
		b.release()
	}
}

// ErrThrottled is returned when the broker answered without looking, as it
// does to enforce a quota. Nothing is wrong; ask again.
var ErrThrottled = errors.New("the broker delayed the fetch to enforce a quota")

// ErrRecreated means that the topic was deleted and created again since the
// cursor's topic id was looked up: what was read belongs to a log that is gone.
var ErrRecreated = errors.New("the topic was deleted and created again while it was read")

// Fetch returns what follows position, without waiting for more to be written.
// It decodes an answer of the leader part by part, so that what a batch inflates
// to is in memory for one part at a time, and asks again when it has
// returned all of it. After an error the leader is looked up anew next time.
func (c *Cursor) Fetch(ctx context.Context, position int64) (Batch, error) {
	b, err := c.fetch(ctx, position)
	if err != nil {
		c.known, c.rest = false, nil
	}
	return b, err
}

func (c *Cursor) fetch(ctx context.Context, position int64) (Batch, error) {
	rp := c.rest
	c.rest = nil
	if rp == nil || rp.position != position {
		var err error
		if rp, err = c.next(ctx, position); err != nil {
			return Batch{}, err
		}
		if after := lastOffset(rp.RecordBatches) + 1; c.aheadCtx != nil && after > position && after < rp.LastStableOffset {
			c.ahead = c.send(after)
		}
	}
	part, rest := split(rp.RecordBatches)
	b := Batch{
		Bytes:            len(part),
		Empty:            len(part) == 0,
		HighWatermark:    rp.HighWatermark,
		LastStableOffset: rp.LastStableOffset,
		LogStart:         rp.LogStartOffset,
		Leader:           rp.leader,
		Epoch:            rp.epoch,
	}
	rp.RecordBatches = part
	opts := kgo.ProcessFetchPartitionOpts{Offset: position, IsolationLevel: kgo.ReadCommitted(), Topic: c.topic.Name, Partition: c.partition}
	if c.raw {
		opts.IsolationLevel, opts.KeepControlRecords = kgo.ReadUncommitted(), true
	}
	if c.buffers != nil {
		opts.Pools = []kgo.Pool{c.buffers}
	}
	fp, next := kgo.ProcessFetchPartition(opts, rp.FetchResponseTopicPartition, c.inflate, nil)
	if c.buffers != nil {
		b.release = c.buffers.settle()
	}
	if fp.Err != nil {
		return Batch{}, fmt.Errorf("the batch after offset %d cannot be read: %w", position, fp.Err)
	}
	b.Records, b.Next = fp.Records, max(next, position)
	if len(rest) > 0 && b.Next > position {
		rp.AbortedTransactions = stillAborted(rp.AbortedTransactions, part)
		rp.RecordBatches, rp.position = rest, b.Next
		c.rest = rp
	}
	return b, nil
}

// next returns what was asked for ahead, if it was for this position, or asks
// now.
func (c *Cursor) next(ctx context.Context, position int64) (*response, error) {
	if ahead := c.ahead; ahead != nil {
		c.ahead = nil
		if ahead.position == position {
			select {
			case <-ahead.done:
				return ahead.answer, ahead.err
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	if !c.known {
		if err := c.locate(ctx); err != nil {
			return nil, err
		}
	}
	return ask(ctx, c.cl, c.leader, c.fetchRequest(position))
}

// send asks for a position in the background.
func (c *Cursor) send(position int64) *request {
	r := &request{position: position, done: make(chan struct{})}
	req, leader := c.fetchRequest(position), c.leader
	go func() {
		defer close(r.done)
		r.answer, r.err = ask(c.aheadCtx, c.cl, leader, req)
	}()
	return r
}

// fetchRequest carries the leader epoch that the cursor knows, and a leader of
// another one refuses it.
func (c *Cursor) fetchRequest(position int64) *kmsg.FetchRequest {
	r := kmsg.NewPtrFetchRequest()
	r.MinBytes, r.MaxBytes, r.IsolationLevel, r.SessionEpoch = 1, c.maxBytes, 1, -1
	if c.raw {
		r.IsolationLevel = 0
	}
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = c.topic.Name, c.topic.ID
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch = c.partition, position, c.maxBytes, c.epoch
	t.Partitions = append(t.Partitions, p)
	r.Topics = append(r.Topics, t)
	return r
}

// ask sends one fetch of one partition.
func ask(ctx context.Context, cl *kgo.Client, leader int32, r *kmsg.FetchRequest) (*response, error) {
	kresp, err := cl.Broker(int(leader)).Request(ctx, r)
	if err != nil {
		return nil, err
	}
	resp := kresp.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, err
	}
	if len(resp.Topics) == 0 || len(resp.Topics[0].Partitions) == 0 {
		return nil, ErrThrottled
	}
	rp := &resp.Topics[0].Partitions[0]
	asked := r.Topics[0].Partitions[0]
	return &response{rp, leader, asked.CurrentLeaderEpoch, asked.FetchOffset}, kerr.ErrorForCode(rp.ErrorCode)
}

// Fate is what became of a record that was produced in a transaction.
type Fate int

const (
	Open      Fate = iota // its transaction is not over
	Committed             // read_committed readers see it
	Aborted               // it is there, and they do not
	Gone                  // it is not there any more
)

// Fate looks at the record of an offset.
func (c *Cursor) Fate(ctx context.Context, offset int64) (Fate, error) {
	rp, err := c.next(ctx, offset)
	if err != nil {
		c.known = false
		return Open, err
	}
	if rp.LastStableOffset <= offset {
		return Open, nil
	}
	// Below the last stable offset a read_committed fetch holds the aborted
	// records too, beside the list of what was aborted.
	for _, seen := range []struct {
		level kgo.IsolationLevel
		fate  Fate
	}{{kgo.ReadCommitted(), Committed}, {kgo.ReadUncommitted(), Aborted}} {
		opts := kgo.ProcessFetchPartitionOpts{Offset: offset, IsolationLevel: seen.level, Topic: c.topic.Name, Partition: c.partition}
		fp, _ := kgo.ProcessFetchPartition(opts, rp.FetchResponseTopicPartition, c.inflate, nil)
		if fp.Err != nil {
			return Open, fmt.Errorf("the batch at offset %d cannot be read: %w", offset, fp.Err)
		}
		if len(fp.Records) > 0 && fp.Records[0].Offset == offset {
			return seen.fate, nil
		}
	}
	return Gone, nil
}

// locate asks for the partition's leader, past kgo's cache of it.
func (c *Cursor) locate(ctx context.Context) error {
	r := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = kmsg.StringPtr(c.topic.Name)
	r.Topics = append(r.Topics, t)
	resp, err := r.RequestWith(ctx, c.cl)
	if err != nil {
		return err
	}
	for _, t := range resp.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return err
		}
		if none := [16]byte{}; t.TopicID != none && c.topic.ID != none && t.TopicID != c.topic.ID {
			return ErrRecreated
		}
		for _, p := range t.Partitions {
			if p.Partition != c.partition {
				continue
			}
			if p.Leader < 0 {
				return kerr.LeaderNotAvailable
			}
			c.topic.ID = t.TopicID // for a cursor that was made with the name alone
			c.leader, c.epoch, c.known = p.Leader, p.LeaderEpoch, true
			return nil
		}
	}
	return kerr.UnknownTopicOrPartition
}

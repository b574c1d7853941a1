package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/internal/cursor"
	"github.com/kafkafence/persistence/internal/wire"
)

// Reading a partition ends at an offset that is captured when it begins, so that it
// ends although a service goes on to write.

const fetchBytes = 4 << 20

// readCommitted reads the committed records of a partition, oldest first. An
// open transaction is not waited for: what lies behind its first record is left
// out, and that is told.
func (s *session) readCommitted(ctx context.Context, t kadm.TopicDetail, partition int32, each func(*kgo.Record)) error {
	return s.readCommittedFrom(ctx, t, partition, 0, goOn(each))
}

// goOn never ends the reading.
func goOn(each func(*kgo.Record)) func(*kgo.Record) (more bool) {
	return func(r *kgo.Record) bool {
		each(r)
		return true
	}
}

// readCommittedFrom begins at an offset, or at the log's start if that is above it,
// and ends when more is false.
func (s *session) readCommittedFrom(ctx context.Context, t kadm.TopicDetail, partition int32, from int64, each func(*kgo.Record) (more bool)) error {
	start, end, err := s.span(ctx, t.Topic, partition)
	if err != nil {
		return err
	}
	stable, err := wire.ListOffset(ctx, s.cl, t.Topic, partition, wire.LogEnd, true)
	if err != nil {
		return readError(t.Topic, partition, err)
	}
	if stable < end {
		s.note("partition %d of %s: a transaction is open, so it is read up to its last stable offset %d only, not to its high watermark %d; fencectl transactions says more",
			partition, t.Topic, stable, end)
		end = stable
	}
	c := cursor.New(s.cl, wire.Topic{Name: t.Topic, ID: t.ID}, partition, fetchBytes)
	defer c.ReadAhead(ctx)()
	return s.read(ctx, c, t.Topic, partition, max(start, from), end, func(b cursor.Batch) int64 { return b.LastStableOffset }, each)
}

// readRaw reads all records and markers of a partition, oldest first.
func (s *session) readRaw(ctx context.Context, t kadm.TopicDetail, partition int32, each func(*kgo.Record)) error {
	start, end, err := s.span(ctx, t.Topic, partition)
	if err != nil {
		return err
	}
	c := cursor.New(s.cl, wire.Topic{Name: t.Topic, ID: t.ID}, partition, fetchBytes).Raw()
	return s.read(ctx, c, t.Topic, partition, start, end, func(b cursor.Batch) int64 { return b.HighWatermark }, goOn(each))
}

func (s *session) span(ctx context.Context, topic string, partition int32) (start, end int64, err error) {
	if start, err = wire.ListOffset(ctx, s.cl, topic, partition, wire.LogStart, false); err == nil {
		end, err = wire.ListOffset(ctx, s.cl, topic, partition, wire.LogEnd, false)
	}
	return start, end, readError(topic, partition, err)
}

// read goes from one offset to before another; reachable says how far the broker
// shows the log at the time of a fetch.
func (s *session) read(ctx context.Context, c *cursor.Cursor, topic string, partition int32, from, to int64, reachable func(cursor.Batch) int64, each func(*kgo.Record) (more bool)) error {
	for position := from; position < to; {
		b, err := c.Fetch(ctx, position)
		switch {
		case err == nil && b.Empty && reachable(b) >= to:
			return nil // the rest is compacted away
		case err == nil && b.Next > position:
			for _, r := range b.Records {
				if r.Offset < to && !each(r) {
					return nil
				}
			}
			position = b.Next
		case err != nil && !mayPass(err):
			return readError(topic, partition, err)
		default: // a leader that changes, or has not caught up
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return readError(topic, partition, errors.Join(context.Cause(ctx), err))
			}
		}
	}
	return nil
}

// mayPass is true for errors of a single broker that another try may not meet.
func mayPass(err error) bool {
	var broker *kerr.Error
	if errors.As(err, &broker) {
		return broker.Retriable
	}
	return !errors.Is(err, cursor.ErrRecreated)
}

func readError(topic string, partition int32, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("reading partition %d of topic %s: %w", partition, topic, err)
}

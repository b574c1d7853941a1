package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

var lagCommand = command{
	name:    "lag",
	summary: "how far a group is behind, and how much an open transaction hides",
	about: `For each partition: the group's committed offset and, of the input and the
snapshot log, the offsets that they begin with, may be read up to (last stable
offset) and end with (high watermark).

LAG is the input's high watermark minus the committed offset, or minus the log's
start where nothing is committed or it was deleted. It counts offsets, markers of
transactions included. Tools that ask read_committed see a smaller one while a
transaction is open: OPEN is what that hides, the high watermark minus the last
stable offset. On the snapshot log OPEN is what a recovery would have to wait for.

In JSON, -1 is a number that there is not.`,
	needs: []string{"group", "input", "snapshots"},
	run:   lag,
}

// lagRow is one partition.
type lagRow struct {
	Partition     int32  `json:"partition"`
	Committed     int64  `json:"committed"`
	Lag           int64  `json:"lag"`
	Input         bounds `json:"input"`
	InputOpen     int64  `json:"input_open"`
	Snapshots     bounds `json:"snapshots"`
	SnapshotsOpen int64  `json:"snapshots_open"`
}

type lagTotal struct {
	Total         bool  `json:"total"`
	Partitions    int   `json:"partitions"`
	Lag           int64 `json:"lag"`
	InputOpen     int64 `json:"input_open"`
	SnapshotsOpen int64 `json:"snapshots_open"`
}

// bounds of a log, -1 where they are not known.
type bounds struct {
	Start            int64 `json:"log_start"`
	LastStableOffset int64 `json:"last_stable_offset"`
	HighWatermark    int64 `json:"high_watermark"`
}

func (b bounds) open() int64 {
	if b.HighWatermark < 0 || b.LastStableOffset < 0 {
		return -1
	}
	return b.HighWatermark - b.LastStableOffset
}

// lag of a group that is to process this log.
func (b bounds) lag(committed int64) int64 {
	if b.HighWatermark < 0 || b.Start < 0 {
		return -1
	}
	return b.HighWatermark - min(max(committed, b.Start), b.HighWatermark)
}

func lag(ctx context.Context, s *session) error {
	input, partitions, err := s.partitionsOf(ctx, s.input)
	if err != nil {
		return err
	}
	snapshots, err := s.topic(ctx, s.snapshots)
	if err != nil {
		return err
	}
	if len(input.Partitions) != len(snapshots.Partitions) {
		s.note("topic %s has %d partitions and %s has %d; fencectl doctor says more", s.input, len(input.Partitions), s.snapshots, len(snapshots.Partitions))
	}
	committed, err := s.adm.FetchOffsetsForTopics(ctx, s.group, s.input)
	if errors.Is(err, kerr.GroupIDNotFound) {
		s.note("there is no group %s: nothing is committed", s.group)
	} else if err != nil {
		return fmt.Errorf("the offsets of group %s: %w", s.group, err)
	}
	logs, err := s.bounds(ctx)
	if err != nil {
		return err
	}
	s.out.head("PARTITION", "COMMITTED", "LAG", "INPUT START", "STABLE", "HIGH WATERMARK", "OPEN", "SNAPSHOTS START", "STABLE", "HIGH WATERMARK", "OPEN")
	total := lagTotal{Total: true, Partitions: len(partitions)}
	var unknown []error
	for _, id := range partitions {
		row := lagRow{Partition: id, Committed: -1, Lag: -1, Input: logs.of(s.input, id), Snapshots: logs.of(s.snapshots, id)}
		row.InputOpen, row.SnapshotsOpen = row.Input.open(), row.Snapshots.open()
		offset, known := committed.Lookup(s.input, id)
		if known && offset.Err != nil {
			unknown = append(unknown, fmt.Errorf("the committed offset of partition %d of topic %s: %w", id, s.input, offset.Err))
		} else {
			if known {
				row.Committed = offset.At
			}
			row.Lag = row.Input.lag(row.Committed)
		}
		total.Lag += max(row.Lag, 0)
		total.InputOpen += max(row.InputOpen, 0)
		total.SnapshotsOpen += max(row.SnapshotsOpen, 0)
		s.out.row(row, id, number(row.Committed), number(row.Lag),
			number(row.Input.Start), number(row.Input.LastStableOffset), number(row.Input.HighWatermark), number(row.InputOpen),
			number(row.Snapshots.Start), number(row.Snapshots.LastStableOffset), number(row.Snapshots.HighWatermark), number(row.SnapshotsOpen))
	}
	s.out.row(total, "all", "", total.Lag, "", "", "", total.InputOpen, "", "", "", total.SnapshotsOpen)
	return errors.Join(append(unknown, logs.errors(partitions)...)...)
}

// logBounds are those of the input and the snapshot topic.
type logBounds struct {
	topics                []string
	starts, stables, ends kadm.ListedOffsets
}

func (s *session) bounds(ctx context.Context) (l logBounds, err error) {
	l.topics = []string{s.input, s.snapshots}
	if l.starts, err = s.adm.ListStartOffsets(ctx, l.topics...); err != nil {
		return l, fmt.Errorf("the starts of the logs: %w", err)
	}
	// The end comes last: no stable offset is above it then.
	if l.stables, err = s.adm.ListCommittedOffsets(ctx, l.topics...); err != nil {
		return l, fmt.Errorf("the last stable offsets: %w", err)
	}
	if l.ends, err = s.adm.ListEndOffsets(ctx, l.topics...); err != nil {
		return l, fmt.Errorf("the high watermarks: %w", err)
	}
	return l, nil
}

func (l logBounds) of(topic string, partition int32) bounds {
	at := func(listed kadm.ListedOffsets) int64 {
		o, ok := listed.Lookup(topic, partition)
		if !ok || o.Err != nil {
			return -1
		}
		return o.Offset
	}
	return bounds{at(l.starts), at(l.stables), at(l.ends)}
}

// errors are why bounds are not known, once for each partition.
func (l logBounds) errors(partitions []int32) (errs []error) {
	for _, topic := range l.topics {
		for _, id := range partitions {
			for _, listed := range []kadm.ListedOffsets{l.starts, l.stables, l.ends} {
				if o, ok := listed.Lookup(topic, id); ok && o.Err != nil {
					errs = append(errs, fmt.Errorf("the log of partition %d of topic %s: %w", id, topic, o.Err))
					break
				}
			}
		}
	}
	return errs
}

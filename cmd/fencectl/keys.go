package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/internal/format"
)

var keysCommand = command{
	name:    "keys",
	summary: "the keys that have a snapshot",
	about: `The keys whose newest committed snapshot is not a tombstone, in order within
each partition: the size of its value, the offset of the last input event folded
into it, where it is in the snapshot log, and when it was written. All keys of a
partition are in memory meanwhile.

Keys that are not printable text are quoted; --key-format hex or base64 shows all
bytes.`,
	needs: []string{"snapshots"},
	takes: []string{"limit", "key-format"},
	run:   keys,
}

// keyRow is a key's newest snapshot.
type keyRow struct {
	Partition    int32     `json:"partition"`
	Key          string    `json:"key"`
	Size         int       `json:"size"`          // of the value
	SourceOffset int64     `json:"source_offset"` // -1: it has none
	LogOffset    int64     `json:"log_offset"`
	Time         time.Time `json:"time"`
}

func keys(ctx context.Context, s *session) error {
	t, partitions, err := s.partitionsOf(ctx, s.snapshots)
	if err != nil {
		return err
	}
	s.out.head("PARTITION", "KEY", "SIZE", "SOURCE OFFSET", "LOG OFFSET", "TIME")
	shown, all := 0, 0
	for _, id := range partitions {
		live, err := s.liveKeys(ctx, t, id)
		if err != nil {
			return err
		}
		all += len(live)
		for _, row := range live {
			if s.limit > 0 && shown == s.limit {
				break
			}
			shown++
			s.out.row(row, row.Partition, row.Key, row.Size, number(row.SourceOffset), row.LogOffset, instant(row.Time))
		}
	}
	if shown < all {
		s.note("%d of %d keys are shown (--limit)", shown, all)
	}
	return nil
}

func (s *session) liveKeys(ctx context.Context, t kadm.TopicDetail, partition int32) ([]keyRow, error) {
	live := make(map[string]keyRow)
	err := s.readCommitted(ctx, t, partition, func(r *kgo.Record) {
		if r.Value == nil {
			delete(live, string(r.Key))
			return
		}
		if r.Key == nil {
			return // no snapshot
		}
		_, source, _ := format.SplitHeaders(r.Headers)
		live[string(r.Key)] = keyRow{Partition: partition, Key: s.keyFormat.show(r.Key), Size: len(r.Value), SourceOffset: source, LogOffset: r.Offset, Time: r.Timestamp}
	})
	rows := make([]keyRow, 0, len(live))
	for _, row := range live {
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b keyRow) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), cmp.Compare(a.LogOffset, b.LogOffset))
	})
	return rows, err
}

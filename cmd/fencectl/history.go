package main

import (
	"bytes"
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence/internal/format"
)

var historyCommand = command{
	name:     "history",
	argument: "KEY",
	summary:  "every version of a key that is still in the log, committed or not",
	about: `Every version of a key that compaction has left in the log, oldest first, up to
the high watermark at the start, with what became of its transaction: committed,
aborted, or open, which is neither yet. Readers see the committed ones only.

The exit status is 1 if there is none.`,
	needs: []string{"snapshots"},
	takes: []string{"key-format"},
	run:   history,
}

// versionRow is one version of a key.
type versionRow struct {
	Partition         int32     `json:"partition"`
	LogOffset         int64     `json:"log_offset"`
	Time              time.Time `json:"time"`
	State             fate      `json:"state"`
	Tombstone         bool      `json:"tombstone"`
	Size              int       `json:"size"`
	SourceOffset      int64     `json:"source_offset"`      // -1: it has none
	CommittableOffset int64     `json:"committable_offset"` // -1: it has none
	ProducerID        int64     `json:"producer_id"`
	ProducerEpoch     int16     `json:"producer_epoch"`
	Transactional     bool      `json:"transactional"`
}

// fate is what became of a record.
type fate string

const (
	open      fate = "open"
	committed fate = "committed"
	aborted   fate = "aborted"
)

func history(ctx context.Context, s *session) error {
	t, partitions, err := s.partitionsOf(ctx, s.snapshots)
	if err != nil {
		return err
	}
	found := 0
	for _, id := range partitions {
		versions, err := s.versions(ctx, t, id)
		if err != nil {
			return err
		}
		if found == 0 && len(versions) > 0 {
			s.out.head("PARTITION", "LOG OFFSET", "TIME", "STATE", "SIZE", "SOURCE OFFSET", "COMMITTABLE OFFSET", "PRODUCER ID", "EPOCH")
		}
		found += len(versions)
		for _, v := range versions {
			var size any = v.Size
			if v.Tombstone {
				size = "tombstone"
			}
			s.out.row(v, v.Partition, v.LogOffset, instant(v.Time), v.State, size, number(v.SourceOffset), number(v.CommittableOffset), number(v.ProducerID), number(int64(v.ProducerEpoch)))
		}
	}
	if found == 0 {
		s.note("key %s has no snapshot in %s", s.keyFormat.show(s.key), s.snapshots)
		return errWrong
	}
	return nil
}

// versions reads a partition once. A producer's transactions follow one another,
// so the next marker of its id says what became of what it wrote before.
func (s *session) versions(ctx context.Context, t kadm.TopicDetail, partition int32) ([]versionRow, error) {
	var all []versionRow
	undecided := make(map[int64][]int) // by producer id, in all
	err := s.readRaw(ctx, t, partition, func(r *kgo.Record) {
		if r.Attrs.IsControl() {
			for _, i := range undecided[r.ProducerID] {
				all[i].State = markerFate(r)
			}
			delete(undecided, r.ProducerID)
			return
		}
		if r.Key == nil || !bytes.Equal(r.Key, s.key) {
			return
		}
		_, source, committable := format.SplitHeaders(r.Headers)
		v := versionRow{Partition: partition, LogOffset: r.Offset, Time: r.Timestamp, State: committed, Tombstone: r.Value == nil, Size: len(r.Value),
			SourceOffset: source, CommittableOffset: committable, ProducerID: r.ProducerID, ProducerEpoch: r.ProducerEpoch, Transactional: r.Attrs.IsTransactional()}
		if v.Transactional {
			v.State = open
			undecided[r.ProducerID] = append(undecided[r.ProducerID], len(all))
		}
		all = append(all, v)
	})
	return all, err
}

func markerFate(r *kgo.Record) fate {
	var key kmsg.ControlRecordKey
	if err := key.ReadFrom(r.Key); err == nil && key.Type == kmsg.ControlRecordKeyTypeCommit {
		return committed
	}
	return aborted
}

package main

import (
	"bytes"
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/internal/format"
)

var getCommand = command{
	name:     "get",
	argument: "KEY",
	summary:  "the newest committed snapshot of a key",
	about: `The newest committed snapshot of a key: as text, its value goes to the standard
output byte for byte, with nothing before or behind it, and what else is known to the
standard error; in JSON, the value is in base64. Partitions are searched one after
the other; --partition saves the others.

The exit status is 1 if the key has no snapshot, or the newest is a tombstone.`,
	needs: []string{"snapshots"},
	takes: []string{"key-format"},
	run:   get,
}

// valueRow is a snapshot with its value.
type valueRow struct {
	keyRow
	CommittableOffset int64             `json:"committable_offset"` // -1: it has none
	Headers           map[string]string `json:"headers,omitempty"`  // the user's
	Value             []byte            `json:"value_base64"`
}

func get(ctx context.Context, s *session) error {
	t, partitions, err := s.partitionsOf(ctx, s.snapshots)
	if err != nil {
		return err
	}
	var newest *kgo.Record
	for _, id := range partitions {
		var found *kgo.Record
		err := s.readCommitted(ctx, t, id, func(r *kgo.Record) {
			if bytes.Equal(r.Key, s.key) {
				found = r
			}
		})
		if err != nil {
			return err
		}
		if found == nil {
			continue
		}
		if newest != nil {
			s.note("the key is in partition %d too; the newer one is shown, and --partition chooses", min(newest.Partition, found.Partition))
		}
		if newest == nil || found.Timestamp.After(newest.Timestamp) {
			newest = found
		}
	}
	if newest == nil {
		s.note("key %s has no snapshot in %s", s.keyFormat.show(s.key), s.snapshots)
		return errWrong
	}
	_, source, committable := format.SplitHeaders(newest.Headers)
	if newest.Value == nil {
		s.note("key %s was deleted: partition %d, log offset %d, %s", s.keyFormat.show(s.key), newest.Partition, newest.Offset, instant(newest.Timestamp))
		return errWrong
	}
	if s.json {
		s.out.object(newValueRow(s.keyFormat, newest, source, committable))
		return nil
	}
	s.note("partition %d, log offset %d, source offset %s, committable offset %s, %d bytes, %s",
		newest.Partition, newest.Offset, number(source), number(committable), len(newest.Value), newest.Timestamp.UTC().Format(time.RFC3339Nano))
	return s.out.raw(newest.Value)
}

func newValueRow(f keyFormat, r *kgo.Record, source, committable int64) valueRow {
	user, _, _ := format.SplitHeaders(r.Headers)
	row := valueRow{keyRow{Partition: r.Partition, Key: f.show(r.Key), Size: len(r.Value), SourceOffset: source, LogOffset: r.Offset, Time: r.Timestamp},
		committable, nil, r.Value}
	for _, h := range user {
		if row.Headers == nil {
			row.Headers = make(map[string]string)
		}
		row.Headers[h.Key] = string(h.Value)
	}
	return row
}

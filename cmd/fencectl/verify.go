package main

import (
	"context"
	"slices"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/format"
)

var verifyCommand = command{
	name:    "verify",
	summary: "whether committed offsets, snapshots and input agree",
	about: `Compares the group's committed offsets with the snapshots and the input log, as
the library does when it takes a partition over, and reads all snapshots for it.
What does not agree has the names that OnMismatch takes, with the choices; the
exit status is 1 then. The service may run: a mismatch counts only if a second
look finds it again. An open transaction on the snapshots is waited for, as long as
--timeout allows.

COMMIT says whose the committed offset is: the library's (ours), somebody else's
(foreign), or none. VOUCHED END is where the snapshot log ended at least when
the offset was committed. COMMITTABLE is up to where the snapshots account for
events, and SOURCE the highest event that is folded into any.

In JSON, -1 is a number that there is not.`,
	needs: []string{"group", "input", "snapshots"},
	run:   verify,
}

// verifyRow is one partition.
type verifyRow struct {
	Partition         int32         `json:"partition"`
	Commit            string        `json:"commit"` // ours, foreign or none
	Metadata          string        `json:"metadata"`
	Committed         int64         `json:"committed"`
	InputStart        int64         `json:"input_start"`
	InputEnd          int64         `json:"input_end"`
	SnapshotsStart    int64         `json:"snapshots_start"`
	SnapshotsEnd      int64         `json:"snapshots_end"`
	VouchedEnd        int64         `json:"vouched_end"`
	CommittableOffset int64         `json:"committable_offset"`
	SourceOffset      int64         `json:"source_offset"`
	Records           int64         `json:"records"`
	Tombstones        int64         `json:"tombstones"`
	Mismatches        []mismatchRow `json:"mismatches"`
}

type mismatchRow struct {
	Name    string `json:"name"`
	Message string `json:"message"`
}

func verify(ctx context.Context, s *session) error {
	_, partitions, err := s.partitionsOf(ctx, s.input)
	if err != nil {
		return err
	}
	s.out.head("PARTITION", "COMMIT", "COMMITTED", "INPUT START", "INPUT END", "SNAPSHOTS START", "SNAPSHOTS END", "VOUCHED END", "COMMITTABLE", "SOURCE", "RECORDS", "MISMATCHES")
	var rows []verifyRow
	wrong := false
	for _, id := range partitions {
		i, err := s.inspect(ctx, id)
		if err != nil {
			return err
		}
		row := newVerifyRow(i)
		rows = append(rows, row)
		wrong = wrong || len(row.Mismatches) > 0
		s.out.row(row, id, row.Commit, number(row.Committed), row.InputStart, row.InputEnd, row.SnapshotsStart, row.SnapshotsEnd,
			number(row.VouchedEnd), number(row.CommittableOffset), number(row.SourceOffset), row.Records, len(row.Mismatches))
	}
	for _, row := range rows {
		for _, m := range row.Mismatches {
			s.out.text("\n%s", m.Message)
		}
	}
	if wrong {
		return errWrong
	}
	return nil
}

// inspect looks at a partition, and again if something does not agree: the service
// may have gone on between the look-ups.
func (s *session) inspect(ctx context.Context, partition int32) (persistence.Inspection, error) {
	first, err := s.inspectOnce(ctx, partition)
	if err != nil || len(first.Mismatches) == 0 {
		return first, err
	}
	again, err := s.inspectOnce(ctx, partition)
	again.Mismatches = slices.DeleteFunc(again.Mismatches, func(m persistence.Mismatch) bool { return !slices.Contains(first.Mismatches, m) })
	return again, err
}

func (s *session) inspectOnce(ctx context.Context, partition int32) (persistence.Inspection, error) {
	found, err := persistence.Inspect(ctx, s.cl, s.group, s.input, s.snapshots, partition)
	if err != nil {
		return persistence.Inspection{}, err
	}
	return found[0], nil
}

func newVerifyRow(i persistence.Inspection) verifyRow {
	row := verifyRow{Partition: i.Partition, Commit: "none", Metadata: i.Metadata, Committed: i.Committed, InputStart: i.InputStart, InputEnd: i.InputEnd,
		SnapshotsStart: i.Start, SnapshotsEnd: i.End, VouchedEnd: i.VouchedEnd, CommittableOffset: i.Committable, SourceOffset: i.Source,
		Records: i.Snapshots.Records, Tombstones: i.Snapshots.Tombstones, Mismatches: []mismatchRow{}}
	if i.Committed >= 0 {
		row.Commit = "foreign"
		if _, ours := format.ParseMetadata(i.Metadata); ours {
			row.Commit = "ours"
		}
	}
	for _, m := range i.Mismatches {
		e := persistence.MismatchError{Mismatch: m, Agreement: i.Agreement}
		row.Mismatches = append(row.Mismatches, mismatchRow{m.String(), e.Error()})
	}
	return row
}

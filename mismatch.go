package persistence

import (
	"fmt"
	"strings"
)

// Mismatch is a disagreement between a group's committed offset, the snapshots
// and the input log, found when a partition is taken over. What is done about
// each is a Choice. It is an error, so that errors.Is(err, SnapshotsTruncated)
// tells which one ended Run; the *MismatchError in the chain has the numbers.
type Mismatch int

const (
	// OffsetMissing: there are snapshots, but the group has no committed
	// offset. It expired (offsets.retention.minutes), was deleted, or the
	// group has a new name.
	OffsetMissing Mismatch = iota
	// OffsetAhead: an operator's tool or another program committed the
	// offset, and it lies above what the snapshots account for. The events in
	// between are in no state.
	OffsetAhead
	// OffsetBehind: an operator's tool or another program committed the
	// offset, and it does not lie above what the snapshots account for.
	// Events are replayed.
	OffsetBehind
	// OffsetBelowInput: retention or DeleteRecords has removed the next event
	// from the input log, and maybe more, before they were processed.
	OffsetBelowInput
	// OffsetAboveInput: the input log ends below the offset: it was truncated,
	// or the topic was recreated.
	OffsetAboveInput
	// InputRecreated: the offset was committed, or the snapshots were written,
	// for an input topic with another topic id: that one was deleted, or is
	// another cluster's.
	InputRecreated
	// SourceAboveInput: a snapshot names a source event at or beyond the end
	// of the input log: the input was truncated or recreated, or the
	// snapshots come from somewhere else. Events below that source would
	// be taken for folded in.
	SourceAboveInput
	// SnapshotsTruncated: the snapshot log ends below what the group's last
	// commit vouches for: acknowledged snapshots are gone, by an unclean
	// leader election, a lost disk, or because the topic was recreated.
	SnapshotsTruncated
	// SnapshotsEmptied: all that the group's last commit vouches for was
	// deleted from the snapshot log (DeleteRecords).
	SnapshotsEmptied
)

// Choice is what a takeover does about a Mismatch.
type Choice int

const (
	// Fail ends Run with a *MismatchError. Nothing has been changed.
	Fail Choice = iota
	// Accept goes on with what is there.
	Accept
	// Resume goes on from the highest committable offset that the snapshots
	// which are there account for: events are replayed, and none is left out.
	// A fold must leave out those at or below its key's SourceOffset.
	Resume
	// Rebuild deletes the partition's snapshots and starts from the beginning
	// of the input log, in one transaction. All keys are in memory
	// meanwhile.
	Rebuild
)

func (c Choice) String() string {
	if c < 0 || int(c) >= len(choiceNames) {
		return fmt.Sprintf("Choice(%d)", int(c))
	}
	return choiceNames[c]
}

var choiceNames = [...]string{"Fail", "Accept", "Resume", "Rebuild"}

// mismatches says for each what it is, what is allowed, and which the default is
// (the first).
var mismatches = [...]struct {
	name, meaning string
	choices       []Choice
	accept        string // what Accept does
}{
	OffsetMissing:      {"OffsetMissing", "there are snapshots but the group has no committed offset", []Choice{Resume, Fail, Accept, Rebuild}, "starts as kgo.ConsumeStartOffset says"},
	OffsetAhead:        {"OffsetAhead", "the committed offset is not this library's and lies above what the snapshots account for", []Choice{Fail, Accept, Resume, Rebuild}, "starts at the committed offset and leaves the events before it out of the state"},
	OffsetBehind:       {"OffsetBehind", "the committed offset is not this library's and lies at or below what the snapshots account for", []Choice{Accept, Fail, Resume, Rebuild}, "starts at the committed offset and replays"},
	OffsetBelowInput:   {"OffsetBelowInput", "the next events were deleted from the input log before they were processed", []Choice{Fail, Accept, Rebuild}, "starts at the first event that is left"},
	OffsetAboveInput:   {"OffsetAboveInput", "the input log ends below the offset to resume from: it was truncated or recreated", []Choice{Fail, Rebuild}, ""},
	InputRecreated:     {"InputRecreated", "offset and snapshots are of an input topic with another topic id, which was deleted or is another cluster's", []Choice{Fail, Accept, Rebuild}, "takes the offsets to be those of the present topic"},
	SourceAboveInput:   {"SourceAboveInput", "a snapshot's source offset lies beyond the end of the input log", []Choice{Fail, Accept, Rebuild}, "leaves the snapshots as they are"},
	SnapshotsTruncated: {"SnapshotsTruncated", "acknowledged snapshots are missing from the end of the snapshot partition", []Choice{Fail, Accept, Resume, Rebuild}, "goes on without the snapshots that were lost"},
	SnapshotsEmptied:   {"SnapshotsEmptied", "everything was deleted from the snapshot partition", []Choice{Fail, Accept, Rebuild}, "goes on from the committed offset with no state"},
}

func (m Mismatch) known() bool { return m >= 0 && int(m) < len(mismatches) }

// String is the constant's name.
func (m Mismatch) String() string {
	if !m.known() {
		return fmt.Sprintf("Mismatch(%d)", int(m))
	}
	return mismatches[m].name
}

func (m Mismatch) Error() string {
	if !m.known() {
		return m.String()
	}
	return mismatches[m].meaning
}

// Agreement is what has to agree when a partition is taken over. A number that
// is not known, or was not looked up, is -1.
type Agreement struct {
	Topic         string // input topic
	SnapshotTopic string // empty with Stateless
	Partition     int32

	Committed   int64  // the group's offset
	Metadata    string // of that commit
	InputStart  int64
	InputEnd    int64
	Start       int64 // of the snapshot log
	End         int64
	VouchedEnd  int64 // the snapshot log's end that the commit vouches for
	Committable int64 // the highest committable offset that the snapshots give
	Source      int64 // the highest source offset of the snapshots
}

// MismatchError says what a takeover or a recovery found. Its chain has the
// Mismatch, and ErrInput where the input cannot be read from the offset.
type MismatchError struct {
	Mismatch Mismatch
	Agreement
}

func (e *MismatchError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "persistence: partition %d of %s", e.Partition, e.Topic)
	if e.SnapshotTopic != "" {
		fmt.Fprintf(&b, ", snapshots in %s", e.SnapshotTopic)
	}
	fmt.Fprintf(&b, ": %s: %s: %s. Choices: ", e.Mismatch.String(), e.Mismatch.Error(), e.numbers())
	if !e.Mismatch.known() {
		return b.String()
	}
	for i, c := range mismatches[e.Mismatch].choices {
		if i > 0 {
			b.WriteString("; ")
		}
		switch c {
		case Fail:
			b.WriteString(e.repair())
		case Accept:
			fmt.Fprintf(&b, "OnMismatch(%s, Accept) %s", e.Mismatch.String(), mismatches[e.Mismatch].accept)
		case Resume:
			fmt.Fprintf(&b, "OnMismatch(%s, Resume) starts from what the snapshots account for and replays", e.Mismatch.String())
		case Rebuild:
			fmt.Fprintf(&b, "OnMismatch(%s, Rebuild) deletes the snapshots, if any, and starts from the beginning of the input", e.Mismatch.String())
		}
	}
	return b.String()
}

// repair is what a person can do outside of the program.
func (e *MismatchError) repair() string {
	switch e.Mismatch {
	case SnapshotsTruncated, SnapshotsEmptied:
		return "restore the snapshot topic"
	case OffsetBelowInput, OffsetAboveInput, InputRecreated, SourceAboveInput:
		return "restore the input topic"
	default:
		return "set the group's offset right"
	}
}

func (e *MismatchError) numbers() string {
	switch e.Mismatch {
	case OffsetMissing:
		return fmt.Sprintf("the snapshot log holds offsets %d to %d", e.Start, e.End)
	case OffsetAhead, OffsetBehind:
		if e.Committable < 0 {
			return fmt.Sprintf("offset %d is committed, with metadata %q, and no snapshot says what it accounts for", e.Committed, e.Metadata)
		}
		return fmt.Sprintf("offset %d is committed, with metadata %q, and the snapshots account for everything below %d", e.Committed, e.Metadata, e.Committable)
	case OffsetBelowInput, OffsetAboveInput:
		return fmt.Sprintf("the offset to resume from is %d, and the input log holds %d to %d", e.Committed, e.InputStart, e.InputEnd)
	case InputRecreated:
		return fmt.Sprintf("offset %d is committed, with metadata %q, and the input log holds %d to %d", e.Committed, e.Metadata, e.InputStart, e.InputEnd)
	case SourceAboveInput:
		return fmt.Sprintf("the highest source offset is %d, and the input log holds %d to %d", e.Source, e.InputStart, e.InputEnd)
	default:
		return fmt.Sprintf("the snapshot log holds offsets %d to %d, and the commit vouches for everything below %d", e.Start, e.End, e.VouchedEnd)
	}
}

// Unwrap has the Mismatch, and ErrInput where that is what it amounts to.
func (e *MismatchError) Unwrap() []error {
	if e.Mismatch == OffsetBelowInput || e.Mismatch == OffsetAboveInput {
		return []error{e.Mismatch, ErrInput}
	}
	return []error{e.Mismatch}
}

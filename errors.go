package persistence

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Errors that callers act on. They arrive wrapped, in a *WriteError where a
// write failed, together with the broker's own error where there was one: test
// with errors.Is.
var (
	// ErrFenced means that the group coordinator refused this ownership's
	// generation and that it stayed refused: somebody else owns the
	// partition, or will. The handle is dead, and its state must be thrown
	// away; if the member is still assigned the partition, the module takes
	// it over anew and starts a new handler. A fence that the ownership
	// survives is no error at all (see Trace.FenceSurvived).
	ErrFenced = errors.New("fenced: another owner has this partition, or the group no longer knows this member")

	// ErrRevoked means that the partition is being given up. From Poll it is
	// the signal to flush and return: writes still work. From a write it
	// means that the ownership is over.
	ErrRevoked = errors.New("partition revoked")

	// ErrLost means that the group threw this member out, or that the
	// session ended in an error: the partition is somebody else's already.
	// Nothing more can be written and nothing was flushed.
	ErrLost = errors.New("partition lost")

	// ErrClosed means that the module was closed or its Run ended.
	ErrClosed = errors.New("module closed")

	// ErrNotJoined means that the member had no live generation, so that the
	// coordinator would not have checked the commit. Nothing was sent.
	ErrNotJoined = errors.New("not a live member of the group, so the coordinator could not have fenced this write; it was not sent")

	// ErrNotOwned means that this member does not own the partition, or has
	// not finished taking it over.
	ErrNotOwned = errors.New("partition not owned by this member")

	// ErrUnknownOutcome marks a write that may or may not have committed: the
	// caller stopped waiting, or the ownership ended before a lost reply
	// could be settled. A write's error without it means that the write
	// certainly did not happen and never will.
	ErrUnknownOutcome = errors.New("outcome unknown: the write may have committed")

	// ErrRecordTooLarge means that a record exceeds what the topic or the
	// client accepts. Only its own caller fails.
	ErrRecordTooLarge = errors.New("record too large")

	// ErrProducerConflict means that another producer with the same
	// transactional id keeps taking over although the membership does not
	// change: most likely a second service with the same
	// TransactionalIDPrefix. Run ends with it.
	ErrProducerConflict = errors.New("another producer keeps taking over this transactional id while the group does not change: is the TransactionalIDPrefix used by a second service?")

	// ErrPartitionMismatch means that the input and the snapshot topic do not
	// have the same number of partitions, so that a key's state would not
	// be in the partition of its events.
	ErrPartitionMismatch = errors.New("input and snapshot topic differ in their partition counts")

	// ErrStateless means that a module with Stateless was asked for something
	// that needs snapshots.
	ErrStateless = errors.New("the module is Stateless: it has no snapshots")

	// ErrInput means that the input position is not in the log any more, or
	// never was: retention passed it, or the topic was recreated. The library
	// never moves to another position by itself; see OnMismatch.
	ErrInput = errors.New("the input partition cannot be read on from its position")
)

// WriteError is the error of Write, Delete and Apply. Its chain holds the
// reason. If errors.Is(err, ErrUnknownOutcome), the write may have committed;
// otherwise it certainly did not and never will.
type WriteError struct {
	Topic      string // input topic
	Partition  int32
	Generation int32 // the last one used or known, 0 if none
	Err        error
}

func (e *WriteError) Error() string {
	outcome := "the write was not made"
	if errors.Is(e.Err, ErrUnknownOutcome) {
		outcome = "the write may have been made"
	}
	return fmt.Sprintf("persistence: partition %d of %s (generation %d): %s: %v", e.Partition, e.Topic, e.Generation, outcome, e.Err)
}

func (e *WriteError) Unwrap() error { return e.Err }

// RecoveryStalledError means that a recovery made no progress for
// RecoveryStallTimeout, or cannot make any. Its Diagnosis was made from live
// look-ups when the error was.
type RecoveryStalledError struct {
	Topic     string // snapshot topic
	Partition int32
	Target    int64         // the high watermark captured when the recovery began; -1: not captured
	Position  int64         // the next offset to read; -1: none yet
	Stalled   time.Duration // since the last progress
	Diagnosis Diagnosis
	Cause     error // the last error of a request, if any
}

func (e *RecoveryStalledError) Error() string {
	var b strings.Builder
	d := &e.Diagnosis
	fmt.Fprintf(&b, "persistence: recovery of partition %d of snapshot topic %s made no progress for %v: position %d, target %d, log start %d, last stable offset %d, high watermark %d: %v",
		e.Partition, e.Topic, e.Stalled.Round(time.Millisecond), e.Position, e.Target, d.LogStart, d.LastStableOffset, d.HighWatermark, d)
	if e.Cause != nil {
		fmt.Fprintf(&b, ": %v", e.Cause)
	}
	return b.String()
}

func (e *RecoveryStalledError) Unwrap() error { return e.Cause }

// UnflushedError is returned by Close when its context ended before everything
// was flushed: what was cut off, partition by partition.
type UnflushedError struct {
	Partitions []Unflushed
	Err        error // why there was no more time
}

// Unflushed is one partition of an UnflushedError.
type Unflushed struct {
	Partition      int32
	Writes         int   // writes that were queued or in flight
	HandlerRunning bool  // the handler had not returned
	Committable    int64 // advanced to, but not committed; -1 if nothing was left
}

func (e *UnflushedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "persistence: closed before everything was flushed (%v):", e.Err)
	for i, p := range e.Partitions {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, " partition %d: %d writes", p.Partition, p.Writes)
		if p.HandlerRunning {
			b.WriteString(", handler still running")
		}
		if p.Committable >= 0 {
			fmt.Fprintf(&b, ", offset %d not committed", p.Committable)
		}
	}
	return b.String()
}

func (e *UnflushedError) Unwrap() error { return e.Err }

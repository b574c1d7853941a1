package persistence

import "time"

// Trace is told what the library does, for metrics and tests. Every field may
// be nil. The functions are called from the goroutine that does the work, some
// of them with a transaction open: they must be quick, safe for concurrent use,
// and must not call the library. The structs may gain fields.
type Trace struct {
	// TakenOver is called when an ownership is ready, before its handler.
	TakenOver func(TakeoverInfo)
	// Mismatch is called for each disagreement that a takeover or a recovery
	// finds between committed offset, snapshots and input.
	Mismatch func(MismatchInfo)
	// GivenUp is called when an ownership is over.
	GivenUp func(GiveUpInfo)
	// RecoveryStarted, RecoveryProgress (every 5 s) and RecoveryDone follow
	// each Recover.
	RecoveryStarted  func(RecoveryInfo)
	RecoveryProgress func(RecoveryInfo)
	RecoveryDone     func(RecoveryInfo)
	// Transaction is called after each group-committed transaction, whatever
	// became of it.
	Transaction func(TransactionInfo)
	// FenceSurvived is called when a transaction that was refused under one
	// generation committed under a newer one: the partition stayed here.
	FenceSurvived func(FenceInfo)
	// Fenced is called when an ownership ends because it stayed refused.
	Fenced func(FenceInfo)
	// HandlerStuck is called once for each time that a handler is found stuck:
	// see HandlerTimeout.
	HandlerStuck func(HandlerStuckError)
	// ProducerRenewed is called when a partition's producer was replaced,
	// which aborts whatever it had open.
	ProducerRenewed func(RenewInfo)
	// OffsetsCommitted is called after offsets were committed without a
	// transaction, for all idle partitions of the member together.
	OffsetsCommitted func(OffsetsInfo)
}

// TakeoverInfo describes a takeover.
type TakeoverInfo struct {
	Topic         string
	Partition     int32
	Generation    int32
	Resume        int64  // the input offset that processing resumes from
	ResumeFrom    string // "committed", "snapshots", "start policy" or "input start"
	HighWatermark int64  // of the snapshot partition
	Took          time.Duration
}

// MismatchInfo describes a mismatch and what is done about it.
type MismatchInfo struct {
	*MismatchError
	Choice Choice
}

// GiveUpInfo describes the end of an ownership. Reason is ErrRevoked, ErrLost,
// ErrFenced or ErrClosed, possibly wrapped.
type GiveUpInfo struct {
	Topic     string
	Partition int32
	Reason    error
	Took      time.Duration
}

// RecoveryInfo describes a recovery so far.
type RecoveryInfo struct {
	Topic      string // snapshot topic
	Partition  int32
	Start      int64 // of the log when the recovery began; -1: not known yet
	Position   int64
	Target     int64 // -1: not known yet
	Records    int64 // delivered
	Tombstones int64 // of them, deletions
	Keyless    int64 // skipped
	Bytes      int64 // as fetched
	Restarts   int   // times the log start overtook the position
	Took       time.Duration
	Err        error
}

// Left estimates the time that is left from the offsets passed so far, 0 where
// there is nothing to go by. Offsets are not records: a compacted log has gaps.
func (i RecoveryInfo) Left() time.Duration {
	if i.Position <= i.Start || i.Target <= i.Position {
		return 0
	}
	return time.Duration(float64(i.Took) * float64(i.Target-i.Position) / float64(i.Position-i.Start))
}

// TransactionInfo describes one group-committed transaction.
type TransactionInfo struct {
	Topic      string
	Partition  int32
	Generation int32
	Writes     int // callers answered by it
	Records    int // snapshots and outputs
	Offset     int64
	Attempts   int
	Took       time.Duration
	Err        error
}

// FenceInfo describes a refused generation. Current is the generation read
// last; it equals Refused if none newer came.
type FenceInfo struct {
	Topic     string
	Partition int32
	Refused   int32
	Current   int32
	Waited    time.Duration
	Err       error
}

// RenewInfo describes the replacement of a producer.
type RenewInfo struct {
	Topic         string
	Partition     int32
	ProducerID    int64
	ProducerEpoch int16
	Reason        error
	Took          time.Duration
}

// OffsetsInfo describes a commit without a transaction.
type OffsetsInfo struct {
	Topic      string
	Generation int32
	Offsets    map[int32]int64
	Took       time.Duration
	Err        error
}

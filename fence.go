package persistence

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The fence.
//
// Every transaction carries an offset commit with the member's live
// generation, and the group coordinator refuses a stale one. What a refusal
// means depends on where in the transaction it came and is decided here,
// without Kafka, clock or goroutine:
//
//	offset commit   a generation error asks who owns the partition: wait for
//	                the answer (the handle closes, or the generation moves).
//	                Nothing of the batch is in any log yet.
//	produce         a producer fence, or a record that the broker refuses:
//	                the transaction will never be committed.
//	end             any error: it may have committed. Settle before anything
//	                else.
//
// The generation is the fence; the producer epoch is not. Epochs go to whoever
// calls InitProducerID last, which may be the stale owner, so a producer fence
// says only that this producer must be replaced, and the generation then says
// whether the ownership goes on.
//
// A generation must be read before the handle is checked, never after: the
// callback of a revoke closes the handle before the member can have a newer
// generation, so a handle that is open after a generation was read was open
// when that generation began.

// stage is where in a transaction an error came up.
type stage int

const (
	stageBegin stage = iota
	stageOffsets
	stageProduce
	stageEnd
)

func (s stage) String() string {
	return [...]string{"starting the transaction", "committing the offset", "producing", "ending the transaction"}[s]
}

// verdict is what an error means for the batch.
type verdict int

const (
	// committed: no error.
	committed verdict = iota
	// askOwnership: the generation was refused. Ask again in the same
	// transaction once a newer one is known; fenced if none comes.
	askOwnership
	// producerGone: the producer was fenced, or its transaction ended without
	// it. Nothing landed; replace the producer and try again.
	producerGone
	// refused: a record will never be accepted. Nothing landed. Split the
	// batch until the culprit stands alone.
	refused
	// impossible: the commit will never be accepted, whatever the batch.
	impossible
	// unlanded: anything else before the end. Nothing landed; replace the
	// producer and try again.
	unlanded
	// unsettled: the transaction may have committed.
	unsettled
)

// judge decides what an error at a stage means.
func judge(s stage, err error) verdict {
	switch {
	case err == nil:
		return committed
	case s == stageEnd:
		return unsettled
	case s == stageOffsets && isOwnershipQuestion(err):
		return askOwnership
	case isProducerGone(err):
		return producerGone
	case s == stageProduce && isRecordRefused(err):
		return refused
	case isImpossible(err):
		return impossible
	default:
		return unlanded
	}
}

func isAny(err error, targets ...*kerr.Error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

// isOwnershipQuestion is true for the answers of a group coordinator that does
// not, or not yet, take this member at this generation for an owner.
func isOwnershipQuestion(err error) bool {
	return isAny(err, kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.StaleMemberEpoch, kerr.FencedMemberEpoch,
		kerr.FencedInstanceID, kerr.GroupIDNotFound, kerr.RebalanceInProgress)
}

func isProducerGone(err error) bool {
	return isAny(err, kerr.ProducerFenced, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping,
		kerr.UnknownProducerID, kerr.InvalidTxnState, kerr.TransactionAbortable, kerr.OutOfOrderSequenceNumber)
}

// isProducerFenced is true where another InitProducerID, or the coordinator's
// own timeout, took the epoch away.
func isProducerFenced(err error) bool {
	return isAny(err, kerr.ProducerFenced, kerr.InvalidProducerEpoch)
}

// isRecordRefused is true for what a broker or client says of a record that it
// will never take.
func isRecordRefused(err error) bool {
	return isAny(err, kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp,
		kerr.InvalidTopicException, kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.TopicAuthorizationFailed,
		kerr.PolicyViolation, kerr.UnsupportedForMessageFormat, kerr.UnsupportedCompressionType, kerr.CorruptMessage)
}

// isImpossible is true for answers that only an operator can change.
func isImpossible(err error) bool {
	return isAny(err, kerr.GroupAuthorizationFailed, kerr.TransactionalIDAuthorizationFailed, kerr.ClusterAuthorizationFailed,
		kerr.TopicAuthorizationFailed, kerr.OffsetMetadataTooLarge, kerr.InvalidCommitOffsetSize, kerr.InvalidGroupID,
		kerr.InvalidTransactionTimeout, kerr.UnsupportedVersion, kerr.SaslAuthenticationFailed) ||
		errors.Is(err, kgo.ErrClientClosed)
}

// A producer that is fenced again and again while the membership stands still
// has a rival with the same transactional id, since takeovers of the same
// group come with a new generation. A timeout of its own transaction looks the
// same but does not come in a row.
const (
	maxProducerFences   = 5
	producerFenceWindow = time.Minute
)

// rivalry counts producer fences under one generation.
type rivalry struct {
	generation int32
	fences     int
	last       time.Time
}

// fenced notes a fence and reports whether it must be a rival's.
func (r *rivalry) fenced(generation int32, now time.Time) bool {
	if generation != r.generation || now.Sub(r.last) > producerFenceWindow {
		r.generation, r.fences = generation, 0
	}
	r.last = now
	r.fences++
	return r.fences >= maxProducerFences
}

// ownershipWait bounds how long a refused generation may stay refused: three
// heartbeats, by which a member that was thrown out, or whose group went on
// without it, has been told. Under KIP-848 the broker sets the interval; its
// default is 5 s.
func ownershipWait(heartbeat time.Duration, serverSide bool) time.Duration {
	if serverSide {
		heartbeat = max(heartbeat, 5*time.Second)
	}
	return 3 * heartbeat
}

// answer is how the wait for an ownership question ended.
type answer int

const (
	movedOn answer = iota // a newer generation, with the handle open
	closed                // the handle closed
	stale                 // the bound passed, or there is no live generation
)

// awaitOwnership waits until the live generation differs from refused, the
// handle closes, or the bound passes. live must be read before open is asked.
func awaitOwnership(ctx context.Context, bound time.Duration, refused int32, live func() int32, open func() error) answer {
	deadline := time.NewTimer(bound)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		generation := live()
		if open() != nil {
			return closed
		}
		if generation > 0 && generation != refused {
			return movedOn
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return closed
		case <-deadline.C:
			return stale
		}
	}
}

func isTooLarge(err error) bool { return isAny(err, kerr.MessageTooLarge, kerr.RecordListTooLarge) }

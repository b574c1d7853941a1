package flow

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Poison is what becomes of an event whose fold fails. Whatever it is, the state
// is as it was before the fold, and nothing that the fold emitted goes out. The
// zero value is Stop.
type Poison struct {
	retries int
	backoff time.Duration
	topic   string // dead letters; "" stops
}

// Stop ends Run with the fold's error. The event is folded again when the
// service is started again.
func Stop() Poison { return Poison{} }

// Retry folds the event again, up to retries times, after backoff, which doubles
// each time, and then goes on as then says. The key's other events wait; a worker
// waits too.
func Retry(retries int, backoff time.Duration, then Poison) Poison {
	then.retries, then.backoff = retries, backoff
	return then
}

// DeadLetters writes the event to a topic and goes on without it, in the
// transaction that commits the offset past it. The record has the event's key,
// value and headers, and in the headers that users of other frameworks know
// where it came from and why: kafka_dlt-original-topic, -original-partition
// (4 bytes, big endian), -original-offset (8 bytes), -original-timestamp (8 bytes,
// milliseconds), -exception-message; and flow.key and flow.attempts (text).
func DeadLetters(topic string) Poison { return Poison{topic: topic} }

func (p Poison) check() error {
	if p.retries < 0 || p.backoff < 0 {
		return fmt.Errorf("Poison: Retry(%d, %v): at least 0 is allowed for both", p.retries, p.backoff)
	}
	return nil
}

// stops reports whether a failure ends the flow at once, so that nothing has to be
// undone.
func (p Poison) stops() bool { return p.topic == "" && p.retries == 0 }

// attempt calls until there is no error, or as often as the policy says, or until
// ctx ends or the partition is revoked. A panic is an error.
func (p Poison) attempt(ctx context.Context, revoked <-chan struct{}, call func() error) (attempts int, err error) {
	backoff := p.backoff
	for attempts = 1; ; attempts++ {
		if err = guard(call); err == nil || attempts > p.retries {
			return attempts, err
		}
		t := time.NewTimer(backoff)
		select {
		case <-t.C:
			backoff *= 2
			continue
		case <-ctx.Done():
		case <-revoked:
		}
		t.Stop()
		return attempts, err
	}
}

// guard turns a panic into an error.
func guard(call func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	return call()
}

// deadLetter makes the record.
func (p Poison) deadLetter(event *kgo.Record, key []byte, attempts int, why error) *kgo.Record {
	number := func(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }
	headers := append([]kgo.RecordHeader(nil), event.Headers...)
	return &kgo.Record{Topic: p.topic, Key: event.Key, Value: event.Value, Headers: append(headers,
		kgo.RecordHeader{Key: "kafka_dlt-original-topic", Value: []byte(event.Topic)},
		kgo.RecordHeader{Key: "kafka_dlt-original-partition", Value: binary.BigEndian.AppendUint32(nil, uint32(event.Partition))},
		kgo.RecordHeader{Key: "kafka_dlt-original-offset", Value: number(event.Offset)},
		kgo.RecordHeader{Key: "kafka_dlt-original-timestamp", Value: number(event.Timestamp.UnixMilli())},
		kgo.RecordHeader{Key: "kafka_dlt-exception-message", Value: []byte(why.Error())},
		kgo.RecordHeader{Key: "flow.key", Value: key},
		kgo.RecordHeader{Key: "flow.attempts", Value: strconv.AppendInt(nil, int64(attempts), 10)},
	)}
}

// ErrNoKey is the error of an event without a key: there is no state for it to be
// folded into. Poison decides about it as if a fold had failed.
var ErrNoKey = errors.New("the event has no key")

// FoldError is an error or a panic of a fold, a transform, a timer or a tick.
type FoldError struct {
	Topic     string
	Partition int32
	Offset    int64  // of the event; -1 for a timer or a tick
	Key       []byte // nil for a tick, and for an event without one
	Attempts  int
	Err       error
}

func (e *FoldError) Error() string {
	if e.Offset < 0 && e.Key == nil {
		return fmt.Sprintf("flow: the tick of partition %d of %s failed: %v", e.Partition, e.Topic, e.Err)
	}
	if e.Offset < 0 {
		return fmt.Sprintf("flow: the timer of key %q in partition %d of %s failed: %v", e.Key, e.Partition, e.Topic, e.Err)
	}
	return fmt.Sprintf("flow: event %d of partition %d of %s, key %q, failed after %d attempts: %v", e.Offset, e.Partition, e.Topic, e.Key, e.Attempts, e.Err)
}

func failed(event *kgo.Record, key []byte, attempts int, err error) error {
	return &FoldError{Topic: event.Topic, Partition: event.Partition, Offset: event.Offset, Key: key, Attempts: attempts, Err: err}
}

func (e *FoldError) Unwrap() error { return e.Err }

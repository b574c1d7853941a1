package flow

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Key is one key during one call of a fold or a timer. It must not be used after
// the call, nor by other goroutines.
type Key[S any] struct {
	// State is the key's state, the zero value if it has none. What the fold
	// leaves here is the new state, even if it was changed in place.
	State S

	entry   *entry[S]
	event   *kgo.Record // nil for a timer or a tick
	deleted bool
	skipped bool
	outputs []*kgo.Record
	timers  map[string]int64 // set or, with 0, cancelled
	named   int              // calls of EventID
}

// Key returns the key's bytes, for reading.
func (k *Key[S]) Key() []byte { return []byte(k.entry.key) }

// Exists reports whether the key has a state.
func (k *Key[S]) Exists() bool { return k.entry.exists }

// Delete removes the key's state and timers when the fold returns. The next event
// begins with the zero value.
func (k *Key[S]) Delete() { k.deleted = true }

// Skip says that the event changes nothing: the state is not written for it. It
// has no effect if something was emitted or a timer set.
func (k *Key[S]) Skip() { k.skipped = true }

// Emit sends records to any topics, in order for each key, in the transaction
// that commits the state of which their event is a part. The records belong to
// the flow from then on.
func (k *Key[S]) Emit(records ...*kgo.Record) { k.outputs = append(k.outputs, records...) }

// EventID is the package's EventID of the event, with an index that counts the
// calls. It is empty in a timer or a tick.
func (k *Key[S]) EventID() string {
	if k.event == nil {
		return ""
	}
	k.named++
	return EventID(k.event, k.named-1)
}

// EventID is a name for an event that is the same whenever it is processed: its
// topic, partition and offset, and an index for those of which several things
// come. A system that does something once for each name does it once for each
// event, though folds may run again.
func EventID(event *kgo.Record, index int) string {
	return fmt.Sprintf("%s/%d/%d/%d", event.Topic, event.Partition, event.Offset, index)
}

// SetTimer makes Spec.Timer be called at a time, or soon after: not before its
// partition is recovered, and in turn with the key's events. A timer of the same
// name is replaced. Timers are part of the state: they are written with it, are
// there again after a recovery, and are gone when their call is committed.
func (k *Key[S]) SetTimer(name string, at time.Time) { k.timer(name, max(at.UnixMilli(), 1)) }

// CancelTimer removes a timer, if there is one.
func (k *Key[S]) CancelTimer(name string) { k.timer(name, 0) }

// ExpireAt deletes the key at a time, or soon after, unless it is called again
// with another one before, or with the zero time, for never. Events up to then
// are not folded again by a replay.
func (k *Key[S]) ExpireAt(at time.Time) {
	if at.IsZero() {
		k.timer(expiry, 0)
		return
	}
	k.timer(expiry, max(at.UnixMilli(), 1))
}

// expiry is the timer that deletes a key.
const expiry = ""

func (k *Key[S]) timer(name string, at int64) {
	if k.timers == nil {
		k.timers = make(map[string]int64)
	}
	k.timers[name] = at
}

// hasEffect reports whether there is something to persist.
func (k *Key[S]) hasEffect() bool {
	return !k.skipped || k.deleted || len(k.outputs) > 0 || len(k.timers) > 0
}

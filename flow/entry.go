package flow

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
)

// entry is what a worker knows of one key.
type entry[S any] struct {
	key    string
	source int64 // the last event folded; -1: none
	exists bool
	timers map[string]int64 // name: due, in milliseconds

	// A recovered state is decoded when it is first needed.
	state   S
	encoded []byte
	version int
	decoded bool

	// What is not persisted yet.
	dirty   bool
	first   *kgo.Record // the first event; nil if only timers
	folded  int
	outputs []*kgo.Record
}

const timersHeader = "flow.timers"

// recovered makes an entry of a snapshot.
func recovered[S any](c Codec[S], s persistence.Snapshot) (*entry[S], error) {
	e := &entry[S]{key: string(s.Key), source: s.SourceOffset, exists: s.Value != nil}
	if !e.exists {
		return e, nil
	}
	tag := ""
	for _, h := range s.Headers {
		switch h.Key {
		case codecHeader:
			tag = string(h.Value)
		case timersHeader:
			timers, err := parseTimers(string(h.Value))
			if err != nil {
				return nil, fmt.Errorf("flow: snapshot %d, key %q: header %s %q: %w", s.LogOffset, s.Key, timersHeader, h.Value, err)
			}
			e.timers = timers
		}
	}
	var err error
	if e.version, err = versionOf(c, tag); err != nil {
		return nil, fmt.Errorf("flow: snapshot %d, key %q: %w", s.LogOffset, s.Key, err)
	}
	e.encoded = s.Value
	return e, nil
}

// decode makes the state usable.
func (e *entry[S]) decode(c Codec[S]) error {
	if e.decoded || !e.exists {
		return nil
	}
	state, err := c.Decode(e.encoded, e.version)
	if err != nil {
		return fmt.Errorf("flow: key %q: its snapshot of version %d cannot be decoded: %w", e.key, e.version, err)
	}
	e.state, e.encoded, e.decoded = state, nil, true
	return nil
}

// snapshot encodes what is to be persisted.
func (e *entry[S]) snapshot(c Codec[S], tag []byte) (persistence.Snapshot, error) {
	s := persistence.Snapshot{Key: []byte(e.key), SourceOffset: e.source}
	if !e.exists {
		return s, nil
	}
	if !e.decoded { // only its timers or its source have changed
		if err := e.decode(c); err != nil {
			return s, err
		}
	}
	value, err := c.Encode(e.state)
	if err != nil {
		return s, fmt.Errorf("flow: key %q: its state cannot be encoded: %w", e.key, err)
	}
	if value == nil {
		value = []byte{} // nil would delete the key
	}
	s.Value = value
	s.Headers = []kgo.RecordHeader{{Key: codecHeader, Value: tag}}
	if len(e.timers) > 0 {
		s.Headers = append(s.Headers, kgo.RecordHeader{Key: timersHeader, Value: []byte(formatTimers(e.timers))})
	}
	return s, nil
}

// formatTimers writes "name=milliseconds&..." with names escaped as in a URL.
func formatTimers(timers map[string]int64) string {
	v := make(url.Values, len(timers))
	for name, at := range timers {
		v.Set(name, strconv.FormatInt(at, 10))
	}
	return v.Encode()
}

func parseTimers(text string) (map[string]int64, error) {
	values, err := url.ParseQuery(text)
	if err != nil {
		return nil, err
	}
	timers := make(map[string]int64, len(values))
	for name := range values {
		if timers[name], err = strconv.ParseInt(values.Get(name), 10, 64); err != nil {
			return nil, err
		}
	}
	return timers, nil
}

// due returns the names of the timers that are due, the earliest first.
func (e *entry[S]) due(now int64) []string {
	return slices.SortedFunc(func(yield func(string) bool) {
		for name, at := range maps.All(e.timers) {
			if at <= now && !yield(name) {
				return
			}
		}
	}, func(a, b string) int { return int(e.timers[a] - e.timers[b]) })
}

// nextTimer is the earliest due time, 0 if there is none.
func (e *entry[S]) nextTimer() int64 {
	next := int64(0)
	for _, at := range e.timers {
		if next == 0 || at < next {
			next = at
		}
	}
	return next
}

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The headers of a dead letter, as flow.DeadLetters writes them. The names are
// Spring's, so letters of Spring's recoverer can be read too.
const (
	deadLetterPrefix  = "kafka_dlt-"
	originalTopic     = deadLetterPrefix + "original-topic"
	originalPartition = deadLetterPrefix + "original-partition"
	originalOffset    = deadLetterPrefix + "original-offset"
	originalTimestamp = deadLetterPrefix + "original-timestamp"
	exceptionMessage  = deadLetterPrefix + "exception-message"
	flowKey           = "flow.key"
	flowAttempts      = "flow.attempts"
)

// letter is a dead letter: an event, where it came from, and why it failed.
type letter struct {
	*kgo.Record
	from     place
	offset   int64
	at       time.Time
	why      string
	attempts int // 0: it does not say
}

// place is a partition of a topic.
type place struct {
	topic     string
	partition int32
}

// parseLetter reads the headers. What says where the event belongs must be there;
// why it failed, and after how many attempts, need not be.
func parseLetter(r *kgo.Record) (letter, error) {
	l := letter{Record: r}
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	number := func(name string, size int, least int64) (n int64) {
		v, found := header(r, name)
		switch {
		case !found:
			fault("no header %s", name)
			return 0
		case len(v) != size:
			fault("header %s has %d bytes, where %d are allowed, big endian", name, len(v), size)
			return 0
		case size == 4:
			n = int64(int32(binary.BigEndian.Uint32(v)))
		default:
			n = int64(binary.BigEndian.Uint64(v))
		}
		if n < least {
			fault("header %s is %d, where at least %d is allowed", name, n, least)
		}
		return n
	}
	topic, found := header(r, originalTopic)
	switch l.from.topic = string(topic); {
	case !found:
		fault("no header %s", originalTopic)
	case l.from.topic == "":
		fault("header %s is empty", originalTopic)
	case l.from.topic == r.Topic:
		fault("header %s names the topic of the dead letters itself", originalTopic)
	}
	l.from.partition = int32(number(originalPartition, 4, 0))
	l.offset = number(originalOffset, 8, 0)
	l.at = time.UnixMilli(number(originalTimestamp, 8, -1)) // -1: it has none
	why, _ := header(r, exceptionMessage)
	l.why = string(why)
	if v, found := header(r, flowAttempts); found {
		var err error
		if l.attempts, err = strconv.Atoi(string(v)); err != nil || l.attempts < 1 {
			fault("header %s is %q, where a decimal number from 1 on is allowed", flowAttempts, v)
		}
	}
	return l, errors.Join(faults...)
}

// header is the last one of a name: an event that was a dead letter before, and
// kept its headers, has those of its newest failure last.
func header(r *kgo.Record, name string) (value []byte, found bool) {
	for _, h := range slices.Backward(r.Headers) {
		if h.Key == name {
			return h.Value, true
		}
	}
	return nil, false
}

// event is the letter's event as it was, to be written to a topic.
func (l letter) event(topic string) *kgo.Record {
	return &kgo.Record{Topic: topic, Partition: l.from.partition, Key: l.Key, Value: l.Value, Timestamp: l.at,
		Headers: slices.DeleteFunc(slices.Clone(l.Headers), func(h kgo.RecordHeader) bool {
			return strings.HasPrefix(h.Key, deadLetterPrefix) || h.Key == flowKey || h.Key == flowAttempts
		})}
}

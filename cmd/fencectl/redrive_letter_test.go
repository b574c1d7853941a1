package main

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// headers are those of a sound letter, with some replaced, added or, with nil, left
// out.
func letterHeaders(changed map[string][]byte) (all []kgo.RecordHeader) {
	sound := []kgo.RecordHeader{
		{Key: originalTopic, Value: []byte("orders")},
		{Key: originalPartition, Value: binary.BigEndian.AppendUint32(nil, 3)},
		{Key: originalOffset, Value: binary.BigEndian.AppendUint64(nil, 1<<40)},
		{Key: originalTimestamp, Value: binary.BigEndian.AppendUint64(nil, 1_700_000_000_123)},
		{Key: exceptionMessage, Value: []byte("no such customer")},
		{Key: flowKey, Value: []byte("k")},
		{Key: flowAttempts, Value: []byte("4")},
	}
	for _, h := range sound {
		v, found := changed[h.Key]
		switch {
		case !found:
			all = append(all, h)
		case v != nil:
			all = append(all, kgo.RecordHeader{Key: h.Key, Value: v})
		}
	}
	return all
}

func TestALetterSaysWhereItsEventCameFrom(t *testing.T) {
	own := []kgo.RecordHeader{{Key: "trace", Value: []byte("1")}, {Key: "flow.of.goods", Value: nil}, {Key: "trace", Value: []byte("2")}}
	r := &kgo.Record{Topic: "dead", Partition: 1, Offset: 9, Key: []byte("k"), Value: nil, Timestamp: time.Now(), Headers: append(own, letterHeaders(nil)...)}
	l, err := parseLetter(r)
	require.NoError(t, err)
	require.Equal(t, place{"orders", 3}, l.from)
	require.EqualValues(t, 1<<40, l.offset)
	require.Equal(t, "no such customer", l.why)
	require.Equal(t, 4, l.attempts)

	headers := len(r.Headers)
	e := l.event("elsewhere")
	require.Equal(t, &kgo.Record{Topic: "elsewhere", Partition: 3, Key: []byte("k"), Timestamp: time.UnixMilli(1_700_000_000_123), Headers: own}, e)
	require.Len(t, r.Headers, headers, "the letter is as it was")
	require.Equal(t, originalTopic, r.Headers[3].Key)
}

// An event that was replayed with its headers, and failed again, has two sets.
func TestTheNewestFailureCounts(t *testing.T) {
	older := letterHeaders(map[string][]byte{originalTopic: []byte("before"), exceptionMessage: []byte("older")})
	l, err := parseLetter(&kgo.Record{Headers: append(older, letterHeaders(nil)...)})
	require.NoError(t, err)
	require.Equal(t, "orders", l.from.topic)
	require.Equal(t, "no such customer", l.why)
	require.Empty(t, l.event("orders").Headers)
}

// Spring's recoverer does not count attempts.
func TestALetterNeedNotSayWhy(t *testing.T) {
	l, err := parseLetter(&kgo.Record{Headers: letterHeaders(map[string][]byte{exceptionMessage: nil, flowKey: nil, flowAttempts: nil})})
	require.NoError(t, err)
	require.Zero(t, l.why)
	require.Zero(t, l.attempts)
}

func TestMalformedLettersAreRefused(t *testing.T) {
	for _, tc := range []struct {
		name    string
		changed map[string][]byte
		want    string
	}{
		{"no topic", map[string][]byte{originalTopic: nil}, "no header kafka_dlt-original-topic"},
		{"an empty topic", map[string][]byte{originalTopic: {}}, "kafka_dlt-original-topic is empty"},
		{"its own topic", map[string][]byte{originalTopic: []byte("dead")}, "names the topic of the dead letters itself"},
		{"no partition", map[string][]byte{originalPartition: nil}, "no header kafka_dlt-original-partition"},
		{"a partition as text", map[string][]byte{originalPartition: []byte("3")}, "kafka_dlt-original-partition has 1 bytes, where 4 are allowed"},
		{"a negative partition", map[string][]byte{originalPartition: {255, 255, 255, 255}}, "kafka_dlt-original-partition is -1, where at least 0"},
		{"no offset", map[string][]byte{originalOffset: nil}, "no header kafka_dlt-original-offset"},
		{"a short offset", map[string][]byte{originalOffset: {0, 0, 0, 1}}, "kafka_dlt-original-offset has 4 bytes, where 8 are allowed"},
		{"a negative offset", map[string][]byte{originalOffset: {255, 255, 255, 255, 255, 255, 255, 255}}, "kafka_dlt-original-offset is -1, where at least 0"},
		{"no timestamp", map[string][]byte{originalTimestamp: nil}, "no header kafka_dlt-original-timestamp"},
		{"attempts as no number", map[string][]byte{flowAttempts: []byte("many")}, `flow.attempts is "many", where a decimal number from 1 on`},
		{"no attempts", map[string][]byte{flowAttempts: []byte("0")}, `flow.attempts is "0"`},
		{"two faults", map[string][]byte{originalTopic: nil, originalOffset: nil}, "no header kafka_dlt-original-topic\nno header kafka_dlt-original-offset"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parseLetter(&kgo.Record{Topic: "dead", Headers: letterHeaders(tc.changed)})
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// Package format is what this library writes into Kafka besides the user's own
// bytes: the headers of a snapshot record and the metadata of an offset commit.
// docs/format.md promises both; nothing here may change without a new version.
package format

import (
	"encoding/base64"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Headers of a snapshot record. Their values are decimal text, so that any
// tool shows them.
const (
	// SourceOffset is the offset of the last input event folded into the
	// snapshot.
	SourceOffset = "persistence.source-offset"
	// CommittableOffset is the input offset that the snapshot's own
	// transaction committed: where its partition can safely resume.
	CommittableOffset = "persistence.committable-offset"
	// Rebuild marks the tombstones of a rebuild: the offsets in the headers of
	// earlier records count no more.
	Rebuild = "persistence.rebuild"
	// InputID is the id of the input topic whose offsets the headers name. Only
	// the last snapshot of a transaction has it: the newest record of a
	// log is never compacted away, so that one always does.
	InputID = "persistence.input-id"
)

const reserved = "persistence."

// Unknown stands for an offset that a record does not carry.
const Unknown int64 = -1

// AppendHeaders returns the user's headers followed by the library's two.
// A negative source is left out. The given slice is not changed.
func AppendHeaders(user []kgo.RecordHeader, source, committable int64) []kgo.RecordHeader {
	hs := make([]kgo.RecordHeader, 0, len(user)+2)
	hs = append(hs, user...)
	if source >= 0 {
		hs = append(hs, kgo.RecordHeader{Key: SourceOffset, Value: strconv.AppendInt(nil, source, 10)})
	}
	return append(hs, kgo.RecordHeader{Key: CommittableOffset, Value: strconv.AppendInt(nil, committable, 10)})
}

// AppendInputID adds a topic's id as TopicID writes it.
func AppendInputID(hs []kgo.RecordHeader, id string) []kgo.RecordHeader {
	if id == "" {
		return hs
	}
	return append(hs, kgo.RecordHeader{Key: InputID, Value: []byte(id)})
}

// InputIDOf returns the id that a record carries, or "".
func InputIDOf(hs []kgo.RecordHeader) string {
	for _, h := range hs {
		if h.Key == InputID {
			return string(h.Value)
		}
	}
	return ""
}

// AppendRebuild marks a tombstone of a rebuild.
func AppendRebuild(hs []kgo.RecordHeader) []kgo.RecordHeader {
	return append(hs, kgo.RecordHeader{Key: Rebuild, Value: []byte("1")})
}

// IsRebuild reports whether the record is a tombstone of a rebuild.
func IsRebuild(hs []kgo.RecordHeader) bool {
	return slices.ContainsFunc(hs, func(h kgo.RecordHeader) bool { return h.Key == Rebuild })
}

// SplitHeaders is the inverse of AppendHeaders: the user's own headers, and
// the two offsets, each Unknown where it is missing or not a number. The last
// header of a name counts.
func SplitHeaders(hs []kgo.RecordHeader) (user []kgo.RecordHeader, source, committable int64) {
	source, committable = Unknown, Unknown
	for i := range hs {
		switch hs[i].Key {
		case SourceOffset:
			source = offset(hs[i].Value)
		case CommittableOffset:
			committable = offset(hs[i].Value)
		case Rebuild, InputID:
		default:
			user = append(user, hs[i])
		}
	}
	return user, source, committable
}

// Reserved reports whether a header name belongs to the library.
func Reserved(name string) bool { return strings.HasPrefix(name, reserved) }

func offset(text []byte) int64 {
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || n < 0 {
		return Unknown
	}
	return n
}

// Metadata travels in the metadata string of every offset commit.
type Metadata struct {
	// End is a lower bound of the snapshot partition's log end once this
	// commit is in effect: a later high watermark below it means that
	// acknowledged snapshots are gone. Unknown where there is no snapshot topic.
	End int64
	// Owner names the ownership that committed, uniquely.
	Owner string
	// Transaction names the transaction that carried the commit, uniquely
	// for its owner; empty for a commit outside of one. It is how a lost
	// EndTxn reply is settled.
	Transaction string
	// Input is the input topic's id as TopicID writes it; empty where the
	// brokers have none.
	Input string
}

// TopicID writes a topic id in metadata; empty for none.
func TopicID(id [16]byte) string {
	if id == [16]byte{} {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(id[:])
}

const metadataV1 = "persistence:1"

// String encodes the metadata, for example
// "persistence:1;end=42;own=1h2k9q;txn=7;in=AAAAAAAAQACAAAAAAAAAAQ".
func (m Metadata) String() string {
	b := make([]byte, 0, 64)
	b = append(b, metadataV1...)
	if m.End != Unknown {
		b = append(b, ";end="...)
		b = strconv.AppendInt(b, m.End, 10)
	}
	if m.Owner != "" {
		b = append(b, ";own="...)
		b = append(b, m.Owner...)
	}
	if m.Transaction != "" {
		b = append(b, ";txn="...)
		b = append(b, m.Transaction...)
	}
	if m.Input != "" {
		b = append(b, ";in="...)
		b = append(b, m.Input...)
	}
	return string(b)
}

// ParseMetadata reads what String wrote. ok is false if it vouches for no
// snapshots, as when another program, an operator's tool or a service without
// state committed the offset. Fields that this version does not know are skipped.
func ParseMetadata(s string) (m Metadata, ok bool) {
	version, rest, _ := strings.Cut(s, ";")
	if version != metadataV1 {
		return Metadata{}, false
	}
	m.End = Unknown
	for field := range strings.SplitSeq(rest, ";") {
		switch name, value, _ := strings.Cut(field, "="); name {
		case "end":
			m.End = offset([]byte(value))
		case "own":
			m.Owner = value
		case "txn":
			m.Transaction = value
		case "in":
			m.Input = value
		}
	}
	return m, m.End != Unknown
}

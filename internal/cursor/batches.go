package cursor

import (
	"encoding/binary"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// What can be told of record batches by their headers alone.

// partBytes is about how much of an answer is decoded at a time.
const partBytes = 512 << 10

// inflation is what compressed bytes are taken to grow to, when it is decided
// how many batches are decoded at a time.
const inflation = 8

// header is the fixed beginning of a record batch.
type header struct {
	size       int // of the whole batch
	first      int64
	last       int64
	producer   int64
	compressed bool
	control    bool
}

// readHeader reads the batch at the start of in. ok is false if there is none
// that is complete, or one of the formats before Apache Kafka 0.11.
func readHeader(in []byte) (h header, ok bool) {
	const (
		lengthAt     = 8
		magicAt      = 16
		attributesAt = 21
		lastDeltaAt  = 23
		producerAt   = 43
		headerSize   = 61
	)
	if len(in) < headerSize || in[magicAt] != 2 {
		return header{}, false
	}
	h.size = int(int32(binary.BigEndian.Uint32(in[lengthAt:]))) + lengthAt + 4
	if h.size < headerSize || h.size > len(in) {
		return header{}, false
	}
	attributes := binary.BigEndian.Uint16(in[attributesAt:])
	h.first = int64(binary.BigEndian.Uint64(in))
	h.last = h.first + int64(int32(binary.BigEndian.Uint32(in[lastDeltaAt:])))
	h.producer = int64(binary.BigEndian.Uint64(in[producerAt:]))
	h.compressed = attributes&0b111 != 0
	h.control = attributes&0b10_0000 != 0
	return h, true
}

// split cuts off the batches that are decoded next: at least one, if there is
// one. What is left is empty, or begins with a complete batch. Old formats stay
// together.
func split(in []byte) (part, rest []byte) {
	end, weight := 0, 0
	for weight < partBytes {
		h, ok := readHeader(in[end:])
		if !ok {
			if end == 0 {
				return in, nil
			}
			return in[:end], nil
		}
		end += h.size
		weight += h.size
		if h.compressed {
			weight += (inflation - 1) * h.size
		}
	}
	if _, ok := readHeader(in[end:]); !ok {
		return in[:end], nil
	}
	return in[:end], in[end:]
}

// lastOffset finds the last offset of the complete batches in an answer, or
// -1. It is only a guess at where to read on: what the position is, decoding
// says.
func lastOffset(in []byte) int64 {
	last := int64(-1)
	for h, ok := readHeader(in); ok; h, ok = readHeader(in) {
		last = h.last
		in = in[h.size:]
	}
	return last
}

// stillAborted leaves out the aborted transactions whose markers are in part: a
// producer's transactions follow one another, so its first control batch behind
// the start of an aborted one is that one's end.
func stillAborted(aborted []kmsg.FetchResponseTopicPartitionAbortedTransaction, part []byte) []kmsg.FetchResponseTopicPartitionAbortedTransaction {
	for h, ok := readHeader(part); ok && len(aborted) > 0; h, ok = readHeader(part) {
		if h.control {
			kept := aborted[:0]
			for _, a := range aborted {
				if a.ProducerID != h.producer || a.FirstOffset > h.first {
					kept = append(kept, a)
				}
			}
			aborted = kept
		}
		part = part[h.size:]
	}
	return aborted
}

package cursor

import (
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// buffers are what batches are decoded into: arenas of records, and slices for
// what compressed batches inflate to. A part borrows them until it is released,
// from whichever goroutine, and the next one decodes into them again.
type buffers struct {
	mu       sync.Mutex
	free     loan
	borrowed loan // by the part that is being decoded
}

// loan is what one part holds.
type loan struct {
	arenas [][]kgo.Record // as long as they are used
	bytes  [][]byte
}

// arenaRecords is the size of an arena, unless one batch needs more. Many batches
// hold a single record.
const arenaRecords = 1024

// GetRecords makes buffers a kgo.PoolRecords.
func (b *buffers) GetRecords(n int) []kgo.Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := len(b.borrowed.arenas) - 1
	if last < 0 || cap(b.borrowed.arenas[last])-len(b.borrowed.arenas[last]) < n {
		b.borrowed.arenas = append(b.borrowed.arenas, b.arena(n))
		last++
	}
	arena := &b.borrowed.arenas[last]
	used := len(*arena)
	*arena = (*arena)[:used+n]
	return (*arena)[used : used+n : used+n]
}

func (b *buffers) arena(n int) []kgo.Record {
	if i := slices.IndexFunc(b.free.arenas, func(a []kgo.Record) bool { return cap(a) >= n }); i >= 0 {
		arena := b.free.arenas[i]
		b.free.arenas = slices.Delete(b.free.arenas, i, i+1)
		return arena
	}
	return make([]kgo.Record, 0, max(n, arenaRecords))
}

// PutRecords is called for a batch without a record to show: its part still
// holds the arena.
func (b *buffers) PutRecords([]kgo.Record) {}

// inflater decompresses into borrowed slices.
type inflater struct {
	*buffers
	kgo.Decompressor
}

func newInflater(b *buffers) inflater { return inflater{b, kgo.DefaultDecompressor(decompressed{b})} }

// decompressed makes buffers a kgo.PoolDecompressBytes.
type decompressed struct{ *buffers }

func (s decompressed) GetDecompressBytes([]byte, kgo.CompressionCodecType) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.free.bytes) - 1
	if last < 0 {
		return nil
	}
	out := s.free.bytes[last]
	s.free.bytes = s.free.bytes[:last]
	return out
}

// PutDecompressBytes is called when decompressing failed.
func (s decompressed) PutDecompressBytes([]byte) {}

// Decompress notes what is returned, which is another slice than the one that was
// offered if that was too short.
func (i inflater) Decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	out, err := i.Decompressor.Decompress(src, codec)
	if err == nil && codec != kgo.CodecNone {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.borrowed.bytes = append(i.borrowed.bytes, out)
	}
	return out, err
}

// settle ends the decoding of a part, and returns the function that gives back
// what it borrowed.
func (b *buffers) settle() (release func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.borrowed
	b.borrowed = loan{}
	return func() {
		for i, arena := range held.arenas {
			clear(arena) // a record would keep the answer that it was in
			held.arenas[i] = arena[:0]
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.free.arenas = append(b.free.arenas, held.arenas...)
		b.free.bytes = append(b.free.bytes, held.bytes...)
	}
}

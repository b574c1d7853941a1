package persistence

import (
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// inbox holds polled records until the handler polls them.
type inbox struct {
	mu struct {
		sync.Mutex
		active  bool // between polls only
		batches [][]*kgo.Record
		records int
		since   time.Time // since when there are some
		paused  bool
		err     error
		closed  bool
	}
	wake chan struct{}
}

// maxInbox is how many records of a partition wait for its handler before its
// fetching is paused; it goes on at half of that. Beyond them kgo buffers one
// fetch (kgo.FetchMaxPartitionBytes).
const maxInbox = 10_000

// deliver is called by the poller.
func (b *inbox) deliver(p *Partition, records []*kgo.Record, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.closed || b.mu.err != nil {
		return // after an error kgo may go on somewhere else
	}
	// An error counts even before the first poll has taken effect: it is about
	// the committed position, which kgo checks as soon as the partition is
	// assigned.
	if len(records) > 0 && b.mu.active {
		if b.mu.records == 0 {
			b.mu.since = time.Now()
		}
		b.mu.batches = append(b.mu.batches, records)
		b.mu.records += len(records)
	}
	b.mu.err = err
	if b.mu.records >= maxInbox && !b.mu.paused {
		b.mu.paused = true
		p.m.consumer.PauseFetchPartitions(p.m.only(p.id))
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *inbox) take(p *Partition) ([]*kgo.Record, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.mu.batches) == 0 {
		return nil, b.mu.err
	}
	records := b.mu.batches[0]
	b.mu.batches[0] = nil
	if b.mu.batches = b.mu.batches[1:]; len(b.mu.batches) == 0 {
		b.mu.batches = nil
	}
	b.mu.records -= len(records)
	if b.mu.paused && b.mu.records <= maxInbox/2 {
		b.mu.paused = false
		p.m.consumer.ResumeFetchPartitions(p.m.only(p.id))
	}
	return records, nil
}

// backlog is how many records wait, and since when there are some.
func (b *inbox) backlog() (int, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.records, b.mu.since
}

func (b *inbox) start() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.active = true
}

func (b *inbox) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.closed, b.mu.batches, b.mu.records = true, nil, 0
}

package persistence

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// write is one caller's Write, Delete or Apply: committed as a whole or not at
// all.
type write struct {
	snapshots []Snapshot
	outputs   []*kgo.Record
	through   position // offset noPosition if none
	bytes     int
	done      chan error // buffered, answered exactly once
}

func (w *write) records() int { return len(w.snapshots) + len(w.outputs) }

func countRecords(batch []*write) (n int) {
	for _, w := range batch {
		n += w.records()
	}
	return n
}

// queue holds the writes that wait for the next transaction. Whoever leaves it
// has been answered or is the owner's to answer; nothing is dropped.
type queue struct {
	mu struct {
		sync.Mutex
		pending []*write
		refuse  error // why nothing more is taken, nil while open
	}
	wake chan struct{} // buffered: there is something to do
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1)} }

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// push adds a write, or says why it is refused.
func (q *queue) push(w *write) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.refuse != nil {
		return q.mu.refuse
	}
	q.mu.pending = append(q.mu.pending, w)
	q.signal()
	return nil
}

// withdraw takes a write back that no transaction has taken yet.
func (q *queue) withdraw(w *write) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, p := range q.mu.pending {
		if p == w {
			q.mu.pending = append(q.mu.pending[:i], q.mu.pending[i+1:]...)
			return true
		}
	}
	return false
}

// take removes the next batch; done is true when there is none and never will
// be.
func (q *queue) take(maxRecords, maxBytes int) (batch []*write, done bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := batchSize(q.mu.pending, maxRecords, maxBytes)
	batch = q.mu.pending[:n:n]
	if q.mu.pending = q.mu.pending[n:]; len(q.mu.pending) == 0 {
		q.mu.pending = nil
	}
	return batch, n == 0 && q.mu.refuse != nil
}

// drain refuses further writes; those that wait are still taken.
func (q *queue) drain(why error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.refuse == nil {
		q.mu.refuse = why
	}
	q.signal()
}

// clear refuses further writes and returns those that wait.
func (q *queue) clear(why error) []*write {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.refuse == nil {
		q.mu.refuse = why
	}
	pending := q.mu.pending
	q.mu.pending = nil
	q.signal()
	return pending
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.mu.pending)
}

// batchSize says how many of the pending writes go into one transaction: as
// many as fit the bounds, and at least one.
func batchSize(pending []*write, maxRecords, maxBytes int) int {
	records, bytes := 0, 0
	for i, w := range pending {
		records += w.records()
		bytes += w.bytes
		if i > 0 && (records > maxRecords || bytes > maxBytes) {
			return i
		}
	}
	return len(pending)
}

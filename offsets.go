package persistence

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// position is an input offset to commit: the next to read, and the leader epoch
// of the record before it.
type position struct {
	offset int64
	epoch  int32
}

const noPosition int64 = -1

// after is the position behind an input record.
func after(r *kgo.Record) position { return position{r.Offset + 1, r.LeaderEpoch} }

// offsets is the committable offset of one ownership. It never goes back.
type offsets struct {
	mu struct {
		sync.Mutex
		committable position
		committed   position
		doubt       bool // a late request may move the group's offset back, or have done so
	}
}

// start sets where the ownership resumed from; nothing is owed yet.
func (o *offsets) start(at position) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.committable, o.mu.committed = at, at
}

func (o *offsets) advance(to position) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if to.offset > o.mu.committable.offset {
		o.mu.committable = to
	}
}

func (o *offsets) committable() position {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.committable
}

// settled notes that the group's committed offset is at least p.
func (o *offsets) settled(p position) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p.offset > o.mu.committable.offset {
		o.mu.committable = p
	}
	if p.offset > o.mu.committed.offset {
		o.mu.committed = p
	}
}

// dirty is what was advanced to and not committed. While in doubt it is
// whatever was advanced to.
func (o *offsets) dirty() (position, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.committable, o.mu.doubt || o.mu.committable.offset > o.mu.committed.offset
}

func (o *offsets) raiseDoubt() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.doubt = true
}

func (o *offsets) inDoubt() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.doubt
}

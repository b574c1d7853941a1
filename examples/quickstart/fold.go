package main

import (
	"encoding/json"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
)

// event is one deposit or withdrawal. N numbers the events of its key: 1, 2, 3
// and so on.
type event struct {
	N      int64 `json:"n"`
	Amount int64 `json:"amount"`
}

// account is the state of one key.
type account struct {
	Balance int64 `json:"balance"`
	Events  int64 `json:"events"` // how many were folded in
	Last    int64 `json:"last"`   // the number of the last one

	// Would be raised if an event were skipped or folded in twice. They are
	// part of the state so that no crash can hide one.
	Lost       int64 `json:"lost"`
	Duplicated int64 `json:"duplicated"`

	// through is the offset of the last event folded in. It travels beside
	// the value, as the snapshot's SourceOffset.
	through int64
}

// newAccount is the state before the first event. Offsets begin at 0, so
// nothing is -1.
func newAccount() *account { return &account{through: -1} }

// fold takes one input record into its account, and reports whether it changed
// anything.
//
// After a takeover some events come again: the group's committed offset is
// never ahead of the snapshots, but it may be behind some of them. A snapshot
// knows which event was the last in it, so an event at or below that offset is
// already in the state and must be left out. This check is what makes each
// event count exactly once.
func fold(a *account, r *kgo.Record) (changed bool, err error) {
	if r.Offset <= a.through {
		return false, nil
	}
	var e event
	if err := json.Unmarshal(r.Value, &e); err != nil {
		return false, fmt.Errorf("event at offset %d of partition %d: %w", r.Offset, r.Partition, err)
	}
	a.through = r.Offset

	switch next := a.Last + 1; {
	case e.N > next:
		a.Lost += e.N - next
	case e.N < next:
		a.Duplicated++
	}
	a.Last = max(a.Last, e.N)
	a.Balance += e.Amount
	a.Events++
	return true, nil
}

// snapshot is the account as it is written.
func (a *account) snapshot(key string) (persistence.Snapshot, error) {
	value, err := json.Marshal(a)
	return persistence.Snapshot{Key: []byte(key), Value: value, SourceOffset: a.through}, err
}

// load puts a recovered snapshot into the state. The last one of a key counts,
// and one without a value says that the key is gone.
func load(accounts map[string]*account, s persistence.Snapshot) error {
	if s.Value == nil {
		delete(accounts, string(s.Key))
		return nil
	}
	a := newAccount()
	if err := json.Unmarshal(s.Value, a); err != nil {
		return fmt.Errorf("snapshot of %s at offset %d: %w", s.Key, s.LogOffset, err)
	}
	a.through = s.SourceOffset
	accounts[string(s.Key)] = a
	return nil
}

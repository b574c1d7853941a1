package main

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/kafkafence/persistence"
)

// board is where the members put up what they do, for the terminal and for the
// story to wait on.
type board struct {
	say func(format string, args ...any)

	mu      sync.Mutex
	owner   map[int32]string        // who recovered a partition last
	took    map[int32]time.Duration // its takeover, before the recovery
	resumed map[int32]int64         // where it resumed
	next    map[int32]int64         // all input below is persisted
	taken   int
	replays int
}

func newBoard(say func(string, ...any)) *board {
	return &board{say: say, owner: make(map[int32]string), took: make(map[int32]time.Duration),
		resumed: make(map[int32]int64), next: make(map[int32]int64)}
}

// trace follows a member's ownerships.
func (b *board) trace(name string) persistence.Trace {
	return persistence.Trace{
		TakenOver: func(i persistence.TakeoverInfo) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.taken++
			b.took[i.Partition] = i.Took
		},
		GivenUp: func(i persistence.GiveUpInfo) {
			switch {
			case errors.Is(i.Reason, persistence.ErrRevoked):
				b.say("partition %d revoked from %s", i.Partition, name)
			case errors.Is(i.Reason, persistence.ErrLost), errors.Is(i.Reason, persistence.ErrFenced):
				b.say("partition %d lost by %s", i.Partition, name)
			}
		},
	}
}

func (b *board) recovered(name string, p *persistence.Partition, took time.Duration, keys int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	took += b.took[p.ID()]
	b.owner[p.ID()], b.resumed[p.ID()] = name, p.Resume()
	b.say("partition %d taken over by %s in %v, resumed at %d, recovered %d keys", p.ID(), name, took.Round(time.Millisecond), p.Resume(), keys)
}

func (b *board) persisted(partition int32, next int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next[partition] = max(b.next[partition], next)
}

// replayed counts an event that came again and was left out.
func (b *board) replayed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.replays++
}

// owned counts a member's partitions.
func (b *board) owned(name string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, owner := range b.owner {
		if owner == name {
			n++
		}
	}
	return n
}

// progress counts what a member has persisted in the partitions that it owns.
func (b *board) progress(name string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	var n int64
	for id, owner := range b.owner {
		if owner == name {
			n += max(0, b.next[id]-b.resumed[id])
		}
	}
	return n
}

// at is where a partition's input is persisted to.
func (b *board) at(partition int32) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.next[partition]
}

func (b *board) owners() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.taken
}

func (b *board) skipped() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.replays
}

// status is one line for the terminal.
func (b *board) status(partitions int, produced int64) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var persisted int64
	who := make([]string, partitions)
	for id := range partitions {
		persisted += b.next[int32(id)]
		if who[id] = b.owner[int32(id)]; who[id] == "" {
			who[id] = "-"
		}
	}
	return fmt.Sprintf("produced %6d  persisted %6d  partitions owned by %s", produced, persisted, strings.Join(who, " "))
}

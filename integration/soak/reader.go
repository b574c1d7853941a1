package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// reader reads topics from their start, read_committed, and keeps everything.
type reader struct {
	w      *world
	client *kgo.Client
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	next    map[string]map[int32]int64 // positions
	records map[string][]*kgo.Record   // each partition's in order
	moved   chan struct{}
}

func (w *world) read(ctx context.Context, topics ...string) (*reader, error) {
	from := make(map[string]map[int32]kgo.Offset)
	r := &reader{w: w, next: make(map[string]map[int32]int64), records: make(map[string][]*kgo.Record), moved: make(chan struct{}, 1)}
	for _, topic := range topics {
		from[topic], r.next[topic] = make(map[int32]kgo.Offset), make(map[int32]int64)
		for id := range int32(partitions) {
			from[topic][id] = kgo.NewOffset().AtStart()
		}
	}
	var err error
	// Markers move the position too: the last offset is nearly always one.
	r.client, err = kgo.NewClient(append(impatient(w.brokers), kgo.ConsumePartitions(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), kgo.FetchMaxWait(200*time.Millisecond))...)
	if err != nil {
		return nil, err
	}
	ctx, r.cancel = context.WithCancel(ctx)
	r.done.Go(func() { r.run(ctx) })
	return r, nil
}

func (r *reader) run(ctx context.Context) {
	for ctx.Err() == nil {
		fetches := r.client.PollFetches(ctx)
		r.mu.Lock()
		fetches.EachRecord(func(rec *kgo.Record) {
			r.next[rec.Topic][rec.Partition] = rec.Offset + 1
			if !rec.Attrs.IsControl() {
				r.records[rec.Topic] = append(r.records[rec.Topic], rec)
			}
		})
		r.mu.Unlock()
		select {
		case r.moved <- struct{}{}:
		default:
		}
	}
}

func (r *reader) close() {
	r.cancel()
	r.done.Wait()
	r.client.Close()
}

// catchUp waits until everything that is committed by now has been read.
func (r *reader) catchUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for topic := range r.next {
		var ends map[int32]int64
		for {
			var err error
			if ends, err = r.w.ends(ctx, topic); err == nil {
				break
			} else if ctx.Err() != nil {
				return fmt.Errorf("asking for the ends of %s: %w", topic, err)
			}
		}
		for !r.reached(topic, ends) {
			select {
			case <-r.moved:
			case <-ctx.Done():
				return fmt.Errorf("reading %s up to %v: %w", topic, ends, context.Cause(ctx))
			}
		}
	}
	return nil
}

func (r *reader) reached(topic string, ends map[int32]int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, end := range ends {
		if r.next[topic][id] < end {
			return false
		}
	}
	return true
}

// logs is what was read, but for the states.
func (r *reader) logs() (l logs) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rec := range r.records[r.w.input] {
		l.inputs = append(l.inputs, input{number: numberOf(rec.Value), key: string(rec.Key)})
	}
	for _, rec := range r.records[r.w.output] {
		number, count, _ := strings.Cut(string(rec.Value), ":")
		l.outputs = append(l.outputs, output{number: numberOf([]byte(number)), count: numberOf([]byte(count)), key: string(rec.Key)})
	}
	for _, rec := range r.records[r.w.dead] {
		l.dead = append(l.dead, numberOf(rec.Value))
	}
	return l
}

func numberOf(text []byte) int {
	n, err := strconv.Atoi(string(text))
	if err != nil {
		return -1
	}
	return n
}

// states is the newest state of each key.
func (r *reader) states() map[string]state {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[string]state)
	for _, rec := range r.records[r.w.state] {
		var s state
		if json.Unmarshal(rec.Value, &s) != nil {
			s.Count = -1
		}
		all[string(rec.Key)] = s
	}
	return all
}

// suspect is an input that was below the committed offset before its effect was
// seen.
type suspect struct {
	number    int
	partition int32
	committed int64
	at        time.Time // when the offset had been read
}

// suspects are the inputs below the committed offsets whose effect has not been
// read. That proves nothing yet: a broker that just woke may still tell where its
// log ended when it fell asleep, and the reader be content with that.
func (r *reader) suspects(committed map[int32]int64, at time.Time) (found []suspect) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := r.effects()
	for _, rec := range r.records[r.w.input] {
		number := numberOf(rec.Value)
		if _, ok := seen[number]; !ok && rec.Offset < committed[rec.Partition] {
			found = append(found, suspect{number, rec.Partition, committed[rec.Partition], at})
		}
	}
	return found
}

// effects are when the records that inputs have become were made. The caller holds
// the lock.
func (r *reader) effects() map[int]time.Time {
	seen := make(map[int]time.Time)
	for _, topic := range []string{r.w.output, r.w.dead} {
		for _, rec := range r.records[topic] {
			number, _, _ := strings.Cut(string(rec.Value), ":")
			seen[numberOf([]byte(number))] = rec.Timestamp
		}
	}
	return seen
}

// ahead says which suspects were committed before their effect was there: it was
// made later, or is missing still.
func (r *reader) ahead(suspects []suspect) (found []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return ahead(suspects, r.effects())
}

func ahead(suspects []suspect, effects map[int]time.Time) (found []string) {
	told := make(map[int]bool)
	for _, s := range suspects {
		if made, ok := effects[s.number]; (!ok || made.After(s.at)) && !told[s.number] {
			told[s.number] = true
			found = append(found, fmt.Sprintf("offset %d of partition %d was committed at %v, and input %d below it had no effect then", s.committed, s.partition, s.at.Format(time.StampMilli), s.number))
		}
	}
	return found
}

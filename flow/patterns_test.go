package flow_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/flow"
)

// The patterns of docs/patterns.md. In each, folds have had their effect outside of
// Kafka and then nothing of it is committed, so that they have it again.

// database stands for whatever is outside.
type database struct {
	mu    sync.Mutex
	calls int
	rows  map[string]string
	at    map[string]int64 // offset stored with a row
}

func newDatabase() *database {
	return &database{rows: make(map[string]string), at: make(map[string]int64)}
}

// insertOnce is INSERT ... ON CONFLICT DO NOTHING.
func (d *database) insertOnce(id, row string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	if _, ok := d.rows[id]; !ok {
		d.rows[id] = row
	}
}

// addUpTo is one transaction: it adds to a row unless the row has seen the offset, and
// stores the offset with it.
func (d *database) addUpTo(key string, offset int64, amount int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	if at, ok := d.at[key]; ok && offset <= at {
		return
	}
	n, _ := strconv.Atoi(d.rows[key])
	d.rows[key], d.at[key] = strconv.Itoa(n+amount), offset
}

func (d *database) called() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls
}

var errLightning = errors.New("lightning")

// once makes a fold fail the first time that it meets an event, after all that the
// others have done, and lets nothing of it be committed.
func once(value string) func(*kgo.Record) error {
	var struck sync.Once
	return func(e *kgo.Record) (err error) {
		if string(e.Value) == value {
			struck.Do(func() { err = errLightning })
		}
		return err
	}
}

func TestPatternIdempotentSink(t *testing.T) {
	b := newBench(t, 1)
	db, lightning := newDatabase(), once("last")
	spec := flow.Spec[int]{Codec: flow.JSON[int](1), Persist: flow.Every(time.Hour), Workers: 1, Fold: func(_ context.Context, k *flow.Key[int], e *kgo.Record) error {
		k.State++
		db.insertOnce(k.EventID(), fmt.Sprintf("%s paid %s", e.Key, e.Value))
		return lightning(e)
	}}
	b.produce(0, "ann=1", "bob=2", "ann=3", "bob=last")
	f := start(b, spec)
	require.ErrorIs(t, f.wait(), errLightning)
	require.Equal(t, 4, db.called())
	require.LessOrEqual(t, b.committed(0), int64(0))

	f = start(b, spec)
	b.eventually("all is folded again", func() bool { return db.called() == 8 })
	require.NoError(t, f.end())
	require.Equal(t, map[string]string{"in/0/0/0": "ann paid 1", "in/0/1/0": "bob paid 2", "in/0/2/0": "ann paid 3", "in/0/3/0": "bob paid last"}, db.rows)
}

func TestPatternOffsetWithTheResult(t *testing.T) {
	b := newBench(t, 1)
	db, lightning := newDatabase(), once("8")
	spec := flow.Spec[int]{Codec: flow.JSON[int](1), Persist: flow.Every(time.Hour), Workers: 1, Fold: func(_ context.Context, k *flow.Key[int], e *kgo.Record) error {
		amount, err := strconv.Atoi(string(e.Value))
		if err != nil {
			return err
		}
		k.State += amount
		db.addUpTo(string(k.Key()), e.Offset, amount)
		return lightning(e)
	}}
	b.produce(0, "ann=1", "bob=2", "ann=4", "bob=8")
	f := start(b, spec)
	require.ErrorIs(t, f.wait(), errLightning)
	f = start(b, spec)
	b.eventually("all is folded again", func() bool { return db.called() == 8 })
	require.NoError(t, f.end())
	require.Equal(t, map[string]string{"ann": "5", "bob": "10"}, db.rows)
	require.Equal(t, db.rows, b.state(0), "inside and outside agree")
}

func TestPatternOutboxAndRelay(t *testing.T) {
	b := newBench(t, 1)
	// The service puts what is to be done outside into a topic, in the transaction of
	// the event, under a name of its own.
	service := counter(func(k *flow.Key[int], e *kgo.Record) error {
		k.Emit(&kgo.Record{Topic: "out", Key: []byte(k.EventID()), Value: fmt.Appendf(nil, "mail %s: order %d", e.Key, k.State)})
		return nil
	})
	f := start(b, service)
	b.produce(0, "ann=x", "bob=x", "ann=x")
	b.eventually("all is committed", func() bool { return b.committed(0) == 3 })
	require.NoError(t, f.end())

	// The relay delivers it, at least once, and the receiver keeps what it has seen.
	receiver, lightning := newDatabase(), once("mail ann: order 2")
	relay := flow.Transform{Workers: 1, Each: func(_ context.Context, r *kgo.Record) ([]*kgo.Record, error) {
		receiver.insertOnce(string(r.Key), string(r.Value))
		return nil, lightning(r)
	}}
	run := func() *running {
		return transform(b, relay, consuming("out", "relay")...)
	}
	require.ErrorIs(t, run().wait(), errLightning)
	again := run()
	b.eventually("the third is delivered again", func() bool { return receiver.called() >= 4 })
	require.NoError(t, again.end())
	require.Equal(t, map[string]string{"in/0/0/0": "mail ann: order 1", "in/0/1/0": "mail bob: order 1", "in/0/2/0": "mail ann: order 2"}, receiver.rows)
}

func TestPatternCommandEvents(t *testing.T) {
	b := newBench(t, 1)
	lightning := once("take 30 for carl")
	spec := flow.Spec[int]{Codec: flow.JSON[int](1), Workers: 4, Fold: func(_ context.Context, k *flow.Key[int], e *kgo.Record) error {
		var amount int
		var to string
		switch n, _ := fmt.Sscanf(string(e.Value), "take %d for %s", &amount, &to); n {
		case 2:
			// Another key's state is another fold's: it gets an event, which is
			// there if and only if the money has left.
			k.State -= amount
			k.Emit(&kgo.Record{Topic: e.Topic, Key: []byte(to), Value: fmt.Appendf(nil, "add %d", amount)})
		default:
			if _, err := fmt.Sscanf(string(e.Value), "add %d", &amount); err != nil {
				return err
			}
			k.State += amount
		}
		return lightning(e)
	}}
	b.produce(0, "ann=add 100", "ann=take 20 for bob", "ann=take 30 for carl")
	require.ErrorIs(t, start(b, spec).wait(), errLightning)
	f := start(b, spec)
	b.eventually("all has arrived", func() bool {
		s := b.state(0)
		return s["ann"] == "50" && s["bob"] == "20" && s["carl"] == "30"
	})
	require.NoError(t, f.end())
	var commands []string
	for _, r := range b.read("in", 0)[3:] {
		commands = append(commands, string(r.Key)+" "+string(r.Value))
	}
	require.ElementsMatch(t, strings.Split("bob add 20,carl add 30", ","), commands)
}

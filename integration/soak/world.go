package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	memberCount = 3
	partitions  = 6
	keys        = 60
)

// world is the topics and the group.
type world struct {
	brokers                    []string
	input, state, output, dead string
	group                      string
	client                     *kgo.Client
	adm                        *kadm.Client
}

// impatient makes a client give up on a broker that does not answer sooner than by
// default, as some of them are paused here.
func impatient(brokers []string) []kgo.Opt {
	return []kgo.Opt{kgo.SeedBrokers(brokers...), kgo.RequestTimeoutOverhead(3 * time.Second), kgo.DialTimeout(2 * time.Second),
		kgo.MetadataMinAge(250 * time.Millisecond), kgo.RetryTimeout(15 * time.Second)}
}

func newWorld(ctx context.Context, brokers []string) (*world, error) {
	name := "soak-" + strconv.FormatUint(rand.Uint64(), 36)
	w := &world{brokers: brokers, input: name + "-in", state: name + "-state", output: name + "-out", dead: name + "-dead", group: name}
	var err error
	if w.client, err = kgo.NewClient(append(impatient(brokers), kgo.RecordPartitioner(kgo.ManualPartitioner()))...); err != nil {
		return nil, err
	}
	w.adm = kadm.NewClient(w.client)
	two, compact := "2", "compact"
	for _, topic := range []string{w.input, w.state, w.output, w.dead} {
		configs := map[string]*string{"min.insync.replicas": &two}
		if topic == w.state {
			configs["cleanup.policy"] = &compact
		}
		if _, err := w.adm.CreateTopic(ctx, partitions, 3, configs, topic); err != nil {
			w.close()
			return nil, fmt.Errorf("creating %s: %w", topic, err)
		}
	}
	return w, nil
}

func (w *world) close() { w.client.Close() }

// spec is how a member is told where it is.
func (w *world) spec(fence bool, persist time.Duration) string {
	return strings.Join([]string{strings.Join(w.brokers, ","), w.input, w.state, w.output, w.dead, w.group, strconv.FormatBool(fence), persist.String()}, " ")
}

// committed is the group's offset of each partition of the input, 0 where there is
// none. It fails while one is not stable.
func (w *world) committed(ctx context.Context) (map[int32]int64, error) {
	all := make(map[int32]int64, partitions)
	found, err := w.adm.FetchOffsets(ctx, w.group)
	if err == nil {
		err = found.Error()
	}
	for id := range int32(partitions) {
		if o, ok := found.Lookup(w.input, id); ok {
			all[id] = max(o.At, 0)
		}
	}
	return all, err
}

// ends is the end of each partition of a topic, for a read_committed reader.
func (w *world) ends(ctx context.Context, topic string) (map[int32]int64, error) {
	found, err := w.adm.ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = found.Error()
	}
	all := make(map[int32]int64, partitions)
	found.Each(func(o kadm.ListedOffset) { all[o.Partition] = o.Offset })
	return all, err
}

// awaitCommitted waits until the group has come to the end of the input.
func (w *world) awaitCommitted(ctx context.Context, members *members, tell func(string, ...any)) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	t := time.NewTicker(250 * time.Millisecond)
	defer t.Stop()
	for n := 1; ; n++ {
		ends, err := w.ends(ctx, w.input)
		committed := map[int32]int64{}
		if err == nil {
			committed, err = w.committed(ctx)
		}
		left := int64(0)
		for id, end := range ends {
			left += end - committed[id]
		}
		if err == nil && left == 0 {
			return nil
		}
		if n%40 == 0 {
			tell("%d inputs are not committed yet (%v)", left, err)
		}
		if err := members.replace(); err != nil {
			return err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting until all inputs are committed: %d are not: %w (%v)", left, context.Cause(ctx), err)
		}
	}
}

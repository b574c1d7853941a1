package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// filling is what a snapshot topic is filled with.
type filling struct {
	records    int // over all partitions
	valueBytes int
	keys       int
	partitions int
	zstd       bool
}

func (f filling) String() string {
	size := fmt.Sprintf("%dB", f.valueBytes)
	if f.valueBytes%1024 == 0 {
		size = fmt.Sprintf("%dKiB", f.valueBytes/1024)
	}
	return fmt.Sprintf("%dx%s", f.records, size) + suffix(f.zstd)
}

// bytes are those of all keys and values.
func (f filling) bytes() int64 { return int64(f.records) * int64(len(key(0))+f.valueBytes) }

func key(n int) []byte { return fmt.Appendf(nil, "customer-%016d", n) }

func suffix(zstd bool) string {
	if zstd {
		return "-zstd"
	}
	return ""
}

func (f filling) scaled(by float64) filling {
	f.keys = max(int(float64(f.keys)*by), f.partitions)
	f.records = max(int(float64(f.records)*by), f.keys)
	return f
}

// topics are those of one case.
type topics struct {
	admin            *kadm.Client
	input, snapshots string
	filling          filling
}

// transactionRecords is how many records the transactions of the filling have.
const transactionRecords = 5_000

// with makes an input topic, empty, and a snapshot topic that is filled, and deletes
// both when use has returned.
func (f filling) with(ctx context.Context, brokers []string, use func(*topics) error) (err error) {
	codec := kgo.NoCompression()
	if f.zstd {
		codec = kgo.ZstdCompression()
	}
	name := "bench-recovery-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.TransactionalID(name), kgo.ProducerBatchCompression(codec),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		return err
	}
	defer cl.Close()
	t := &topics{admin: kadm.NewClient(cl), input: name + "-in", snapshots: name + "-state", filling: f}
	defer func() { err = errors.Join(err, t.delete()) }()
	if err := t.create(ctx, t.input, nil); err != nil {
		return err
	}
	configs := map[string]*string{
		"cleanup.policy": kadm.StringPtr("compact"),
		// All rounds must find the same log, so nothing is compacted meanwhile.
		"min.compaction.lag.ms": kadm.StringPtr(strconv.FormatInt((7 * 24 * time.Hour).Milliseconds(), 10)),
		// The next case needs the space.
		"file.delete.delay.ms": kadm.StringPtr("1000"),
	}
	if err := t.create(ctx, t.snapshots, configs); err != nil {
		return err
	}
	values := newValues(f.valueBytes)
	for first := 0; first < f.records; first += transactionRecords {
		if err := t.transaction(ctx, cl, first, min(first+transactionRecords, f.records), values); err != nil {
			return fmt.Errorf("writing the snapshots from number %d on: %w", first, err)
		}
	}
	return use(t)
}

func (t *topics) create(ctx context.Context, topic string, configs map[string]*string) error {
	if _, err := t.admin.CreateTopic(ctx, int32(t.filling.partitions), -1, configs, topic); err != nil {
		return fmt.Errorf("creating topic %s: %w", topic, err)
	}
	for {
		ends, err := t.admin.ListEndOffsets(ctx, topic)
		if err == nil && ends.Error() == nil && len(ends[topic]) == t.filling.partitions {
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("topic %s was created, but is not there yet: %w", topic, context.Cause(ctx))
		}
	}
}

// transaction writes the records numbered from first on, below last.
func (t *topics) transaction(ctx context.Context, cl *kgo.Client, first, last int, values *values) error {
	if err := cl.BeginTransaction(); err != nil {
		return err
	}
	var once sync.Once
	var failed error
	for i := first; i < last; i++ {
		k := i % t.filling.keys
		r := &kgo.Record{Topic: t.snapshots, Partition: int32(k % t.filling.partitions), Key: key(k), Value: values.next()}
		cl.Produce(ctx, r, func(_ *kgo.Record, err error) {
			if err != nil {
				once.Do(func() { failed = err })
			}
		})
	}
	if err := cl.Flush(ctx); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	return cl.EndTransaction(ctx, kgo.TryCommit)
}

// end is where the snapshot log ends.
func (t *topics) end(ctx context.Context) (int64, error) {
	ends, err := t.admin.ListEndOffsets(ctx, t.snapshots)
	if err != nil {
		return 0, err
	}
	end, _ := ends.Lookup(t.snapshots, 0)
	return end.Offset, end.Err
}

// delete removes the topics, as far as they were created.
func (t *topics) delete() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	deleted, err := t.admin.DeleteTopics(ctx, t.input, t.snapshots)
	if err != nil {
		return fmt.Errorf("deleting the topics: %w", err)
	}
	for _, d := range deleted {
		if d.Err != nil && !errors.Is(d.Err, kerr.UnknownTopicOrPartition) {
			return fmt.Errorf("deleting topic %s: %w", d.Topic, d.Err)
		}
	}
	return nil
}

// values makes values that are half random and half text, so that compression
// gains something, and not everything.
type values struct {
	random *rand.ChaCha8
	text   []byte
	size   int
}

func newValues(size int) *values {
	v := &values{random: rand.NewChaCha8([32]byte{}), size: size}
	for n := 0; len(v.text) < size; n++ {
		v.text = fmt.Appendf(v.text, `{"item":%d,"status":"delivered","amount":"17.20"},`, n%10)
	}
	return v
}

func (v *values) next() []byte {
	value := make([]byte, v.size)
	half := v.size / 2
	v.random.Read(value[:half])
	copy(value[half:], v.text)
	return value
}

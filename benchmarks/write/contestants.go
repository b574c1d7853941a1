package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/benchmarks/internal/peer"
)

// values are what is written, in turn. They are random, though nothing is
// compressed.
func values(bytes int) [64][]byte {
	var all [64][]byte
	rng := rand.NewChaCha8([32]byte{1})
	for i := range all {
		all[i] = make([]byte, bytes)
		_, _ = rng.Read(all[i])
	}
	return all
}

func keyOf(i int) []byte { return strconv.AppendInt([]byte("key-"), int64(i), 10) }

// ours is a Partition with the defaults.
type ours struct {
	brokers []string
	module  *persistence.Module
	owned   *persistence.Partition
	stop    context.CancelFunc
	ended   chan error
}

func (o *ours) open(ctx context.Context, input, state string) (err error) {
	o.module, err = persistence.New(
		persistence.Kafka(kgo.SeedBrokers(o.brokers...), kgo.ConsumerGroup(state), kgo.ConsumeTopics(input), kgo.ProducerBatchCompression(kgo.NoCompression())),
		persistence.SnapshotTopic(state), persistence.TransactionalIDPrefix(state), persistence.Logger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	run, stop := context.WithCancel(ctx)
	o.stop, o.ended = stop, make(chan error, 1)
	owned := make(chan *persistence.Partition, 1)
	go func() {
		o.ended <- o.module.Run(run, func(_ context.Context, p *persistence.Partition) error {
			owned <- p
			<-p.Revoked()
			return persistence.ErrRevoked
		})
	}()
	select {
	case o.owned = <-owned:
		return nil
	case err := <-o.ended:
		o.ended <- nil
		return fmt.Errorf("it ended: %w", err)
	}
}

func (o *ours) write(ctx context.Context, w workload) (time.Duration, error) {
	all := values(w.bytes)
	one := func(i int) error {
		return o.owned.Write(ctx, persistence.Snapshot{Key: keyOf(i), Value: all[i%len(all)], SourceOffset: int64(i)})
	}
	began := time.Now()
	if !w.burst {
		for i := range w.writes {
			if err := one(i); err != nil {
				return 0, err
			}
		}
		return time.Since(began), nil
	}
	var writers sync.WaitGroup
	var once sync.Once
	var failed error
	for i := range w.writes {
		writers.Go(func() {
			if err := one(i); err != nil {
				once.Do(func() { failed = err })
			}
		})
	}
	writers.Wait()
	return time.Since(began), failed
}

func (o *ours) close() error {
	if o.stop == nil {
		return nil
	}
	o.stop()
	return errors.Join(<-o.ended, o.module.Close(context.Background()))
}

// plain is a producer without a fence.
type plain struct {
	brokers []string
	cl      *kgo.Client
	state   string
}

func (p *plain) open(_ context.Context, _, state string) (err error) {
	p.state = state
	p.cl, err = kgo.NewClient(kgo.SeedBrokers(p.brokers...), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(0),
		kgo.MaxBufferedRecords(1_000_000))
	return err
}

func (p *plain) write(ctx context.Context, w workload) (time.Duration, error) {
	all := values(w.bytes)
	record := func(i int) *kgo.Record { return &kgo.Record{Topic: p.state, Key: keyOf(i), Value: all[i%len(all)]} }
	began := time.Now()
	if !w.burst {
		for i := range w.writes {
			if err := p.cl.ProduceSync(ctx, record(i)).FirstErr(); err != nil {
				return 0, err
			}
		}
		return time.Since(began), nil
	}
	var failed error
	for i := range w.writes {
		p.cl.Produce(ctx, record(i), func(_ *kgo.Record, err error) {
			if err != nil {
				failed = err
			}
		})
	}
	err := p.cl.Flush(ctx)
	return time.Since(began), errors.Join(err, failed)
}

func (p *plain) close() error {
	if p.cl != nil {
		p.cl.Close()
	}
	return nil
}

// session is a loop around GroupTransactSession.
type session struct {
	brokers []string
	s       *kgo.GroupTransactSession
	state   string
}

func (s *session) open(_ context.Context, input, state string) (err error) {
	s.state = state
	s.s, err = kgo.NewGroupTransactSession(kgo.SeedBrokers(s.brokers...), kgo.TransactionalID(state), kgo.ConsumerGroup(state), kgo.ConsumeTopics(input),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(0))
	return err
}

func (s *session) write(ctx context.Context, w workload) (time.Duration, error) {
	all := values(w.bytes)
	var began time.Time
	for i := range w.writes {
		fetches := s.s.PollRecords(ctx, 1)
		if err := fetches.Err(); err != nil {
			return 0, err
		}
		if i == 0 {
			began = time.Now() // it has joined
		}
		if err := s.s.Begin(); err != nil {
			return 0, err
		}
		if err := s.s.ProduceSync(ctx, &kgo.Record{Topic: s.state, Key: keyOf(i), Value: all[i%len(all)]}).FirstErr(); err != nil {
			return 0, err
		}
		switch committed, err := s.s.End(ctx, kgo.TryCommit); {
		case err != nil:
			return 0, err
		case !committed:
			return 0, errors.New("a transaction was aborted")
		}
	}
	return time.Since(began), nil
}

func (s *session) close() error {
	if s.s != nil {
		s.s.Close()
	}
	return nil
}

// clients is Apache's Java client.
type clients struct {
	brokers     []string
	tuned       bool
	batch       int
	offsetFirst bool
	progress    func(string, ...any)
	p           *peer.Process
}

func (c *clients) open(ctx context.Context, input, state string) (err error) {
	c.p, err = peer.Start(ctx, "peers.ClientsPeer", c.brokers, func(string) bool { return false }, c.progress)
	if err != nil {
		return err
	}
	tuning := "default"
	if c.tuned {
		tuning = "tuned"
	}
	_, err = c.ask(ctx, "opened", "open %s %s %s %s", input, state, state, tuning)
	return err
}

func (c *clients) ask(ctx context.Context, want, format string, args ...any) (rest string, err error) {
	if err := c.p.Tell(format, args...); err != nil {
		return "", err
	}
	line, err := c.p.Answer(ctx)
	if err != nil {
		return "", err
	}
	word, rest, _ := strings.Cut(line, " ")
	if word != want {
		return "", fmt.Errorf("the peer said %q instead of %s", line, want)
	}
	return rest, nil
}

func (c *clients) write(ctx context.Context, w workload) (time.Duration, error) {
	order := "records"
	if c.offsetFirst {
		order = "offsets"
	}
	took, err := c.ask(ctx, "done", "write %d %d %d %s", w.writes, w.bytes, c.batch, order)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(took, 10, 64)
	return time.Duration(n), err
}

func (c *clients) close() error {
	if c.p == nil {
		return nil
	}
	_, err := c.ask(context.Background(), "closed", "close")
	c.p.Close()
	return err
}

// Package stage is what the examples of flows have in common: flags, a cluster,
// members that come and go, and reading what is committed. Nothing in it is about
// how the library is used.
package stage

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/examples/internal/cluster"
)

// Partitions is how many every topic has.
const Partitions = 4

// Stage is where a story is told.
type Stage struct {
	*cluster.Cluster
	Client *kgo.Client // partitions by key, as every client of the story
	log    *slog.Logger
	out    io.Writer
	began  time.Time
	mu     sync.Mutex
}

// Run is an example's program: tell returns what the line after ok: says, or an
// error, for failed:. Run returns the exit status.
func Run(ctx context.Context, name, about string, args []string, stdout, stderr io.Writer, tell func(context.Context, *Stage) (string, error)) int {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(stderr)
	brokers := fs.String("brokers", "", "run on these brokers, `host:port,...`; without it, on a cluster in this process")
	verbose := fs.Bool("v", false, "show the library's log, on the standard error")
	fs.Usage = func() {
		fmt.Fprintf(stderr, "Usage: go run ./examples/%s [flags]\n\n%s\n\n", name, about)
		fs.PrintDefaults()
	}
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err == nil && fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
		fallthrough
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 2
	}
	log := slog.New(slog.DiscardHandler)
	if *verbose {
		log = slog.New(slog.NewTextHandler(stderr, nil))
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	verdict, err := open(ctx, *brokers, log, stdout, tell)
	if err != nil {
		fmt.Fprintln(stdout, "failed:", err)
		return 1
	}
	fmt.Fprintln(stdout, "ok:", verdict)
	return 0
}

func open(ctx context.Context, brokers string, log *slog.Logger, stdout io.Writer, tell func(context.Context, *Stage) (string, error)) (verdict string, err error) {
	c, err := cluster.Open(ctx, brokers)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Brokers...), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		return "", err
	}
	defer cl.Close()
	s := &Stage{Cluster: c, Client: cl, log: log, out: stdout, began: time.Now()}
	s.Say("on %s", c)
	return tell(ctx, s)
}

// Say tells something, with the time.
func (s *Stage) Say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "%5.2fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// Topics makes topics and returns their names.
func (s *Stage) Topics(ctx context.Context, names ...string) ([]string, error) {
	for i, name := range names {
		names[i] = s.Topic(name)
		if err := s.CreateTopic(ctx, names[i], Partitions, nil); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// Produce writes records to a topic, each to the partition of its key.
func (s *Stage) Produce(ctx context.Context, records ...*kgo.Record) error {
	return s.Client.ProduceSync(ctx, records...).FirstErr()
}

// Member is one instance of a service. In real life each runs in a process of its
// own.
type Member struct {
	Name string
	s    *Stage
	wire *cluster.Wire
	stop context.CancelFunc
	owns chan struct{} // closed when it has a partition
	done chan struct{}
	err  error
}

// Start runs a member until it is stopped or cut off. Run makes a module with the
// options and runs a flow over it; the options are those of a group that reads the
// input.
func (s *Stage) Start(ctx context.Context, name, group, input string, run func(ctx context.Context, opts ...persistence.Option) error) *Member {
	ctx, stop := context.WithCancel(ctx)
	m := &Member{Name: name, s: s, wire: cluster.NewWire(), stop: stop, owns: make(chan struct{}), done: make(chan struct{})}
	s.Say("member %s joins", name)
	owns := sync.OnceFunc(func() { close(m.owns) })
	go func() {
		defer close(m.done)
		m.err = run(ctx,
			persistence.Kafka(kgo.SeedBrokers(s.Brokers...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(input), kgo.Dialer(m.wire.Dial),
				kgo.SessionTimeout(s.Session), kgo.HeartbeatInterval(s.Session/6), kgo.FetchMaxWait(100*time.Millisecond)),
			persistence.TransactionalIDPrefix(group),
			persistence.WithTrace(persistence.Trace{TakenOver: func(i persistence.TakeoverInfo) {
				s.Say("partition %d taken over by %s, resumed at %d", i.Partition, name, i.Resume)
				owns()
			}}),
			persistence.CommitInterval(100*time.Millisecond),
			persistence.Logger(s.log.With("member", name)))
	}()
	return m
}

// Own waits until the member owns a partition: one that has none can be cut off
// without any harm.
func (m *Member) Own(ctx context.Context) error {
	select {
	case <-m.owns:
		return nil
	case <-m.done:
		return fmt.Errorf("member %s ended: %w", m.Name, m.err)
	case <-ctx.Done():
		return fmt.Errorf("waiting for member %s to own a partition: %w", m.Name, context.Cause(ctx))
	}
}

// Stop ends the member in order.
func (m *Member) Stop() error {
	m.s.Say("member %s stops", m.Name)
	m.stop()
	<-m.done
	if m.err != nil {
		return fmt.Errorf("member %s: %w", m.Name, m.err)
	}
	return nil
}

// CutOff is what a pulled cable does: nothing reaches the brokers any more, no
// write, no abort, and no word that the member leaves the group.
func (m *Member) CutOff() {
	m.wire.Cut()
	m.s.Say("member %s is cut off; the group will notice within %v", m.Name, m.s.Session)
}

// Bury waits for the end of a member that was cut off.
func (m *Member) Bury() {
	m.stop()
	<-m.done
}

// Settle waits until the group has processed all of the input, in which its own
// members may go on writing, or until a member has failed.
func (s *Stage) Settle(ctx context.Context, group, input string, members ...*Member) error {
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		settled, err := s.settled(ctx, group, input)
		if settled {
			return nil
		}
		for _, m := range members {
			select {
			case <-m.done:
				return fmt.Errorf("member %s ended: %w", m.Name, m.err)
			default:
			}
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			if err != nil {
				return fmt.Errorf("waiting until %s is processed: %w; the last look at it: %v", input, context.Cause(ctx), err)
			}
			return fmt.Errorf("waiting until %s is processed: %w", input, context.Cause(ctx))
		}
	}
}

// settled looks at all committed offsets, and then at all ends. If they agree, there
// was a moment between the two at which nothing was on its way. Partition by
// partition it could not be told: one that was looked at may be written to by
// the event of one that was not.
func (s *Stage) settled(ctx context.Context, group, input string) (bool, error) {
	var committed [Partitions]int64
	for id := range committed {
		at, err := s.Committed(ctx, group, input, int32(id))
		if err != nil {
			return false, err
		}
		committed[id] = max(at, 0) // -1: nothing yet
	}
	for id, at := range committed {
		end, err := s.end(ctx, input, int32(id))
		if err != nil || end != at {
			return false, err
		}
	}
	return true, nil
}

// end is where the last event of a partition ends, which may be before markers. It is
// -1 while a transaction is open there: what it wrote counts, and cannot be
// read yet.
func (s *Stage) end(ctx context.Context, topic string, partition int32) (int64, error) {
	high, err := s.End(ctx, topic, partition)
	if err != nil {
		return 0, err
	}
	stable, err := s.stable(ctx, topic, partition)
	if err != nil || stable < high {
		return -1, err
	}
	records, err := s.read(ctx, topic, partition)
	if err != nil || len(records) == 0 {
		return 0, err
	}
	return records[len(records)-1].Offset + 1, nil
}

// stable is where a read_committed reader of a partition comes to its end.
func (s *Stage) stable(ctx context.Context, topic string, partition int32) (int64, error) {
	ends, err := kadm.NewClient(s.Client).ListCommittedOffsets(ctx, topic)
	if err != nil {
		return 0, err
	}
	end, _ := ends.Lookup(topic, partition)
	return end.Offset, end.Err
}

// Read returns what is committed in a topic, each partition's records in order.
func (s *Stage) Read(ctx context.Context, topic string) (all []*kgo.Record, err error) {
	for id := range int32(Partitions) {
		records, err := s.read(ctx, topic, id)
		if err != nil {
			return nil, err
		}
		all = append(all, records...)
	}
	return all, nil
}

func (s *Stage) read(ctx context.Context, topic string, partition int32) (all []*kgo.Record, err error) {
	end, err := s.stable(ctx, topic, partition)
	if err != nil || end == 0 {
		return nil, err
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers...), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxWait(50*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	for next := int64(0); next < end; {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("reading %s: %w", topic, context.Cause(ctx))
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if next = r.Offset + 1; !r.Attrs.IsControl() && r.Offset < end {
				all = append(all, r)
			}
		})
	}
	return all, nil
}

// States is the newest snapshot of each key in a snapshot topic.
func (s *Stage) States(ctx context.Context, topic string) (map[string][]byte, error) {
	records, err := s.Read(ctx, topic)
	states := make(map[string][]byte)
	for _, r := range records {
		if states[string(r.Key)] = r.Value; r.Value == nil {
			delete(states, string(r.Key))
		}
	}
	return states, err
}

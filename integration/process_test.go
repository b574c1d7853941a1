package integration

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/integration/kafkatest"
	"github.com/kafkafence/persistence/internal/scenario"
)

// Processes that die and processes that stand still. The test binary is started
// again as a member of a group that writes snapshots in a row, each under a
// key of its own, and says on its standard output what became of them.

const childEnv = "PERSISTENCE_TEST_CHILD"

// childMain runs the member, if this process is one, and exits.
func childMain() {
	spec := os.Getenv(childEnv)
	if spec == "" {
		return
	}
	if err := child(spec); err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// written numbers a child's keys, over all partitions.
var written atomic.Int64

// child is told brokers, input, state, group and its own name, separated by
// spaces.
func child(spec string) error {
	var brokers, input, state, group, name string
	if _, err := fmt.Sscan(spec, &brokers, &input, &state, &group, &name); err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	m, err := persistence.New(
		persistence.Kafka(kgo.SeedBrokers(strings.Split(brokers, ",")...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(input),
			kgo.SessionTimeout(time.Second), kgo.HeartbeatInterval(200*time.Millisecond)),
		persistence.SnapshotTopic(state),
		persistence.TransactionalIDPrefix(group),
		persistence.Logger(slog.New(slog.NewTextHandler(os.Stderr, nil))),
	)
	if err != nil {
		return err
	}
	defer m.Close(context.Background())
	return m.Run(ctx, func(ctx context.Context, p *persistence.Partition) error {
		keys := 0
		if _, err := p.Recover(ctx, func(persistence.Snapshot) error { keys++; return nil }, func() { keys = 0 }); err != nil {
			return err
		}
		fmt.Println("owned", keys)
		go func() {
			for ctx.Err() == nil {
				key := name + "-" + strconv.FormatInt(written.Add(1), 10)
				err := p.Write(ctx, persistence.Snapshot{Key: []byte(key), Value: []byte(name), SourceOffset: -1})
				if err != nil {
					fmt.Println("refused", key, err)
					return
				}
				fmt.Println("wrote", key)
			}
		}()
		for {
			if _, err := p.Poll(ctx); err != nil {
				fmt.Println("over", err)
				return err
			}
		}
	})
}

// process is a running child.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string
	wrote map[string]bool
	// refused holds the keys of writes that certainly did not happen.
	refused map[string]bool
}

// note takes in what a line says.
func (p *process) note(line string) {
	what, rest, _ := strings.Cut(line, " ")
	key, rest, _ := strings.Cut(rest, " ")
	switch {
	case what == "wrote":
		p.wrote[key] = true
	case what == "refused" && !strings.Contains(rest, persistence.ErrUnknownOutcome.Error()):
		p.refused[key] = true
	}
}

// rest takes in what the process still said before it died.
func (p *process) rest() {
	for line := range p.lines {
		p.note(line)
	}
}

func startProcess(t *testing.T, w *scenario.World, name string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0], "-test.run=^$"), lines: make(chan string, 1_000_000), wrote: make(map[string]bool), refused: make(map[string]bool)}
	p.cmd.Env = append(os.Environ(), childEnv+"="+strings.Join([]string{strings.Join(w.Brokers, ","), w.Input, w.State, w.Group, name}, " "))
	p.cmd.Stderr = testWriter{t, name}
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = p.cmd.Process.Kill()
		for range p.lines {
		}
		_ = p.cmd.Wait()
	})
	return p
}

type testWriter struct {
	t    *testing.T
	name string
}

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(w.name + ": " + strings.TrimSpace(string(b)))
	return len(b), nil
}

// until reads lines until one begins with a word, and returns it.
func (p *process) until(word string) string {
	p.t.Helper()
	deadline := time.After(scenario.Patience)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("the process ended before it said %q", word)
			}
			p.note(line)
			if strings.HasPrefix(line, word) {
				return line
			}
		case <-deadline:
			p.t.Fatalf("the process did not say %q within %v", word, scenario.Patience)
		}
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

func requireAll(t *testing.T, values map[string]string, wrote map[string]bool) {
	t.Helper()
	for key := range wrote {
		require.Contains(t, values, key, "an acknowledged write is missing")
	}
}

// A process that is killed in the middle of its writes hands over to the next,
// which finds every acknowledged write.
func TestAKilledProcessHandsOver(t *testing.T) {
	c := kafkatest.Shared(t, kafkatest.TransactionVersion(2))
	w := scenario.NewWorld(t, scenario.Backend{Brokers: c.Brokers(), TransactionVersion: 2}, 1)
	first := startProcess(t, w, "first")
	first.until("owned")
	for range 50 {
		first.until("wrote")
	}
	first.signal(syscall.SIGKILL)
	first.rest()
	second := startProcess(t, w, "second")
	owned := second.until("owned")
	var keys int
	_, err := fmt.Sscanf(owned, "owned %d", &keys)
	require.NoError(t, err)
	require.GreaterOrEqual(t, keys, len(first.wrote), "the recovery misses acknowledged writes")
	second.until("wrote second-20")
	requireAll(t, w.Values(0), first.wrote)
	requireAll(t, w.Values(0), second.wrote)
}

// A process that stands still past its session timeout wakes with writes under
// way: they are refused, and the owner that took over is not disturbed.
func TestAPausedProcessIsRefusedWhenItWakes(t *testing.T) {
	c := kafkatest.Shared(t, kafkatest.TransactionVersion(2))
	w := scenario.NewWorld(t, scenario.Backend{Brokers: c.Brokers(), TransactionVersion: 2}, 1)
	paused := startProcess(t, w, "paused")
	paused.until("owned")
	for range 50 {
		paused.until("wrote")
	}
	paused.signal(syscall.SIGSTOP)
	owner := startProcess(t, w, "owner")
	owner.until("owned") // the session timeout has passed
	owner.until("wrote owner-20")
	before := w.Values(0)
	paused.signal(syscall.SIGCONT)
	refused := paused.until("refused")
	t.Log(refused)
	key := strings.Fields(refused)[1]
	next := len(owner.wrote) + 50
	for len(owner.wrote) < next {
		owner.until("wrote") // goes on as if nothing had happened
	}
	after := w.Values(0)
	for k, v := range after {
		if v == "paused" && k != key {
			require.Contains(t, before, k, "a write of the stale owner landed after the takeover")
		}
	}
	if !strings.Contains(refused, persistence.ErrUnknownOutcome.Error()) {
		require.NotContains(t, after, key, "reported as not written")
	}
	requireAll(t, after, paused.wrote)
	requireAll(t, after, owner.wrote)
}

// Processes that are killed and paused at random, again and again: in the end
// every acknowledged write is there, and no refused one.
func TestProcessesKilledAndPausedAtRandomLoseNothing(t *testing.T) {
	const members, disturbances = 3, 12
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	c := kafkatest.Shared(t, kafkatest.TransactionVersion(2))
	w := scenario.NewWorld(t, scenario.Backend{Brokers: c.Brokers(), TransactionVersion: 2}, 4)
	var all, running []*process
	start := func() {
		p := startProcess(t, w, fmt.Sprintf("p%d", len(all)))
		all, running = append(all, p), append(running, p)
	}
	for range members {
		start()
	}
	for i := range disturbances {
		victim := rng.IntN(len(running))
		p := running[victim]
		p.until("wrote")
		if i%2 == 0 {
			p.signal(syscall.SIGKILL)
			p.rest()
			running = append(running[:victim], running[victim+1:]...)
			start()
			continue
		}
		p.signal(syscall.SIGSTOP)
		other := running[(victim+1)%len(running)]
		for range 20 { // the group goes on without it
			other.until("wrote")
		}
		p.signal(syscall.SIGCONT)
	}
	for _, p := range running {
		p.until("wrote")
		p.signal(syscall.SIGTERM)
	}
	wrote, refused := 0, 0
	values := make(map[string]string)
	for _, p := range running {
		p.rest()
	}
	for id := range w.Partitions {
		maps.Copy(values, w.Values(id))
	}
	for _, p := range all {
		requireAll(t, values, p.wrote)
		wrote, refused = wrote+len(p.wrote), refused+len(p.refused)
		for key := range p.refused {
			require.NotContains(t, values, key, "reported as not written")
		}
	}
	t.Logf("%d writes acknowledged, %d refused, by %d processes", wrote, refused, len(all))
	require.NotZero(t, wrote)
}

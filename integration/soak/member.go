package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/flow"
)

const memberEnv = "PERSISTENCE_SOAK_MEMBER"

// memberMain runs a member, if this process is one, and exits.
func memberMain() {
	spec := os.Getenv(memberEnv)
	if spec == "" {
		return
	}
	var brokers, fence, persist string
	var w world
	_, err := fmt.Sscan(spec, &brokers, &w.input, &w.state, &w.output, &w.dead, &w.group, &fence, &persist)
	w.brokers = strings.Split(brokers, ",")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	switch every, bad := time.ParseDuration(persist); {
	case err != nil || bad != nil:
		err = errors.Join(err, bad)
	case fence == "true":
		err = fenced(ctx, w, every)
	default:
		err = naive(ctx, w)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// membership is short, so that the others soon go on.
func membership(w world) []kgo.Opt {
	return append(impatient(w.brokers), kgo.ConsumerGroup(w.group), kgo.ConsumeTopics(w.input),
		kgo.SessionTimeout(3*time.Second), kgo.RebalanceTimeout(3*time.Second), kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.FetchMaxWait(200*time.Millisecond), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
}

var errPoison = errors.New("it is poison")

// fenced is a member that uses the library.
func fenced(ctx context.Context, w world, every time.Duration) error {
	policy := flow.EveryEvent()
	if every > 0 {
		policy = flow.Every(every)
	}
	f, err := flow.New(flow.Spec[state]{
		Codec:   flow.JSON[state](1),
		Persist: policy,
		Poison:  flow.DeadLetters(w.dead),
		Fold: func(_ context.Context, k *flow.Key[state], e *kgo.Record) error {
			number := numberOf(e.Value)
			if isPoison(number) {
				return errPoison
			}
			k.State = k.State.fold(number)
			k.Emit(&kgo.Record{Topic: w.output, Key: e.Key, Value: []byte(strconv.Itoa(number) + ":" + strconv.Itoa(k.State.Count))})
			return nil
		},
	})
	if err != nil {
		return err
	}
	module, err := persistence.New(
		persistence.Kafka(membership(w)...),
		persistence.SnapshotTopic(w.state),
		persistence.TransactionalIDPrefix(w.group),
		persistence.TransactionTimeout(10*time.Second),
		persistence.CommitInterval(500*time.Millisecond),
		persistence.Logger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))),
	)
	if err != nil {
		return err
	}
	defer module.Close(context.Background())
	return f.Run(ctx, module)
}

// members are the processes. One that ends is replaced, as a supervisor does.
type members struct {
	spec string
	tell func(string, ...any)

	mu      sync.Mutex
	running []*member
	started int
}

type member struct {
	name   string
	cmd    *exec.Cmd
	stderr tail
	ended  chan struct{}
	err    error // once ended
	paused bool
}

func newMembers(cfg config, w *world, tell func(string, ...any)) *members {
	return &members{spec: w.spec(cfg.fence, cfg.persist), tell: tell}
}

func (ms *members) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	ms.started++
	m := &member{name: fmt.Sprintf("member %d", ms.started), cmd: exec.Command(self, "-test.run=^$"), ended: make(chan struct{})}
	m.cmd.Env = append(os.Environ(), memberEnv+"="+ms.spec)
	m.cmd.Stderr = &m.stderr
	if err := m.cmd.Start(); err != nil {
		return fmt.Errorf("starting a member: %w", err)
	}
	go func() {
		m.err = m.cmd.Wait()
		close(m.ended)
	}()
	ms.running = append(ms.running, m)
	return nil
}

// replace starts a member for each that has ended.
func (ms *members) replace() error {
	ms.mu.Lock()
	var left []*member
	gone := 0
	for _, m := range ms.running {
		select {
		case <-m.ended:
			gone++
			ms.tell("%s ended: %v: %s", m.name, m.err, m.stderr.last())
		default:
			left = append(left, m)
		}
	}
	ms.running = left
	ms.mu.Unlock()
	for range gone {
		if err := ms.start(); err != nil {
			return err
		}
	}
	return nil
}

// pick returns one that is running and not paused, if another such one is left.
func (ms *members) pick(n int) *member {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	var up []*member
	for _, m := range ms.running {
		if !m.paused {
			up = append(up, m)
		}
	}
	if len(up) < 2 {
		return nil
	}
	return up[n%len(up)]
}

// kill ends a process, which is replaced.
func (ms *members) kill(m *member) error {
	_ = m.cmd.Process.Kill() // it may have ended by itself
	<-m.ended
	ms.mu.Lock()
	for i := range ms.running {
		if ms.running[i] == m {
			ms.running = append(ms.running[:i], ms.running[i+1:]...)
			break
		}
	}
	ms.mu.Unlock()
	return ms.start()
}

// freeze stops a process as SIGSTOP does, and thaw lets it go on.
func (ms *members) freeze(m *member) { ms.signal(m, syscall.SIGSTOP, true) }
func (ms *members) thaw(m *member)   { ms.signal(m, syscall.SIGCONT, false) }

func (ms *members) signal(m *member, s syscall.Signal, paused bool) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	m.paused = paused
	_ = m.cmd.Process.Signal(s) // it may have ended by itself
}

// settle gives every member the chance to do what it still would.
func (ms *members) settle(ctx context.Context, fence bool) error {
	if fence {
		return nil
	}
	// A naive member that just woke may still write what it had.
	select {
	case <-time.After(3 * time.Second):
	case <-ctx.Done():
	}
	return ctx.Err()
}

// stopAll ends all in order.
func (ms *members) stopAll(ctx context.Context) error {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	for _, m := range ms.running {
		_ = m.cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, m := range ms.running {
		select {
		case <-m.ended:
		case <-ctx.Done():
			return fmt.Errorf("%s did not end: %w", m.name, context.Cause(ctx))
		}
		if m.err != nil {
			return fmt.Errorf("%s ended: %w: %s", m.name, m.err, m.stderr.last())
		}
	}
	ms.running = nil
	return nil
}

// killAll is for the end, whatever happened.
func (ms *members) killAll() {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	for _, m := range ms.running {
		_ = m.cmd.Process.Kill()
		<-m.ended
	}
	ms.running = nil
}

// tail keeps the end of what a process says.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if extra := len(t.text) - 4096; extra > 0 {
		t.text = t.text[extra:]
	}
	return len(b), nil
}

// last is the last line.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	return lines[len(lines)-1]
}

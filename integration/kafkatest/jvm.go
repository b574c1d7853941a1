package kafkatest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// jvm is a [machine]: a broker in a process of this machine.
type jvm struct {
	java       string
	classPath  string
	quick      []string // for a quick start of any program
	args       []string // for the broker
	dir        string
	properties string

	mu      sync.Mutex
	process *process // the latest; nil before the first launch
}

func (m *jvm) propertiesPath() string { return filepath.Join(m.dir, "server.properties") }
func (m *jvm) logPath() string        { return filepath.Join(m.dir, "broker.log") }

// format prepares the data folder.
func (m *jvm) format(ctx context.Context, clusterID string, extra []string) error {
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		return fmt.Errorf("kafkatest: %w", err)
	}
	if err := os.WriteFile(m.propertiesPath(), []byte(m.properties), 0o644); err != nil {
		return fmt.Errorf("kafkatest: %w", err)
	}
	args := append([]string{"-Xmx256m"}, m.quick...)
	args = append(args, "-cp", m.classPath, "kafka.tools.StorageTool", "format",
		"--cluster-id", clusterID, "--config", m.propertiesPath())
	args = append(args, extra...)
	out, err := exec.CommandContext(ctx, m.java, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("kafkatest: format the storage of %s: %w\n%s", filepath.Base(m.dir), err, indent(string(out)))
	}
	return nil
}

func (m *jvm) launch(_ context.Context, rack string) error {
	log, err := os.OpenFile(m.logPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	if _, err := fmt.Fprintf(log, "%s%s\n", launchMark, rack); err != nil {
		return err
	}
	args := append([]string{m.java}, m.args...)
	args = append(args, brokerLogging...)
	args = append(args, "-cp", m.classPath, "kafka.Kafka", m.propertiesPath(), "--override", "broker.rack="+rack)
	p, err := startProcess(args, m.dir, log)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.process = p
	return nil
}

func (m *jvm) current() *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.process
}

func (m *jvm) terminate(ctx context.Context) error { return m.current().terminate(ctx) }
func (m *jvm) kill(ctx context.Context) error      { return m.current().kill(ctx) }
func (m *jvm) pause(ctx context.Context) error     { return m.current().pause(ctx) }
func (m *jvm) resume(context.Context) error        { return m.current().resume() }

func (m *jvm) exited() bool {
	p := m.current()
	return p == nil || p.exited()
}

func (m *jvm) log() string { return readTail(m.logPath(), maxLog) }

// destroy ends the process in whatever state it is.
func (m *jvm) destroy() error {
	p := m.current()
	if p == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	return p.kill(ctx)
}

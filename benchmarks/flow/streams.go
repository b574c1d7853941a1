package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

// streams is the peer's process, which is built with Maven if its source has changed.
type streams struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	said   chan string // closed when it ended
	stderr bytes.Buffer
	first  func()
	mu     sync.Mutex
}

// peersDir is where the Java project is.
func peersDir() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "peers")
}

func startStreams(ctx context.Context, brokers []string, progress func(string, ...any)) (*streams, error) {
	dir := peersDir()
	for _, tool := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("the peer needs Java 17 and Maven; without them, -peer none: %w", err)
		}
	}
	if stale(dir) {
		progress("building %s with Maven", filepath.Base(dir))
		build := exec.CommandContext(ctx, "mvn", "-q", "-B", "-f", filepath.Join(dir, "pom.xml"), "package")
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building the peer: %w\n%s", err, out)
		}
	}
	s := &streams{said: make(chan string, 100)}
	target := filepath.Join(dir, "target")
	s.cmd = exec.CommandContext(ctx, "java", "-Xms512m", "-Xmx2g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
		"-cp", filepath.Join(target, "classes")+string(os.PathListSeparator)+filepath.Join(target, "lib", "*"), "peers.FlowPeer", strings.Join(brokers, ","))
	s.cmd.Stderr = &s.stderr
	var err error
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the peer: %w", err)
	}
	go func() {
		defer close(s.said)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if lines.Text() != "first" {
				s.said <- lines.Text()
				continue
			}
			s.mu.Lock()
			s.first()
			s.mu.Unlock()
		}
	}()
	return s, nil
}

// stale reports whether the project is not built, or has changed since.
func stale(dir string) bool {
	built, err := os.Stat(filepath.Join(dir, "target", "peers-1.jar"))
	if err != nil {
		return true
	}
	newer := errors.New("newer")
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && d.Name() == "target" {
			return errors.Join(err, fs.SkipDir)
		}
		if info, err := d.Info(); err != nil || !d.IsDir() && info.ModTime().After(built.ModTime()) {
			return errors.Join(err, newer)
		}
		return nil
	})
	return err != nil
}

func (s *streams) close() {
	_ = s.stdin.Close() // it ends at the end of its input
	for range s.said {
	}
	_ = s.cmd.Wait()
}

func (s *streams) contestant(tuning string) func(context.Context, string, string, int32, func()) (string, func() error, error) {
	return func(_ context.Context, group, input string, partitions int32, first func()) (string, func() error, error) {
		s.mu.Lock()
		s.first = first
		s.mu.Unlock()
		_, err := fmt.Fprintf(s.stdin, "start %s %s %d %d %s\n", group, input, every.Milliseconds(), min(partitions, 2), tuning)
		if err != nil {
			return "", nil, fmt.Errorf("%w\n%s", err, s.stderr.String())
		}
		return group + "-store-changelog", func() error {
			_, err := fmt.Fprintln(s.stdin, "stop")
			if word, ok := <-s.said; err != nil || !ok || word != "stopped" {
				return fmt.Errorf("the peer said %q instead of stopped: %w\n%s", word, errors.Join(err), s.stderr.String())
			}
			return nil
		}, nil
	}
}

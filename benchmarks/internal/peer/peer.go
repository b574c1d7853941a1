// Package peer runs what the benchmarks compare with and is written in Java: the
// Maven project in benchmarks/peers. A peer is told what to do on its standard input,
// one command a line, and answers on its standard output, so that its virtual
// machine stays warm over the rounds.
package peer

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
)

// Process is a peer that runs.
type Process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	said   chan string // closed when it ended
	stderr bytes.Buffer
}

// dir is where the Java project is.
func dir() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "peers")
}

// Start builds the project, if it has changed, and starts a class of it, with the
// brokers as its argument. Hear is called with each line that it says, at once, and
// takes it if it returns true; the others are for Answer.
func Start(ctx context.Context, class string, brokers []string, hear func(line string) bool, progress func(string, ...any)) (*Process, error) {
	for _, tool := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("the peer needs Java 17 and Maven; without them, -peer none: %w", err)
		}
	}
	if stale(dir()) {
		progress("building %s with Maven", filepath.Base(dir()))
		build := exec.CommandContext(ctx, "mvn", "-q", "-B", "-f", filepath.Join(dir(), "pom.xml"), "package")
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building the peer: %w\n%s", err, out)
		}
	}
	p := &Process{said: make(chan string, 100)}
	target := filepath.Join(dir(), "target")
	p.cmd = exec.CommandContext(ctx, "java", "-Xms512m", "-Xmx2g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
		"-cp", filepath.Join(target, "classes")+string(os.PathListSeparator)+filepath.Join(target, "lib", "*"), class, strings.Join(brokers, ","))
	p.cmd.Stderr = &p.stderr
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the peer: %w", err)
	}
	go func() {
		defer close(p.said)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if !hear(lines.Text()) {
				p.said <- lines.Text()
			}
		}
	}()
	return p, nil
}

// Tell sends a command.
func (p *Process) Tell(format string, args ...any) error {
	if _, err := fmt.Fprintf(p.stdin, format+"\n", args...); err != nil {
		return fmt.Errorf("the peer is gone: %w\n%s", err, p.stderr.String())
	}
	return nil
}

// Answer waits for the next line.
func (p *Process) Answer(ctx context.Context) (string, error) {
	select {
	case line, ok := <-p.said:
		if !ok {
			return "", fmt.Errorf("the peer ended: %w\n%s", p.cmd.Wait(), p.stderr.String())
		}
		return line, nil
	case <-ctx.Done():
		return "", fmt.Errorf("waiting for the peer: %w", context.Cause(ctx))
	}
}

// Close ends it.
func (p *Process) Close() {
	_ = p.stdin.Close() // it ends at the end of its input
	for range p.said {
	}
	_ = p.cmd.Wait()
}

// stale reports whether the project is not built, or has changed since.
func stale(dir string) bool {
	built, err := os.Stat(filepath.Join(dir, "target", "peers-1.jar"))
	if err != nil {
		return true
	}
	newer := errors.New("newer")
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == "target" {
			return fs.SkipDir
		}
		info, err := d.Info()
		if err == nil && !d.IsDir() && info.ModTime().After(built.ModTime()) {
			return newer
		}
		return err
	})
	return err != nil
}

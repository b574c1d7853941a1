//go:build unix

package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func probePlatform() error { return nil }

// watcher is a shell script that becomes the command in its arguments and
// leaves a watcher behind, which kills the command when file 3, a pipe, is
// closed at its other end.
//
// Only this process holds that end, so the kernel closes it however this
// process ends. The watcher is forked before the command runs and before
// anybody knows of it, so no moment is unguarded. It kills its process group,
// of which it is a member itself, so the number cannot have become somebody
// else's. Linux' parent death signal would do with less, but it comes when the
// thread that forked ends rather than the process, and other systems lack it.
const watcher = `( read -r line <&3; kill -s KILL 0 ) & exec 3<&-; exec "$@"`

// process is a child with a watcher.
type process struct {
	cmd   *exec.Cmd
	guard *os.File // closing it has the watcher kill the child
	done  chan struct{}
}

// startProcess runs a command in a process group of its own, so that an
// interrupt from the terminal does not reach it before its watcher does.
func startProcess(args []string, dir string, log *os.File) (*process, error) {
	watched, guard, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer watched.Close()
	cmd := exec.Command("sh", append([]string{"-c", watcher, "kafkatest"}, args...)...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{watched} // file 3
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		guard.Close()
		return nil, err
	}
	p := &process{cmd: cmd, guard: guard, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		cmd.Wait()
		guard.Close() // the watcher goes too
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// signal does not mind a process that has ended.
func (p *process) signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %v to process %d: %w", sig, p.pid(), err)
	}
	return nil
}

func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("process %d has not ended: %w", p.pid(), ctx.Err())
	}
}

func (p *process) terminate(ctx context.Context) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.wait(ctx)
}

func (p *process) kill(ctx context.Context) error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	return p.wait(ctx)
}

func (p *process) resume() error { return p.signal(syscall.SIGCONT) }

func (p *process) pause(ctx context.Context) error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return poll(ctx, func(context.Context) error {
		if p.exited() {
			return permanent(errors.New("the process has ended"))
		}
		return p.checkStopped()
	})
}

// checkStopped returns an error while a thread of the process still runs. On
// systems without /proc it trusts the signal.
func (p *process) checkStopped() error {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.pid()))
	if err != nil {
		return permanent(err)
	}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		// The state comes after the name, which is in parentheses and may
		// contain some itself.
		s := string(b)
		if rest := s[strings.LastIndexByte(s, ')')+1:]; !strings.HasPrefix(rest, " T") {
			return fmt.Errorf("a thread of process %d still runs", p.pid())
		}
	}
	return nil
}

// tryLock takes the lock of an open file, if nobody has it. The kernel gives it
// back when the file is closed, and so when the process ends.
func tryLock(f *os.File) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// lockFile waits for the lock of the file at path, which it creates.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		locked, err := tryLock(f)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if locked {
			return func() { f.Close() }, nil
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("another process holds %s: %w", path, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

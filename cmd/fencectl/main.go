// Command fencectl looks at what the persistence library keeps in Kafka: whether
// a cluster is fit for it, how far a service is, which transactions are open,
// and what the snapshots of a topic hold. It changes nothing and joins no group,
// save for redrive, which replays dead letters.
// `fencectl help` lists its subcommands.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Exit statuses.
const (
	exitOK    = 0
	exitWrong = 1 // something is wrong, and the output says what
	exitUsage = 2
	exitBlind = 3 // it could not be looked
)

// errWrong ends a subcommand that has found and told something wrong.
var errWrong = errors.New("something is wrong")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// command is a subcommand.
type command struct {
	name     string
	argument string // its name; empty: it takes none
	summary  string // one line
	about    string // for help
	needs    []string
	takes    []string          // options besides those needed and the common ones
	usages   map[string]string // of options that mean something else here
	run      func(ctx context.Context, s *session) error
}

func commands() []command {
	return []command{doctorCommand, lagCommand, transactionsCommand, keysCommand, getCommand, historyCommand, verifyCommand, redriveCommand}
}

func find(name string) (command, bool) {
	for _, c := range commands() {
		if c.name == name {
			return c, true
		}
	}
	return command{}, false
}

// session is one run of a subcommand.
type session struct {
	*settings
	cl  *kgo.Client
	adm *kadm.Client
	out *output
	err io.Writer
}

// note tells what is not part of the result.
func (s *session) note(format string, args ...any) {
	fmt.Fprintf(s.err, "fencectl: "+format+"\n", args...)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		writeHelp(stderr)
		return exitUsage
	}
	if args[0] == "help" || args[0] == "-h" || args[0] == "-help" || args[0] == "--help" {
		return help(args[1:], stdout, stderr)
	}
	c, ok := find(args[0])
	if !ok {
		fmt.Fprintf(stderr, "fencectl: there is no subcommand %q; fencectl help lists them\n", args[0])
		return exitUsage
	}
	set, err := parse(c, args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return help([]string{c.name}, stdout, stderr)
	case err != nil:
		for fault := range strings.Lines(err.Error()) {
			fmt.Fprintf(stderr, "fencectl %s: %s\n", c.name, strings.TrimSuffix(fault, "\n"))
		}
		fmt.Fprintf(stderr, "fencectl help %s says what is allowed\n", c.name)
		return exitUsage
	}
	ctx, cancel := context.WithTimeoutCause(ctx, set.timeout, fmt.Errorf("not done within %v; --timeout allows more", set.timeout))
	defer cancel()
	s := &session{settings: set, out: newOutput(stdout, set.json), err: stderr}
	err = s.run(ctx, c)
	return s.status(ctx, err)
}

func (s *session) run(ctx context.Context, c command) error {
	cl, err := connect(ctx, s.settings)
	if err != nil {
		return err
	}
	defer cl.Close()
	s.cl, s.adm = cl, kadm.NewClient(cl)
	if s.sasl == "plain" && !s.tls {
		s.note("the password goes over the network as it is: --sasl plain without --tls")
	}
	err = c.run(ctx, s)
	if flushed := s.out.flush(); flushed != nil {
		err = errors.Join(err, fmt.Errorf("writing the output: %w", flushed))
	}
	return err
}

func (s *session) status(ctx context.Context, err error) int {
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errWrong):
		return exitWrong
	case errors.As(err, &usage):
		s.note("%v", err)
		return exitUsage
	}
	s.note("%v", err)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		s.note("%v", cause)
	}
	return exitBlind
}

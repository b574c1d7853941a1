package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"go.uber.org/goleak"

	"github.com/kafkafence/persistence"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSuffix(s, "\n"), "\n")
	return lines[len(lines)-1]
}

func TestAStaleWriteCorruptsWithoutTheLibraryAndIsRefusedWithIt(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	status := run(t.Context(), nil, &out, io.Discard)
	require.Equal(t, "ok: without the library 40 of 170 were lost; with it the stale write was refused by the broker and nothing was lost",
		lastLine(out.String()), out.String())
	require.Zero(t, status)
	require.Regexp(t, `owner 1 wakes up and writes +accepted +refused`, out.String())
	require.Regexp(t, `owner 3 recovers +110, resumes at 15 +150, resumes at 15`, out.String())
	require.Contains(t, out.String(), kerr.UnknownMemberID.Error())
}

// interrupter is a standard output that calls a func when a text has appeared.
type interrupter struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	text string
	then func()
}

func (i *interrupter) Write(b []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	n, err := i.buf.Write(b)
	if strings.Contains(i.buf.String(), i.text) {
		i.then()
	}
	return n, err
}

func TestAnInterruptEndsTheRunInOrder(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := interrupter{text: "paused", then: cancel}
	require.Equal(t, 1, run(ctx, nil, &out, io.Discard))
	require.Regexp(t, `^failed: .*context canceled$`, lastLine(out.buf.String()))
}

func TestFlagsAreChecked(t *testing.T) {
	for _, tc := range []struct {
		name   string
		args   []string
		status int
		stderr string
	}{
		{"help", []string{"-h"}, 0, "Usage: go run ./examples/zombie"},
		{"an unknown flag", []string{"-nonsense"}, 2, "-nonsense"},
		{"an argument", []string{"nonsense"}, 2, `unexpected argument "nonsense"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, tc.status, run(t.Context(), tc.args, &stdout, &stderr))
			require.Contains(t, stderr.String(), tc.stderr)
			require.Empty(t, stdout.String())
		})
	}
}

func TestTheTwoFencesAreToldApart(t *testing.T) {
	write := func(err error) error { return &persistence.WriteError{Err: err} }
	require.True(t, refusedByBroker(write(fmt.Errorf("%w: %w", persistence.ErrFenced, kerr.IllegalGeneration))))
	require.False(t, refusedByBroker(write(persistence.ErrLost)))
	require.False(t, refusedByBroker(write(fmt.Errorf("%w: %w", persistence.ErrLost, kerr.UnknownMemberID))))
	require.False(t, refusedByBroker(errors.New("something else")))
}

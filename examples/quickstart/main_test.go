package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var small = []string{"-events", "6000", "-keys", "200", "-partitions", "4"}

// terminal is a standard output that calls a func when a text has appeared.
type terminal struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	text string
	then func()
}

func (t *terminal) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.buf.Write(b)
	if t.then != nil && strings.Contains(t.buf.String(), t.text) {
		t.then()
		t.then = nil
	}
	return n, err
}

func (t *terminal) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSuffix(t.buf.String(), "\n"), "\n")
	return lines[len(lines)-1]
}

func TestEachEventCountsOnceThoughAMemberIsCutOff(t *testing.T) {
	t.Parallel()
	var out terminal
	status := run(t.Context(), small, &out, io.Discard)
	require.Regexp(t, `^ok: events=6000 keys=200 owners=\d+ lost=0 duplicated=0$`, out.last(), out.buf.String())
	require.Zero(t, status)
	require.Contains(t, out.buf.String(), "member B cut off")
	require.Regexp(t, `partition \d taken over by C in \S+, resumed at \d+, recovered \d+ keys`, out.buf.String())
}

func TestABrokenFoldFails(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		fold    func(*account, *kgo.Record) (bool, error)
		verdict string
	}{
		{"one that counts what comes again", func(a *account, r *kgo.Record) (bool, error) {
			a.through = -1
			return fold(a, r)
		}, `^failed: .* lost=0 duplicated=[1-9]\d*: \d+ accounts are wrong`},
		{"one that leaves an event out", func(a *account, r *kgo.Record) (bool, error) {
			if r.Offset == 500 {
				return false, nil
			}
			return fold(a, r)
		}, `^failed: .* lost=[1-9]\d* duplicated=0: \d+ accounts are wrong`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cfg, err := parse(small, io.Discard)
			require.NoError(t, err)
			cfg.fold, cfg.after = tc.fold, 2*time.Second
			var out terminal
			status := play(t.Context(), cfg, &out)
			require.Regexp(t, tc.verdict, out.last(), out.buf.String())
			require.Equal(t, 1, status)
		})
	}
}

func TestAnInterruptEndsTheRunInOrder(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := terminal{text: "persisted", then: cancel}
	status := run(ctx, small, &out, io.Discard)
	require.Regexp(t, `^failed: .*context canceled$`, out.last())
	require.Equal(t, 1, status)
}

func TestAnUnreachableClusterIsNamed(t *testing.T) {
	t.Parallel()
	var out terminal
	status := run(t.Context(), []string{"-brokers", "127.0.0.1:1"}, &out, io.Discard)
	require.Regexp(t, `^failed: no broker of \[127\.0\.0\.1:1\] answers`, out.last())
	require.Equal(t, 1, status)
}

func TestFlagsAreChecked(t *testing.T) {
	for _, tc := range []struct {
		name   string
		args   []string
		status int
		stderr string
	}{
		{"help", []string{"-h"}, 0, "Usage: go run ./examples/quickstart"},
		{"an unknown flag", []string{"-nonsense"}, 2, "-nonsense"},
		{"an argument", []string{"nonsense"}, 2, `unexpected argument "nonsense"`},
		{"one partition", []string{"-partitions", "1"}, 2, "at least 2"},
		{"fewer events than keys", []string{"-events", "10", "-keys", "11"}, 2, "one event for each"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, tc.status, run(t.Context(), tc.args, &stdout, &stderr))
			require.Contains(t, stderr.String(), tc.stderr)
			require.Empty(t, stdout.String())
		})
	}
}

func TestTheVerdictComparesEachAccount(t *testing.T) {
	ledger := map[string]entry{"a": {events: 3, balance: 30}}
	for _, tc := range []struct {
		name       string
		accounts   map[string]*account
		lost       int64
		duplicated int64
		wrong      string
	}{
		{"as it must be", map[string]*account{"a": {Balance: 30, Events: 3, Last: 3}}, 0, 0, ""},
		{"an account is missing", nil, 3, 0, "a is"},
		{"the last event is missing", map[string]*account{"a": {Balance: 20, Events: 2, Last: 2}}, 1, 0, "a is"},
		{"one in the middle is missing", map[string]*account{"a": {Balance: 20, Events: 2, Last: 3, Lost: 1}}, 1, 0, "a is"},
		{"one was counted twice", map[string]*account{"a": {Balance: 40, Events: 4, Last: 3, Duplicated: 1}}, 0, 1, "a is"},
		{"only the balance is wrong", map[string]*account{"a": {Balance: 31, Events: 3, Last: 3}}, 0, 0, "a is"},
		{"an account is too many", map[string]*account{"a": {Balance: 30, Events: 3, Last: 3}, "b": {}}, 0, 0, "b is"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := compare(ledger, tc.accounts)
			require.Equal(t, tc.lost, v.lost)
			require.Equal(t, tc.duplicated, v.duplicated)
			if tc.wrong == "" {
				require.Empty(t, v.wrong)
			} else {
				require.Contains(t, v.wrong, tc.wrong)
			}
		})
	}
}

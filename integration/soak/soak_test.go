package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	memberMain()
	goleak.VerifyTestMain(m)
}

// logOf sends what a run tells to the test's log.
type logOf struct{ t *testing.T }

func (l logOf) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

func soakWith(t *testing.T, args ...string) (last string, status int) {
	t.Helper()
	if os.Getenv("KAFKA_BROKERS") != "" {
		t.Skip("the soak kills brokers, and KAFKA_BROKERS gives some that are not its own")
	}
	var out bytes.Buffer
	status = run(context.Background(), args, &out, logOf{t})
	t.Log(out.String())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	return lines[len(lines)-1], status
}

// The soak, for a minute.
func TestSoak(t *testing.T) {
	last, status := soakWith(t, "-for", "1m", "-pace", "3s")
	require.Zero(t, status)
	require.Regexp(t, `^ok: inputs=[0-9]+ kills=[0-9]+ lost=0 duplicated=0 `, last)
}

// Without the fence the same soak finds what goes wrong, so it can see it.
func TestTheSoakSeesAMissingFence(t *testing.T) {
	last, status := soakWith(t, "-for", "25s", "-pace", "2s", "-fence", "off")
	require.Equal(t, 1, status)
	require.Regexp(t, `^failed: inputs=`, last)
}

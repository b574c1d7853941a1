package kafkatest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnExcerptHasTheReasonAndTheEnd(t *testing.T) {
	lines := []string{
		launchMark + "node0-start1",
		"00:01 [main] ERROR old",
		launchMark + "node0-start2",
		"00:02 [main] INFO fine",
		"00:03 [main] ERROR kafka.server.BrokerServer - Fatal error during startup",
		"org.apache.kafka.common.KafkaException: Socket server failed to bind",
		"\tat kafka.network.Acceptor.openServerSocket(SocketServer.scala:1)",
		"Caused by: java.net.BindException: Address already in use",
	}
	for i := range 100 {
		lines = append(lines, fmt.Sprintf("00:04 [main] INFO shutting down: step %d", i))
	}
	got := strings.Split(excerpt(strings.Join(lines, "\n")+"\n"), "\n")
	require.Len(t, got, 3+1+maxExcerpt)
	require.Equal(t, []string{"\t" + lines[4], "\t" + lines[5], "\t" + lines[7], "\t..."}, got[:4])
	require.Equal(t, "\t"+lines[len(lines)-1], got[len(got)-1])

	// Errors are not repeated if they are at the end anyway.
	short := strings.Join(lines[:8], "\n")
	require.Equal(t, indent(strings.Join(lines[2:8], "\n")), excerpt(short))
	require.Equal(t, "\t(nothing)", excerpt(""))
}

func TestATailStartsWithALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	require.Empty(t, readTail(path, 10))
	require.NoError(t, os.WriteFile(path, []byte("first\nsecond\nthird\n"), 0o644))
	require.Equal(t, "first\nsecond\nthird\n", readTail(path, 100))
	require.Equal(t, "third\n", readTail(path, 10))
}

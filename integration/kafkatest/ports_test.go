package kafkatest

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPortsAreFreeAndHandedOutOnce(t *testing.T) {
	a, err := freePorts(50)
	require.NoError(t, err)
	b, err := freePorts(50)
	require.NoError(t, err)
	seen := make(map[int]bool)
	for _, port := range append(a, b...) {
		require.False(t, seen[port], port)
		require.Contains(t, handedOut.ports, port)
		seen[port] = true
		require.GreaterOrEqual(t, port, minPort)
		require.LessOrEqual(t, port, maxPort)
		ln, err := net.Listen("tcp", localAddr(port))
		require.NoError(t, err)
		ln.Close()
	}
	releasePorts(a)
	releasePorts(b)
	for port := range seen {
		require.NotContains(t, handedOut.ports, port)
	}
}

func TestRunningOutOfPortsIsAnError(t *testing.T) {
	before := handedOut.ports
	defer func() { handedOut.ports = before }()
	handedOut.ports = make(map[int]bool)
	for port := minPort; port <= maxPort; port++ {
		handedOut.ports[port] = true
	}
	_, err := freePorts(1)
	require.ErrorContains(t, err, "no free port")
}

// Who says that a port is taken, and how, only a real broker or daemon knows.
func TestAClusterWhosePortIsTakenStartsOnOthers(t *testing.T) {
	start := func(t *testing.T, backend string, nports, taken int, prepare func(*Cluster, []int) error) {
		cfg, err := newConfig(nil)
		require.NoError(t, err)
		c := &Cluster{backend: backend, version: DefaultVersion, config: cfg}
		defer func() { require.NoError(t, c.Close()) }()
		var attempts [][]int
		err = c.startOnFreePorts(within(t, time.Minute), nports, func(ports []int) error {
			if attempts = append(attempts, ports); len(attempts) == 1 {
				ln, err := net.Listen("tcp", localAddr(ports[taken]))
				require.NoError(t, err)
				t.Cleanup(func() { ln.Close() })
			}
			return prepare(c, ports)
		})
		require.NoError(t, err)
		require.Len(t, attempts, 2)
		require.Equal(t, []string{localAddr(attempts[1][0])}, c.Brokers())
		requireTransaction(t, c)
	}

	for name, taken := range map[string]int{"java broker": 0, "java controller": 1} {
		t.Run(name, func(t *testing.T) {
			if err := probeJava(t.Context(), wanted{version: DefaultVersion}); err != nil {
				conclude(t, unavailable("java: %w", err))
			}
			java, err := findJava()
			require.NoError(t, err)
			jars, err := ensureJars(t.Context(), DefaultVersion, t.Logf)
			require.NoError(t, err)
			start(t, backendJava, 2, taken, func(c *Cluster, ports []int) error {
				if err := c.addJVMs(java, quickJVM, jars, ports); err != nil {
					return err
				}
				return c.nodes[0].machine.(*jvm).format(t.Context(), newClusterID(), nil)
			})
		})
	}
	t.Run("docker", func(t *testing.T) {
		want := wanted{image: readEnvironment(os.Getenv).imageFor(&config{}), logf: t.Logf}
		if err := probeDocker(t.Context(), want); err != nil {
			t.Skipf("needs Docker: %v", err)
		}
		provider, err := newDockerProvider()
		require.NoError(t, err)
		defer provider.Close()
		start(t, backendDocker, 1, 0, func(c *Cluster, ports []int) error {
			return c.addContainers(t.Context(), provider, want.image, "localhost", ports, nil)
		})
	})
}

func TestABrokerThatDoesNotStartIsToldWithItsLog(t *testing.T) {
	for name, test := range map[string]struct{ key, value string }{
		"format": {"log.cleaner.threads", "nonsense"},
		"start":  {"authorizer.class.name", "no.such.Nonsense"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(within(t, time.Minute), BrokerConfig(test.key, test.value))
			require.ErrorContains(t, err, test.value)
			require.NotErrorIs(t, err, ErrUnavailable)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
		})
	}
}

package kafkatest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"
)

// leftoverChild names the variable that has the test binary start a cluster
// and wait to be killed. Its value is what the node does meanwhile, "running"
// or "paused".
const leftoverChild = "KAFKATEST_LEFTOVER_CHILD"

func leaveCluster() {
	c, err := New(context.Background(), NodeControl())
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	if os.Getenv(leftoverChild) == "paused" {
		if err := c.Node(0).Pause(context.Background()); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
	}
	switch m := c.Node(0).machine.(type) {
	case *jvm:
		fmt.Println("started", m.process.pid(), filepath.Dir(m.dir))
	case *dockerContainer:
		fmt.Println("started", m.id())
	}
	select {}
}

// killedCluster returns what a child that was killed has printed of its
// cluster. It calls running while the child lives.
func killedCluster(t *testing.T, backend, doing string, running func(printed string)) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	child := exec.Command(exe)
	child.Env = append(os.Environ(), leftoverChild+"="+doing, "KAFKATEST_BACKEND="+backend)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	defer func() {
		child.Process.Kill()
		child.Wait()
	}()
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan(), "the child ended: %v", lines.Err())
	printed, ok := strings.CutPrefix(lines.Text(), "started ")
	require.True(t, ok, lines.Text())
	running(printed)
}

func TestAKilledTestBinaryLeavesNoJVM(t *testing.T) {
	if err := probeJava(t.Context(), wanted{version: DefaultVersion}); err != nil {
		conclude(t, unavailable("java: %w", err))
	}
	for _, doing := range []string{"running", "paused"} {
		t.Run(doing, func(t *testing.T) { requireNoJVMLeft(t, doing) })
	}
}

func requireNoJVMLeft(t *testing.T, doing string) {
	var pid int
	var dir string
	killedCluster(t, backendJava, doing, func(printed string) {
		_, err := fmt.Sscanf(printed, "%d %s", &pid, &dir)
		require.NoError(t, err, printed)
		require.NoError(t, jvmRuns(pid))
		require.DirExists(t, dir)

		// It is in use by a living process.
		other, err := newRunDir()
		require.NoError(t, err)
		require.NoError(t, other.remove())
		require.DirExists(t, dir)
	})
	require.NoError(t, poll(within(t, 10*time.Second), func(context.Context) error {
		if err := jvmRuns(pid); err == nil {
			return fmt.Errorf("JVM %d still runs", pid)
		}
		return nil
	}))

	// The data goes with the next cluster that any process starts.
	own, err := newRunDir()
	require.NoError(t, err)
	require.NoDirExists(t, dir)
	require.NoError(t, own.remove())
}

func TestAKilledTestBinarysContainerIsRemovedByTheNext(t *testing.T) {
	env := readEnvironment(os.Getenv)
	want := wanted{image: env.imageFor(&config{}), logf: t.Logf}
	if err := probeDocker(t.Context(), want); err != nil {
		t.Skipf("needs Docker: %v", err)
	}
	provider, err := newDockerProvider()
	require.NoError(t, err)
	defer provider.Close()
	docker := provider.Client()
	ctx := within(t, time.Minute)
	exists := func(id string) bool {
		_, err := docker.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
		return err == nil
	}

	var id string
	killedCluster(t, backendDocker, "running", func(printed string) {
		id = printed
		removeStaleContainers(ctx, docker)
		require.True(t, exists(id), "removed while its owner lives")
	})
	removeStaleContainers(ctx, docker)
	require.False(t, exists(id))
}

// jvmRuns returns nil if the process is alive, and no zombie.
func jvmRuns(pid int) error {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return err
	}
	if !strings.Contains(string(b), "kafka.Kafka") {
		return errors.New("no broker")
	}
	return nil
}

func TestALivingRunKeepsItsFolder(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	first, err := newRunDir()
	require.NoError(t, err)
	second, err := newRunDir()
	require.NoError(t, err)
	require.NotEqual(t, first.path, second.path)
	require.DirExists(t, first.path)

	// As if the process had ended: the kernel closes its files.
	require.NoError(t, first.owner.Close())
	third, err := newRunDir()
	require.NoError(t, err)
	require.NoDirExists(t, first.path)
	require.DirExists(t, second.path)
	require.NoError(t, second.remove())
	require.NoError(t, third.remove())
	require.NoDirExists(t, second.path)
	require.NoDirExists(t, third.path)
}

func TestAFolderThatNobodyOwnsIsKeptForAnHour(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	d, err := newRunDir()
	require.NoError(t, err)
	defer d.remove()
	parent := filepath.Dir(d.path)
	fresh, old := filepath.Join(parent, "1-fresh"), filepath.Join(parent, "1-old")
	require.NoError(t, os.Mkdir(fresh, 0o755))
	require.NoError(t, os.Mkdir(old, 0o755))
	past := time.Now().Add(-2 * time.Hour)
	require.NoError(t, os.Chtimes(old, past, past))

	removeStale(parent)
	require.DirExists(t, fresh)
	require.NoDirExists(t, old)
	require.DirExists(t, d.path)
}

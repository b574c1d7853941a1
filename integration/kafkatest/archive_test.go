package kafkatest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClassesAreRecordedOnce(t *testing.T) {
	if err := probeJava(t.Context(), wanted{version: DefaultVersion}); err != nil {
		conclude(t, unavailable("java: %w", err))
	}
	java, err := findJava()
	require.NoError(t, err)
	jars, err := ensureJars(t.Context(), DefaultVersion, t.Logf)
	require.NoError(t, err)

	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CACHE_HOME", filepath.Join(home, "cache"))
	own, err := jarFolder(DefaultVersion)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(own), 0o755))
	require.NoError(t, os.Symlink(jars, own))

	var said string
	logf := func(format string, args ...any) { said += fmt.Sprintf(format, args...) + "\n" }
	args := sharedClasses(t.Context(), java, DefaultVersion, logf)
	require.Len(t, args, 1, said)
	require.Equal(t, args, sharedClasses(t.Context(), java, DefaultVersion, logf))
	require.Equal(t, 1, strings.Count(said, "kafkatest: recorded"), said)

	// With -Xshare:on the JVM refuses to run if it cannot use the archive.
	cmd := append([]string{"-Xshare:on"}, args...)
	cmd = append(cmd, "-XX:+UseSerialGC", "-cp", filepath.Join(own, "*"), "kafka.tools.StorageTool", "random-uuid")
	out, err := exec.Command(java.path, cmd...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func TestAFailedRecordingIsToldAndNotTriedAgain(t *testing.T) {
	cache, runs := fakeMaven(t, `echo "no route to host"; exit 1`)
	require.NoError(t, os.MkdirAll(cache, 0o755))
	java := &java{path: "java", major: 17}
	var said string
	logf := func(format string, args ...any) { said += fmt.Sprintf(format, args...) + "\n" }
	for range 2 {
		require.Empty(t, sharedClasses(t.Context(), java, "9.9.9", logf))
	}
	require.Contains(t, said, "no route to host")
	require.Equal(t, 1, countRuns(t, runs))
}

func TestAnOldJavaRecordsNothing(t *testing.T) {
	require.Empty(t, sharedClasses(t.Context(), &java{path: "java", major: 11}, DefaultVersion, t.Logf))
}

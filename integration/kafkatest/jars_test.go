package kafkatest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeMaven puts an mvn first in the PATH and makes an empty cache folder,
// which it returns. The script is told the folder for the jars as $out, and
// each run adds a line to the file $runs.
func fakeMaven(t *testing.T, script string) (cache, runs string) {
	t.Helper()
	bin, home := t.TempDir(), t.TempDir()
	runs = filepath.Join(bin, "runs")
	err := os.WriteFile(filepath.Join(bin, "mvn"), []byte(`#!/bin/sh
echo run >> `+runs+`
for a; do case $a in -DoutputDirectory=*) out=${a#*=};; esac; done
`+script), 0o755)
	require.NoError(t, err)
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("HOME", home)
	t.Setenv("XDG_CACHE_HOME", filepath.Join(home, "cache"))
	dir, err := jarFolder("4.4.0")
	require.NoError(t, err)
	return filepath.Dir(dir), runs
}

func countRuns(t *testing.T, runs string) int {
	t.Helper()
	b, err := os.ReadFile(runs)
	require.NoError(t, err)
	return strings.Count(string(b), "run\n")
}

func TestJarsAreFetchedOnceByAllWhoNeedThem(t *testing.T) {
	cache, runs := fakeMaven(t, `mkdir -p "$out"; touch "$out/kafka_2.13-4.4.0.jar" "$out/slf4j-reload4j-1.jar"`)
	interrupted := filepath.Join(cache, "4.4.0.part-123")
	stale := filepath.Join(cache, "4.4.0-0123.jsa")
	require.NoError(t, os.MkdirAll(interrupted, 0o755))
	require.NoError(t, os.WriteFile(stale, nil, 0o444))

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			dir, err := ensureJars(t.Context(), "4.4.0", t.Logf)
			if err != nil || dir != filepath.Join(cache, "4.4.0") {
				t.Errorf("%q, %v", dir, err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1, countRuns(t, runs))
	require.FileExists(t, filepath.Join(cache, "4.4.0", "kafka_2.13-4.4.0.jar"))
	require.NoFileExists(t, filepath.Join(cache, "4.4.0", "slf4j-reload4j-1.jar"))
	require.NoDirExists(t, interrupted)
	require.NoFileExists(t, stale)

	left, err := filepath.Glob(filepath.Join(cache, "*.part-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestAFailedFetchIsToldAndTriedAgain(t *testing.T) {
	cache, runs := fakeMaven(t, `echo "no route to host"; exit 1`)
	for range 2 {
		_, err := ensureJars(t.Context(), "4.4.0", t.Logf)
		require.ErrorContains(t, err, "no route to host")
		require.NoDirExists(t, filepath.Join(cache, "4.4.0"))
	}
	require.Equal(t, 2, countRuns(t, runs))
}

func TestAFetchWithoutABrokerFails(t *testing.T) {
	cache, _ := fakeMaven(t, `mkdir -p "$out"`)
	_, err := ensureJars(t.Context(), "4.4.0", t.Logf)
	require.ErrorContains(t, err, "brought no broker")
	require.NoDirExists(t, filepath.Join(cache, "4.4.0"))
}

func TestWaitingForAnotherFetchEndsWithTheContext(t *testing.T) {
	cache, _ := fakeMaven(t, ``)
	require.NoError(t, os.MkdirAll(cache, 0o755))
	unlock, err := lockFile(t.Context(), filepath.Join(cache, "4.4.0.lock"))
	require.NoError(t, err)
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = ensureJars(ctx, "4.4.0", t.Logf)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "4.4.0.lock")
}

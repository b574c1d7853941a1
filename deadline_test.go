package persistence

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAStallIsTimeWithoutProgress(t *testing.T) {
	now := time.Unix(1000, 0)
	s := newStall(time.Minute, now)
	require.Equal(t, time.Minute, s.left(now))
	require.Zero(t, s.stalled(now))

	now = now.Add(59 * time.Second)
	require.Equal(t, time.Second, s.left(now))
	require.Equal(t, 59*time.Second, s.stalled(now))

	s.progress(now)
	require.Equal(t, time.Minute, s.left(now), "any progress gives all the time again")
	require.Zero(t, s.stalled(now))

	now = now.Add(time.Minute)
	require.Zero(t, s.left(now), "the limit itself has passed")
	now = now.Add(time.Second)
	require.Equal(t, -time.Second, s.left(now))
	require.Equal(t, 61*time.Second, s.stalled(now))
}

func TestASlowRecoveryIsNotAStalledOne(t *testing.T) {
	now := time.Unix(1000, 0)
	s := newStall(time.Minute, now)
	for range 1000 {
		now = now.Add(time.Minute - 1)
		require.Positive(t, s.left(now))
		s.progress(now)
	}
}

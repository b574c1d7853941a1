package result

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestARatioAboveOneMeansThatOursIsBetter(t *testing.T) {
	got := Compare("case", "records/s", []float64{100, 300, 200}, "peer", []float64{50, 100, 400})
	require.Equal(t, Compared{Case: "case", Ours: 200, Peer: "peer", PeerValue: 100, Unit: "records/s", Ratio: 2, Min: 0.5, Max: 3, Rounds: 3}, got)
	require.Equal(t, 2.5, Median([]float64{4, 1, 3, 2}))
}

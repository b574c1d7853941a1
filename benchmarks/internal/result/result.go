// Package result is what the benchmarks have in common: how they compare, and what
// they write.
package result

import (
	"encoding/json"
	"io"
	"math"
	"slices"
)

// Lines writes results, each a JSON object on a line.
type Lines struct{ enc *json.Encoder }

// NewLines writes to w.
func NewLines(w io.Writer) *Lines { return &Lines{json.NewEncoder(w)} }

// Write writes one.
func (l *Lines) Write(result any) error { return l.enc.Encode(result) }

// Compared is the result of a comparison. A ratio above 1 means that this library
// is better.
type Compared struct {
	Case      string  `json:"case"`
	Ours      float64 `json:"ours"` // medians
	Peer      string  `json:"peer"`
	PeerValue float64 `json:"peer_value"`
	Unit      string  `json:"unit"`
	Ratio     float64 `json:"ratio"` // the median of those of the rounds, of which min and max are the extremes
	Min       float64 `json:"min"`
	Max       float64 `json:"max"`
	Rounds    int     `json:"rounds"`
}

// Compare makes the result of two contestants' rounds, in which more is better.
func Compare(name, unit string, ours []float64, peer string, peers []float64) Compared {
	ratios := make([]float64, len(ours))
	for i := range ours {
		ratios[i] = ours[i] / peers[i]
	}
	return Compared{Case: name, Ours: math.Round(Median(ours)), Peer: peer, PeerValue: math.Round(Median(peers)), Unit: unit,
		Ratio: digits(Median(ratios)), Min: digits(slices.Min(ratios)), Max: digits(slices.Max(ratios)), Rounds: len(ours)}
}

// digits rounds to three of them behind the point.
func digits(x float64) float64 { return math.Round(x*1000) / 1000 }

// Median is the middle one, or the mean of the two in the middle.
func Median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

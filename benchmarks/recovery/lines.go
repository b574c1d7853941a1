package main

import (
	"encoding/json"
	"io"
)

// lines writes results, each a JSON object on a line.
type lines struct{ enc *json.Encoder }

func newLines(w io.Writer) *lines { return &lines{json.NewEncoder(w)} }

func (l *lines) write(result any) error { return l.enc.Encode(result) }

// compared is the result of a comparison. A ratio above 1 means that this library
// is better.
type compared struct {
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

// remembered is the result of a memory case.
type remembered struct {
	Case        string  `json:"case"`
	Records     int64   `json:"records"`
	Bytes       int64   `json:"bytes"`   // of the snapshots' keys and values
	Fetched     int64   `json:"fetched"` // as they came over the wire
	Live        int64   `json:"live"`    // of the newest snapshot of each key
	Partitions  int     `json:"partitions"`
	Concurrency int     `json:"concurrency"`
	GoMemLimit  int64   `json:"gomemlimit"`
	PeakRSS     int64   `json:"peak_rss"` // of the round that had the highest
	Unit        string  `json:"unit"`
	Limit       int64   `json:"limit"`
	Seconds     float64 `json:"seconds"` // the median, with the takeovers, which read the log once too
	Rounds      int     `json:"rounds"`
}

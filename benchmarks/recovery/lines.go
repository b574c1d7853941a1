package main

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

package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/kafkafence/persistence/benchmarks/internal/peer"
)

// streams is the peer's process.
type streams struct {
	*peer.Process
	mu    sync.Mutex
	first func()
}

func startStreams(ctx context.Context, brokers []string, progress func(string, ...any)) (*streams, error) {
	s := new(streams)
	var err error
	s.Process, err = peer.Start(ctx, "peers.FlowPeer", brokers, func(line string) bool {
		if line != "first" {
			return false
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.first()
		return true
	}, progress)
	return s, err
}

func (s *streams) contestant(tuning string) func(context.Context, string, string, int32, func()) (string, func() error, error) {
	return func(ctx context.Context, group, input string, partitions int32, first func()) (string, func() error, error) {
		s.mu.Lock()
		s.first = first
		s.mu.Unlock()
		if err := s.Tell("start %s %s %d %d %s", group, input, every.Milliseconds(), min(partitions, 2), tuning); err != nil {
			return "", nil, err
		}
		return group + "-store-changelog", func() error {
			if err := s.Tell("stop"); err != nil {
				return err
			}
			word, err := s.Answer(ctx)
			if err == nil && word != "stopped" {
				err = fmt.Errorf("the peer said %q instead of stopped", word)
			}
			return err
		}, nil
	}
}

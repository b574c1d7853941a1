package main

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
)

// topic looks a topic up, and refuses what cannot be read.
func (s *session) topic(ctx context.Context, name string) (kadm.TopicDetail, error) {
	topics, err := s.adm.ListTopics(ctx, name)
	if err == nil {
		err = topics[name].Err
	}
	if err != nil {
		return kadm.TopicDetail{}, fmt.Errorf("topic %s: %w", name, err)
	}
	return topics[name], nil
}

// partitionsOf looks a topic up, and which of its partitions are meant.
func (s *session) partitionsOf(ctx context.Context, name string) (kadm.TopicDetail, []int32, error) {
	t, err := s.topic(ctx, name)
	if err != nil {
		return t, nil, err
	}
	partitions, err := s.chosen(t)
	return t, partitions, err
}

// chosen are the topic's partitions, or the one that --partition names.
func (s *session) chosen(t kadm.TopicDetail) ([]int32, error) {
	if s.partition < 0 {
		return t.Partitions.Numbers(), nil
	}
	if _, ok := t.Partitions[s.partition]; !ok {
		return nil, &usageError{fmt.Errorf("--partition %d: topic %s has only 0 to %d", s.partition, t.Topic, len(t.Partitions)-1)}
	}
	return []int32{s.partition}, nil
}

// Package cluster gives the examples a Kafka cluster to run on, in this process
// or a real one. Nothing in it is about the library.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Cluster is where an example runs.
type Cluster struct {
	Brokers []string
	// Session is the group session timeout to use: how long a member that
	// fell silent keeps its partitions. Short, so that the examples are.
	Session time.Duration

	fake    *kfake.Cluster
	client  *kgo.Client
	admin   *kadm.Client
	started string
	topics  []string
	groups  []string
}

// Open connects to a comma-separated list of brokers, or starts a cluster in
// this process if it is empty. Close must be called in the end.
func Open(ctx context.Context, brokers string) (*Cluster, error) {
	c := &Cluster{started: strconv.FormatInt(time.Now().UnixNano(), 36)}
	if brokers != "" {
		c.Brokers = strings.Split(brokers, ",")
		// The shortest that brokers allow by default
		// (group.min.session.timeout.ms).
		c.Session = 6 * time.Second
	} else {
		fake, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.BrokerConfigs(map[string]string{"group.min.session.timeout.ms": "1000"}))
		if err != nil {
			return nil, fmt.Errorf("starting a cluster in this process: %w", err)
		}
		c.fake, c.Brokers, c.Session = fake, fake.ListenAddrs(), 2*time.Second
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(c.Brokers...), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		c.Close()
		return nil, err
	}
	c.client, c.admin = client, kadm.NewClient(client)
	bounded, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := client.Ping(bounded); err != nil {
		c.Close()
		return nil, fmt.Errorf("no broker of %v answers: %w", c.Brokers, err)
	}
	return c, nil
}

// String names the cluster.
func (c *Cluster) String() string {
	if c.fake != nil {
		return "a Kafka cluster in this process"
	}
	return strings.Join(c.Brokers, ",")
}

// Topic makes a unique topic name. Close deletes the topic.
func (c *Cluster) Topic(name string) string {
	c.topics = append(c.topics, name+"-"+c.started)
	return c.topics[len(c.topics)-1]
}

// Group makes a unique group name. Close deletes the group.
func (c *Cluster) Group(name string) string {
	c.groups = append(c.groups, name+"-"+c.started)
	return c.groups[len(c.groups)-1]
}

// CreateTopic creates a topic and waits until it can be used.
func (c *Cluster) CreateTopic(ctx context.Context, topic string, partitions int, configs map[string]*string) error {
	if _, err := c.admin.CreateTopic(ctx, int32(partitions), -1, configs, topic); err != nil {
		return fmt.Errorf("creating topic %s: %w", topic, err)
	}
	for {
		ends, err := c.admin.ListEndOffsets(ctx, topic)
		if err == nil && ends.Error() == nil && len(ends[topic]) == partitions {
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("topic %s was created, but is not there yet: %w", topic, context.Cause(ctx))
		}
	}
}

// End returns the end of a partition's log.
func (c *Cluster) End(ctx context.Context, topic string, partition int32) (int64, error) {
	ends, err := c.admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return 0, err
	}
	end, _ := ends.Lookup(topic, partition)
	return end.Offset, end.Err
}

// Committed returns a group's committed offset.
func (c *Cluster) Committed(ctx context.Context, group, topic string, partition int32) (int64, error) {
	offsets, err := c.admin.FetchOffsets(ctx, group)
	if err != nil {
		return 0, err
	}
	offset, _ := offsets.Lookup(topic, partition)
	return offset.At, offset.Err
}

// Close deletes what was created on a real cluster, or ends the one in this
// process.
func (c *Cluster) Close() error {
	if c.fake != nil {
		defer c.fake.Close()
	}
	if c.client == nil {
		return nil
	}
	defer c.client.Close()
	if c.fake != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	topics, err := c.admin.DeleteTopics(ctx, c.topics...)
	for _, t := range topics {
		if t.Err != nil && !errors.Is(t.Err, kerr.UnknownTopicOrPartition) {
			err = errors.Join(err, fmt.Errorf("deleting topic %s: %w", t.Topic, t.Err))
		}
	}
	groups, groupErr := c.admin.DeleteGroups(ctx, c.groups...)
	err = errors.Join(err, groupErr)
	for _, g := range groups {
		// A member that was cut off may be in it still. When it has timed out,
		// the broker drops the group, whose offsets went with the topics.
		if g.Err != nil && !errors.Is(g.Err, kerr.GroupIDNotFound) && !errors.Is(g.Err, kerr.NonEmptyGroup) {
			err = errors.Join(err, fmt.Errorf("deleting group %s: %w", g.Group, g.Err))
		}
	}
	return err
}

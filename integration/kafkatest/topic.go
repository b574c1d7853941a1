package kafkatest

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Topic creates a topic whose name starts with that of the test, and returns
// the name. Each config is a "key=value", for instance
// "cleanup.policy=compact". See [Cluster.CreateTopic].
func (c *Cluster) Topic(t testing.TB, partitions int, configs ...string) string {
	t.Helper()
	topic, err := c.CreateTopic(t.Context(), t.Name(), partitions, configs...)
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

// CreateTopic creates a topic whose name starts with prefix and is unique, and
// returns the name. It has a replica on each broker, at most three, and
// CreateTopic returns when every running node knows the leaders of all its
// partitions. In a given cluster the topic is deleted by [Cluster.Close].
func (c *Cluster) CreateTopic(ctx context.Context, prefix string, partitions int, configs ...string) (string, error) {
	topic := topicName(prefix)
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("kafkatest: create topic %s: %w", topic, err)
	}

	settings := make(map[string]*string)
	for _, config := range configs {
		key, value, ok := strings.Cut(config, "=")
		if !ok {
			return fail(fmt.Errorf("config %q is not of the form key=value", config))
		}
		settings[key] = &value
	}
	ctx, cancel := withDefaultTimeout(ctx, opTimeout)
	defer cancel()

	admin := kadm.NewClient(c.client)
	replicas := len(c.running())
	if c.backend == backendBrokers {
		brokers, err := admin.ListBrokers(ctx)
		if err != nil {
			return fail(err)
		}
		replicas = min(3, len(brokers))
	}
	resp, err := admin.CreateTopic(ctx, int32(partitions), int16(replicas), settings, topic)
	if err != nil && resp.ErrMessage != "" {
		err = fmt.Errorf("%w: %s", err, resp.ErrMessage)
	}
	if err != nil {
		return fail(err)
	}
	if c.backend == backendBrokers {
		c.mu.Lock()
		c.topics = append(c.topics, topic)
		c.mu.Unlock()
	}
	if err := c.awaitLeaders(ctx, topic, partitions); err != nil {
		return fail(err)
	}
	return topic, nil
}

// awaitLeaders waits until every broker that can be asked knows the leaders of
// the topic's partitions.
func (c *Cluster) awaitLeaders(ctx context.Context, topic string, partitions int) error {
	return poll(ctx, func(ctx context.Context) error {
		brokers, err := c.metadataFuncs(ctx)
		if err != nil {
			return err
		}
		for broker, ask := range brokers {
			req := kmsg.NewPtrMetadataRequest()
			rt := kmsg.NewMetadataRequestTopic()
			rt.Topic = &topic
			req.Topics = append(req.Topics, rt)
			resp, err := ask(ctx, req)
			if err == nil {
				err = checkLeaders(resp, partitions)
			}
			if err != nil {
				return fmt.Errorf("node %d: %w", broker, err)
			}
		}
		return nil
	})
}

type metadataFunc func(context.Context, *kmsg.MetadataRequest) (*kmsg.MetadataResponse, error)

// metadataFuncs returns a way to ask each broker, by node id.
func (c *Cluster) metadataFuncs(ctx context.Context) (map[int32]metadataFunc, error) {
	funcs := make(map[int32]metadataFunc)
	for _, n := range c.running() {
		funcs[int32(n.id)] = n.ask
	}
	if c.backend != backendBrokers {
		return funcs, nil
	}
	brokers, err := kadm.NewClient(c.client).ListBrokers(ctx)
	if err != nil {
		return nil, err
	}
	for _, b := range brokers {
		funcs[b.NodeID] = func(ctx context.Context, req *kmsg.MetadataRequest) (*kmsg.MetadataResponse, error) {
			resp, err := c.client.Broker(int(b.NodeID)).RetriableRequest(ctx, req)
			if err != nil {
				return nil, err
			}
			return resp.(*kmsg.MetadataResponse), nil
		}
	}
	return funcs, nil
}

func checkLeaders(resp *kmsg.MetadataResponse, partitions int) error {
	if len(resp.Topics) != 1 {
		return fmt.Errorf("%d topics answered instead of 1", len(resp.Topics))
	}
	topic := resp.Topics[0]
	if err := kerr.ErrorForCode(topic.ErrorCode); err != nil {
		return err
	}
	if len(topic.Partitions) != partitions {
		return fmt.Errorf("%d partitions known of %d", len(topic.Partitions), partitions)
	}
	for _, p := range topic.Partitions {
		if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
			return fmt.Errorf("partition %d: %w", p.Partition, err)
		}
		if p.Leader < 0 {
			return fmt.Errorf("partition %d has no leader", p.Partition)
		}
	}
	return nil
}

// deleteTopics removes what was created in a given cluster.
func (c *Cluster) deleteTopics() error {
	c.mu.Lock()
	topics := c.topics
	c.topics = nil
	c.mu.Unlock()
	if len(topics) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	resps, err := kadm.NewClient(c.client).DeleteTopics(ctx, topics...)
	if err == nil {
		err = resps.Error()
	}
	if err != nil {
		return fmt.Errorf("kafkatest: delete topics: %w", err)
	}
	return nil
}

// topicName makes a unique legal name. Underscores are avoided since they
// collide with dots in metrics, and Kafka warns of it.
func topicName(prefix string) string {
	legal := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '-'
	}, prefix)
	return legal[:min(len(legal), 180)] + "-" + strings.ToLower(rand.Text()[:10])
}

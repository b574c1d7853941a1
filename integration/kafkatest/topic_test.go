package kafkatest

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestATopicIsCreatedAsAskedFor(t *testing.T) {
	c := Shared(t)
	ctx := within(t, 30*time.Second)
	topic := c.Topic(t, 5, "cleanup.policy=compact", "segment.ms=1000")
	require.NotEqual(t, topic, c.Topic(t, 5))

	admin := kadm.NewClient(newClient(t, c))
	topics, err := admin.ListTopics(ctx, topic)
	require.NoError(t, err)
	require.NoError(t, topics[topic].Err)
	require.Len(t, topics[topic].Partitions, 5)
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	require.NoError(t, err)
	config, err := configs.On(topic, nil)
	require.NoError(t, err)
	values := make(map[string]string)
	for _, kv := range config.Configs {
		values[kv.Key] = kv.MaybeValue()
	}
	require.Equal(t, "compact", values["cleanup.policy"])
	require.Equal(t, "1000", values["segment.ms"])
}

func TestAFaultyTopicIsRefused(t *testing.T) {
	c := Shared(t)
	ctx := within(t, 30*time.Second)
	_, err := c.CreateTopic(ctx, "x", 1, "compact")
	require.ErrorContains(t, err, `"compact" is not of the form key=value`)
	_, err = c.CreateTopic(ctx, "x", 1, "no.such.config=1")
	require.ErrorContains(t, err, "no.such.config")
}

func TestTopicNamesAreLegal(t *testing.T) {
	name := topicName("TestA/b_c d.é#01")
	require.Regexp(t, `^TestA-b-c-d---01-[a-z0-9]{10}$`, name)
	require.LessOrEqual(t, len(topicName(strings.Repeat("x", 1000))), 249)
}

func TestALeaderlessPartitionIsNotReady(t *testing.T) {
	answer := func(leaders ...int32) *kmsg.MetadataResponse {
		resp := kmsg.NewPtrMetadataResponse()
		topic := kmsg.NewMetadataResponseTopic()
		for i, l := range leaders {
			p := kmsg.NewMetadataResponseTopicPartition()
			p.Partition, p.Leader = int32(i), l
			topic.Partitions = append(topic.Partitions, p)
		}
		resp.Topics = append(resp.Topics, topic)
		return resp
	}
	require.NoError(t, checkLeaders(answer(0, 2), 2))
	require.ErrorContains(t, checkLeaders(answer(0, -1), 2), "partition 1 has no leader")
	require.ErrorContains(t, checkLeaders(answer(0), 2), "1 partitions known of 2")
	require.Error(t, checkLeaders(kmsg.NewPtrMetadataResponse(), 2))

	unknown := answer(0, 1)
	unknown.Topics[0].ErrorCode = 3
	require.ErrorContains(t, checkLeaders(unknown, 2), "UNKNOWN_TOPIC_OR_PARTITION")
	failing := answer(0, 1)
	failing.Topics[0].Partitions[1].ErrorCode = 5
	require.ErrorContains(t, checkLeaders(failing, 2), "LEADER_NOT_AVAILABLE")
}

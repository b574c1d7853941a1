package persistence

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence/internal/wire"
)

// preflight checks the cluster before the group is joined, so that a service
// that cannot work disturbs nobody. What it learns stays in the Module.
func (m *Module) preflight(ctx context.Context) error {
	adm := kadm.NewClient(m.reader)
	if err := m.checkVersions(ctx, adm); err != nil {
		return err
	}
	input, err := m.describe(ctx, adm, m.input.Name)
	if err != nil {
		return err
	}
	if errors.Is(input.Err, kerr.UnknownTopicOrPartition) {
		return fmt.Errorf("persistence: input topic %s does not exist", m.input.Name)
	} else if input.Err != nil {
		return fmt.Errorf("persistence: input topic %s: %w", m.input.Name, input.Err)
	}
	m.input.ID = input.ID
	if m.cfg.stateless {
		return nil
	}
	snapshot, err := m.describe(ctx, adm, m.snapshot.Name)
	if err != nil {
		return err
	}
	if errors.Is(snapshot.Err, kerr.UnknownTopicOrPartition) {
		if !m.cfg.create {
			return fmt.Errorf("persistence: snapshot topic %s does not exist; create it with %d partitions and cleanup.policy=compact, or set CreateSnapshotTopic",
				m.snapshot.Name, len(input.Partitions))
		}
		if snapshot, err = m.createSnapshotTopic(ctx, adm, len(input.Partitions)); err != nil {
			return err
		}
	}
	if snapshot.Err != nil {
		return fmt.Errorf("persistence: snapshot topic %s: %w", m.snapshot.Name, snapshot.Err)
	}
	if i, s := len(input.Partitions), len(snapshot.Partitions); i != s {
		return fmt.Errorf("persistence: input topic %s has %d partitions and snapshot topic %s has %d: %w; use a snapshot topic with %d partitions",
			m.input.Name, i, m.snapshot.Name, s, ErrPartitionMismatch, i)
	}
	m.snapshot.ID = snapshot.ID
	m.mu.Lock()
	m.mu.inputs, m.mu.snapshots = len(input.Partitions), len(snapshot.Partitions)
	m.mu.Unlock()
	return m.checkSnapshotConfig(ctx, adm, snapshot)
}

func (m *Module) describe(ctx context.Context, adm *kadm.Client, topic string) (kadm.TopicDetail, error) {
	ts, err := adm.ListTopics(ctx, topic)
	if err != nil {
		return kadm.TopicDetail{}, fmt.Errorf("persistence: asking for topic %s: %w", topic, err)
	}
	d, ok := ts[topic]
	if !ok {
		d.Err = kerr.UnknownTopicOrPartition
	}
	return d, nil
}

// checkVersions refuses brokers older than 2.5, whose coordinator does not
// check the generation in a transaction's offset commit (KIP-447).
func (m *Module) checkVersions(ctx context.Context, adm *kadm.Client) error {
	brokers, err := adm.ApiVersions(ctx)
	if err != nil {
		return fmt.Errorf("persistence: asking the brokers for their versions: %w", err)
	}
	for _, b := range brokers.Sorted() {
		if b.Err != nil {
			m.cfg.logger.Warn("a broker did not tell its versions", "broker", b.NodeID, "error", b.Err)
			continue
		}
		for _, need := range []struct {
			key     kmsg.Key
			version int16
		}{{kmsg.TxnOffsetCommit, 3}, {kmsg.OffsetFetch, 7}} {
			if have, _ := b.KeyMaxVersion(need.key.Int16()); have < need.version {
				return fmt.Errorf("persistence: broker %d speaks %s up to version %d, and version %d is needed, which came with Apache Kafka 2.5: an older coordinator does not check the generation in a transaction",
					b.NodeID, need.key.Name(), have, need.version)
			}
		}
	}
	version, err := wire.TransactionVersion(ctx, m.reader)
	if err != nil {
		return fmt.Errorf("persistence: asking for transaction.version: %w", err)
	}
	if version < 2 {
		m.cfg.logger.Info("the cluster's transaction.version is below 2: after a lost reply the library takes a new producer epoch, since a delayed request could end a later transaction; "+
			"version 2 (Apache Kafka 4.0) closes this in the broker", "transaction_version", version)
	}
	return nil
}

func (m *Module) createSnapshotTopic(ctx context.Context, adm *kadm.Client, partitions int) (kadm.TopicDetail, error) {
	compact := "compact"
	configs := map[string]*string{"cleanup.policy": &compact}
	for k, v := range m.cfg.topicConfigs {
		configs[k] = &v
	}
	r, err := adm.CreateTopic(ctx, int32(partitions), m.cfg.replication, configs, m.snapshot.Name)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return kadm.TopicDetail{}, fmt.Errorf("persistence: creating snapshot topic %s with %d partitions and replication %d: %w (%s)",
			m.snapshot.Name, partitions, m.cfg.replication, err, r.ErrMessage)
	}
	m.cfg.logger.Info("created the snapshot topic", "topic", m.snapshot.Name, "partitions", partitions)
	for pause := 5 * time.Millisecond; ; pause = min(pause*2, 500*time.Millisecond) {
		d, err := m.describe(ctx, adm, m.snapshot.Name)
		if err != nil || d.Err == nil && len(d.Partitions) > 0 {
			return d, err
		}
		if !sleep(ctx, pause) {
			return d, fmt.Errorf("persistence: snapshot topic %s was created but is not known yet: %w", m.snapshot.Name, ctx.Err())
		}
	}
}

func (m *Module) checkSnapshotConfig(ctx context.Context, adm *kadm.Client, d kadm.TopicDetail) error {
	name := m.snapshot.Name
	rcs, err := adm.DescribeTopicConfigs(ctx, name)
	var rc kadm.ResourceConfig
	if err == nil {
		rc, err = rcs.On(name, nil)
	}
	if err == nil {
		err = rc.Err
	}
	if err != nil {
		if isAny(err, kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed) {
			m.cfg.logger.Warn("the snapshot topic's settings may not be read, so they are not checked: its cleanup.policy must be compact; allow DescribeConfigs on the topic",
				"topic", name, "error", err)
			return nil
		}
		return fmt.Errorf("persistence: asking for the settings of snapshot topic %s: %w", name, err)
	}
	settings := make(map[string]string, len(rc.Configs))
	for _, c := range rc.Configs {
		if c.Value != nil {
			settings[c.Key] = *c.Value
		}
	}
	if policy := settings["cleanup.policy"]; policy != "compact" {
		return fmt.Errorf("persistence: snapshot topic %s has cleanup.policy=%s, where only compact is allowed: with delete, the state of keys that do not change would be lost; "+
			"set it with kafka-configs.sh --alter --entity-type topics --entity-name %s --add-config cleanup.policy=compact", name, policy, name)
	}
	if n, err := strconv.ParseInt(settings["max.message.bytes"], 10, 32); err == nil && n > 0 {
		m.snapshotMaxBytes.Store(int32(n))
	}
	brokers, err := adm.ListBrokers(ctx)
	if err != nil || len(brokers) < 2 {
		return nil
	}
	replicas := d.Partitions.NumReplicas()
	if replicas < 2 || settings["min.insync.replicas"] == "1" {
		m.cfg.logger.Warn("acknowledged snapshots do not survive the loss of one disk: use a replication factor of 3 and min.insync.replicas=2",
			"topic", name, "replication", replicas, "min.insync.replicas", settings["min.insync.replicas"], "brokers", len(brokers))
	}
	return nil
}

// checkPartition refuses a partition that the snapshot topic does not have, as
// after the input has grown. It asks the cluster again before it does.
func (m *Module) checkPartition(ctx context.Context, id int32) error {
	m.mu.Lock()
	snapshots := m.mu.snapshots
	m.mu.Unlock()
	if int(id) < snapshots || m.cfg.stateless {
		return nil
	}
	adm := kadm.NewClient(m.reader)
	input, err := m.describe(ctx, adm, m.input.Name)
	if err != nil {
		return err
	}
	snapshot, err := m.describe(ctx, adm, m.snapshot.Name)
	if err != nil {
		return err
	}
	if err := snapshot.Err; err != nil {
		return fmt.Errorf("persistence: snapshot topic %s: %w", m.snapshot.Name, err)
	}
	m.mu.Lock()
	grown := m.mu.inputs != len(input.Partitions)
	m.mu.inputs, m.mu.snapshots = len(input.Partitions), len(snapshot.Partitions)
	m.mu.Unlock()
	if grown {
		m.cfg.logger.Warn("the input topic has grown: keys have moved to other partitions than their snapshots are in; drain the service and rebuild the snapshots with the new count",
			"topic", m.input.Name, "partitions", len(input.Partitions), "snapshot_partitions", len(snapshot.Partitions))
	}
	if len(input.Partitions) == len(snapshot.Partitions) {
		return nil
	}
	return fmt.Errorf("persistence: partition %d of %s is not taken over: the input has %d partitions and snapshot topic %s has %d: %w",
		id, m.input.Name, len(input.Partitions), m.snapshot.Name, len(snapshot.Partitions), ErrPartitionMismatch)
}

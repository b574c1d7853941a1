package persistence

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence/internal/wire"
)

// A diagnosis is look-ups first (facts), then a pure conclusion. Each look-up
// has a bound of its own, and one that fails leaves a note and nothing else: a
// stall is never hidden by the search for its cause. The log's bounds are read again
// in the end, so that a transaction that ended meanwhile is not reported as open.

// lookTimeout bounds each look-up.
const lookTimeout = 5 * time.Second

// Diagnose asks the brokers what keeps the partitions of a snapshot topic from
// being read up to their high watermarks: all of them, or those given, in order.
// It changes nothing, needs no group, and may be called at any time, by health
// endpoints and tools; it takes a few requests to each broker, and some seconds
// where brokers do not answer. cl can be any client of the cluster; the
// caller closes it. ACLs: Describe on the topic and the transactional ids (what
// may not be seen is noted as not known, or taken as unknown to the coordinators).
//
// The error is about the topic as a whole: it cannot be looked up, or does not
// exist, or has no such partition.
func Diagnose(ctx context.Context, cl *kgo.Client, topic string, partitions ...int32) ([]Diagnosis, error) {
	found, err := describeTopic(ctx, cl, topic)
	if err != nil {
		return nil, fmt.Errorf("persistence: diagnosing topic %s: %w", topic, err)
	}
	if len(partitions) == 0 {
		partitions = slices.Sorted(maps.Keys(found))
	}
	diagnoses := make([]Diagnosis, 0, len(partitions))
	for _, id := range partitions {
		if _, ok := found[id]; !ok {
			return nil, fmt.Errorf("persistence: diagnosing topic %s: it has no partition %d, only 0 to %d", topic, id, len(found)-1)
		}
		diagnoses = append(diagnoses, conclude(lookUp(ctx, cl, topic, id, noPosition, noEpoch)))
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("persistence: diagnosing topic %s: %w", topic, context.Cause(ctx))
		}
	}
	return diagnoses, nil
}

const noEpoch int32 = -1

// lookUp gathers the facts about a partition, for a target that was captured
// under an epoch or for none.
func lookUp(ctx context.Context, cl *kgo.Client, topic string, partition int32, target int64, targetEpoch int32) facts {
	seeds, _ := cl.OptValue(kgo.SeedBrokers).([]string)
	l := looker{cl: cl, adm: kadm.NewClient(cl), facts: facts{brokers: strings.Join(seeds, ","), topic: topic, partition: partition, now: time.Now(),
		target: target, targetEpoch: targetEpoch, epochEnd: -1, leader: -1, leaderEpoch: noEpoch, bounds: noBounds}}
	l.lookUpLeader(ctx)
	if l.leader < 0 {
		return l.facts
	}
	l.lookUpBounds(ctx)
	l.lookUpEpochEnd(ctx)
	if l.bounds.stable < max(l.target, l.bounds.end) {
		l.lookUpTransactions(ctx)
		bounded, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		if again, err := readBounds(bounded, cl, topic, partition); err == nil {
			l.bounds = again
		}
	}
	return l.facts
}

// looker fills in facts.
type looker struct {
	cl  *kgo.Client
	adm *kadm.Client
	facts
}

func (l *looker) note(what string, err error) {
	l.notes = append(l.notes, fmt.Sprintf("%s: %v", what, err))
}

func (l *looker) lookUpLeader(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	found, err := describeTopic(ctx, l.cl, l.topic)
	p, ok := found[l.partition]
	if err == nil && !ok {
		err = kerr.UnknownTopicOrPartition
	}
	if broker := (*kerr.Error)(nil); errors.As(err, &broker) {
		l.note("the partition's leader", err)
		return
	}
	if err != nil {
		l.unreachable = err
		return
	}
	l.leader, l.leaderEpoch, l.replicas, l.leaderless = p.Leader, p.LeaderEpoch, p.Replicas, p.Leader < 0
}

// describeTopic asks the brokers one after the other for a topic's partitions: a
// diagnosis is wanted just when one of them hangs.
func describeTopic(ctx context.Context, cl *kgo.Client, topic string) (map[int32]kmsg.MetadataResponseTopicPartition, error) {
	r := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = kmsg.StringPtr(topic)
	r.Topics = append(r.Topics, t)
	err := errors.New("the client has no brokers")
	for _, b := range slices.Concat(cl.DiscoveredBrokers(), cl.SeedBrokers()) {
		bounded, cancel := context.WithTimeout(ctx, lookTimeout/3)
		resp, asked := r.RequestWith(bounded, b)
		cancel()
		if asked != nil {
			err = fmt.Errorf("no broker answers: %w", asked)
			continue
		}
		found := make(map[int32]kmsg.MetadataResponseTopicPartition)
		for _, t := range resp.Topics {
			if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
				return nil, err
			}
			for _, p := range t.Partitions {
				found[p.Partition] = p
			}
		}
		return found, nil
	}
	return nil, err
}

func (l *looker) lookUpBounds(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	var err error
	if l.bounds, err = readBounds(ctx, l.cl, l.topic, l.partition); err == nil {
		return
	}
	if broker := (*kerr.Error)(nil); errors.As(err, &broker) {
		l.note("the log's bounds", err)
		return
	}
	l.unreachable = err
}

// lookUpEpochEnd asks where the epoch ended that the target was captured under.
// An end below the target means that another leader's log has gone on without
// what was there, even if it is longer by now.
func (l *looker) lookUpEpochEnd(ctx context.Context) {
	if l.targetEpoch < 0 || l.leaderEpoch <= l.targetEpoch {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	end, err := wire.EpochEnd(ctx, l.cl, l.leader, l.topic, l.partition, l.targetEpoch)
	if err != nil {
		l.note(fmt.Sprintf("where leader epoch %d ended", l.targetEpoch), err)
		return
	}
	l.epochEnd = end
}

// lookUpTransactions asks the leader for the transactions that are open on the
// partition, and the coordinators for what they know of them.
func (l *looker) lookUpTransactions(ctx context.Context) {
	open, err := l.openTransactions(ctx)
	if err != nil {
		l.note("the transactions open on the partition", err)
		return
	}
	l.transactions = open
	if len(open) == 0 {
		return
	}
	if !l.askCoordinators(ctx, open) {
		return
	}
	// One that ended between the two answers looks like one that hangs.
	again, err := l.openTransactions(ctx)
	if err != nil {
		l.note("whether the transactions are still open", err)
		for i := range open {
			open[i].Hanging = false
		}
		return
	}
	l.transactions = slices.DeleteFunc(open, func(t OpenTransaction) bool {
		return !slices.ContainsFunc(again, func(a OpenTransaction) bool {
			return a.ProducerID == t.ProducerID && a.StartOffset == t.StartOffset
		})
	})
}

func (l *looker) openTransactions(ctx context.Context) ([]OpenTransaction, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	set := make(kadm.TopicsSet)
	set.Add(l.topic, l.partition)
	described, err := l.adm.DescribeProducers(ctx, set)
	if err != nil {
		return nil, err
	}
	p, ok := described[l.topic].Partitions[l.partition]
	if !ok {
		return nil, errors.New("the broker's answer to DescribeProducers leaves the partition out")
	}
	if p.Err != nil {
		return nil, p.Err
	}
	var open []OpenTransaction
	for _, a := range p.ActiveProducers.Sorted() {
		if a.CurrentTxnStartOffset >= 0 {
			open = append(open, OpenTransaction{ProducerID: a.ProducerID, ProducerEpoch: a.ProducerEpoch, CoordinatorEpoch: a.CoordinatorEpoch,
				StartOffset: a.CurrentTxnStartOffset, LastWritten: time.UnixMilli(a.LastTimestamp), Coordinator: -1})
		}
	}
	return open, nil
}

// askCoordinators fills in what the coordinators know. A transaction hangs if
// all of them answered and none has it under way with this partition in it. The
// result is whether any does.
func (l *looker) askCoordinators(ctx context.Context, open []OpenTransaction) (hanging bool) {
	ctx, cancel := context.WithTimeout(ctx, 2*lookTimeout)
	defer cancel()
	var ids []int64
	for _, t := range open {
		ids = append(ids, t.ProducerID)
	}
	listed, err := l.adm.ListTransactions(ctx, ids, nil)
	if err != nil {
		l.note("the transactional ids of the open transactions", err)
	}
	var known kadm.DescribedTransactions
	if len(listed) > 0 { // no ids would mean all
		var err error
		if known, err = l.adm.DescribeTransactions(ctx, listed.TransactionalIDs()...); err != nil {
			l.note("the states of the open transactions", err)
		}
	}
	for i := range open {
		t := &open[i]
		t.Hanging = err == nil
		for id, entry := range listed {
			if entry.ProducerID != t.ProducerID {
				continue
			}
			t.TransactionalID, t.Coordinator, t.State = id, entry.Coordinator, entry.State
			d, ok := known[id]
			if !ok || d.Err != nil {
				if d.Err != nil {
					l.note(fmt.Sprintf("the state of transactional id %s", id), d.Err)
				}
				t.Hanging = false
				continue
			}
			t.Coordinator, t.State, t.Timeout = d.Coordinator, d.State, time.Duration(d.TimeoutMillis)*time.Millisecond
			if d.StartTimestamp > 0 {
				t.Started = time.UnixMilli(d.StartTimestamp)
			}
			t.Hanging = !d.Topics.Lookup(l.topic, l.partition) || !slices.Contains([]string{"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"}, d.State)
		}
		hanging = hanging || t.Hanging
	}
	return hanging
}

// bounds of a log, -1 where unknown.
type bounds struct {
	start, stable, end int64
	epoch              int32 // of the leader that told the end
}

var noBounds = bounds{-1, -1, -1, noEpoch}

// readBounds reads a log's bounds, all of them or none.
func readBounds(ctx context.Context, cl *kgo.Client, topic string, partition int32) (b bounds, err error) {
	if b.start, err = wire.ListOffset(ctx, cl, topic, partition, wire.LogStart, false); err != nil {
		return noBounds, err
	}
	if b.end, b.epoch, err = wire.HighWatermark(ctx, cl, topic, partition); err != nil {
		return noBounds, err
	}
	if b.stable, err = wire.ListOffset(ctx, cl, topic, partition, wire.LogEnd, true); err != nil {
		return noBounds, err
	}
	return b, nil
}

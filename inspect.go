package persistence

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/internal/format"
	"github.com/kafkafence/persistence/internal/wire"
)

// Inspection is what Inspect found about one partition.
type Inspection struct {
	Agreement
	// Mismatches are what a takeover would find now; none if all agree.
	Mismatches []Mismatch
	// Snapshots says what was read.
	Snapshots Recovered
}

// Inspect compares a group's committed offsets with the snapshots and the input
// log as a takeover does, for all partitions or those given, and reads all
// snapshots for it. It changes nothing and joins no group; what it finds of a
// running service may be outdated at once, so that a mismatch counts only if it
// is there again the next time. It blocks until everything is read, at most
// RecoveryStallTimeout's default without progress. cl can be any client of the
// cluster that consumes nothing; the caller closes it. ACLs: Read on the snapshot
// topic, Describe on the input topic and the group.
//
// The error is about the look-ups: the topics and the group, or a
// *RecoveryStalledError.
func Inspect(ctx context.Context, cl *kgo.Client, group, input, snapshots string, partitions ...int32) ([]Inspection, error) {
	topics, err := kadm.NewClient(cl).ListTopics(ctx, input, snapshots)
	if err != nil {
		return nil, fmt.Errorf("persistence: inspecting %s and %s: %w", input, snapshots, err)
	}
	for _, name := range []string{input, snapshots} {
		if err := topics[name].Err; err != nil {
			return nil, fmt.Errorf("persistence: inspecting topic %s: %w", name, err)
		}
	}
	if len(partitions) == 0 {
		partitions = topics[input].Partitions.Numbers()
	}
	in := wire.Topic{Name: input, ID: topics[input].ID}
	state := wire.Topic{Name: snapshots, ID: topics[snapshots].ID}
	var found []Inspection
	for _, id := range partitions {
		one, err := inspect(ctx, cl, group, in, state, id)
		if err != nil {
			return found, fmt.Errorf("persistence: inspecting partition %d of %s and %s: %w", id, input, snapshots, err)
		}
		found = append(found, one)
	}
	return found, nil
}

func inspect(ctx context.Context, cl *kgo.Client, group string, input, snapshots wire.Topic, partition int32) (Inspection, error) {
	facts := takeoverFacts{input: input.Name, snapshotTopic: snapshots.Name, partition: partition, inputID: format.TopicID(input.ID)}
	var err error
	if facts.committed, err = wire.StableOffset(ctx, cl, group, input, partition); err != nil {
		return Inspection{}, err
	}
	if facts.snapshots, err = lookUpSpan(ctx, cl, snapshots.Name, partition); err != nil {
		return Inspection{}, err
	}
	d := defaults()
	r := &recovery{cl: cl, topic: snapshots, partition: partition, stallTimeout: d.stallTimeout, fetchBytes: d.fetchBytes,
		log: slog.New(slog.DiscardHandler), trace: &Trace{}, show: func(*RecoveryInfo) {}}
	seen, err := r.scan(ctx, facts.snapshots.end)
	if err != nil {
		return Inspection{}, err
	}
	facts.scanned = &seen
	// After the snapshots: their sources were in the input log before them.
	if facts.inputLog, err = lookUpSpan(ctx, cl, input.Name, partition); err != nil {
		return Inspection{}, err
	}
	i := Inspection{Agreement: facts.agreement(), Snapshots: r.stats}
	for _, f := range reconcile(facts, mistrust).findings {
		i.Mismatches = append(i.Mismatches, f.Mismatch)
	}
	return i, nil
}

// mistrust leaves no mismatch out.
func mistrust(Mismatch) Choice { return Fail }

package persistence

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// lookTimeout bounds each look-up that explains a stall.
const lookTimeout = 5 * time.Second

// stalled makes the error of a recovery that stands still, from numbers read
// now. A look-up that fails only leaves its number out.
func (r *recovery) stalled(ctx context.Context, clock *stall, position int64, cause error) error {
	e := &RecoveryStalledError{Topic: r.m.snapshot.Name, Partition: r.p.id, Target: r.stats.Target, Position: position,
		Stalled: clock.stalled(time.Now()), Cause: cause}
	look, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	b, err := r.bounds(look)
	if err != nil && e.Cause == nil {
		e.Cause = fmt.Errorf("the log's bounds cannot be read now: %w", err)
	}
	e.LogStart, e.LastStableOffset, e.HighWatermark = b.start, b.stable, b.end
	switch {
	case b.end >= 0 && r.stats.Target >= 0 && b.end < r.stats.Target:
		e.Diagnosis = fmt.Sprintf("the log ends %d offsets below the target: it was truncated while it was being read, and acknowledged snapshots are gone; restore the topic, or start again and accept the loss", r.stats.Target-b.end)
	case b.stable >= 0 && r.stats.Target >= 0 && b.stable < r.stats.Target:
		e.Diagnosis = "a transaction is open on the snapshot partition and holds the last stable offset: " + r.m.openTransactions(ctx, r.p.id) +
			"; it ends by itself at its timeout, unless it hangs: then abort it with kafka-transactions.sh"
	case b.end < 0:
		e.Diagnosis = "the partition's leader does not answer"
	default:
		e.Diagnosis = "the log can be read up to the target now"
	}
	return e
}

// openTransactions describes who holds the last stable offset, as far as the
// brokers tell.
func (m *Module) openTransactions(ctx context.Context, partition int32) string {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	adm := kadm.NewClient(m.reader)
	set := make(kadm.TopicsSet)
	set.Add(m.snapshot.Name, partition)
	producers, err := adm.DescribeProducers(ctx, set)
	if err != nil {
		return fmt.Sprintf("its producer is not known (%v)", err)
	}
	var found []string
	for _, t := range producers {
		for _, p := range t.Partitions {
			if p.Err != nil {
				return fmt.Sprintf("its producer is not known (%v)", p.Err)
			}
			for _, a := range p.ActiveProducers {
				if a.CurrentTxnStartOffset < 0 {
					continue
				}
				id := "no coordinator knows it"
				if listed, err := adm.ListTransactions(ctx, []int64{a.ProducerID}, nil); err != nil {
					id = fmt.Sprintf("its transactional id is not known (%v)", err)
				} else {
					for name := range listed {
						id = "transactional id " + name
					}
				}
				found = append(found, fmt.Sprintf("producer id %d epoch %d since offset %d, last written %s (%s)",
					a.ProducerID, a.ProducerEpoch, a.CurrentTxnStartOffset, time.UnixMilli(a.LastTimestamp).UTC().Format(time.RFC3339), id))
			}
		}
	}
	if len(found) == 0 {
		return "none is open any more"
	}
	return strings.Join(found, "; ")
}

// Package persistence keeps the state of a Kafka consumer group in a compacted
// topic, fenced: a member that has lost a partition can no longer overwrite
// its state.
//
// A service folds the events of an input topic into state per key, and
// snapshots that state to a compacted topic, so that another member can go on
// from it. The consumer group decides who owns an input partition, but nothing
// ties that to who may write the snapshots: an owner that was paused, and has
// not noticed that its partition went elsewhere, overwrites a newer snapshot
// with an older one. The next recovery then loads the older state and resumes
// from the newer offset, and the events in between are lost from the state,
// silently.
//
// This package puts the snapshots, the input offset and the consumer's live
// group generation into one Kafka transaction. The group coordinator refuses
// a stale generation, and with it everything in the transaction.
//
// Package flow, on top of this one, folds events into typed state per key, and is
// what most services want. This package is for those that need the whole
// partition in one hand.
//
// There are only a few types. A [Module] is one member of a group. A
// [Partition] is one ownership of one partition: it recovers its snapshots,
// polls its events, and writes. A [Snapshot] is one key's state. A [Batch] is
// what one transaction makes visible together: snapshots, outputs to any
// topics, and the offset of the input that they complete.
//
//	module, err := persistence.New(
//		persistence.Kafka(kgo.SeedBrokers("localhost:9092"), kgo.ConsumerGroup("orders"), kgo.ConsumeTopics("orders")),
//		persistence.SnapshotTopic("orders-state"),
//		persistence.TransactionalIDPrefix("orders"),
//	)
//	if err != nil {
//		return err
//	}
//	defer module.Close(context.Background())
//	return module.Run(ctx, func(ctx context.Context, p *persistence.Partition) error {
//		state := make(map[string][]byte)
//		_, err := p.Recover(ctx, func(s persistence.Snapshot) error {
//			state[string(s.Key)] = s.Value
//			return nil
//		}, func() { clear(state) })
//		if err != nil {
//			return err
//		}
//		for {
//			events, err := p.Poll(ctx)
//			if err != nil {
//				return err
//			}
//			// fold, then:
//			err = p.Apply(ctx, persistence.Batch{Snapshots: changed, Through: events[len(events)-1]})
//		}
//	})
//
// Apply with Through is the simplest loop: state and offset move together, so
// that no event is ever folded twice. Where keys are written at different times,
// Write them and Advance when all that an event touched is written; the
// committed offset then trails the snapshots, and a takeover replays events that
// some keys have seen. The fold must leave those out: an event at or below its
// key's [Snapshot].SourceOffset has been folded in.
//
// # Guarantees
//
//   - A write that returned nil is read by every later recovery, until a newer
//     snapshot of its key replaces it.
//   - A write that returned an error without [ErrUnknownOutcome] is never read
//     by anybody. One with it may have committed.
//   - After a partition was given up, no write of that ownership lands. One that
//     was being ended when the time to give up ran out is settled before the
//     next owner reads anything.
//   - A batch is visible to read_committed readers as a whole or not at all,
//     and the input offset moves only with it.
//   - The committed offset is never ahead of what the handler said is done.
//   - Recovery delivers everything that was committed, or fails and says why: see
//     [RecoveryStalledError] and [Diagnosis].
//   - A committed offset that does not fit the snapshots or the input is noticed
//     at the takeover, and dealt with as [OnMismatch] says.
//
// # Assumptions
//
// Nothing else commits the group's offsets for the input topic, the prefix of
// the transactional ids belongs to one service, and the snapshot topic is
// compacted, never deleted from, and replicated so that acknowledged records
// survive. Readers of the outputs must use read_committed.
//
// # Limits
//
// One input topic for each Module. A service without state is one with [Stateless].
// Effects outside Kafka are not part of a
// transaction. The handler must poll: a handler that is stuck keeps its
// partition for ever, since the group hears only heartbeats.
package persistence

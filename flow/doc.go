// Package flow folds the events of a topic into state per key, exactly once:
// state, outputs and the input offset become visible together or not at all.
//
// It is built on the persistence package, which see for what the fence is and
// how partitions come and go. A [Spec] says what to do with an event; a [Flow]
// runs it over a [persistence.Module].
//
//	counter, err := flow.New(flow.Spec[int]{
//		Codec: flow.JSON[int](1),
//		Fold: func(_ context.Context, k *flow.Key[int], _ *kgo.Record) error {
//			k.State++
//			return nil
//		},
//	})
//	if err != nil {
//		return err
//	}
//	return counter.Run(ctx, module)
//
// # What is promised
//
// Each event is folded into its key's state once, as far as the state that is
// committed is concerned: an event at or below its key's snapshot's source offset
// is not folded again. A crash loses what was not committed, and folds those
// events again from the state before them; their outputs are committed with the
// snapshot that contains them, so read_committed readers see each once. The
// committed offset is the lowest over all keys that is not persisted.
//
// Events of one key are folded one after another, in order. Events of different
// keys are folded at the same time, as many as Spec.Workers. A slow fold holds
// up its own key, and the committed offset, which waits for the slowest.
//
// Nothing in memory outlives a transaction that did not commit: it is made again
// as it was while the partition is owned, or the ownership ends, and the state with
// it; the next one begins with what is committed. So a fold never finds an effect in
// its state that did not commit, and there is nothing to rewind.
//
// An operator who sets the group's offset back for the events to be folded anew
// must have the state rebuilt, by one start of the service with
// persistence.OnMismatch(persistence.OffsetBehind, persistence.Rebuild): otherwise
// the replay changes nothing.
//
// Effects outside of Kafka are not part of the transaction: a fold may run more
// than once for an event that is committed once. [Key.EventID] is the same each
// time.
//
// # More than events
//
// [Key.SetTimer] has Spec.Timer called for a key later, [Key.ExpireAt] deletes it
// later, and Spec.Tick is called for all keys of a partition at intervals. All
// that they change and emit is committed like the effect of an event. Timers are in
// the state's record and survive recoveries. They are called by the clock of the
// machine, and once as far as what is committed is concerned.
//
// # Memory
//
// All states of the owned partitions are in memory, as bytes until they are first
// needed, and so are the keys that were deleted while their events can come again.
// MaxInFlight bounds what was polled and not folded.
//
// # Without state
//
// [Transform] is for loops that consume, transform and produce: exactly once, in
// order, and without a snapshot topic.
package flow

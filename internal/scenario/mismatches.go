package scenario

import (
	"context"
	"fmt"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/format"
	"github.com/kafkafence/persistence/internal/wire"
)

// What a takeover finds when the committed offset, the snapshots and the input do
// not agree, and what each choice makes of it. The member folds its events, each
// once, by appending their values to the state of their key.

// disagreement is one way to arrange a mismatch, and what must come of it.
type disagreement struct {
	mismatch persistence.Mismatch
	arrange  func(w *World)
	// also are mismatches that come along, and are accepted; OffsetMissing has
	// its default.
	also []persistence.Mismatch
	want map[persistence.Choice]outcome
}

// outcome is where processing resumed from, and the state in the end. All
// arrangements are followed by one more event, 9 for the key c.
type outcome struct {
	resume int64
	state  map[string]string
}

type folded = map[string]string

func disagreements() []disagreement {
	const fail, accept, resume, rebuild = persistence.Fail, persistence.Accept, persistence.Resume, persistence.Rebuild
	whole := folded{"a": "123", "b": "123", "c": "9"}
	return []disagreement{{
		mismatch: persistence.OffsetMissing,
		arrange: func(w *World) {
			w.foldAll("a1", "b1", "a2", "b2", "a3", "b3")
			w.DeleteGroup()
		},
		want: map[persistence.Choice]outcome{fail: {}, resume: {6, whole}, accept: {0, whole}, rebuild: {0, whole}},
	}, {
		mismatch: persistence.OffsetAhead,
		arrange: func(w *World) {
			w.foldAll("a1", "b1", "a2", "b2")
			w.events("a3", "b3")
			w.CommitByHand(0, 5)
		},
		want: map[persistence.Choice]outcome{fail: {}, accept: {5, folded{"a": "12", "b": "123", "c": "9"}}, resume: {4, whole}, rebuild: {0, whole}},
	}, {
		mismatch: persistence.OffsetBehind,
		arrange: func(w *World) {
			w.foldAll("a1", "b1", "a2", "b2", "a3", "b3")
			w.CommitByHand(0, 1)
		},
		want: map[persistence.Choice]outcome{fail: {}, accept: {1, whole}, resume: {6, whole}, rebuild: {0, whole}},
	}, {
		mismatch: persistence.OffsetBelowInput,
		arrange: func(w *World) {
			w.foldAll("a1", "b1")
			w.events("a2", "b2", "a3", "b3")
			w.DeleteRecords(w.Input, 0, 4)
		},
		want: map[persistence.Choice]outcome{fail: {}, accept: {4, folded{"a": "13", "b": "13", "c": "9"}}, rebuild: {4, folded{"a": "3", "b": "3", "c": "9"}}},
	}, {
		mismatch: persistence.OffsetAboveInput,
		arrange: func(w *World) {
			w.foldAll("a1", "b1", "a2", "b2", "a3", "b3")
			w.recreateInput()
			w.events("a7", "b8")
		},
		also: []persistence.Mismatch{persistence.OffsetMissing, persistence.InputRecreated, persistence.SourceAboveInput},
		want: map[persistence.Choice]outcome{fail: {}, rebuild: {0, folded{"a": "7", "b": "8", "c": "9"}}},
	}, {
		mismatch: persistence.InputRecreated,
		arrange: func(w *World) {
			w.foldAll("a1", "b1", "a2", "b2", "a3", "b3")
			w.recreateInput()
			w.events("a4", "b4", "a5", "b5", "a6", "b6", "a7")
		},
		also: []persistence.Mismatch{persistence.OffsetMissing},
		want: map[persistence.Choice]outcome{fail: {}, accept: {6, folded{"a": "1237", "b": "123", "c": "9"}}, rebuild: {0, folded{"a": "4567", "b": "456", "c": "9"}}},
	}, {
		mismatch: persistence.SourceAboveInput,
		arrange: func(w *World) {
			w.foldAll("a1", "b1", "a2", "b2", "a3", "b3")
			foreign := w.records(0, "x", "from elsewhere")[0]
			foreign.Headers = format.AppendHeaders(nil, 50, 3)
			require.NoError(w, w.Admin.ProduceSync(w.Ctx, foreign).FirstErr())
		},
		want: map[persistence.Choice]outcome{fail: {}, accept: {6, folded{"a": "123", "b": "123", "c": "9", "x": "from elsewhere"}}, rebuild: {0, whole}},
	}, {
		mismatch: persistence.SnapshotsTruncated,
		arrange: func(w *World) {
			w.foldAll("a1", "b1", "a2", "b2", "a3", "b3")
			left := w.Read(w.State, 0)[:2]
			w.Recreate(w.State)
			for _, r := range left {
				require.NoError(w, w.Admin.ProduceSync(w.Ctx, &kgo.Record{Topic: w.State, Key: r.Key, Value: r.Value, Headers: r.Headers}).FirstErr())
			}
		},
		want: map[persistence.Choice]outcome{fail: {}, accept: {6, folded{"a": "1", "b": "1", "c": "9"}}, resume: {2, whole}, rebuild: {0, whole}},
	}, {
		mismatch: persistence.SnapshotsEmptied,
		arrange: func(w *World) {
			w.foldAll("a1", "b1", "a2", "b2", "a3", "b3")
			w.Settle()
			w.DeleteRecords(w.State, 0, w.End(w.State, 0))
		},
		want: map[persistence.Choice]outcome{fail: {}, accept: {6, folded{"c": "9"}}, rebuild: {0, whole}},
	}}
}

func mismatchStories() (all []Story) {
	for _, d := range disagreements() {
		for choice, want := range d.want {
			all = append(all, Story{Name: fmt.Sprintf("%vIsDecidedBy%v", d.mismatch.String(), choice), Tell: func(w *World) { d.tell(w, choice, want) }})
		}
	}
	return all
}

func (d disagreement) tell(w *World, choice persistence.Choice, want outcome) {
	d.arrange(w)
	w.events("c9")
	committed := w.committedIfAny()

	told := make(map[persistence.Mismatch]persistence.Choice)
	opts := []persistence.Option{
		persistence.OnMismatch(d.mismatch, choice),
		persistence.WithTrace(persistence.Trace{Mismatch: func(i persistence.MismatchInfo) { told[i.Mismatch] = i.Choice }}),
	}
	for _, m := range d.also {
		if choice != persistence.Fail && m != persistence.OffsetMissing {
			opts = append(opts, persistence.OnMismatch(m, persistence.Accept))
		}
	}
	state, resume, err := w.fold(opts...)
	require.Equal(w, choice, told[d.mismatch], "%v", told)
	for m := range told {
		require.Contains(w, append(d.also, d.mismatch), m)
	}
	if choice == persistence.Fail {
		require.ErrorIs(w, err, d.mismatch)
		require.ErrorContains(w, err, d.mismatch.String())
		require.Equal(w, committed, w.committedIfAny(), "nothing was changed")
		return
	}
	require.ErrorIs(w, err, ErrDone)
	require.Equal(w, want.resume, resume)
	require.Equal(w, want.state, state)

	found, err := persistence.Inspect(w.Ctx, w.Admin, w.Group, w.Input, w.State)
	require.NoError(w, err)
	if choice == persistence.Accept && d.mismatch == persistence.SourceAboveInput {
		require.Equal(w, []persistence.Mismatch{d.mismatch}, found[0].Mismatches, "it was accepted, and is still there")
		return
	}
	require.Empty(w, found[0].Mismatches, "all agrees again")
	again, _, err := w.fold()
	require.ErrorIs(w, err, ErrDone)
	require.Equal(w, want.state, again)
}

// committedIfAny is the group's offset, or nothing where there is no group.
func (w *World) committedIfAny() wire.Committed {
	c, err := wire.StableOffset(w.Ctx, w.Admin, w.Group, w.Topic(w.Input), 0)
	if err != nil {
		require.ErrorIs(w, err, kerr.GroupIDNotFound)
		return wire.Committed{Offset: -1, Epoch: -1}
	}
	return c
}

// recreateInput makes the input topic anew. A group's offsets go with the topic.
func (w *World) recreateInput() {
	w.Helper()
	w.Recreate(w.Input)
	w.Eventually("the group's offset is gone", func() bool { return w.committedIfAny().Offset < 0 })
}

// events produces events: the first character is the key, the rest the value.
func (w *World) events(es ...string) {
	w.Helper()
	for _, e := range es {
		require.NoError(w, w.Admin.ProduceSync(w.Ctx, &kgo.Record{Topic: w.Input, Key: []byte(e[:1]), Value: []byte(e[1:])}).FirstErr())
	}
}

// foldAll produces events and folds them.
func (w *World) foldAll(es ...string) {
	w.Helper()
	w.events(es...)
	_, _, err := w.fold()
	require.ErrorIs(w, err, ErrDone)
}

// fold runs a member until it has folded everything that is in the input's only
// partition, and returns its state and where it resumed.
func (w *World) fold(opts ...persistence.Option) (folded, int64, error) {
	w.Helper()
	end := w.End(w.Input, 0)
	result := make(folded)
	var resumed int64
	err := w.Handle(func(ctx context.Context, p *persistence.Partition) error {
		resumed = p.Resume()
		state, _, err := p.RecoverMap(ctx)
		if err != nil {
			return err
		}
		for next := resumed; next < end; {
			events, err := p.Poll(ctx)
			if err != nil {
				return err
			}
			for _, e := range events {
				next = e.Offset + 1
				batch := persistence.Batch{Through: e}
				if s, ok := state[string(e.Key)]; !ok || e.Offset > s.SourceOffset {
					s.Key, s.Value, s.SourceOffset = e.Key, append(s.Value, e.Value...), e.Offset
					state[string(e.Key)] = s
					batch.Snapshots = []persistence.Snapshot{s}
				}
				if err := p.Apply(ctx, batch); err != nil {
					return err
				}
			}
		}
		for k, s := range state {
			result[k] = string(s.Value)
		}
		return ErrDone
	}, nil, opts...).Wait()
	return result, resumed, err
}

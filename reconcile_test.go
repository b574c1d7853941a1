package persistence

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kafkafence/persistence/internal/format"
	"github.com/kafkafence/persistence/internal/wire"
)

// agreeing are the facts of a takeover at which all is well.
func agreeing() takeoverFacts {
	return takeoverFacts{
		input: "orders", snapshotTopic: "orders-state", partition: 3, inputID: "here",
		committed: wire.Committed{Offset: 40, Epoch: 7, Metadata: format.Metadata{End: 100, Owner: "o", Input: "here"}.String()},
		inputLog:  span{10, 60},
		snapshots: span{0, 100},
	}
}

func TestTakeoversAgree(t *testing.T) {
	foreign := func(offset int64) wire.Committed {
		return wire.Committed{Offset: offset, Epoch: -1, Metadata: "by hand"}
	}
	ours := func(m format.Metadata) wire.Committed {
		return wire.Committed{Offset: 40, Epoch: 7, Metadata: m.String()}
	}
	none := wire.Committed{Offset: -1, Epoch: -1}
	seen := func(committable, source int64) *scan {
		return &scan{records: 5, committable: committable, source: source, inputID: "here"}
	}
	type want struct {
		scan    bool
		found   []Mismatch
		fails   bool
		resume  position
		from    string
		rebuild bool
	}
	committed := position{40, 7}
	for name, c := range map[string]struct {
		change  func(f *takeoverFacts)
		choices map[Mismatch]Choice
		want    want
	}{
		"all is well":               {want: want{resume: committed, from: fromCommit}},
		"at the very end":           {change: func(f *takeoverFacts) { f.inputLog.end = 40 }, want: want{resume: committed, from: fromCommit}},
		"at the very start":         {change: func(f *takeoverFacts) { f.inputLog.start = 40 }, want: want{resume: committed, from: fromCommit}},
		"brokers without topic ids": {change: func(f *takeoverFacts) { f.inputID = "" }, want: want{resume: committed, from: fromCommit}},
		"a commit of an earlier version": {
			change: func(f *takeoverFacts) { f.committed = ours(format.Metadata{End: 100}) },
			want:   want{resume: committed, from: fromCommit},
		},
		"nothing at all": {
			change: func(f *takeoverFacts) { f.committed, f.snapshots = none, span{} },
			want:   want{resume: position{-1, -1}, from: fromPolicy},
		},

		"stateless, and an offset of the same service": {
			change: func(f *takeoverFacts) {
				f.stateless, f.snapshots, f.committed = true, span{}, ours(format.Metadata{End: format.Unknown, Input: "here"})
			},
			want: want{resume: committed, from: fromCommit},
		},
		"stateless, and an offset that somebody else committed": {
			change: func(f *takeoverFacts) { f.stateless, f.snapshots, f.committed = true, span{}, foreign(40) },
			want:   want{resume: position{40, -1}, from: fromCommit},
		},
		"stateless now, and not before": {
			change: func(f *takeoverFacts) { f.stateless, f.snapshots = true, span{} },
			want:   want{resume: committed, from: fromCommit},
		},
		"stateless before, and not now": {
			change: func(f *takeoverFacts) {
				f.snapshots, f.committed = span{}, ours(format.Metadata{End: format.Unknown, Input: "here"})
			},
			want: want{found: []Mismatch{OffsetBehind}, resume: committed, from: fromCommit},
		},
		"stateless, with no offset": {
			change: func(f *takeoverFacts) { f.stateless, f.snapshots, f.committed = true, span{}, none },
			want:   want{resume: position{-1, -1}, from: fromPolicy},
		},
		"stateless, and another input": {
			change: func(f *takeoverFacts) {
				f.stateless, f.snapshots, f.committed = true, span{}, ours(format.Metadata{End: format.Unknown, Input: "other"})
			},
			want: want{found: []Mismatch{InputRecreated}, fails: true, resume: committed, from: fromCommit},
		},
		"stateless, and events are gone": {
			change: func(f *takeoverFacts) { f.stateless, f.snapshots, f.inputLog.start = true, span{}, 50 },
			want:   want{found: []Mismatch{OffsetBelowInput}, fails: true, resume: committed, from: fromCommit},
		},
		"no offset, unread snapshots": {change: func(f *takeoverFacts) { f.committed = none }, want: want{scan: true}},
		"no offset, and all snapshots were aborted": {
			change: func(f *takeoverFacts) { f.committed, f.scanned = none, &scan{committable: -1, source: -1} },
			want:   want{resume: position{-1, -1}, from: fromPolicy},
		},
		"no offset, snapshots": {
			change: func(f *takeoverFacts) { f.committed, f.scanned = none, seen(35, 38) },
			want:   want{found: []Mismatch{OffsetMissing}, resume: position{35, -1}, from: fromSnapshots},
		},
		"no offset, snapshots of other programs": {
			change: func(f *takeoverFacts) { f.committed, f.scanned = none, seen(-1, -1) },
			want:   want{found: []Mismatch{OffsetMissing}, resume: position{-1, -1}, from: fromPolicy},
		},
		"no offset, to fail": {
			change:  func(f *takeoverFacts) { f.committed, f.scanned = none, seen(35, 38) },
			choices: map[Mismatch]Choice{OffsetMissing: Fail},
			want:    want{found: []Mismatch{OffsetMissing}, fails: true},
		},
		"no offset, to be accepted": {
			change:  func(f *takeoverFacts) { f.committed, f.scanned = none, seen(35, 38) },
			choices: map[Mismatch]Choice{OffsetMissing: Accept},
			want:    want{found: []Mismatch{OffsetMissing}, resume: position{-1, -1}, from: fromPolicy},
		},
		"no offset, to be rebuilt": {
			change:  func(f *takeoverFacts) { f.committed, f.scanned = none, seen(35, 38) },
			choices: map[Mismatch]Choice{OffsetMissing: Rebuild},
			want:    want{found: []Mismatch{OffsetMissing}, resume: position{10, -1}, from: fromStart, rebuild: true},
		},
		"no offset, and the safe one is deleted": {
			change: func(f *takeoverFacts) { f.committed, f.scanned = none, seen(5, 8) },
			want:   want{found: []Mismatch{OffsetMissing, OffsetBelowInput}, fails: true},
		},
		"no offset, and snapshots of another input topic": {
			change: func(f *takeoverFacts) { f.committed, f.scanned, f.inputID = none, seen(35, 38), "there" },
			want:   want{found: []Mismatch{OffsetMissing, InputRecreated}, fails: true},
		},

		"another program's offset, unread snapshots": {change: func(f *takeoverFacts) { f.committed = foreign(40) }, want: want{scan: true}},
		"another program's offset, no snapshots": {
			change: func(f *takeoverFacts) { f.committed, f.snapshots = foreign(40), span{} },
			want:   want{found: []Mismatch{OffsetBehind}, resume: position{40, -1}, from: fromCommit},
		},
		"reset forward by one": {
			change: func(f *takeoverFacts) { f.committed, f.scanned = foreign(36), seen(35, 38) },
			want:   want{found: []Mismatch{OffsetAhead}, fails: true},
		},
		"reset forward, and accepted": {
			change:  func(f *takeoverFacts) { f.committed, f.scanned = foreign(50), seen(35, 38) },
			choices: map[Mismatch]Choice{OffsetAhead: Accept},
			want:    want{found: []Mismatch{OffsetAhead}, resume: position{50, -1}, from: fromCommit},
		},
		"reset forward, to be resumed": {
			change:  func(f *takeoverFacts) { f.committed, f.scanned = foreign(50), seen(35, 38) },
			choices: map[Mismatch]Choice{OffsetAhead: Resume},
			want:    want{found: []Mismatch{OffsetAhead}, resume: position{35, -1}, from: fromSnapshots},
		},
		"reset to where it was": {
			change: func(f *takeoverFacts) { f.committed, f.scanned = foreign(35), seen(35, 38) },
			want:   want{found: []Mismatch{OffsetBehind}, resume: position{35, -1}, from: fromCommit},
		},
		"reset back below the log": {
			change: func(f *takeoverFacts) { f.committed, f.scanned = foreign(3), seen(35, 38) },
			want:   want{found: []Mismatch{OffsetBehind, OffsetBelowInput}, fails: true},
		},

		"retention has passed the offset": {
			change: func(f *takeoverFacts) { f.inputLog = span{41, 60} },
			want:   want{found: []Mismatch{OffsetBelowInput}, fails: true},
		},
		"retention has passed the offset, and that is accepted": {
			change:  func(f *takeoverFacts) { f.inputLog = span{41, 60} },
			choices: map[Mismatch]Choice{OffsetBelowInput: Accept},
			want:    want{found: []Mismatch{OffsetBelowInput}, resume: position{41, -1}, from: fromCommit},
		},
		"the input ends below the offset": {
			change: func(f *takeoverFacts) { f.inputLog = span{0, 39} },
			want:   want{found: []Mismatch{OffsetAboveInput}, fails: true},
		},
		"the input ends below the offset, to be rebuilt": {
			change:  func(f *takeoverFacts) { f.inputLog = span{5, 39} },
			choices: map[Mismatch]Choice{OffsetAboveInput: Rebuild},
			want:    want{found: []Mismatch{OffsetAboveInput}, resume: position{5, -1}, from: fromStart, rebuild: true},
		},
		"the input was made anew": {
			change: func(f *takeoverFacts) { f.inputID = "there" },
			want:   want{found: []Mismatch{InputRecreated}, fails: true},
		},
		"the input was made anew, to be rebuilt, and ends early": {
			change:  func(f *takeoverFacts) { f.inputID, f.inputLog = "there", span{0, 3} },
			choices: map[Mismatch]Choice{InputRecreated: Rebuild},
			want:    want{found: []Mismatch{InputRecreated}, resume: position{0, -1}, from: fromStart, rebuild: true},
		},

		"snapshots are missing": {
			change: func(f *takeoverFacts) { f.snapshots.end = 99 },
			want:   want{found: []Mismatch{SnapshotsTruncated}, fails: true},
		},
		"snapshots are missing, to be resumed, unread": {
			change:  func(f *takeoverFacts) { f.snapshots.end = 99 },
			choices: map[Mismatch]Choice{SnapshotsTruncated: Resume},
			want:    want{scan: true},
		},
		"snapshots are missing, to be resumed": {
			change:  func(f *takeoverFacts) { f.snapshots.end, f.scanned = 99, seen(35, 38) },
			choices: map[Mismatch]Choice{SnapshotsTruncated: Resume},
			want:    want{found: []Mismatch{SnapshotsTruncated}, resume: position{35, -1}, from: fromSnapshots},
		},
		"all snapshots are missing, to be resumed": {
			change:  func(f *takeoverFacts) { f.snapshots = span{} },
			choices: map[Mismatch]Choice{SnapshotsTruncated: Resume},
			want:    want{found: []Mismatch{SnapshotsTruncated}, resume: position{10, -1}, from: fromStart},
		},
		"more snapshots than vouched for": {
			change: func(f *takeoverFacts) { f.snapshots.end = 200 },
			want:   want{resume: committed, from: fromCommit},
		},
		"the snapshots were wiped": {
			change: func(f *takeoverFacts) { f.snapshots = span{100, 100} },
			want:   want{found: []Mismatch{SnapshotsEmptied}, fails: true},
		},
		"there never were any snapshots": {
			change: func(f *takeoverFacts) {
				f.snapshots, f.committed = span{}, ours(format.Metadata{End: 0, Input: "here"})
			},
			want: want{resume: committed, from: fromCommit},
		},

		"a source beyond the input": {
			change: func(f *takeoverFacts) { f.scanned = seen(35, 60) },
			want:   want{found: []Mismatch{SourceAboveInput}, fails: true},
		},
		"the source is the input's last": {
			change: func(f *takeoverFacts) { f.scanned = seen(35, 59) },
			want:   want{resume: committed, from: fromCommit},
		},
		"a source of 0 proves nothing": {
			change: func(f *takeoverFacts) { f.inputLog, f.committed.Offset, f.scanned = span{}, 0, seen(0, 0) },
			want:   want{resume: position{0, 7}, from: fromCommit},
		},
		"a source beyond the input is looked for, to rebuild": {
			choices: map[Mismatch]Choice{SourceAboveInput: Rebuild},
			want:    want{scan: true},
		},
		"the most careful choice counts": {
			change:  func(f *takeoverFacts) { f.inputID, f.snapshots.end, f.scanned = "there", 99, seen(35, 70) },
			choices: map[Mismatch]Choice{InputRecreated: Accept, SnapshotsTruncated: Resume, SourceAboveInput: Rebuild},
			want:    want{found: []Mismatch{InputRecreated, SnapshotsTruncated, SourceAboveInput}, resume: position{10, -1}, from: fromStart, rebuild: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := agreeing()
			if c.change != nil {
				c.change(&f)
			}
			cfg := config{}
			for m, choice := range c.choices {
				require.Contains(t, mismatches[m].choices, choice)
				cfg.onMismatch = append(cfg.onMismatch, mismatchChoice{m, choice})
			}
			got := reconcile(f, cfg.choice)
			require.Equal(t, c.want.scan, got.needScan)
			var found []Mismatch
			for _, f := range got.findings {
				found = append(found, f.Mismatch)
				require.Equal(t, cfg.choice(f.Mismatch), f.choice)
				require.Equal(t, "orders", f.Topic)
				require.EqualValues(t, 3, f.Partition)
			}
			require.Equal(t, c.want.found, found)
			if c.want.fails {
				require.Error(t, got.err)
				return
			}
			require.NoError(t, got.err)
			if !c.want.scan {
				require.Equal(t, c.want.resume, got.resume)
				require.Equal(t, c.want.from, got.from)
				require.Equal(t, c.want.rebuild, got.rebuild)
			}
		})
	}
}

// A takeover that fails over several names all of them.
func TestAllMismatchesAreReportedTogether(t *testing.T) {
	f := agreeing()
	f.inputID, f.inputLog, f.snapshots.end = "there", span{0, 3}, 20
	err := reconcile(f, new(config).choice).err
	for _, m := range []Mismatch{InputRecreated, SnapshotsTruncated, OffsetAboveInput} {
		require.ErrorIs(t, err, m)
		require.ErrorContains(t, err, m.String())
	}
	require.ErrorIs(t, err, ErrInput)
}

func TestEachMismatchSaysItsChoices(t *testing.T) {
	for m := range mismatches {
		e := &MismatchError{Mismatch(m), Agreement{Topic: "orders", SnapshotTopic: "state", Partition: 4}}
		for _, c := range []Choice{Accept, Resume, Rebuild} {
			_, err := configOf(t, validOptions(t, OnMismatch(Mismatch(m), c))...)
			call := "OnMismatch(" + mismatches[m].name + ", " + c.String() + ")"
			if err == nil {
				require.ErrorContains(t, e, call)
			} else {
				require.NotContains(t, e.Error(), call)
				require.ErrorContains(t, err, call)
				require.ErrorContains(t, err, "are allowed")
			}
		}
	}
	_, err := configOf(t, validOptions(t, OnMismatch(99, Fail))...)
	require.ErrorContains(t, err, "OnMismatch(Mismatch(99), Fail)")
}

package persistence

import (
	"errors"

	"github.com/kafkafence/persistence/internal/format"
	"github.com/kafkafence/persistence/internal/wire"
)

// At a takeover the committed offset, the snapshots and the input log must agree.
// reconcile compares them and decides where to resume; the takeover looks up and
// carries out.
//
// Each disagreement has a name and a choice, and none passes in silence. Where
// several come together, the most careful choice counts: failing before
// rebuilding before resuming earlier before going on.
//
// What the snapshots account for is the highest committable offset in their
// headers: each is the offset that the snapshot's own transaction committed, so
// everything below it has its effect in the log up to there. To know it, all of
// the partition has to be read, which is done only where it decides something.

// takeoverFacts are what a takeover has looked up.
type takeoverFacts struct {
	stateless     bool // there is no snapshot topic
	input         string
	snapshotTopic string
	partition     int32

	committed wire.Committed
	inputID   string // as in the metadata
	inputLog  span
	snapshots span
	scanned   *scan // nil: the snapshots have not been read
}

func (f *takeoverFacts) agreement() Agreement {
	a := Agreement{Topic: f.input, SnapshotTopic: f.snapshotTopic, Partition: f.partition,
		Committed: f.committed.Offset, Metadata: f.committed.Metadata, InputStart: f.inputLog.start, InputEnd: f.inputLog.end,
		Start: f.snapshots.start, End: f.snapshots.end, VouchedEnd: noPosition, Committable: noPosition, Source: noPosition}
	if meta, ours := format.ParseMetadata(f.committed.Metadata); ours {
		a.VouchedEnd = meta.End
	}
	if f.scanned != nil {
		a.Committable, a.Source = f.scanned.committable, f.scanned.source
	}
	return a
}

// span is a log's offsets, from start to before end.
type span struct{ start, end int64 }

func (s span) empty() bool { return s.start >= s.end }

// scan is what reading all snapshots gave.
type scan struct {
	records     int64
	committable int64 // noPosition: none has the header
	source      int64 // noPosition: none has the header
	inputID     string
}

// plan is what a takeover is to do.
type plan struct {
	needScan bool // read the snapshots and ask again
	findings []finding
	resume   position // noPosition: as the start policy says
	from     string   // where resume is from
	rebuild  bool
	err      error
}

type finding struct {
	*MismatchError
	choice Choice
}

func reconcile(f takeoverFacts, choice func(Mismatch) Choice) plan {
	p := plan{resume: position{f.committed.Offset, f.committed.Epoch}, from: fromCommit}
	meta, ours := format.ParseMetadata(f.committed.Metadata)
	found := f.agreement()
	report := func(m Mismatch) Choice {
		p.findings = append(p.findings, finding{&MismatchError{m, found}, choice(m)})
		return choice(m)
	}
	other := func(id string) bool { return id != "" && f.inputID != "" && id != f.inputID }
	has := func(c Choice) bool {
		for _, f := range p.findings {
			if f.choice == c {
				return true
			}
		}
		return false
	}

	switch {
	case f.stateless:
		if other(meta.Input) {
			report(InputRecreated)
		}
	case f.committed.Offset < 0:
		if f.snapshots.empty() {
			break
		}
		if f.scanned == nil {
			return plan{needScan: true}
		}
		if f.scanned.records > 0 {
			report(OffsetMissing)
		}
		if other(f.scanned.inputID) { // the offsets of a topic go with it
			report(InputRecreated)
		}
	case !ours:
		if f.scanned == nil && !f.snapshots.empty() {
			return plan{needScan: true}
		}
		if f.committed.Offset > found.Committable && found.Committable >= 0 {
			report(OffsetAhead)
		} else {
			report(OffsetBehind)
		}
	default:
		if other(meta.Input) {
			report(InputRecreated)
		}
		if f.snapshots.end < meta.End {
			report(SnapshotsTruncated)
		} else if f.snapshots.empty() && meta.End > 0 {
			report(SnapshotsEmptied)
		}
	}
	if (choice(SourceAboveInput) == Rebuild || has(Resume)) && f.scanned == nil && !f.snapshots.empty() {
		return plan{needScan: true}
	}
	if f.scanned != nil && f.scanned.source > 0 && f.scanned.source >= f.inputLog.end {
		report(SourceAboveInput)
	}

	switch {
	case has(Resume) && found.Committable >= 0:
		p.resume, p.from = position{found.Committable, noEpoch}, fromSnapshots
	case has(Resume) && ours: // nothing that is left accounts for any event
		p.resume, p.from = position{f.inputLog.start, noEpoch}, fromStart
	}
	if f.committed.Offset < 0 && p.from == fromCommit {
		p.resume, p.from = position{noPosition, noEpoch}, fromPolicy
	}
	if !has(Rebuild) && p.resume.offset >= 0 {
		found.Committed = p.resume.offset
		switch {
		case p.resume.offset < f.inputLog.start:
			if report(OffsetBelowInput) == Accept {
				p.resume = position{f.inputLog.start, noEpoch}
			}
		case p.resume.offset > f.inputLog.end:
			report(OffsetAboveInput)
		}
	}
	if has(Rebuild) {
		p.rebuild, p.resume, p.from = true, position{f.inputLog.start, noEpoch}, fromStart
	}
	var failures []error
	for _, f := range p.findings {
		if f.choice == Fail {
			failures = append(failures, f.MismatchError)
		}
	}
	p.err = errors.Join(failures...)
	return p
}

// What TakeoverInfo.ResumeFrom says.
const (
	fromCommit    = "committed"
	fromSnapshots = "snapshots"
	fromPolicy    = "start policy"
	fromStart     = "input start"
)

package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

var redriveCommand = command{
	name:    "redrive",
	summary: "write dead letters back to the topics that their events came from",
	about: `Replays the dead letters that flow.DeadLetters wrote, up to the topic's end at the
start: each event goes back to the topic and partition that it came from, with its
key, value, headers and timestamp, and without the headers that say why it failed.
Whether the run is killed, or the command is run again, each letter is replayed once:
its event and how far the redrive has come are in one transaction. A letter whose
event fails again comes after the end, and is for the next run.

The group remembers how far it has come. Letters that --match passes over are behind
it then: name another --group, which begins with the first letter that is left, to
come back to them. If no letter is to be replayed, nothing is changed. The brokers
forget a group that nobody is in after offsets.retention.minutes, 7 days by default:
letters that are older than that and still there are replayed again then, so look with
--dry-run first. A second run in a group takes over from the first, which ends with an
error. A run that --timeout or an interrupt ends is to be run again, and goes on.

All letters are looked at first. If one has missing or malformed headers, or its
topic or partition is not there any more, nothing is written, and the exit status is
1. --dry-run looks too, shows the letters, and changes nothing.

A replayed event is a new one to the service: it has a new offset, and is folded
although newer events of its key were. The order between them is lost. The timestamp
is the old one, by which the topic's retention counts.

ACLs: Read and Describe on the dead letters' topic, Read on the group, Write and
Describe on TransactionalId PREFIX-snapshot-*, and on the topics written to.`,
	needs: []string{"topic"},
	takes: []string{"to", "match", "max", "skip-malformed", "dry-run", "key-format", "group", "prefix"},
	usages: map[string]string{
		"group":  "the redrive's own consumer group, not the service's (TOPIC-redrive)",
		"prefix": "the redrive's own TransactionalIDPrefix, not the service's (GROUP)",
	},
	run: redrive,
}

// redriveSettings are the subcommand's own.
type redriveSettings struct {
	topic         string
	match         string // empty: all
	to            string // empty: where each event came from
	max           int    // 0: all
	skipMalformed bool
	dryRun        bool
}

// target is where a letter's event goes.
func (s *redriveSettings) target(l letter) place {
	return place{cmp.Or(s.to, l.from.topic), l.from.partition}
}

func (s *redriveSettings) wants(l letter) bool { return strings.Contains(l.why, s.match) }

// tally is what became of letters.
type tally struct {
	replayed  map[place]int // by where to
	passed    int           // not wanted
	malformed int           // passed over, as --skip-malformed says
}

func newTally() tally { return tally{replayed: make(map[place]int)} }

func (t *tally) add(o tally) {
	for to, n := range o.replayed {
		t.replayed[to] += n
	}
	t.passed += o.passed
	t.malformed += o.malformed
}

func (t *tally) total() (n int) {
	for _, at := range t.replayed {
		n += at
	}
	return n
}

// placeRow is how many events went to a partition.
type placeRow struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Replayed  int    `json:"replayed"`
}

// redriveTotal ends the output. With DryRun, it is what a run would do.
type redriveTotal struct {
	Total      bool   `json:"total"`
	DryRun     bool   `json:"dry_run"`
	Group      string `json:"group"`
	Replayed   int    `json:"replayed"`
	PassedOver int    `json:"passed_over"`
	Malformed  int    `json:"malformed"`
}

// letterRow is a letter that would be replayed.
type letterRow struct {
	Partition         int32     `json:"partition"`
	Offset            int64     `json:"offset"`
	Key               string    `json:"key"`
	OriginalTopic     string    `json:"original_topic"`
	OriginalPartition int32     `json:"original_partition"`
	OriginalOffset    int64     `json:"original_offset"`
	OriginalTime      time.Time `json:"original_time"`
	To                string    `json:"to"`
	Attempts          int       `json:"attempts"` // 0: it does not say
	Why               string    `json:"why"`
}

func redrive(ctx context.Context, s *session) error {
	s.group = cmp.Or(s.group, s.redrive.topic+"-redrive")
	s.prefix = cmp.Or(s.prefix, s.group)
	if s.redrive.to == s.redrive.topic {
		return &usageError{fmt.Errorf("--to %q: it is the topic of the dead letters; only another one is allowed", s.redrive.to)}
	}
	t, partitions, err := s.partitionsOf(ctx, s.redrive.topic)
	if err != nil {
		return err
	}
	if s.redrive.dryRun {
		s.out.head("PARTITION", "OFFSET", "KEY", "ORIGINAL TOPIC", "PARTITION", "OFFSET", "TIME", "TO", "ATTEMPTS", "WHY")
	}
	p, err := s.plan(ctx, t, partitions)
	if err != nil {
		return err
	}
	if s.redrive.dryRun {
		s.tellTotal(p.tally, "would be replayed")
		return nil
	}
	if p.tally.total() == 0 {
		s.tellTotal(p.tally, "replayed")
		s.note("there is nothing to replay, so the group stays where it is")
		return nil
	}
	done, err := s.replay(ctx, p)
	s.out.head("TOPIC", "PARTITION", "REPLAYED")
	for _, to := range slices.SortedFunc(maps.Keys(done.replayed), comparePlaces) {
		s.out.row(placeRow{to.topic, to.partition, done.replayed[to]}, to.topic, to.partition, done.replayed[to])
	}
	s.tellTotal(done, "replayed")
	if err != nil {
		return fmt.Errorf("not all was replayed; run it again to go on: %w", err)
	}
	return nil
}

func comparePlaces(a, b place) int {
	return cmp.Or(strings.Compare(a.topic, b.topic), cmp.Compare(a.partition, b.partition))
}

func (s *session) tellTotal(t tally, verb string) {
	row := redriveTotal{Total: true, DryRun: s.redrive.dryRun, Group: s.group, Replayed: t.total(), PassedOver: t.passed, Malformed: t.malformed}
	s.out.line(row, "%d %s, %d passed over, %d malformed", row.Replayed, verb, row.PassedOver, row.Malformed)
}

// show writes a letter's row for --dry-run. Only the first line of why it failed
// fits a table: what follows is a panic's stack.
func (s *session) show(l letter) {
	to := s.redrive.target(l)
	row := letterRow{Partition: l.Partition, Offset: l.Offset, Key: s.keyFormat.show(l.Key), OriginalTopic: l.from.topic, OriginalPartition: l.from.partition,
		OriginalOffset: l.offset, OriginalTime: l.at, To: to.topic, Attempts: l.attempts, Why: l.why}
	attempts := "-"
	if l.attempts > 0 {
		attempts = strconv.Itoa(l.attempts)
	}
	why, _, _ := strings.Cut(l.why, "\n")
	s.out.row(row, row.Partition, row.Offset, row.Key, row.OriginalTopic, row.OriginalPartition, row.OriginalOffset, instant(l.at), row.To, attempts, showText([]byte(why)))
}

// unfit tells why letters cannot be replayed, the first few of them.
func (s *session) unfit(faults []error) error {
	const few = 10
	for _, err := range faults[:min(few, len(faults))] {
		s.note("%v", err)
	}
	if len(faults) > few {
		s.note("and %d more", len(faults)-few)
	}
	s.note("nothing was replayed")
	return errWrong
}

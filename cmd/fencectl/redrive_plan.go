package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A redrive reads the letters twice: first to find out which there are and whether
// each can be replayed, then to replay them. What it has found out bounds the
// second reading: letters that come meanwhile, such as those of events that were
// replayed and failed again, are for another run.
//
// The committed offset that the plan begins with may be behind: a transaction of
// a run that was killed may still be about to commit. The replay begins where the
// library says, and skips what the plan has and is done.

// redrivePlan is what is to be done.
type redrivePlan struct {
	last  map[int32]int64 // each partition's last letter; none: there is nothing to do
	tally tally           // what there is to replay and to pass over
}

// plan looks at the letters, and refuses what cannot be replayed before anything
// is written.
func (s *session) plan(ctx context.Context, t kadm.TopicDetail, partitions []int32) (redrivePlan, error) {
	p := redrivePlan{last: make(map[int32]int64), tally: newTally()}
	committed, err := s.progress(ctx)
	if err != nil {
		return p, err
	}
	if len(committed[s.redrive.topic]) == 0 {
		s.note("group %s has no offsets of topic %s, so it begins with the first letter that is left; if it has run before, they have expired (offsets.retention.minutes), and it would replay the letters again",
			s.group, s.redrive.topic)
	}
	var faults []error
	first := make(map[place]letter) // that goes there
	for _, id := range partitions {
		if s.redrive.max > 0 && p.tally.total() == s.redrive.max {
			break
		}
		from := int64(0)
		if o, ok := committed.Lookup(s.redrive.topic, id); ok {
			from = max(o.At, 0)
		}
		err := s.readCommittedFrom(ctx, t, id, from, func(r *kgo.Record) (more bool) {
			l, err := parseLetter(r)
			switch {
			case err != nil && s.redrive.skipMalformed:
				p.tally.malformed++
			case err != nil:
				faults = append(faults, fmt.Errorf("record %d of partition %d of %s is no dead letter: %s; --skip-malformed passes over such records",
					r.Offset, id, r.Topic, strings.ReplaceAll(err.Error(), "\n", ", ")))
			case !s.redrive.wants(l):
				p.tally.passed++
			default:
				to := s.redrive.target(l)
				if p.tally.replayed[to]++; p.tally.replayed[to] == 1 {
					first[to] = l
				}
				if s.redrive.dryRun {
					s.show(l)
				}
			}
			p.last[id] = r.Offset
			return s.redrive.max == 0 || p.tally.total() < s.redrive.max
		})
		if err != nil {
			return p, err
		}
	}
	missing, err := s.checkTargets(ctx, first)
	if err != nil {
		return p, err
	}
	if faults = append(faults, missing...); len(faults) > 0 {
		return p, s.unfit(faults)
	}
	return p, nil
}

// progress is how far the group has come. A group that has offsets of another topic
// is a service's, and is refused.
func (s *session) progress(ctx context.Context) (kadm.OffsetResponses, error) {
	committed, err := s.adm.FetchOffsets(ctx, s.group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("the offsets of group %s: %w", s.group, err)
	}
	for topic := range committed {
		if topic != s.redrive.topic {
			return nil, &usageError{fmt.Errorf("--group %q: it has offsets of topic %s too, so it is not a redrive's own; leave --group out, or name one that nobody else uses", s.group, topic)}
		}
	}
	return committed, nil
}

// checkTargets finds places that events are to go to and that are not there.
func (s *session) checkTargets(ctx context.Context, first map[place]letter) (faults []error, err error) {
	topics := make(map[string]int) // partitions of each, 0 if it does not exist
	for _, to := range slices.SortedFunc(maps.Keys(first), comparePlaces) {
		n, known := topics[to.topic]
		if !known {
			t, err := s.topic(ctx, to.topic)
			if err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
				return nil, err
			}
			n = len(t.Partitions)
			topics[to.topic] = n
		}
		l := first[to]
		switch {
		case n == 0:
			faults = append(faults, fmt.Errorf("letter %d of partition %d of %s goes to topic %s, which does not exist: create it, or name another with --to",
				l.Offset, l.Partition, l.Topic, to.topic))
		case int(to.partition) >= n:
			faults = append(faults, fmt.Errorf("letter %d of partition %d of %s goes to partition %d of topic %s, which has only 0 to %d: add partitions, or name another topic with --to",
				l.Offset, l.Partition, l.Topic, to.partition, to.topic, n-1))
		}
	}
	return faults, nil
}

package persistence

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Stage is how far a member has come with a partition.
type Stage int

const (
	// StageTakeover: it was assigned, and is being taken over.
	StageTakeover Stage = iota
	// StageRecovery: the handler is running, and has not asked for events yet:
	// it recovers.
	StageRecovery
	// StageServing: the handler polls.
	StageServing
	// StageLeaving: it is being given up.
	StageLeaving
	// StageRefused: it is assigned, and was not taken over; Err says why.
	StageRefused
)

var stages = [...]string{"takeover", "recovery", "serving", "leaving", "refused"}

func (s Stage) String() string {
	if s < 0 || int(s) >= len(stages) {
		return fmt.Sprintf("Stage(%d)", int(s))
	}
	return stages[s]
}

// MarshalText makes a Stage readable in JSON.
func (s Stage) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Health is the state of a member, for readiness and liveness endpoints. It is
// read without asking Kafka.
type Health struct {
	Joined     bool              // a live member of the group, and not stopping
	Partitions []PartitionHealth // those assigned to it, in order
	Err        error             // why Run ended, or is ending; nil while it runs, and after Close
}

// PartitionHealth is the state of one assigned partition.
type PartitionHealth struct {
	Partition int32
	Stage     Stage
	Recovery  *RecoveryInfo // the present or last recovery; nil if none began
	Err       error         // why it was refused, or its recovery failed, or that its handler is stuck
}

// Health returns the member's present state. It does not block.
func (m *Module) Health() Health {
	member := m.member()
	m.mu.Lock()
	h := Health{Joined: joined(member) && !m.mu.stopping, Err: m.mu.failed}
	for id, err := range m.mu.refused {
		h.Partitions = append(h.Partitions, PartitionHealth{Partition: id, Stage: StageRefused, Err: err})
	}
	for _, p := range m.mu.partitions {
		h.Partitions = append(h.Partitions, p.health())
	}
	m.mu.Unlock()
	slices.SortFunc(h.Partitions, func(a, b PartitionHealth) int { return cmp.Compare(a.Partition, b.Partition) })
	return h
}

func (p *Partition) health() PartitionHealth {
	h := PartitionHealth{Partition: p.id, Recovery: p.recovery.Load()}
	if h.Recovery != nil {
		h.Err = h.Recovery.Err
	}
	if e := p.stuck.Load(); e != nil {
		h.Err = e
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.mu.state == revoking || p.mu.state == dead:
		h.Stage = StageLeaving
	case p.mu.polled:
		h.Stage = StageServing
	case p.mu.state == owned:
		h.Stage = StageRecovery
	}
	return h
}

// Ready is nil when the member has joined and serves everything that is assigned
// to it, which may be nothing. Else it says what is missing.
func (h Health) Ready() error {
	switch {
	case h.Err != nil:
		return h.Err
	case !h.Joined:
		return errors.New("not a member of the group yet")
	}
	var missing []error
	for _, p := range h.Partitions {
		switch r := p.Recovery; {
		case p.Stage == StageServing:
		case p.Err != nil:
			missing = append(missing, fmt.Errorf("partition %d: %v: %w", p.Partition, p.Stage, p.Err))
		case p.Stage == StageRecovery && r != nil && r.Target >= 0:
			missing = append(missing, fmt.Errorf("partition %d: %v: at offset %d of %d, %d snapshots", p.Partition, p.Stage, r.Position, r.Target, r.Records))
		default:
			missing = append(missing, fmt.Errorf("partition %d: %v", p.Partition, p.Stage))
		}
	}
	return errors.Join(missing...)
}

// Alive is nil while the member can still come to serve by itself: not after Run
// ended with an error, and not while a partition's recovery has failed for
// want of progress or its handler is stuck (see HandlerTimeout). A recovery that
// goes on is alive.
func (h Health) Alive() error {
	if h.Err != nil {
		return h.Err
	}
	for _, p := range h.Partitions {
		stalled, stuck := (*RecoveryStalledError)(nil), (*HandlerStuckError)(nil)
		if errors.As(p.Err, &stalled) || errors.As(p.Err, &stuck) {
			return p.Err
		}
	}
	return nil
}

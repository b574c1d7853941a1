package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/kafkafence/persistence/examples/internal/stage"
)

// books is what a read_committed reader finds.
type books struct {
	asked         map[string]event // transfers, by id
	from          map[string]string
	opened        map[string]int // by account
	balances      map[string]int
	notifications []notification
	refused       []string // ids
}

func read(ctx context.Context, s *stage.Stage, l ledger) (books, error) {
	b := books{asked: make(map[string]event), from: make(map[string]string), opened: make(map[string]int), balances: make(map[string]int)}
	input, err := s.Read(ctx, l.input)
	if err != nil {
		return b, err
	}
	for _, r := range input {
		var e event
		if err := json.Unmarshal(r.Value, &e); err != nil {
			return b, err
		}
		switch e.Kind {
		case "open":
			b.opened[string(r.Key)] += e.Amount
		case "transfer":
			b.asked[e.ID], b.from[e.ID] = e, string(r.Key)
		}
	}
	told, err := s.Read(ctx, l.notifications)
	if err != nil {
		return b, err
	}
	for _, r := range told {
		var n notification
		if err := json.Unmarshal(r.Value, &n); err != nil {
			return b, err
		}
		b.notifications = append(b.notifications, n)
	}
	refused, err := s.Read(ctx, l.refused)
	if err != nil {
		return b, err
	}
	for _, r := range refused {
		var e event
		if err := json.Unmarshal(r.Value, &e); err != nil {
			return b, err
		}
		b.refused = append(b.refused, e.ID)
	}
	states, err := s.States(ctx, l.snapshots)
	if err != nil {
		return b, err
	}
	for key, text := range states {
		var a account
		if err := json.Unmarshal(text, &a); err != nil {
			return b, err
		}
		b.balances[key] = a.Balance
	}
	return b, nil
}

// audit checks the books: every transfer was either carried out, with one
// notification on each side, or refused once, and the balances are what follows
// from that.
func (b books) audit(money, transfers int) error {
	if len(b.asked) != transfers {
		return fmt.Errorf("%d transfers were asked for, and %d are in the input", transfers, len(b.asked))
	}
	paid, received, refused := make(map[string]int), make(map[string]int), make(map[string]int)
	balances := maps.Clone(b.opened)
	for _, n := range b.notifications {
		if n.Amount < 0 {
			paid[n.ID]++
		} else {
			received[n.ID]++
		}
		balances[n.Account] += n.Amount
	}
	for _, id := range b.refused {
		refused[id]++
	}
	for _, id := range slices.Sorted(maps.Keys(b.asked)) {
		carriedOut := paid[id] == 1 && received[id] == 1 && refused[id] == 0
		wasRefused := paid[id] == 0 && received[id] == 0 && refused[id] == 1
		if !carriedOut && !wasRefused {
			return fmt.Errorf("transfer %s of %d from %s to %s was paid %d times, received %d times and refused %d times",
				id, b.asked[id].Amount, b.from[id], b.asked[id].To, paid[id], received[id], refused[id])
		}
	}
	sum := 0
	for _, key := range slices.Sorted(maps.Keys(balances)) {
		have, ok := b.balances[key]
		switch {
		case !ok:
			return fmt.Errorf("%s has no state", key)
		case have != balances[key]:
			return fmt.Errorf("%s has %d, and its notifications make it %d", key, have, balances[key])
		case have < 0:
			return fmt.Errorf("%s is overdrawn: %d", key, have)
		}
		sum += have
	}
	if sum != money || len(b.balances) != len(balances) {
		return fmt.Errorf("the %d accounts have %d together, instead of %d accounts with %d", len(b.balances), sum, len(balances), money)
	}
	return nil
}

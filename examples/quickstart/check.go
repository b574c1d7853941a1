package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kafkafence/persistence"
)

// readBack is a fresh owner of all partitions, in the same group: it reads what
// the next owner after a restart would find.
func (s *story) readBack(ctx context.Context, ends []int64) (accounts map[string]*account, err error) {
	module, err := persistence.New(append(s.options(), persistence.WithTrace(s.board.trace("the reader")))...)
	if err != nil {
		return nil, err
	}
	type part struct {
		id       int32
		resume   int64
		accounts map[string]*account
	}
	parts := make(chan part, 2*len(ends))
	ran := make(chan error, 1)
	go func() {
		ran <- module.Run(ctx, func(ctx context.Context, p *persistence.Partition) error {
			accounts := make(map[string]*account)
			_, err := p.Recover(ctx,
				func(s persistence.Snapshot) error { return load(accounts, s) },
				func() { clear(accounts) })
			if err != nil {
				return err
			}
			parts <- part{p.ID(), p.Resume(), accounts}
			for { // until it is closed
				if _, err := p.Poll(ctx); err != nil {
					return err
				}
			}
		})
	}()
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err = errors.Join(err, module.Close(closing))
	}()

	accounts = make(map[string]*account)
	for range ends {
		select {
		case p := <-parts:
			if end := ends[p.id]; p.resume != end {
				return nil, fmt.Errorf("partition %d resumes at %d, but its input ends at %d and all of it was persisted", p.id, p.resume, end)
			}
			for key, a := range p.accounts {
				if accounts[key] != nil {
					return nil, fmt.Errorf("%s has snapshots in two partitions", key)
				}
				accounts[key] = a
			}
		case err := <-ran:
			return nil, errors.Join(errors.New("reading back ended early"), err)
		case <-ctx.Done():
			return nil, fmt.Errorf("while reading back: %w", context.Cause(ctx))
		}
	}
	s.say("read back %d keys in a fresh recovery", len(accounts))
	return accounts, nil
}

// verdict is what became of the events.
type verdict struct {
	keys       int
	lost       int64
	duplicated int64
	wrong      string // the first account that is not as it must be
}

// compare holds the accounts against the ledger.
func compare(ledger map[string]entry, accounts map[string]*account) verdict {
	v := verdict{keys: len(accounts)}
	var wrong []string
	for key, must := range ledger {
		a := accounts[key]
		if a == nil {
			a = newAccount()
		}
		v.lost += a.Lost + must.events - a.Last
		v.duplicated += a.Duplicated
		if a.Balance != must.balance || a.Events != must.events || a.Last != must.events || a.Lost > 0 || a.Duplicated > 0 {
			wrong = append(wrong, fmt.Sprintf("%s is %+v, but must have %d events and a balance of %d", key, *a, must.events, must.balance))
		}
	}
	for key, a := range accounts {
		if _, ok := ledger[key]; !ok {
			wrong = append(wrong, fmt.Sprintf("%s is %+v, but must not be there", key, *a))
		}
	}
	if slices.Sort(wrong); len(wrong) > 0 {
		v.wrong = fmt.Sprintf("%d accounts are wrong, such as: %s", len(wrong), wrong[0])
	}
	return v
}

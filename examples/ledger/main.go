// Ledger keeps accounts with a flow: transfers with balances, overdrafts refused to
// a dead-letter topic, and a notification for each payment. Two members share the
// work, and one of them is cut off in the middle of it. In the end it is audited:
// money was neither made nor lost, and each notification is there once.
//
// The service is in account.go, and the audit in audit.go.
package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/examples/internal/stage"
)

const about = `Transfers money between accounts while one of two members is cut off, and audits
the books in the end. Takes some seconds in this process, and up to 20 s on a real
cluster, whose topics it deletes afterwards.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends the program at once
	os.Exit(stage.Run(ctx, "ledger", about, os.Args[1:], os.Stdout, os.Stderr, tell))
}

const (
	accounts  = 50
	opening   = 1_000
	transfers = 3_000
)

func tell(ctx context.Context, s *stage.Stage) (string, error) {
	topics, err := s.Topics(ctx, "ledger", "ledger-notifications", "ledger-refused")
	if err != nil {
		return "", err
	}
	l := ledger{input: topics[0], snapshots: s.Topic("ledger-accounts"), notifications: topics[1], refused: topics[2]}
	group := s.Group("ledger")

	a := s.Start(ctx, "A", group, l.input, l.run)
	b := s.Start(ctx, "B", group, l.input, l.run)
	if err := b.Own(ctx); err != nil {
		return "", err
	}
	s.Say("%d accounts are opened, with %d each", accounts, opening)
	for i := range accounts {
		if err := s.Produce(ctx, record(l.input, name(i), event{ID: fmt.Sprint("o", i), Kind: "open", Amount: opening})); err != nil {
			return "", err
		}
	}
	if err := s.Settle(ctx, group, l.input, a, b); err != nil {
		return "", err
	}

	s.Say("%d transfers are asked for", transfers)
	rng := rand.New(rand.NewPCG(1, 1))
	var batch []*kgo.Record
	for i := range transfers {
		from, to := rng.IntN(accounts), rng.IntN(accounts)
		batch = append(batch, record(l.input, name(from), event{ID: fmt.Sprint("t", i), Kind: "transfer", Amount: 1 + rng.IntN(200), To: name(to)}))
		if len(batch) == 100 {
			if err := s.Produce(ctx, batch...); err != nil {
				return "", err
			}
			batch = nil
		}
		if i == transfers/2 {
			b.CutOff()
		}
	}
	c := s.Start(ctx, "C", group, l.input, l.run)
	if err := s.Settle(ctx, group, l.input, a, c); err != nil {
		return "", err
	}
	s.Say("all is processed")
	if err := a.Stop(); err != nil {
		return "", err
	}
	if err := c.Stop(); err != nil {
		return "", err
	}
	b.Bury()

	books, err := read(ctx, s, l)
	if err != nil {
		return "", err
	}
	if err := books.audit(accounts*opening, transfers); err != nil {
		return "", err
	}
	return fmt.Sprintf("accounts=%d money=%d transfers=%d refused=%d notifications=%d lost=0 duplicated=0",
		len(books.balances), accounts*opening, transfers, len(books.refused), len(books.notifications)), nil
}

func name(i int) string { return fmt.Sprintf("account-%02d", i) }

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/flow"
)

// The service: accounts, and transfers between them.
//
// A transfer touches two accounts, which may be in different partitions, at different
// members. A fold has only its own key's state, so it takes the money from the sender
// and sends a command to the receiver, as an event of the same topic. Both are in one
// transaction: there is no moment at which money has left and is not on its way.

// event is on the input topic, under the key of the account that it is for.
type event struct {
	ID     string `json:"id"`
	Kind   string `json:"kind"` // open, transfer or credit
	Amount int    `json:"amount"`
	To     string `json:"to,omitempty"`   // of a transfer
	From   string `json:"from,omitempty"` // of a credit
}

// account is the state of a key.
type account struct {
	Balance int `json:"balance"`
}

// notification is what an account's owner is told.
type notification struct {
	ID      string `json:"id"` // of the transfer
	Account string `json:"account"`
	Amount  int    `json:"amount"` // negative: it was paid
}

var errOverdraft = errors.New("overdraft")

// ledger is the service's topics.
type ledger struct{ input, snapshots, notifications, refused string }

// fold is called with the events of an account, one after another.
func (l ledger) fold(_ context.Context, k *flow.Key[account], r *kgo.Record) error {
	var e event
	if err := json.Unmarshal(r.Value, &e); err != nil {
		return err // goes to the dead letters, as every error of a fold does here
	}
	switch e.Kind {
	case "open":
		k.State.Balance += e.Amount
	case "transfer":
		if e.Amount > k.State.Balance {
			return fmt.Errorf("%w: %d of %d", errOverdraft, e.Amount, k.State.Balance)
		}
		k.State.Balance -= e.Amount
		k.Emit(record(l.input, e.To, event{ID: e.ID, Kind: "credit", Amount: e.Amount, From: string(r.Key)}),
			record(l.notifications, string(r.Key), notification{e.ID, string(r.Key), -e.Amount}))
	case "credit":
		k.State.Balance += e.Amount
		k.Emit(record(l.notifications, string(r.Key), notification{e.ID, string(r.Key), e.Amount}))
	default:
		return fmt.Errorf("kind %q: open, transfer and credit are known", e.Kind)
	}
	return nil
}

// run runs one member of the service until ctx ends.
func (l ledger) run(ctx context.Context, opts ...persistence.Option) error {
	accounts, err := flow.New(flow.Spec[account]{
		Codec:  flow.JSON[account](1),
		Fold:   l.fold,
		Poison: flow.DeadLetters(l.refused),
	})
	if err != nil {
		return err
	}
	module, err := persistence.New(append(opts, persistence.SnapshotTopic(l.snapshots), persistence.CreateSnapshotTopic(-1, nil))...)
	if err != nil {
		return err
	}
	defer module.Close(context.Background())
	return accounts.Run(ctx, module)
}

func record(topic, key string, value any) *kgo.Record {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // these types can be marshalled
	}
	return &kgo.Record{Topic: topic, Key: []byte(key), Value: text}
}

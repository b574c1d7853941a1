package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/flow"
)

// The service: lines of text become orders in JSON, large ones in a topic of their
// own. It has no state, and so needs no snapshot topic.

// order is what becomes of a line like "17,ann,250".
type order struct {
	ID       int    `json:"id"`
	Customer string `json:"customer"`
	Amount   int    `json:"amount"`
}

// splitter is the service's topics.
type splitter struct{ input, orders, large, refused string }

func (s splitter) each(_ context.Context, line *kgo.Record) ([]*kgo.Record, error) {
	fields := strings.Split(string(line.Value), ",")
	if len(fields) != 3 {
		return nil, fmt.Errorf("%q: three fields are expected", line.Value)
	}
	id, err := strconv.Atoi(fields[0])
	if err != nil {
		return nil, fmt.Errorf("the id: %w", err)
	}
	amount, err := strconv.Atoi(fields[2])
	if err != nil {
		return nil, fmt.Errorf("the amount: %w", err)
	}
	text, err := json.Marshal(order{id, fields[1], amount})
	if err != nil {
		return nil, err
	}
	outputs := []*kgo.Record{{Topic: s.orders, Key: []byte(fields[1]), Value: text}}
	if amount >= 900 {
		outputs = append(outputs, &kgo.Record{Topic: s.large, Key: []byte(fields[1]), Value: text})
	}
	return outputs, nil
}

// run runs one member of the service until ctx ends.
func (s splitter) run(ctx context.Context, opts ...persistence.Option) error {
	t, err := flow.NewTransform(flow.Transform{Each: s.each, Poison: flow.DeadLetters(s.refused)})
	if err != nil {
		return err
	}
	module, err := persistence.New(append(opts, persistence.Stateless())...)
	if err != nil {
		return err
	}
	defer module.Close(context.Background())
	return t.Run(ctx, module)
}

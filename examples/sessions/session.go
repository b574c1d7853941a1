package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/flow"
)

// The service: a user's page views make up a session, which ends when there was none
// for a while. Then a summary is put out and the session is deleted.

// session is the state of a user who is here.
type session struct {
	Views int   `json:"views"`
	Since int64 `json:"since"` // offset of the first
}

// summary is what becomes of it.
type summary struct {
	User  string `json:"user"`
	Since int64  `json:"since"`
	Views int    `json:"views"`
}

// sessions is the service's topics and its patience.
type sessions struct {
	input, snapshots, summaries string
	idle                        time.Duration
}

const bot = "bot"

func (s sessions) fold(_ context.Context, k *flow.Key[session], view *kgo.Record) error {
	if !k.Exists() {
		k.State.Since = view.Offset
	}
	k.State.Views++
	if string(view.Value) == bot {
		// Nobody wants a summary of it: the key is deleted, and that is all.
		k.ExpireAt(time.Now().Add(s.idle))
		return nil
	}
	// Replaces the timer of the view before. It is kept with the state, so that it is
	// called by whoever owns the user then.
	k.SetTimer("idle", time.Now().Add(s.idle))
	return nil
}

func (s sessions) timer(_ context.Context, k *flow.Key[session], _ string) error {
	text, err := json.Marshal(summary{string(k.Key()), k.State.Since, k.State.Views})
	if err != nil {
		return err
	}
	k.Emit(&kgo.Record{Topic: s.summaries, Key: k.Key(), Value: text})
	k.Delete() // in the same transaction as the summary
	return nil
}

// run runs one member of the service until ctx ends.
func (s sessions) run(ctx context.Context, opts ...persistence.Option) error {
	f, err := flow.New(flow.Spec[session]{Codec: flow.JSON[session](1), Fold: s.fold, Timer: s.timer})
	if err != nil {
		return err
	}
	module, err := persistence.New(append(opts, persistence.SnapshotTopic(s.snapshots), persistence.CreateSnapshotTopic(-1, nil))...)
	if err != nil {
		return err
	}
	defer module.Close(context.Background())
	return f.Run(ctx, module)
}

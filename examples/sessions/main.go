// Sessions makes sessions of page views with a flow: a timer for each user ends the
// session when the user was idle for a while, and expiry deletes what nobody wants a
// summary of. The member that set the timers is stopped before they are due, and
// another one calls them.
//
// The service is in session.go.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/examples/internal/stage"
)

const about = `Makes sessions of page views, with timers that outlive the member that set them,
and checks that each view is in one summary. Takes some seconds.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends the program at once
	os.Exit(stage.Run(ctx, "sessions", about, os.Args[1:], os.Stdout, os.Stderr, tell))
}

const (
	users = 40
	views = 5 // of each user, in each of two sessions
)

func tell(ctx context.Context, s *stage.Stage) (string, error) {
	topics, err := s.Topics(ctx, "views", "summaries")
	if err != nil {
		return "", err
	}
	svc := sessions{input: topics[0], snapshots: s.Topic("sessions"), summaries: topics[1], idle: 1500 * time.Millisecond}
	group := s.Group("sessions")
	browse := func() error {
		var batch []*kgo.Record
		for range views {
			for u := range users {
				batch = append(batch, &kgo.Record{Topic: svc.input, Key: fmt.Append(nil, "user-", u), Value: []byte("/")})
			}
		}
		for b := range 3 {
			batch = append(batch, &kgo.Record{Topic: svc.input, Key: fmt.Append(nil, "bot-", b), Value: []byte(bot)})
		}
		return s.Produce(ctx, batch...)
	}

	a := s.Start(ctx, "A", group, svc.input, svc.run)
	s.Say("%d users and 3 bots browse", users)
	if err := browse(); err != nil {
		return "", err
	}
	if err := s.Settle(ctx, group, svc.input, a); err != nil {
		return "", err
	}
	if err := a.Stop(); err != nil { // with all timers set
		return "", err
	}
	open, err := s.States(ctx, svc.snapshots)
	if err != nil {
		return "", err
	}
	if len(open) == 0 {
		return "", fmt.Errorf("no session was open when A had stopped, so this run shows nothing: the machine is too slow for sessions of %v", svc.idle)
	}
	s.Say("%d sessions are open, with their timers in their snapshots", len(open))
	b := s.Start(ctx, "B", group, svc.input, svc.run)
	if err := awaitNobody(ctx, s, svc); err != nil {
		return "", err
	}
	s.Say("all sessions have ended, by timers that A set and B called; the users come back")
	if err := browse(); err != nil {
		return "", err
	}
	if err := s.Settle(ctx, group, svc.input, b); err != nil {
		return "", err
	}
	if err := awaitNobody(ctx, s, svc); err != nil {
		return "", err
	}
	s.Say("all sessions have ended again, and the bots have expired")
	if err := b.Stop(); err != nil {
		return "", err
	}

	all, err := summaries(ctx, s, svc)
	if err != nil {
		return "", err
	}
	if err := audit(all); err != nil {
		return "", err
	}
	return fmt.Sprintf("users=%d summaries=%d views=%d left=0 lost=0 duplicated=0", users, len(all), 2*users*views), nil
}

// awaitNobody waits until no session is left.
func awaitNobody(ctx context.Context, s *stage.Stage, svc sessions) error {
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		left, err := s.States(ctx, svc.snapshots)
		if err != nil || len(left) == 0 {
			return err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting until %d sessions end: %w", len(left), context.Cause(ctx))
		}
	}
}

func summaries(ctx context.Context, s *stage.Stage, svc sessions) (all []summary, err error) {
	records, err := s.Read(ctx, svc.summaries)
	for _, r := range records {
		var one summary
		if err := json.Unmarshal(r.Value, &one); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, err
}

// audit checks that each view of a user is in one summary, and each session in one.
// (How many sessions there are is for the clock to say: on a machine that stands
// still for long, a user was idle.)
func audit(all []summary) error {
	of := make(map[string]int)
	seen := make(map[summary]bool)
	for _, one := range all {
		of[one.User] += one.Views
		session := summary{User: one.User, Since: one.Since}
		if seen[session] {
			return fmt.Errorf("the session of %s since %d has two summaries", one.User, one.Since)
		}
		seen[session] = true
	}
	for u := range users {
		user := fmt.Sprint("user-", u)
		if of[user] != 2*views {
			return fmt.Errorf("the summaries of %s have %d views, instead of %d", user, of[user], 2*views)
		}
	}
	if len(of) != users {
		return fmt.Errorf("%d users have summaries, instead of %d", len(of), users)
	}
	return nil
}

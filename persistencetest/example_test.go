package persistencetest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/flow"
	"github.com/kafkafence/persistence/persistencetest"
)

// visits is a service: it counts the visits of each user.
func visits(ctx context.Context, opts ...persistence.Option) error {
	counter, err := flow.New(flow.Spec[int]{Codec: flow.JSON[int](1), Fold: func(_ context.Context, k *flow.Key[int], _ *kgo.Record) error {
		if k.State++; k.State%2 == 0 {
			k.Emit(&kgo.Record{Topic: "greetings", Key: k.Key(), Value: fmt.Appendf(nil, "visit %d", k.State)})
		}
		return nil
	}})
	if err != nil {
		return err
	}
	module, err := persistence.New(opts...)
	if err != nil {
		return err
	}
	defer module.Close(context.Background())
	return counter.Run(ctx, module)
}

// The whole test of a service.
func TestVisits(t *testing.T) {
	var events []*kgo.Record
	for _, user := range []string{"ann", "bob", "ann", "eve", "bob", "ann", "ann", "eve", "ann"} {
		events = append(events, &kgo.Record{Key: []byte(user)})
	}
	persistencetest.Check(t, persistencetest.Service{Run: visits, Events: events, Outputs: []string{"greetings"}})
}

// A story of one's own.
func TestTheCountGoesOnAfterACrash(t *testing.T) {
	persistencetest.Bubble(t, 1, func(c *persistencetest.Cluster) {
		c.CreateTopic("greetings")
		first := c.Start(visits)
		c.Produce(&kgo.Record{Key: []byte("ann")})
		c.Settle(first)
		first.Crash()
		second := c.Start(visits)
		c.Produce(&kgo.Record{Key: []byte("ann")})
		c.Settle(second)
		if got := c.State()["ann"]; got != "2" {
			t.Errorf("ann's count is %s", got)
		}
		if got := c.Read("greetings"); len(got) != 1 || string(got[0].Value) != "visit 2" {
			t.Errorf("the greetings are %v", got)
		}
		if err := second.Stop(); err != nil {
			t.Error(err)
		}
	})
}

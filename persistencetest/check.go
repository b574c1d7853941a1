package persistencetest

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Service is a service under test.
type Service struct {
	// Run runs one member of it. Required.
	Run Run
	// Events are its input, in order. At least six are required, so that something
	// can happen in their middle; the more transactions they make, the better.
	Events []*kgo.Record
	// Outputs are the topics that it writes to, dead letters included.
	Outputs []string
	// Partitions is how many the topics have; the default is 2.
	Partitions int32
	// Stateless is for a service that has no snapshots. The options have
	// persistence.Stateless then, and no snapshot topic.
	Stateless bool
	// Equal says whether two outputs are the same, where key and value do not.
	Equal func(a, b *kgo.Record) bool
}

// Check runs the service twice without faults, and then in each scenario, as
// subtests. In the end of each, every event must be committed, and state and
// outputs must be those of the runs without faults, each output once. Outputs are
// compared without regard to their order, since that of different keys is open.
func Check(t *testing.T, s Service) {
	t.Helper()
	want, ok := references(t, s)
	if !ok {
		return
	}
	for _, scenario := range Scenarios() {
		if s.Stateless && scenario.needsState {
			continue
		}
		t.Run(scenario.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { scenario.check(t, s, want) })
		})
	}
}

// Scenario is one thing that can go wrong.
type Scenario struct {
	Name string
	Doc  string // what happens

	needsState bool // it is about snapshots, or about what only they can prevent
	tell       func(k *story)
}

// Check runs the service in the scenario.
func (s Scenario) Check(t *testing.T, service Service) {
	t.Helper()
	if s.needsState && service.Stateless {
		t.Fatalf("the scenario %q is for services with state", s.Name)
	}
	if want, ok := references(t, service); ok {
		synctest.Test(t, func(t *testing.T) { s.check(t, service, want) })
	}
}

// references are two runs without faults, which must be the same.
func references(t *testing.T, s Service) (want [2]outcome, ok bool) {
	t.Helper()
	for i := range want {
		synctest.Test(t, func(t *testing.T) { want[i] = reference(t, s) })
		if t.Failed() {
			return want, false
		}
	}
	return want, sameTwice(t, s, want)
}

func sameTwice(t testing.TB, s Service, want [2]outcome) bool {
	t.Helper()
	different := s.compare(want[0], want[1])
	for _, difference := range different {
		t.Errorf("the service is not deterministic: two runs without faults differ: %s", difference)
	}
	return len(different) == 0
}

// check is apart from Check so that it can be given something else than a test.
func (s Scenario) check(t testing.TB, service Service, want [2]outcome) {
	t.Helper()
	k := newStory(t, service)
	s.tell(k)
	if k.over {
		return
	}
	for _, difference := range service.compare(want[0], k.outcome()) {
		t.Errorf("%s: %s", s.Name, difference)
	}
}

// reference runs the service without faults.
func reference(t testing.TB, s Service) outcome {
	t.Helper()
	require.NotNil(t, s.Run, "Service.Run is required")
	require.GreaterOrEqual(t, len(s.Events), 6, "Service.Events: at least six are required")
	k := newStory(t, s)
	m := k.start()
	k.produce(len(s.Events))
	k.Settle(m)
	require.NoError(t, m.Stop())
	return k.outcome()
}

// story is a scenario under way.
type story struct {
	*Cluster
	testing.TB
	s    Service
	next int  // event
	over bool // there is nothing to compare
}

func newStory(t testing.TB, s Service) *story {
	c := newCluster(t, cmp.Or(s.Partitions, 2))
	c.stateless = s.Stateless
	for _, topic := range s.Outputs {
		c.CreateTopic(topic)
	}
	return &story{Cluster: c, TB: t, s: s}
}

func (k *story) start() *Member { return k.Start(k.s.Run) }

// produce gives the service its next events, up to n.
func (k *story) produce(n int) {
	k.Helper()
	n = min(n, len(k.s.Events)-k.next)
	k.Produce(k.s.Events[k.next : k.next+n]...)
	k.next += n
}

// third is a third of the events, and the last one is what is left.
func (k *story) third() {
	k.Helper()
	n := len(k.s.Events) / 3
	if k.next == 2*n {
		n = len(k.s.Events) - k.next
	}
	k.produce(n)
}

// outcome is what a read_committed reader finds in the end.
type outcome struct {
	state   map[string]string
	outputs map[string][]*kgo.Record
}

func (k *story) outcome() outcome {
	k.Helper()
	o := outcome{outputs: make(map[string][]*kgo.Record)}
	if !k.s.Stateless {
		k.w.Settle()
		o.state = k.State()
	}
	for _, topic := range k.s.Outputs {
		o.outputs[topic] = k.Read(topic)
	}
	return o
}

// compare says what differs, for a person.
func (s Service) compare(want, got outcome) (found []string) {
	for _, key := range slices.Sorted(maps.Keys(want.state)) {
		switch value, ok := got.state[key]; {
		case !ok:
			found = append(found, fmt.Sprintf("key %q has no state, and should have %.200q", key, want.state[key]))
		case value != want.state[key]:
			found = append(found, fmt.Sprintf("key %q has the state %.200q, and should have %.200q: an event was folded twice, or left out, or found an effect that did not commit", key, value, want.state[key]))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(got.state)) {
		if _, ok := want.state[key]; !ok {
			found = append(found, fmt.Sprintf("key %q has the state %.200q, and should have none", key, got.state[key]))
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(want.outputs)) {
		left := slices.Clone(got.outputs[topic])
		for _, w := range want.outputs[topic] {
			i := slices.IndexFunc(left, func(g *kgo.Record) bool { return s.equal(w, g) })
			if i < 0 {
				found = append(found, fmt.Sprintf("topic %s lacks the record %q=%.200q: it was lost, or another came in its place", topic, w.Key, w.Value))
				continue
			}
			left = slices.Delete(left, i, i+1)
		}
		for _, g := range left {
			again := slices.ContainsFunc(want.outputs[topic], func(w *kgo.Record) bool { return s.equal(w, g) })
			what := "which a run without faults does not make"
			if again {
				what = "once more than a run without faults makes it: it did not go with the transaction of its event"
			}
			found = append(found, fmt.Sprintf("topic %s has the record %q=%.200q, %s", topic, g.Key, g.Value, what))
		}
	}
	return found
}

func (s Service) equal(a, b *kgo.Record) bool {
	if s.Equal != nil {
		return s.Equal(a, b)
	}
	return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value)
}

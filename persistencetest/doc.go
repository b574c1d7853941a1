// Package persistencetest is for the tests of services that are built on
// persistence or flow: it runs a service against what can go wrong, on a Kafka
// cluster in the test's own process and in virtual time, and compares what comes
// out with a run in which nothing goes wrong.
//
//	func TestMyService(t *testing.T) {
//		persistencetest.Check(t, persistencetest.Service{
//			Run:     run, // func(ctx context.Context, opts ...persistence.Option) error
//			Events:  events,
//			Outputs: []string{"discounts"},
//		})
//	}
//
// A service must be deterministic for it: state and outputs follow from the
// events, whenever they are folded. [Check] runs it twice to see whether it is.
// The clock is virtual: a timer of an hour is called at once when there is nothing
// else to do, and no test waits.
//
// What a service must do, it does by itself when it is a flow whose effects are
// state and what it emits, or a handler that writes with Apply and leaves out events
// at or below their key's SourceOffset. The scenarios find what goes past that: an
// output that an ordinary producer sends, state that is kept in a variable over
// ownerships, an event that is folded twice.
//
// For stories of one's own, [Bubble] gives the cluster, and members that can be
// started, stopped and cut off.
package persistencetest

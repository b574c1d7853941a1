package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ErrNoNodeControl is matched by the errors of a [Node]'s methods if the
// cluster was given, or [NodeControl] was not among the options.
var ErrNoNodeControl = errors.New("kafkatest: no control of nodes")

// opTimeout bounds an operation on a node whose context has no deadline.
const opTimeout = time.Minute

// machine runs one broker, in a process or a container. Its methods are not
// called concurrently, except for exited and log.
type machine interface {
	// launch runs the broker, with the data and ports of earlier runs, and
	// does not wait until it serves.
	launch(ctx context.Context, rack string) error
	// terminate asks the broker to shut down and waits until it is gone.
	terminate(ctx context.Context) error
	// kill ends the broker at once, also while it is paused, and waits until
	// it is gone.
	kill(ctx context.Context) error
	// pause returns when the broker runs no more.
	pause(ctx context.Context) error
	resume(ctx context.Context) error
	// exited reports whether the broker is not running, paused or not.
	exited() bool
	// log returns the end of what all runs have written.
	log() string
}

type nodeState int32

const (
	stateStopped nodeState = iota
	stateRunning           // launched, and perhaps not serving yet
	statePaused
)

// Node is one node of a [Cluster]: a broker and a controller. Its methods may
// be called concurrently; those that change the node run one after another,
// and require [NodeControl]. Where a context has no deadline, a minute is the
// limit.
//
// With three nodes the cluster needs two: when fewer are up, nodes cannot
// register, and a graceful Stop may not end.
type Node struct {
	id      int
	addr    string
	refuse  error // if not nil, why the node cannot be controlled
	cluster *Cluster
	machine machine
	probe   *kgo.Client // talks to this node only

	state  atomic.Int32 // a nodeState
	starts atomic.Int32

	mu sync.Mutex // held while the node is changed
}

// ID returns the node's index, which is its node id in Kafka too.
func (n *Node) ID() int { return n.id }

// Addr returns the address, host:port, on which the node serves clients.
func (n *Node) Addr() string { return n.addr }

// Log returns the end of the log that the node has written so far, up to
// 256 KiB, or "" if the cluster was given.
func (n *Node) Log() string {
	if n.machine == nil {
		return ""
	}
	return n.machine.log()
}

// Stop shuts the node down gracefully, as SIGTERM does, and returns when its
// process has ended.
func (n *Node) Stop(ctx context.Context) error {
	return n.change(ctx, "stop", []nodeState{stateRunning}, stateStopped, n.terminate)
}

// Kill ends the node's process at once, as SIGKILL does, and returns when it is
// gone. The rest of the cluster notices when the node's session times out,
// after broker.session.timeout.ms (3 s unless overridden).
func (n *Node) Kill(ctx context.Context) error {
	return n.change(ctx, "kill", []nodeState{stateRunning, statePaused}, stateStopped, n.kill)
}

// Pause freezes the node's process, as SIGSTOP does, and returns when it runs
// no more. Its connections stay open, and nothing is answered on them.
func (n *Node) Pause(ctx context.Context) error {
	return n.change(ctx, "pause", []nodeState{stateRunning}, statePaused, n.pause)
}

// Resume lets a paused node go on, as SIGCONT does, and returns when it serves
// and all running nodes know of it.
func (n *Node) Resume(ctx context.Context) error {
	return n.change(ctx, "resume", []nodeState{statePaused}, stateRunning, n.resume)
}

// Start starts a stopped or killed node with the data and ports that it had,
// and returns when it serves and all running nodes know of its new
// registration. After [Node.Kill] that takes until its former session has
// timed out.
func (n *Node) Start(ctx context.Context) error {
	return n.change(ctx, "start", []nodeState{stateStopped}, stateRunning, n.launch)
}

// change runs op if the node is in one of the states from, and sets the state
// to when it succeeds.
func (n *Node) change(ctx context.Context, what string, from []nodeState, to nodeState, op func(context.Context) error) error {
	if n.refuse != nil {
		return n.refuse
	}
	if !n.cluster.config.control {
		return fmt.Errorf("%w: add the option NodeControl to %s node %d", ErrNoNodeControl, what, n.id)
	}
	ctx, cancel := withDefaultTimeout(ctx, opTimeout)
	defer cancel()
	n.mu.Lock()
	defer n.mu.Unlock()

	if n.currentState() != stateStopped && n.machine.exited() {
		n.setState(stateStopped)
		if what != "start" {
			return fmt.Errorf("kafkatest: %s node %d: its process has ended by itself; from its log:\n%s",
				what, n.id, excerpt(n.Log()))
		}
	}
	if !slices.Contains(from, n.currentState()) {
		return fmt.Errorf("kafkatest: %s node %d: it is %v", what, n.id, n.currentState())
	}
	if err := op(ctx); err != nil {
		return fmt.Errorf("kafkatest: %s node %d: %w", what, n.id, err)
	}
	n.setState(to)
	return nil
}

func (n *Node) terminate(ctx context.Context) error { return n.machine.terminate(ctx) }

func (n *Node) kill(ctx context.Context) error { return n.machine.kill(ctx) }

func (n *Node) pause(ctx context.Context) error {
	// Not running for the others before it is not: they are asked about it.
	n.setState(statePaused)
	if err := n.machine.pause(ctx); err != nil {
		n.setState(stateRunning)
		return err
	}
	return nil
}

func (n *Node) resume(ctx context.Context) error {
	if err := n.machine.resume(ctx); err != nil {
		return err
	}
	n.setState(stateRunning)
	return n.cluster.awaitRegistered(ctx, n)
}

func (n *Node) launch(ctx context.Context) error {
	n.starts.Add(1)
	if err := n.machine.launch(ctx, n.rack()); err != nil {
		return err
	}
	n.setState(stateRunning)
	return n.cluster.awaitRegistered(ctx, n)
}

// rack is the broker.rack of the node's latest start. Brokers learn it from the
// registration, so it tells that one from the previous, which stays visible for
// a while after a node was killed.
func (n *Node) rack() string { return fmt.Sprintf("node%d-start%d", n.id, n.starts.Load()) }

func (n *Node) currentState() nodeState  { return nodeState(n.state.Load()) }
func (n *Node) setState(state nodeState) { n.state.Store(int32(state)) }

func (s nodeState) String() string {
	switch s {
	case stateStopped:
		return "stopped"
	case stateRunning:
		return "running"
	case statePaused:
		return "paused"
	}
	return "unknown"
}

// running returns the nodes that are neither stopped nor paused.
func (c *Cluster) running() []*Node {
	return slices.DeleteFunc(slices.Clone(c.nodes), func(n *Node) bool {
		return n.currentState() != stateRunning
	})
}

// awaitRegistered waits until the latest start of each subject is registered as
// a broker in the eyes of every running node, the subject included, which must
// serve for that.
func (c *Cluster) awaitRegistered(ctx context.Context, subjects ...*Node) error {
	return poll(ctx, func(ctx context.Context) error {
		for _, s := range subjects {
			if s.machine.exited() {
				return permanent(&exitError{node: s.id, log: s.Log()})
			}
		}
		for _, viewer := range c.running() {
			racks, err := viewer.brokerRacks(ctx)
			if err != nil {
				return fmt.Errorf("node %d does not serve: %w", viewer.id, err)
			}
			for _, s := range subjects {
				if racks[int32(s.id)] != s.rack() {
					return fmt.Errorf("node %d does not know that node %d is up", viewer.id, s.id)
				}
			}
		}
		return nil
	})
}

// brokerRacks asks the node which brokers are up, and returns their racks.
func (n *Node) brokerRacks(ctx context.Context) (map[int32]string, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // none; nil would be all
	resp, err := n.ask(ctx, req)
	if err != nil {
		return nil, err
	}
	racks := make(map[int32]string)
	for _, b := range resp.Brokers {
		if b.Rack != nil {
			racks[b.NodeID] = *b.Rack
		} else {
			racks[b.NodeID] = ""
		}
	}
	return racks, nil
}

// ask sends a metadata request to this node, once.
func (n *Node) ask(ctx context.Context, req *kmsg.MetadataRequest) (*kmsg.MetadataResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	seeds := n.probe.SeedBrokers()
	if len(seeds) == 0 {
		return nil, errors.New("the cluster is closed")
	}
	resp, err := seeds[0].Request(ctx, req)
	if err != nil {
		return nil, err
	}
	return resp.(*kmsg.MetadataResponse), nil
}

// exitError says that a broker ended while it was waited for.
type exitError struct {
	node int
	log  string
}

func (e *exitError) Error() string {
	return fmt.Sprintf("the process of node %d ended; from its log:\n%s", e.node, excerpt(e.log))
}

// errPortTaken is matched if a port was found in use before the broker ran.
var errPortTaken = errors.New("a port is in use")

// portTaken reports whether a broker did not run because somebody else has its
// port.
func portTaken(err error) bool {
	if exit, ok := errors.AsType[*exitError](err); ok {
		return strings.Contains(latestRun(exit.log), "Address already in use")
	}
	return errors.Is(err, errPortTaken)
}

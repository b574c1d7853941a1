// Package kafkatest gives a test a real Apache Kafka.
//
//	func TestProduce(t *testing.T) {
//		cluster := kafkatest.Start(t)
//		topic := cluster.Topic(t, 1, "cleanup.policy=compact")
//		client, err := kgo.NewClient(kgo.SeedBrokers(cluster.Brokers()...))
//		...
//	}
//
// [Start] gives the test a cluster of its own, [Shared] one that the tests of a
// binary use together, and [New] serves programs that are no tests. The cluster
// comes from the first of three backends that is there:
//
//  1. "brokers", an existing cluster without TLS or SASL. Its nodes cannot be
//     controlled, and its settings are what they are.
//  2. "docker", the official image in containers, if a daemon answers.
//  3. "java", the brokers' published jars in plain JVMs. It needs a Unix
//     system, Java 17 or newer and, to fetch the jars, Maven. The first start
//     of a release leaves about 100 MB in the user's cache folder: the jars,
//     and an archive of their classes for quicker starts.
//
// If none is there, or the test asks for something that the given cluster
// lacks, the test is skipped with the reasons.
//
// # Environment
//
//   - KAFKA_BROKERS: seed brokers of the existing cluster, comma separated.
//   - KAFKA_VERSION: the Kafka release to start, by default [DefaultVersion].
//   - KAFKA_IMAGE: the image to start, by default apache/kafka with the
//     release as its tag.
//   - KAFKATEST_BACKEND: brokers, docker or java, to allow only that one.
//   - REQUIRE_KAFKA=1: tests fail where they would be skipped. Set it in
//     continuous integration, where a skipped test goes unnoticed.
//
// # Leftovers
//
// A cluster does not outlive the process that started it, however that ends. A
// watcher kills the JVMs as soon as the process is gone, and the next process
// that starts a cluster removes the data folders. Containers are removed
// likewise: at the latest by the next process, and sooner by Testcontainers'
// Ryuk unless it is disabled.
package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// startTimeout bounds the start of a cluster, without a download before it.
const startTimeout = 2 * time.Minute

// Cluster is a running Kafka cluster. Its methods may be used concurrently.
type Cluster struct {
	backend string
	version string
	brokers []string
	nodes   []*Node // none if the cluster was given
	config  *config
	client  *kgo.Client

	mu     sync.Mutex
	topics []string // created in a given cluster, guarded by mu

	closeOnce sync.Once
	closeErr  error
	cleanup   []func() error
}

// Start starts a cluster for one test and stops it when the test ends. It
// skips the test if there is no Kafka, or fails it if REQUIRE_KAFKA=1. If the
// test fails, it logs the end of each node's log, and errors in it.
func Start(t testing.TB, opts ...Option) *Cluster {
	t.Helper()
	c, err := New(t.Context(), append([]Option{Logf(t.Logf)}, opts...)...)
	conclude(t, err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("kafkatest: stop the cluster: %v", err)
		}
	})
	t.Cleanup(func() { c.logIfFailed(t) })
	return c
}

// New starts a cluster that the caller must [Cluster.Close]. The context
// bounds the start; the cluster does not end with it. The error matches
// [ErrUnavailable] if there is no Kafka that satisfies the options.
func New(ctx context.Context, opts ...Option) (*Cluster, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	env := readEnvironment(os.Getenv)
	backend, err := env.choose(ctx, cfg, probes)
	if err != nil {
		return nil, err
	}
	c := &Cluster{backend: backend, version: env.versionFor(cfg), config: cfg}
	switch backend {
	case backendBrokers:
		err = c.useBrokers(ctx, env.brokers)
	case backendDocker:
		image := env.imageFor(cfg)
		c.version = versionOfImage(image, c.version)
		err = c.startDocker(ctx, image)
	case backendJava:
		err = c.startJava(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close stops the cluster and removes its data. What the cluster was given is
// left as it is, but for the topics made by [Cluster.Topic]. Close is
// idempotent.
func (c *Cluster) Close() error {
	c.closeOnce.Do(func() { c.closeErr = c.undo(0) })
	return c.closeErr
}

// undo runs the cleanup functions, last one first, but for the first n.
func (c *Cluster) undo(n int) error {
	var errs []error
	for _, f := range slices.Backward(c.cleanup[n:]) {
		errs = append(errs, f())
	}
	c.cleanup = c.cleanup[:n]
	return errors.Join(errs...)
}

// Brokers returns the addresses of the brokers, to be used as seeds. The one of
// [Node] i is at index i unless the cluster was given.
func (c *Cluster) Brokers() []string { return slices.Clone(c.brokers) }

// Backend returns where the cluster comes from: "brokers", "docker" or "java".
func (c *Cluster) Backend() string { return c.backend }

// Version returns the Kafka release, for instance "4.4.0". Of a given cluster
// it is a guess from what the brokers offer, for instance "v4.4".
func (c *Cluster) Version() string { return c.version }

// Node returns the node whose index, which is also its Kafka node id, is i,
// starting from 0. It never returns nil: the methods of a node that the
// cluster does not have, or does not control, return an error.
func (c *Cluster) Node(i int) *Node {
	switch {
	case c.backend == backendBrokers:
		return &Node{id: i, refuse: fmt.Errorf("%w: the cluster was given by KAFKA_BROKERS", ErrNoNodeControl)}
	case i < 0 || i >= len(c.nodes):
		return &Node{id: i, refuse: fmt.Errorf("kafkatest: there is no node %d: the cluster has %d, from 0", i, len(c.nodes))}
	}
	return c.nodes[i]
}

// logIfFailed logs an excerpt of each node's log if the test failed.
func (c *Cluster) logIfFailed(t testing.TB) {
	if !t.Failed() {
		return
	}
	for _, n := range c.nodes {
		t.Logf("from the log of Kafka node %d (%s):\n%s", n.id, n.addr, excerpt(n.Log()))
	}
}

package kafkatest

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// connect makes the cluster's clients; it sends nothing.
func (c *Cluster) connect() error {
	newClient := func(seeds ...string) (*kgo.Client, error) {
		cl, err := kgo.NewClient(
			kgo.SeedBrokers(seeds...),
			kgo.ClientID("kafkatest"),
			kgo.DialTimeout(time.Second),
		)
		if err != nil {
			return nil, fmt.Errorf("kafkatest: client for %s: %w", strings.Join(seeds, ","), err)
		}
		c.onClose(func() error { cl.Close(); return nil })
		return cl, nil
	}
	var err error
	if c.client, err = newClient(c.brokers...); err != nil {
		return err
	}
	for _, n := range c.nodes {
		if n.probe, err = newClient(n.addr); err != nil {
			return err
		}
	}
	return nil
}

// onClose registers what [Cluster.Close] must undo.
func (c *Cluster) onClose(f func() error) { c.cleanup = append(c.cleanup, f) }

// addNode appends a node to the cluster.
func (c *Cluster) addNode(addr string, m machine) {
	c.nodes = append(c.nodes, &Node{id: len(c.nodes), addr: addr, cluster: c, machine: m})
	c.brokers = append(c.brokers, addr)
}

// startOnFreePorts has prepare add the nodes and launches them, again with other
// ports if somebody else took one in the meantime.
func (c *Cluster) startOnFreePorts(ctx context.Context, n int, prepare func(ports []int) error) error {
	const attempts = 5
	before := len(c.cleanup)
	for attempt := 1; ; attempt++ {
		ports, err := freePorts(n)
		if err != nil {
			return err
		}
		c.onClose(func() error { releasePorts(ports); return nil })
		if err = prepare(ports); err == nil {
			if err = c.connect(); err == nil {
				err = c.launch(ctx)
			}
		}
		if err == nil || attempt == attempts || !portTaken(err) {
			return err
		}
		c.config.logf("kafkatest: a port was taken by another process: starting again")
		if err := c.undo(before); err != nil {
			return err
		}
		c.nodes, c.brokers = nil, nil
	}
}

// each runs f for all nodes at once.
func each(nodes []*Node, f func(*Node) error) error {
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() { errs[i] = f(n) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// launch starts all nodes and returns when the cluster can be used.
func (c *Cluster) launch(ctx context.Context) error {
	for _, n := range c.nodes {
		n.starts.Add(1)
		if err := n.machine.launch(ctx, n.rack()); err != nil {
			return fmt.Errorf("kafkatest: start node %d: %w", n.id, err)
		}
		n.setState(stateRunning)
	}
	err := c.awaitRegistered(ctx, c.nodes...)
	if err == nil {
		err = c.awaitCoordinators(ctx)
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("kafkatest: start Kafka %s: %w", c.version, err)
	if _, told := errors.AsType[*exitError](err); !told {
		for _, n := range c.nodes {
			err = fmt.Errorf("%w\nfrom the log of node %d:\n%s", err, n.id, excerpt(n.Log()))
		}
	}
	return err
}

// awaitCoordinators has Kafka create its internal topics, which it does when
// they are first needed, so that no test waits for it at an odd moment.
func (c *Cluster) awaitCoordinators(ctx context.Context) error {
	for _, kind := range []struct {
		name string
		code int8
	}{{"groups", 0}, {"transactions", 1}} {
		err := poll(ctx, func(ctx context.Context) error {
			req := kmsg.NewPtrFindCoordinatorRequest()
			req.CoordinatorType = kind.code
			req.CoordinatorKey = "kafkatest"
			req.CoordinatorKeys = []string{"kafkatest"}
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			resp, err := req.RequestWith(ctx, anySeed{c.client})
			if err != nil {
				return err
			}
			if len(resp.Coordinators) > 0 {
				return kerr.ErrorForCode(resp.Coordinators[0].ErrorCode)
			}
			return kerr.ErrorForCode(resp.ErrorCode)
		})
		if err != nil {
			return fmt.Errorf("wait for the coordinator of %s: %w", kind.name, err)
		}
	}
	return nil
}

// anySeed sends a request to any seed broker, once: the client itself would
// retry a coordinator that is not there yet more slowly than poll does.
type anySeed struct{ client *kgo.Client }

func (s anySeed) Request(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	var last error
	for _, seed := range s.client.SeedBrokers() {
		resp, err := seed.Request(ctx, req)
		if err == nil {
			return resp, nil
		}
		last = err
	}
	if last == nil {
		last = errors.New("the cluster is closed")
	}
	return nil, last
}

// givenTimeout is how long a given cluster has to answer.
const givenTimeout = 15 * time.Second

// useBrokers makes a given cluster the one of c, if it has what is asked for.
func (c *Cluster) useBrokers(ctx context.Context, seeds []string) error {
	c.brokers = seeds
	if err := c.connect(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, givenTimeout)
	defer cancel()

	// It may be starting at the same time as the tests.
	admin := kadm.NewClient(c.client)
	var brokers kadm.BrokerDetails
	err := poll(ctx, func(ctx context.Context) (err error) {
		brokers, err = admin.ListBrokers(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("kafkatest: ask the cluster given by KAFKA_BROKERS=%s: %w", strings.Join(seeds, ","), err)
	}
	versions, err := admin.ApiVersions(ctx)
	if err != nil {
		return fmt.Errorf("kafkatest: ask the brokers given by KAFKA_BROKERS for their versions: %w", err)
	}
	for _, v := range versions.Sorted() {
		if v.Err != nil {
			return fmt.Errorf("kafkatest: ask broker %d of KAFKA_BROKERS for its versions: %w", v.NodeID, v.Err)
		}
		c.version = v.VersionGuess()
	}
	level, err := finalizedLevel(ctx, c.client, "transaction.version")
	if err != nil {
		return fmt.Errorf("kafkatest: ask the brokers given by KAFKA_BROKERS for their features: %w", err)
	}
	if lacks := c.config.lackedBy(len(brokers), level); len(lacks) > 0 {
		return unavailable("the cluster given by KAFKA_BROKERS has %s", strings.Join(lacks, ", "))
	}
	c.onClose(c.deleteTopics)
	return nil
}

// lackedBy says how a given cluster falls short of c.
func (c *config) lackedBy(brokers, transactionVersion int) []string {
	var lacks []string
	if brokers < c.nodes {
		lacks = append(lacks, fmt.Sprintf("%d brokers, not the %d that are asked for (Nodes)", brokers, c.nodes))
	}
	if want := c.transactionVersion; want != nil && transactionVersion != *want {
		lacks = append(lacks, fmt.Sprintf("transaction.version %d, not the %d that is asked for (TransactionVersion)",
			transactionVersion, *want))
	}
	return lacks
}

// finalizedLevel asks for the level of a feature. It is 0 if the brokers do not
// name the feature, as those that do not know it.
func finalizedLevel(ctx context.Context, client *kgo.Client, feature string) (int, error) {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName = "kafkatest"
	req.ClientSoftwareVersion = "1"
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return 0, err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return 0, err
	}
	for _, f := range resp.FinalizedFeatures {
		if f.Name == feature {
			return int(f.MaxVersionLevel), nil
		}
	}
	return 0, nil
}

// newClusterID returns a random id as Kafka writes them. A leading dash would
// look like an option to Kafka's storage tool.
func newClusterID() string {
	for {
		var id [16]byte
		rand.Read(id[:])
		if s := base64.RawURLEncoding.EncodeToString(id[:]); !strings.HasPrefix(s, "-") {
			return s
		}
	}
}

package kafkatest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
	tcnetwork "github.com/testcontainers/testcontainers-go/network"
)

// pullTimeout bounds the download of an image. Testcontainers itself would try
// for a quarter of an hour where there is no network.
const pullTimeout = 5 * time.Minute

// Where a container keeps its things. The image's user may write to /tmp in all
// images, and it is neither a volume nor cleared when a container is restarted.
const (
	containerProperties = "/tmp/kafkatest.properties"
	containerRack       = "/tmp/kafkatest.rack"
	containerData       = "/tmp/kafkatest-data"
)

// containerScript formats the storage once and then becomes the broker. It uses
// what a shell has built in, and calls the broker's classes in place of the
// image's scripts, which cannot set features. Its arguments are the JVM's,
// "--", and the storage tool's.
const containerScript = `
set -e
jvm= format=
while [ "$1" != -- ]; do jvm="$jvm $1"; shift; done; shift
if [ ! -e ` + containerData + `/meta.properties ]; then
	java -cp '/opt/kafka/libs/*' kafka.tools.StorageTool format --config ` + containerProperties + ` "$@"
fi
read -r rack < ` + containerRack + `
echo "` + launchMark + `$rack"
exec java $jvm -cp '/opt/kafka/libs/*' kafka.Kafka ` + containerProperties + ` --override "broker.rack=$rack"
`

// The labels of containers and networks say who made them, so that a later
// process on the same host can remove what a dead one left.
const (
	labelHost  = "kafkatest.host"
	labelOwner = "kafkatest.owner" // the folder of a run, see [runDir]
)

// newDockerProvider connects to the daemon that Testcontainers finds, which
// panics in some of its corners.
func newDockerProvider() (p *testcontainers.DockerProvider, err error) {
	defer func() {
		if r := recover(); r != nil {
			p, err = nil, fmt.Errorf("%v", r)
		}
	}()
	return testcontainers.NewDockerProvider(testcontainers.Generic2DockerOptions(
		testcontainers.WithLogger(tclog.NewNoopLogger()))...)
}

// probeDocker also brings the image, so that there is still Java to turn to if
// it cannot be had.
func probeDocker(ctx context.Context, want wanted) error {
	provider, err := newDockerProvider()
	if err != nil {
		return fmt.Errorf("no daemon answers: %w: start Docker or set DOCKER_HOST", err)
	}
	defer provider.Close()
	if _, err := provider.Client().ImageInspect(ctx, want.image); err == nil {
		return nil
	}
	return pull(ctx, provider, want)
}

// failedPulls keeps each test of a binary from waiting for the same failure.
var failedPulls = struct {
	sync.Mutex
	errs map[string]error // by image
}{errs: make(map[string]error)}

func pull(ctx context.Context, provider *testcontainers.DockerProvider, want wanted) error {
	failedPulls.Lock()
	defer failedPulls.Unlock()
	if err := failedPulls.errs[want.image]; err != nil {
		return err
	}
	want.logf("kafkatest: pulling the image %s", want.image)
	pullCtx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	err := provider.PullImage(pullCtx, want.image)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("the image %s cannot be pulled: %w: pull or build it, or set KAFKA_IMAGE to one that is there",
		want.image, err)
	want.logf("kafkatest: %v", err)
	if ctx.Err() == nil {
		failedPulls.errs[want.image] = err
	}
	return err
}

// startDocker runs the nodes as containers.
func (c *Cluster) startDocker(ctx context.Context, image string) error {
	format, err := c.config.formatArgs(c.version)
	if err != nil {
		return err
	}
	provider, err := newDockerProvider()
	if err != nil {
		return unavailable("docker: %w", err)
	}
	c.onClose(provider.Close)
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	host, err := provider.DaemonHost(ctx)
	if err != nil {
		return fmt.Errorf("kafkatest: host of the Docker daemon: %w", err)
	}

	return c.startOnFreePorts(ctx, c.config.nodes, func(ports []int) error {
		return c.addContainers(ctx, provider, image, host, ports, format)
	})
}

// addContainers adds the nodes, which serve clients on the ports of the host.
func (c *Cluster) addContainers(ctx context.Context, provider *testcontainers.DockerProvider, image, host string, ports []int, format []string) error {
	labels := make(map[string]string)
	if probePlatform() == nil {
		dir, err := newRunDir()
		if err != nil {
			return err
		}
		c.onClose(dir.remove)
		labels = ownerLabels(dir.path)
		removeStaleContainers(ctx, provider.Client())
	}
	nw, err := tcnetwork.New(ctx, tcnetwork.WithLabels(labels))
	if err != nil {
		return fmt.Errorf("kafkatest: create a network: %w", err)
	}
	c.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
		defer cancel()
		_, err := provider.Client().NetworkRemove(ctx, nw.ID, client.NetworkRemoveOptions{})
		return err
	})

	clusterID := newClusterID()
	alias := func(i int) string { return fmt.Sprintf("kafka%d", i) }
	var voters []string
	for i := range c.config.nodes {
		voters = append(voters, fmt.Sprintf("%d@%s:9093", i, alias(i)))
	}
	for i := range c.config.nodes {
		addr := net.JoinHostPort(host, strconv.Itoa(ports[i]))
		bindIP := netip.IPv4Unspecified()
		if host == "localhost" {
			// Not the name, which may mean an IPv6 address first.
			addr, bindIP = localAddr(ports[i]), netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		properties := serverProperties(layout{
			id:    i,
			nodes: c.config.nodes,
			listeners: []listener{
				{name: "PLAINTEXT", bind: "0.0.0.0:9092", advertise: addr},
				{name: "CONTROLLER", bind: "0.0.0.0:9093"},
				// The others cannot reach what is advertised to clients.
				{name: "INTERNAL", bind: "0.0.0.0:9094", advertise: alias(i) + ":9094"},
			},
			interBroker: "INTERNAL",
			controller:  "CONTROLLER",
			voters:      voters,
			dataDir:     containerData,
		}, c.config.broker)

		cmd := append(c.config.allJVMArgs(quickJVM), brokerLogging...)
		cmd = append(cmd, "--", "--cluster-id", clusterID)
		cmd = append(cmd, format...)
		ctr, err := provider.CreateContainer(ctx, testcontainers.ContainerRequest{
			Image:          image,
			Entrypoint:     append([]string{"sh", "-c", containerScript, "kafkatest"}, cmd...),
			Cmd:            []string{}, // not the image's
			ExposedPorts:   []string{"9092/tcp"},
			Networks:       []string{nw.Name},
			NetworkAliases: map[string][]string{nw.Name: {alias(i)}},
			Labels:         labels,
			Files: []testcontainers.ContainerFile{{
				Reader:            strings.NewReader(properties),
				ContainerFilePath: containerProperties,
				FileMode:          0o644,
			}},
			HostConfigModifier: func(hc *container.HostConfig) {
				// Known beforehand, since the broker must advertise it.
				hc.PortBindings = network.PortMap{
					network.MustParsePort("9092/tcp"): {{HostIP: bindIP, HostPort: strconv.Itoa(ports[i])}},
				}
			},
		})
		if ctr != nil {
			m := &dockerContainer{container: ctr, docker: provider.Client()}
			c.addNode(addr, m)
			c.onClose(m.destroy)
		}
		if err != nil {
			return fmt.Errorf("kafkatest: create a container of %s: %w "+
				"(if this is about Ryuk, TESTCONTAINERS_RYUK_DISABLED=true does without it)", image, err)
		}
	}
	return nil
}

func ownerLabels(runDir string) map[string]string {
	host, err := os.Hostname()
	if err != nil {
		return map[string]string{} // nobody can tell whether the owner is alive
	}
	return map[string]string{labelHost: host, labelOwner: runDir}
}

// removeStaleContainers removes what processes of this host left that have
// ended, as far as it can.
func removeStaleContainers(ctx context.Context, docker client.APIClient) {
	host, err := os.Hostname()
	if err != nil {
		return
	}
	filter := make(client.Filters).Add("label", labelHost+"="+host)
	containers, err := docker.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filter})
	if err != nil {
		return
	}
	for _, ctr := range containers.Items {
		if !ownerLives(ctr.Labels[labelOwner]) {
			docker.ContainerRemove(ctx, ctr.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		}
	}
	networks, err := docker.NetworkList(ctx, client.NetworkListOptions{Filters: filter})
	if err != nil {
		return
	}
	for _, nw := range networks.Items {
		if !ownerLives(nw.Labels[labelOwner]) {
			docker.NetworkRemove(ctx, nw.ID, client.NetworkRemoveOptions{})
		}
	}
}

// dockerContainer is a [machine]: a broker in a container. Testcontainers
// creates it, but does not control it: there is no pause in its API, and its
// start waits for ports although only Kafka can say when it is ready.
type dockerContainer struct {
	container testcontainers.Container
	docker    client.APIClient

	destroyOnce sync.Once
	destroyErr  error
}

func (m *dockerContainer) id() string { return m.container.GetContainerID() }

func (m *dockerContainer) launch(ctx context.Context, rack string) error {
	if err := m.container.CopyToContainer(ctx, []byte(rack+"\n"), containerRack, 0o644); err != nil {
		return err
	}
	_, err := m.docker.ContainerStart(ctx, m.id(), client.ContainerStartOptions{})
	if err != nil && (strings.Contains(err.Error(), "port is already allocated") ||
		strings.Contains(err.Error(), "address already in use")) {
		return fmt.Errorf("%w: %w", errPortTaken, err)
	}
	return err
}

func (m *dockerContainer) terminate(ctx context.Context) error {
	return m.signal(ctx, "SIGTERM")
}

func (m *dockerContainer) kill(ctx context.Context) error {
	// A frozen container does not take a signal.
	if state, err := m.state(ctx); err == nil && state.Paused {
		if err := m.resume(ctx); err != nil {
			return err
		}
	}
	return m.signal(ctx, "SIGKILL")
}

// signal sends a signal and waits until the container has ended.
func (m *dockerContainer) signal(ctx context.Context, sig string) error {
	if _, err := m.docker.ContainerKill(ctx, m.id(), client.ContainerKillOptions{Signal: sig}); err != nil {
		if state, stateErr := m.state(ctx); stateErr != nil || state.Running {
			return err
		}
	}
	return poll(ctx, func(ctx context.Context) error {
		state, err := m.state(ctx)
		if err == nil && state.Running {
			err = errors.New("the container still runs")
		}
		return err
	})
}

func (m *dockerContainer) pause(ctx context.Context) error {
	_, err := m.docker.ContainerPause(ctx, m.id(), client.ContainerPauseOptions{})
	return err
}

func (m *dockerContainer) resume(ctx context.Context) error {
	_, err := m.docker.ContainerUnpause(ctx, m.id(), client.ContainerUnpauseOptions{})
	return err
}

func (m *dockerContainer) state(ctx context.Context) (*container.State, error) {
	info, err := m.docker.ContainerInspect(ctx, m.id(), client.ContainerInspectOptions{})
	if err != nil {
		return nil, err
	}
	if info.Container.State == nil {
		return nil, errors.New("the daemon does not tell the container's state")
	}
	return info.Container.State, nil
}

func (m *dockerContainer) exited() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	state, err := m.state(ctx)
	return err == nil && !state.Running
}

func (m *dockerContainer) log() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := m.docker.ContainerLogs(ctx, m.id(), client.ContainerLogsOptions{
		ShowStdout: true, ShowStderr: true, Tail: "2000",
	})
	if err != nil {
		return ""
	}
	defer r.Close()
	var b bytes.Buffer
	if _, err := stdcopy.StdCopy(&b, &b, r); err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintf(&b, "(the rest of the log cannot be read: %v)\n", err)
	}
	s := b.String()
	return s[max(0, len(s)-maxLog):]
}

// destroy removes the container in whatever state it is.
func (m *dockerContainer) destroy() error {
	m.destroyOnce.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
		defer cancel()
		_, m.destroyErr = m.docker.ContainerRemove(ctx, m.id(), client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	})
	return m.destroyErr
}

package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
)

// quickJVM starts soonest of what was measured: on two cores a node is up after
// 1.3 s with these flags, 1.6 s with G1 in place of the serial collector, and
// 2.0 s with the JVM's own choice of compilers. Without UsePerfData the JVM
// does not write to a mapped file in /tmp, which stalls it on a busy disk.
var quickJVM = []string{
	"-XX:+UseSerialGC",
	"-XX:TieredStopAtLevel=1",
	"-XX:-UsePerfData",
	"-Xshare:auto",
}

// brokerLogging has the broker write its log to stderr. The dump of all
// settings would drown the rest.
var brokerLogging = []string{
	"-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
	"-Dorg.slf4j.simpleLogger.showDateTime=true",
	"-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
	"-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config.AbstractConfig=warn",
	"-Dorg.apache.logging.log4j.level=INFO", // the official image logs with log4j
}

// allJVMArgs are the arguments for each node's JVM.
func (c *config) allJVMArgs(quick []string) []string {
	heap := "-Xmx768m"
	if c.nodes > 1 {
		heap = "-Xmx512m"
	}
	args := append([]string{heap}, quick...)
	return append(args, c.jvmArgs...)
}

// java is the runtime that the environment names.
type java struct {
	path  string
	text  string // what it says about its version
	major int
}

var versionOutput = regexp.MustCompile(`version "(?:1\.)?(\d+)`)

// findJava runs java to learn its version: on macOS the file may be a stub.
var findJava = sync.OnceValues(func() (*java, error) {
	j := new(java)
	if home := os.Getenv("JAVA_HOME"); home != "" {
		j.path = filepath.Join(home, "bin", "java")
	} else if path, err := exec.LookPath("java"); err == nil {
		j.path = path
	} else {
		return nil, errors.New("no java in PATH: install a Java 17 runtime, or set JAVA_HOME")
	}
	out, err := exec.Command(j.path, "-version").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s -version: %w: install a Java 17 runtime, or set JAVA_HOME", j.path, err)
	}
	j.text = string(out)
	m := versionOutput.FindStringSubmatch(j.text)
	if m == nil {
		return nil, fmt.Errorf("%s -version: no version in %q", j.path, out)
	}
	j.major, err = strconv.Atoi(m[1])
	return j, err
})

func probeJava(_ context.Context, want wanted) error {
	if err := probePlatform(); err != nil {
		return err
	}
	java, err := findJava()
	if err != nil {
		return err
	}
	need := 17
	if majorVersion(want.version) < 4 {
		need = 11
	}
	if java.major < need {
		return fmt.Errorf("%s is of version %d, and Kafka %s needs %d or newer: install it, or set JAVA_HOME",
			java.path, java.major, want.version, need)
	}
	dir, err := jarFolder(want.version)
	if err != nil {
		return err
	}
	if jarsPresent(dir, want.version) {
		return nil
	}
	if _, err := exec.LookPath("mvn"); err != nil {
		return fmt.Errorf("the jars of Kafka %s are not in %s, and there is no mvn in PATH to fetch them: install Maven",
			want.version, dir)
	}
	return nil
}

// startJava runs the nodes as JVMs of this machine.
func (c *Cluster) startJava(ctx context.Context) error {
	format, err := c.config.formatArgs(c.version)
	if err != nil {
		return err
	}
	java, err := findJava()
	if err != nil {
		return err
	}
	jars, err := ensureJars(ctx, c.version, c.config.logf)
	if err != nil {
		return unavailable("java: %w", err)
	}
	quick := quickJVM
	if !c.config.training {
		quick = append(slices.Clone(quick), sharedClasses(ctx, java, c.version, c.config.logf)...)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return c.startOnFreePorts(ctx, 2*c.config.nodes, func(ports []int) error {
		if err := c.addJVMs(java, quick, jars, ports); err != nil {
			return err
		}
		clusterID := newClusterID()
		return each(c.nodes, func(n *Node) error {
			return n.machine.(*jvm).format(ctx, clusterID, format)
		})
	})
}

// addJVMs adds the nodes, which serve clients on the even ports and run the
// quorum on the odd ones.
func (c *Cluster) addJVMs(java *java, quick []string, jars string, ports []int) error {
	dir, err := newRunDir()
	if err != nil {
		return err
	}
	c.onClose(dir.remove)
	var voters []string
	for i := range c.config.nodes {
		voters = append(voters, fmt.Sprintf("%d@%s", i, localAddr(ports[2*i+1])))
	}
	for i := range c.config.nodes {
		addr := localAddr(ports[2*i])
		m := &jvm{
			java:      java.path,
			classPath: filepath.Join(jars, "*"),
			quick:     quick,
			args:      c.config.allJVMArgs(quick),
			dir:       filepath.Join(dir.path, fmt.Sprintf("node%d", i)),
		}
		m.properties = serverProperties(layout{
			id:    i,
			nodes: c.config.nodes,
			listeners: []listener{
				{name: "PLAINTEXT", bind: addr, advertise: addr},
				{name: "CONTROLLER", bind: localAddr(ports[2*i+1])},
			},
			interBroker: "PLAINTEXT",
			controller:  "CONTROLLER",
			voters:      voters,
			dataDir:     filepath.Join(m.dir, "data"),
		}, c.config.broker)
		c.addNode(addr, m)
		c.onClose(m.destroy)
	}
	return nil
}

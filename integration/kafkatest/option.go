package kafkatest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// DefaultVersion is the Apache Kafka release that is started if neither the
// environment nor [Version] names another one.
const DefaultVersion = "4.4.0"

// Option changes the cluster that [Start], [Shared] and [New] provide.
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// Nodes sets the number of nodes, 1 (the default) or 3. Each node is a broker
// and a controller at once. Internal topics have as many replicas as there are
// nodes, and of three replicas two must be in sync.
//
// A given cluster (KAFKA_BROKERS) satisfies it if it has at least n brokers.
func Nodes(n int) Option { return optionFunc(func(c *config) { c.nodes = n }) }

// TransactionVersion sets the feature transaction.version with which the
// cluster is formatted: 0, 1 or 2. The default is the newest production level
// of the Kafka version. Releases before 4.0 know only level 0.
//
// A given cluster (KAFKA_BROKERS) satisfies it if this level is finalized there.
func TransactionVersion(level int) Option {
	return optionFunc(func(c *config) { c.transactionVersion = &level })
}

// BrokerConfig sets one property of server.properties on every node. It
// overrides the package's own setting of that property, except for those that
// hold the cluster together (listeners, node ids, data directories, rack):
// these are refused.
//
// No given cluster (KAFKA_BROKERS) satisfies it.
func BrokerConfig(key, value string) Option {
	return optionFunc(func(c *config) { c.broker[key] = value })
}

// Version sets the Apache Kafka release, for instance "3.9.1". The default is
// KAFKA_VERSION from the environment or, if that is empty, [DefaultVersion].
//
// No given cluster (KAFKA_BROKERS) satisfies it, and a KAFKA_IMAGE only if its
// tag is this version.
func Version(version string) Option {
	return optionFunc(func(c *config) { c.version = version })
}

// NodeControl says that the test stops, kills, pauses or restarts nodes. The
// methods of [Node] that do so fail without it, on every backend, so that a
// test which forgot it is noticed before it meets a given cluster
// (KAFKA_BROKERS), the one backend that does not satisfy it.
func NodeControl() Option { return optionFunc(func(c *config) { c.control = true }) }

// JVMArgs appends arguments to the command line of each node's JVM, after
// those of the package. The package chooses a small heap (-Xmx768m for a
// single node, -Xmx512m for each of three), -XX:+UseSerialGC and
// -XX:TieredStopAtLevel=1, since these start soonest; a benchmark may want
// "-Xmx2g", "-XX:TieredStopAtLevel=4".
//
// No given cluster (KAFKA_BROKERS) satisfies it.
func JVMArgs(args ...string) Option {
	return optionFunc(func(c *config) { c.jvmArgs = append(c.jvmArgs, args...) })
}

// Logf sets the function that is told about slow steps, such as a download.
// [Start] and [Shared] use t.Logf, and [New] is silent by default.
func Logf(logf func(format string, args ...any)) Option {
	return optionFunc(func(c *config) { c.logf = logf })
}

type config struct {
	nodes              int
	transactionVersion *int
	broker             map[string]string
	version            string // "" if not asked for
	control            bool
	jvmArgs            []string
	training           bool // see sharedClasses
	logf               func(string, ...any)
}

func newConfig(opts []Option) (*config, error) {
	c := &config{nodes: 1, broker: make(map[string]string), logf: func(string, ...any) {}}
	for _, o := range opts {
		if o != nil {
			o.apply(c)
		}
	}
	return c, c.validate()
}

// validate reports every fault at once.
func (c *config) validate() error {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }

	if c.nodes != 1 && c.nodes != 3 {
		fault("Nodes(%d): only 1 and 3 are supported", c.nodes)
	}
	if v := c.transactionVersion; v != nil && (*v < 0 || *v > 2) {
		fault("TransactionVersion(%d): only 0, 1 and 2 exist", *v)
	}
	if c.version != "" && !validVersion(c.version) {
		fault("Version(%q): not a release such as %q", c.version, DefaultVersion)
	}
	if v := c.transactionVersion; v != nil && *v > 0 && c.version != "" && majorVersion(c.version) < 4 {
		fault("TransactionVersion(%d), Version(%q): only Kafka 4.0 and later know that level", *v, c.version)
	}
	for _, key := range slices.Sorted(maps.Keys(c.broker)) {
		if slices.Contains(reservedProperties, key) {
			fault("BrokerConfig(%q): this property is set by the package itself", key)
		}
		if key == "" || strings.ContainsAny(key, " \t\r\n=:#!\\") {
			fault("BrokerConfig(%q): not the name of a property", key)
		}
	}
	if c.logf == nil {
		fault("Logf(nil): a function is needed")
	}
	if faults != nil {
		return fmt.Errorf("kafkatest: %s", strings.Join(faults, "; "))
	}
	return nil
}

// key identifies the cluster that c describes, for sharing.
func (c *config) key() string {
	var b strings.Builder
	fmt.Fprintf(&b, "nodes=%d version=%q control=%t", c.nodes, c.version, c.control)
	if c.transactionVersion != nil {
		fmt.Fprintf(&b, " transaction.version=%d", *c.transactionVersion)
	}
	fmt.Fprintf(&b, " jvm=%q", c.jvmArgs)
	for _, key := range slices.Sorted(maps.Keys(c.broker)) {
		fmt.Fprintf(&b, " %s=%q", key, c.broker[key])
	}
	return b.String()
}

// formatArgs are the extra arguments of the storage tool. The feature flag is
// unknown to the tool before 4.0, where level 0 is all there is.
func (c *config) formatArgs(version string) ([]string, error) {
	v := c.transactionVersion
	switch {
	case v == nil:
		return nil, nil
	case majorVersion(version) >= 4:
		return []string{"--feature", "transaction.version=" + strconv.Itoa(*v)}, nil
	case *v == 0:
		return nil, nil
	}
	return nil, unavailable("transaction.version %d needs Kafka 4.0 or later, not %s: set KAFKA_VERSION or KAFKA_IMAGE", *v, version)
}

// validVersion also keeps a version from escaping the cache folder, in whose
// path it is.
func validVersion(v string) bool {
	return majorVersion(v) > 0 && !strings.ContainsFunc(v, func(r rune) bool {
		return r != '.' && r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

// majorVersion returns 0 if v has none.
func majorVersion(v string) int {
	major, _, _ := strings.Cut(v, ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		return 0
	}
	return n
}

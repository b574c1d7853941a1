package kafkatest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// reservedProperties hold a cluster together. broker.rack is among them
// because it tells one start of a node from the next: see [Node.Start].
var reservedProperties = []string{
	"advertised.listeners",
	"broker.id",
	"broker.rack",
	"controller.listener.names",
	"controller.quorum.bootstrap.servers",
	"controller.quorum.voters",
	"inter.broker.listener.name",
	"listener.security.protocol.map",
	"listeners",
	"log.dir",
	"log.dirs",
	"metadata.log.dir",
	"node.id",
	"process.roles",
}

// quickSettings make a broker answer soon rather than be gentle to a
// production machine. A release ignores those it does not know.
func quickSettings(nodes int) map[string]string {
	replicas, minISR := strconv.Itoa(nodes), strconv.Itoa(nodes/2+1)
	return map[string]string{
		"auto.create.topics.enable": "false",

		// A killed node's leaders move, and its new incarnation may register,
		// once its session has timed out. Shorter, and a busy machine loses
		// nodes that are alive.
		"broker.heartbeat.interval.ms": "500",
		"broker.session.timeout.ms":    "3000",

		// The first election waits for one to two of these.
		"controller.quorum.election.timeout.ms": "400",

		"default.replication.factor": replicas,
		"min.insync.replicas":        minISR,

		"offsets.topic.num.partitions":     "4",
		"offsets.topic.replication.factor": replicas,

		"transaction.state.log.num.partitions":                        "4",
		"transaction.state.log.replication.factor":                    replicas,
		"transaction.state.log.min.isr":                               minISR,
		"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",

		"share.coordinator.state.topic.num.partitions":     "4",
		"share.coordinator.state.topic.replication.factor": replicas,
		"share.coordinator.state.topic.min.isr":            minISR,

		"group.initial.rebalance.delay.ms":         "0",
		"group.min.session.timeout.ms":             "1000",
		"group.consumer.min.session.timeout.ms":    "1000",
		"group.consumer.session.timeout.ms":        "6000",
		"group.consumer.min.heartbeat.interval.ms": "100",
		"group.consumer.heartbeat.interval.ms":     "500",
		"group.share.min.session.timeout.ms":       "1000",
		"group.share.session.timeout.ms":           "6000",
		"group.share.min.heartbeat.interval.ms":    "100",
		"group.share.heartbeat.interval.ms":        "500",

		"log.cleaner.backoff.ms": "200",
		// The default takes 128 MiB of a small heap.
		"log.cleaner.dedupe.buffer.size": "16777216",
	}
}

// listener is one of a node's network endpoints.
type listener struct {
	name      string
	bind      string // host:port
	advertise string // host:port, or "" if it is not advertised
}

// layout is what server.properties says about one node's place in its cluster.
type layout struct {
	id          int
	nodes       int
	listeners   []listener
	interBroker string // name of a listener
	controller  string // name of a listener
	voters      []string
	dataDir     string
}

// serverProperties returns the text of a server.properties file.
func serverProperties(l layout, overrides map[string]string) string {
	props := quickSettings(l.nodes)
	maps.Copy(props, overrides)

	var bind, advertise, protocols []string
	for _, ln := range l.listeners {
		bind = append(bind, ln.name+"://"+ln.bind)
		if ln.advertise != "" {
			advertise = append(advertise, ln.name+"://"+ln.advertise)
		}
		protocols = append(protocols, ln.name+":PLAINTEXT")
	}
	maps.Copy(props, map[string]string{
		"process.roles":                  "broker,controller",
		"node.id":                        strconv.Itoa(l.id),
		"listeners":                      strings.Join(bind, ","),
		"advertised.listeners":           strings.Join(advertise, ","),
		"listener.security.protocol.map": strings.Join(protocols, ","),
		"inter.broker.listener.name":     l.interBroker,
		"controller.listener.names":      l.controller,
		"controller.quorum.voters":       strings.Join(l.voters, ","),
		"log.dirs":                       l.dataDir,
	})

	escape := strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`)
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(props)) {
		fmt.Fprintf(&b, "%s=%s\n", key, escape.Replace(props[key]))
	}
	return b.String()
}

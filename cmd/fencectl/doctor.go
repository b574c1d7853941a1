package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/wire"
)

var doctorCommand = command{
	name:    "doctor",
	summary: "whether a cluster, its topics and its ACLs are fit for a service",
	about: `Checks what a service needs, and prints a line for each: ok, warn or FAIL, what was
found, and what to do about it. A FAIL is what the service would refuse or fail by; a
warn is what it runs with and may lose data or time by. Run it with the service's
own credentials, since it also checks what they allow.

The exit status is 1 if anything is a FAIL.`,
	needs: []string{"group", "input", "snapshots", "prefix"},
	takes: []string{"transaction-timeout"},
	run:   doctor,
}

// finding is the result of one check.
type finding struct {
	Check  string `json:"check"`
	Status status `json:"status"`
	Found  string `json:"found"`
	Do     string `json:"do,omitempty"`
}

type status string

const (
	ok   status = "ok"
	warn status = "warn"
	fail status = "FAIL"
)

// exam collects findings.
type exam struct {
	*session
	failed bool
}

func (e *exam) tell(check string, s status, do, found string, args ...any) {
	e.failed = e.failed || s == fail
	f := finding{Check: check, Status: s, Found: fmt.Sprintf(found, args...)}
	if s != ok {
		f.Do = do
	}
	text := fmt.Sprintf("%-4s  %s: %s", f.Status, f.Check, f.Found)
	if f.Do != "" {
		text += ". " + f.Do
	}
	e.out.line(f, "%s", text)
}

// judge tells ok if a condition holds, and else how bad it is.
func (e *exam) judge(check string, holds bool, otherwise status, do, found string, args ...any) {
	if holds {
		otherwise = ok
	}
	e.tell(check, otherwise, do, found, args...)
}

func doctor(ctx context.Context, s *session) error {
	e := &exam{session: s}
	if err := e.brokers(ctx); err != nil {
		return err
	}
	partitions := e.topics(ctx)
	e.access(ctx)
	e.prefixOwner(ctx, partitions)
	e.snapshotLog(ctx, partitions)
	if e.failed {
		return errWrong
	}
	return nil
}

func (e *exam) brokers(ctx context.Context) error {
	versions, err := e.adm.ApiVersions(ctx)
	if err != nil {
		return fmt.Errorf("the brokers' versions: %w", err)
	}
	var ids []int32
	for _, b := range versions.Sorted() {
		name := fmt.Sprintf("broker %d", b.NodeID)
		if b.Err != nil {
			e.tell(name, warn, "See whether it runs", "it does not tell its versions: %v", b.Err)
			continue
		}
		ids = append(ids, b.NodeID)
		commit, _ := b.KeyMaxVersion(28) // TxnOffsetCommit
		fetch, _ := b.KeyMaxVersion(9)   // OffsetFetch
		e.judge(name, commit >= 3 && fetch >= 7, fail, "Apache Kafka 2.5 or newer is required: older coordinators do not check the generation in a transaction",
			"%s, TxnOffsetCommit up to version %d, OffsetFetch up to %d", b.VersionGuess(), commit, fetch)
	}
	if v, err := wire.TransactionVersion(ctx, e.cl); err != nil {
		e.tell("transaction.version", warn, "Ask again", "not known: %v", err)
	} else {
		e.judge("transaction.version", v >= 2, warn, "Version 2 (Kafka 4.0 and newer; kafka-features.sh upgrade) closes in the broker what the library must work around", "%d", v)
	}
	e.maxTimeout(ctx, ids)
	return nil
}

func (e *exam) maxTimeout(ctx context.Context, brokers []int32) {
	const name = "transaction.max.timeout.ms"
	configs, err := e.adm.DescribeBrokerConfigs(ctx, brokers...)
	least, found := time.Duration(0), false
	for _, b := range configs {
		if err == nil {
			err = b.Err
		}
		for _, c := range b.Configs {
			if c.Key != name || c.Value == nil {
				continue
			}
			if ms, bad := strconv.ParseInt(*c.Value, 10, 64); bad == nil && (!found || time.Duration(ms)*time.Millisecond < least) {
				least, found = time.Duration(ms)*time.Millisecond, true
			}
		}
	}
	switch {
	case found:
		e.judge(name, e.transactionTimeout <= least, fail, "Lower TransactionTimeout, or raise it in the brokers", "%v, and the service asks for %v", least, e.transactionTimeout)
	case err != nil:
		e.tell(name, warn, "Allow DescribeConfigs on the cluster, or see that it is at least "+e.transactionTimeout.String(), "not known: %v", err)
	default:
		e.tell(name, warn, "See that it is at least "+e.transactionTimeout.String(), "the brokers do not tell")
	}
}

// topics checks both topics, and returns how many partitions there are, 0 if that
// is not known.
func (e *exam) topics(ctx context.Context) int {
	input, inputErr := e.topic(ctx, e.input)
	if inputErr != nil {
		e.tell("input topic", fail, "Create it, or allow Describe on it", "%v", inputErr)
	}
	state, err := e.topic(ctx, e.snapshots)
	if err != nil {
		e.tell("snapshot topic", fail, "Create it with as many partitions as the input and cleanup.policy=compact, or let the service do so (CreateSnapshotTopic); or allow Describe on it", "%v", err)
		return len(input.Partitions)
	}
	if inputErr == nil {
		i, n := len(input.Partitions), len(state.Partitions)
		e.judge("partitions", i == n, fail, fmt.Sprintf("Use a snapshot topic with %d: a key's state must be in the partition of its events", i), "%s has %d, %s has %d", e.input, i, e.snapshots, n)
	}
	replicas := state.Partitions.NumReplicas()
	e.judge("replication", replicas >= 3, warn, "Three replicas survive the loss of one broker while another is being restarted", "%s has %d replicas", e.snapshots, replicas)
	e.configs(ctx)
	return len(state.Partitions)
}

func (e *exam) configs(ctx context.Context) {
	rcs, err := e.adm.DescribeTopicConfigs(ctx, e.snapshots)
	var rc kadm.ResourceConfig
	if err == nil {
		rc, err = rcs.On(e.snapshots, nil)
	}
	if err == nil {
		err = rc.Err
	}
	if err != nil {
		e.tell("snapshot topic's settings", warn, "Allow DescribeConfigs on "+e.snapshots+"; its cleanup.policy must be compact", "not known: %v", err)
		return
	}
	settings := make(map[string]string)
	for _, c := range rc.Configs {
		if c.Value != nil {
			settings[c.Key] = *c.Value
		}
	}
	alter := func(setting string) string {
		return fmt.Sprintf("kafka-configs.sh --bootstrap-server %s --alter --entity-type topics --entity-name %s --add-config %s", strings.Join(e.settings.brokers, ","), e.snapshots, setting)
	}
	e.judge("cleanup.policy", settings["cleanup.policy"] == "compact", fail, "With delete, the state of keys that do not change is lost: "+alter("cleanup.policy=compact"), "%s", settings["cleanup.policy"])
	insync, _ := strconv.Atoi(settings["min.insync.replicas"])
	e.judge("min.insync.replicas", insync >= 2, warn, "With 1, an acknowledged snapshot can be lost with one disk: "+alter("min.insync.replicas=2"), "%s", settings["min.insync.replicas"])
	unclean := settings["unclean.leader.election.enable"]
	e.judge("unclean.leader.election.enable", unclean != "true", warn, "A replica that lacks acknowledged snapshots may become leader: "+alter("unclean.leader.election.enable=false"), "%s", orDash(unclean))
	e.tell("max.message.bytes", ok, "", "%s: larger snapshots are refused", orDash(settings["max.message.bytes"]))
}

// prefixOwner looks for other producers that use the prefix.
func (e *exam) prefixOwner(ctx context.Context, partitions int) {
	known, err := e.ofPrefix(ctx)
	if err != nil {
		e.tell("prefix", warn, "Allow Describe on TransactionalId "+e.prefix+"-*", "who else uses it is not known: %v", err)
		return
	}
	var strangers []string
	own := 0
	for _, d := range known.Sorted() {
		if at := snapshotPartition(e.prefix, d.TxnID); at >= 0 && (partitions == 0 || int(at) < partitions) {
			own++
		} else {
			strangers = append(strangers, d.TxnID)
		}
	}
	e.judge("prefix", len(strangers) == 0, warn, "They may belong to another service: give each a prefix of its own", "%d transactional ids of the service, others that begin with %s-: %d %s",
		own, e.prefix, len(strangers), strings.Join(strangers, " "))
}

// snapshotPartition is the partition that a service's transactional id is for, -1
// if it is none.
func snapshotPartition(prefix, id string) int32 {
	number, found := strings.CutPrefix(id, prefix+"-snapshot-")
	n, err := strconv.ParseInt(number, 10, 32)
	if !found || err != nil || n < 0 {
		return -1
	}
	return int32(n)
}

// snapshotLog tells what keeps the snapshots from being read.
func (e *exam) snapshotLog(ctx context.Context, partitions int) {
	if partitions == 0 {
		return
	}
	diagnoses, err := persistence.Diagnose(ctx, e.cl, e.snapshots)
	if err != nil {
		e.tell("snapshots", warn, "Ask again", "whether they can be read is not known: %v", err)
		return
	}
	readable := 0
	for _, d := range diagnoses {
		name := fmt.Sprintf("snapshots, partition %d", d.Partition)
		switch d.Condition {
		case persistence.Readable:
			readable++
		case persistence.TransactionOpen, persistence.ConditionUnknown:
			e.tell(name, warn, "", "%v", d)
		default:
			e.tell(name, fail, "", "%v", d)
		}
	}
	if readable == len(diagnoses) {
		e.tell("snapshots", ok, "", "all %d partitions can be read to their ends", readable)
	}
}

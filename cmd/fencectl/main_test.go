package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	"go.uber.org/goleak"

	"github.com/kafkafence/persistence"
)

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" { // a test runs the command as a process, to kill it
		main()
	}
	goleak.VerifyTestMain(m)
}

const asCommand = "FENCECTL_TEST_AS_COMMAND"

// bench is a cluster with a service's topics, in which the service has folded five
// events and stopped: order-0 and order-1 twice, order-2 deleted.
type bench struct {
	*testing.T
	cluster *kfake.Cluster
	ctx     context.Context
	cl      *kgo.Client
	brokers string
}

func newBench(t *testing.T, opts ...kfake.Opt) *bench {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(2, "orders")}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	require.NoError(t, c.CreateTopic("state", 2, map[string]string{"cleanup.policy": "compact"}))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return &bench{T: t, cluster: c, ctx: ctx, brokers: strings.Join(c.ListenAddrs(), ",")}
}

func (b *bench) client(opts ...kgo.Opt) *kgo.Client {
	b.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner())}, opts...)...)
	require.NoError(b, err)
	b.Cleanup(cl.Close)
	return cl
}

func served(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	b.cl = b.client()
	for _, e := range []struct{ key, value string }{{"order-0", "1"}, {"order-1", "1"}, {"order-0", "2"}, {"order-2", "1"}, {"order-1", "2"}} {
		require.NoError(b, b.cl.ProduceSync(b.ctx, &kgo.Record{Topic: "orders", Key: []byte(e.key), Value: []byte(e.value)}).FirstErr())
	}
	m, err := persistence.New(
		persistence.Kafka(kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.ConsumerGroup("g"), kgo.ConsumeTopics("orders"), kgo.FetchMaxWait(50*time.Millisecond)),
		persistence.SnapshotTopic("state"), persistence.TransactionalIDPrefix("p"), persistence.Logger(slog.New(slog.DiscardHandler)))
	require.NoError(b, err)
	ctx, stop := context.WithCancel(b.ctx)
	defer stop()
	err = m.Run(ctx, func(ctx context.Context, p *persistence.Partition) error {
		for {
			events, err := p.Poll(ctx)
			if err != nil {
				return err
			}
			for _, e := range events {
				s := persistence.Snapshot{Key: e.Key, Value: e.Value, SourceOffset: e.Offset}
				if string(e.Key) == "order-2" {
					s.Value = nil
				}
				if err := p.Apply(ctx, persistence.Batch{Snapshots: []persistence.Snapshot{s}, Through: e}); err != nil {
					return err
				}
				if e.Offset == 4 {
					stop()
				}
			}
		}
	})
	require.NoError(b, err)
	require.NoError(b, m.Close(b.ctx))
	return b
}

// call runs the command as a user does.
func (b *bench) call(want int, args ...string) (stdout, stderr string) {
	b.Helper()
	var out, err bytes.Buffer
	got := run(b.ctx, append(args, "--brokers", b.brokers), &out, &err)
	require.Equal(b, want, got, "%v\n%s\n%s", args, out.String(), err.String())
	return out.String(), err.String()
}

// objects parses JSON, one object a line.
func (b *bench) objects(text string) (all []map[string]any) {
	b.Helper()
	for line := range strings.Lines(text) {
		var o map[string]any
		require.NoError(b, json.Unmarshal([]byte(line), &o), line)
		all = append(all, o)
	}
	return all
}

var service = []string{"--group", "g", "--input", "orders", "--snapshots", "state"}

func with(name string, more ...string) []string {
	return append(append([]string{name}, service...), more...)
}

func TestASoundServiceIsFoundSound(t *testing.T) {
	b := served(t)
	text, _ := b.call(exitOK, with("doctor", "--prefix", "p")...)
	for _, s := range []string{"ok    partitions: orders has 2, state has 2", "ok    cleanup.policy: compact", "warn  replication", "ok    prefix: 2 transactional ids of the service",
		"ok    snapshots: all 2 partitions can be read to their ends", "ok    transaction.version: 2"} {
		require.Contains(t, text, s)
	}
	require.NotContains(t, text, "FAIL")
	text, _ = b.call(exitOK, with("doctor", "--prefix", "p", "--format", "json")...)
	checks := make(map[any]any)
	for _, o := range b.objects(text) {
		checks[o["check"]] = o["status"]
	}
	require.Equal(t, "ok", checks["cleanup.policy"])
	require.Equal(t, "warn", checks["min.insync.replicas"])

	text, _ = b.call(exitOK, with("verify", "--format", "json")...)
	rows := b.objects(text)
	require.Len(t, rows, 2)
	require.Equal(t, "ours", rows[0]["commit"])
	require.EqualValues(t, 5, rows[0]["committed"])
	require.EqualValues(t, 5, rows[0]["committable_offset"])
	require.Equal(t, "none", rows[1]["commit"])
	text, _ = b.call(exitOK, with("verify")...)
	require.Contains(t, text, "MISMATCHES")

	text, _ = b.call(exitOK, "transactions", "--snapshots", "state", "--prefix", "p")
	require.Contains(t, text, "no transaction is open on state")
}

func TestLagIsToTheHighWatermark(t *testing.T) {
	b := served(t)
	tx := b.client(kgo.TransactionalID("other"))
	require.NoError(t, tx.BeginTransaction())
	require.NoError(t, tx.ProduceSync(b.ctx, &kgo.Record{Topic: "orders", Key: []byte("k")}, &kgo.Record{Topic: "state", Partition: 1, Key: []byte("k")}).FirstErr())
	text, _ := b.call(exitOK, with("lag", "--format", "json")...)
	rows := b.objects(text)
	require.Len(t, rows, 3)
	require.EqualValues(t, 5, rows[0]["committed"])
	require.EqualValues(t, 1, rows[0]["lag"], "the open transaction's record is not stable, and is to come")
	require.EqualValues(t, 1, rows[0]["input_open"])
	require.EqualValues(t, 1, rows[1]["snapshots_open"])
	require.EqualValues(t, 1, rows[2]["lag"], "in total")
	text, _ = b.call(exitOK, with("lag", "--partition", "1", "--format", "json")...)
	require.Len(t, b.objects(text), 2)
	b.call(exitUsage, with("lag", "--partition", "9")...)
}

func TestKeysAndValuesAreTheNewestCommitted(t *testing.T) {
	b := served(t)
	text, _ := b.call(exitOK, "keys", "--snapshots", "state")
	require.Contains(t, text, "order-0")
	require.Contains(t, text, "order-1")
	require.NotContains(t, text, "order-2", "it was deleted")
	text, note := b.call(exitOK, "keys", "--snapshots", "state", "--limit", "1", "--format", "json")
	require.Len(t, b.objects(text), 1)
	require.Contains(t, note, "1 of 2 keys")

	text, note = b.call(exitOK, "get", "order-1", "--snapshots", "state")
	require.Equal(t, "2", text, "the bytes and nothing else")
	require.Contains(t, note, "source offset 4")
	text, _ = b.call(exitOK, "get", "--key-format", "hex", "--snapshots", "state", "--format", "json", "6f726465722d31")
	require.Equal(t, "Mg==", b.objects(text)[0]["value_base64"])
	_, note = b.call(exitWrong, "get", "order-2", "--snapshots", "state")
	require.Contains(t, note, "was deleted")
	_, note = b.call(exitWrong, "get", "nobody", "--snapshots", "state")
	require.Contains(t, note, "no snapshot")
}

func TestHistoryTellsWhatBecameOfEachVersion(t *testing.T) {
	b := served(t)
	for _, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		tx := b.client(kgo.TransactionalID("other"))
		require.NoError(t, tx.BeginTransaction())
		require.NoError(t, tx.ProduceSync(b.ctx, &kgo.Record{Topic: "state", Key: []byte("order-0")}).FirstErr())
		tx.PurgeTopicsFromProducing("")
		require.NoError(t, tx.EndTransaction(b.ctx, end))
	}
	tx := b.client(kgo.TransactionalID("open"))
	require.NoError(t, tx.BeginTransaction())
	require.NoError(t, tx.ProduceSync(b.ctx, &kgo.Record{Topic: "state", Key: []byte("order-0"), Value: []byte("x")}).FirstErr())
	text, _ := b.call(exitOK, "history", "order-0", "--snapshots", "state", "--format", "json")
	var states []any
	for _, o := range b.objects(text) {
		states = append(states, o["state"])
	}
	require.Equal(t, []any{"committed", "committed", "aborted", "committed", "open"}, states)
	b.call(exitWrong, "history", "nobody", "--snapshots", "state")

	_, note := b.call(exitOK, "get", "order-1", "--snapshots", "state")
	require.Contains(t, note, "a transaction is open, so it is read up to its last stable offset")
	text, _ = b.call(exitOK, "transactions", "--snapshots", "state")
	require.Contains(t, text, "forceTerminateTransaction --transactionalId open")
	text, _ = b.call(exitOK, "transactions", "--snapshots", "state", "--format", "json")
	o := b.objects(text)[0]
	require.Equal(t, "open", o["transactional_id"])
	require.Equal(t, "transaction open", o["condition"])
	text, _ = b.call(exitOK, with("doctor", "--prefix", "p")...)
	require.Contains(t, text, "warn  snapshots, partition 0: a transaction is open")
}

func TestDoctorFindsWhatIsWrong(t *testing.T) {
	b := newBench(t)
	require.NoError(t, b.cluster.CreateTopic("deletes", 3, map[string]string{"cleanup.policy": "delete"}))
	b.cl = b.client(kgo.TransactionalID("p-3"))
	_, _, err := b.cl.ProducerID(b.ctx)
	require.NoError(t, err)
	text, _ := b.call(exitWrong, "doctor", "--group", "g", "--input", "orders", "--snapshots", "deletes", "--prefix", "p", "--transaction-timeout", "20m")
	for _, s := range []string{
		"FAIL  partitions: orders has 2, deletes has 3. Use a snapshot topic with 2",
		"FAIL  cleanup.policy: delete. With delete, the state of keys that do not change is lost: kafka-configs.sh",
		"warn  prefix: 0 transactional ids of the service, others that begin with p-: 1 p-3",
	} {
		require.Contains(t, text, s)
	}
	text, _ = b.call(exitWrong, "doctor", "--group", "g", "--input", "nothing", "--snapshots", "state", "--prefix", "p")
	require.Contains(t, text, "FAIL  input topic: topic nothing: UNKNOWN_TOPIC_OR_PARTITION")
}

func TestVerifyNamesAMismatch(t *testing.T) {
	b := served(t)
	var ahead kadm.Offsets
	ahead.AddOffset("orders", 0, 5, -1)
	require.NoError(t, b.cl.ProduceSync(b.ctx, &kgo.Record{Topic: "orders", Key: []byte("k")}).FirstErr())
	ahead.AddOffset("orders", 0, 6, -1)
	require.Eventually(t, func() bool { return kadm.NewClient(b.cl).CommitAllOffsets(b.ctx, "g", ahead) == nil }, 30*time.Second, 10*time.Millisecond)
	text, _ := b.call(exitWrong, with("verify")...)
	require.Contains(t, text, "OffsetAhead")
	require.Contains(t, text, "OnMismatch(OffsetAhead, Resume)")
	text, _ = b.call(exitWrong, with("verify", "--format", "json")...)
	require.Equal(t, "OffsetAhead", b.objects(text)[0]["mismatches"].([]any)[0].(map[string]any)["name"])
}

func TestFaultsOfTheCommandLineAreReportedTogether(t *testing.T) {
	var out, err bytes.Buffer
	require.Equal(t, exitUsage, run(context.Background(), []string{"lag", "--partition", "x", "--format", "xml", "--sasl", "plain", "--tls-ca", "f", "more"}, &out, &err))
	for _, s := range []string{"--group GROUP is required", "--input TOPIC is required", `--partition "x"`, `--format "xml": only text and json`, "--sasl-user is required",
		"a password is required", "--tls-ca: only with --tls", `["more"]: no argument is allowed`, "fencectl help lag"} {
		require.Contains(t, err.String(), s)
	}
	require.Empty(t, out.String())
	require.Equal(t, exitUsage, run(context.Background(), nil, &out, &err))
	require.Equal(t, exitUsage, run(context.Background(), []string{"nothing"}, &out, &err))
	require.Equal(t, exitUsage, run(context.Background(), []string{"help", "nothing"}, &out, &err))
	for _, c := range commands() {
		out.Reset()
		require.Equal(t, exitOK, run(context.Background(), []string{"help", c.name}, &out, &err))
		require.Contains(t, out.String(), "Usage: fencectl "+c.name)
		require.Contains(t, out.String(), "Exit status:")
		require.Equal(t, exitOK, run(context.Background(), []string{c.name, "--help"}, &out, &err))
	}
	out.Reset()
	require.Equal(t, exitOK, run(context.Background(), []string{"help"}, &out, &err))
	require.Contains(t, out.String(), "doctor")
}

func TestAClusterThatDoesNotAnswerIsNotTakenForASoundOne(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	var out, errs bytes.Buffer
	require.Equal(t, exitBlind, run(context.Background(), []string{"transactions", "--snapshots", "state", "--brokers", address, "--timeout", "2s"}, &out, &errs))
	require.Contains(t, errs.String(), "no broker of "+address+" can be talked to")
}

func TestLoggingInAndTLS(t *testing.T) {
	certificate, authority := newCertificate(t)
	b := newBench(t, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{certificate}}), kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-256", "admin", "secret"))
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, authority, 0o600))
	password := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(password, []byte("secret\n"), 0o600))
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(authority))
	admin := b.client(kgo.DialTLSConfig(&tls.Config{RootCAs: pool}), kgo.SASL(scram.Auth{User: "admin", Pass: "secret"}.AsSha256Mechanism()))
	require.NoError(t, admin.ProduceSync(b.ctx, &kgo.Record{Topic: "state", Key: []byte("k"), Value: []byte("v")}).FirstErr())

	secure := []string{"get", "k", "--snapshots", "state", "--tls", "--tls-ca", ca, "--sasl", "scram-sha-256", "--sasl-user", "admin", "--timeout", "5s"}
	text, _ := b.call(exitOK, append(secure, "--sasl-password-file", password)...)
	require.Equal(t, "v", text)
	t.Setenv(passwordVariable, "secret")
	text, _ = b.call(exitOK, secure...)
	require.Equal(t, "v", text)
	t.Setenv(passwordVariable, "wrong")
	_, note := b.call(exitBlind, secure...)
	require.Contains(t, note, "can be talked to")
	b.call(exitBlind, "get", "k", "--snapshots", "state", "--timeout", "2s") // without TLS
	b.call(exitUsage, "get", "k", "--snapshots", "state", "--tls", "--tls-ca", password)
}

// doctor looks with the service's own credentials, and says what they lack.
func TestDoctorChecksACLs(t *testing.T) {
	allow := func(resource kmsg.ACLResourceType, name string, ops ...kmsg.ACLOperation) (acls []kfake.ACL) {
		for _, op := range ops {
			acls = append(acls, kfake.ACL{Resource: resource, Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: op, Allow: true})
		}
		return acls
	}
	read, describe := kmsg.ACLOperationRead, kmsg.ACLOperationDescribe
	acls := slices.Concat(
		allow(kmsg.ACLResourceTypeTopic, "orders", read, describe),
		allow(kmsg.ACLResourceTypeTopic, "state", read, describe),
		allow(kmsg.ACLResourceTypeGroup, "g", read, describe))
	b := newBench(t, kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "admin", "secret"), kfake.User("PLAIN", "service", "secret", acls...))
	t.Setenv(passwordVariable, "secret")
	text, note := b.call(exitWrong, with("doctor", "--prefix", "p", "--sasl", "plain", "--sasl-user", "service")...)
	require.Contains(t, text, "ok    ACLs of topic orders: needed: READ, DESCRIBE; missing: -")
	require.Contains(t, text, "FAIL  ACLs of topic state: needed: READ, WRITE, DESCRIBE, DESCRIBE_CONFIGS; missing: WRITE, DESCRIBE_CONFIGS. Allow them")
	require.Contains(t, text, "FAIL  ACLs of TransactionalId p-snapshot-*: TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
	require.Contains(t, text, "warn  snapshot topic's settings: not known: TOPIC_AUTHORIZATION_FAILED")
	require.Contains(t, note, "the password goes over the network as it is")

	text, _ = b.call(exitOK, with("doctor", "--prefix", "p", "--sasl", "plain", "--sasl-user", "admin")...)
	require.Contains(t, text, "ok    ACLs of topic state")
	require.Contains(t, text, "ok    ACLs of TransactionalId p-snapshot-*: Describe is allowed on p-snapshot-0; Write is needed too")
}

// newCertificate is for 127.0.0.1 and its own authority.
func newCertificate(t *testing.T) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

package persistence_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence"
	"github.com/kafkafence/persistence/internal/scenario"
)

// Diagnoses of what only an in-process cluster can be brought to: brokers that do
// not answer, or not that.

// answer has all requests of a kind answered by a function; ok is false for those
// that the cluster answers.
func answer[R kmsg.Request](c *kfake.Cluster, with func(R) (resp kmsg.Response, ok bool)) {
	var r R
	c.ControlKey(r.Key(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp, ok := with(kreq.(R))
		return resp, nil, ok
	})
}

// silence lets a broker answer nothing of some kinds, or nothing at all.
func silence(c *kfake.Cluster, node int32, keys ...kmsg.Key) {
	for _, k := range keys {
		c.ControlKey(k.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			return nil, nil, c.CurrentNode() == node
		})
	}
}

// forgetTransactions makes the coordinators deny that they know any transaction.
func forgetTransactions(c *kfake.Cluster) {
	answer(c, func(r *kmsg.ListTransactionsRequest) (kmsg.Response, bool) { return r.ResponseKind(), true })
}

// leaderless has the cluster say that a snapshot partition has no leader.
func leaderless(w *scenario.World, c *kfake.Cluster) {
	id := c.TopicInfo(w.State).TopicID
	answer(c, func(r *kmsg.MetadataRequest) (kmsg.Response, bool) {
		if len(r.Topics) != 1 || r.Topics[0].Topic == nil || *r.Topics[0].Topic != w.State {
			return nil, false
		}
		resp := r.ResponseKind().(*kmsg.MetadataResponse)
		rt := kmsg.NewMetadataResponseTopic()
		rt.Topic, rt.TopicID = &w.State, id
		rp := kmsg.NewMetadataResponseTopicPartition()
		rp.ErrorCode, rp.Leader, rp.LeaderEpoch, rp.Replicas = kerr.LeaderNotAvailable.Code, -1, 7, []int32{0, 2}
		rt.Partitions = append(rt.Partitions, rp)
		resp.Topics = append(resp.Topics, rt)
		return resp, true
	})
}

func TestRecoveryNamesATransactionThatNoCoordinatorKnows(t *testing.T) {
	w, c := clusterWorld(t, scenario.HangingPartitions())
	forgetTransactions(c)
	scenario.HangingEndings(w, func(partition int32) {
		f := w.Foreign(fmt.Sprint("hangs", partition))
		require.NoError(w, f.BeginTransaction())
		require.NoError(w, f.ProduceSync(w.Ctx, &kgo.Record{Topic: w.State, Partition: partition, Key: []byte("held"), Value: []byte("1")}).FirstErr())
	})
}

func TestDiagnoseSaysWhatItCouldFindOut(t *testing.T) {
	everyKey := []kmsg.Key{kmsg.ApiVersions, kmsg.Metadata, kmsg.ListOffsets, kmsg.DescribeProducers, kmsg.ListTransactions, kmsg.DescribeTransactions, kmsg.FindCoordinator}
	for name, c := range map[string]struct {
		open   bool // a transaction, from offset 1 on
		broken func(w *scenario.World, c *kfake.Cluster)
		want   persistence.Condition
		says   string // in the finding
		notes  []string
		then   func(w *scenario.World, d persistence.Diagnosis)
	}{
		"nothing is wrong": {
			want: persistence.Readable,
			says: "the log can be read up to 1",
		},
		"the leader answers nothing": {
			broken: func(w *scenario.World, c *kfake.Cluster) { silence(c, c.LeaderFor(w.State, 0), everyKey...) },
			want:   persistence.LeaderUnreachable,
			says:   "does not answer: ",
		},
		"the leader does not tell the log's bounds in time": {
			broken: func(w *scenario.World, c *kfake.Cluster) { silence(c, c.LeaderFor(w.State, 0), kmsg.ListOffsets) },
			want:   persistence.LeaderUnreachable,
			says:   "does not answer: ",
		},
		"the partition has no leader": {
			broken: leaderless,
			want:   persistence.LeaderUnreachable,
			says:   "the partition has no leader; its replicas are on brokers [0 2]",
			then: func(w *scenario.World, d persistence.Diagnosis) {
				require.EqualValues(w, -1, d.Leader)
				require.EqualValues(w, 7, d.LeaderEpoch)
				require.Contains(w, d.Commands[0], "--describe --topic "+w.State)
			},
		},
		"the client may not read the log's bounds": {
			broken: func(_ *scenario.World, c *kfake.Cluster) {
				c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Err: kerr.TopicAuthorizationFailed, Count: -1})
			},
			want:  persistence.ConditionUnknown,
			says:  "the log's bounds cannot be read",
			notes: []string{"the log's bounds: TOPIC_AUTHORIZATION_FAILED"},
		},
		"the client may not see the producers": {
			open: true,
			broken: func(_ *scenario.World, c *kfake.Cluster) {
				c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeProducers}, Err: kerr.TopicAuthorizationFailed, Count: -1})
			},
			want:  persistence.TransactionOpen,
			says:  "a transaction is open and holds the last stable offset at 1",
			notes: []string{"the transactions open on the partition: TOPIC_AUTHORIZATION_FAILED"},
			then: func(w *scenario.World, d persistence.Diagnosis) {
				require.Empty(w, d.Transactions)
				require.Contains(w, d.Commands[0], "describe-producers --topic "+w.State+" --partition 0")
			},
		},
		"the coordinators do not list their transactions": {
			open: true,
			broken: func(_ *scenario.World, c *kfake.Cluster) {
				c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListTransactions}, Err: kerr.CoordinatorLoadInProgress, TopLevel: true, Count: -1})
			},
			want:  persistence.TransactionOpen,
			says:  "open since offset 1",
			notes: []string{"the transactional ids of the open transactions: "},
			then: func(w *scenario.World, d persistence.Diagnosis) {
				require.False(w, d.Transactions[0].Hanging, "nobody has said that it does")
				require.Empty(w, d.Transactions[0].TransactionalID)
				require.EqualValues(w, -1, d.Transactions[0].Coordinator)
			},
		},
		"the client may not see the transaction": {
			open: true,
			broken: func(_ *scenario.World, c *kfake.Cluster) {
				c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeTransactions}, Err: kerr.TransactionalIDAuthorizationFailed, Count: -1})
			},
			want:  persistence.TransactionOpen,
			says:  "-holds",
			notes: []string{"the states of the open transactions: TRANSACTIONAL_ID_AUTHORIZATION_FAILED"},
			then:  notDescribed,
		},
		"the coordinator cannot describe the transaction": {
			open: true,
			broken: func(_ *scenario.World, c *kfake.Cluster) {
				c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeTransactions}, Err: kerr.UnknownServerError, Count: -1})
			},
			want:  persistence.TransactionOpen,
			says:  "-holds",
			notes: []string{"the state of transactional id ", "-holds: UNKNOWN_SERVER_ERROR"},
			then:  notDescribed,
		},
		"no coordinator knows the transaction": {
			open:   true,
			broken: func(_ *scenario.World, c *kfake.Cluster) { forgetTransactions(c) },
			want:   persistence.TransactionHanging,
			says:   "No coordinator knows it as under way",
			then: func(w *scenario.World, d persistence.Diagnosis) {
				require.Contains(w, d.Commands[0], "abort --topic "+w.State+" --partition 0 --start-offset 1")
			},
		},
		"the coordinator has the producer in a transaction without this partition": {
			open: true,
			broken: func(_ *scenario.World, c *kfake.Cluster) {
				answer(c, func(r *kmsg.DescribeTransactionsRequest) (kmsg.Response, bool) {
					resp := r.ResponseKind().(*kmsg.DescribeTransactionsResponse)
					s := kmsg.NewDescribeTransactionsResponseTransactionState()
					s.TransactionalID, s.State = r.TransactionalIDs[0], "Ongoing"
					resp.TransactionStates = append(resp.TransactionStates, s)
					return resp, true
				})
			},
			want: persistence.TransactionHanging,
			says: "-holds",
		},
		"the transaction ends between what the coordinators say and what the leader says": {
			open: true,
			broken: func(w *scenario.World, c *kfake.Cluster) {
				c.ControlKey(kmsg.ListTransactions.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
					c.SleepControl(func() { abortAll(w) })
					return r.ResponseKind(), nil, true
				})
			},
			want: persistence.Readable,
			says: "the log can be read up to ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, 1, func(w *scenario.World, cluster *kfake.Cluster) {
				w.Put("a", "1")
				if c.open {
					w.Foreign("holds").Begin("open", "1")
				}
				if c.broken != nil {
					c.broken(w, cluster)
				}
				began := time.Now()
				all, err := persistence.Diagnose(w.Ctx, w.Client(), w.State)
				require.NoError(w, err)
				require.Less(w, time.Since(began), time.Minute)
				require.Len(w, all, 1)
				d := all[0]
				require.Equal(w, c.want, d.Condition, "%v", d)
				require.Contains(w, d.Finding, c.says)
				if len(c.notes) == 0 {
					require.Empty(w, d.Notes)
				}
				for _, note := range c.notes {
					require.Contains(w, d.String(), note)
				}
				if c.then != nil {
					c.then(w, d)
				}
			})
		})
	}
}

// notDescribed: a transaction that is listed is not taken to hang because more is
// not known.
func notDescribed(w *scenario.World, d persistence.Diagnosis) {
	require.False(w, d.Transactions[0].Hanging)
	require.Equal(w, "Ongoing", d.Transactions[0].State)
	require.Zero(w, d.Transactions[0].Expires())
}

// abortAll writes the markers of all transactions on snapshot partition 0.
func abortAll(w *scenario.World) {
	adm := kadm.NewClient(w.Admin)
	at := make(kadm.TopicsSet)
	at.Add(w.State, 0)
	described, err := adm.DescribeProducers(w.Ctx, at)
	require.NoError(w, err)
	for _, p := range described[w.State].Partitions[0].ActiveProducers {
		_, err := adm.WriteTxnMarkers(w.Ctx, kadm.TxnMarkers{ProducerID: p.ProducerID, ProducerEpoch: p.ProducerEpoch, Topics: at})
		require.NoError(w, err)
	}
}

func TestDiagnoseFailsForATopicThatCannotBeLookedUp(t *testing.T) {
	inVirtualTime(t, 1, func(w *scenario.World, c *kfake.Cluster) {
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: w.State, Err: kerr.TopicAuthorizationFailed, Count: -1})
		_, err := persistence.Diagnose(w.Ctx, w.Client(), w.State)
		require.ErrorIs(w, err, kerr.TopicAuthorizationFailed)
		require.ErrorContains(w, err, w.State)
	})
}

func TestDiagnoseFailsWhereNoBrokerAnswers(t *testing.T) {
	inVirtualTime(t, 1, func(w *scenario.World, c *kfake.Cluster) {
		for node := range int32(3) {
			silence(c, node, kmsg.Metadata)
		}
		began := time.Now()
		_, err := persistence.Diagnose(w.Ctx, w.Admin, w.State)
		require.ErrorContains(w, err, "diagnosing topic "+w.State+": no broker answers: ")
		require.Less(w, time.Since(began), 30*time.Second)
	})
}

// A diagnosis ends with its context.
func TestDiagnoseEndsWithItsContext(t *testing.T) {
	inVirtualTime(t, 2, func(w *scenario.World, c *kfake.Cluster) {
		for node := range int32(3) {
			silence(c, node, kmsg.ListOffsets)
		}
		ctx, cancel := context.WithTimeout(w.Ctx, 2*time.Second)
		defer cancel()
		began := time.Now()
		_, err := persistence.Diagnose(ctx, w.Client(), w.State)
		require.ErrorIs(w, err, context.DeadlineExceeded)
		require.Less(w, time.Since(began), 3*time.Second)
	})
}

package wire

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a cluster with an input topic, a state topic and a group.
type bench struct {
	*testing.T
	*kfake.Cluster
	ctx   context.Context
	input Topic
	cl    *kgo.Client
}

func newBench(t *testing.T, opts ...kfake.Opt) *bench {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(2), kfake.SeedTopics(3, "in"), kfake.SeedTopics(1, "state")}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	b := &bench{T: t, Cluster: c, ctx: ctx, input: Topic{Name: "in", ID: c.TopicInfo("in").TopicID}}
	b.cl = b.client()
	return b
}

func (b *bench) client(opts ...kgo.Opt) *kgo.Client {
	b.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.ListenAddrs()...), kgo.DisableClientMetrics(), kgo.MetadataMinAge(10 * time.Millisecond)}, opts...)...)
	require.NoError(b, err)
	b.Cleanup(cl.Close)
	return cl
}

// join makes a member of the group and waits for its generation.
func (b *bench) join(opts ...kgo.Opt) Member {
	b.Helper()
	cl := b.client(append([]kgo.Opt{kgo.ConsumerGroup("group"), kgo.ConsumeTopics("in"), kgo.DisableAutoCommit(), kgo.FetchMaxWait(50 * time.Millisecond)}, opts...)...)
	for b.ctx.Err() == nil {
		if id, generation := cl.GroupMetadata(); id != "" && generation > 0 {
			return Member{Group: "group", ID: id, Generation: generation}
		}
		poll, cancel := context.WithTimeout(b.ctx, 10*time.Millisecond)
		cl.PollFetches(poll)
		cancel()
	}
	b.Fatal("no generation")
	return Member{}
}

// txn is a producer with an open transaction.
type txn struct {
	b  *bench
	cl *kgo.Client
	Producer
}

func (b *bench) begin(version int16, id string) *txn {
	b.Helper()
	tx := &txn{b: b, cl: b.client(kgo.TransactionalID(id), kgo.MaxVersions(PinVersions(nil, version)), kgo.ConcurrentTransactionsBackoff(time.Millisecond))}
	require.NoError(b, tx.cl.BeginTransaction())
	pid, epoch, err := tx.cl.ProducerID(b.ctx)
	require.NoError(b, err)
	tx.Producer = Producer{TransactionalID: id, ID: pid, Epoch: epoch}
	return tx
}

func (tx *txn) end(commit kgo.TransactionEndTry) {
	tx.b.Helper()
	require.NoError(tx.b, tx.cl.ProduceSync(tx.b.ctx, &kgo.Record{Topic: "state", Key: []byte("k")}).FirstErr())
	tx.cl.PurgeTopicsFromProducing("") // kgo may not have stored the topic yet, and would end nothing
	require.NoError(tx.b, tx.cl.EndTransaction(tx.b.ctx, commit))
}

func TestAnOffsetInATransactionIsTheGroupsWhenItCommits(t *testing.T) {
	for version := range int16(3) {
		t.Run(fmt.Sprintf("transaction.version %d", version), func(t *testing.T) {
			b := newBench(t)
			m := b.join()
			pos := Position{Offset: 42, Epoch: 3, Metadata: "note"}
			for i, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
				tx := b.begin(version, "p"+strconv.Itoa(i))
				if version < 2 {
					require.NoError(t, AddOffsetsToTxn(b.ctx, tx.cl, tx.Producer, "group"))
				}
				require.NoError(t, TxnOffsetCommit(b.ctx, tx.cl, tx.Producer, m, b.input, 1, pos))
				_, err := CommittedOffset(b.ctx, b.cl, "group", b.input, 1)
				require.ErrorIs(t, err, kerr.UnstableOffsetCommit, "it is pending")
				tx.end(end)
				c, err := StableOffset(b.ctx, b.cl, "group", b.input, 1)
				require.NoError(t, err)
				if end == kgo.TryAbort {
					require.EqualValues(t, -1, c.Offset)
				} else {
					require.Equal(t, Committed{Offset: 42, Epoch: 3, Metadata: "note"}, c)
				}
			}
		})
	}
}

func TestTheCommitCarriesAllThatIdentifiesTheMemberAndTheTopic(t *testing.T) {
	b := newBench(t)
	var got *kmsg.TxnOffsetCommitRequest
	b.ControlKey(kmsg.TxnOffsetCommit.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		got = r.(*kmsg.TxnOffsetCommitRequest)
		return nil, nil, false
	})
	instance := "pod-3"
	p := Producer{TransactionalID: "p", ID: 77, Epoch: 5}
	m := Member{Group: "group", ID: "member-1", InstanceID: &instance, Generation: 9}
	require.Error(t, TxnOffsetCommit(b.ctx, b.cl, p, m, b.input, 2, Position{Offset: 11, Epoch: 4, Metadata: "note"}), "nobody knows this producer")
	require.Equal(t, "p", got.TransactionalID)
	require.EqualValues(t, 77, got.ProducerID)
	require.EqualValues(t, 5, got.ProducerEpoch)
	require.Equal(t, "group", got.Group)
	require.Equal(t, "member-1", got.MemberID)
	require.Equal(t, "pod-3", *got.InstanceID)
	require.EqualValues(t, 9, got.Generation)
	require.Len(t, got.Topics, 1)
	require.Equal(t, b.input.ID, got.Topics[0].TopicID)
	require.Len(t, got.Topics[0].Partitions, 1)
	part := got.Topics[0].Partitions[0]
	require.EqualValues(t, 2, part.Partition)
	require.EqualValues(t, 11, part.Offset)
	require.EqualValues(t, 4, part.LeaderEpoch)
	require.Equal(t, "note", *part.Metadata)

	// Older brokers go by the name.
	old := b.client(kgo.MaxVersions(PinVersions(nil, 0)))
	b.ControlKey(kmsg.TxnOffsetCommit.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		got = r.(*kmsg.TxnOffsetCommitRequest)
		return nil, nil, false
	})
	require.Error(t, TxnOffsetCommit(b.ctx, old, p, m, b.input, 2, Position{}))
	require.EqualValues(t, 4, got.Version)
	require.Equal(t, "in", got.Topics[0].Topic)
}

// The requests that are resent while the last transaction is still ending.
func (b *bench) resent(tx *txn, m Member) map[kmsg.Key]func(context.Context) error {
	return map[kmsg.Key]func(context.Context) error{
		kmsg.AddOffsetsToTxn: func(ctx context.Context) error { return AddOffsetsToTxn(ctx, tx.cl, tx.Producer, "group") },
		kmsg.TxnOffsetCommit: func(ctx context.Context) error {
			return TxnOffsetCommit(ctx, tx.cl, tx.Producer, m, b.input, 0, Position{Offset: 1, Epoch: -1})
		},
	}
}

func faultOf(key kmsg.Key, err *kerr.Error, count int) kfake.Fault {
	return kfake.Fault{Keys: []kmsg.Key{key}, Err: err, Count: count, TopLevel: key == kmsg.AddOffsetsToTxn}
}

func TestATransactionThatIsStillEndingIsWaitedFor(t *testing.T) {
	b := newBench(t)
	m := b.join()
	tx := b.begin(0, "p")
	calls := b.resent(tx, m)
	for _, key := range []kmsg.Key{kmsg.AddOffsetsToTxn, kmsg.TxnOffsetCommit} {
		f := b.Fault(faultOf(key, kerr.ConcurrentTransactions, 7))
		require.NoError(t, calls[key](b.ctx), key.Name())
		require.Equal(t, 7, f.Hits(), key.Name())
	}
}

func TestTheWaitForAnEndingTransactionEndsWithItsContext(t *testing.T) {
	b := newBench(t)
	m := b.join()
	tx := b.begin(0, "p")
	calls := b.resent(tx, m)
	for _, key := range []kmsg.Key{kmsg.AddOffsetsToTxn, kmsg.TxnOffsetCommit} {
		call := calls[key]
		f := b.Fault(faultOf(key, kerr.ConcurrentTransactions, -1))
		ctx, cancel := context.WithCancel(b.ctx)
		done := make(chan error, 1)
		go func() { done <- call(ctx) }()
		require.NoError(t, f.Wait(b.ctx, 3))
		cancel()
		err := <-done
		require.ErrorIs(t, err, context.Canceled, key.Name())
		f.Remove()
		require.NoError(t, call(b.ctx), "%s works again", key.Name())
	}
}

func TestTheBrokersErrorIsReturnedUndecided(t *testing.T) {
	b := newBench(t)
	m := b.join()
	tx := b.begin(0, "p")
	for key, call := range b.resent(tx, m) {
		for _, code := range []*kerr.Error{kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.FencedInstanceID, kerr.StaleMemberEpoch, kerr.GroupIDNotFound,
			kerr.ProducerFenced, kerr.InvalidProducerEpoch, kerr.InvalidTxnState, kerr.TransactionAbortable, kerr.GroupAuthorizationFailed,
			kerr.TransactionalIDAuthorizationFailed, kerr.OffsetMetadataTooLarge, kerr.UnknownServerError} {
			f := b.Fault(faultOf(key, code, 1))
			require.ErrorIs(t, call(b.ctx), code, key.Name())
			require.Equal(t, 1, f.Hits(), "%s is not resent after %v", key.Name(), code)
		}
	}
}

func TestTheCoordinatorChecksTheMembership(t *testing.T) {
	b := newBench(t)
	m := b.join()
	commit := func(m Member) error {
		tx := b.begin(2, "p")
		defer tx.cl.Close()
		return TxnOffsetCommit(b.ctx, tx.cl, tx.Producer, m, b.input, 0, Position{Offset: 5, Epoch: -1})
	}
	stale, stranger := m, m
	stale.Generation--
	stranger.ID = "stranger"
	require.Error(t, commit(stale))
	require.Error(t, commit(stranger))
	require.NoError(t, commit(m))

	for _, m := range []Member{stale, stranger} {
		results, err := OffsetCommit(b.ctx, b.cl, m, b.input, map[int32]Position{0: {Offset: 3, Epoch: -1}})
		require.NoError(t, err)
		require.Error(t, results[0])
	}
}

func TestAnAnswerThatLeavesThePartitionOutIsAnError(t *testing.T) {
	b := newBench(t)
	empty := func(r kmsg.Request) (kmsg.Response, error, bool) { return r.ResponseKind(), nil, true }

	b.ControlKey(kmsg.TxnOffsetCommit.Int16(), empty)
	require.ErrorContains(t, TxnOffsetCommit(b.ctx, b.cl, Producer{TransactionalID: "p"}, Member{Group: "group"}, b.input, 0, Position{}), "0 topics")

	b.ControlKey(kmsg.OffsetCommit.Int16(), empty)
	results, err := OffsetCommit(b.ctx, b.cl, Member{Group: "group"}, b.input, map[int32]Position{0: {}, 2: {}})
	require.NoError(t, err)
	require.Len(t, results, 2)
	require.ErrorContains(t, results[0], "leaves this partition out")
	require.ErrorContains(t, results[2], "leaves this partition out")

	b.ControlKey(kmsg.OffsetFetch.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		resp := r.ResponseKind().(*kmsg.OffsetFetchResponse)
		g := kmsg.NewOffsetFetchResponseGroup()
		g.Group = "group"
		resp.Groups = append(resp.Groups, g)
		return resp, nil, true
	})
	_, err = StableOffset(b.ctx, b.cl, "group", b.input, 1)
	require.ErrorContains(t, err, "leaves out partition 1 of in")
}

func TestOffsetCommitTellsEachPartitionItsOwn(t *testing.T) {
	b := newBench(t)
	m := b.join()
	b.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Partitions: []int32{1}, Err: kerr.OffsetMetadataTooLarge})
	results, err := OffsetCommit(b.ctx, b.cl, m, b.input, map[int32]Position{
		0: {Offset: 10, Epoch: 2, Metadata: "zero"}, 1: {Offset: 11, Epoch: -1}, 2: {Offset: 12, Epoch: -1},
	})
	require.NoError(t, err)
	require.Len(t, results, 3)
	require.NoError(t, results[0])
	require.ErrorIs(t, results[1], kerr.OffsetMetadataTooLarge)
	require.NoError(t, results[2])
	for partition, want := range map[int32]Committed{0: {Offset: 10, Epoch: 2, Metadata: "zero"}, 1: {Offset: -1, Epoch: -1}, 2: {Offset: 12, Epoch: -1}} {
		c, err := StableOffset(b.ctx, b.cl, "group", b.input, partition)
		require.NoError(t, err)
		require.Equal(t, want, c, "partition %d", partition)
	}

	ended, cancel := context.WithCancel(b.ctx)
	cancel()
	_, err = OffsetCommit(ended, b.cl, m, b.input, map[int32]Position{0: {Offset: 99}})
	require.ErrorIs(t, err, context.Canceled)
}

func TestStableOffsetWaitsForAPendingTransaction(t *testing.T) {
	for _, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort} {
		t.Run(fmt.Sprintf("committed: %v", end), func(t *testing.T) {
			b := newBench(t)
			m := b.join()
			results, err := OffsetCommit(b.ctx, b.cl, m, b.input, map[int32]Position{0: {Offset: 3, Epoch: -1, Metadata: "before"}})
			require.NoError(t, err)
			require.NoError(t, results[0])
			tx := b.begin(2, "p")
			require.NoError(t, TxnOffsetCommit(b.ctx, tx.cl, tx.Producer, m, b.input, 0, Position{Offset: 8, Epoch: 1, Metadata: "after"}))

			asked := b.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Group: "group", Observe: true, Count: -1})
			type result struct {
				c   Committed
				err error
			}
			done := make(chan result, 1)
			go func() {
				c, err := StableOffset(b.ctx, b.cl, "group", b.input, 0)
				done <- result{c, err}
			}()
			require.NoError(t, asked.Wait(b.ctx, 4))
			require.Empty(t, done, "it waits")
			tx.end(end)
			got := <-done
			require.NoError(t, got.err)
			if end == kgo.TryCommit {
				require.Equal(t, Committed{Offset: 8, Epoch: 1, Metadata: "after"}, got.c)
			} else {
				require.Equal(t, Committed{Offset: 3, Epoch: -1, Metadata: "before"}, got.c)
			}
			other, err := CommittedOffset(b.ctx, b.cl, "group", b.input, 2)
			require.NoError(t, err)
			require.EqualValues(t, -1, other.Offset)
		})
	}
}

func TestTheWaitForAStableOffsetEndsWithItsContext(t *testing.T) {
	b := newBench(t)
	tx := b.begin(2, "p")
	require.NoError(t, TxnOffsetCommit(b.ctx, tx.cl, tx.Producer, b.join(), b.input, 0, Position{Offset: 8, Epoch: -1}))
	asked := b.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Group: "group", Observe: true, Count: -1})
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan error, 1)
	go func() {
		_, err := StableOffset(ctx, b.cl, "group", b.input, 0)
		done <- err
	}()
	require.NoError(t, asked.Wait(b.ctx, 3))
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

func TestAnOffsetThatCannotBeFetchedIsAnError(t *testing.T) {
	b := newBench(t)
	answer := func(group, partition *kerr.Error) {
		b.ControlKey(kmsg.OffsetFetch.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
			resp := r.ResponseKind().(*kmsg.OffsetFetchResponse)
			g := kmsg.NewOffsetFetchResponseGroup()
			g.Group = "group"
			rt := kmsg.NewOffsetFetchResponseGroupTopic()
			rt.Topic, rt.TopicID = b.input.Name, b.input.ID
			rp := kmsg.NewOffsetFetchResponseGroupTopicPartition()
			rp.Offset = 5
			if group != nil {
				g.ErrorCode = group.Code
			}
			if partition != nil {
				rp.ErrorCode = partition.Code
			}
			rt.Partitions = append(rt.Partitions, rp)
			g.Topics = append(g.Topics, rt)
			resp.Groups = append(resp.Groups, g)
			return resp, nil, true
		})
	}
	answer(kerr.GroupAuthorizationFailed, nil)
	_, err := StableOffset(b.ctx, b.cl, "group", b.input, 0)
	require.ErrorIs(t, err, kerr.GroupAuthorizationFailed)
	answer(nil, kerr.UnknownTopicOrPartition)
	_, err = StableOffset(b.ctx, b.cl, "group", b.input, 0)
	require.ErrorIs(t, err, kerr.UnknownTopicOrPartition)
	answer(nil, nil)
	c, err := StableOffset(b.ctx, b.cl, "group", b.input, 0)
	require.NoError(t, err)
	require.EqualValues(t, 5, c.Offset)
	ended, cancel := context.WithCancel(b.ctx)
	cancel()
	_, err = StableOffset(ended, b.cl, "group", b.input, 0)
	require.ErrorIs(t, err, context.Canceled)
}

func TestAnOffsetCanBeFetchedFromOldBrokers(t *testing.T) {
	b := newBench(t, kfake.MaxVersions(kversion.V2_8_0()))
	m := b.join()
	results, err := OffsetCommit(b.ctx, b.cl, m, b.input, map[int32]Position{1: {Offset: 6, Epoch: 1, Metadata: "old"}})
	require.NoError(t, err)
	require.NoError(t, results[1])
	c, err := StableOffset(b.ctx, b.cl, "group", b.input, 1)
	require.NoError(t, err)
	require.Equal(t, Committed{Offset: 6, Epoch: 1, Metadata: "old"}, c)
	version, err := TransactionVersion(b.ctx, b.cl)
	require.NoError(t, err)
	require.Zero(t, version)
}

func TestListOffset(t *testing.T) {
	b := newBench(t)
	at := func(ms int64) *kgo.Record {
		return &kgo.Record{Topic: "state", Value: []byte("v"), Timestamp: time.UnixMilli(ms)}
	}
	require.NoError(t, b.cl.ProduceSync(b.ctx, at(1000)).FirstErr())
	require.NoError(t, b.cl.ProduceSync(b.ctx, at(2000)).FirstErr())
	require.NoError(t, b.cl.ProduceSync(b.ctx, at(3000)).FirstErr())
	require.NoError(t, b.DeleteRecords("state", 0, 1))
	tx := b.begin(2, "p")
	require.NoError(t, tx.cl.ProduceSync(b.ctx, at(4000)).FirstErr())

	for _, c := range []struct {
		name      string
		at        int64
		committed bool
		want      int64
	}{
		{"the log's start", LogStart, false, 1},
		{"the log's start, committed", LogStart, true, 1},
		{"the high watermark", LogEnd, false, 4},
		{"the last stable offset, below an open transaction", LogEnd, true, 3},
		{"a timestamp that is there", 2000, false, 1},
		{"the first one after a timestamp", 2001, true, 2},
		{"a timestamp later than all", 9000, true, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ListOffset(b.ctx, b.cl, "state", 0, c.at, c.committed)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
	require.NoError(t, tx.cl.EndTransaction(b.ctx, kgo.TryCommit))
	got, err := ListOffset(b.ctx, b.cl, "state", 0, LogEnd, true)
	require.NoError(t, err)
	require.EqualValues(t, 5, got, "behind the marker")

	_, err = ListOffset(b.ctx, b.cl, "state", 7, LogEnd, false)
	require.ErrorIs(t, err, kerr.UnknownTopicOrPartition)
	b.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: "state", Err: kerr.TopicAuthorizationFailed})
	_, err = ListOffset(b.ctx, b.cl, "state", 0, LogEnd, false)
	require.ErrorIs(t, err, kerr.TopicAuthorizationFailed)
	ended, cancel := context.WithCancel(b.ctx)
	cancel()
	_, err = ListOffset(ended, b.cl, "state", 0, LogEnd, false)
	require.ErrorIs(t, err, context.Canceled)
}

func TestTransactionVersionIsTheFinalizedFeature(t *testing.T) {
	b := newBench(t)
	got, err := TransactionVersion(b.ctx, b.cl)
	require.NoError(t, err)
	require.EqualValues(t, 2, got)

	answer := func(edit func(*kmsg.ApiVersionsResponse)) {
		b.ControlKey(kmsg.ApiVersions.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
			req := r.(*kmsg.ApiVersionsRequest)
			if req.ClientSoftwareName != "persistence" {
				return nil, nil, false // a connection's own
			}
			resp := req.ResponseKind().(*kmsg.ApiVersionsResponse)
			edit(resp)
			return resp, nil, true
		})
	}
	finalized := func(name string, level int16) func(*kmsg.ApiVersionsResponse) {
		return func(resp *kmsg.ApiVersionsResponse) {
			f := kmsg.NewApiVersionsResponseFinalizedFeature()
			f.Name, f.MinVersionLevel, f.MaxVersionLevel = name, 0, level
			resp.FinalizedFeatures = append(resp.FinalizedFeatures, f)
		}
	}
	for _, c := range []struct {
		name string
		edit func(*kmsg.ApiVersionsResponse)
		want int16
	}{
		{"one", finalized("transaction.version", 1), 1},
		{"none", func(*kmsg.ApiVersionsResponse) {}, 0},
		{"only another feature", finalized("group.version", 1), 0},
		{"supported, but not finalized", func(resp *kmsg.ApiVersionsResponse) {
			f := kmsg.NewApiVersionsResponseSupportedFeature()
			f.Name, f.MaxVersion = "transaction.version", 2
			resp.SupportedFeatures = append(resp.SupportedFeatures, f)
		}, 0},
	} {
		answer(c.edit)
		got, err := TransactionVersion(b.ctx, b.cl)
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, got, c.name)
	}
	answer(func(resp *kmsg.ApiVersionsResponse) { resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code })
	_, err = TransactionVersion(b.ctx, b.cl)
	require.ErrorIs(t, err, kerr.ClusterAuthorizationFailed, "no answer is not version 0")
	ended, cancel := context.WithCancel(b.ctx)
	cancel()
	_, err = TransactionVersion(ended, b.cl)
	require.ErrorIs(t, err, context.Canceled)
}

func TestPinVersions(t *testing.T) {
	key := kmsg.TxnOffsetCommit.Int16()
	top, ok := kversion.Stable().LookupMaxKeyVersion(key)
	require.True(t, ok)
	require.Greater(t, top, int16(4))
	v3, ok := kversion.V3_0_0().LookupMaxKeyVersion(key)
	require.True(t, ok)
	without := new(kversion.Versions)
	without.SetMaxKeyVersion(kmsg.Produce.Int16(), 8)
	for _, c := range []struct {
		name    string
		user    *kversion.Versions
		version int16
		want    int16 // -1: not at all
	}{
		{"nothing asked, version 0", nil, 0, 4},
		{"nothing asked, version 1", nil, 1, 4},
		{"nothing asked, version 2", nil, 2, top},
		{"the user's are lower, version 0", kversion.V3_0_0(), 0, v3},
		{"the user's are lower, version 2", kversion.V3_0_0(), 2, v3},
		{"the user's are newer, version 1", kversion.Stable(), 1, 4},
		{"the user's leave it out", without, 0, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			user := kversion.Stable()
			if c.user != nil {
				user = c.user
			}
			versions := func(v *kversion.Versions) map[int16]int16 {
				all := make(map[int16]int16)
				v.EachMaxKeyVersion(func(k, v int16) { all[k] = v })
				return all
			}
			before := versions(user)
			pinned := versions(PinVersions(c.user, c.version))
			require.Equal(t, before, versions(user), "the user's own are not changed")
			if got, ok := pinned[key]; ok {
				require.Equal(t, c.want, got)
			} else {
				require.EqualValues(t, -1, c.want)
			}
			delete(before, key)
			delete(pinned, key)
			require.Equal(t, before, pinned, "other requests are left alone")
		})
	}
}

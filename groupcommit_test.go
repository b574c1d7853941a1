package persistence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence/internal/cursor"
	"github.com/kafkafence/persistence/internal/format"
	"github.com/kafkafence/persistence/internal/wire"
)

func TestALoneWriteGoesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for i := range 3 {
			began := time.Now()
			require.NoError(t, r.write("k"+strconv.Itoa(i)))
			require.Zero(t, time.Since(began), "no time passes between a write and its commit")
			time.Sleep(time.Hour)
		}
		require.Equal(t, [][]string{{"k0"}, {"k1"}, {"k2"}}, r.batches())
		require.Equal(t, []string{"begin", "offset", "produce", "end"}, r.calls()[:4], "the fence comes before any record")
	})
}

func TestWritesThatComeDuringATransactionFormTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		open := r.gate(t)
		var want []string
		var waiting []*outcome
		for i := range 10 {
			k := "k" + strconv.Itoa(i)
			want = append(want, k)
			waiting = append(waiting, r.start(context.Background(), -1, k))
		}
		open()
		for _, o := range waiting {
			require.NoError(t, <-o.err)
		}
		require.Equal(t, [][]string{{"gate"}, want}, r.batches(), "one transaction, in the order in which they came")
	})
}

func TestTransactionsKeepTheirBounds(t *testing.T) {
	for _, c := range []struct {
		name   string
		tweak  func(*groupCommit)
		writes []int // records of each
		want   []int // records of each transaction
	}{
		{"writes, up to the bound", func(g *groupCommit) { g.maxWrites = 4 }, []int{1, 1, 1, 1, 1, 1}, []int{4, 2}},
		{"a write that does not fit waits for the next", func(g *groupCommit) { g.maxWrites = 4 }, []int{3, 2, 1}, []int{3, 3}},
		{"one over the bound goes alone and whole", func(g *groupCommit) { g.maxWrites = 4 }, []int{1, 9, 1}, []int{1, 9, 1}},
		{"one at a time", func(g *groupCommit) { g.maxWrites = 1 }, []int{1, 1, 2}, []int{1, 1, 2}},
		{"bytes, up to the bound", func(g *groupCommit) { g.maxBytes = 3*ownHeaders + 50 }, []int{1, 1, 1, 1}, []int{3, 1}},
		{"one over the byte bound goes alone and whole", func(g *groupCommit) { g.maxBytes = 3*ownHeaders + 50 }, []int{1, 7, 1, 1}, []int{1, 7, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, c.tweak)
				open := r.gate(t)
				var waiting []*outcome
				for i, n := range c.writes {
					var keys []string
					for j := range n {
						keys = append(keys, fmt.Sprintf("%d-%d", i, j))
					}
					waiting = append(waiting, r.start(context.Background(), -1, keys...))
				}
				for i := range int64(1000) {
					require.NoError(t, r.Advance(input(i)), "advances do not count")
				}
				open()
				for _, o := range waiting {
					require.NoError(t, <-o.err)
				}
				var got []int
				for _, b := range r.batches()[1:] {
					got = append(got, len(b))
				}
				require.Equal(t, c.want, got)
				require.EqualValues(t, 1000, r.commits()[1].pos.Offset, "the next transaction carries the advance")
			})
		})
	}
}

func TestTheCommittedOffsetNeverLeadsTheWritesItCovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(g *groupCommit) { g.maxWrites = 1 })
		open := r.gate(t)
		require.NoError(t, r.Advance(input(4)))
		a := r.start(context.Background(), -1, "a")
		b := r.start(context.Background(), 50, "b")
		c := r.start(context.Background(), 30, "c")
		open()
		for _, o := range []*outcome{a, b, c} {
			require.NoError(t, <-o.err)
		}
		var got []int64
		for _, tx := range r.commits() {
			got = append(got, tx.pos.Offset)
		}
		require.Equal(t, []int64{0, 5, 51, 51}, got, "an advance does not join a transaction that began before it, a Through only its own, and nothing goes back")
		require.EqualValues(t, 7, r.commits()[2].pos.Epoch, "the record's leader epoch goes with it")
		require.EqualValues(t, -1, r.commits()[0].pos.Epoch)
		_, dirty := r.offsets.dirty()
		require.False(t, dirty)
	})
}

func TestThroughOfAFailedWriteIsNotCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.onOffset = func(_ context.Context, n int, _ wire.Member) error {
			if n == 0 {
				return kerr.GroupAuthorizationFailed
			}
			return nil
		}
		certainlyNot(t, r.put(context.Background(), 90, "a"))
		require.NoError(t, r.write("b"))
		require.Zero(t, r.commits()[0].pos.Offset)
	})
}

func TestTheGenerationIsReadLiveForEachTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for generation := int32(1); generation < 5; generation++ {
			r.setMember("member-"+strconv.Itoa(int(generation)), generation)
			require.NoError(t, r.write("k"))
		}
		for i, m := range r.ledger.mu.offsets {
			require.EqualValues(t, i+1, m.Generation)
			require.Equal(t, "member-"+strconv.Itoa(i+1), m.ID)
		}
		require.EqualValues(t, 4, r.transactions()[3].Generation)
	})
}

func TestAnUnknownGenerationIsRefusedBeforeAnythingIsSent(t *testing.T) {
	for _, c := range []struct {
		id         string
		generation int32
	}{{"", 5}, {"member", 0}, {"member", -1}, {"", -1}} {
		t.Run(fmt.Sprintf("%q at %d", c.id, c.generation), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.setMember(c.id, c.generation)
				began := time.Now()
				err := r.write("k")
				require.ErrorIs(t, err, ErrNotJoined)
				certainlyNot(t, err)
				require.Zero(t, time.Since(began))
				require.Empty(t, r.calls(), "nothing is begun or sent")
				require.Empty(t, r.fatals())
				r.setMember("member", 6)
				require.NoError(t, r.write("k"), "the ownership lives on")
			})
		})
	}
}

// A revoke that closes the handle between the two reads must be seen: the
// member's next generation would pass the coordinator's check.
func TestTheGenerationIsReadBeforeTheHandleIsChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.onMember = func(int) { r.kill(ErrRevoked) }
		err := r.write("k")
		require.ErrorIs(t, err, ErrRevoked)
		require.Empty(t, r.calls())
	})
	// And again wherever it is read while a refused generation is waited out.
	for nth := 1; nth < 6; nth++ {
		t.Run(fmt.Sprintf("read %d", nth), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.onOffset = func(_ context.Context, _ int, m wire.Member) error {
					if m.Generation == 1 {
						return kerr.IllegalGeneration
					}
					t.Errorf("sent under generation %d although the handle had closed", m.Generation)
					return nil
				}
				r.onMember = func(n int) {
					if n >= nth {
						r.kill(ErrRevoked)
					}
					if n > 0 && n >= nth-1 {
						r.setMember("member", 2)
					}
				}
				err := r.write("k")
				require.ErrorIs(t, err, ErrRevoked)
				require.Empty(t, r.committed())
			})
		})
	}
}

func TestARefusedGenerationIsAskedAgainInTheSameTransaction(t *testing.T) {
	for _, question := range ownershipQuestions {
		t.Run(question.Message, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				// Two rebalances in a row.
				r.onOffset = func(_ context.Context, _ int, m wire.Member) error {
					if m.Generation < 5 {
						go func() {
							time.Sleep(100 * time.Millisecond)
							r.setMember("member", m.Generation+2)
						}()
						return question
					}
					return nil
				}
				require.NoError(t, r.write("k"))
				require.Equal(t, []string{"begin", "offset", "offset", "offset", "produce", "end"}, r.calls())
				require.Equal(t, []string{"k"}, r.committed())
				require.EqualValues(t, 5, r.commits()[0].member.Generation)

				require.Len(t, r.survived(), 1)
				s := r.survived()[0]
				require.EqualValues(t, 5, s.Current)
				require.Equal(t, "in", s.Topic)
				require.ErrorIs(t, s.Err, question)
				require.InDelta(t, 100*time.Millisecond, s.Waited, float64(20*time.Millisecond))
				require.EqualValues(t, 5, r.transactions()[0].Generation)
				require.Equal(t, 1, r.transactions()[0].Attempts)
				require.Empty(t, r.fenced())
				require.Empty(t, r.fatals())
			})
		})
	}
}

func TestAGenerationThatStaysRefusedEndsTheOwnership(t *testing.T) {
	for _, question := range ownershipQuestions {
		t.Run(question.Message, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.onOffset = func(context.Context, int, wire.Member) error { return question }
				began := time.Now()
				first := r.start(context.Background(), -1, "a")
				var queued []*outcome
				for i := range 5 {
					queued = append(queued, r.start(context.Background(), 10, "q"+strconv.Itoa(i)))
				}
				err := <-first.err
				require.Equal(t, testFenceWait, time.Since(began), "as long as the bound, and no longer")
				require.ErrorIs(t, err, ErrFenced)
				require.ErrorIs(t, err, question)
				certainlyNot(t, err)
				for _, o := range queued {
					err := <-o.err
					require.ErrorIs(t, err, ErrFenced)
					certainlyNot(t, err)
				}
				synctest.Wait()
				require.Len(t, r.fatals(), 1)
				require.ErrorIs(t, r.fatals()[0], ErrFenced)
				require.Len(t, r.fenced(), 1)
				require.EqualValues(t, 1, r.fenced()[0].Refused)
				require.EqualValues(t, 1, r.fenced()[0].Current)
				require.Empty(t, r.survived())
				require.Equal(t, []string{"begin", "offset"}, r.calls(), "nothing is produced and the epoch is left alone")
				require.ErrorIs(t, r.write("later"), ErrFenced)
			})
		})
	}
}

func TestAHandleThatClosesWhileAGenerationIsInQuestionGivesItsReason(t *testing.T) {
	for _, reason := range []error{ErrRevoked, ErrLost, ErrClosed} {
		t.Run(reason.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.onOffset = func(context.Context, int, wire.Member) error { return kerr.IllegalGeneration }
				first := r.start(context.Background(), -1, "a")
				queued := r.start(context.Background(), -1, "b")
				time.Sleep(testFenceWait / 2)
				r.kill(reason)
				for _, o := range []*outcome{first, queued} {
					err := <-o.err
					require.ErrorIs(t, err, reason)
					require.NotErrorIs(t, err, ErrFenced)
					certainlyNot(t, err)
				}
				require.Empty(t, r.fatals())
				require.Zero(t, r.count("produce"))
			})
		})
	}
}

// A batch whose time ends while a generation is in question has failed for lack
// of time: nothing was closed, and nobody else is known to be the owner.
func TestPatienceMayEndWhileAGenerationIsInQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(g *groupCommit) { g.patience = testFenceWait / 2 })
		r.onOffset = func(_ context.Context, _ int, m wire.Member) error {
			if m.Generation == 1 {
				return kerr.IllegalGeneration
			}
			return nil
		}
		err := r.write("a")
		certainlyNot(t, err)
		require.NotErrorIs(t, err, ErrClosed)
		require.NotErrorIs(t, err, ErrFenced)
		require.ErrorIs(t, err, kerr.IllegalGeneration)
		require.ErrorContains(t, err, "TransactionTimeout")
		require.Empty(t, r.fatals())
		r.setMember("member", 2)
		require.NoError(t, r.write("b"))
	})
}

// Whatever a coordinator answers to the offset commit, a write of which it did
// not accept the offset has not succeeded.
func TestNoErrorOfTheOffsetCommitIsSuccess(t *testing.T) {
	for code := int16(-1); code < 140; code++ {
		err := kerr.ErrorForCode(code)
		if err == nil {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.onOffset = func(context.Context, int, wire.Member) error { return err }
			got := r.put(context.Background(), 5, "k")
			certainlyNot(t, got)
			require.ErrorIs(t, got, err, "code %d", code)
			require.Empty(t, r.committed())
			require.Zero(t, r.count("produce"), "code %d", code)
			require.EqualValues(t, 0, r.offsets.committable().offset)
		})
	}
}

func TestABatchIsNeverCommittedInPart(t *testing.T) {
	const n = 5
	for name, fail := range map[string][]error{
		"too large":        {kerr.MessageTooLarge},
		"not enough":       {kerr.NotEnoughReplicas},
		"abortable":        {kerr.TransactionAbortable},
		"fenced":           {kerr.ProducerFenced},
		"sequence":         {kerr.OutOfOrderSequenceNumber},
		"timed out":        {kgo.ErrRecordTimeout},
		"cancelled":        {context.Canceled},
		"unknown":          {errors.New("?")},
		"several":          {kerr.NotLeaderForPartition, kerr.MessageTooLarge, errors.New("?")},
		"the last matters": {kerr.NotLeaderForPartition, kerr.InvalidRecord},
	} {
		for k := range n {
			t.Run(fmt.Sprintf("%s, record %d", name, k), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t)
					open := r.gate(t)
					var want []string
					var waiting []*outcome
					for i := range n {
						key := "k" + strconv.Itoa(i)
						want = append(want, key)
						waiting = append(waiting, r.start(context.Background(), int64(i), key))
					}
					r.onProduce = func(_ context.Context, n int, records []*kgo.Record) []error {
						if n != 1 {
							return nil
						}
						require.Equal(t, "k"+strconv.Itoa(k), string(records[k].Key))
						return fail
					}
					open()
					for _, o := range waiting {
						require.NoError(t, <-o.err, "it passed")
					}
					// The ledger refuses an end with a part.
					require.Equal(t, append([]string{"gate"}, want...), r.committed())
					require.Equal(t, 1, r.count("renew"))
				})
			})
		}
	}
}

func TestAProducerIsReplacedAfterAnyFailureBeforeTheNextTransaction(t *testing.T) {
	for name, c := range map[string]struct {
		script func(*rig)
		calls  []string
	}{
		"offset": {
			func(r *rig) {
				r.onOffset = func(_ context.Context, n int, _ wire.Member) error { return first(n, kerr.CoordinatorNotAvailable) }
			},
			[]string{"begin", "offset", "renew", "begin", "offset", "produce", "end"},
		},
		"produce": {
			func(r *rig) {
				r.onProduce = func(_ context.Context, n int, _ []*kgo.Record) []error {
					if n == 0 {
						return []error{kerr.NotEnoughReplicas}
					}
					return nil
				}
			},
			[]string{"begin", "offset", "produce", "renew", "begin", "offset", "produce", "end"},
		},
		"end": {
			func(r *rig) {
				r.onEnd = func(_ context.Context, n int) (bool, error) { return n > 0, first(n, kerr.CoordinatorNotAvailable) }
			},
			[]string{"begin", "offset", "produce", "end", "last", "renew", "last", "begin", "offset", "produce", "end"},
		},
		"replacing it": {
			func(r *rig) {
				r.onOffset = func(_ context.Context, n int, _ wire.Member) error { return first(n, kerr.CoordinatorNotAvailable) }
				r.onRenew = func(_ context.Context, n int) error { return first(n, kerr.ConcurrentTransactions) }
			},
			[]string{"begin", "offset", "renew", "renew", "begin", "offset", "produce", "end"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				c.script(r)
				require.NoError(t, r.write("k"))
				require.Equal(t, c.calls, r.calls())
				require.Equal(t, []string{"k"}, r.committed())
			})
		})
	}
}

func first(n int, err error) error {
	if n == 0 {
		return err
	}
	return nil
}

// After a write that failed for good nothing stays open: the producer is
// replaced although nobody writes again.
func TestAFailedWriteLeavesNothingOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.onProduce = func(context.Context, int, []*kgo.Record) []error { return []error{kerr.TopicAuthorizationFailed} }
		certainlyNot(t, r.write("k"))
		synctest.Wait()
		require.Equal(t, []string{"begin", "offset", "produce", "renew"}, r.calls())
		require.Nil(t, r.ledger.mu.txn)
		require.ErrorIs(t, r.ledger.mu.why[0], kerr.TopicAuthorizationFailed, "and is told why")
	})
}

func TestALostEndReplyIsSettled(t *testing.T) {
	for _, c := range []struct {
		name   string
		landed bool
		err    error
		sends  int
	}{
		{"it had committed", true, context.DeadlineExceeded, 1},
		{"it had committed, says a fence", true, kerr.ProducerFenced, 1},
		{"it had committed, says an unknown error", true, kerr.UnknownServerError, 1},
		{"it had not", false, context.DeadlineExceeded, 2},
		{"it had not, says a fence", false, kerr.InvalidProducerEpoch, 2},
		{"it had not, says the broker", false, kerr.InvalidTxnState, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				require.NoError(t, r.put(context.Background(), 3, "before"))
				r.onEnd = func(_ context.Context, n int) (bool, error) {
					if n == 1 {
						return c.landed, c.err
					}
					return true, nil
				}
				// The question may need a few tries.
				r.onRenew = func(_ context.Context, n int) error { return first(n, kerr.ConcurrentTransactions) }
				r.onLast = func(_ context.Context, n int) error { return first(n, kerr.NotCoordinator) }
				require.NoError(t, r.put(context.Background(), 8, "k"))
				require.Equal(t, []string{"before", "k"}, r.committed(), "once")
				require.Equal(t, c.sends, r.ledger.mu.produced["k"])
				require.EqualValues(t, 9, r.offsets.committable().offset)
				_, dirty := r.offsets.dirty()
				require.False(t, dirty)
				require.NoError(t, r.write("after"))
				require.Len(t, r.committed(), 3)
				require.Empty(t, r.fatals())
			})
		})
	}
}

func TestAnOutcomeThatIsNotSettledIsCalledUnknown(t *testing.T) {
	for name, script := range map[string]func(*rig){
		"the handle closes at the end": func(r *rig) { r.kill(ErrRevoked) },
		"the handle closes while the commit is looked up": func(r *rig) {
			r.onLast = func(context.Context, int) error { r.kill(ErrRevoked); return context.Canceled }
		},
		"the next owner has committed": func(r *rig) {
			r.onLast = func(context.Context, int) error { r.abort(); r.foreignCommit(); return nil }
		},
		"the next owner has committed, and the handle closes": func(r *rig) {
			r.onLast = func(context.Context, int) error { r.abort(); r.foreignCommit(); r.kill(ErrRevoked); return nil }
		},
	} {
		for _, landed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, committed: %v", name, landed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t)
					r.onEnd = func(context.Context, int) (bool, error) { script(r); return landed, context.DeadlineExceeded }
					err := r.write("k")
					require.ErrorIs(t, err, ErrUnknownOutcome)
					require.ErrorIs(t, err, context.DeadlineExceeded, "the cause is not lost")
					require.ErrorContains(t, err, "may have been made")
				})
			})
		}
	}
	for name, script := range map[string]func(*rig){
		"while the producer is replaced": func(r *rig) {
			r.onRenew = func(context.Context, int) error { r.kill(ErrRevoked); return context.Canceled }
		},
		"just after the producer was replaced": func(r *rig) {
			r.onRenew = func(context.Context, int) error { r.kill(ErrRevoked); return nil }
		},
		"while the commit is looked up": func(r *rig) {
			r.onLast = func(context.Context, int) error { r.kill(ErrRevoked); return nil }
		},
	} {
		t.Run("it is pending, and the handle closes "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				script(r)
				r.onEnd = func(context.Context, int) (bool, error) { return false, context.DeadlineExceeded }
				err := r.write("k")
				require.ErrorIs(t, err, ErrUnknownOutcome)
				require.ErrorIs(t, err, ErrRevoked)
				require.Equal(t, 1, r.ledger.mu.produced["k"])
				if r.onRenew == nil {
					require.Zero(t, r.count("renew"), "an ownership that is over takes no epoch")
				}
			})
		})
	}
}

// The member was paused right after it sent the end. By the time it goes on, the
// next owner has taken over, but the handle is still open. Whether that owner
// has committed, so that the metadata no longer tells, or not yet: the error
// must not promise what nobody knows, nor a retry land.
func TestAnOutcomeThatANewOwnerMayHaveOverwritten(t *testing.T) {
	for name, after := range map[string]func(*rig){
		"the fence tells":   func(*rig) {},
		"the group tells":   func(r *rig) { time.AfterFunc(testFenceWait/2, func() { r.kill(ErrLost) }) },
		"the time runs out": func(r *rig) { r.commit.patience = testFenceWait / 2 },
	} {
		for _, landed := range []bool{true, false} {
			for _, overwritten := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, committed: %v, overwritten: %v", name, landed, overwritten), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						r := newRig(t)
						require.NoError(t, r.write("before"))
						refuse := func(context.Context, int, wire.Member) error { return kerr.IllegalGeneration }
						r.onEnd = func(context.Context, int) (bool, error) { return landed, kerr.ProducerFenced }
						r.onLast = func(context.Context, int) error {
							r.abort()
							if overwritten {
								r.foreignCommit()
							}
							r.onOffset, r.onConfirm = refuse, refuse
							return nil
						}
						after(r)
						err := r.write("k")
						switch {
						case overwritten:
							require.ErrorIs(t, err, ErrUnknownOutcome)
						case landed:
							require.NoError(t, err)
						default:
							certainlyNot(t, err)
						}
						require.Equal(t, 1, r.ledger.mu.produced["k"])
						require.Zero(t, r.count("renew"), "the next owner's producer is left alone")
					})
				})
			}
		}
	}
}

// Where a commit since has covered the metadata, the log tells whether the
// transaction became visible.
func TestTheLogTellsWhatTheMetadataCannot(t *testing.T) {
	for name, c := range map[string]struct {
		fates   []cursor.Fate // one after another; the last one stays
		fails   int           // look-ups that fail first
		written bool
		unknown bool
	}{
		"committed":                {fates: []cursor.Fate{cursor.Committed}, written: true},
		"not over yet":             {fates: []cursor.Fate{cursor.Open, cursor.Open, cursor.Committed}, written: true},
		"the look-up fails first":  {fates: []cursor.Fate{cursor.Committed}, fails: 2, written: true},
		"aborted":                  {fates: []cursor.Fate{cursor.Aborted}},
		"compacted away":           {fates: []cursor.Fate{cursor.Gone}, unknown: true},
		"not over before the time": {fates: []cursor.Fate{cursor.Open}, unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				refuse := func(context.Context, int, wire.Member) error { return kerr.IllegalGeneration }
				r.onEnd = func(context.Context, int) (bool, error) { return c.written, io.ErrUnexpectedEOF }
				r.onLast = func(context.Context, int) error {
					r.abort()
					r.foreignCommit()
					r.onOffset, r.onConfirm = refuse, refuse
					return nil
				}
				looks := 0
				r.onFate = func(_ context.Context, rec *kgo.Record) (cursor.Fate, error) {
					require.Equal(t, "k", string(rec.Key), "a record of the transaction in question")
					looks++
					if looks <= c.fails {
						return cursor.Open, io.ErrUnexpectedEOF
					}
					return c.fates[min(looks-c.fails, len(c.fates))-1], nil
				}
				err := r.write("k")
				switch {
				case c.written:
					require.NoError(t, err)
				case c.unknown:
					require.ErrorIs(t, err, ErrUnknownOutcome)
				default:
					certainlyNot(t, err)
					require.ErrorIs(t, err, ErrFenced, "tried again, and refused then")
				}
				require.Equal(t, 1, r.ledger.mu.produced["k"])
			})
		})
	}
}

// A late offset commit of this very owner hides what became of a transaction as
// another owner's does.
func TestAnOutcomeThatALateCommitMayHaveOverwrittenIsUnknown(t *testing.T) {
	for _, doubt := range []bool{true, false} {
		t.Run(fmt.Sprintf("in doubt: %v", doubt), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				if doubt {
					r.offsets.raiseDoubt()
				}
				r.onEnd = func(_ context.Context, n int) (bool, error) {
					return n > 0 || doubt, first(n, context.DeadlineExceeded)
				}
				r.onLast = func(context.Context, int) error {
					r.abort()
					r.ledger.mu.Lock()
					defer r.ledger.mu.Unlock()
					r.ledger.mu.metadata = format.Metadata{Owner: "nonce"}.String()
					return nil
				}
				err := r.write("k")
				if doubt {
					require.ErrorIs(t, err, ErrUnknownOutcome)
				} else {
					require.NoError(t, err, "no commit can have come since: it is tried again")
				}
				require.Equal(t, []string{"k"}, r.committed())
			})
		})
	}
}

// What is pending after a fence is the transaction of whoever has the epoch now.
// It is waited for, not aborted.
func TestAFencedProducerLeavesTheNextOnesTransactionAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.onEnd = func(context.Context, int) (bool, error) { return true, kerr.ProducerFenced }
		r.onLast = func(_ context.Context, n int) error {
			if n < 5 {
				return kerr.UnstableOffsetCommit
			}
			r.foreignCommit()
			return nil
		}
		require.ErrorIs(t, r.write("k"), ErrUnknownOutcome)
		require.Equal(t, 6, r.count("last"))
		require.Zero(t, r.count("renew"))
	})
}

// The same look at the metadata proves that nothing committed when the ownership
// is unbroken: the retry's own offset commit is accepted.
func TestAnOutcomeIsKnownWhenTheOwnershipIsUnbroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.onEnd = func(_ context.Context, n int) (bool, error) { return n > 0, first(n, context.DeadlineExceeded) }
		r.onOffset = func(_ context.Context, n int, m wire.Member) error {
			if n == 1 { // the retry meets a rebalance that leaves the partition here
				r.setMember("member", 2)
				return kerr.IllegalGeneration
			}
			return nil
		}
		require.NoError(t, r.write("k"))
		require.Equal(t, []string{"k"}, r.committed())
		require.Len(t, r.survived(), 1)
	})
}

// A write whose end was settled after its generation had been refused survived a
// fence like any other.
func TestASurvivedFenceIsTracedWhenTheEndHadToBeSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.onOffset = func(_ context.Context, n int, _ wire.Member) error {
			if n == 0 {
				r.setMember("member", 2)
				return kerr.IllegalGeneration
			}
			return nil
		}
		r.onEnd = func(context.Context, int) (bool, error) { return true, context.DeadlineExceeded }
		require.NoError(t, r.write("k"))
		require.Len(t, r.survived(), 1)
	})
}

func TestARefusedRecordCostsOnlyItsCaller(t *testing.T) {
	refuse := func(code error, cursed ...string) func(context.Context, int, []*kgo.Record) []error {
		return func(_ context.Context, _ int, records []*kgo.Record) []error {
			var errs []error
			for _, r := range records {
				if slices.Contains(cursed, string(r.Key)) {
					// The others of its batch fail with it.
					errs = append(errs, kerr.OperationNotAttempted, code)
				}
			}
			return errs
		}
	}
	for n := 1; n < 8; n++ {
		for bad := range n {
			t.Run(fmt.Sprintf("%d of %d", bad, n), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t)
					open := r.gate(t)
					r.onProduce = refuse(kerr.MessageTooLarge, "k"+strconv.Itoa(bad))
					want := []string{"gate"}
					var waiting []*outcome
					for i := range n {
						key := "k" + strconv.Itoa(i)
						through := int64(i)
						if i == bad {
							through = 1000
						} else {
							want = append(want, key)
						}
						waiting = append(waiting, r.start(context.Background(), through, key))
					}
					open()
					for i, o := range waiting {
						err := <-o.err
						if i != bad {
							require.NoError(t, err)
							continue
						}
						require.ErrorIs(t, err, ErrRecordTooLarge)
						require.ErrorIs(t, err, kerr.MessageTooLarge)
						certainlyNot(t, err)
					}
					require.Equal(t, want, r.committed(), "in order")
					for _, tx := range r.commits() {
						require.Less(t, tx.pos.Offset, int64(1000), "the offset does not pass the refused write")
					}
					require.NoError(t, r.write("later"), "the partition lives on")
				})
			})
		}
	}
	t.Run("several", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			open := r.gate(t)
			r.onProduce = refuse(kerr.InvalidRecord, "k1", "k2", "k5")
			var waiting []*outcome
			for i := range 7 {
				waiting = append(waiting, r.start(context.Background(), -1, "k"+strconv.Itoa(i)))
			}
			open()
			for i, o := range waiting {
				if err := <-o.err; i == 1 || i == 2 || i == 5 {
					require.ErrorIs(t, err, kerr.InvalidRecord)
					require.NotErrorIs(t, err, ErrRecordTooLarge)
				} else {
					require.NoError(t, err)
				}
			}
			require.Equal(t, []string{"gate", "k0", "k3", "k4", "k6"}, r.committed())
		})
	})
	t.Run("within one Apply", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.onProduce = refuse(kerr.MessageTooLarge, "b")
			require.ErrorIs(t, r.write("a", "b", "c"), ErrRecordTooLarge)
			require.Empty(t, r.committed(), "a batch is not split")
		})
	})
}

func TestAProducerThatIsFencedAgainAndAgainHasARival(t *testing.T) {
	fence := func(_ context.Context, n int, _ []*kgo.Record) []error { return []error{kerr.ProducerFenced} }
	t.Run("within one write", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.onProduce = fence
			first := r.start(context.Background(), -1, "k")
			err := <-first.err
			require.ErrorIs(t, err, ErrProducerConflict)
			require.ErrorIs(t, err, kerr.ProducerFenced)
			certainlyNot(t, err)
			require.Equal(t, maxProducerFences, r.count("produce"), "the retries stop")
			synctest.Wait()
			require.Len(t, r.fatals(), 1)
			require.ErrorIs(t, r.fatals()[0], ErrProducerConflict)
		})
	})
	t.Run("over several writes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.onProduce = func(ctx context.Context, n int, rs []*kgo.Record) []error {
				if n%2 == 0 {
					return []error{kerr.InvalidProducerEpoch}
				}
				return nil
			}
			for range maxProducerFences - 1 {
				require.NoError(t, r.write("k"))
				time.Sleep(producerFenceWindow - time.Second)
			}
			require.ErrorIs(t, r.write("k"), ErrProducerConflict)
		})
	})
	t.Run("at the end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.onEnd = func(context.Context, int) (bool, error) { return false, kerr.ProducerFenced }
			err := r.write("k")
			require.ErrorIs(t, err, ErrProducerConflict)
			require.Equal(t, maxProducerFences, r.count("end"))
		})
	})
	t.Run("not if the membership moves", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.onProduce = func(ctx context.Context, n int, rs []*kgo.Record) []error {
				r.setMember("member", int32(n+2))
				if n < 3*maxProducerFences {
					return []error{kerr.ProducerFenced}
				}
				return nil
			}
			require.NoError(t, r.write("k"))
			require.Empty(t, r.fatals())
		})
	})
	t.Run("not if they are far apart", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.onProduce = func(ctx context.Context, n int, rs []*kgo.Record) []error {
				if n%2 == 0 {
					return []error{kerr.ProducerFenced}
				}
				return nil
			}
			for range 3 * maxProducerFences {
				require.NoError(t, r.write("k"))
				time.Sleep(producerFenceWindow + time.Second)
			}
			require.Empty(t, r.fatals())
		})
	})
	t.Run("not for other trouble", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.onProduce = func(ctx context.Context, n int, rs []*kgo.Record) []error {
				if n < 2*maxProducerFences {
					return []error{kerr.TransactionAbortable}
				}
				return nil
			}
			require.NoError(t, r.write("k"))
			require.Empty(t, r.fatals())
		})
	})
}

func TestADoubtfulProducerIsReplacedBeforeTheNextTransaction(t *testing.T) {
	t.Run("at once, although nobody writes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.onEnd = func(_ context.Context, n int) (bool, error) {
				if n == 0 {
					r.setDoubt()
				}
				return true, nil
			}
			require.NoError(t, r.write("a"))
			synctest.Wait()
			require.Equal(t, []string{"begin", "offset", "produce", "end", "renew"}, r.calls())
			require.NoError(t, r.write("b"))
			require.Equal(t, 1, r.count("renew"), "once is enough")
		})
	})
	t.Run("with writes waiting", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			open := r.gate(t)
			r.setDoubt()
			next := r.start(context.Background(), -1, "b")
			open()
			require.NoError(t, <-next.err)
			require.Equal(t, []string{"begin", "offset", "produce", "end", "renew", "begin", "offset", "produce", "end"}, r.calls())
		})
	})
	t.Run("between the halves of a batch that was split", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			open := r.gate(t)
			a, b := r.start(context.Background(), -1, "a"), r.start(context.Background(), -1, "b")
			r.onProduce = func(_ context.Context, n int, _ []*kgo.Record) []error {
				if n == 1 {
					return []error{kerr.MessageTooLarge}
				}
				return nil
			}
			r.onOffset = func(_ context.Context, n int, _ wire.Member) error {
				if n == 2 { // of the first half
					r.setDoubt()
				}
				return nil
			}
			open()
			require.NoError(t, <-a.err)
			require.NoError(t, <-b.err)
			require.Equal(t, []string{
				"begin", "offset", "produce", "end", // the gate
				"begin", "offset", "produce", // both
				"renew", "begin", "offset", "produce", "end", // a
				"renew", "begin", "offset", "produce", "end", // b
			}, r.calls())
		})
	})
}

func TestAWriteIsTriedForTransactionTimeoutAndNotLonger(t *testing.T) {
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, script := range map[string]func(*rig){
		"the offset commit fails": func(r *rig) {
			r.onOffset = func(context.Context, int, wire.Member) error { return kerr.CoordinatorLoadInProgress }
		},
		"the offset commit hangs": func(r *rig) {
			r.onOffset = func(ctx context.Context, _ int, _ wire.Member) error { return hang(ctx) }
		},
		"the produce fails": func(r *rig) {
			r.onProduce = func(context.Context, int, []*kgo.Record) []error { return []error{kerr.NotEnoughReplicas} }
		},
		"the produce hangs": func(r *rig) {
			r.onProduce = func(ctx context.Context, _ int, _ []*kgo.Record) []error { return []error{hang(ctx)} }
		},
		"the producer cannot be replaced": func(r *rig) {
			r.onProduce = func(context.Context, int, []*kgo.Record) []error { return []error{kerr.NotEnoughReplicas} }
			r.onRenew = func(context.Context, int) error { return kerr.CoordinatorNotAvailable }
		},
		"replacing the producer hangs": func(r *rig) {
			r.onProduce = func(context.Context, int, []*kgo.Record) []error { return []error{kerr.NotEnoughReplicas} }
			r.onRenew = func(ctx context.Context, _ int) error { return hang(ctx) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				script(r)
				began := time.Now()
				// Its own context is only there to end a test that would not.
				ctx, cancel := context.WithTimeout(context.Background(), 4*testPatience)
				defer cancel()
				err := r.put(ctx, 5, "k")
				certainlyNot(t, err)
				require.NoError(t, ctx.Err(), "the write is answered while its caller still waits")
				require.GreaterOrEqual(t, time.Since(began), testPatience)
				require.Less(t, time.Since(began), testPatience+time.Second)
				require.ErrorContains(t, err, "TransactionTimeout")
				require.Empty(t, r.fatals())

				synctest.Wait()
				r.onOffset, r.onProduce, r.onRenew = nil, nil, nil
				require.NoError(t, r.write("next"), "the next write works again")
				require.Equal(t, []string{"next"}, r.committed())
			})
		})
	}
	for name, script := range map[string]func(*rig){
		"replacing the producer hangs":      func(r *rig) { r.onRenew = func(ctx context.Context, _ int) error { return hang(ctx) } },
		"the look at the commit hangs":      func(r *rig) { r.onLast = func(ctx context.Context, _ int) error { return hang(ctx) } },
		"the look at the commit goes wrong": func(r *rig) { r.onLast = func(ctx context.Context, _ int) error { return kerr.NotCoordinator } },
	} {
		t.Run("settling: "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				script(r)
				r.onEnd = func(context.Context, int) (bool, error) { return false, context.DeadlineExceeded } // it is pending
				began := time.Now()
				ctx, cancel := context.WithTimeout(context.Background(), 4*testPatience)
				defer cancel()
				err := r.put(ctx, 5, "k")
				require.ErrorIs(t, err, ErrUnknownOutcome)
				require.NoError(t, ctx.Err(), "the write is answered while its caller still waits")
				require.Less(t, time.Since(began), testPatience+time.Second)

				synctest.Wait()
				r.onEnd, r.onRenew, r.onLast = nil, nil, nil
				require.NoError(t, r.write("next"), "the next write works again")
			})
		})
	}
}

func TestACancelledCallerHarmsNobodyElse(t *testing.T) {
	stopped := errors.New("the caller had enough")
	t.Run("while queued: not written", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			open := r.gate(t)
			ctx, cancel := context.WithCancelCause(context.Background())
			a := r.start(context.Background(), -1, "a")
			b := r.start(ctx, 99, "b")
			c := r.start(context.Background(), -1, "c")
			cancel(stopped)
			err := <-b.err
			certainlyNot(t, err)
			require.ErrorIs(t, err, stopped)
			open()
			require.NoError(t, <-a.err)
			require.NoError(t, <-c.err)
			require.Equal(t, []string{"gate", "a", "c"}, r.committed())
			require.Zero(t, r.commits()[1].pos.Offset)
		})
	})
	t.Run("in flight: unknown, and it commits", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			hold := make(chan struct{})
			r.onEnd = func(context.Context, int) (bool, error) { <-hold; return true, nil }
			ctx, cancel := context.WithCancelCause(context.Background())
			a := r.start(ctx, -1, "a")
			cancel(stopped)
			err := <-a.err
			require.ErrorIs(t, err, ErrUnknownOutcome)
			require.ErrorIs(t, err, stopped)
			close(hold)
			require.NoError(t, r.write("b"))
			require.Equal(t, []string{"a", "b"}, r.committed())
		})
	})
	t.Run("beforehand: not queued", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			p := r.m.newPartition(1) // nobody takes from its queue
			defer p.kill(ErrClosed)
			certainlyNot(t, p.Write(ctx, Snapshot{Key: []byte("a")}))
			require.Zero(t, p.queue.len())
			require.Empty(t, p.queue.wake, "it never was there")
		})
	})
}

func TestDrainAnswersWhatIsQueuedAndRefusesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(g *groupCommit) { g.maxWrites = 2 })
		open := r.gate(t)
		var waiting []*outcome
		for i := range 5 {
			waiting = append(waiting, r.start(context.Background(), -1, "k"+strconv.Itoa(i)))
		}
		r.queue.drain(ErrRevoked)
		err := r.write("late")
		require.ErrorIs(t, err, ErrRevoked)
		certainlyNot(t, err)
		open()
		for _, o := range waiting {
			require.NoError(t, <-o.err)
		}
		<-r.loopDone
		require.Len(t, r.committed(), 6)
	})
}

func TestKillAnswersEverybodyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.onOffset = func(ctx context.Context, _ int, _ wire.Member) error { <-ctx.Done(); return context.Cause(ctx) }
		var waiting []*outcome
		for i := range 5 {
			waiting = append(waiting, r.start(context.Background(), -1, "k"+strconv.Itoa(i)))
		}
		began := time.Now()
		r.kill(ErrLost)
		for _, o := range waiting {
			err := <-o.err
			require.ErrorIs(t, err, ErrLost)
			certainlyNot(t, err)
		}
		<-r.over
		require.Zero(t, time.Since(began))
		require.ErrorIs(t, r.write("late"), ErrLost)
		require.ErrorIs(t, r.Advance(input(3)), ErrLost)
		require.Equal(t, []string{"begin", "offset"}, r.calls(), "a lost partition sends nothing more, and leaves the epoch alone")
	})
}

func TestKillDoesNotLeaveTheQueuedWaitingForWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		hold := make(chan struct{})
		r.onProduce = func(context.Context, int, []*kgo.Record) []error { <-hold; return nil } // deaf to its context
		inFlight := r.start(context.Background(), -1, "a")
		queued := r.start(context.Background(), -1, "b")
		r.kill(ErrLost)
		require.True(t, queued.answered())
		certainlyNot(t, <-queued.err)
		require.False(t, inFlight.answered())
		close(hold)
		err := <-inFlight.err
		require.ErrorIs(t, err, ErrLost)
		certainlyNot(t, err)
		require.Zero(t, r.count("end"), "it was not too late")
	})
}

func TestTheMetadataVouchesForTheSnapshotsAndTheMarker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(g *groupCommit) { g.end = 100 })
		r.ledger.mu.end = 100
		ends := func() []int64 {
			var all []int64
			for _, c := range r.commits() {
				m, ok := format.ParseMetadata(c.pos.Metadata)
				require.True(t, ok)
				all = append(all, m.End)
			}
			return all
		}
		require.NoError(t, r.write("a", "b", "c"))
		require.NoError(t, r.write("d"))
		require.NoError(t, r.Apply(context.Background(), Batch{Outputs: []*kgo.Record{{Topic: "out", Key: []byte("o")}}}))
		require.Equal(t, []int64{104, 106, 106}, ends(), "outputs go elsewhere")

		// An aborted transaction moves the log end, which the next but one knows
		// of from the offsets of its records.
		r.onProduce = func(_ context.Context, n int, _ []*kgo.Record) []error {
			if n == 3 {
				return []error{kerr.NotEnoughReplicas}
			}
			return nil
		}
		require.NoError(t, r.write("e"))
		require.NoError(t, r.write("f"))
		require.Equal(t, []int64{108, 112}, ends()[3:])
		require.EqualValues(t, 112, r.ledger.mu.end)

		names := make(map[string]bool)
		for _, c := range r.commits() {
			m, _ := format.ParseMetadata(c.pos.Metadata)
			require.Equal(t, "nonce", m.Owner)
			names[m.Transaction] = true
		}
		require.Len(t, names, 5, "each transaction has a name of its own")
	})
}

func TestWhatIsProducedIsTheBatchInItsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		require.NoError(t, r.Advance(input(11)))
		type key struct{}
		ctx := context.WithValue(context.Background(), key{}, 1)
		out := &kgo.Record{Topic: "out", Partition: 3, Key: []byte("o"), Value: []byte("x"), Context: ctx}
		before := *out
		require.NoError(t, r.Apply(context.Background(), Batch{
			Snapshots: []Snapshot{
				{Key: []byte("a"), Value: []byte("1"), SourceOffset: 9, Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("v")}}},
				{Key: []byte("b"), SourceOffset: -1},
			},
			Outputs: []*kgo.Record{out},
		}))
		require.Equal(t, before, *out, "the caller's record is left alone")
		tx := r.commits()[0]
		require.Equal(t, []string{"a", "b", "o"}, tx.keys())
		a, b, o := tx.records[0], tx.records[1], tx.records[2]
		require.Equal(t, "state", a.Topic)
		require.Equal(t, format.AppendHeaders([]kgo.RecordHeader{{Key: "h", Value: []byte("v")}}, 9, 12), a.Headers)
		require.Nil(t, b.Value)
		require.Equal(t, format.AppendHeaders(nil, -1, 12), b.Headers)
		require.Nil(t, o.Context, "a caller's context must not end a produce")
		require.Equal(t, "out", o.Topic)
		require.EqualValues(t, 3, o.Partition)
		require.Empty(t, o.Headers)

		require.Len(t, r.transactions(), 1)
		i := r.transactions()[0]
		i.Took = 0
		require.Equal(t, TransactionInfo{Topic: "in", Partition: 0, Generation: 1, Writes: 1, Records: 3, Offset: 12, Attempts: 1}, i)
	})
}

func TestTheOwnershipEndsInTheMiddleOfASplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		open := r.gate(t)
		var waiting []*outcome
		for i := range 4 {
			waiting = append(waiting, r.start(context.Background(), -1, "k"+strconv.Itoa(i)))
		}
		r.onProduce = func(_ context.Context, _ int, rs []*kgo.Record) []error {
			if len(rs) > 1 {
				return []error{kerr.MessageTooLarge}
			}
			return nil
		}
		r.onOffset = func(_ context.Context, n int, _ wire.Member) error {
			if n > 3 { // gate, all, the first half, k0
				return kerr.UnknownMemberID
			}
			return nil
		}
		open()
		require.NoError(t, <-waiting[0].err)
		for _, o := range waiting[1:] {
			err := <-o.err
			require.ErrorIs(t, err, ErrFenced)
			certainlyNot(t, err)
		}
		require.Len(t, r.fatals(), 1)
		require.Equal(t, []string{"gate", "k0"}, r.committed())
	})
}

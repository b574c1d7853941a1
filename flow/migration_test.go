package flow_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kafkafence/persistence"
)

// What the pages for each starting point say of a service that takes over another
// program's table: its records have no headers of ours, and the group's offset is
// not this library's.

// table writes what another program would have written to the snapshot topic.
func (b *bench) table(rows ...string) {
	b.Helper()
	for _, row := range rows {
		key, value := cut(row)
		require.NoError(b, b.admin.ProduceSync(b.ctx, &kgo.Record{Topic: "state", Key: key, Value: value}).FirstErr())
	}
}

// commitForeign commits the group's offset as another program would.
func (b *bench) commitForeign(offset int64) {
	b.Helper()
	var offsets kadm.Offsets
	offsets.AddOffset("in", 0, offset, -1)
	require.NoError(b, kadm.NewClient(b.admin).CommitAllOffsets(b.ctx, "g", offsets))
}

func TestAnotherProgramsTableIsTakenOver(t *testing.T) {
	b := newBench(t, 1)
	b.produce(0, "ann=x", "bob=x", "ann=x", "ann=x")
	b.table("ann=2", "bob=1")
	b.commitForeign(3)
	f := start(b, counter(nil))
	b.eventually("the fourth event is folded", func() bool { return b.committed(0) == 4 })
	require.NoError(t, f.end())
	require.Equal(t, map[string]string{"ann": "3", "bob": "1"}, b.state(0))

	// The other program is used once more, and then this one again.
	b.produce(0, "ann=x")
	b.table("ann=4")
	b.commitForeign(5)
	require.ErrorIs(t, start(b, counter(nil)).wait(), persistence.OffsetAhead)
	b.produce(0, "ann=x")
	f = start(b, counter(nil), persistence.OnMismatch(persistence.OffsetAhead, persistence.Accept))
	b.eventually("the last event is folded", func() bool { return b.committed(0) == 6 })
	require.NoError(t, f.end())
	require.Equal(t, map[string]string{"ann": "5", "bob": "1"}, b.state(0))
}

// Without the group's offset nothing says which events the rows contain, and all
// would be folded into them once more: so the first start is to refuse.
func TestATableWithoutItsOffsetIsRefusedIfAsked(t *testing.T) {
	b := newBench(t, 1)
	b.produce(0, "ann=x", "ann=x")
	b.table("ann=2")
	require.ErrorIs(t, start(b, counter(nil), persistence.OnMismatch(persistence.OffsetMissing, persistence.Fail)).wait(), persistence.OffsetMissing)
	require.Equal(t, map[string]string{"ann": "2"}, b.state(0))
}

package scenario

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kafkafence/persistence"
)

// Who may write: takeover, fence, revoke, lost.
var ownershipStories = []Story{
	{Name: "FirstWriteOfAnOwnershipCarriesTheResumeOffset", Tell: firstWriteIsGated},
}

func firstWriteIsGated(w *World) {
	w.Produce(0, "a", "b", "c")
	m := w.Start(false, persistence.CommitInterval(time.Hour))
	o := m.Own()
	require.EqualValues(w, -1, w.Committed(0).Offset)
	require.NoError(w, o.Write(w.Ctx, persistence.Snapshot{Key: []byte("k"), Value: []byte("1"), SourceOffset: 0}))
	c := w.Committed(0)
	require.EqualValues(w, 0, c.Offset, "the first transaction commits the offset resumed from")
	require.Contains(w, c.Metadata, "txn=")
	require.Equal(w, map[string]string{"k": "1"}, w.Values(0))
	require.NoError(w, m.Stop())
}

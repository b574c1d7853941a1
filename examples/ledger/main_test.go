package main

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kafkafence/persistence/examples/internal/stage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheBooksBalanceThoughAMemberIsCutOff(t *testing.T) {
	var out bytes.Buffer
	status := stage.Run(t.Context(), "ledger", about, nil, &out, io.Discard, tell)
	require.Zero(t, status, out.String())
	require.Regexp(t, `\nok: accounts=50 money=50000 transfers=3000 refused=[1-9]\d* notifications=\d+ lost=0 duplicated=0\n$`, out.String())
	require.Contains(t, out.String(), "member B is cut off")
}

func TestTheAuditSeesWhatIsWrong(t *testing.T) {
	sound := func() books {
		return books{
			asked:         map[string]event{"t0": {ID: "t0", Amount: 30, To: "b"}, "t1": {ID: "t1", Amount: 500, To: "a"}},
			from:          map[string]string{"t0": "a", "t1": "b"},
			opened:        map[string]int{"a": 100, "b": 100},
			balances:      map[string]int{"a": 70, "b": 130},
			notifications: []notification{{"t0", "a", -30}, {"t0", "b", 30}},
			refused:       []string{"t1"},
		}
	}
	require.NoError(t, sound().audit(200, 2))
	for name, c := range map[string]struct {
		change func(b *books)
		says   string
	}{
		"a notification is missing":     {func(b *books) { b.notifications = b.notifications[:1] }, "received 0 times"},
		"a notification is there twice": {func(b *books) { b.notifications = append(b.notifications, notification{"t0", "a", -30}) }, "paid 2 times"},
		"a refusal is missing":          {func(b *books) { b.refused = nil }, "refused 0 times"},
		"refused and carried out":       {func(b *books) { b.refused = append(b.refused, "t0") }, "refused 1 times"},
		"money was made":                {func(b *books) { b.balances["a"]++ }, "a has 71"},
		"an account is gone":            {func(b *books) { delete(b.balances, "b") }, "b has no state"},
		"an account is too many":        {func(b *books) { b.balances["c"] = 0 }, "the 3 accounts"},
		"an account is overdrawn": {func(b *books) {
			b.opened["a"], b.balances["a"] = 20, -10
		}, "overdrawn"},
		"a transfer is missing": {func(b *books) { delete(b.asked, "t1") }, "1 are in the input"},
	} {
		b := sound()
		c.change(&b)
		require.ErrorContains(t, b.audit(200, 2), c.says, name)
	}
}

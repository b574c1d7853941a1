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

func TestEachLineBecomesWhatItMustThoughAMemberIsCutOff(t *testing.T) {
	var out bytes.Buffer
	status := stage.Run(t.Context(), "transform", about, nil, &out, io.Discard, tell)
	require.Zero(t, status, out.String())
	require.Regexp(t, `\nok: lines=4000 orders=3960 large=\d+ refused=40 lost=0 duplicated=0 in_order=true\n$`, out.String())
}

func TestTheAuditSeesWhatIsWrong(t *testing.T) {
	sound := func() (got [3]map[string][]int) {
		for i := range got {
			got[i] = make(map[string][]int)
		}
		for i := range lines {
			_, customer, large, bad := line(i)
			if bad {
				got[2][customer] = append(got[2][customer], i)
				continue
			}
			got[0][customer] = append(got[0][customer], i)
			if large {
				got[1][customer] = append(got[1][customer], i)
			}
		}
		return got
	}
	require.NoError(t, audit(sound()))
	for name, change := range map[string]func(got [3]map[string][]int){
		"an order is missing":            func(got [3]map[string][]int) { got[0]["customer-3"] = got[0]["customer-3"][1:] },
		"an order is there twice":        func(got [3]map[string][]int) { got[0]["customer-3"] = append(got[0]["customer-3"], 3) },
		"orders are out of order":        func(got [3]map[string][]int) { c := got[0]["customer-3"]; c[0], c[1] = c[1], c[0] },
		"a large order is missing":       func(got [3]map[string][]int) { clear(got[1]) },
		"a refused line is missing":      func(got [3]map[string][]int) { clear(got[2]) },
		"a refused line is an order too": func(got [3]map[string][]int) { got[0]["customer-20"] = append(got[0]["customer-20"], 50) },
	} {
		got := sound()
		change(got)
		require.Error(t, audit(got), name)
	}
}

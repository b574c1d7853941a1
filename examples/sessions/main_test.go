package main

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kafkafence/persistence/examples/internal/stage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEachViewIsInOneSummary(t *testing.T) {
	var out bytes.Buffer
	status := stage.Run(t.Context(), "sessions", about, nil, &out, io.Discard, tell)
	require.Zero(t, status, out.String())
	require.Regexp(t, `\nok: users=40 summaries=\d+ views=400 left=0 lost=0 duplicated=0\n$`, out.String())
}

func TestTheAuditSeesWhatIsWrong(t *testing.T) {
	var sound []summary
	for u := range users {
		sound = append(sound, summary{fmt.Sprint("user-", u), 0, views}, summary{fmt.Sprint("user-", u), 9, views})
	}
	require.NoError(t, audit(sound))
	require.ErrorContains(t, audit(sound[1:]), "the summaries of user-0 have 5 views, instead of 10")
	require.ErrorContains(t, audit(append(sound, summary{"user-3", 9, views})), "the session of user-3 since 9 has two summaries")
	require.ErrorContains(t, audit(append(sound, summary{"user-3", 20, 1})), "the summaries of user-3 have 11 views")
	require.ErrorContains(t, audit(append(sound, summary{"bot-0", 1, 1})), "41 users")
}

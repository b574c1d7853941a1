package persistence

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAHandlerIsStuckOnlyWhileRecordsWaitForIt(t *testing.T) {
	now := time.Unix(1000, 0)
	ago := func(s int) time.Time { return now.Add(-time.Duration(s) * time.Second) }
	for name, c := range map[string]struct {
		signs
		want time.Duration
	}{
		"records wait, and it polled before they came": {signs{records: 3, waiting: ago(7), last: ago(50)}, 7 * time.Second},
		"records wait, and it polled since":            {signs{records: 3, waiting: ago(7), last: ago(2)}, 2 * time.Second},
		"nothing waits":                                {signs{records: 0, waiting: ago(7), last: ago(50)}, 0},
		"it is writing":                                {signs{records: 3, waiting: ago(7), last: ago(50), writing: true}, 0},
	} {
		require.Equal(t, c.want, c.stuck(now), name)
	}
}

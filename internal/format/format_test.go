package format

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestHeadersSurviveTheRoundTripBesideTheUsersOwn(t *testing.T) {
	mine := []kgo.RecordHeader{{Key: "codec", Value: []byte("json")}}
	hs := AppendHeaders(mine, 17, 12)
	require.Equal(t, []kgo.RecordHeader{
		{Key: "codec", Value: []byte("json")},
		{Key: "persistence.source-offset", Value: []byte("17")},
		{Key: "persistence.committable-offset", Value: []byte("12")},
	}, hs, "the wire form is a promise")
	user, source, committable := SplitHeaders(hs)
	require.Equal(t, mine, user)
	require.EqualValues(t, 17, source)
	require.EqualValues(t, 12, committable)
	require.Len(t, mine, 1, "the caller's slice is left alone")
}

func TestHeadersOfOthersGiveNoOffsets(t *testing.T) {
	for name, hs := range map[string][]kgo.RecordHeader{
		"none":     nil,
		"text":     {{Key: SourceOffset, Value: []byte("x")}, {Key: CommittableOffset, Value: []byte("")}},
		"negative": {{Key: SourceOffset, Value: []byte("-4")}},
		"left out": AppendHeaders(nil, Unknown, 5)[:0],
	} {
		_, source, committable := SplitHeaders(hs)
		require.Equal(t, Unknown, source, name)
		require.Equal(t, Unknown, committable, name)
	}
	require.Len(t, AppendHeaders(nil, Unknown, 5), 1, "an unknown source writes no header")
}

func TestMetadataRoundTrip(t *testing.T) {
	for want, m := range map[string]Metadata{
		"persistence:1;end=42;own=1h2k9q;txn=7": {End: 42, Owner: "1h2k9q", Transaction: "7"},
		"persistence:1;end=9;own=1h2k9q":        {End: 9, Owner: "1h2k9q"},
		"persistence:1;end=0":                   {End: 0},
	} {
		require.Equal(t, want, m.String(), "the wire form is a promise")
		got, ok := ParseMetadata(want)
		require.True(t, ok)
		require.Equal(t, m, got)
	}
	got, ok := ParseMetadata("persistence:1;new=x;end=9;txn=a")
	require.True(t, ok, "unknown fields are skipped")
	require.Equal(t, Metadata{End: 9, Transaction: "a"}, got)
}

func TestMetadataOfOthersIsNotOurs(t *testing.T) {
	for _, s := range []string{"", "member-1", "persistence:2;end=4", "persistence:1", "persistence:1;end=-3", "persistence:1;end=x"} {
		_, ok := ParseMetadata(s)
		require.False(t, ok, s)
	}
}

func FuzzParseMetadata(f *testing.F) {
	f.Add("persistence:1;end=42;own=1h2k9q;txn=7")
	f.Add("persistence:1;end=;=;")
	f.Fuzz(func(t *testing.T, s string) {
		m, ok := ParseMetadata(s)
		if !ok {
			return
		}
		again, ok := ParseMetadata(m.String())
		require.True(t, ok)
		require.Equal(t, m, again)
	})
}

// Without state nothing is vouched for, and a transaction is known all the same.
func TestMetadataWithoutState(t *testing.T) {
	m := Metadata{End: Unknown, Owner: "o", Transaction: "7", Input: "i"}
	require.Equal(t, "persistence:1;own=o;txn=7;in=i", m.String(), "the wire form is a promise")
	got, vouches := ParseMetadata(m.String())
	require.False(t, vouches)
	require.Equal(t, m, got)
}

package protobuf_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kafkafence/persistence/examples/protobuf"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEqualStatesAreEqualBytes(t *testing.T) {
	c := protobuf.Codec[structpb.Struct](1)
	fields := make(map[string]any)
	for i := range 20 {
		fields[fmt.Sprint(i)] = i
	}
	state, err := structpb.NewStruct(fields)
	require.NoError(t, err)
	first, err := c.Encode(state)
	require.NoError(t, err)
	for range 20 {
		again, err := c.Encode(state)
		require.NoError(t, err)
		require.Equal(t, first, again)
	}
	decoded, err := c.Decode(first, 1)
	require.NoError(t, err)
	require.True(t, proto.Equal(state, decoded))
}

func TestWhatIsNoMessageIsRefused(t *testing.T) {
	_, err := protobuf.Codec[durationpb.Duration](1).Decode([]byte("{}"), 1)
	require.ErrorContains(t, err, "proto")
}

// A version before the present one is upgraded first.
func TestAnOlderVersionIsUpgraded(t *testing.T) {
	c := protobuf.Codec[durationpb.Duration](2, func(data []byte) ([]byte, error) { // it was in minutes
		old := new(durationpb.Duration)
		if err := proto.Unmarshal(data, old); err != nil {
			return nil, err
		}
		return proto.Marshal(&durationpb.Duration{Seconds: 60 * old.Seconds})
	})
	old, err := c.Encode(&durationpb.Duration{Seconds: 2})
	require.NoError(t, err)
	for version, want := range map[int]int64{1: 120, 2: 2} {
		got, err := c.Decode(old, version)
		require.NoError(t, err)
		require.Equal(t, want, got.Seconds, "version %d", version)
	}
}

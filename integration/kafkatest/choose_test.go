package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheFirstBackendThatIsThereIsChosen(t *testing.T) {
	tests := []struct {
		name   string
		env    environment
		opts   []Option
		docker string // why it is missing
		java   string // why it is missing

		want   string
		reason []string // parts of the error, which matches ErrUnavailable
		fault  string   // the error, which does not
	}{
		{name: "docker before java", want: backendDocker},
		{name: "java without docker", docker: "no daemon", want: backendJava},
		{name: "nothing", docker: "no daemon", java: "no java",
			reason: []string{"docker: no daemon", "java: no java", "KAFKA_BROKERS is empty"}},

		{name: "given before docker", env: environment{brokers: []string{"b:1"}}, want: backendBrokers},
		{name: "given satisfies what can be asked of it", env: environment{brokers: []string{"b:1"}},
			opts: []Option{Nodes(3), TransactionVersion(1)}, want: backendBrokers},
		{name: "given has no control", env: environment{brokers: []string{"b:1"}}, opts: []Option{NodeControl()},
			reason: []string{"KAFKA_BROKERS", "NodeControl"}},
		{name: "given has its settings", env: environment{brokers: []string{"b:1"}},
			opts:   []Option{BrokerConfig("a", "b"), JVMArgs("-Xmx1g"), Version("4.0.0")},
			reason: []string{"BrokerConfig", "JVMArgs", "the release 4.0.0"}},

		{name: "forced java", env: environment{backend: backendJava}, want: backendJava},
		{name: "forced java beats given", env: environment{backend: backendJava, brokers: []string{"b:1"}},
			opts: []Option{NodeControl()}, want: backendJava},
		{name: "forced java missing", env: environment{backend: backendJava}, java: "no java",
			reason: []string{"java: no java"}},
		{name: "forced docker missing", env: environment{backend: backendDocker}, docker: "no daemon",
			reason: []string{"docker: no daemon"}},
		{name: "forced brokers missing", env: environment{backend: backendBrokers},
			reason: []string{"KAFKA_BROKERS is empty"}},
		{name: "forced nonsense", env: environment{backend: "podman"}, fault: "KAFKATEST_BACKEND=podman"},
		{name: "nonsense for a version", env: environment{version: "../4.4.0"}, fault: "KAFKA_VERSION=../4.4.0"},

		{name: "image of another release", env: environment{image: "x/kafka:4.4.0"}, opts: []Option{Version("4.0.0")},
			want: backendJava},
		{name: "image of the release", env: environment{image: "x/kafka:4.0.0"}, opts: []Option{Version("4.0.0")},
			want: backendDocker},
		{name: "image of another release, forced", env: environment{image: "x/kafka:4.4.0", backend: backendDocker},
			opts: []Option{Version("4.0.0")}, reason: []string{"KAFKA_IMAGE=x/kafka:4.4.0", "4.0.0"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			missing := func(why string) probe {
				return func(context.Context, wanted) error {
					if why == "" {
						return nil
					}
					return errors.New(why)
				}
			}
			cfg, err := newConfig(test.opts)
			require.NoError(t, err)
			got, err := test.env.choose(t.Context(), cfg, map[string]probe{
				backendDocker: missing(test.docker),
				backendJava:   missing(test.java),
			})
			require.Equal(t, test.want, got)
			switch {
			case test.want != "":
				require.NoError(t, err)
			case test.fault != "":
				require.ErrorContains(t, err, test.fault)
				require.NotErrorIs(t, err, ErrUnavailable)
			default:
				require.ErrorIs(t, err, ErrUnavailable)
				for _, part := range test.reason {
					require.ErrorContains(t, err, part)
				}
			}
			if test.env.backend == backendJava && err != nil {
				require.NotContains(t, err.Error(), "docker")
			}
		})
	}
}

func TestOnlyAMissingKafkaIsWorthASkip(t *testing.T) {
	missing := unavailable("no java")
	for _, test := range []struct {
		err      error
		required bool
		want     outcome
	}{
		{nil, false, proceed},
		{nil, true, proceed},
		{missing, false, skip},
		{missing, true, fail},
		{fmt.Errorf("wrapped: %w", missing), false, skip},
		{errors.New("the broker ended"), false, fail},
		{errors.New("the broker ended"), true, fail},
	} {
		require.Equal(t, test.want, judge(test.err, test.required), "%v, required %t", test.err, test.required)
	}
}

func TestRequireKafkaIsOne(t *testing.T) {
	for value, want := range map[string]bool{"": false, "0": false, "1": true} {
		require.Equal(t, want, required(func(string) string { return value }), value)
	}
}

func TestAGivenClusterIsComparedToTheOptions(t *testing.T) {
	config := func(opts ...Option) *config {
		c, err := newConfig(opts)
		require.NoError(t, err)
		return c
	}
	require.Empty(t, config().lackedBy(1, 2))
	require.Empty(t, config(Nodes(3), TransactionVersion(2)).lackedBy(3, 2))
	lacks := config(Nodes(3), TransactionVersion(0)).lackedBy(1, 2)
	require.Len(t, lacks, 2)
	require.Contains(t, lacks[0], "1 brokers, not the 3")
	require.Contains(t, lacks[1], "transaction.version 2, not the 0")
}

func TestTheEnvironmentIsRead(t *testing.T) {
	vars := map[string]string{
		"KAFKA_BROKERS":     " a:1, b:2,,",
		"KAFKA_IMAGE":       "x/y:1",
		"KAFKA_VERSION":     "3.9.1",
		"KAFKATEST_BACKEND": "java",
	}
	env := readEnvironment(func(key string) string { return vars[key] })
	require.Equal(t, environment{brokers: []string{"a:1", "b:2"}, image: "x/y:1", version: "3.9.1", backend: "java"}, env)

	plain, asked := &config{}, &config{version: "4.0.0"}
	require.Equal(t, "3.9.1", env.versionFor(plain))
	require.Equal(t, "4.0.0", env.versionFor(asked))
	require.Equal(t, DefaultVersion, environment{}.versionFor(plain))
	require.Equal(t, "x/y:1", env.imageFor(plain))
	require.Equal(t, "apache/kafka:4.0.0", environment{}.imageFor(asked))
}

func TestAnImagesTagIsItsRelease(t *testing.T) {
	for image, want := range map[string]string{
		"apache/kafka:4.4.0":          "4.4.0",
		"registry:5000/x/kafka:3.9.1": "3.9.1",
		"registry:5000/x/kafka":       "other",
		"apache/kafka:latest":         "other",
		"apache/kafka":                "other",
	} {
		require.Equal(t, want, versionOfImage(image, "other"), image)
	}
}

package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// The names of the backends, as in KAFKATEST_BACKEND.
const (
	backendBrokers = "brokers"
	backendDocker  = "docker"
	backendJava    = "java"
)

// ErrUnavailable is matched by the error of [New] if no Kafka was found, or the
// one that was given does not satisfy the options. [Start] and [Shared] skip
// the test then. The error's text says what is missing and how to get it.
var ErrUnavailable = errors.New("kafkatest: no suitable Kafka")

// unavailable makes an error that matches [ErrUnavailable].
func unavailable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrUnavailable, fmt.Errorf(format, args...))
}

// environment is what the environment variables say.
type environment struct {
	brokers []string
	image   string
	version string
	backend string
}

func readEnvironment(getenv func(string) string) environment {
	env := environment{
		image:   strings.TrimSpace(getenv("KAFKA_IMAGE")),
		version: strings.TrimSpace(getenv("KAFKA_VERSION")),
		backend: strings.TrimSpace(getenv("KAFKATEST_BACKEND")),
	}
	for b := range strings.SplitSeq(getenv("KAFKA_BROKERS"), ",") {
		if b = strings.TrimSpace(b); b != "" {
			env.brokers = append(env.brokers, b)
		}
	}
	return env
}

// required reports whether tests must fail where they would be skipped.
func required(getenv func(string) string) bool { return getenv("REQUIRE_KAFKA") == "1" }

// versionFor is the release to start.
func (env environment) versionFor(cfg *config) string {
	switch {
	case cfg.version != "":
		return cfg.version
	case env.version != "":
		return env.version
	}
	return DefaultVersion
}

// imageFor is the image to start.
func (env environment) imageFor(cfg *config) string {
	if env.image != "" {
		return env.image
	}
	return "apache/kafka:" + env.versionFor(cfg)
}

// versionOfImage is the release in an image's tag, or otherwise what is given.
func versionOfImage(image, otherwise string) string {
	if tag := image[strings.LastIndexByte(image, ':')+1:]; validVersion(tag) {
		return tag
	}
	return otherwise
}

// wanted is what a backend is asked to start.
type wanted struct {
	version string
	image   string
	logf    func(string, ...any)
}

// A probe reports why a backend cannot start what is wanted, or nil if it can.
type probe func(context.Context, wanted) error

// probes are the backends that start a cluster.
var probes = map[string]probe{
	backendDocker: probeDocker,
	backendJava:   probeJava,
}

// choose returns the backend to use, or an error that matches
// [ErrUnavailable] and says what each of them lacks.
func (env environment) choose(ctx context.Context, cfg *config, probes map[string]probe) (string, error) {
	version := env.versionFor(cfg)
	if !validVersion(version) {
		return "", fmt.Errorf("kafkatest: KAFKA_VERSION=%s: not a release such as %s", version, DefaultVersion)
	}

	switch env.backend {
	case "", backendBrokers, backendDocker, backendJava:
	default:
		return "", fmt.Errorf("kafkatest: KAFKATEST_BACKEND=%s: it must be brokers, docker or java", env.backend)
	}

	if env.backend == backendBrokers && len(env.brokers) == 0 {
		return "", unavailable("KAFKATEST_BACKEND=brokers, but KAFKA_BROKERS is empty: set it to host:port of a broker")
	}
	if env.backend == backendBrokers || env.backend == "" && len(env.brokers) > 0 {
		if lacks := cfg.lackedByGiven(); len(lacks) > 0 {
			return "", unavailable("the cluster given by KAFKA_BROKERS cannot provide %s: "+
				"unset KAFKA_BROKERS to run this test on Docker or Java", strings.Join(lacks, ", "))
		}
		return backendBrokers, nil
	}

	var reasons []string
	for _, name := range []string{backendDocker, backendJava} {
		if env.backend != "" && env.backend != name {
			continue
		}
		var err error
		if name == backendDocker {
			err = env.checkImage(cfg)
		}
		if err == nil {
			err = probes[name](ctx, wanted{version, env.imageFor(cfg), cfg.logf})
		}
		if err == nil {
			return name, nil
		}
		if ctx.Err() != nil {
			return "", fmt.Errorf("kafkatest: look for Kafka: %w", ctx.Err())
		}
		reasons = append(reasons, fmt.Sprintf("%s: %v", name, err))
	}
	if env.backend == "" {
		reasons = append(reasons, "brokers: KAFKA_BROKERS is empty; set it to host:port of a running broker")
	}
	return "", unavailable("%s", strings.Join(reasons, "; "))
}

// checkImage reports a KAFKA_IMAGE that is not of the release asked for.
func (env environment) checkImage(cfg *config) error {
	if env.image == "" || cfg.version == "" || versionOfImage(env.image, "") == cfg.version {
		return nil
	}
	return fmt.Errorf("KAFKA_IMAGE=%s is not of the release %s that is asked for: unset it or change its tag", env.image, cfg.version)
}

// lackedByGiven names the options that no given cluster satisfies. The number
// of brokers and transaction.version are checked by asking the cluster.
func (c *config) lackedByGiven() []string {
	var lacks []string
	if c.control {
		lacks = append(lacks, "control of its nodes (NodeControl)")
	}
	if len(c.broker) > 0 {
		lacks = append(lacks, "settings of its brokers (BrokerConfig)")
	}
	if c.version != "" {
		lacks = append(lacks, "the release "+c.version+" (Version)")
	}
	if len(c.jvmArgs) > 0 {
		lacks = append(lacks, "arguments for its JVMs (JVMArgs)")
	}
	return lacks
}

// outcome is what becomes of a test after an attempt to give it a cluster.
type outcome int

const (
	proceed outcome = iota
	skip
	fail
)

// judge decides the outcome. Only a missing Kafka is worth a skip: a cluster
// that does not start, or an impossible option, is a fault.
func judge(err error, required bool) outcome {
	switch {
	case err == nil:
		return proceed
	case errors.Is(err, ErrUnavailable) && !required:
		return skip
	}
	return fail
}

// conclude skips or fails the test if err says so.
func conclude(t testing.TB, err error) {
	t.Helper()
	required := required(os.Getenv)
	switch judge(err, required) {
	case skip:
		t.Skipf("%v (set REQUIRE_KAFKA=1 to fail instead)", err)
	case fail:
		if required && errors.Is(err, ErrUnavailable) {
			err = fmt.Errorf("REQUIRE_KAFKA=1, but %w", err)
		}
		t.Fatal(err)
	}
}

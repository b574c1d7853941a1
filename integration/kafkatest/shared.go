package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
)

// sharedClusters are the clusters of [Shared], by their options.
var sharedClusters = struct {
	sync.Mutex
	m map[string]*sharedCluster
}{m: make(map[string]*sharedCluster)}

type sharedCluster struct {
	start   sync.Once
	cluster *Cluster
	err     error
}

// Shared returns the cluster that all tests of this binary use that ask for the
// same options. The first of them starts it. It skips, fails and logs as
// [Start] does. Tests keep apart by names of their own, for instance those of
// [Cluster.Topic], and one that disturbs the others, with [NodeControl] or
// settings of a whole cluster, had better use Start.
//
// The cluster is stopped by [StopShared], which [Main] calls, and otherwise
// when the process ends.
func Shared(t testing.TB, opts ...Option) *Cluster {
	t.Helper()
	cfg, err := newConfig(opts)
	if err != nil {
		t.Fatal(err)
	}
	key := cfg.key()
	sharedClusters.Lock()
	s := sharedClusters.m[key]
	if s == nil {
		s = new(sharedCluster)
		sharedClusters.m[key] = s
	}
	sharedClusters.Unlock()

	s.start.Do(func() {
		// Not under the context of the test: others wait for it too.
		s.cluster, s.err = New(context.Background(), append([]Option{Logf(t.Logf)}, opts...)...)
	})
	conclude(t, s.err)
	t.Cleanup(func() { s.cluster.logIfFailed(t) })
	return s.cluster
}

// StopShared stops the clusters of [Shared]. No test may use them any more;
// a later call of Shared starts new ones.
func StopShared() error {
	sharedClusters.Lock()
	defer sharedClusters.Unlock()
	var errs []error
	for key, s := range sharedClusters.m {
		// Waits for a start that is under way, and prevents a later one.
		s.start.Do(func() { s.err = errors.New("kafkatest: the shared clusters were stopped") })
		if s.cluster != nil {
			errs = append(errs, s.cluster.Close())
		}
		delete(sharedClusters.m, key)
	}
	return errors.Join(errs...)
}

// M runs tests; a [testing.M] is one.
type M interface{ Run() int }

// Main returns an M that runs the tests of m and then stops the clusters of
// [Shared]. It is for TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(kafkatest.Main(m).Run()) }
//
// or, to look for leaked goroutines only after the clusters are stopped:
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(kafkatest.Main(m)) }
func Main(m M) M { return stopper{m} }

type stopper struct{ m M }

func (s stopper) Run() int {
	code := s.m.Run()
	if err := StopShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

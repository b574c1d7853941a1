package kafkatest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"sync"
	"time"
)

// failedTrainings holds the paths of archives not to be tried again.
var failedTrainings sync.Map

// sharedClasses returns the JVM's arguments for starting with an archive of the
// classes that a broker loads, which it makes when there is none yet. A node
// is up in little more than half of the time with it.
//
// The JVM itself checks that the archive fits it and the jars, and goes without
// it otherwise. So does sharedClasses if it cannot be made.
func sharedClasses(ctx context.Context, java *java, version string, logf func(string, ...any)) []string {
	if java.major < 13 { // knows no such archive
		return nil
	}
	jars, err := jarFolder(version)
	if err != nil {
		return nil
	}
	id := sha256.Sum256([]byte(java.path + "\n" + java.text))
	path := fmt.Sprintf("%s-%x.jsa", jars, id[:6])
	args := []string{"-XX:SharedArchiveFile=" + path}
	if exists(path) {
		return args
	}
	if _, failed := failedTrainings.Load(path); failed {
		return nil
	}
	unlock, err := lockFile(ctx, path+".lock")
	if err != nil {
		return nil
	}
	defer unlock()
	if exists(path) {
		return args
	}
	logf("kafkatest: recording the classes of Kafka %s, for quick starts (once)", version)
	began := time.Now()
	part := path + ".part"
	defer os.Remove(part)
	err = train(ctx, version, part)
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		logf("kafkatest: recording failed, so starts remain slow: %v", err)
		failedTrainings.Store(path, true)
		return nil
	}
	logf("kafkatest: recorded them in %v", time.Since(began).Round(100*time.Millisecond))
	return args
}

// train runs a node once and has its JVM write what it loaded when it ends.
func train(ctx context.Context, version, path string) error {
	cfg, err := newConfig([]Option{NodeControl(), JVMArgs("-XX:ArchiveClassesAtExit=" + path)})
	if err != nil {
		return err
	}
	cfg.training = true
	c := &Cluster{backend: backendJava, version: version, config: cfg}
	defer c.Close()
	if err := c.startJava(ctx); err != nil {
		return err
	}
	if err := c.Node(0).Stop(ctx); err != nil {
		return err
	}
	if !exists(path) {
		return fmt.Errorf("the JVM wrote no archive; from its log:\n%s", excerpt(c.Node(0).Log()))
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

package kafkatest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// pom has Maven bring a broker and its tools. The broker's own dependencies
// include no logging backend, so that it would run mute.
const pom = `<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>kafkatest</groupId>
  <artifactId>broker</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>VERSION</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka-tools</artifactId>
      <version>VERSION</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
`

// otherLoggers are bindings of slf4j that old releases bring: with two of them
// in the class path, chance decides which one writes the log.
var otherLoggers = []string{"slf4j-reload4j-*.jar", "slf4j-log4j12-*.jar"}

// jarFolder is where the jars of a release are kept for all programs.
func jarFolder(version string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder for the jars: %w", err)
	}
	return filepath.Join(cache, "kafkatest", version), nil
}

// jarsPresent reports whether the folder is there, which is complete then.
func jarsPresent(dir, version string) bool {
	_, err := os.Stat(filepath.Join(dir, "kafka_2.13-"+version+".jar"))
	return err == nil
}

// ensureJars returns the folder of a release's jars, which it fills if need be.
// Programs that do so at the same time wait for each other, and the folder
// appears under its name only when it is complete.
func ensureJars(ctx context.Context, version string, logf func(string, ...any)) (string, error) {
	dir, err := jarFolder(version)
	if err != nil {
		return "", err
	}
	if jarsPresent(dir, version) {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	unlock, err := lockFile(ctx, dir+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if jarsPresent(dir, version) {
		return dir, nil
	}

	// What an interrupted download left (the lock is ours, so nobody writes
	// there), and archives of the classes in jars that are no more.
	for _, pattern := range []string{dir + ".part-*", dir + "-*.jsa"} {
		old, _ := filepath.Glob(pattern)
		for _, o := range old {
			os.RemoveAll(o)
		}
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".part-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(part)

	logf("kafkatest: fetching the jars of Kafka %s with Maven into %s (once; about 55 MB)", version, dir)
	began := time.Now()
	pomPath := filepath.Join(part, "pom.xml")
	if err := os.WriteFile(pomPath, []byte(strings.ReplaceAll(pom, "VERSION", version)), 0o644); err != nil {
		return "", err
	}
	jars := filepath.Join(part, "jars")
	out, err := exec.CommandContext(ctx, "mvn", "-q", "-B", "-f", pomPath,
		"dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+jars).CombinedOutput()
	if ctx.Err() != nil {
		return "", fmt.Errorf("fetch the jars of Kafka %s: %w", version, ctx.Err())
	}
	if err != nil {
		return "", fmt.Errorf("fetch the jars of Kafka %s: mvn: %w\n%s", version, err, indent(lastLines(string(out), 30)))
	}
	for _, pattern := range otherLoggers {
		matches, err := filepath.Glob(filepath.Join(jars, pattern))
		if err != nil {
			return "", err
		}
		for _, m := range matches {
			if err := os.Remove(m); err != nil {
				return "", err
			}
		}
	}
	if !jarsPresent(jars, version) {
		return "", fmt.Errorf("fetch the jars of Kafka %s: mvn brought no broker:\n%s", version, indent(lastLines(string(out), 30)))
	}
	if err := os.Chmod(jars, 0o755); err != nil {
		return "", err
	}
	// An incomplete folder of that name can only be somebody's accident.
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := os.Rename(jars, dir); err != nil {
		return "", err
	}
	logf("kafkatest: fetched them in %v", time.Since(began).Round(100*time.Millisecond))
	return dir, nil
}

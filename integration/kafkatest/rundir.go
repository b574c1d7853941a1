package kafkatest

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// ownerFile is locked by the process that uses a run's folder, for as long as
// it lives. A process id in its place could be that of another process by now,
// or of one in another container that shares the folder.
const ownerFile = "owner"

// runDir is the folder of a cluster's data and logs.
type runDir struct {
	path  string
	owner *os.File
}

// newRunDir makes a folder, and removes those of processes that have ended.
func newRunDir() (*runDir, error) {
	parent := filepath.Join(os.TempDir(), fmt.Sprintf("kafkatest-%d", os.Getuid()))
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return nil, fmt.Errorf("kafkatest: %w", err)
	}
	removeStale(parent)
	path, err := os.MkdirTemp(parent, fmt.Sprintf("%d-", os.Getpid()))
	if err != nil {
		return nil, fmt.Errorf("kafkatest: %w", err)
	}
	d := &runDir{path: path}
	if err := d.own(); err != nil {
		os.RemoveAll(path)
		return nil, fmt.Errorf("kafkatest: own %s: %w", path, err)
	}
	return d, nil
}

// own makes the owner file. It is locked before it gets its name, so that
// nobody finds it unlocked.
func (d *runDir) own() error {
	f, err := os.CreateTemp(d.path, "unlocked-")
	if err != nil {
		return err
	}
	locked, err := tryLock(f)
	if err == nil && !locked {
		err = fmt.Errorf("%s is locked by somebody else", f.Name())
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(d.path, ownerFile))
	}
	if err != nil {
		f.Close()
		return err
	}
	d.owner = f
	return nil
}

func (d *runDir) remove() error {
	defer d.owner.Close()
	return os.RemoveAll(d.path)
}

// ownerLives reports whether the process that made the folder may still run.
func ownerLives(path string) bool {
	f, err := os.OpenFile(filepath.Join(path, ownerFile), os.O_RDWR, 0)
	if err != nil {
		return !os.IsNotExist(err)
	}
	defer f.Close()
	free, err := tryLock(f)
	return err != nil || !free
}

// removeStale removes the folders whose owner has ended, as far as it can: what
// it cannot remove is in nobody's way.
func removeStale(parent string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, e := range entries {
		path := filepath.Join(parent, e.Name())
		if ownerLives(path) {
			continue
		}
		// Without an owner file, its process ended or is about to own it.
		_, err := os.Stat(filepath.Join(path, ownerFile))
		info, infoErr := e.Info()
		if err == nil || infoErr == nil && time.Since(info.ModTime()) > time.Hour {
			os.RemoveAll(path)
		}
	}
}

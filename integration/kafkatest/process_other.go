//go:build !unix

package kafkatest

import (
	"context"
	"errors"
	"os"
)

var errPlatform = errors.New("plain JVMs need a Unix system: use Docker")

func probePlatform() error { return errPlatform }

type process struct{}

func startProcess([]string, string, *os.File) (*process, error) { return nil, errPlatform }

func (*process) pid() int                        { return 0 }
func (*process) exited() bool                    { return true }
func (*process) terminate(context.Context) error { return errPlatform }
func (*process) kill(context.Context) error      { return nil }
func (*process) pause(context.Context) error     { return errPlatform }
func (*process) resume() error                   { return errPlatform }

func tryLock(*os.File) (bool, error) { return false, errPlatform }

func lockFile(context.Context, string) (func(), error) { return nil, errPlatform }

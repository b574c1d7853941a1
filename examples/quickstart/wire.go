package main

import (
	"context"
	"errors"
	"net"
	"sync"
)

var errCut = errors.New("the wire is cut")

// wire is a member's network, which can be cut.
type wire struct {
	mu    sync.Mutex
	dead  bool
	conns map[net.Conn]struct{}
}

func newWire() *wire { return &wire{conns: make(map[net.Conn]struct{})} }

// dial is for kgo.Dialer.
func (w *wire) dial(ctx context.Context, network, host string) (net.Conn, error) {
	if w.isCut() {
		return nil, errCut
	}
	c, err := new(net.Dialer).DialContext(ctx, network, host)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		c.Close()
		return nil, errCut
	}
	w.conns[c] = struct{}{}
	return c, nil
}

func (w *wire) isCut() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead
}

// cut breaks all connections, and no new one is made from then on.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
	for c := range w.conns {
		c.Close()
	}
}

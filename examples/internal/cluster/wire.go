package cluster

import (
	"context"
	"errors"
	"net"
	"sync"
)

var errCut = errors.New("the wire is cut")

// Wire is a member's network, which can be cut.
type Wire struct {
	mu    sync.Mutex
	dead  bool
	conns map[net.Conn]struct{}
}

// NewWire makes one that is whole.
func NewWire() *Wire { return &Wire{conns: make(map[net.Conn]struct{})} }

// Dial is for kgo.Dialer.
func (w *Wire) Dial(ctx context.Context, network, host string) (net.Conn, error) {
	if w.IsCut() {
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

// IsCut reports whether it was cut.
func (w *Wire) IsCut() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead
}

// Cut breaks all connections, and no new one is made from then on.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
	for c := range w.conns {
		c.Close()
	}
}

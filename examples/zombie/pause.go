package main

import (
	"context"
	"encoding/binary"
	"net"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// pausable makes a stale owner, and a reliable one.
//
// A process that was paused for longer than its session wakes up in the middle
// of whatever it was doing, and until its next heartbeat is answered it cannot
// know that the group went on without it. That window is short, and the write
// must fall into it. So only the heartbeats are held back, and are let go when
// the write has had its answer: to the group the member is silent, and the
// write goes out as that of any owner that has not been told yet.
type pausable struct {
	mu   sync.Mutex
	gate chan struct{} // closed: heartbeats pass
}

func newPausable() *pausable {
	p := &pausable{gate: make(chan struct{})}
	close(p.gate)
	return p
}

// pause holds heartbeats back from now on.
func (p *pausable) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gate = make(chan struct{})
}

// resume lets them go.
func (p *pausable) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.gate:
	default:
		close(p.gate)
	}
}

// dial is for kgo.Dialer.
func (p *pausable) dial(ctx context.Context, network, host string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, host)
	if err != nil {
		return nil, err
	}
	return &pausableConn{Conn: c, p: p, closed: make(chan struct{})}, nil
}

type pausableConn struct {
	net.Conn
	p      *pausable
	once   sync.Once
	closed chan struct{}
}

// Write is called by kgo with one request at a time: four bytes of size, and two
// that say what it is.
func (c *pausableConn) Write(b []byte) (int, error) {
	if len(b) >= 6 && int16(binary.BigEndian.Uint16(b[4:])) == kmsg.Heartbeat.Int16() {
		c.p.mu.Lock()
		gate := c.p.gate
		c.p.mu.Unlock()
		select {
		case <-gate:
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
	return c.Conn.Write(b)
}

func (c *pausableConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

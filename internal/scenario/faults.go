package scenario

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kafkafence/persistence"
)

// Network is what some clients reach the cluster through. It notes what they
// ask and are answered, and can be told to lose, hold or delay a request.
type Network struct {
	w    *World
	mu   sync.Mutex
	log  []Exchange
	todo []*Fault
	open map[*conn]struct{}
	cut  bool
}

// Exchange is one request, in the order of sending, and its answer.
type Exchange struct {
	kmsg.Request
	Answer kmsg.Response // nil if none came, or if its kind is not decoded
}

// Action is what happens to a request.
type Action int

const (
	// Hold keeps the request until Release, and what follows on its
	// connection too.
	Hold Action = iota
	// LoseRequest breaks the connection before the request arrives.
	LoseRequest
	// LoseReply breaks the connection after the cluster has answered.
	LoseReply
	// HoldReply keeps the answer until Release, and what follows on its
	// connection too.
	HoldReply
	// Delay breaks the connection while the request is on its way; it
	// arrives at Deliver, out of order.
	Delay
)

// Fault is an action on requests of a kind.
type Fault struct {
	n       *Network
	key     kmsg.Key
	do      Action
	left    int // negative: no end
	hits    int
	final   bool
	release chan struct{}
	once    sync.Once
	deliver func() error
}

// NewNetwork makes a network. Its Opt goes to the clients. In the end, no offset
// commit may have gone over it that the coordinator would not have checked.
func (w *World) NewNetwork() *Network {
	n := &Network{w: w, open: make(map[*conn]struct{})}
	w.Cleanup(func() {
		for _, e := range n.Log(0) {
			switch r := e.Request.(type) {
			case *kmsg.TxnOffsetCommitRequest:
				n.checkMembership(r.MemberID, r.Generation)
			case *kmsg.OffsetCommitRequest:
				n.checkMembership(r.MemberID, r.Generation)
			}
		}
	})
	return n
}

func (n *Network) checkMembership(member string, generation int32) {
	if member == "" || generation <= 0 {
		n.w.Errorf("an offset commit of member %q at generation %d", member, generation)
	}
}

// Opt makes a client use the network.
func (n *Network) Opt() kgo.Opt {
	return kgo.Dialer(func(ctx context.Context, network, host string) (net.Conn, error) {
		dial := n.w.Dial
		if dial == nil {
			dial = new(net.Dialer).DialContext
		}
		c, err := dial(ctx, network, host)
		if err != nil {
			return nil, err
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.cut {
			c.Close()
			return nil, reset("dial")
		}
		k := &conn{Conn: c, n: n, closed: make(chan struct{}), asked: make(map[int32]int), marked: make(map[int32]*Fault)}
		n.open[k] = struct{}{}
		return k, nil
	})
}

// Next does something to the next request of a kind, All to every one.
func (n *Network) Next(key kmsg.Key, do Action) *Fault { return n.fault(key, do, 1) }

// All does something to every request of a kind until Release.
func (n *Network) All(key kmsg.Key, do Action) *Fault { return n.fault(key, do, -1) }

func (n *Network) fault(key kmsg.Key, do Action, times int) *Fault {
	f := &Fault{n: n, key: key, do: do, left: times, release: make(chan struct{})}
	n.mu.Lock()
	n.todo = append(n.todo, f)
	n.mu.Unlock()
	n.w.Cleanup(f.Release)
	return f
}

// Release ends the fault and lets go what it held.
func (f *Fault) Release() {
	f.once.Do(func() {
		f.n.mu.Lock()
		f.left = 0
		f.n.mu.Unlock()
		close(f.release)
	})
}

// Final makes a lost request or reply fail in a way that kgo does not try again
// by itself, as an error of TLS.
func (f *Fault) Final() *Fault {
	f.n.mu.Lock()
	defer f.n.mu.Unlock()
	f.final = true
	return f
}

// Await waits until the fault has met a request.
func (f *Fault) Await() {
	f.n.w.Helper()
	f.n.w.Eventually("a fault of "+f.key.Name()+" to happen", func() bool { return f.Hits() > 0 })
}

// Hits is how many requests the fault has met.
func (f *Fault) Hits() int {
	f.n.mu.Lock()
	defer f.n.mu.Unlock()
	return f.hits
}

func (f *Fault) met() {
	f.n.mu.Lock()
	defer f.n.mu.Unlock()
	f.hits++
}

// Deliver lets a delayed request arrive, and waits for the cluster's answer.
func (f *Fault) Deliver() {
	f.n.w.Helper()
	f.n.mu.Lock()
	deliver := f.deliver
	f.n.mu.Unlock()
	require.NoError(f.n.w, deliver())
}

// Cut breaks all connections for good, as when the process was killed.
func (n *Network) Cut() {
	n.mu.Lock()
	n.cut = true
	var all []*conn
	for c := range n.open {
		all = append(all, c)
	}
	n.mu.Unlock()
	for _, c := range all {
		c.Close()
	}
}

// Open is how many connections the clients hold.
func (n *Network) Open() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.open)
}

// Log returns what was sent so far, from the i-th on.
func (n *Network) Log(from int) []Exchange {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]Exchange(nil), n.log[from:]...)
}

// Mark is the length of the log.
func (n *Network) Mark() int { return len(n.Log(0)) }

// Count counts requests of some kinds since a mark.
func (n *Network) Count(from int, keys ...kmsg.Key) int {
	count := 0
	for _, e := range n.Log(from) {
		for _, k := range keys {
			if e.Key() == k.Int16() {
				count++
			}
		}
	}
	return count
}

// Writes are the kinds of requests by which an ownership changes anything.
var Writes = []kmsg.Key{kmsg.Produce, kmsg.OffsetCommit, kmsg.TxnOffsetCommit, kmsg.AddOffsetsToTxn, kmsg.AddPartitionsToTxn, kmsg.EndTxn}

var errFinal = errors.New("the connection broke")

func reset(op string) error {
	return &net.OpError{Op: op, Net: "tcp", Err: os.NewSyscallError(op, syscall.ECONNRESET)}
}

// conn is one connection. kgo writes one request at a time, in one call.
type conn struct {
	net.Conn
	n      *Network
	reader sync.Mutex
	frame  bytes.Buffer // of answers, only whole ones

	once   sync.Once
	closed chan struct{} // by the client
	// Guarded by n.mu.
	asked  map[int32]int    // log index by correlation id
	marked map[int32]*Fault // whose answer is held or lost, by correlation id
	broken bool             // nothing more reaches the client
	final  bool             // by an error that kgo does not try again
	held   bool             // the connection outlives its client's
}

func (c *conn) Write(b []byte) (int, error) {
	correlation, req := parseRequest(b)
	c.n.mu.Lock()
	var f *Fault
	for _, g := range c.n.todo {
		if g.left != 0 && g.key.Int16() == req.Key() {
			f = g
			f.left--
			break
		}
	}
	c.n.mu.Unlock()
	if f == nil {
		return c.forward(b, correlation, req)
	}
	switch f.do {
	case Hold:
		f.met()
		select {
		case <-f.release:
		case <-c.closed:
			return 0, reset("write")
		}
		return c.forward(b, correlation, req)
	case LoseReply, HoldReply:
		c.n.mu.Lock()
		c.marked[correlation] = f
		c.n.mu.Unlock()
		return c.forward(b, correlation, req)
	case LoseRequest:
		c.n.mu.Lock()
		c.final = f.final
		c.n.mu.Unlock()
		c.sever(false)
		f.met()
		return len(b), nil
	default:
		c.sever(true)
		late := bytes.Clone(b)
		c.n.mu.Lock()
		f.hits++
		f.deliver = func() error { return c.late(late, correlation) }
		c.n.mu.Unlock()
		return 0, reset("write")
	}
}

func (c *conn) forward(b []byte, correlation int32, req kmsg.Request) (int, error) {
	c.n.mu.Lock()
	c.asked[correlation] = len(c.n.log)
	c.n.log = append(c.n.log, Exchange{Request: req})
	c.n.mu.Unlock()
	return c.Conn.Write(b)
}

// sever makes the client see a broken connection.
func (c *conn) sever(hold bool) {
	c.n.mu.Lock()
	c.broken, c.held = true, hold
	c.n.mu.Unlock()
	if hold {
		c.Conn.SetReadDeadline(time.Now())
		return
	}
	c.Conn.Close()
}

// late sends what was delayed.
func (c *conn) late(b []byte, correlation int32) error {
	c.reader.Lock()
	defer c.reader.Unlock()
	defer c.Conn.Close()
	c.Conn.SetReadDeadline(time.Now().Add(Patience))
	if _, err := c.Conn.Write(b); err != nil {
		return err
	}
	for {
		answer, err := readFrame(c.Conn)
		if err != nil || int32(binary.BigEndian.Uint32(answer[4:])) == correlation {
			return err
		}
	}
}

func (c *conn) Read(b []byte) (int, error) {
	c.reader.Lock()
	defer c.reader.Unlock()
	if c.frame.Len() == 0 {
		answer, err := readFrame(c.Conn)
		var f *Fault
		c.n.mu.Lock()
		broken := c.broken
		if err == nil {
			correlation := int32(binary.BigEndian.Uint32(answer[4:]))
			f = c.marked[correlation]
			if f != nil && f.do == LoseReply {
				broken, c.final = true, f.final
			}
			if i, ok := c.asked[correlation]; ok && !broken {
				delete(c.asked, correlation)
				e := &c.n.log[i]
				e.Answer = parseAnswer(e.Request, answer)
			}
		}
		final := c.final
		c.n.mu.Unlock()
		if f != nil {
			f.met()
		}
		if broken && final {
			return 0, errFinal
		}
		if broken {
			return 0, reset("read")
		}
		if f != nil {
			select {
			case <-f.release:
			case <-c.closed:
				return 0, reset("read")
			}
		}
		if err != nil {
			return 0, err
		}
		c.frame.Write(answer)
	}
	return c.frame.Read(b)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if c.held {
		return nil
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.n.mu.Lock()
	delete(c.n.open, c)
	held := c.held
	c.n.mu.Unlock()
	if held {
		return nil
	}
	return c.Conn.Close()
}

func readFrame(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, 4+binary.BigEndian.Uint32(size[:]))
	copy(frame, size[:])
	_, err := io.ReadFull(r, frame[4:])
	return frame, err
}

// parseRequest reads a request's header, and its body into a copy.
func parseRequest(b []byte) (correlation int32, req kmsg.Request) {
	req = kmsg.RequestForKey(int16(binary.BigEndian.Uint16(b[4:])))
	req.SetVersion(int16(binary.BigEndian.Uint16(b[6:])))
	correlation = int32(binary.BigEndian.Uint32(b[8:]))
	body := b[14:]
	if n := int16(binary.BigEndian.Uint16(b[12:])); n > 0 {
		body = body[n:]
	}
	if req.IsFlexible() {
		body = body[1:] // kgo sends no tags
	}
	if err := req.ReadFrom(bytes.Clone(body)); err != nil {
		panic(err)
	}
	return correlation, req
}

// parseAnswer reads an answer of the kinds that stories look at.
func parseAnswer(req kmsg.Request, b []byte) kmsg.Response {
	switch kmsg.Key(req.Key()) {
	case kmsg.OffsetCommit, kmsg.TxnOffsetCommit, kmsg.EndTxn, kmsg.Heartbeat:
	default:
		return nil
	}
	body := b[8:]
	if req.IsFlexible() {
		body = body[1:]
	}
	answer := req.ResponseKind()
	if err := answer.ReadFrom(bytes.Clone(body)); err != nil {
		panic(err)
	}
	return answer
}

// OffsetError is what an offset commit in a transaction was answered.
func (e Exchange) OffsetError() error {
	a, ok := e.Answer.(*kmsg.TxnOffsetCommitResponse)
	if !ok {
		return errors.New("no answer")
	}
	return kerr.ErrorForCode(a.Topics[0].Partitions[0].ErrorCode)
}

// Await receives from a channel, or fails the story.
func Await[T any](w *World, c <-chan T) (v T) {
	w.Helper()
	select {
	case v = <-c:
	case <-time.After(Patience):
		w.Fatalf("nothing within %v", Patience)
	}
	return v
}

// waited is a context that tells when it is first waited for.
type waited struct {
	context.Context
	once *sync.Once
	by   chan struct{}
}

func (c waited) Done() <-chan struct{} {
	c.once.Do(func() { close(c.by) })
	return c.Context.Done()
}

// Queue applies a batch in the background, and returns as soon as it waits for
// its transaction, or was refused.
func (w *World) Queue(ctx context.Context, o *Owner, b persistence.Batch) <-chan error {
	w.Helper()
	c := waited{Context: ctx, once: new(sync.Once), by: make(chan struct{})}
	result := make(chan error, 1)
	go func() {
		result <- o.Apply(c, b)
		c.Done()
	}()
	Await(w, c.by)
	return result
}

// Evict throws a member out of the group, which it learns from its next
// heartbeat.
func (w *World) Evict(member string) {
	w.Helper()
	r := kmsg.NewPtrLeaveGroupRequest()
	r.Group = w.Group
	m := kmsg.NewLeaveGroupRequestMember()
	m.MemberID = member
	r.Members = append(r.Members, m)
	resp, err := r.RequestWith(w.Ctx, w.Admin)
	require.NoError(w, err)
	require.NoError(w, kerr.ErrorForCode(resp.ErrorCode))
	require.Len(w, resp.Members, 1)
	require.NoError(w, kerr.ErrorForCode(resp.Members[0].ErrorCode))
}

// Strand makes a stale owner of a member: it is thrown out and does not hear of
// it, like a process that was paused past its session timeout, until the fault
// is released.
func (n *Network) Strand(cl *kgo.Client) *Fault {
	n.w.Helper()
	f := n.All(kmsg.Heartbeat, Hold)
	f.Await()
	member, _ := cl.GroupMetadata()
	n.w.Evict(member)
	return f
}

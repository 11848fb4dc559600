package node

import (
	"net"
	"sync"
)

// listener keeps its connections so that they can be cut one by one, and held all together.
type listener struct {
	net.Listener

	mu    sync.Mutex
	conns map[string]*conn // by the remote address
	held  chan struct{}    // closed when the node is not paused
}

func listen(addr string) (*listener, error) {
	inner, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	open := make(chan struct{})
	close(open)
	return &listener{Listener: inner, conns: map[string]*conn{}, held: open}, nil
}

func (l *listener) Accept() (net.Conn, error) {
	inner, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: inner, from: l, closed: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[inner.RemoteAddr().String()] = c
	return c, nil
}

// cut breaks the connection from a remote address.
func (l *listener) cut(remote string) {
	l.mu.Lock()
	c := l.conns[remote]
	l.mu.Unlock()
	if c != nil {
		c.Close() // the other side is to see an error; ours does not matter
	}
}

func (l *listener) cutAll() {
	l.mu.Lock()
	var all []string
	for remote := range l.conns {
		all = append(all, remote)
	}
	l.mu.Unlock()
	for _, remote := range all {
		l.cut(remote)
	}
}

func (l *listener) pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.held:
		l.held = make(chan struct{})
	default: // paused already
	}
}

func (l *listener) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.held:
	default:
		close(l.held)
	}
}

func (l *listener) gate() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// conn is a connection through which nothing passes while its listener is paused.
type conn struct {
	net.Conn
	from   *listener
	once   sync.Once
	closed chan struct{}
}

func (c *conn) pass() error {
	select {
	case <-c.from.gate():
		return nil
	case <-c.closed:
		return net.ErrClosed
	}
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if held := c.pass(); held != nil && err == nil {
		return 0, held
	}
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	if err := c.pass(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *conn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.from.mu.Lock()
		defer c.from.mu.Unlock()
		delete(c.from.conns, c.RemoteAddr().String())
	})
	return c.Conn.Close()
}

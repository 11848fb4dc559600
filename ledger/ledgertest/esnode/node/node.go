// Package node is a test double: a server that speaks the wire protocol of EventStoreDB, to test
// clients of it without one. It is not offered as a server to anybody.
//
// It keeps one log, in memory or also in a folder, and answers Append, Read (streams and $all, counted
// and as subscriptions, filtered or not), Delete and Tombstone by the rules of the real server: which
// appends are new, repeats or refused (check.go), what metadata and deletions hide (log.go), where
// reads and subscriptions start (read.go). Positions are sparse and increasing, commit and prepare
// are equal, and the order of $all is the order of the appends.
//
//	n, err := node.Open(node.Config{})       // serves at once
//	n.URL()                                  // esdb://127.0.0.1:40123?tls=false
//	n.Faults.Appends(node.AnswerLost())      // what goes wrong with the calls to come
//	n.Stop(); n.Truncate(2); n.Start()       // a fail-over that loses the last two events
//	n.Pause(); n.Resume()                    // connections are accepted, nothing is answered
//	n.Close()
//
// Every restart forgets the IDs in memory, as a real one does: appends at Any are then no longer
// recognised as repeats.
//
// Faults are queued for the calls to come (Faults.Appends, Reads, Subscriptions) or chosen call by call
// (OnAppend, OnRead, OnSubscribe): an AppendFault, a ReadFault or a SubscriptionFault. AnswerLost,
// RequestLost and NotReady make the usual ones; TimedOut, NotLeader, Unavailable, TooSlow,
// StreamDeleted, AccessDenied and Unauthenticated are the errors that servers answer with.
//
// What it does not have: BatchAppend, persistent subscriptions, projections, links, access lists, other
// members of a cluster, scavenging.
package node

import (
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// Config says how a node serves. The zero value: in memory, on a free port of 127.0.0.1, as 24.10.0, open to all.
type Config struct {
	// Listen is the address (host:port); empty is a free port of 127.0.0.1.
	Listen string
	// Dir is a folder that keeps the log over restarts of the process; an append is then answered when
	// it is on disk. Empty keeps it in memory.
	Dir string
	// Version is the text the node gives for its version, and decides what differs between versions.
	// Empty is 24.10.0. Text that is no version is given as it is and taken for the newest.
	Version string
	// CertFile and KeyFile, PEM, switch TLS on.
	CertFile, KeyFile string
	// User and Password, when User is set, are asked of every call but those that a client makes to connect.
	User, Password string
	// CommitTimeout is how long a write may stay unreplicated, and how long a repeat of an unreplicated
	// write is dropped, before it is aborted; 0 is 2 s.
	CommitTimeout time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Node is a running server. All its methods are safe for concurrent use.
type Node struct {
	// Faults decides what goes wrong.
	Faults *Faults

	config  Config
	service *service
	tls     *tls.Config // nil: plaintext

	mu       sync.Mutex // guards what follows
	addr     string
	listener *listener // nil while stopped
	server   *grpc.Server
	served   chan error // what Serve returned
}

// Open starts a node; Close ends it.
func Open(config Config) (*Node, error) {
	if config.Version == "" {
		config.Version = "24.10.0"
	}
	if config.CommitTimeout == 0 {
		config.CommitTimeout = 2 * time.Second
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.Listen == "" {
		config.Listen = "127.0.0.1:0"
	}
	n := &Node{Faults: &Faults{}, config: config, addr: config.Listen}
	if config.CertFile != "" {
		certificate, err := tls.LoadX509KeyPair(config.CertFile, config.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read the certificate: %w", err)
		}
		n.tls = &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}
	}
	file, events, err := openFile(config.Dir)
	if err != nil {
		return nil, fmt.Errorf("open the log in %s: %w", config.Dir, err)
	}
	log := newLog(config.Now)
	log.file = file
	log.rebuild(events)
	n.service = newService(config, n.Faults, log)
	if err := n.Start(); err != nil {
		return nil, errors.Join(err, file.close())
	}
	return n, nil
}

// Start serves again after a Stop, on the same address, with the IDs in memory forgotten.
func (n *Node) Start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listener != nil {
		return errors.New("the node is running")
	}
	l, err := listen(n.addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", n.addr, err)
	}
	n.ForgetIDs()
	n.addr, n.listener = l.Addr().String(), l
	n.service.setListener(l)
	server, served := newServer(n.service, n.tls), make(chan error, 1)
	n.server, n.served = server, served
	go func() { served <- server.Serve(l) }()
	return nil
}

// Stop breaks all connections and refuses new ones; it returns when no call is left.
func (n *Node) Stop() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listener == nil {
		return nil
	}
	n.listener.cutAll()
	n.server.Stop()
	n.listener = nil
	return <-n.served
}

// Restart is Stop and Start.
func (n *Node) Restart() error { return errors.Join(n.Stop(), n.Start()) }

// Close stops the node and closes its file. It may be called again.
func (n *Node) Close() error { return errors.Join(n.Stop(), n.service.log.file.close()) }

// Addr is the address the node listens on, the same over restarts.
func (n *Node) Addr() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.addr
}

// URL is the connection string for the node, without user and password.
func (n *Node) URL() string {
	if n.tls != nil {
		return "esdb://" + n.Addr()
	}
	return "esdb://" + n.Addr() + "?tls=false"
}

// Pause makes the node answer nothing: connections are accepted and stay open, and what is sent waits.
func (n *Node) Pause() { n.onListener((*listener).pause) }

// Resume ends a Pause.
func (n *Node) Resume() { n.onListener((*listener).resume) }

// Cut breaks every connection; new ones are accepted.
func (n *Node) Cut() { n.onListener((*listener).cutAll) }

func (n *Node) onListener(do func(*listener)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listener != nil {
		do(n.listener)
	}
}

// Drop ends every subscription with err, which must not be nil: see TooSlow.
func (n *Node) Drop(err error) { n.service.drop(err) }

// Truncate removes the last events of the log, as a fail-over does with what was not replicated; their
// positions are used again. The node must be stopped.
func (n *Node) Truncate(events int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listener != nil {
		return errors.New("the node must be stopped before its log is cut")
	}
	return n.service.log.truncate(events)
}

// ForgetIDs empties the memory of recent event IDs.
func (n *Node) ForgetIDs() { n.service.log.forget() }

// Len is the number of events in the log, those of metadata and tombstones included.
func (n *Node) Len() int {
	all, _ := n.service.log.seen()
	return len(all)
}

// Calls is how many calls of each kind have arrived so far.
func (n *Node) Calls() Calls { return n.service.counted() }

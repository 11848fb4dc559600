package eventstore

// This is the only file that knows the client library. What it must be kept from, each with a rule here:
// its calls do not heed ctx while it looks for a node, so each runs in a goroutine of its own and is
// left behind; it is dead for ever once it has given up looking, so it never gives up; it panics on
// messages it does not know; a read that is not closed leaks; an absent option means "any" or "end",
// so every option is set; its errors are wrapped in different depths.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// event is one on its way to a stream. Its data and metadata are JSON.
type event struct {
	id         uuid.UUID
	typ        string
	data, meta []byte
}

// size is what the server counts of an event.
func (e *event) size() int { return len(e.data) + len(e.meta) + 2*len(e.typ) }

// recorded is an event of the server.
type recorded struct {
	id         uuid.UUID
	typ        string
	stream     string
	number     int64  // in its stream, from 0
	position   uint64 // in the server's log
	data, meta []byte
}

// noStream is the expected revision of a stream that holds nothing.
const noStream = -1

// What a call's error is, besides the ends of contexts.
var (
	errWrongRevision = errors.New("the stream is not at the expected revision")
	errDeleted       = errors.New("the stream was deleted")
	errDenied        = errors.New("the server denies access")
	errRefused       = errors.New("the server refuses the call as it is") // events too large, a position that is none
	errNotLeader     = errors.New("the node is not the leader")
	errNotSent       = errors.New("nothing was sent") // so nothing is stored
	errCutShort      = errors.New("the server ended the call early")
)

// client is what the store needs of a server. Errors of append other than the ones above, and those of
// this kind that come from a deadline, leave open whether the events are stored.
type client interface {
	// append stores the events, which are at least one, when the stream's last event has the expected
	// number, and returns the number of the last of them. A repeat of what stands there succeeds too.
	append(ctx context.Context, stream string, expected int64, events []event) (last int64, err error)
	// readStream returns at most count events, from a number on. A missing stream is empty. more says that the
	// page was cut short by its size.
	readStream(ctx context.Context, stream string, from int64, d direction, count int) (events []recorded, more bool, err error)
	// readAll is the same for the whole log: forwards with what stands at the position, backwards without.
	readAll(ctx context.Context, from uint64, d direction, count int) (events []recorded, more bool, err error)
	// subscribe follows the log behind the position, as far as it concerns streams of the prefixes, until ctx ends.
	subscribe(ctx context.Context, after uint64, prefixes []string) (subscription, error)
	// version is the server's, such as 24.10.2.
	version(ctx context.Context) (major, minor, patch int, err error)
	// away says that the last call to end got no answer.
	away() bool
	// close waits for the calls until ctx ends, and lets go of those that still run then.
	close(ctx context.Context)
}

type direction bool

const (
	forwards  direction = false
	backwards direction = true
)

// end is where to begin to read backwards from the last event.
const end = math.MaxInt64

// subscription hands out what comes, one after the other. An item without an event is a sign of life.
type subscription interface {
	recv() (*recorded, error)
	close()
}

// Bounds of what is asked for at once.
const (
	maxCalls   = 256
	pageBytes  = 4 << 20
	readLimit  = 10 * time.Second // of one page
	neverEnded = math.MaxInt32
)

// esClient is a client over the library.
type esClient struct {
	es       *esdb.Client
	slots    chan struct{} // one for each call that runs, left behind or not
	deadline time.Duration // of one append
	silent   atomic.Bool   // see away
	closed   atomic.Bool   // what the library does after that is not logged
}

func (c *esClient) away() bool { return c.silent.Load() }

func newClient(t *target, deadline time.Duration, log *slog.Logger) (*esClient, error) {
	c, err := esdb.ParseConnectionString("esdb://" + t.hosts[0])
	if err != nil {
		return nil, fmt.Errorf("server address: %w", err)
	}
	if c.DnsDiscover = t.discover; len(t.hosts) > 1 {
		c.GossipSeeds, c.DnsDiscover = nil, false
		for _, h := range t.hosts {
			seed, err := esdb.ParseEndPoint(h)
			if err != nil {
				return nil, fmt.Errorf("server address: %w", err)
			}
			c.GossipSeeds = append(c.GossipSeeds, seed)
		}
	}
	c.DisableTLS, c.SkipCertificateVerification, c.RootCAs = !t.tls, !t.verify, t.roots
	c.Username, c.Password, c.UserCertFile, c.UserKeyFile = t.user, t.password, t.certFile, t.keyFile
	c.NodePreference, c.MaxDiscoverAttempts = esdb.NodePreferenceLeader, neverEnded
	c.DiscoveryInterval, c.GossipTimeout = int(t.discoveryInterval.Milliseconds()), int(t.gossipTimeout.Seconds())
	c.KeepAliveInterval, c.KeepAliveTimeout, c.DefaultDeadline = t.keepAliveInterval, t.keepAliveTimeout, &deadline
	client := &esClient{slots: make(chan struct{}, maxCalls), deadline: deadline}
	c.Logger = func(_ esdb.LogLevel, format string, args ...any) {
		if !client.closed.Load() {
			logLine(log, format, args)
		}
	}
	if client.es, err = esdb.NewClient(c); err != nil {
		return nil, err
	}
	return client, nil
}

// logLine passes on what the library says; how bad it is, its callers know better.
func logLine(log *slog.Logger, format string, args []any) {
	if len(args) == 1 {
		if inner, ok := args[0].([]any); ok { // it passes its arguments on as one
			args = inner
		}
	}
	log.Debug("client library", "message", fmt.Sprintf(format, args...))
}

// begin is the point of a call from which on something may be stored.
type begin struct{ state atomic.Int32 }

// sending is false when the caller is gone: then nothing may be sent.
func (b *begin) sending() bool { return b.state.CompareAndSwap(0, 1) }

// abandon is true when nothing was sent, and then nothing will be.
func (b *begin) abandon() bool { return b.state.CompareAndSwap(0, 2) }

// call runs f in a goroutine and waits for it as long as ctx allows.
func call[T any](ctx context.Context, c *esClient, f func(*begin) (T, error)) (v T, err error) {
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return v, fmt.Errorf("%d calls wait for the server: %w: %w", maxCalls, context.Cause(ctx), errNotSent)
	}
	type result struct {
		v   T
		err error
	}
	done, b := make(chan result, 1), new(begin)
	go func() {
		defer func() { <-c.slots }()
		var r result
		defer func() {
			if p := recover(); p != nil {
				r.err = fmt.Errorf("the client library panicked: %v", p)
			}
			done <- r
		}()
		r.v, r.err = f(b)
	}()
	select {
	case r := <-done:
		code := rootStatus(r.err).Code()
		c.silent.Store(code == codes.Unavailable || code == codes.DeadlineExceeded)
		return r.v, classify(r.err)
	case <-ctx.Done():
		c.silent.Store(errors.Is(ctx.Err(), context.DeadlineExceeded))
		if b.abandon() {
			return v, fmt.Errorf("no connection to the server: %w: %w", context.Cause(ctx), errNotSent)
		}
		return v, fmt.Errorf("no answer from the server: %w", context.Cause(ctx))
	}
}

// connected waits for a connection, which every call does anyway, so that it is known when that is over.
func (c *esClient) connected(b *begin) error {
	if _, err := c.es.GetServerVersion(); err != nil {
		return fmt.Errorf("%w: %w", errNotSent, err)
	}
	if !b.sending() {
		return errNotSent
	}
	return nil
}

func (c *esClient) append(ctx context.Context, stream string, expected int64, events []event) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, c.deadline)
	defer cancel()
	var at esdb.ExpectedRevision = esdb.NoStream{}
	if expected >= 0 {
		at = esdb.Revision(uint64(expected))
	}
	proposed := make([]esdb.EventData, len(events))
	for i, e := range events {
		proposed[i] = esdb.EventData{EventID: e.id, EventType: e.typ, ContentType: esdb.ContentTypeJson, Data: e.data, Metadata: e.meta}
	}
	return call(ctx, c, func(b *begin) (int64, error) {
		if err := c.connected(b); err != nil {
			return 0, err
		}
		r, err := c.es.AppendToStream(ctx, stream, esdb.AppendToStreamOptions{ExpectedRevision: at, Deadline: &c.deadline, RequiresLeader: true}, proposed...)
		if err != nil {
			return 0, err
		}
		return int64(r.NextExpectedVersion), nil
	})
}

func (c *esClient) readStream(ctx context.Context, stream string, from int64, d direction, count int) ([]recorded, bool, error) {
	var at esdb.StreamPosition = esdb.Revision(uint64(from))
	switch from {
	case end:
		at = esdb.End{}
	case 0:
		at = esdb.Start{}
	}
	o := esdb.ReadStreamOptions{Direction: d.esdb(), From: at, RequiresLeader: true}
	events, more, err := c.page(ctx, func(ctx context.Context) (*esdb.ReadStream, error) {
		return c.es.ReadStream(ctx, stream, o, uint64(count))
	})
	if err != nil {
		err = fmt.Errorf("read %s: %w", stream, err)
	}
	return events, more, err
}

func (c *esClient) readAll(ctx context.Context, from uint64, d direction, count int) ([]recorded, bool, error) {
	var at esdb.AllPosition = esdb.Position{Commit: from, Prepare: from}
	switch from {
	case end:
		at = esdb.End{}
	case 0:
		at = esdb.Start{}
	}
	o := esdb.ReadAllOptions{Direction: d.esdb(), From: at, RequiresLeader: true}
	events, more, err := c.page(ctx, func(ctx context.Context) (*esdb.ReadStream, error) { return c.es.ReadAll(ctx, o, uint64(count)) })
	if rootStatus(err).Code() == codes.Unknown { // so servers before 25 say that a position is none
		err = fmt.Errorf("%w: %w", errRefused, err)
	}
	if err != nil {
		err = fmt.Errorf("read the log: %w", err)
	}
	return events, more, err
}

func (d direction) esdb() esdb.Direction {
	if d == backwards {
		return esdb.Backwards
	}
	return esdb.Forwards
}

type page struct {
	events []recorded
	more   bool
}

// tries of a read that a broken connection ends.
const tries = 4

// page reads what open asks for, up to about pageBytes.
func (c *esClient) page(ctx context.Context, open func(context.Context) (*esdb.ReadStream, error)) ([]recorded, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	for try := 1; ; try++ {
		p, err := c.readOnce(ctx, open)
		if code := rootStatus(err).Code(); try == tries || code != codes.Unavailable && code != codes.Aborted || pause(ctx, jitter(50*time.Millisecond)) != nil {
			return p.events, p.more, err
		}
	}
}

func (c *esClient) readOnce(ctx context.Context, open func(context.Context) (*esdb.ReadStream, error)) (page, error) {
	return call(ctx, c, func(*begin) (p page, err error) {
		s, err := open(ctx)
		if err != nil {
			return p, err
		}
		defer s.Close()
		for bytes := 0; bytes < pageBytes; {
			ev, err := s.Recv()
			if errors.Is(err, io.EOF) || isMissing(err) {
				return p, nil
			}
			if err != nil {
				return p, err
			}
			if r, ok := fromServer(ev); ok {
				p.events = append(p.events, r)
				bytes += len(r.data) + len(r.meta)
			}
		}
		p.more = true
		return p, nil
	})
}

// fromServer takes what is needed of an event. There is none in a link that leads nowhere.
func fromServer(ev *esdb.ResolvedEvent) (recorded, bool) {
	e := ev.OriginalEvent()
	if e == nil {
		return recorded{}, false
	}
	return recorded{
		id: e.EventID, typ: e.EventType, stream: e.StreamID, number: int64(e.EventNumber), position: e.Position.Commit,
		data: e.Data, meta: e.UserMetadata,
	}, true
}

func (c *esClient) subscribe(ctx context.Context, after uint64, prefixes []string) (subscription, error) {
	o := esdb.SubscribeToAllOptions{
		From: esdb.Position{Commit: after, Prepare: after}, MaxSearchWindow: 256, CheckpointInterval: 4,
		Filter: &esdb.SubscriptionFilter{Type: esdb.StreamFilterType, Prefixes: prefixes}, RequiresLeader: true,
	}
	if after == 0 {
		o.From = esdb.Start{}
	}
	s, err := call(ctx, c, func(*begin) (*esdb.Subscription, error) { return c.es.SubscribeToAll(ctx, o) })
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	return esSubscription{s}, nil
}

type esSubscription struct{ s *esdb.Subscription }

func (s esSubscription) recv() (r *recorded, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the client library panicked: %v", p)
		}
	}()
	ev := s.s.Recv()
	switch {
	case ev.SubscriptionDropped != nil:
		return nil, fmt.Errorf("the subscription was dropped: %w", classify(ev.SubscriptionDropped.Error))
	case ev.EventAppeared != nil:
		if e, ok := fromServer(ev.EventAppeared); ok {
			return &e, nil
		}
	}
	return nil, nil
}

func (s esSubscription) close() { _ = s.s.Close() } // it only cancels

func (c *esClient) version(ctx context.Context) (major, minor, patch int, err error) {
	v, err := call(ctx, c, func(*begin) (*esdb.ServerVersion, error) { return c.es.GetServerVersion() })
	if err != nil {
		return 0, 0, 0, fmt.Errorf("ask for the server's version: %w", err)
	}
	return v.Major, v.Minor, v.Patch, nil
}

// close waits for the calls that run. Where some still do when ctx ends, the library's client is closed
// behind the last of them, for it must not be before: that is at the end of the process if the server never answers.
func (c *esClient) close(ctx context.Context) {
	c.closed.Store(true)
	drained := make(chan struct{})
	go func() {
		for range maxCalls {
			c.slots <- struct{}{}
		}
		_ = c.es.Close() // it only says that it is over
		close(drained)
	}()
	select {
	case <-drained:
	case <-ctx.Done():
	}
}

// classify puts in front of an error what it is.
func classify(err error) error {
	if err == nil || errors.Is(err, errNotSent) {
		return err
	}
	kind := kindOf(err)
	if kind == nil {
		return err
	}
	return fmt.Errorf("%w: %w", kind, err)
}

func kindOf(err error) error {
	var es *esdb.Error
	if errors.As(err, &es) {
		switch es.Code() {
		case esdb.ErrorCodeWrongExpectedVersion:
			return errWrongRevision
		case esdb.ErrorCodeStreamDeleted:
			return errDeleted
		case esdb.ErrorCodeUnauthenticated, esdb.ErrorCodeAccessDenied:
			return errDenied
		case esdb.ErrorCodeNotLeader:
			return errNotLeader
		}
	}
	if errors.Is(err, io.EOF) {
		return errCutShort
	}
	switch rootStatus(err).Code() {
	case codes.Unauthenticated, codes.PermissionDenied:
		return errDenied
	case codes.InvalidArgument:
		return errRefused
	}
	return nil
}

// isMissing says that there is no such stream. A node says so in an answer; an error with the same
// code may mean anything.
func isMissing(err error) bool {
	var es *esdb.Error
	return errors.As(err, &es) && es.Code() == esdb.ErrorCodeResourceNotFound && rootStatus(err).Code() == codes.OK
}

// rootStatus finds the status under whatever is wrapped around it.
func rootStatus(err error) *status.Status {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus()
	}
	return status.New(codes.OK, "")
}

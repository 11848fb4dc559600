package outbox

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
)

// SenderConfig says where events go and how. Only URL and Auth must be set.
type SenderConfig struct {
	// URL of the ledger, such as https://ledger.example:8080; /api/v1/… is put behind it.
	URL string
	// Auth puts the credentials on each attempt. There is no default: NoAuth must be said.
	Auth Auth
	// Connections is how many requests may be under way. A contract always uses the same one, so
	// that its events arrive in order. 0 is 4.
	Connections int
	// BatchEvents and BatchBytes bound one request; 0 is 500 events and 4 MiB. Linger is how long
	// a batch that is not full waits for more; 0 is 20 ms.
	BatchEvents int
	BatchBytes  int
	Linger      time.Duration
	// MemoryBytes bounds the bodies that are in memory at once; 0 is 32 MiB.
	MemoryBytes int
	// AttemptTimeout bounds one request and its answer; 0 is 30 s.
	AttemptTimeout time.Duration
	// BackoffBase doubles with each failure up to BackoffMax; a random part of it is waited.
	// 0 is 1 s and 300 s. A longer Retry-After is obeyed, up to an hour.
	BackoffBase time.Duration
	BackoffMax  time.Duration
	// ParkedRetry is how often parked events are tried; 0 is 5 minutes. They are also tried once
	// at the start.
	ParkedRetry time.Duration
	// StopGrace is how long a request under way may go on after Run's context has ended; 0 is 5 s.
	StopGrace time.Duration
	// Transport does the requests; nil is one of the sender's own.
	Transport http.RoundTripper
	// Settled, if not nil, is called after each transaction that settled events. A sent event has
	// the code accepted or duplicate. It must not block.
	Settled func([]Settlement)
	// Alerts, Log and Metrics may be nil.
	Alerts  *Alerts
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Sender delivers what an outbox holds. It removes an event only after the ledger said that it is
// stored; what it is not sure of it sends again. See the table in classify.go for what each answer
// means.
type Sender struct {
	cfg     SenderConfig
	box     *Outbox
	metrics *metrics
	client  *http.Client
	seed    maphash.Seed
	memory  *semaphore.Weighted
	results chan []Settlement // from the lanes to the writer
	settled chan struct{}     // holds a token when events were settled since the feeder last looked

	mu       sync.Mutex
	inFlight map[int64]struct{} // guarded by mu: events that are read and not settled, by Seq
	trouble  string             // guarded by mu: why the last request has to be repeated, "" when it has not
}

// NewSender returns a sender for the outbox. It fails when the URL cannot be one of a ledger or
// when Auth is missing.
func NewSender(box *Outbox, cfg SenderConfig) (*Sender, error) {
	base, err := checkURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	cfg.URL = base
	if cfg.Auth == nil {
		return nil, errors.New("auth: is missing; NoAuth says that there is none")
	}
	cfg.Connections = or(cfg.Connections, 4)
	cfg.BatchEvents = or(cfg.BatchEvents, 500)
	cfg.BatchBytes = or(cfg.BatchBytes, 4<<20)
	cfg.Linger = or(cfg.Linger, 20*time.Millisecond)
	cfg.MemoryBytes = or(cfg.MemoryBytes, 32<<20)
	cfg.AttemptTimeout = or(cfg.AttemptTimeout, 30*time.Second)
	cfg.BackoffBase = or(cfg.BackoffBase, time.Second)
	cfg.BackoffMax = or(cfg.BackoffMax, 300*time.Second)
	cfg.ParkedRetry = or(cfg.ParkedRetry, 5*time.Minute)
	cfg.StopGrace = or(cfg.StopGrace, 5*time.Second)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Alerts == nil {
		cfg.Alerts = NewAlerts(cfg.Log, nil)
	}
	if cfg.Transport == nil {
		cfg.Transport = transport(cfg.Connections)
	}
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	return &Sender{
		cfg: cfg, box: box, metrics: m, seed: maphash.MakeSeed(),
		client:  &http.Client{Transport: cfg.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		settled: make(chan struct{}, 1),
	}, nil
}

// or returns v, or otherwise when v is not set.
func or[T int | time.Duration](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	return v
}

func checkURL(text string) (string, error) {
	if text == "" {
		return "", errors.New("url: is missing")
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return "", errors.New("url: want http:// or https:// and a host")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "", errors.New("url: credentials, query and fragment have no place in it")
	}
	return strings.TrimRight(u.String(), "/"), nil
}

func transport(connections int) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost, t.MaxConnsPerHost = connections, connections
	t.DisableCompression = true // answers are small, and a bomb would be unpacked
	t.MaxResponseHeaderBytes = 64 << 10
	return t
}

// Run delivers until ctx ends, and first waits for the lease when another sender has it. It
// returns nil when it was stopped. One Run or Drain at a time.
func (s *Sender) Run(ctx context.Context) error { return s.run(ctx, false) }

// Drain delivers until nothing is pending, parked events tried once, or ctx ends.
func (s *Sender) Drain(ctx context.Context) error { return s.run(ctx, true) }

func (s *Sender) run(ctx context.Context, drain bool) error {
	lease, err := s.box.Lease(ctx, func() { s.cfg.Log.Info("another sender has the lease of this outbox; standing by") })
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	s.memory, s.inFlight = semaphore.NewWeighted(int64(s.cfg.MemoryBytes)), map[int64]struct{}{}
	s.results = make(chan []Settlement, s.cfg.Connections)
	lanes := make([]chan Pending, s.cfg.Connections)
	var working, writing sync.WaitGroup
	writing.Go(func() { s.write(ctx) })
	for i := range lanes {
		lanes[i] = make(chan Pending, s.cfg.BatchEvents)
		working.Go(func() { s.lane(ctx, lanes[i]) })
	}
	s.feed(ctx, lanes, drain)
	for _, lane := range lanes {
		close(lane)
	}
	working.Wait()
	close(s.results)
	writing.Wait()
	s.client.CloseIdleConnections()
	return lease.Release()
}

const (
	pageEvents = 1000
	pageBytes  = 4 << 20
	pollEvery  = time.Second // for events that another process enqueued
)

// feed reads pending events in order and hands each to its contract's lane. It reads on from where
// it was: an event it has handed out is the lane's until it is settled or the sender stops. Parked
// events are read page by page between the others, so that they hold nobody up.
func (s *Sender) feed(ctx context.Context, lanes []chan Pending, drain bool) {
	poll, parked := time.NewTicker(pollEvery), time.NewTicker(s.cfg.ParkedRetry)
	defer poll.Stop()
	defer parked.Stop()
	after, afterParked, tryParked := int64(0), int64(0), true
	for ctx.Err() == nil {
		select {
		case <-parked.C:
			afterParked, tryParked = 0, true
		default:
		}
		last, more := s.feedPage(ctx, lanes, after, false)
		after = last
		if tryParked {
			afterParked, tryParked = s.feedPage(ctx, lanes, afterParked, true)
		}
		if more || tryParked {
			continue
		}
		if drain && s.idle() {
			return
		}
		select {
		case <-ctx.Done():
		case <-s.box.added:
		case <-s.settled:
		case <-poll.C:
		case <-parked.C:
			afterParked, tryParked = 0, true
		}
	}
}

// feedPage hands out the page behind after. It returns the last Seq of it and whether there was
// anything.
func (s *Sender) feedPage(ctx context.Context, lanes []chan Pending, after int64, parked bool) (last int64, more bool) {
	var page []Pending
	s.insist(ctx, "read the outbox", func() (err error) {
		page, err = s.box.Next(ctx, after, parked, pageEvents, pageBytes)
		return err
	})
	last = after
	for _, p := range page {
		if !s.hand(ctx, lanes, p) {
			break
		}
		last = p.Seq
	}
	return last, len(page) > 0
}

func (s *Sender) hand(ctx context.Context, lanes []chan Pending, p Pending) bool {
	if !s.begin(p) {
		return true // a parked one that is still under way
	}
	if s.memory.Acquire(ctx, s.weight(p)) != nil {
		return false
	}
	lane := lanes[maphash.String(s.seed, p.ContractID)%uint64(len(lanes))]
	select {
	case lane <- p:
		return true
	case <-ctx.Done():
		s.memory.Release(s.weight(p))
		return false
	}
}

func (s *Sender) weight(p Pending) int64 { return int64(min(len(p.Body)+500, s.cfg.MemoryBytes)) }

func (s *Sender) begin(p Pending) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.inFlight[p.Seq]; there {
		return false
	}
	s.inFlight[p.Seq] = struct{}{}
	return true
}

func (s *Sender) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.inFlight) == 0
}

// maxSettle bounds one transaction of the writer.
const maxSettle = 4000

// write records what became of events. It takes together what the lanes have for it, since one
// transaction over many events costs far less than many. The lanes do not wait: an event that is
// answered and not yet removed when the program dies is sent again, and is then a duplicate.
func (s *Sender) write(ctx context.Context) {
	for settled := range s.results {
		settled = s.more(settled)
		if !s.insist(ctx, "write the outbox", func() error { return s.box.Settle(ctx, settled) }) {
			// Stopping: once more, whatever ctx says. If that fails too, the events stay pending.
			if err := s.box.Settle(context.WithoutCancel(ctx), settled); err != nil {
				s.cfg.Log.Warn("answered events stay in the outbox and will be sent again", "events", len(settled), "error", err)
				continue
			}
		}
		s.forget(settled)
		s.report(settled)
	}
}

// more adds what else is at hand, or comes within Linger.
func (s *Sender) more(settled []Settlement) []Settlement {
	linger := time.NewTimer(s.cfg.Linger)
	defer linger.Stop()
	for len(settled) < maxSettle {
		select {
		case next, ok := <-s.results:
			if !ok {
				return settled
			}
			settled = append(settled, next...)
		case <-linger.C:
			return settled
		}
	}
	return settled
}

// forget lets go of settled events.
func (s *Sender) forget(settled []Settlement) {
	s.mu.Lock()
	for _, one := range settled {
		delete(s.inFlight, one.Pending.Seq)
	}
	s.mu.Unlock()
	for _, one := range settled {
		s.memory.Release(s.weight(one.Pending))
	}
	select {
	case s.settled <- struct{}{}:
	default:
	}
}

func (s *Sender) report(settled []Settlement) {
	var dead, parked []Settlement
	for _, one := range settled {
		switch one.Fate {
		case Sent:
			s.metrics.settled.WithLabelValues(one.Reason.Code).Inc()
		case Dead:
			s.metrics.settled.WithLabelValues("dead").Inc()
			dead = append(dead, one)
		case Parked:
			s.metrics.settled.WithLabelValues("parked").Inc()
			parked = append(parked, one)
		}
	}
	if s.cfg.Settled != nil {
		s.cfg.Settled(settled)
	}
	for kind, list := range map[string][]Settlement{AlertDead: dead, AlertParked: parked} {
		if len(list) > 0 {
			first := list[0]
			s.cfg.Log.Warn(kind, "events", len(list), "first", first.Pending.Event, "status", first.Reason.Status, "code", first.Reason.Code)
			s.cfg.Alerts.Raise(kind, len(list), fmt.Sprintf("%d events, the first one with %d %s", len(list), first.Reason.Status, first.Reason.Code))
		}
	}
}

// insist tries until it works or ctx ends, and reports whether it worked.
func (s *Sender) insist(ctx context.Context, what string, try func() error) bool {
	for n := 0; ; n++ {
		err := try()
		if err == nil {
			if n > 0 {
				s.cfg.Alerts.Clear(AlertOutbox)
			}
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		s.cfg.Alerts.Raise(AlertOutbox, 1, fmt.Sprintf("%s: %v", what, err))
		if !pause(ctx, backoff(s.cfg.BackoffBase, 10*s.cfg.BackoffBase, n)) {
			return false
		}
	}
}

// pause waits and reports whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

package rest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/disk"
	"github.com/talenttrust/auditledger/projections"
	"github.com/talenttrust/auditledger/rest"

	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// noon is the time on a test's clock when it starts.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// service is the whole service of a test, on a real store.
type service struct {
	*httptest.Server
	t     *testing.T
	clock *clock
	log   *ledgertest.Log
	store *disk.Store
	stop  func() // closes all, in the order of the program
}

// clock is a test's time.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = t
}

// options change a test's service.
type options struct {
	dir    string
	disk   disk.Config
	ledger ledger.Config
	rest   rest.Config
	server func(*http.Server)
}

func newService(t *testing.T, o options) *service {
	t.Helper()
	s := &service{t: t, clock: &clock{t: noon}, log: new(ledgertest.Log)}
	logger := slog.New(slog.NewJSONHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: ledger.Redact}))
	if o.dir == "" {
		o.dir = t.TempDir()
	}
	o.disk.Dir, o.disk.Now, o.disk.Logger = o.dir, s.clock.now, logger
	if o.disk.Reserve == 0 {
		o.disk.Reserve = 1
	}
	store, err := disk.Open(o.disk)
	if err != nil {
		t.Fatal(err)
	}
	s.store = store
	o.ledger.Store, o.ledger.Now, o.ledger.Logger = store, s.clock.now, logger
	o.ledger.Elapsed = func() time.Duration { return s.clock.now().Sub(noon) }
	l, err := ledger.New(o.ledger)
	if err != nil {
		t.Fatal(err)
	}
	views, err := projections.Open(t.Context(), projections.Config{
		Dir: filepath.Join(o.dir, "projections"), Reader: store, Pending: l.Pending, Now: s.clock.now, Logger: logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	stopViews, stopLedger := loop(views.Run), loop(l.Run)
	o.rest.Ledger, o.rest.Projections, o.rest.Logger, o.rest.Now = l, views, logger, s.clock.now
	if o.rest.Auth == nil {
		o.rest.Auth = rest.LocalAuth(24 * time.Hour)
	}
	s.Server = httptest.NewUnstartedServer(rest.New(o.rest))
	if o.server != nil {
		o.server(s.Config)
	}
	s.Start()
	s.stop = sync.OnceFunc(func() {
		s.Close()
		stopLedger()
		stopViews()
		if err := errors.Join(views.Close(), store.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

// loop runs f in the background; stop ends it and waits for it.
func loop(f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// reply is an answer that was read to its end.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// do sends a request; edit may change it first.
func (s *service) do(method, path, body string, edit ...func(*http.Request)) reply {
	s.t.Helper()
	req, err := http.NewRequest(method, s.URL+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, f := range edit {
		f(req)
	}
	resp, err := s.Client().Do(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatalf("%s %s: read the answer: %v", method, path, err)
	}
	answer := reply{resp.StatusCode, resp.Header, b}
	if spec, err := spec(); err != nil {
		s.t.Error(err)
	} else if err := spec.check(method, path, answer); err != nil && method != "HEAD" {
		s.t.Errorf("%s %s: the answer is not as openapi.yaml says: %v\n%s", method, path, err, b)
	}
	return answer
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// into decodes an answer.
func into[T any](t *testing.T, r reply) (v T) {
	t.Helper()
	if err := json.Unmarshal(r.body, &v); err != nil {
		t.Fatalf("answer %d is not JSON: %v: %s", r.status, err, r.body)
	}
	return v
}

type result struct {
	Key             *string `json:"deduplicationKey"`
	Status          string
	Code            string
	HTTPStatus      int
	Reason          string
	Errors          []struct{ Path, Message string }
	ProcessedAt     string
	Position        string
	Revision        *int64
	Generation      *int64
	PayloadHash     string
	LeafHash        string
	EnvelopeChanged bool
}

type answer struct {
	Processed int
	Results   []result
	Summary   struct{ Accepted, Rejected, Duplicates int }
	Position  string
}

type problem struct {
	Type, Title, Detail, Code, RequestID string
	Status                               int
}

// post sends a batch that must be answered 200.
func (s *service) post(contractType string, events ...string) answer {
	s.t.Helper()
	r := s.do("POST", "/api/v1/events", batch(contractType, events...))
	if r.status != http.StatusOK {
		s.t.Fatalf("got status %d, want 200: %s", r.status, r.body)
	}
	return into[answer](s.t, r)
}

func batch(contractType string, events ...string) string {
	return fmt.Sprintf(`{"contractType":%q,"events":[%s]}`, contractType, strings.Join(events, ","))
}

// event is an event of noon.
func event(contract, id string, sequence int, payload string) string {
	return fmt.Sprintf(`{"contractId":%q,"eventId":%q,"sequence":%d,"timestamp":%d,"payload":%s}`, contract, id, sequence, noon.UnixMilli(), payload)
}

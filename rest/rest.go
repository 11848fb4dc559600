// Package rest serves the ledger over HTTP: it takes events in, and answers what became of them.
//
// openapi.yaml is the specification of every route; a test compares real answers with it. What
// holds for all of them:
//
//   - A 2xx to events is written after they are durable, and by no other road. 503 with Retry-After
//     means that the same request is to be sent again; events that were stored come back as duplicates.
//   - A batch that can be read at all is answered 200 with one result per event: one bad event never
//     sinks its neighbours. Errors of the whole request are RFC 9457 problems.
//   - Bodies, queues and times are bounded, and what is refused is refused before it costs anything:
//     authentication, a free place, type and length, and only then the body.
//   - Nothing of a body and no secret gets into a log line, a metric or an error text.
package rest

import (
	"context"
	_ "embed"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/projections"
)

// Config is what the service is made of. The first three are needed.
type Config struct {
	Ledger      *ledger.Ledger           // takes the events
	Projections *projections.Projections // answer the reads
	Auth        *Auth                    // knows who may do what

	MaxEvents   int           // of one request; 1000 when 0
	MaxBody     int64         // bytes of a body, as sent and decompressed; 8 MiB when 0
	BodyMemory  int64         // bytes that all bodies together may take; 256 MiB when 0, four of the largest at least
	MaxInflight int           // requests with events at once, the others are told to come again; 64 when 0
	Timeout     time.Duration // of a request once its body is there; 15 s when 0
	BodyTimeout time.Duration // in which a body must arrive; 30 s when 0

	TrustedProxies []string // prefixes such as 10.0.0.0/8 of proxies whose X-Forwarded-For is believed; none: the peer is the client

	MaxLag   int64                // records a projection may be behind and still be ready; 100,000 when 0
	Checks   map[string]Check     // what /readyz asks besides the projections, by name
	Spare    map[string]Check     // parts that the service can do without: /readyz shows them, and stays ready
	Extra    func(chi.Router)     // further routes for auditors
	Registry *prometheus.Registry // what /metrics shows; its own when nil
	Logger   *slog.Logger         // slog.Default() when nil
	Now      func() time.Time     // at which keys are active; time.Now when nil
}

//go:embed openapi.yaml
var openAPI []byte

type server struct {
	Config
	*decoders
	query   *projections.Query
	slots   chan struct{}       // one token per request that is being answered
	memory  *semaphore.Weighted // bytes of the bodies that are being received or answered
	show    func(ctx context.Context, e *projections.Entry, payload []byte) (shown []byte, withheld []string, err error)
	metrics metrics
}

// New returns the handler of all routes.
func New(c Config) http.Handler {
	c.MaxEvents = or(c.MaxEvents, 1000)
	c.MaxBody = or(c.MaxBody, 8<<20)
	c.MaxInflight = or(c.MaxInflight, 64)
	c.BodyMemory = or(c.BodyMemory, 256<<20)
	c.Timeout = or(c.Timeout, 15*time.Second)
	c.BodyTimeout = or(c.BodyTimeout, 30*time.Second)
	c.MaxLag = or(c.MaxLag, 100_000)
	c.Registry = or(c.Registry, prometheus.NewRegistry())
	c.Logger = or(c.Logger, slog.Default())
	if c.Now == nil {
		c.Now = time.Now
	}
	s := &server{Config: c, decoders: newDecoders(), query: c.Projections.Query(), slots: make(chan struct{}, c.MaxInflight), memory: semaphore.NewWeighted(max(c.BodyMemory, 4*c.MaxBody)), show: ShowPayload(c.Ledger)}
	s.metrics = s.newMetrics()
	return s.routes()
}

func or[T comparable](v, byDefault T) T {
	var zero T
	if v == zero {
		return byDefault
	}
	return v
}

func (s *server) routes() http.Handler {
	r := chi.NewRouter()
	r.Use(s.clientAddress(), s.observe, s.recoverPanics, s.refuseURLSecrets, middleware.GetHead)
	r.NotFound(s.notFound)
	r.MethodNotAllowed(s.methodNotAllowed(r))

	r.Get("/healthz", s.healthz)
	r.Get("/readyz", s.readyz)
	r.Get("/api/v1/openapi.yaml", s.openAPI)

	r.Post("/api/v1/events", s.post(s.postBatch))
	r.Post("/api/v1/events/validate", s.post(s.validate))
	r.Post("/api/v1/contracts/{contractId}/events", s.post(s.postEvent))
	r.Post("/api/v1/envelopes", s.postEnvelope())
	r.Group(func(r chi.Router) {
		r.Use(s.require(RoleAuditor))
		r.Get("/api/v1/stats", s.get(s.stats))
		r.Get("/api/v1/contracts", s.get(s.contracts))
		r.Get("/api/v1/contracts/{contractId}/history", s.get(s.history))
		r.Get("/api/v1/contracts/{contractId}/events/{eventId}/{sequence}", s.get(s.event))
		r.Get("/api/v1/projections", s.get(s.projectionStates))
		r.Method(http.MethodGet, "/metrics", s.metrics.handler)
		if s.Extra != nil {
			s.Extra(r)
		}
	})
	r.With(s.require(RoleAdmin)).Post("/api/v1/projections/{name}/rebuild", s.handle(s.rebuild))
	return r
}

// call is one request on its way through an endpoint.
type call struct {
	*exchange
	*http.Request
	w http.ResponseWriter
}

// param is a part of the path, as it is meant: the router leaves it escaped where the path was.
func (c *call) param(name string) string {
	value := chi.URLParam(c.Request, name)
	if c.URL.RawPath == "" {
		return value
	}
	plain, err := url.PathUnescape(value)
	if err != nil { // the server refuses such a path before
		return value
	}
	return plain
}

// endpoint answers one request with a status and a value that becomes its JSON body, or with an
// error that problemOf knows.
type endpoint func(c *call) (status int, answer any, err error)

// handle makes a handler of an endpoint.
func (s *server) handle(answer endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		status, v, err := answer(&call{exchangeOf(r.Context()), r, w})
		if err != nil {
			s.fail(w, r, err)
			return
		}
		s.write(w, r, status, v)
	}
}

// post makes a handler of what is done with a body that a collector sends. Its context ends at the
// service's time limit. The body is used again for another request: nothing of it may be kept.
//
// A bearer token is looked at first; a signature as soon as the body is there, and before anything
// of it is decompressed or understood.
func (s *server) post(do func(ctx context.Context, c *call, body []byte) (int, any, error)) http.HandlerFunc {
	return s.handle(func(c *call) (int, any, error) {
		signed := s.isSigned(c)
		if !signed {
			who, err := s.Auth.identify(c.Request)
			if err == nil {
				err = s.admit(c.exchange, who, RoleCollector)
			}
			if err != nil {
				return 0, nil, err
			}
		}
		return s.withBody(c, signed, do)
	})
}

// isSigned reports whether a request shows by a signature who sends it.
func (s *server) isSigned(c *call) bool {
	return len(c.Header.Values("Authorization")) == 0 && schemeOf(c.Header) != "" && s.Auth.current.Load() != nil
}

// withBody reads a request's body, and does what is to be done with it when there is a place for it.
// A request takes its place when it is whole: one that is sent slowly holds nobody up.
func (s *server) withBody(c *call, signed bool, do func(ctx context.Context, c *call, body []byte) (int, any, error)) (int, any, error) {
	buf := s.newBody()
	defer buf.release()
	if signed {
		sent := s.newBody()
		defer sent.release()
		if err := s.readSigned(c, sent); err != nil {
			return 0, nil, err
		}
	}
	if err := s.readBody(c, buf); err != nil {
		return 0, nil, err
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		return 0, nil, retry("busy", "too many requests are being answered; send the request again", nil)
	}
	ctx, cancel := context.WithTimeout(c.Context(), s.Timeout)
	defer cancel()
	return do(ctx, c, buf.b)
}

package rest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/google/uuid"

	"github.com/talenttrust/auditledger/ledger"
)

// Headers by which a request can be found again.
const (
	headerRequestID   = "X-Request-Id"
	headerTraceparent = "Traceparent"
)

// exchange is what one request is known by, from its arrival to its answer.
type exchange struct {
	id          string // of the request: the sender's, or ours
	traceparent string // the sender's, or empty
	caller      identity
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// observe gives a request its exchange, and says afterwards what became of it: in the log and in
// the metrics, by the pattern of its route, never by its path or query.
func (s *server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		started := time.Now()
		x := &exchange{id: requestID(r), traceparent: traceparent(r)}
		w.Header().Set(headerRequestID, x.id)
		if x.traceparent != "" {
			w.Header().Set(headerTraceparent, x.traceparent)
		}
		s.timeBody(w, r)
		ww := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		routing := chi.RouteContext(r.Context())
		defer func() {
			took, status, route := time.Since(started), ww.Status(), routing.RoutePattern()
			if route == "" {
				route = "none"
			}
			s.metrics.requests.WithLabelValues(route, strconv.Itoa(status)).Observe(took.Seconds())
			s.Logger.LogAttrs(r.Context(), levelOf(route, status), "request", slog.String("method", r.Method), slog.String("route", route),
				slog.Int("status", status), slog.Duration("took", took), slog.Int("bytes", ww.BytesWritten()),
				slog.String("requestId", x.id), slog.String("source", x.caller.name()), slog.String("client", middleware.GetClientIP(r.Context())))
		}()
		next.ServeHTTP(ww, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x)))
	})
}

// clientAddress finds out who is at the other end: the peer, or, where that is a proxy to be trusted,
// whom it names.
func (s *server) clientAddress() func(http.Handler) http.Handler {
	if len(s.TrustedProxies) == 0 {
		return middleware.ClientIPFromRemoteAddr
	}
	return middleware.ClientIPFromXFF(s.TrustedProxies...)
}

// refuseURLSecrets refuses a request whose URL has a parameter that looks like a secret: by then it is
// in the logs of every proxy on the way, and its sender should hear of it.
func (s *server) refuseURLSecrets(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "" {
			for name := range r.URL.Query() {
				if ledger.SecretName(name) {
					s.fail(w, r, invalidParameter(shorten(name), "looks like a secret, and secrets do not belong into a URL; send it in the Authorization header, and change it"))
					return
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// levelOf keeps what is asked every few seconds out of a log of normal detail.
func levelOf(route string, status int) slog.Level {
	switch {
	case status >= http.StatusInternalServerError:
		return slog.LevelWarn
	case route == "/healthz", route == "/readyz", route == "/metrics":
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

var requestIDForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func requestID(r *http.Request) string {
	if id := r.Header.Get(headerRequestID); requestIDForm.MatchString(id) {
		return id
	}
	return uuid.NewString()
}

var traceparentForm = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// traceparent is the sender's when it has the form of W3C Trace Context section 3.2; what has not is
// as good as absent.
func traceparent(r *http.Request) string {
	t := r.Header.Get(headerTraceparent)
	if !traceparentForm.MatchString(t) || strings.HasPrefix(t, "ff") ||
		t[3:35] == strings.Repeat("0", 32) || t[36:52] == strings.Repeat("0", 16) {
		return ""
	}
	return t
}

// recoverPanics answers 500 when a handler panics. What it panicked with is not logged, for it may
// hold anything; where it did is.
func (s *server) recoverPanics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			err, isError := v.(error)
			if isError && errors.Is(err, http.ErrAbortHandler) {
				panic(v)
			}
			s.Logger.ErrorContext(r.Context(), "panic", "type", fmt.Sprintf("%T", v), "requestId", exchangeOf(r.Context()).id, "stack", string(debug.Stack()))
			s.fail(w, r, problem("internal", "the request failed for a reason that is not its own"))
		}()
		next.ServeHTTP(w, r)
	})
}

func (s *server) notFound(w http.ResponseWriter, r *http.Request) {
	s.fail(w, r, problem("not_found", "no such path"))
}

// methodNotAllowed says which methods a path has.
func (s *server) methodNotAllowed(routes chi.Routes) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.RawPath
		if path == "" {
			path = r.URL.Path
		}
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
			as := method
			if method == http.MethodHead {
				as = http.MethodGet
			}
			if routes.Match(chi.NewRouteContext(), as, path) {
				w.Header().Add("Allow", method)
			}
		}
		s.fail(w, r, problem("method_not_allowed", "the path does not have this method"))
	}
}

package rest

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/projections"
)

// itemStatus is the HTTP status of each code that a single event can be rejected with.
var itemStatus = map[string]int{
	ledger.CodeInvalidEvent:     http.StatusUnprocessableEntity,
	ledger.CodeInvalidPayload:   http.StatusUnprocessableEntity,
	ledger.CodeDuplicateMember:  http.StatusUnprocessableEntity,
	ledger.CodePayloadTooLarge:  http.StatusUnprocessableEntity,
	ledger.CodeTooOld:           http.StatusUnprocessableEntity,
	ledger.CodeInFuture:         http.StatusUnprocessableEntity,
	ledger.CodeTypeNotAllowed:   http.StatusForbidden,
	ledger.CodeInvalidSignature: http.StatusUnauthorized,
	ledger.CodePayloadConflict:  http.StatusConflict,
	ledger.CodeConflict:         http.StatusConflict,
	ledger.CodeContractClosed:   http.StatusConflict,
}

// Problem is an error of a whole request (RFC 9457). Detail is for people and holds no payload
// values and nothing of the store; the cause is logged.
type Problem struct {
	Code       string
	Detail     string
	RetryAfter int    // seconds; 0: no Retry-After
	refusal    string // why a source was refused, in the metrics; "" where it was not
	cause      error
}

func (p *Problem) Error() string {
	if p.cause == nil {
		return p.Detail
	}
	return p.Detail + ": " + p.cause.Error()
}

func (p *Problem) Unwrap() error { return p.cause }

// problems is every code a request can fail with. They are part of the public contract.
var problems = map[string]struct {
	status int
	title  string
}{
	"invalid_json":           {http.StatusBadRequest, "The body is not valid JSON"},
	"invalid_request":        {http.StatusBadRequest, "The request is not as it must be"},
	"invalid_parameter":      {http.StatusBadRequest, "A parameter is not as it must be"},
	"empty_batch":            {http.StatusBadRequest, "The batch holds no events"},
	"too_many_events":        {http.StatusBadRequest, "The batch holds too many events"},
	"unauthenticated":        {http.StatusUnauthorized, "Authentication is needed"},
	"forbidden":              {http.StatusForbidden, "The source may not do this"},
	"not_found":              {http.StatusNotFound, "There is nothing here"},
	"method_not_allowed":     {http.StatusMethodNotAllowed, "The method is not allowed here"},
	"request_timeout":        {http.StatusRequestTimeout, "The body did not arrive in time"},
	"body_too_large":         {http.StatusRequestEntityTooLarge, "The body is too large"},
	"unsupported_media_type": {http.StatusUnsupportedMediaType, "The body's type or encoding is not taken"},
	"rate_limited":           {http.StatusTooManyRequests, "The source sends too much"},
	"client_gone":            {statusClientGone, "The client went away"},
	"internal":               {http.StatusInternalServerError, "Something went wrong here"},
	"no_signing_source":      {http.StatusServiceUnavailable, "No source signs its requests"},
	"busy":                   {http.StatusServiceUnavailable, "Too much is going on"},
	"ledger_unavailable":     {http.StatusServiceUnavailable, "The ledger is not available"},
	"not_caught_up":          {http.StatusServiceUnavailable, "The answer is not there yet"},
}

// statusClientGone is seen in logs and metrics only.
const statusClientGone = 499

func problem(code, detail string) *Problem { return &Problem{Code: code, Detail: detail} }

func invalidParameter(name, rule string) *Problem {
	return problem("invalid_parameter", name+" "+rule)
}

func retry(code, detail string, cause error) *Problem {
	return &Problem{Code: code, Detail: detail, RetryAfter: 1, cause: cause}
}

// problemOf is the one place that turns errors of the ledger and of the projections into problems.
func problemOf(err error) *Problem {
	var p *Problem
	var parameter *projections.ParameterError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &parameter):
		return invalidParameter(parameterName(parameter.Name), parameter.Rule)
	case errors.Is(err, projections.ErrNotCaughtUp):
		return retry("not_caught_up", "the position in atLeast is not in the answers yet; ask again", err)
	case errors.Is(err, ledger.ErrBeyondHead):
		return &Problem{Code: "invalid_parameter", Detail: "the position is beyond the head of this ledger", cause: err}
	case errors.Is(err, ledger.ErrBusy):
		return retry("busy", "too many events wait to be stored; send the request again", err)
	case errors.Is(err, ledger.ErrDamaged):
		return &Problem{Code: "internal", Detail: "the ledger is damaged: what is stored is not what was written; auditctl verify names the place", cause: err}
	case errors.Is(err, ledger.ErrUnavailable), errors.Is(err, ledger.ErrUnknown):
		return retry("ledger_unavailable", "the ledger cannot be reached or does not take events now; send the request again", err)
	case errors.Is(err, context.DeadlineExceeded):
		return retry("busy", "the request took too long; send it again", err)
	}
	return &Problem{Code: "internal", Detail: "the request failed for a reason that is not its own", cause: err}
}

// parameterName is the name that a parameter of the projections has here.
func parameterName(name string) string {
	switch name {
	case "after":
		return "cursor"
	case "first":
		return "limit"
	}
	return name
}

// fail answers with the problem that err is.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	if r.Context().Err() != nil && errors.Is(err, context.Canceled) {
		p = problem("client_gone", "the request was given up")
	}
	kind := problems[p.Code]
	x := exchangeOf(r.Context())
	if p.refusal != "" {
		s.metrics.refusals.WithLabelValues(p.refusal).Inc()
	}
	if kind.status >= http.StatusInternalServerError && p.cause != nil {
		s.Logger.LogAttrs(r.Context(), slog.LevelError, "request failed", slog.String("code", p.Code), slog.Any("error", p.cause), slog.String("requestId", x.id))
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	switch p.Code {
	case "unauthenticated":
		h.Set("WWW-Authenticate", "Bearer")
	case "unsupported_media_type":
		h.Set("Accept-Encoding", "gzip, zstd")
	}
	body, _ := json.Marshal(struct {
		Type      string `json:"type"`
		Title     string `json:"title"`
		Status    int    `json:"status"`
		Detail    string `json:"detail"`
		Code      string `json:"code"`
		RequestID string `json:"requestId"`
	}{"urn:auditledger:problem:" + p.Code, kind.title, kind.status, p.Detail, p.Code, x.id}, jsontext.AllowInvalidUTF8(true)) // plain strings only
	w.WriteHeader(kind.status)
	w.Write(body) // a client that went away is seen by the server
}

// encoded is an answer that is JSON already.
type encoded []byte

// write answers with v as JSON.
func (s *server) write(w http.ResponseWriter, r *http.Request, status int, v any) {
	body, ready := v.(encoded)
	if !ready {
		var err error
		if body, err = json.Marshal(v, json.Deterministic(true)); err != nil {
			s.fail(w, r, err)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	w.Write(body)
}

const timeForm = "2006-01-02T15:04:05.000Z"

// millis is a moment in epoch milliseconds; RFC 3339 with milliseconds in UTC on the wire.
type millis int64

// AppendText implements encoding.TextAppender.
func (m millis) AppendText(b []byte) ([]byte, error) {
	return time.UnixMilli(int64(m)).UTC().AppendFormat(b, timeForm), nil
}

// MarshalText implements encoding.TextMarshaler.
func (m millis) MarshalText() ([]byte, error) { return m.AppendText(nil) }

// optional is a pointer to v, or nil, which is null on the wire, where v stands for nothing.
func optional[T comparable](v, nothing T) *T {
	if v == nothing {
		return nil
	}
	return &v
}

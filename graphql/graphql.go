// Package graphql answers auditors' queries over HTTP, as the GraphQL over HTTP specification says,
// from the one query type of package projections.
//
// The library that executes queries has no limits of its own, so every query passes these, in this
// order, each cheap enough for what the one before lets through (limits.go):
//
//  1. size of the request, then of the query;
//  2. tokens, nesting, aliases and repeated names, counted by the lexer, before anything is parsed;
//  3. cycles of fragments, depth and cost, on the parsed query: the size of each page multiplies what
//     is inside it, a fragment counts as often as it is used;
//  4. how many run at once, how long, and how large the answer becomes.
//
// Errors of ours go to the log; the client gets the request's id.
package graphql

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/graphql-go/graphql"
	"github.com/graphql-go/graphql/gqlerrors"
	"github.com/graphql-go/graphql/language/ast"
	"github.com/graphql-go/graphql/language/parser"
	"github.com/graphql-go/graphql/language/source"

	"github.com/talenttrust/auditledger/projections"
)

// Config is what a Handler answers from. The zero value of every field but Query is usable.
type Config struct {
	Query           *projections.Query
	Limits          Limits
	NoIntrospection bool          // __schema and __type are refused
	Persisted       Persisted     // queries that clients may name by hash
	PersistedOnly   bool          // and no others
	Timeout         time.Duration // of one request; 5 s when 0
	Concurrent      int           // requests executed at once, the others get 503; 16 when 0
	Streams         int           // subscriptions open at once, the others get 503; 64 when 0
	Epoch           string        // names the ledger in the ids of a subscription's events: without '-'
	Logger          *slog.Logger  // slog.Default() when nil

	// Show returns what the sender of a request may see of an entry's payload, and the JSON pointers of
	// what is withheld from it; "" is the whole payload. Everybody sees all when nil.
	Show func(ctx context.Context, e *projections.Entry, payload []byte) (shown []byte, withheld []string, err error)
}

// Handler serves GraphQL over HTTP at any path, for GET and POST.
type Handler struct {
	c      Config
	schema graphql.Schema
	slots  chan struct{}

	streams chan struct{}
}

// New checks the schema and returns its handler.
func New(c Config) (*Handler, error) {
	c.Limits.defaults()
	if c.PersistedOnly && len(c.Persisted) == 0 {
		return nil, errors.New("graphql: only persisted queries are allowed, and there are none")
	}
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	if c.Concurrent == 0 {
		c.Concurrent = 16
	}
	if c.Streams == 0 {
		c.Streams = 64
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Show == nil {
		c.Show = func(_ context.Context, _ *projections.Entry, payload []byte) ([]byte, []string, error) {
			return payload, nil, nil
		}
	}
	schema, err := newSchema(&resolver{c.Query, c.Logger, c.Limits.Answer, c.Show})
	if err != nil {
		return nil, fmt.Errorf("graphql schema: %w", err)
	}
	return &Handler{c: c, schema: schema, slots: make(chan struct{}, c.Concurrent), streams: make(chan struct{}, c.Streams)}, nil
}

// request is a GraphQL request as it comes in a body or in a URL.
type request struct {
	Query         string         `json:"query"`
	OperationName string         `json:"operationName"`
	Variables     map[string]any `json:"variables"`
	Extensions    map[string]any `json:"extensions"`
}

// failure is an error of a whole request: nothing was executed.
type failure struct {
	status  int    // for application/graphql-response+json, and for what is no GraphQL request at all
	code    string // extensions.code
	message string
	at      [2]int // line and column, if known
	well    bool   // a well-formed GraphQL request: with application/json it is answered 200
}

func (f *failure) Error() string { return f.message }

func bad(code, format string, args ...any) *failure {
	return &failure{status: http.StatusBadRequest, code: code, message: fmt.Sprintf(format, args...)}
}

func refused(code, format string, args ...any) *failure {
	f := bad(code, format, args...)
	f.well = true
	return f
}

const (
	mediaJSON     = "application/json"
	mediaResponse = "application/graphql-response+json"
)

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	media, ok := negotiate(r.Header.Values("Accept"))
	if !ok {
		h.fail(w, mediaJSON, &failure{status: http.StatusNotAcceptable, code: "NOT_ACCEPTABLE", message: "answers are " + mediaResponse + ", " + mediaJSON + " or " + mediaEvents})
		return
	}
	req, err := h.read(w, r)
	switch {
	case err != nil:
	case media == mediaEvents:
		err = h.subscribe(w, r, req)
	default:
		err = h.serve(w, r, media, req)
	}
	var f *failure
	if errors.As(err, &f) {
		h.fail(w, media, f)
	}
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request, media string, req request) error {
	doc, err := h.check(req)
	if err != nil {
		return err
	}
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	default:
		w.Header().Set("Retry-After", "1")
		return &failure{status: http.StatusServiceUnavailable, code: "BUSY", message: "too many queries are running"}
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.c.Timeout)
	defer cancel()
	result := h.execute(ctx, w.Header().Get("X-Request-Id"), doc, req, nil)
	return h.write(w, media, result)
}

// check parses and validates the query within the limits. What the library stumbles over is no query.
func (h *Handler) check(req request) (doc *ast.Document, err error) {
	defer func() {
		if p := recover(); p != nil {
			h.c.Logger.Error("graphql: a query cannot be checked", "panic", clip(fmt.Sprint(p)))
			doc, err = nil, refused("VALIDATION", "the query cannot be validated")
		}
	}()
	if err := h.c.Limits.scan(req.Query, !h.c.NoIntrospection); err != nil {
		return nil, err
	}
	doc, err = parser.Parse(parser.ParseParams{Source: source.NewSource(&source.Source{Body: []byte(req.Query), Name: "query"})})
	if err != nil {
		return nil, syntaxFailure(err)
	}
	if err := wholeTypes(doc); err != nil {
		return nil, err
	}
	if err := h.c.Limits.measure(doc, req.Variables); err != nil {
		return nil, err
	}
	if errs := validate(&h.schema, doc); len(errs) > 0 {
		return nil, validationFailure(errs)
	}
	return doc, nil
}

// execute runs the resolvers to their end: they stop by themselves when ctx does. The library would
// return at ctx's end and leave them running. of is the entry that a subscription is executed for.
func (h *Handler) execute(ctx context.Context, requestID string, doc *ast.Document, req request, of any) (result *graphql.Result) {
	run := &run{ctx: ctx, requestID: requestID, entry: of}
	defer func() {
		if p := recover(); p != nil {
			h.c.Logger.Error("graphql: panic", "requestId", requestID, "panic", fmt.Sprint(p))
			result = &graphql.Result{Errors: []gqlerrors.FormattedError{opaque(requestID)}}
		}
	}()
	return graphql.Execute(graphql.ExecuteParams{
		Schema: h.schema, AST: doc, OperationName: req.OperationName, Args: req.Variables,
		Context: context.WithValue(context.Background(), runKey{}, run),
	})
}

// write sends the result of an execution; it is bounded by the answer limit.
func (h *Handler) write(w http.ResponseWriter, media string, result *graphql.Result) error {
	if result.Data == nil && len(result.Errors) > 0 && len(result.Errors[0].Path) == 0 { // nothing was executed: no such operation, a bad variable
		return &failure{status: http.StatusBadRequest, code: "BAD_REQUEST", message: clip(result.Errors[0].Message), well: true}
	}
	out := &bounded{left: h.c.Limits.Answer}
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(answer{result.Data, formatErrors(result.Errors)}); err != nil {
		return refused("ANSWER_TOO_LARGE", "the answer is larger than %d bytes: ask for smaller pages or fewer fields", h.c.Limits.Answer)
	}
	w.Header().Set("Content-Type", media+"; charset=utf-8")
	w.Write(out.buf.Bytes())
	return nil
}

// answer is the response map of the GraphQL specification, section 7.1.
type answer struct {
	Data   any              `json:"data"`
	Errors []map[string]any `json:"errors,omitempty"`
}

// bounded is a buffer that refuses to grow beyond a limit.
type bounded struct {
	buf  bytes.Buffer
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, errors.New("too large")
	}
	return b.buf.Write(p)
}

// fail answers a request of which nothing was executed.
func (h *Handler) fail(w http.ResponseWriter, media string, f *failure) {
	status := f.status
	if f.well && media == mediaJSON {
		status = http.StatusOK // section 6.4.1 of GraphQL over HTTP
	}
	e := map[string]any{"message": f.message, "extensions": map[string]any{"code": f.code}}
	if f.at[0] > 0 {
		e["locations"] = []map[string]int{{"line": f.at[0], "column": f.at[1]}}
	}
	if media == mediaEvents {
		media = mediaResponse
	}
	w.Header().Set("Content-Type", media+"; charset=utf-8")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"errors": []any{e}})
}

// read takes the request from the URL or the body.
func (h *Handler) read(w http.ResponseWriter, r *http.Request) (req request, err error) {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return h.readURL(r)
	case http.MethodPost:
		return h.readBody(w, r)
	}
	w.Header().Set("Allow", "GET, POST")
	return req, &failure{status: http.StatusMethodNotAllowed, code: "METHOD_NOT_ALLOWED", message: "queries come by GET or POST"}
}

func (h *Handler) readURL(r *http.Request) (req request, err error) {
	q := r.URL.Query()
	req.Query, req.OperationName = q.Get("query"), q.Get("operationName")
	for name, to := range map[string]*map[string]any{"variables": &req.Variables, "extensions": &req.Extensions} {
		if text := q.Get(name); text != "" {
			if err := decode([]byte(text), to); err != nil {
				return req, bad("BAD_REQUEST", "%s must be a JSON object", name)
			}
		}
	}
	return req, h.complete(&req)
}

func (h *Handler) readBody(w http.ResponseWriter, r *http.Request) (req request, err error) {
	typ, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || typ != mediaJSON || params["charset"] != "" && !strings.EqualFold(params["charset"], "utf-8") {
		return req, &failure{status: http.StatusUnsupportedMediaType, code: "UNSUPPORTED_MEDIA_TYPE", message: "the content type must be " + mediaJSON}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(h.c.Limits.Body)))
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return req, &failure{status: http.StatusRequestEntityTooLarge, code: "BODY_TOO_LARGE", message: fmt.Sprintf("the body is larger than %d bytes", large.Limit)}
	}
	if err != nil {
		return req, bad("BAD_REQUEST", "the body could not be read")
	}
	if err := decode(body, &req); err != nil {
		return req, bad("BAD_REQUEST", "the body must be a JSON object with query, and where needed variables, operationName and extensions")
	}
	return req, h.complete(&req)
}

// complete makes a request that was read ready to be checked.
func (h *Handler) complete(r *request) error {
	for name, v := range r.Variables {
		r.Variables[name] = numbers(v)
	}
	return h.persisted(r)
}

// numbers makes the library's kind of numbers of those in a variable: whole ones int, others float64.
func numbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := strconv.Atoi(v.String()); err == nil {
			return n
		}
		f, _ := v.Float64()
		return f
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = numbers(v[name])
		}
	}
	return v
}

// decode reads one JSON value; numbers keep all their digits.
func decode(b []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("something follows")
	}
	return nil
}

// negotiate chooses the media type of the answer.
func negotiate(accept []string) (media string, ok bool) {
	best := -1.0
	for _, part := range strings.Split(strings.Join(accept, ","), ",") {
		typ, params, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err != nil {
			continue
		}
		q := 1.0
		if v, err := strconv.ParseFloat(params["q"], 64); err == nil {
			q = v
		}
		switch typ {
		case "*/*", "application/*", mediaJSON:
			typ = mediaJSON
		case mediaResponse, mediaEvents:
		default:
			continue
		}
		if q > 0 && (q > best || q == best && typ != mediaJSON) {
			best, media = q, typ
		}
	}
	if strings.TrimSpace(strings.Join(accept, "")) == "" {
		return mediaJSON, true
	}
	return media, media != ""
}

package graphql

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"

	"github.com/graphql-go/graphql"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/projections"
)

// run is one execution. The library's own context never ends, so that it waits for the resolvers;
// they obey this one.
type run struct {
	ctx       context.Context
	requestID string
	entry     any // that a subscription is executed for
	bytes     int // of payloads read
}

type runKey struct{}

// resolver answers fields from the projections.
type resolver struct {
	q      *projections.Query
	log    *slog.Logger
	answer int // bytes an answer may have
	show   func(ctx context.Context, e *projections.Entry, payload []byte) (shown []byte, withheld []string, err error)
}

// codedError is shown to the client with its code.
type codedError struct{ code, message string }

func (e *codedError) Error() string              { return e.message }
func (e *codedError) Extensions() map[string]any { return map[string]any{"code": e.code} }

// field makes a field whose value f gets from a source of type S. It is the one place that meets
// errors and panics of resolvers: the client's mistakes are told, ours are logged.
func field[S any](r *resolver, typ graphql.Output, description string, args graphql.FieldConfigArgument, f func(*run, S, args) (any, error)) *graphql.Field {
	return &graphql.Field{Type: typ, Description: description, Args: args, Resolve: func(p graphql.ResolveParams) (v any, err error) {
		run := p.Context.Value(runKey{}).(*run)
		defer func() {
			if panicked := recover(); panicked != nil {
				v, err = nil, r.report(run, fmt.Errorf("panic: %v", panicked))
			}
		}()
		if err := run.ctx.Err(); err != nil {
			return nil, r.report(run, err)
		}
		src, _ := p.Source.(S)
		if v, err = f(run, src, p.Args); err != nil {
			return nil, r.report(run, err)
		}
		return v, nil
	}}
}

// args are the arguments of a field, as the schema's types parse them.
type args map[string]any

func (a args) text(name string) string {
	s, _ := a[name].(string)
	return s
}

func (a args) integer(name string) *int64 {
	if n, ok := a[name].(int64); ok {
		return &n
	}
	return nil
}

func (a args) millis(name string) int64 {
	if n, ok := a[name].(int64); ok {
		return n
	}
	return 0
}

// report turns an error into what the client may see.
func (r *resolver) report(run *run, err error) error {
	var parameter *projections.ParameterError
	var coded *codedError
	switch {
	case errors.As(err, &coded):
		return coded
	case errors.As(err, &parameter):
		return &codedError{"BAD_ARGUMENT", parameter.Error()}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &codedError{"TIMEOUT", "the query took too long"}
	}
	r.log.Error("graphql: resolver", "requestId", run.requestID, "error", err)
	if errors.Is(err, ledger.ErrDamaged) {
		return &codedError{"LEDGER_DAMAGED", "what is stored is not what was written; auditctl verify names the place"}
	}
	return opaque(run.requestID)
}

// entry is an entry on its page: payloads are read for a stretch of the page at once.
type entry struct {
	projections.Entry
	page *entries
	i    int
	seen *seen // nil until it was asked for; guarded by page.mu
}

// seen is what somebody may see of a payload, and what not.
type seen struct {
	shown    []byte
	withheld []string
}

// entries are entries that were answered together.
type entries struct {
	all      []projections.Entry
	mu       sync.Mutex // guards payloads, and what the entries have seen
	payloads map[int][]byte
}

// stretch is how many payloads are read at once.
const stretch = 50

func onPage(all []projections.Entry) []*entry {
	page := &entries{all: all, payloads: map[int][]byte{}}
	out := make([]*entry, len(all))
	for i := range all {
		out[i] = &entry{Entry: all[i], page: page, i: i}
	}
	return out
}

func alone(e *projections.Entry) any {
	if e == nil {
		return nil
	}
	return onPage([]projections.Entry{*e})[0]
}

// payload is what may be seen of an entry's payload.
func (r *resolver) payload(run *run, e *entry) (any, error) {
	seen, err := r.see(run, e)
	if err != nil || seen.shown == nil {
		return nil, err
	}
	return json.RawMessage(seen.shown), nil
}

// withheld is what may not be seen of it.
func (r *resolver) withheld(run *run, e *entry) (any, error) {
	seen, err := r.see(run, e)
	if err != nil || seen.withheld == nil {
		return []string{}, err
	}
	return seen.withheld, nil
}

// see reads an entry's payload once, whatever is asked of it.
func (r *resolver) see(run *run, e *entry) (*seen, error) {
	e.page.mu.Lock()
	defer e.page.mu.Unlock()
	if e.seen == nil {
		b, err := r.stored(run, e)
		if err != nil {
			return nil, err
		}
		shown, withheld, err := r.show(run.ctx, &e.Entry, b)
		if err != nil {
			return nil, err
		}
		e.seen = &seen{shown, withheld}
	}
	return e.seen, nil
}

// stored reads the payloads around an entry and gives back the entry's own; nil where it has none. It is
// called with the page's mu held.
func (r *resolver) stored(run *run, e *entry) ([]byte, error) {
	p := e.page
	b, ok := p.payloads[e.i]
	if !ok {
		from := e.i - e.i%stretch
		to := min(from+stretch, len(p.all))
		read, err := r.q.Payloads(run.ctx, p.all[from:to])
		if err != nil {
			return nil, err
		}
		for i, payload := range read {
			p.payloads[from+i] = payload
			run.bytes += len(payload)
		}
		b = p.payloads[e.i]
	}
	delete(p.payloads, e.i) // the entry keeps what is shown of it
	if run.bytes > r.answer {
		return nil, &codedError{"ANSWER_TOO_LARGE", fmt.Sprintf("the payloads are larger than %d bytes: ask for smaller pages", r.answer)}
	}
	return b, nil
}

// Node ids name what they stand for, so that they stay right for ever: base64url of "contract",
// contractId or "entry", stream, revision, with NUL between.
func nodeID(parts ...string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strings.Join(parts, "\x00")))
}

func entryID(e *projections.Entry) string {
	return nodeID("entry", e.Stream, strconv.FormatInt(e.Revision, 10))
}

func (r *resolver) node(run *run, id string) (any, error) {
	raw, err := base64.RawURLEncoding.DecodeString(id)
	parts := strings.Split(string(raw), "\x00")
	switch {
	case err == nil && len(parts) == 2 && parts[0] == "contract":
		return r.contract(run, parts[1])
	case err == nil && len(parts) == 3 && parts[0] == "entry":
		revision, err := strconv.ParseInt(parts[2], 10, 64)
		if err != nil {
			return nil, nil
		}
		e, err := r.q.EntryAt(run.ctx, parts[1], revision)
		return alone(e), err
	}
	return nil, nil
}

func (r *resolver) contract(run *run, id string) (any, error) {
	c, err := r.q.Contract(run.ctx, id)
	if c == nil || err != nil {
		return nil, err
	}
	return c, nil
}

// historyPage is a page and what its fields need.
type historyPage struct {
	projections.HistoryPage
	nodes []*entry
}

func (r *resolver) history(run *run, contractID string, a args) (any, error) {
	page, err := pageOf(a)
	if err != nil {
		return nil, err
	}
	req := projections.HistoryRequest{ContractID: contractID, Filter: filterOf(a["filter"]), Page: page}
	if a["order"] == "ASC" {
		req.Order = projections.Asc
	}
	got, err := r.q.History(run.ctx, req)
	if err != nil {
		return nil, err
	}
	return &historyPage{got, onPage(got.Entries)}, nil
}

func pageOf(a args) (p projections.Page, err error) {
	p.After, p.Before = a.text("after"), a.text("before")
	for name, to := range map[string]*int{"first": &p.First, "last": &p.Last} {
		n, ok := a[name].(int)
		if ok && n < 1 {
			return p, &projections.ParameterError{Name: name, Rule: fmt.Sprintf("must be from 1 to %d", projections.MaxPage)}
		}
		*to = n
	}
	if text := a.text("asOf"); text != "" {
		if p.AsOf, err = ledger.ParsePosition(text); err != nil {
			return p, &projections.ParameterError{Name: "asOf", Rule: "must be a position as answered by the service"}
		}
	}
	return p, nil
}

func filterOf(v any) (f projections.Filter) {
	m, _ := v.(map[string]any)
	a := args(m)
	f.Status = ledger.Status(a.text("status"))
	f.Code, f.ContractType, f.Source, f.EventID = a.text("code"), a.text("contractType"), a.text("source"), a.text("eventId")
	f.From, f.To, f.SentFrom, f.SentTo = a.millis("from"), a.millis("to"), a.millis("sentFrom"), a.millis("sentTo")
	f.FromSequence, f.ToSequence = a.integer("fromSequence"), a.integer("toSequence")
	return f
}

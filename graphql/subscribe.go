package graphql

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/graphql-go/graphql"
	"github.com/graphql-go/graphql/language/ast"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/projections"
)

const (
	mediaEvents  = "text/event-stream"
	heartbeat    = 15 * time.Second
	writeTimeout = 30 * time.Second // a client that takes nothing for so long is left
)

// subscribe serves a subscription as server-sent events, in the distinct connections mode of the
// GraphQL over SSE protocol: an event "next" with an execution result per entry, with the id from
// which Last-Event-ID resumes.
//
// The entries are read from the projections as fast as the client takes them, so none is held in
// memory for it and none is left out, however slow it is. A client that takes nothing for half a minute
// is disconnected and resumes. What cannot be resumed, an id of another ledger or beyond the head, is
// refused with 400 instead of going on with a hole.
func (h *Handler) subscribe(w http.ResponseWriter, r *http.Request, req request) error {
	doc, err := h.check(req)
	if err != nil {
		return err
	}
	sub, err := h.subscription(r.Context(), doc, req)
	if err != nil {
		return err
	}
	after, err := h.resumeAt(r)
	if err != nil {
		return err
	}
	select {
	case h.streams <- struct{}{}:
		defer func() { <-h.streams }()
	default:
		w.Header().Set("Retry-After", "5")
		return &failure{status: http.StatusServiceUnavailable, code: "BUSY", message: "too many subscriptions are open"}
	}
	w.Header().Set("Content-Type", mediaEvents+"; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	s := &stream{h: h, w: w, control: http.NewResponseController(w), doc: doc, req: req, requestID: w.Header().Get("X-Request-Id")}
	s.run(r.Context(), sub, after)
	return nil
}

// subscription is what the one field of a subscription asks for. The library works that out: it is executed once for
// nothing but its arguments, whether they stand there, come in variables or are a variable's default.
func (h *Handler) subscription(ctx context.Context, doc *ast.Document, req request) (projections.HistoryRequest, error) {
	var of projections.HistoryRequest
	op := operation(doc, req.OperationName)
	switch {
	case op == nil:
		return of, refused("BAD_REQUEST", "there is no such operation")
	case op.Operation != ast.OperationTypeSubscription:
		return of, refused("NOT_A_SUBSCRIPTION", "event streams answer subscriptions only")
	}
	if fields := rootFields(doc, op.SelectionSet); len(fields) != 1 || fields[0] != "activity" {
		return of, refused("VALIDATION", "a subscription has exactly one field, which is activity")
	}
	asked := &wish{}
	result := h.execute(ctx, "", doc, req, asked)
	switch {
	case asked.err != nil:
		return of, asked.err
	case !asked.made && len(result.Errors) > 0: // a variable that is missing, or not of its type
		return of, refused("BAD_REQUEST", "%s", clip(result.Errors[0].Message))
	case !asked.made:
		return of, refused("VALIDATION", "a subscription has exactly one field, which is activity")
	}
	return asked.request, nil
}

// wish takes the arguments of a subscription's field, in the place of an entry.
type wish struct {
	request projections.HistoryRequest
	made    bool
	err     error
}

func (w *wish) take(a args) {
	w.made = true
	w.request.ContractID, w.request.Status = a.text("contractId"), ledger.Status(a.text("status"))
	if given, ok := a["contractId"]; ok && given == "" {
		w.err = refused("BAD_ARGUMENT", "contractId: must not be empty")
	}
}

// operation is the one that is meant; nil when there is none. Validation has seen to it that a name is there once.
func operation(doc *ast.Document, name string) (found *ast.OperationDefinition) {
	for _, d := range doc.Definitions {
		op, ok := d.(*ast.OperationDefinition)
		switch {
		case !ok || name != "" && (op.Name == nil || op.Name.Value != name):
		case found != nil: // it must be named
			return nil
		default:
			found = op
		}
	}
	return found
}

// rootFields are the names of the fields of a selection, fragments included. measure has refused cycles.
func rootFields(doc *ast.Document, set *ast.SelectionSet) (names []string) {
	for _, sel := range set.Selections {
		switch sel := sel.(type) {
		case *ast.Field:
			names = append(names, sel.Name.Value)
		case *ast.InlineFragment:
			names = append(names, rootFields(doc, sel.SelectionSet)...)
		case *ast.FragmentSpread:
			for _, d := range doc.Definitions {
				if f, ok := d.(*ast.FragmentDefinition); ok && f.Name.Value == sel.Name.Value {
					names = append(names, rootFields(doc, f.SelectionSet)...)
				}
			}
		}
	}
	return names
}

// Event ids are the first half of the ledger's id and a position.
func (h *Handler) eventID(p ledger.Position) string { return h.c.Epoch + "-" + p.String() }

// resumeAt is the position after which the stream starts: that of Last-Event-ID, or the present.
func (h *Handler) resumeAt(r *http.Request) (ledger.Position, error) {
	states, err := h.c.Query.States(r.Context())
	if err != nil || len(states) == 0 {
		return 0, &failure{status: http.StatusServiceUnavailable, code: "UNAVAILABLE", message: "the projections do not answer"}
	}
	head := states[0].Head
	id := r.Header.Get("Last-Event-ID")
	if id == "" {
		return head, nil
	}
	epoch, text, _ := strings.Cut(id, "-")
	p, err := ledger.ParsePosition(text)
	switch {
	case err != nil:
		return 0, bad("BAD_EVENT_ID", "Last-Event-ID must be the id of an event of this stream")
	case epoch != h.c.Epoch:
		return 0, bad("OTHER_LEDGER", "Last-Event-ID is of another ledger: start anew without it")
	case p > head:
		return 0, bad("BEYOND_HEAD", "Last-Event-ID is beyond the head of the ledger, position %s", head)
	}
	return p, nil
}

// stream is one open subscription.
type stream struct {
	h         *Handler
	w         http.ResponseWriter
	control   *http.ResponseController
	doc       *ast.Document
	req       request
	requestID string
}

func (s *stream) run(ctx context.Context, of projections.HistoryRequest, after ledger.Position) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	entries := make(chan projections.Entry)
	failed := make(chan error, 1)
	go func() {
		defer close(entries)
		for e, err := range s.h.c.Query.Follow(ctx, of, after) {
			if err != nil {
				failed <- err
				return
			}
			select {
			case entries <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	err := s.send(":\n\n") // the client learns at once that the stream is open
	for err == nil {
		select {
		case e, ok := <-entries:
			if !ok {
				s.end(ctx, failed)
				return
			}
			err = s.next(ctx, &e)
		case <-beat.C:
			err = s.send(":\n\n")
		}
	}
}

// end tells the client that nothing more comes, unless it is the client that left.
func (s *stream) end(ctx context.Context, failed <-chan error) {
	select {
	case err := <-failed:
		if ctx.Err() != nil {
			return
		}
		s.h.c.Logger.Error("graphql: subscription", "requestId", s.requestID, "error", err)
	default:
	}
	_ = s.send("event: complete\ndata:\n\n")
}

// next executes the subscription's selection for one entry and sends the result.
func (s *stream) next(ctx context.Context, e *projections.Entry) error {
	limited, cancel := context.WithTimeout(ctx, s.h.c.Timeout)
	defer cancel()
	result := s.h.execute(limited, s.requestID, s.doc, s.req, alone(e))
	out := &bounded{left: s.h.c.Limits.Answer}
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(answer{result.Data, formatErrors(result.Errors)}); err != nil {
		out = &bounded{left: 1000}
		fmt.Fprintf(out, `{"data":null,"errors":[{"message":"the answer is larger than %d bytes","extensions":{"code":"ANSWER_TOO_LARGE"}}]}`, s.h.c.Limits.Answer)
	}
	return s.send("id: " + s.h.eventID(e.Position) + "\nevent: next\ndata: " + string(bytes.TrimSpace(out.buf.Bytes())) + "\n\n")
}

func (s *stream) send(text string) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.control.Flush()
}

// subscription is the schema's root of subscriptions. The value of its field is the entry at hand.
func (t *types) subscription() *graphql.Object {
	return graphql.NewObject(graphql.ObjectConfig{Name: "Subscription", Fields: graphql.Fields{
		"activity": field(t.r, required(t.entry), "Each accepted or rejected event from now on, or from Last-Event-ID on, over server-sent events.",
			graphql.FieldConfigArgument{"contractId": arg(graphql.ID, ""), "status": arg(t.status, "")},
			func(run *run, _ any, a args) (any, error) {
				switch of := run.entry.(type) {
				case nil:
					return nil, &codedError{"NOT_A_STREAM", "subscriptions are answered as " + mediaEvents}
				case *wish:
					of.take(a)
					return nil, &codedError{"NOT_YET", "there is no entry"}
				}
				return run.entry, nil
			}),
	}})
}

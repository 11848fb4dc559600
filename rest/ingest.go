package rest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/talenttrust/auditledger/ledger"
)

// postBatch stores the events of a batch.
func (s *server) postBatch(ctx context.Context, c *call, body []byte) (int, any, error) {
	b, err := parseBatch(body, s.MaxEvents)
	if err == nil {
		err = s.spend(c.caller.events, len(b.events), "events")
	}
	if err != nil {
		return 0, nil, err
	}
	results, err := s.Ledger.Ingest(ctx, c.request(), b.contractType, b.events)
	if err != nil {
		return 0, nil, err
	}
	s.metrics.count(results)
	return http.StatusOK, encoded(appendBatch(make([]byte, 0, 256+384*len(results)), results)), nil
}

// postEvent stores one event of the contract in the path. The answer's status is the event's.
func (s *server) postEvent(ctx context.Context, c *call, body []byte) (int, any, error) {
	contractType, event, err := parseSingle(body, c.param("contractId"))
	if err == nil {
		err = s.spend(c.caller.events, 1, "events")
	}
	if err != nil {
		return 0, nil, err
	}
	results, err := s.Ledger.Ingest(ctx, c.request(), contractType, [][]byte{event})
	if err != nil {
		return 0, nil, err
	}
	return s.single(results[0])
}

// single answers one event with its own status.
func (s *server) single(r ledger.Result) (int, any, error) {
	s.metrics.count([]ledger.Result{r})
	status := http.StatusOK
	switch r.Status {
	case ledger.StatusAccepted:
		status = http.StatusCreated
	case ledger.StatusRejected:
		status = itemStatus[r.Rejection.Code]
	}
	return status, encoded(appendResult(nil, &r, &moment{})), nil
}

// validate says what would become of a batch, and changes nothing.
func (s *server) validate(ctx context.Context, c *call, body []byte) (int, any, error) {
	b, err := parseBatch(body, s.MaxEvents)
	if err == nil {
		err = s.spend(c.caller.events, len(b.events), "events")
	}
	if err != nil {
		return 0, nil, err
	}
	previews, err := s.Ledger.Preview(ctx, c.request(), b.contractType, b.events)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, newValidation(previews), nil
}

// request is who sent the call and how it can be found again, for the ledger.
func (c *call) request() ledger.Request {
	return ledger.Request{Source: c.caller.source, CorrelationID: c.id, Traceparent: c.traceparent}
}

// batch is the body of a batch. The events are slices of it, unread: each is judged on its own.
type batch struct {
	contractType string
	events       [][]byte
}

// lenient takes what one event may hold without sinking its neighbours; the ledger judges it.
var lenient = []jsontext.Options{jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true)}

// parseBatch reads a JSON object with exactly the members contractType and events, in any order, and
// at most max events. Errors are problems that name the member and the rule.
func parseBatch(body []byte, max int) (batch, error) {
	b, err := readBatch(body, nil, max)
	var syntactic *jsontext.SyntacticError
	if errors.As(err, &syntactic) {
		if shallow, deep := cutDeep(body); deep != nil {
			b, err = readBatch(shallow, deep, max)
		}
	}
	if err != nil {
		return batch{}, jsonProblem(err)
	}
	return b, nil
}

// readBatch reads a batch. The events in deep, by their place in the body, stand for what is there.
func readBatch(body []byte, deep map[int][]byte, max int) (batch, error) {
	var b batch
	seen := map[string]bool{}
	err := readObject(body, func(d *jsontext.Decoder, _ []byte, name string) error {
		if seen[name] {
			return problem("invalid_request", "the member "+name+" is there twice")
		}
		seen[name] = true
		var err error
		switch name {
		case "contractType":
			b.contractType, err = readContractType(d)
		case "events":
			b.events, err = readEvents(d, body, deep, max)
		default:
			err = problem("invalid_request", "the body has a member that is neither contractType nor events: "+shorten(name))
		}
		return err
	})
	switch {
	case err != nil:
		return b, err
	case !seen["contractType"]:
		return b, problem("invalid_request", "contractType is required")
	case !seen["events"]:
		return b, problem("invalid_request", "events is required")
	case len(b.events) == 0:
		return b, problem("empty_batch", "events must hold at least one event")
	}
	return b, nil
}

// readObject reads a body that is one JSON object and nothing else. member reads the value of each
// member, whose name it gets as it stands in the body and as it is meant.
func readObject(body []byte, member func(d *jsontext.Decoder, quoted []byte, name string) error) error {
	d := jsontext.NewDecoder(bytes.NewBuffer(body), lenient...)
	if kind := d.PeekKind(); kind != '{' {
		if _, err := d.ReadValue(); err != nil {
			return err
		}
		return problem("invalid_request", "the body must be a JSON object")
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for d.PeekKind() != '}' {
		quoted, err := readRaw(d, body)
		if err != nil {
			return err
		}
		name, _ := jsontext.AppendUnquote(nil, quoted) // what is not UTF-8 becomes U+FFFD
		if err := member(d, quoted, string(name)); err != nil {
			return err
		}
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	if _, err := d.ReadToken(); err != io.EOF {
		return problem("invalid_json", "something follows the JSON object")
	}
	return nil
}

// readRaw reads the next value and returns it as a slice of body.
func readRaw(d *jsontext.Decoder, body []byte) ([]byte, error) {
	raw, err := d.ReadValue()
	if err != nil {
		return nil, err
	}
	end := int(d.InputOffset())
	return body[end-len(raw) : end : end], nil
}

func readContractType(d *jsontext.Decoder) (string, error) {
	raw, err := d.ReadValue()
	if err != nil {
		return "", err
	}
	rule := fmt.Sprintf("contractType must be a string of 1 to %d characters of A-Z a-z 0-9 _ - . @", ledger.MaxTypeLen)
	if raw.Kind() != '"' {
		return "", problem("invalid_request", rule)
	}
	text, err := jsontext.AppendUnquote(nil, raw)
	if err != nil || !ledger.ValidID(string(text), ledger.MaxTypeLen) {
		return "", problem("invalid_request", rule)
	}
	return string(text), nil
}

// readEvents finds the events in the body, and stops where there are too many.
func readEvents(d *jsontext.Decoder, body []byte, deep map[int][]byte, max int) ([][]byte, error) {
	if d.PeekKind() != '[' {
		if _, err := d.ReadValue(); err != nil {
			return nil, err
		}
		return nil, problem("invalid_request", "events must be an array")
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	var events [][]byte
	for d.PeekKind() != ']' {
		raw, err := readRaw(d, body)
		if err != nil {
			return nil, err
		}
		if len(events) == max {
			return nil, problem("too_many_events", fmt.Sprintf("events may hold at most %d events", max))
		}
		if original, ok := deep[int(d.InputOffset())-len(raw)]; ok {
			raw = original
		}
		events = append(events, raw)
	}
	_, err := d.ReadToken()
	return events, err
}

// jsonProblem says where a body stops being JSON, and not what stands there.
func jsonProblem(err error) error {
	var syntactic *jsontext.SyntacticError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return problem("invalid_json", "the body ends before its JSON value does")
	case errors.As(err, &syntactic):
		return problem("invalid_json", fmt.Sprintf("the body is not valid JSON at byte %d", syntactic.ByteOffset))
	}
	return err
}

const maxShown = 100 // bytes of a sender's member name in an answer

func shorten(name string) string {
	if len(name) <= maxShown {
		return name
	}
	return name[:maxShown] + "…"
}

// Events nest below the body's object and the array of events. The decoder's limit is 10,000 for
// all together; the ledger's own for an event is far below.
const (
	eventDepth = 3
	deepest    = 5000
)

// cutDeep replaces events that nest so deeply that the decoder would refuse the whole body by null
// and blanks, in a copy. It returns that and where the events are. The text may be anything.
func cutDeep(body []byte) (shallow []byte, deep map[int][]byte) {
	shallow = body
	depth, start, lowest := 0, 0, 0
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '"':
			i = endOfString(body, i)
		case '{', '[':
			if depth++; depth == eventDepth {
				start, lowest = i, 0
			}
			lowest = max(lowest, depth)
		case '}', ']':
			if depth == eventDepth && lowest > deepest && i >= start+len("null") {
				if deep == nil {
					shallow, deep = bytes.Clone(body), map[int][]byte{}
				}
				deep[start] = body[start : i+1]
				n := copy(shallow[start:i+1], "null")
				copy(shallow[start+n:i+1], bytes.Repeat([]byte{' '}, i+1-start-n))
			}
			depth--
		}
	}
	return shallow, deep
}

// endOfString is the index of the quote that ends the string starting at i.
func endOfString(body []byte, i int) int {
	for i++; i < len(body) && body[i] != '"'; i++ {
		if body[i] == '\\' {
			i++
		}
	}
	return i
}

// parseSingle reads an event without contractId, plus contractType, and returns the event with the
// contract's id in it and without the type. A contractId of its own must be the same one. All else
// is left as it was sent, for the ledger to judge.
func parseSingle(body []byte, contractID string) (contractType string, event []byte, err error) {
	event = append(make([]byte, 0, len(body)+len(contractID)+20), `{"contractId":`...)
	event = appendString(event, contractID)
	seen := map[string]bool{}
	err = readObject(body, func(d *jsontext.Decoder, quoted []byte, name string) (err error) {
		if name != "contractType" && name != "contractId" {
			value, err := readRaw(d, body)
			event = append(append(append(append(event, ','), quoted...), ':'), value...)
			return err
		}
		if seen[name] {
			return problem("invalid_request", "the member "+name+" is there twice")
		}
		seen[name] = true
		if name == "contractType" {
			contractType, err = readContractType(d)
			return err
		}
		return readSameID(d, contractID)
	})
	switch {
	case err != nil:
		return "", nil, jsonProblem(err)
	case !seen["contractType"]:
		return "", nil, problem("invalid_request", "contractType is required")
	}
	return contractType, append(event, '}'), nil
}

func readSameID(d *jsontext.Decoder, contractID string) error {
	raw, err := d.ReadValue()
	if err != nil {
		return err
	}
	if id, err := jsontext.AppendUnquote(nil, raw); raw.Kind() != '"' || err != nil || string(id) != contractID {
		return problem("invalid_request", "contractId, where it is given, must be the one in the path")
	}
	return nil
}

package outbox

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/talenttrust/auditledger/ledger/canonical"
)

// Read turns one input into events. The input is one JSON object:
//
//   - an event: {"contractType", "contractId", "eventId", "sequence", "timestamp", "payload", "signature"}.
//     Without an eventId it gets one by the rules. Everything else is sent as it is, right or
//     wrong: the ledger judges it and keeps a record.
//   - a batch of events, as POST /api/v1/events takes it: {"contractType", "events": […]}.
//   - an envelope: {"type", "payload", "chat_jid", "eventId"}; the last two are found by the rules
//     when they are left out.
//
// Input that is none of these is returned as a refused event, so that it is kept; it is never an
// error. filtered counts events that the rules leave out. origin goes into each event. Read keeps
// parts of input: the caller must not change it afterwards.
func (r *Rules) Read(input []byte, origin string) (events []Event, filtered int) {
	list, err := members(input)
	if err != nil {
		// Odd bytes are sent as they are, so that the ledger can say what it cleaned; but where
		// they break the JSON itself, cleaning is what saves the event.
		if clean, changed := canonical.Clean(input); changed {
			list, err = members(clean)
		}
	}
	if err != nil {
		return []Event{refusedInput(input, origin, "not an event: "+syntax(err))}, 0
	}
	in := reading{rules: r, origin: origin}
	in.object(input, list)
	return in.events, in.filtered
}

// reading is one input on its way to events.
type reading struct {
	rules    *Rules
	origin   string
	events   []Event
	filtered int
}

func (in *reading) object(input []byte, list []member) {
	batch, isBatch := named(list, "events")
	switch {
	case isBatch:
		in.batch(input, list, batch)
	case hasAny(list, "contractId", "contractType", "sequence"):
		in.event(input, list, in.rules.ContractType)
	case hasAny(list, "type"):
		in.envelope(input, list)
	default:
		in.refuse(input, "not an event: has neither contractId (an event) nor events (a batch) nor type (an envelope)")
	}
}

func (in *reading) refuse(input []byte, why string) {
	in.events = append(in.events, refusedInput(input, in.origin, why))
}

func refusedInput(input []byte, origin, why string) Event {
	return Event{Form: FormLine, Body: input, PayloadHash: canonical.Sum(input), Origin: origin, Refused: why}
}

// syntax says what is wrong with a text without quoting it.
func syntax(err error) string {
	var s *jsontext.SyntacticError
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "JSON is cut short"
	case errors.As(err, &s):
		return fmt.Sprintf("JSON syntax error at byte %d", s.ByteOffset)
	case errors.Is(err, errNotObject), errors.Is(err, errNotArray), errors.Is(err, errTrailing):
		return err.Error()
	}
	return "JSON that cannot be read"
}

func named(list []member, name string) ([]byte, bool) {
	for _, m := range list {
		if m.name == name {
			return m.value, true
		}
	}
	return nil, false
}

func hasAny(list []member, names ...string) bool {
	for _, name := range names {
		if _, ok := named(list, name); ok {
			return true
		}
	}
	return false
}

func (in *reading) batch(input []byte, list []member, batch []byte) {
	contractType := in.rules.ContractType
	for _, m := range list {
		switch m.name {
		case "events":
		case "contractType":
			contractType = typeName(m.value, contractType)
		default:
			in.refuse(input, fmt.Sprintf("the batch has an unknown member %q", clip(m.name)))
			return
		}
	}
	all, err := elements(batch)
	if err != nil {
		in.refuse(input, "events: "+syntax(err))
		return
	}
	for _, one := range all {
		event, err := members(one)
		if err != nil {
			in.refuse(one, "an event of the batch is "+syntax(err))
			continue
		}
		in.event(one, event, contractType)
	}
}

// event takes a ledger event. contractType is what it gets when it names none itself.
func (in *reading) event(input []byte, list []member, contractType string) {
	e := Event{Form: FormEvent, Type: contractType, Origin: in.origin}
	var s subject
	rest := make([]member, 0, len(list)+2)
	for _, m := range list {
		switch m.name {
		case "contractType":
			e.Type = typeName(m.value, contractType)
			continue // it goes beside the events of a batch, not into each
		case "contractId":
			e.ContractID = display(m.value)
		case "eventId":
			if m.value[0] == 'n' {
				continue
			}
			e.EventID = display(m.value)
		case "sequence":
			e.Sequence, s.sequence = number(m.value), string(m.value)
		case "timestamp":
			s.timestamp = string(m.value)
		case "payload":
			s.payload = m.value
		}
		rest = append(rest, m)
	}
	if !validType(e.Type) {
		in.refuse(input, "contractType is missing, or not 1 to 100 of A-Z a-z 0-9 _ - . @")
		return
	}
	section := &in.rules.Events
	if section.denied(e.Type) {
		in.filtered++
		return
	}
	clean, _ := canonical.Clean(s.payload)
	rule := section.rule(e.Type, clean)
	norm, hash := content(clean, rule)
	if len(rule.Drop)+len(rule.sets) > 0 {
		clean = norm
		for i := range rest {
			if rest[i].name == "payload" {
				rest[i].value = norm
			}
		}
	}
	if _, ok := named(rest, "contractId"); !ok {
		if id, ok := rule.Contract.text(clean); ok {
			e.ContractID = id
			rest = append(rest, member{"contractId", canonical.AppendString(nil, id)})
		}
	}
	if !section.wanted(e.ContractID) {
		in.filtered++
		return
	}
	e.PayloadHash = hash
	if _, ok := named(rest, "eventId"); !ok {
		s.typ, s.contractID, s.payload, s.content = e.Type, e.ContractID, clean, hash
		e.EventID = in.rules.eventID(rule, s).String()
		rest = append(rest, member{"eventId", canonical.AppendString(nil, e.EventID)})
	}
	e.Body = appendObject(make([]byte, 0, len(input)+64), rest)
	in.events = append(in.events, e)
}

// envelope takes a raw envelope, whose payload may hold several events.
func (in *reading) envelope(input []byte, list []member) {
	var typ, chat, id, payload []byte
	for _, m := range list {
		switch m.name {
		case "type":
			typ = m.value
		case "chat_jid":
			chat = m.value
		case "eventId":
			id = m.value
		case "payload":
			payload = m.value
		default:
			in.refuse(input, fmt.Sprintf("the envelope has an unknown member %q, which would not be sent", clip(m.name)))
			return
		}
	}
	name, ok := text(typ)
	switch {
	case typ[0] != '"' || !ok || name == "":
		in.refuse(input, "type is not a string with characters in it")
		return
	case payload == nil:
		in.refuse(input, "payload is missing")
		return
	case chat != nil && chat[0] != '"' && chat[0] != 'n':
		in.refuse(input, "chat_jid is neither a string nor null")
		return
	}
	section := &in.rules.Envelopes
	if section.denied(name) {
		in.filtered++
		return
	}
	given := Event{Form: FormEnvelope, Type: name, Sequence: "0", Origin: in.origin}
	given.ContractID, _ = text(chat)
	if id != nil {
		parsed, err := uuid.Parse(display(id))
		if err != nil {
			in.refuse(input, "eventId is not a UUID")
			return
		}
		given.EventID = parsed.String()
		in.single(given, section, payload)
		return
	}
	all := section.rule(name, payload).split(payload)
	if len(all) == 0 {
		in.filtered++ // an empty list says nothing
	}
	for _, one := range all {
		in.single(given, section, one)
	}
}

// single takes one payload of an envelope.
func (in *reading) single(e Event, section *Section, payload []byte) {
	clean, _ := canonical.Clean(payload)
	rule := section.rule(e.Type, clean)
	norm, hash := content(clean, rule)
	if len(rule.Drop)+len(rule.sets) > 0 {
		// One id, one payload: what is hashed without its volatile parts is sent without them,
		// or the ledger would see a conflict in each repeat.
		payload, clean = norm, norm
	}
	e.ContractID = section.contract(e.ContractID, rule, clean)
	if !section.wanted(e.ContractID) {
		in.filtered++
		return
	}
	e.PayloadHash = hash
	if e.EventID == "" {
		e.EventID = in.rules.eventID(rule, subject{typ: e.Type, contractID: e.ContractID, payload: clean, content: hash}).String()
	}
	e.Body = appendEnvelope(e.Type, e.ContractID, payload)
	in.events = append(in.events, e)
}

// split returns the elements of the first of the rule's arrays, or the payload itself.
func (r *Rule) split(payload []byte) [][]byte {
	for _, p := range r.Each {
		array := payload
		if p[0] != "$payload" {
			array, _ = lookup(payload, p)
		}
		if all, err := elements(array); err == nil {
			return all
		}
	}
	return [][]byte{payload}
}

// contract chooses the contract id: the first candidate that the section takes, so that nothing is
// left out for having another id in the first place looked at; else the first there is.
func (s *Section) contract(given string, rule *Rule, payload []byte) string {
	first := given
	if given != "" && s.wanted(given) {
		return given
	}
	for _, p := range rule.Contract {
		id, ok := paths{p}.text(payload)
		if !ok {
			continue
		}
		if s.wanted(id) {
			return id
		}
		if first == "" {
			first = id
		}
	}
	return first
}

// content returns the normalized payload and its hash. A payload without a canonical form is
// hashed as it is: the ledger will say what is wrong with it.
func content(clean []byte, rule *Rule) ([]byte, canonical.Hash) {
	norm, err := normalize(clean, rule.Drop, rule.sets)
	if err != nil {
		return clean, canonical.Sum(clean)
	}
	return norm, canonical.Sum(norm)
}

// display is a string's characters, or another value's JSON text.
func display(value []byte) string {
	if value[0] != '"' {
		return string(value)
	}
	s, _ := text(value)
	return s
}

// typeName is a string's characters, otherwise for null, and "" for anything else.
func typeName(value []byte, otherwise string) string {
	switch value[0] {
	case '"':
		return display(value)
	case 'n':
		return otherwise
	}
	return ""
}

// number is a number in one spelling (7, 7.0 and 7e0 are one sequence), anything else as it is.
func number(value []byte) string {
	if value[0] != '-' && (value[0] < '0' || value[0] > '9') {
		return string(value)
	}
	c, err := canonical.AppendNumber(nil, value)
	if err != nil {
		return string(value)
	}
	return string(c)
}

func validType(s string) bool {
	ok := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-.@", r)
	}
	return len(s) >= 1 && len(s) <= 100 && strings.IndexFunc(s, func(r rune) bool { return !ok(r) }) < 0
}

// clip bounds a member name for a message.
func clip(s string) string {
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}

func appendObject(dst []byte, list []member) []byte {
	dst = append(dst, '{')
	for i, m := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = canonical.AppendString(dst, m.name)
		dst = append(dst, ':')
		dst = append(dst, m.value...)
	}
	return append(dst, '}')
}

// appendEnvelope returns the body of POST /api/v1/envelopes.
func appendEnvelope(typ, chat string, payload []byte) []byte {
	body := make([]byte, 0, len(typ)+len(chat)+len(payload)+64)
	body = canonical.AppendString(append(body, `{"type":`...), typ)
	body = append(body, `,"chat_jid":`...)
	if chat == "" {
		body = append(body, "null"...)
	} else {
		body = canonical.AppendString(body, chat)
	}
	body = append(body, `,"payload":`...)
	return append(append(body, bytes.TrimSpace(payload)...), '}')
}

// Line returns the event as an input that Read turns into it again, on one line.
func (e Event) Line() []byte {
	switch e.Form {
	case FormEvent:
		head := append([]byte(`{"contractType":`), canonical.AppendString(nil, e.Type)...)
		if len(e.Body) > 2 {
			head = append(head, ',')
		}
		return oneLine(append(head, e.Body[1:]...))
	case FormEnvelope:
		head := append([]byte(`{"eventId":`), canonical.AppendString(nil, e.EventID)...)
		return oneLine(append(append(head, ','), e.Body[1:]...))
	}
	return e.Body
}

// oneLine takes the white space out of JSON that a source wrote over several lines.
func oneLine(text []byte) []byte {
	if bytes.IndexByte(text, '\n') < 0 {
		return text
	}
	v := jsontext.Value(text)
	if err := v.Compact(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true), jsontext.PreserveRawStrings(true)); err != nil {
		return text
	}
	return v
}

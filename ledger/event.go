package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/talenttrust/auditledger/ledger/canonical"
)

// Event is one event as a collector sent it, cleaned and hashed.
type Event struct {
	ContractID   string
	ContractType string
	EventID      string
	Sequence     int64 // Absent when it was unusable
	Timestamp    int64 // epoch milliseconds; Absent when there was none or it was unusable
	Payload      []byte
	Signature    string
	PayloadHash  Hash
	RawHash      Hash
	Sanitized    bool
	ChatJID      string // of an envelope
}

// Key is the deduplication key.
func (e *Event) Key() Key { return Key{e.ContractID, e.EventID, e.Sequence} }

func (e *Event) hasKey() bool { return e.ContractID != "" && e.EventID != "" && e.Sequence >= 0 }

// LogValue keeps payloads out of every log line. What could not be read of the event is left out.
func (e *Event) LogValue() slog.Value {
	var attrs []slog.Attr
	if e.hasKey() {
		attrs = append(attrs, slog.String("key", e.Key().String()))
	} else {
		attrs = append(attrs, slog.String("contractId", e.ContractID), slog.String("eventId", e.EventID))
	}
	attrs = append(attrs, slog.String("contractType", e.ContractType))
	if !e.PayloadHash.IsZero() {
		attrs = append(attrs, slog.String("payloadHash", e.PayloadHash.String()))
	}
	return slog.GroupValue(append(attrs, slog.String("payload", redactedPayload))...)
}

// parser turns the received bytes of one event into an Event. It collects everything that is wrong
// instead of stopping at the first, but for what makes the rest unreadable. It is used by one
// goroutine, for one event after the other.
type parser struct {
	strict     bool // unknown members are errors
	maxPayload int  // bytes
	envelope   bool // the text is an envelope (envelope.go)

	ev     *Event
	errors []FieldError
}

// parse reads one event into ev and says why it cannot be accepted, if so. What could be read of
// its ids is in ev even then.
func (p *parser) parse(ev *Event, raw []byte) *Rejection {
	p.ev = ev
	*ev = Event{Sequence: Absent, Timestamp: Absent, RawHash: canonical.Sum(raw)}
	p.errors = nil
	clean, cleaned := canonical.Clean(raw)
	p.ev.Sanitized = cleaned
	m, err := p.split(clean)
	if err != nil {
		return rejectText(err)
	}
	if p.envelope {
		p.envelopeFields(&m)
	} else {
		p.fields(&m)
	}
	received := len(m.payload.Text)
	if cleaned {
		if sent, err := p.split(raw); err == nil {
			received = len(sent.payload.Text) // the limit is on what was sent: cleaning may have made it longer or shorter
			p.ev.ContractID = p.uncleaned("contractId", p.ev.ContractID, m.contractID, sent.contractID)
			p.ev.EventID = p.uncleaned("eventId", p.ev.EventID, m.eventID, sent.eventID)
		}
	}
	if r := p.payload(m.payload, received); r != nil {
		r.Errors = append(r.Errors, p.errors...)
		return r
	}
	if len(p.errors) > 0 {
		return reject(CodeInvalidEvent, sentence(p.errors), p.errors)
	}
	return nil
}

// members are the members of an event or an envelope; Text is nil where there is none.
type members struct {
	contractID, eventID, sequence, timestamp, payload, signature canonical.Member
	kind, chatJID                                                canonical.Member // of an envelope, which has these two and payload
	unknown                                                      []string
}

// split finds the members of the JSON object in text.
func (p *parser) split(text []byte) (m members, err error) {
	for member, err := range canonical.Members(text) {
		if err != nil {
			return m, err
		}
		slot := m.slot(member.Name, p.envelope)
		switch {
		case slot == nil:
			m.unknown = append(m.unknown, string(member.Name))
		case slot.Text != nil:
			return m, &canonical.DuplicateNameError{Pointer: "/" + string(member.Name)}
		default:
			*slot = member
		}
	}
	return m, nil
}

// slot is where the value of the named member goes; nil for a name that events, or envelopes, do not have.
func (m *members) slot(name []byte, envelope bool) *canonical.Member {
	if envelope {
		return m.envelopeSlot(name)
	}
	switch string(name) {
	case "contractId":
		return &m.contractID
	case "eventId":
		return &m.eventID
	case "sequence":
		return &m.sequence
	case "timestamp":
		return &m.timestamp
	case "payload":
		return &m.payload
	case "signature":
		return &m.signature
	}
	return nil
}

// fields reads the base fields; what is wrong with them goes to p.errors, in the order of their names.
func (p *parser) fields(m *members) {
	p.ev.ContractID = p.id("contractId", m.contractID)
	p.ev.EventID = p.id("eventId", m.eventID)
	if k := kindOf(m.payload); k != '{' {
		p.wrong("payload", m.payload, "must be an object")
	}
	p.ev.Sequence = p.integer("sequence", m.sequence)
	if m.signature.Text != nil {
		var ok bool
		if p.ev.Signature, ok = text(m.signature); !ok || p.ev.Signature == "" {
			p.wrong("signature", m.signature, "must be a non-empty string")
		}
	}
	p.ev.Timestamp = p.integer("timestamp", m.timestamp)
	p.unknown(m, "is not a member of an event")
}

func (p *parser) unknown(m *members, message string) {
	if !p.strict {
		return
	}
	seen := map[string]bool{}
	for _, name := range m.unknown {
		if !seen[name] {
			p.refuse(name, message)
		}
		seen[name] = true
	}
}

func (p *parser) id(name string, m canonical.Member) string {
	s, ok := text(m)
	switch {
	case !ok:
		p.wrong(name, m, "must be a string")
	case !ValidID(s, MaxIDLen):
		p.wrong(name, m, "must be 1 to 255 characters of A-Z a-z 0-9 _ - . @")
	default:
		return s
	}
	return ""
}

// uncleaned refuses an id that was cleaned: ids are never changed, or two of them could become one.
func (p *parser) uncleaned(name, id string, clean, sent canonical.Member) string {
	if id == "" || bytes.Equal(clean.Text, sent.Text) {
		return id
	}
	p.wrong(name, clean, "must be 1 to 255 characters of A-Z a-z 0-9 _ - . @")
	return ""
}

// integer reads an integral number from 0 to MaxInteger, however it is written: 3, 3.0, 3e0.
func (p *parser) integer(name string, m canonical.Member) int64 {
	if kindOf(m) == '0' {
		if n, err := strconv.ParseInt(string(m.Form), 10, 64); err == nil && n >= 0 && n <= MaxInteger {
			return n
		}
	}
	p.wrong(name, m, "must be an integer from 0 to 9007199254740991")
	return Absent
}

// payload takes the canonical form of the payload and its hash.
func (p *parser) payload(m canonical.Member, received int) *Rejection {
	if k := kindOf(m); k != '{' && k != '[' {
		return nil
	}
	tooLarge := func(n int) *Rejection {
		return reject(CodePayloadTooLarge, fmt.Sprintf("the payload has %d bytes, the limit is %d", n, p.maxPayload), nil)
	}
	if received > p.maxPayload {
		return tooLarge(received)
	}
	var dup *canonical.DuplicateNameError
	if errors.As(m.Err, &dup) {
		return rejectText(&canonical.DuplicateNameError{Pointer: "/payload" + dup.Pointer})
	}
	if m.Err != nil {
		return rejectText(m.Err)
	}
	if len(m.Form) > p.maxPayload {
		return tooLarge(len(m.Form))
	}
	p.ev.Payload, p.ev.PayloadHash = m.Form, canonical.Sum(m.Form)
	return nil
}

// wrong notes what is wrong with a member; one that is not there at all is required first.
func (p *parser) wrong(name string, m canonical.Member, message string) {
	if m.Text == nil {
		message = "is required"
	}
	p.refuse(name, message)
}

func (p *parser) refuse(name, message string) {
	p.errors = append(p.errors, FieldError{Path: "/" + pointerEscape.Replace(name), Message: message})
}

var pointerEscape = strings.NewReplacer("~", "~0", "/", "~1") // RFC 6901 section 3

// kindOf is the first byte of a JSON value, with '0' for every number; 0 for no value.
func kindOf(m canonical.Member) jsontext.Kind {
	if len(m.Text) == 0 {
		return 0
	}
	return jsontext.Value(m.Text).Kind()
}

// text is the value of a JSON string.
func text(m canonical.Member) (string, bool) {
	if kindOf(m) != '"' || m.Err != nil {
		return "", false
	}
	if bytes.IndexByte(m.Form, '\\') < 0 {
		return string(m.Form[1 : len(m.Form)-1]), true
	}
	b, err := jsontext.AppendUnquote(nil, m.Form)
	return string(b), err == nil
}

package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"io"
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

// LogValue keeps payloads out of every log line.
func (e *Event) LogValue() slog.Value {
	return slog.GroupValue(slog.String("key", e.Key().String()), slog.String("contractType", e.ContractType),
		slog.String("payloadHash", e.PayloadHash.String()), slog.String("payload", redactedPayload))
}

// parser turns the received bytes of one event into an Event. It collects everything that is wrong
// instead of stopping at the first, but for what makes the rest unreadable. It is used by one
// goroutine, for one event after the other.
type parser struct {
	strict     bool // unknown members are errors
	maxPayload int  // bytes
	envelope   bool // the text is an envelope (envelope.go)

	decoder jsontext.Decoder
	ev      Event
	errors  []FieldError
}

// parse reads one event into p.ev and says why it cannot be accepted, if so. What could be read of
// its ids is in p.ev even then.
func (p *parser) parse(raw []byte) *Rejection {
	p.ev = Event{Sequence: Absent, Timestamp: Absent, RawHash: canonical.Sum(raw)}
	p.errors = nil
	clean, cleaned := canonical.Clean(raw)
	p.ev.Sanitized = cleaned
	m, err := p.split(clean)
	if err != nil {
		return rejectText(err)
	}
	if p.envelope {
		p.envelopeFields(m)
	} else {
		p.fields(m)
	}
	received := len(m.payload)
	if cleaned {
		if sent, err := p.split(raw); err == nil {
			received = len(sent.payload) // the limit is on what was sent: cleaning may have made it longer or shorter
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

// members are the raw values of an event's or an envelope's members; nil where there is none.
type members struct {
	contractID, eventID, sequence, timestamp, payload, signature []byte
	kind, chatJID                                                []byte // of an envelope, which has these two and payload
	unknown                                                      []string
}

var errNotObject = errors.New("the event is not a JSON object")

// split finds the members of the JSON object in text; the values are slices of text.
func (p *parser) split(text []byte) (m members, err error) {
	dec := &p.decoder
	dec.Reset(bytes.NewBuffer(text), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	if dec.PeekKind() != '{' {
		if _, err := dec.ReadValue(); err != nil {
			return m, err
		}
		return m, errNotObject
	}
	if _, err := dec.ReadToken(); err != nil {
		return m, err
	}
	for dec.PeekKind() != '}' {
		quoted, err := dec.ReadValue()
		if err != nil {
			return m, err
		}
		slot, name := m.slot(memberName(quoted), p.envelope)
		val, err := dec.ReadValue()
		if err != nil {
			return m, err
		}
		if slot == nil {
			m.unknown = append(m.unknown, name)
			continue
		}
		if *slot != nil {
			return m, &canonical.DuplicateNameError{Pointer: "/" + name}
		}
		end := dec.InputOffset()
		*slot = text[end-int64(len(val)) : end]
	}
	if _, err := dec.ReadToken(); err != nil {
		return m, err
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		return m, errors.New("something follows the event")
	}
	return m, nil
}

// slot is where the value of the named member goes; nil for a name that events, or envelopes, do not have.
func (m *members) slot(name string, envelope bool) (*[]byte, string) {
	if envelope {
		return m.envelopeSlot(name)
	}
	switch name {
	case "contractId":
		return &m.contractID, name
	case "eventId":
		return &m.eventID, name
	case "sequence":
		return &m.sequence, name
	case "timestamp":
		return &m.timestamp, name
	case "payload":
		return &m.payload, name
	case "signature":
		return &m.signature, name
	}
	return nil, name
}

// fields reads the base fields; what is wrong with them goes to p.errors, in the order of their names.
func (p *parser) fields(m members) {
	p.ev.ContractID = p.id("contractId", m.contractID)
	p.ev.EventID = p.id("eventId", m.eventID)
	if k := kindOf(m.payload); k != '{' {
		p.wrong("payload", m.payload, "must be an object")
	}
	p.ev.Sequence = p.integer("sequence", m.sequence)
	if m.signature != nil {
		var ok bool
		if p.ev.Signature, ok = text(m.signature); !ok || p.ev.Signature == "" {
			p.wrong("signature", m.signature, "must be a non-empty string")
		}
	}
	p.ev.Timestamp = p.integer("timestamp", m.timestamp)
	p.unknown(m, "is not a member of an event")
}

func (p *parser) unknown(m members, message string) {
	if !p.strict {
		return
	}
	seen := map[string]bool{}
	for _, name := range m.unknown {
		if !seen[name] {
			p.wrong(name, []byte{}, message)
		}
		seen[name] = true
	}
}

func (p *parser) id(name string, raw []byte) string {
	s, ok := text(raw)
	switch {
	case !ok:
		p.wrong(name, raw, "must be a string")
	case !ValidID(s, MaxIDLen):
		p.wrong(name, raw, "must be 1 to 255 characters of A-Z a-z 0-9 _ - . @")
	default:
		return s
	}
	return ""
}

// uncleaned refuses an id that was cleaned: ids are never changed, or two of them could become one.
func (p *parser) uncleaned(name, id string, clean, sent []byte) string {
	if id == "" || bytes.Equal(clean, sent) {
		return id
	}
	p.wrong(name, clean, "must be 1 to 255 characters of A-Z a-z 0-9 _ - . @")
	return ""
}

// integer reads an integral number from 0 to MaxInteger, however it is written: 3, 3.0, 3e0.
func (p *parser) integer(name string, raw []byte) int64 {
	if kindOf(raw) == '0' {
		var buf [32]byte
		if digits, err := canonical.AppendNumber(buf[:0], raw); err == nil {
			if n, err := strconv.ParseInt(string(digits), 10, 64); err == nil && n >= 0 && n <= MaxInteger {
				return n
			}
		}
	}
	p.wrong(name, raw, "must be an integer from 0 to 9007199254740991")
	return Absent
}

// payload makes the canonical form of the payload and its hash.
func (p *parser) payload(raw []byte, received int) *Rejection {
	if k := kindOf(raw); k != '{' && k != '[' {
		return nil
	}
	tooLarge := func(n int) *Rejection {
		return reject(CodePayloadTooLarge, fmt.Sprintf("the payload has %d bytes, the limit is %d", n, p.maxPayload), nil)
	}
	if received > p.maxPayload {
		return tooLarge(received)
	}
	form, err := canonical.Append(make([]byte, 0, len(raw)), raw)
	var dup *canonical.DuplicateNameError
	if errors.As(err, &dup) {
		err = &canonical.DuplicateNameError{Pointer: "/payload" + dup.Pointer}
	}
	if err != nil {
		return rejectText(err)
	}
	if len(form) > p.maxPayload {
		return tooLarge(len(form))
	}
	p.ev.Payload, p.ev.PayloadHash = form, canonical.Sum(form)
	return nil
}

// wrong notes what is wrong with a member; one that is not there at all is required first.
func (p *parser) wrong(name string, raw []byte, message string) {
	if raw == nil {
		message = "is required"
	}
	p.errors = append(p.errors, FieldError{Path: "/" + pointerEscape.Replace(name), Message: message})
}

var pointerEscape = strings.NewReplacer("~", "~0", "/", "~1") // RFC 6901 section 3

// kindOf is the first byte of a JSON value, with '0' for every number; 0 for no value.
func kindOf(raw []byte) jsontext.Kind {
	if len(raw) == 0 {
		return 0
	}
	return jsontext.Value(raw).Kind()
}

// text is the value of a JSON string.
func text(raw []byte) (string, bool) {
	if kindOf(raw) != '"' {
		return "", false
	}
	if !bytes.ContainsRune(raw, '\\') {
		return string(raw[1 : len(raw)-1]), true // it was cleaned, and is JSON
	}
	b, err := jsontext.AppendUnquote(nil, raw)
	return string(b), err == nil
}

// memberNames are the names that memberName need not copy.
var memberNames = [...]string{"contractId", "eventId", "payload", "sequence", "signature", "timestamp", "type", "chat_jid"}

func memberName(quoted []byte) string {
	for _, name := range memberNames {
		if string(quoted[1:len(quoted)-1]) == name {
			return name
		}
	}
	name, _ := text(quoted)
	return name
}

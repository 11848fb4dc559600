package ledger

import (
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/talenttrust/auditledger/ledger/canonical"
)

// Limits of envelopes, in characters.
const (
	maxEnvelopeType = 100
	maxChatJID      = 255
)

// noContract is the contractId of envelopes that belong to no chat.
const noContract = "-"

// IngestEnvelope stores one raw envelope, the bytes of a JSON object {"type", "chat_jid", "payload"},
// under the id that its sender gave it. It is an event like others: of the contract that chat_jid
// names, of the type in type, with the sequence 0 and no time of its own. Its key is bound for ever,
// and its payload may be an array. Errors are those of Ingest.
func (l *Ledger) IngestEnvelope(ctx context.Context, req Request, eventID string, envelope []byte) (Result, error) {
	results := make([]Result, 1)
	err := l.ingest(ctx, req, func(now int64) []draft { return l.prepareEnvelope(req, eventID, envelope, now) }, results)
	return results[0], err
}

func (l *Ledger) prepareEnvelope(req Request, eventID string, envelope []byte, now int64) []draft {
	p := l.parsers.Get().(*parser)
	defer l.parsers.Put(p)
	p.envelope = true
	defer func() { p.envelope = false }()
	drafts := make([]draft, 1)
	d := &drafts[0]
	d.rejection = p.parse(&d.event, envelope)
	d.event.EventID, d.event.Sequence = eventID, 0
	d.describe()
	if !req.Source.allows(d.event.ContractType, d.event.ContractID) {
		d.rejection = notAllowed()
	}
	if d.rejection == nil {
		d.entry = new(Entry)
		l.fillEnvelope(d.entry, req, &d.event, now)
	}
	return drafts
}

// fillEnvelope is fill for an envelope. The request that brought it was signed; it has no signature of
// its own.
func (l *Ledger) fillEnvelope(e *Entry, req Request, ev *Event, now int64) {
	source := *req.Source
	source.Window, source.SequenceFree = 0, true
	req.Source = &source
	l.fill(e, req, ev, "", now)
}

func (m *members) envelopeSlot(name []byte) *canonical.Member {
	switch string(name) {
	case "type":
		return &m.kind
	case "chat_jid":
		return &m.chatJID
	case "payload":
		return &m.payload
	}
	return nil
}

// envelopeFields reads the fields of an envelope; what is wrong with them goes to p.errors.
func (p *parser) envelopeFields(m *members) {
	if kind, ok := text(m.kind); !ok || kind == "" || utf8.RuneCountInString(kind) > maxEnvelopeType {
		p.wrong("type", m.kind, fmt.Sprintf("must be a string of 1 to %d characters", maxEnvelopeType))
	} else {
		p.ev.ContractType = kind
	}
	p.ev.ContractID = noContract
	if k := kindOf(m.chatJID); k != 0 && k != 'n' {
		jid, ok := text(m.chatJID)
		if !ok || utf8.RuneCountInString(jid) > maxChatJID {
			p.wrong("chat_jid", m.chatJID, fmt.Sprintf("must be a string of at most %d characters, or null", maxChatJID))
			p.ev.ContractID = ""
		} else {
			p.ev.ChatJID, p.ev.ContractID = jid, contractOf(jid)
		}
	}
	if k := kindOf(m.payload); k != '{' && k != '[' {
		p.wrong("payload", m.payload, "must be an object or an array")
	}
	p.unknown(m, "is not a member of an envelope")
}

// contractOf is the contractId of a chat.
func contractOf(jid string) string {
	switch {
	case jid == "":
		return noContract
	case ValidID(jid, MaxIDLen):
		return jid
	}
	return "jid." + canonical.Sum([]byte(jid)).String()
}

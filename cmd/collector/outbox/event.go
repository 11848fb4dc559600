package outbox

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"

	"github.com/talenttrust/auditledger/ledger/canonical"
)

// Form says which endpoint of the ledger takes an event.
type Form string

const (
	FormEvent    Form = "event"    // a ledger event, sent in batches to /api/v1/events
	FormEnvelope Form = "envelope" // a raw envelope, sent alone to /api/v1/envelopes
	FormLine     Form = "line"     // not an event at all: input that is kept as a dead letter
)

// Event is one thing to deliver, as the outbox stores it.
type Event struct {
	Form       Form
	Type       string // contract type of an event, type of an envelope
	ContractID string // contract id of an event, chat id of an envelope ("" when it has none)
	EventID    string
	Sequence   string // JSON text as sent; "0" for an envelope, "" when an event has none
	// PayloadHash is the SHA-256 of the canonical payload; of the bytes as they are where the
	// payload has no canonical form (the ledger will refuse it and say why).
	PayloadHash canonical.Hash
	// Body is what is sent: the event object without its contract type, or the whole envelope.
	// For a FormLine it is the input.
	Body   []byte
	Origin string // where it came from, such as "app.log:1024"; for people
	// Refused says why the event can never be delivered; the outbox then keeps it as a dead
	// letter at once. It never holds a payload value.
	Refused string
}

// LogValue names the event and leaves out what it says.
func (e Event) LogValue() slog.Value {
	return slog.GroupValue(slog.String("form", string(e.Form)), slog.String("key", e.Key()), slog.String("origin", e.Origin))
}

// Key is the event's deduplication key as people read it. It is for display; nothing parses it.
func (e Event) Key() string {
	return fmt.Sprintf("%s:%s:%s", e.ContractID, e.EventID, e.Sequence)
}

// identity is the event's identity in 16 bytes: SHA-256 over form, contract, event id and
// sequence, each with its length in front, cut. It keeps the unique index of the outbox small.
func (e Event) identity() []byte {
	buf := make([]byte, 0, 256)
	for _, part := range [...]string{string(e.Form), e.ContractID, e.EventID, e.Sequence} {
		buf = binary.BigEndian.AppendUint32(buf, uint32(len(part)))
		buf = append(buf, part...)
	}
	sum := sha256.Sum256(buf)
	return sum[:16]
}

package ledger

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/talenttrust/auditledger/ledger/canonical"
)

// Hash is a SHA-256, printed as 64 lower hex digits and compared in constant time.
type Hash = canonical.Hash

// Version is the format version of the records written now: all rules of this file, SHA-256.
const Version = 1

// Absent marks an optional integer of a header or body that is not there: none of them is negative.
const Absent = -1

// Position is a record's place in the whole ledger. Positions increase in ledger order; 0 is
// before the first record. Clients see it as an opaque decimal string.
type Position uint64

func (p Position) String() string { return strconv.FormatUint(uint64(p), 10) }

// ParsePosition reads what String wrote: decimal digits without sign or leading zeros.
func ParsePosition(s string) (Position, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil || Position(n).String() != s {
		return 0, fmt.Errorf("position must be a decimal number as answered by the service")
	}
	return Position(n), nil
}

// Type says what a record is.
type Type string

const (
	LedgerCreated     Type = "LedgerCreated"
	EventAccepted     Type = "EventAccepted"
	EventRejected     Type = "EventRejected"
	DuplicatesCounted Type = "DuplicatesCounted"
	AccessRecorded    Type = "AccessRecorded"
)

// Record is what the ledger stores: a header, which is proved for ever, and a body, which the
// header's commitment covers and which could be erased without breaking a proof.
type Record struct {
	Position Position
	Header   Header
	Body     Body
	Leaf     Hash // of Header; filled by the store
}

// Header is the proved part of a record. Empty strings and Absent integers are not part of it.
type Header struct {
	V            int
	Type         Type
	Stream       string
	Revision     int64 // ordinal in the stream, from 0
	Prev         Hash  // leaf hash of the stream's previous header, zero for the first
	ContractID   string
	EventID      string
	Sequence     int64 // Absent when a rejected event had no usable one
	ContractType string
	Timestamp    int64 // the source's, epoch milliseconds; Absent for envelopes and where unusable
	Generation   int64 // from 1; Absent but for accepted events
	RecordedAt   int64 // our clock, epoch milliseconds, never backwards in a stream
	Source       string
	Code         string // of a rejection
	Commitment   Hash   // SHA-256(salt ‖ body hash)
}

// Key is the deduplication key of an event's record.
func (h *Header) Key() Key { return Key{h.ContractID, h.EventID, h.Sequence} }

// HasKey reports whether the record's ids and sequence are all there.
func (h *Header) HasKey() bool { return h.ContractID != "" && h.EventID != "" && h.Sequence >= 0 }

// AppendCanonical appends the header's hashed form.
func (h *Header) AppendCanonical(b []byte) []byte {
	o := object{append(b, '{')}
	o.str(`"code":`, h.Code)
	o.hash(`"commitment":`, h.Commitment)
	o.str(`"contractId":`, h.ContractID)
	o.str(`"contractType":`, h.ContractType)
	o.str(`"eventId":`, h.EventID)
	o.integer(`"generation":`, h.Generation)
	o.hash(`"prev":`, h.Prev)
	o.integer(`"recordedAt":`, h.RecordedAt)
	o.integer(`"revision":`, h.Revision)
	o.integer(`"sequence":`, h.Sequence)
	o.str(`"source":`, h.Source)
	o.str(`"stream":`, h.Stream)
	o.integer(`"timestamp":`, h.Timestamp)
	o.str(`"type":`, string(h.Type))
	o.integer(`"v":`, int64(h.V))
	return append(o.b, '}')
}

// LeafHash is the header's hash in the ledger's tree: SHA-256(0x00 ‖ canonical header), RFC 6962
// section 2.1. It is also the next header's prev.
func (h *Header) LeafHash() Hash {
	return hashOf(func(b []byte) []byte { return h.AppendCanonical(append(b, 0)) })
}

// hashOf is the hash of what f appends to an empty slice.
func hashOf(f func([]byte) []byte) Hash {
	p := scratch.Get().(*[]byte)
	defer scratch.Put(p)
	*p = f((*p)[:0])
	return sha256.Sum256(*p)
}

// scratch holds the texts that are only hashed.
var scratch = sync.Pool{New: func() any { b := make([]byte, 0, 4096); return &b }}

// Body is the part of a record that the commitment covers. Zero values, Absent integers and zero
// hashes are not part of its hashed form.
type Body struct {
	Payload        []byte // canonical JSON; nil where the record keeps none
	Signature      string
	PayloadHash    Hash
	EventHash      Hash
	RawHash        Hash  // of the event's own received bytes
	BoundUntil     int64 // epoch milliseconds at which the key is free again; 0 is never
	Supersedes     int64 // revision of the generation before, or Absent
	PayloadChanged bool  // against the generation before
	Sanitized      bool
	Late           bool
	SequencePolicy string // "free" where sequences give no findings
	Verdict        string // of the event's own signature
	KeyID          string // that the signature was verified with
	ChatJID        string // of an envelope, as sent
	CorrelationID  string
	Traceparent    string
	Reason         string
	Errors         []FieldError
	Counts         []Count // of a DuplicatesCounted or AccessRecorded record
	Salt           [32]byte
}

// Count says that a record was met again: a duplicate of an accepted event, or the same rejection. In
// an AccessRecorded record it says that the header's source read the record's payload.
type Count struct {
	Stream   string
	Revision int64
	Count    int64
	LastSeen int64 // epoch milliseconds
}

// SequenceFree is the sequencePolicy under which sequences give no findings.
const SequenceFree = "free"

// AppendCanonical appends the body's hashed form, without the salt. An accepted event's identity
// stands in the header and is repeated here, inside the event.
func (y *Body) AppendCanonical(b []byte, h *Header) []byte { return y.appendTo(b, h, false) }

// appendTo appends the hashed form, or with salted the one that is stored as JSON.
func (y *Body) appendTo(b []byte, h *Header, salted bool) []byte {
	o := object{append(b, '{')}
	o.positive(`"boundUntil":`, y.BoundUntil)
	o.str(`"chatJid":`, y.ChatJID)
	o.str(`"correlationId":`, y.CorrelationID)
	o.counts(`"entries":`, y.Counts)
	o.errors(`"errors":`, y.Errors)
	if y.Payload != nil {
		o.name(`"event":`)
		o.b = appendEvent(o.b, h, `"payload":`, y.Payload, y.Signature)
	}
	o.optHash(`"eventHash":`, y.EventHash)
	o.str(`"keyId":`, y.KeyID)
	o.flag(`"late":`, y.Late)
	o.flag(`"payloadChanged":`, y.PayloadChanged)
	o.optHash(`"payloadHash":`, y.PayloadHash)
	o.optHash(`"rawHash":`, y.RawHash)
	o.str(`"reason":`, y.Reason)
	if salted {
		o.hash(`"salt":`, Hash(y.Salt))
	}
	o.flag(`"sanitized":`, y.Sanitized)
	o.str(`"sequencePolicy":`, y.SequencePolicy)
	o.integer(`"supersedes":`, y.Supersedes)
	o.str(`"traceparent":`, y.Traceparent)
	o.str(`"verdict":`, y.Verdict)
	return append(o.b, '}')
}

// CommitmentTo is what the header of the body must say: SHA-256(salt ‖ SHA-256(canonical body)).
func (y *Body) CommitmentTo(h *Header) Hash {
	bodyHash := hashOf(func(b []byte) []byte { return y.AppendCanonical(b, h) })
	var in [64]byte
	copy(in[:32], y.Salt[:])
	copy(in[32:], bodyHash[:])
	return sha256.Sum256(in[:])
}

// EventHashOf is the hash of the whole event: canonical, with payloadHash in place of payload.
func EventHashOf(h *Header, payloadHash Hash, signature string) Hash {
	return hashOf(func(b []byte) []byte {
		var text [66]byte
		quoted, _ := payloadHash.AppendText(append(text[:0], '"'))
		return appendEvent(b, h, `"payloadHash":`, append(quoted, '"'), signature)
	})
}

// appendEvent writes the event as it was sent; payload stands under the given name, which sorts
// between eventId and sequence.
func appendEvent(b []byte, h *Header, name string, payload []byte, signature string) []byte {
	o := object{append(b, '{')}
	o.str(`"contractId":`, h.ContractID)
	o.str(`"contractType":`, h.ContractType)
	o.str(`"eventId":`, h.EventID)
	o.name(name)
	o.b = append(o.b, payload...)
	o.integer(`"sequence":`, h.Sequence)
	o.str(`"signature":`, signature)
	o.integer(`"timestamp":`, h.Timestamp)
	return append(o.b, '}')
}

// Check recomputes every hash of the record and says which does not hold. prev is the leaf hash
// of the stream's record before.
func (r *Record) Check(prev Hash) error {
	h, y := &r.Header, &r.Body
	switch {
	case h.V != Version:
		return fmt.Errorf("format version %d is not known", h.V)
	case !h.Prev.Equal(prev):
		return fmt.Errorf("prev does not name the record before in stream %s", h.Stream)
	case !h.LeafHash().Equal(r.Leaf):
		return fmt.Errorf("the header does not have its leaf hash")
	case y.Payload != nil && !canonical.Sum(y.Payload).Equal(y.PayloadHash):
		return fmt.Errorf("the payload does not have its payload hash")
	case y.Payload != nil && !EventHashOf(h, y.PayloadHash, y.Signature).Equal(y.EventHash):
		return fmt.Errorf("the event does not have its event hash")
	case !y.CommitmentTo(h).Equal(h.Commitment):
		return fmt.Errorf("the body does not have the header's commitment")
	}
	return nil
}

// IsRejectionStream reports whether the stream holds rejected events.
func IsRejectionStream(stream string) bool { return strings.HasPrefix(stream, rejectionsPrefix) }

func newSalt() (salt [32]byte) {
	rand.Read(salt[:]) // never fails: crypto/rand ends the program where the system has no randomness
	return salt
}

// object writes members of a canonical JSON object; the caller names them in sorted order, as
// `"name":`.
type object struct{ b []byte }

func (o *object) name(n string) {
	if o.b[len(o.b)-1] != '{' {
		o.b = append(o.b, ',')
	}
	o.b = append(o.b, n...)
}

func (o *object) str(n, v string) {
	if v == "" {
		return
	}
	o.name(n)
	o.b = canonical.AppendString(o.b, v)
}

func (o *object) integer(n string, v int64) {
	if v == Absent {
		return
	}
	o.name(n)
	o.b = strconv.AppendInt(o.b, v, 10)
}

func (o *object) positive(n string, v int64) {
	if v > 0 {
		o.integer(n, v)
	}
}

func (o *object) flag(n string, v bool) {
	if v {
		o.name(n)
		o.b = append(o.b, "true"...)
	}
}

func (o *object) hash(n string, v Hash) {
	o.name(n)
	o.b = append(o.b, '"')
	o.b, _ = v.AppendText(o.b)
	o.b = append(o.b, '"')
}

func (o *object) optHash(n string, v Hash) {
	if !v.IsZero() {
		o.hash(n, v)
	}
}

func (o *object) errors(n string, v []FieldError) {
	if len(v) == 0 {
		return
	}
	o.name(n)
	o.b = append(o.b, '[')
	for i, e := range v {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.b = append(o.b, `{"message":`...)
		o.b = canonical.AppendString(o.b, e.Message)
		o.b = append(o.b, `,"path":`...)
		o.b = canonical.AppendString(o.b, e.Path)
		o.b = append(o.b, '}')
	}
	o.b = append(o.b, ']')
}

func (o *object) counts(n string, v []Count) {
	if len(v) == 0 {
		return
	}
	o.name(n)
	o.b = append(o.b, '[')
	for i, c := range v {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		e := object{append(o.b, '{')}
		e.integer(`"count":`, c.Count)
		e.integer(`"lastSeen":`, c.LastSeen)
		e.integer(`"revision":`, c.Revision)
		e.str(`"stream":`, c.Stream)
		o.b = append(e.b, '}')
	}
	o.b = append(o.b, ']')
}

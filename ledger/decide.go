package ledger

import "fmt"

// Verdict is what became of an entry.
type Verdict int

const (
	Accepted  Verdict = iota + 1 // its record is stored
	Duplicate                    // its key is bound to the same payload
	Conflict                     // its key is bound to another payload
	Refused                      // Decision.Rejection says why
)

// Decision is what Decide says of an entry, given what was stored before it.
type Decision struct {
	Verdict    Verdict
	Generation int64      // the record's, when accepted
	First      Found      // the record the key is bound to, or that an accepted one supersedes
	Rejection  *Rejection // when refused
	RecordedAt int64      // the record's, when accepted
}

// Decide is the one place that says which of several events with a key is the first. It is called
// by a Store where the store serializes the stream: head and found must be complete up to the
// record before the one that would be written.
//
// The order is identity before schema before age: a tightened schema or a passed age limit never
// refuses the retry of a stored event.
func Decide(e *Entry, head StreamHead, found Found) Decision {
	now := max(e.Header.RecordedAt, head.RecordedAt)
	d := Decision{Generation: Absent, First: found, RecordedAt: now}
	if e.Header.Type != EventAccepted {
		d.Verdict = Accepted
		return d
	}
	bound := found.Known() && (found.BoundUntil == 0 || now < found.BoundUntil)
	switch {
	case bound && found.PayloadHash.Equal(e.Body.PayloadHash):
		d.Verdict = Duplicate
	case e.Invalid != nil:
		d.Verdict, d.Rejection = Refused, e.Invalid
	case bound:
		d.Verdict = Conflict
	case !found.Known() && e.OutOfTime != nil:
		d.Verdict, d.Rejection = Refused, e.OutOfTime
	default:
		d.Verdict, d.Generation = Accepted, found.Generation+1
	}
	return d
}

// Entry is a record on its way to its stream. Everything that does not depend on its place there
// is already in it, so that a store's serialized part stays short.
type Entry struct {
	Header Header // Revision and Prev unset; Generation and RecordedAt as expected
	Body   Body   // as expected: of a key never seen, at the time in Header.RecordedAt

	Invalid   *Rejection // the payload does not meet its schema: said unless it is a duplicate
	OutOfTime *Rejection // too old or in the future: said only of keys never seen
	Window    int64      // milliseconds for which the key is bound; 0 is for ever
}

// Key is the entry's deduplication key, for accepted events.
func (e *Entry) Key() Key { return e.Header.Key() }

// Seal computes the hashes of an entry whose other members are final, as it is expected to be stored.
func (e *Entry) Seal() {
	if e.Header.Type == EventAccepted {
		e.Body.EventHash = EventHashOf(&e.Header, e.Body.PayloadHash, e.Body.Signature)
		e.Body.bind(e.Window, Decision{RecordedAt: e.Header.RecordedAt})
	}
	e.Header.Commitment = e.Body.CommitmentTo(&e.Header)
}

// Record completes the entry's record for its place behind head. changed says that the body is
// not the one in the entry, because what was expected of the key or the clock did not hold.
func (e *Entry) Record(d Decision, head StreamHead, at Position) (r Record, changed bool) {
	r = Record{Position: at, Header: e.Header, Body: e.Body}
	h := &r.Header
	h.Revision, h.Prev, h.RecordedAt, h.Generation = head.Revision+1, head.Leaf, d.RecordedAt, d.Generation
	if h.Type == EventAccepted && (d.Generation > 1 || d.RecordedAt != e.Header.RecordedAt) {
		changed = true
		r.Body.bind(e.Window, d)
		h.Commitment = r.Body.CommitmentTo(h)
	}
	r.Leaf = h.LeafHash()
	return r, changed
}

// bind sets what a body says of its window and of the generation before it.
func (y *Body) bind(window int64, d Decision) {
	y.BoundUntil = 0
	if window > 0 {
		y.BoundUntil = d.RecordedAt + window
	}
	if d.Generation > 1 {
		y.Supersedes = d.First.Revision
		y.PayloadChanged = !d.First.PayloadHash.Equal(y.PayloadHash)
		y.Late = false // the age rule is only for keys never seen
	}
}

// Outcome is the answer to one entry of an Append.
type Outcome struct {
	Decision
	Position Position // of the stored record, or of the one that the entry is a duplicate of or conflicts with
	Revision int64    // likewise
	Leaf     Hash     // of the stored record
}

// TooLarge refuses an entry whose record is larger than its store can ever take.
func TooLarge(size, limit int) Decision {
	return refused(reject(CodePayloadTooLarge, fmt.Sprintf("the event's record has %d bytes, the ledger stores at most %d", size, limit), nil))
}

// Closed refuses an entry whose stream takes nothing any more, by what somebody did on the server.
func Closed() Decision {
	return refused(reject(CodeContractClosed, "the contract's stream was deleted on the server that holds the ledger; nothing can be added to it", nil))
}

func refused(r *Rejection) Decision {
	return Decision{Verdict: Refused, Generation: Absent, Rejection: r}
}

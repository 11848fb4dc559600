package ledger

import (
	"context"
	"errors"
	"iter"
)

// What a Store's callers branch on. Whatever else goes wrong comes wrapped in one of the first two.
var (
	// ErrUnavailable: nothing of the call is stored. Try again later.
	ErrUnavailable = errors.New("the ledger is not available")
	// ErrUnknown: the entries may or may not be stored. Send the same events again.
	ErrUnknown = errors.New("the outcome is not known")
	// ErrBusy: the queue is full; nothing is stored.
	ErrBusy = errors.New("too much is waiting to be stored")
	// ErrDamaged: stored bytes are not what was written. It needs a person.
	ErrDamaged = errors.New("the ledger is damaged")
	// ErrNotFound: there is no such record.
	ErrNotFound = errors.New("no such record")
	// ErrBeyondHead: the position is beyond the last record.
	ErrBeyondHead = errors.New("the position is beyond the head of the ledger")
)

// Store keeps the records of one ledger, in one order, for ever.
//
// All methods are safe for concurrent use. Records handed out are the caller's to read, not to
// change.
type Store interface {
	// Append takes the entries in order. For each it asks Decide, at the point where nothing can come
	// between the answer and the record: either the record is stored behind everything stored so far,
	// or the outcome says which record it is a duplicate of or why it is not stored. Entries of one call
	// see the ones before them. When Append returns without an error, every record it speaks of,
	// stored now or before, survives a power cut. With ErrUnknown, some entries may be stored.
	Append(ctx context.Context, entries []*Entry) ([]Outcome, error)

	// Find says for each key what Decide would be given now. Not yet durable records may be unseen.
	Find(ctx context.Context, keys []Key) ([]Found, error)

	Reader

	// Close stops taking entries, finishes the ones it has, and releases everything.
	Close() error
}

// Reader gives back what is durable. It never shows a record that a crash could take away.
type Reader interface {
	// Head is the position of the last durable record, and how many records there are up to it.
	Head(ctx context.Context) (Position, error)

	// Read returns the records at the positions, in the order asked. ErrNotFound where there is none.
	Read(ctx context.Context, positions []Position) ([]Record, error)

	// Stream yields the records of one stream from the revision on, forwards to its end at the time of
	// the call, or backwards to its first. From beyond the end: nothing forwards, the whole stream
	// backwards. An unknown stream is empty. A yielded error is the last thing yielded.
	Stream(ctx context.Context, stream string, from int64, backwards bool) iter.Seq2[Record, error]

	// Follow yields everything after the position in ledger order, each record once, in batches of
	// what is there, then waits for more until ctx ends. The error that ends it is the last thing
	// yielded; ctx's end is one too. ErrBeyondHead when after is no position of this ledger yet.
	Follow(ctx context.Context, after Position) iter.Seq2[Batch, error]
}

// Batch is a run of consecutive records of the ledger, at least one, and what was durable when it was read.
type Batch struct {
	Records []Record
	Head    Position
	Behind  int64 // records between the batch's last and Head
}

// StreamHead is what a stream's next record needs to know of it.
type StreamHead struct {
	Revision        int64 // of the last record; Absent for an empty stream
	Leaf            Hash  // of the last record
	RecordedAt      int64 // of the last record
	HighestSequence int64 // of the events in it; Absent when it holds none
}

// EmptyStream is the head of a stream without records.
var EmptyStream = StreamHead{Revision: Absent, HighestSequence: Absent}

// Found is what a key index knows of a key: its newest generation.
type Found struct {
	Generation  int64 // 0: the key was never stored
	Position    Position
	Revision    int64
	RecordedAt  int64
	BoundUntil  int64 // 0: for ever
	PayloadHash Hash
	EventHash   Hash
}

// Known reports whether the key was ever stored.
func (f *Found) Known() bool { return f.Generation > 0 }

// FoundIn is what a key index keeps of an accepted event's record.
func FoundIn(r *Record) Found {
	return Found{
		Generation: r.Header.Generation, Position: r.Position, Revision: r.Header.Revision, RecordedAt: r.Header.RecordedAt,
		BoundUntil: r.Body.BoundUntil, PayloadHash: r.Body.PayloadHash, EventHash: r.Body.EventHash,
	}
}

// After is the head once r is the stream's last record.
func (s StreamHead) After(r *Record) StreamHead {
	s.Revision, s.Leaf, s.RecordedAt = r.Header.Revision, r.Leaf, r.Header.RecordedAt
	if r.Header.Type == EventAccepted {
		s.HighestSequence = max(s.HighestSequence, r.Header.Sequence)
	}
	return s
}

// Window is a shared, losable memory of which keys are bound to which payload. It is a fast path
// only: a hit says where to look, and the record found there decides; a miss says nothing.
type Window interface {
	// Look returns a hint for each key, in order, in one round trip. Any error is treated as all misses.
	Look(ctx context.Context, keys []Key) ([]Hint, error)
	// Bind remembers durable records until their key is free again. Losing one is harmless.
	Bind(ctx context.Context, bound []Binding) error
}

// Hint is where a Window believes a key's newest record to be, in the contract's stream.
type Hint struct {
	Hit         bool
	Revision    int64
	PayloadHash Hash
}

// Binding says which record binds a key, and until when.
type Binding struct {
	Key         Key
	Revision    int64
	PayloadHash Hash
	BoundUntil  int64 // epoch milliseconds; 0 is for ever
}

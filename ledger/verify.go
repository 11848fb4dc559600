package ledger

import (
	"context"
	"errors"
	"fmt"
)

// FaultKind says what was done to a ledger.
type FaultKind string

const (
	Edited    FaultKind = "edited"    // a record is not what it was when it was stored
	Removed   FaultKind = "removed"   // records are missing before this one
	Reordered FaultKind = "reordered" // the record does not stand where it belongs
	Cut       FaultKind = "cut"       // records at the end are missing
	Misled    FaultKind = "misled"    // the records are right, and what is derived from them is not
)

// Fault is the first bad place that Verify met.
type Fault struct {
	Kind     FaultKind
	Position Position
	Stream   string
	Revision int64
	Reason   string
}

func (f *Fault) Error() string {
	where := "position " + f.Position.String()
	if f.Stream != "" {
		where += fmt.Sprintf(" (%s, revision %d)", f.Stream, f.Revision)
	}
	return fmt.Sprintf("%s at %s: %s", f.Kind, where, f.Reason)
}

// Verified says what Verify went through.
type Verified struct {
	Records int64
	At      Position // of the last of them
	Head    Position
	Streams int
	Keys    int64 // accepted events
}

// Verify reads the whole ledger in order and recomputes everything that its records say of one another:
// each header's hash, its prev, its revision and its clock, each body's commitment and hashes, the
// generations of each key, and that the store's own index finds each of them. It stops at the first
// bad place, with a *Fault. progress is called now and then.
//
// It does not tell whether whole records at the end are missing: that takes something kept elsewhere,
// such as the position of a receipt or of a projection; atLeast is the position that must be there.
func Verify(ctx context.Context, s Store, atLeast Position, progress func(Verified)) (Verified, error) {
	head, err := s.Head(ctx)
	if err != nil {
		return Verified{}, err
	}
	v := verifier{store: s, heads: map[string]StreamHead{}}
	v.Head = head
	if head < atLeast {
		return v.Verified, &Fault{Kind: Cut, Position: head, Reason: fmt.Sprintf("position %s was there once", atLeast)}
	}
	if head == 0 {
		return v.Verified, nil
	}
	for batch, err := range s.Follow(ctx, 0) {
		if errors.Is(err, ErrDamaged) {
			return v.Verified, &Fault{Kind: Edited, Position: v.At + 1, Reason: err.Error()}
		}
		if err != nil {
			return v.Verified, err
		}
		if err := v.batch(ctx, batch.Records); err != nil {
			return v.Verified, err
		}
		if progress != nil {
			progress(v.Verified)
		}
		if v.At >= head {
			break
		}
	}
	return v.Verified, nil
}

type verifier struct {
	Verified
	store Store
	heads map[string]StreamHead
}

func (v *verifier) batch(ctx context.Context, records []Record) error {
	var keys []Key
	var of []*Record
	for i := range records {
		r := &records[i]
		if err := v.record(r); err != nil {
			return err
		}
		if r.Header.Type == EventAccepted {
			keys, of = append(keys, r.Header.Key()), append(of, r)
		}
	}
	found, err := v.store.Find(ctx, keys)
	if err != nil {
		return err
	}
	for i, f := range found {
		if err := indexed(of[i], f); err != nil {
			return err
		}
	}
	return nil
}

func (v *verifier) record(r *Record) error {
	h := &r.Header
	head, ok := v.heads[h.Stream]
	if !ok {
		head = EmptyStream
		v.Streams++
	}
	switch {
	case r.Position <= v.At:
		return fault(Reordered, r, "it stands behind position "+v.At.String())
	case h.Revision > head.Revision+1:
		return fault(Removed, r, fmt.Sprintf("revision %d of the stream comes first", head.Revision+1))
	case h.Revision <= head.Revision:
		return fault(Reordered, r, fmt.Sprintf("revision %d of the stream was there already", h.Revision))
	}
	if err := r.Check(head.Leaf); err != nil {
		return fault(Edited, r, err.Error())
	}
	if h.RecordedAt < head.RecordedAt {
		return fault(Reordered, r, "its clock is behind that of the record before")
	}
	v.heads[h.Stream], v.At = head.After(r), r.Position
	if v.Records++; h.Type == EventAccepted {
		v.Keys++
	}
	return nil
}

// indexed compares a record with what the index knows of its key: itself, or a later generation.
func indexed(r *Record, f Found) error {
	switch {
	case !f.Known():
		return fault(Misled, r, "the key index does not know its key")
	case f.Generation < r.Header.Generation:
		return fault(Misled, r, fmt.Sprintf("the key index knows generation %d only", f.Generation))
	case f.Generation == r.Header.Generation && f != FoundIn(r):
		return fault(Misled, r, fmt.Sprintf("the key index names position %s for it", f.Position))
	}
	return nil
}

func fault(kind FaultKind, r *Record, reason string) *Fault {
	return &Fault{Kind: kind, Position: r.Position, Stream: r.Header.Stream, Revision: r.Header.Revision, Reason: reason}
}

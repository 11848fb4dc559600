package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
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
	err = v.all(ctx, progress)
	if of := new(Fault); err == nil || errors.As(err, &of) { // what waits to be looked up comes before it
		err = cmp.Or(v.index(ctx), err)
	}
	return v.Verified, err
}

type verifier struct {
	Verified
	store Store
	heads map[string]StreamHead

	// What the index must know of accepted events; it is asked for many at once.
	keys []Key
	want []indexed
}

// indexed is where an accepted event is.
type indexed struct {
	stream string
	found  Found
}

func (v *verifier) all(ctx context.Context, progress func(Verified)) error {
	for batch, err := range v.store.Follow(ctx, 0) {
		if errors.Is(err, ErrDamaged) {
			return &Fault{Kind: Edited, Position: v.At + 1, Reason: err.Error()}
		}
		if err != nil {
			return err
		}
		if err := v.batch(ctx, batch.Records); err != nil {
			return err
		}
		if progress != nil {
			progress(v.Verified)
		}
		if v.At >= v.Head {
			break
		}
	}
	return nil
}

// indexAtOnce is how many keys are looked up at once: they are sorted then, and most of an index is passed by in order.
const indexAtOnce = 65_536

// batch checks records. Where they stand is seen in order; what they hash to, side by side.
func (v *verifier) batch(ctx context.Context, records []Record) error {
	heads := make([]StreamHead, len(records))
	var misplaced error
	n := 0
	for ; n < len(records); n++ {
		if heads[n], misplaced = v.place(&records[n]); misplaced != nil {
			break
		}
	}
	if err := continues(records[:n], heads); err != nil {
		return err
	}
	if misplaced != nil {
		return misplaced
	}
	if len(v.keys) >= indexAtOnce {
		return v.index(ctx)
	}
	return nil
}

// place checks where a record stands, and returns its stream's head before it.
func (v *verifier) place(r *Record) (head StreamHead, err error) {
	h := &r.Header
	head, ok := v.heads[h.Stream]
	if !ok {
		head = EmptyStream
		v.Streams++
	}
	switch {
	case r.Position <= v.At:
		return head, fault(Reordered, r, "it stands behind position "+v.At.String())
	case h.Revision > head.Revision+1:
		return head, fault(Removed, r, fmt.Sprintf("revision %d of the stream comes first", head.Revision+1))
	case h.Revision <= head.Revision:
		return head, fault(Reordered, r, fmt.Sprintf("revision %d of the stream was there already", h.Revision))
	}
	v.heads[h.Stream], v.At = head.After(r), r.Position
	if v.Records++; h.Type == EventAccepted {
		v.Keys++
		v.keys, v.want = append(v.keys, h.Key()), append(v.want, indexed{h.Stream, FoundIn(r)})
	}
	return head, nil
}

// continues checks the hashes and the clock of every record behind its stream's head.
func continues(records []Record, heads []StreamHead) error {
	faults := make([]error, len(records))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(records)); i = next.Add(1) - 1 {
				faults[i] = records[i].continues(&heads[i])
			}
		})
	}
	wg.Wait()
	return cmp.Or(faults...)
}

func (r *Record) continues(head *StreamHead) error {
	if err := r.Check(head.Leaf); err != nil {
		return fault(Edited, r, err.Error())
	}
	if r.Header.RecordedAt < head.RecordedAt {
		return fault(Reordered, r, "its clock is behind that of the record before")
	}
	return nil
}

// index compares the records that wait with what the index knows of their keys: themselves, or later
// generations.
func (v *verifier) index(ctx context.Context) error {
	found, err := v.store.Find(ctx, v.keys)
	if err != nil {
		return err
	}
	for i, f := range found {
		if err := v.want[i].is(f); err != nil {
			return err
		}
	}
	v.keys, v.want = v.keys[:0], v.want[:0]
	return nil
}

func (x *indexed) is(f Found) error {
	reason := ""
	switch {
	case !f.Known():
		reason = "the key index does not know its key"
	case f.Generation < x.found.Generation:
		reason = fmt.Sprintf("the key index knows generation %d only", f.Generation)
	case f.Generation == x.found.Generation && f != x.found:
		reason = fmt.Sprintf("the key index names position %s for it", f.Position)
	default:
		return nil
	}
	return &Fault{Kind: Misled, Position: x.found.Position, Stream: x.stream, Revision: x.found.Revision, Reason: reason}
}

func fault(kind FaultKind, r *Record, reason string) *Fault {
	return &Fault{Kind: kind, Position: r.Position, Stream: r.Header.Stream, Revision: r.Header.Revision, Reason: reason}
}

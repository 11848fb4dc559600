package keyindex

import (
	"fmt"

	"github.com/talenttrust/auditledger/ledger"
)

// Fit says how a record stands to its stream as the index knows it.
type Fit int

const (
	Known   Fit = iota + 1 // it is in the index already
	Added                  // it was the next one, and now it is in
	Missing                // records that come before it are not in yet
	Strange                // its place is another's, or it does not continue the record before: it is none of the stream
)

// Extend adds a record whose own hashes hold, if it is the next of its stream. It may be called for the
// same record again and again, by whoever comes across it. It waits as Apply does.
func (x *Index) Extend(r *ledger.Record) (Fit, error) {
	fit, err := x.extend(r)
	if fit != Known || err != nil {
		return fit, err
	}
	at, ok, err := x.At(r.Header.Stream, r.Header.Revision)
	if err == nil && !ok {
		err = fmt.Errorf("the key index has no position for %s %d: %w", r.Header.Stream, r.Header.Revision, ledger.ErrDamaged)
	}
	if at != r.Position {
		return Strange, err
	}
	return Known, err
}

func (x *Index) extend(r *ledger.Record) (Fit, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	head, err := x.headWhileLocked(r.Header.Stream)
	if err != nil {
		return 0, err
	}
	switch {
	case r.Header.Revision == head.Revision && r.Leaf != head.Leaf:
		return Strange, nil
	case r.Header.Revision <= head.Revision:
		return Known, nil
	case r.Header.Revision > head.Revision+1:
		return Missing, nil
	case !r.Header.Prev.Equal(head.Leaf) || r.Header.RecordedAt < head.RecordedAt:
		return Strange, nil
	}
	a := Of(r, head)
	if x.add(&a); r.Position > x.top.Position {
		x.top = Top{r.Position, r.Leaf}
	}
	return Added, x.failed
}

// headWhileLocked is Head for one who holds mu. Where it must read, it lets go of mu and looks again.
func (x *Index) headWhileLocked(stream string) (ledger.StreamHead, error) {
	for {
		for x.active.records >= x.c.Table && x.writing != nil && x.failed == nil {
			x.room.Wait() // here, so that add does not let go of mu behind the answer
		}
		if head, ok := x.headInMemory(stream); ok {
			return head, nil
		}
		if head, ok := x.heads.get(stream); ok {
			return head, nil
		}
		x.mu.Unlock()
		_, _, err := x.Head(stream) // puts it where it is found
		x.mu.Lock()
		if err != nil {
			return ledger.EmptyStream, err
		}
	}
}

// Advance moves the cursor, never back: every record up to the position is in.
func (x *Index) Advance(to ledger.Position) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cursor = max(x.cursor, to)
}

// Top is the record with the highest position that Extend has added. Who has it knows later whether
// the ledger is still the one that the index was made from.
type Top struct {
	Position ledger.Position // 0: there is none
	Leaf     ledger.Hash
}

// Top returns it, as of the last time that what is in memory was written, when asked at once after Open.
func (x *Index) Top() Top {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.top
}

package projections

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/talenttrust/auditledger/ledger"
)

// Rows whose keys end with a position and that are written once and for all are stored packed: those that
// are written at once and stand under the same text lie together under the key of the last. A packed
// row's value is, for each item in the order of positions,
//
//	distance to the last one's position (uvarint) · length (uvarint) · the item
//
// How items are divided into packed rows depends on how records came; what they are does not.
const (
	packItems = 16
	packBytes = 4 << 10 // where a row is larger, no other item joins it
)

// pack takes the changes that are stored in one row off the front, and puts the row's value into val.
func (l *lot) pack(val *row, changes []change) (key []byte, rest []change) {
	under, n, size := l.under(&changes[0]), 1, int(changes[0].end-changes[0].val)
	for ; n < min(len(changes), packItems) && size < packBytes && bytes.Equal(under, l.under(&changes[n])); n++ {
		size += int(changes[n].end - changes[n].val)
	}
	key = l.key(&changes[n-1])
	last := number(key)
	*val = (*val)[:0]
	for i := range changes[:n] {
		c := &changes[i]
		*val = binary.AppendUvarint(*val, last-number(l.key(c)))
		*val = binary.AppendUvarint(*val, uint64(c.end-c.val))
		*val = append(*val, l.arena[c.val:c.end]...)
	}
	return key, changes[n:]
}

// item is one of those in a packed row.
type item struct {
	at  ledger.Position
	val []byte
}

var errPacked = errors.New("a packed row is damaged")

// unpack yields the items of a packed row, oldest first; the last one is at the key's position.
func unpack(key, val []byte) iter.Seq2[item, error] {
	return func(yield func(item, error) bool) {
		if len(key) < 8 {
			yield(item{}, errPacked)
			return
		}
		last := ledger.Position(number(key))
		for f, more := (fields{b: val}), true; more; {
			it := item{at: last - f.pos(), val: f.text()}
			if more = len(f.b) > 0; f.bad || !more && it.at != last {
				yield(item{}, errPacked)
				return
			}
			if !yield(it, nil) {
				return
			}
		}
	}
}

// items hands the items under a text whose positions are in a range to use until it returns false, in the
// order of their positions or against it. Items are only valid during the call.
func (v *view) items(ctx context.Context, under []byte, in positions, backwards bool, use func(item) (bool, error)) error {
	lower, upper := appendNumbers(bytes.Clone(under), uint64(in.first)), appendNumbers(bytes.Clone(under), math.MaxUint64)
	begin := (*pebble.Iterator).First
	if backwards { // the last item may lie in a row under a later key
		from := appendNumbers(bytes.Clone(under), uint64(in.last))
		begin = func(it *pebble.Iterator) bool { return it.SeekGE(from) || it.Last() }
	}
	var row []item
	return v.walk(ctx, lower, upper, begin, backwards, func(key, val []byte) (bool, error) {
		row = row[:0]
		for it, err := range unpack(key, val) {
			if err != nil {
				return false, err
			}
			if it.at > in.last {
				break
			}
			if it.at >= in.first {
				row = append(row, it)
			}
		}
		if backwards {
			slices.Reverse(row)
		}
		for _, it := range row {
			if more, err := use(it); !more || err != nil {
				return false, err
			}
		}
		return backwards || number(key) < uint64(in.last), nil
	})
}

// itemsAt hands the items at the positions, which are in order, to use; not where there is none.
func (v *view) itemsAt(rows *looker, under []byte, at []ledger.Position, use func(item) error) error {
	from := bytes.Clone(under)
	for len(at) > 0 {
		from = appendNumbers(from[:len(under)], uint64(at[0]))
		key, val := rows.from(from)
		if key == nil || !bytes.HasPrefix(key, under) {
			return nil
		}
		for it, err := range unpack(key, val) {
			if err != nil {
				return fmt.Errorf("at position %s: %w", at[0], err)
			}
			for len(at) > 0 && at[0] < it.at {
				at = at[1:]
			}
			if len(at) == 0 {
				return nil
			}
			if at[0] == it.at {
				if err := use(it); err != nil {
					return err
				}
				at = at[1:]
			}
		}
	}
	return nil
}

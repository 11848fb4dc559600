package projections

import (
	"bytes"
	"cmp"
	"slices"
)

// lot is changes of rows under one tag, in the order in which they were made.
type lot struct {
	packed bool   // the rows are stored packed
	arena  []byte // keys and values
	list   []change
}

// change is a row to be written: where in the arena its key begins and ends, and its value ends.
type change struct {
	key, val, end uint32
	gone          bool // the row is to be deleted
}

func (l *lot) add(key, val []byte, gone bool) {
	c := change{key: uint32(len(l.arena)), gone: gone}
	l.arena = append(l.arena, key...)
	c.val = uint32(len(l.arena))
	l.arena = append(l.arena, val...)
	c.end = uint32(len(l.arena))
	l.list = append(l.list, c)
}

func (l *lot) key(c *change) []byte { return l.arena[c.key:c.val] }

// under is the part of the key of a packed row's item before its position.
func (l *lot) under(c *change) []byte { return l.arena[c.key : c.val-8] }

// lasting reports whether the rows lie behind all that were written: packed, and by position only.
func (l *lot) lasting() bool {
	return l.packed && len(l.list) > 0 && len(l.under(&l.list[0])) == len(prefix{})+1
}

// keptBytes is how much room for changes is kept where few follow.
const keptBytes = 4 << 20

func (l *lot) forget(more bool) {
	if !more && cap(l.arena) > keptBytes {
		*l = lot{}
	}
	l.arena, l.list = l.arena[:0], l.list[:0]
}

// manyChanges is from how many changes on they are sorted by the bytes of their keys, not by comparing them.
const manyChanges = 1024

// sort puts the changes in the order of their keys, those of one key by age.
func (l *lot) sort() {
	switch {
	case l.lasting(): // as they are
	case len(l.list) < manyChanges:
		if !slices.IsSortedFunc(l.list, l.compare) {
			slices.SortFunc(l.list, l.compare)
		}
	default:
		l.sortByBytes()
	}
}

// sorted is what changes are sorted by. Items of packed rows come in the order of their positions.
func (l *lot) sorted(c *change) []byte {
	if l.packed {
		return l.under(c)
	}
	return l.key(c)
}

func (l *lot) compare(x, y change) int {
	return cmp.Or(bytes.Compare(l.sorted(&x), l.sorted(&y)), cmp.Compare(x.key, y.key))
}

// spot is where a change is, and the part of its key that it is sorted by.
type spot struct {
	lead [16]byte
	at   uint32
}

// sortByBytes sorts by the sixteen bytes behind what all keys begin with, from the last to the first,
// keeping the order of before among equals. What that leaves equal is then compared.
func (l *lot) sortByBytes() {
	from, to := make([]spot, len(l.list)), make([]spot, len(l.list))
	shared := l.shared()
	var counts [len(spot{}.lead)][256]uint32
	for i := range l.list {
		s := &from[i]
		s.at = uint32(i)
		copy(s.lead[:], l.sorted(&l.list[i])[shared:])
		for n, b := range s.lead {
			counts[n][b]++
		}
	}
	for n := len(counts) - 1; n >= 0; n-- {
		count := &counts[n]
		if count[from[0].lead[n]] == uint32(len(from)) {
			continue // the same in all
		}
		sum := uint32(0)
		for b, c := range count {
			count[b], sum = sum, sum+c
		}
		for i := range from {
			next := &count[from[i].lead[n]]
			to[*next] = from[i]
			*next++
		}
		from, to = to, from
	}
	list := make([]change, len(l.list), cap(l.list))
	for i, s := range from {
		list[i] = l.list[s.at]
	}
	for i, j := 0, 1; i < len(from); i, j = j, j+1 {
		for j < len(from) && from[i].lead == from[j].lead {
			j++
		}
		if same := list[i:j]; !slices.IsSortedFunc(same, l.compare) {
			slices.SortFunc(same, l.compare)
		}
	}
	l.list = list
}

// shared is how many bytes everything that is sorted by begins with.
func (l *lot) shared() int {
	first := l.sorted(&l.list[0])
	n := len(first)
	for i := range l.list {
		key := l.sorted(&l.list[i])
		n = min(n, len(key))
		for j := range n {
			if key[j] != first[j] {
				n = j
				break
			}
		}
	}
	return n
}

// emit hands out the rows to be written and deleted. The changes are sorted.
func (l *lot) emit(set func(key, val []byte) error, remove func(key []byte) error) error {
	if l.packed {
		var key []byte
		for val, changes := (row{}), l.list; len(changes) > 0; {
			key, changes = l.pack(&val, changes)
			if err := set(key, val); err != nil {
				return err
			}
		}
		return nil
	}
	for i := range l.list {
		c := &l.list[i]
		key := l.key(c)
		if i+1 < len(l.list) && bytes.Equal(key, l.key(&l.list[i+1])) {
			continue // what comes last holds
		}
		var err error
		if c.gone {
			err = remove(key)
		} else {
			err = set(key, l.arena[c.val:c.end])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

package projections

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/talenttrust/auditledger/ledger"
)

// Keys, all integers big-endian so that they sort:
//
//	0x00 "ledger"                    → id of the ledger that the rows are of
//	0x00 "set" id                    → set: which generation of the rows answers, which is being built
//	0x00 "cursor" id generation      → cursor of that generation
//	id generation tag …              → a row; the tags stand with each projection
//
// id is a byte that names the projection. Rows of one generation lie together, so that a second set
// can be built beside the first and the first be dropped at once.

func metaKey(name string, more ...byte) []byte {
	return append(append([]byte{0}, name...), more...)
}

// prefix is what all keys of one generation of a projection's rows start with.
type prefix [2]byte

// end is the first key behind all keys of the generation.
func (p prefix) end() []byte {
	return binary.BigEndian.AppendUint16(nil, binary.BigEndian.Uint16(p[:])+1)
}

// key starts a row's key.
func (p prefix) key(tag byte) []byte { return append(make([]byte, 0, 64), p[0], p[1], tag) }

// keyOf is the key of a row that stands under a text, and maybe numbers behind it. No text holds a zero byte.
func (p prefix) keyOf(tag byte, text string, numbers ...uint64) []byte {
	return appendNumbers(append(append(p.key(tag), text...), 0), numbers...)
}

func appendNumbers(k []byte, numbers ...uint64) []byte {
	for _, n := range numbers {
		k = binary.BigEndian.AppendUint64(k, n)
	}
	return k
}

// number reads the eight bytes that a key ends with.
func number(key []byte) uint64 { return binary.BigEndian.Uint64(key[len(key)-8:]) }

// view reads one generation of a projection's rows, in one state.
type view struct {
	prefix
	packed string // tags of the rows that are stored packed
	from   pebble.Reader
	at     cursor
}

// get returns a copy of the row under the key; nil when there is none.
func (v *view) get(key []byte) ([]byte, error) { return get(v.from, key) }

func get(from pebble.Reader, key []byte) ([]byte, error) {
	val, closer, err := from.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read a row: %w", err)
	}
	return append([]byte{}, val...), closer.Close()
}

// scan hands the rows from lower to before upper to use until it returns false, in key order or
// against it. Key and value are only valid during the call.
func (v *view) scan(ctx context.Context, lower, upper []byte, backwards bool, use func(key, val []byte) (bool, error)) error {
	begin := (*pebble.Iterator).First
	if backwards {
		begin = (*pebble.Iterator).Last
	}
	return v.walk(ctx, lower, upper, begin, backwards, use)
}

// walk is scan from where begin goes.
func (v *view) walk(ctx context.Context, lower, upper []byte, begin func(*pebble.Iterator) bool, backwards bool, use func(key, val []byte) (bool, error)) (err error) {
	it, err := v.from.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return fmt.Errorf("read rows: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	step := it.Next
	if backwards {
		step = it.Prev
	}
	more := true
	for n, ok := 0, begin(it); ok && more; n, ok = n+1, step() {
		if n%256 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if more, err = use(it.Key(), it.Value()); err != nil {
			return err
		}
	}
	return it.Error()
}

// looker reads rows by key, many with little work for each when they are asked for in order.
type looker struct {
	it    *pebble.Iterator
	asked []byte // last; the iterator stands at the first key from there on
}

func (v *view) look() (*looker, error) { return look(v.from, v.prefix) }

func look(from pebble.Reader, p prefix) (*looker, error) {
	it, err := from.NewIter(&pebble.IterOptions{LowerBound: p[:], UpperBound: p.end()})
	if err != nil {
		return nil, fmt.Errorf("read rows: %w", err)
	}
	return &looker{it: it}, nil
}

// get returns the row under the key until the next look; nil where there is none. An error shows at close.
func (l *looker) get(key []byte) []byte {
	if found, val := l.from(key); found != nil && bytes.Equal(found, key) {
		return val
	}
	return nil
}

// from returns the first row from the key on, as get does.
func (l *looker) from(key []byte) (found, val []byte) {
	ahead := bytes.Compare(l.asked, key) <= 0 && l.it.Valid()
	l.asked = append(l.asked[:0], key...)
	for range steps {
		if !ahead || bytes.Compare(l.it.Key(), key) >= 0 {
			break
		}
		ahead = l.it.Next()
	}
	if ahead = ahead && bytes.Compare(l.it.Key(), key) >= 0; !ahead && !l.it.SeekGE(key) {
		return nil, nil
	}
	return l.it.Key(), l.it.Value()
}

// steps is how far a looker goes row by row: a jump takes as long as several of them.
const steps = 8

func (l *looker) close() error { return errors.Join(l.it.Error(), l.it.Close()) }

// table is a generation of rows that is being written. It belongs to one goroutine at a time.
type table struct {
	prefix
	packed string // tags of the rows that are stored packed
	db     *pebble.DB
	err    error    // of the database, the first one: no record is to blame
	key    []byte   // scratch
	val    row      // scratch
	lots   [256]lot // what is not yet written, by tag
}

// view reads what is written of the table.
func (t *table) view(from pebble.Reader) *view {
	return &view{prefix: t.prefix, packed: t.packed, from: from}
}

func (t *table) get(key []byte) []byte {
	val, err := get(t.db, key)
	t.fail(err)
	return val
}

// manyRows is from how many rows on it is cheaper to walk to them than to look each one up.
const manyRows = 32

// getAll hands the n rows under the keys, which are in order, to those who ask for them; not where there is
// none. Where they are many, it walks over them.
func (t *table) getAll(rows iter.Seq2[[]byte, func([]byte) error], n int) {
	find, done := t.get, func() error { return nil }
	if n >= manyRows {
		l, err := look(t.db, t.prefix)
		if err != nil {
			t.fail(err)
			return
		}
		find, done = l.get, l.close
	}
	for key, use := range rows {
		if val := find(key); val != nil {
			t.fail(use(val))
		}
	}
	t.fail(done())
}

// put writes a row. What is put or deleted last under a key holds.
func (t *table) put(key, val []byte) { t.change(key, val, false) }

func (t *table) delete(key []byte) { t.change(key, nil, true) }

func (t *table) change(key, val []byte, gone bool) {
	tag := key[len(t.prefix)]
	l := &t.lots[tag]
	if len(l.list) == 0 {
		l.packed = strings.IndexByte(t.packed, tag) >= 0
	}
	l.add(key, val, gone)
}

// putAll puts and deletes what the batch does.
func (t *table) putAll(b *pebble.Batch) {
	for r := b.Reader(); ; {
		kind, key, val, ok, err := r.Next()
		if t.fail(err); !ok {
			return
		}
		if kind == pebble.InternalKeyKindDelete {
			t.delete(key)
		} else {
			t.put(key, val)
		}
	}
}

// size is how many bytes the changes are.
func (t *table) size() (n int) {
	for i := range t.lots {
		n += len(t.lots[i].arena)
	}
	return n
}

func (t *table) forget(more bool) {
	for i := range t.lots {
		t.lots[i].forget(more)
	}
}

func (t *table) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// row is a row's value under construction: variable-length integers, texts after their length, hashes.
type row []byte

func (r *row) num(v int64)           { *r = binary.AppendVarint(*r, v) }
func (r *row) hash(h *ledger.Hash)   { *r = append(*r, h[:]...) }
func (r *row) pos(p ledger.Position) { *r = binary.AppendUvarint(*r, uint64(p)) }

func (r *row) text(s string) {
	*r = binary.AppendUvarint(*r, uint64(len(s)))
	*r = append(*r, s...)
}

// fields takes a row's values off its front, in the order in which row wrote them.
type fields struct {
	b   []byte
	bad bool // a value was not there
}

func (f *fields) take(n int) []byte {
	if f.bad || n < 0 || n > len(f.b) {
		f.b, f.bad = nil, true
		return nil
	}
	taken := f.b[:n]
	f.b = f.b[n:]
	return taken
}

func (f *fields) byte() byte {
	if b := f.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (f *fields) num() int64 {
	v, n := binary.Varint(f.b)
	f.took(n)
	return v
}

func (f *fields) pos() ledger.Position {
	v, n := binary.Uvarint(f.b)
	f.took(n)
	return ledger.Position(v)
}

// took takes what package binary says it read; nothing is wrong.
func (f *fields) took(n int) {
	if n == 0 {
		n = -1
	}
	f.take(n)
}

// text is valid as long as the row is.
func (f *fields) text() []byte {
	n := f.pos()
	if n > ledger.Position(len(f.b)) {
		n = ledger.Position(len(f.b)) + 1
	}
	return f.take(int(n))
}

func (f *fields) hash(h *ledger.Hash) { copy(h[:], f.take(len(h))) }

// end reports whether exactly all was taken.
func (f *fields) end() error {
	if f.bad || len(f.b) != 0 {
		return errors.New("a row is too short or too long")
	}
	return nil
}

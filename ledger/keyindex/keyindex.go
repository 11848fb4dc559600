// Package keyindex finds an event's key, a stream's head and a record's position by stream and
// revision, without reading the ledger.
//
// It is derived: everything in it comes from the ledger's records, and each stream is complete up to
// its head. Records come in one of two ways. Apply takes them in ledger order. Extend takes the
// records of each stream in their order, whoever read them first, and Advance then says up to where
// all of the ledger is in. The newest entries are in memory, in a table that becomes read-only when it
// is full and is then written to Pebble in one batch together with the cursor; a kill loses the
// newest entries, streams go back to an earlier head, and the cursor says from where to read again.
//
// A caller that must act on the very latest state asks outside its critical section (Key, Head) and
// there only checks what is newer (KeySince, HeadSince): a map lookup, unless the answer has become
// older than what memory holds.
//
// Pebble keys, all integers big-endian:
//
//	c                              → cursor, 8 bytes; where Extend was used, behind it the highest position that is in, 8 bytes, and the leaf hash there
//	h stream                       → head
//	s stream 0x00 revision(8)      → positions of this revision and of those behind it that came with it
//	k contractId 0x00 sequence(8) eventId → the key's newest generation
//
// A contract's entries stand together, in the order in which they usually come.
package keyindex

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/talenttrust/auditledger/ledger"
)

// Config is where an Index is and how much it keeps in memory.
type Config struct {
	Dir     string
	Table   int           // records in memory before they are written; 50,000 when 0. Up to twice as many are held
	Every   time.Duration // records wait at most this long; 5 s when 0
	Durable int           // records between two flushes of the database to disk; 500,000 when 0
	Logger  *slog.Logger
	Fatal   func(error) // see DBConfig
}

// Version counts what was added to an Index since it was opened: how new an answer of it is.
type Version uint64

// Index is safe for concurrent use; Apply is for one goroutine at a time, and so is Advance.
type Index struct {
	c  Config
	db *pebble.DB

	open   sync.RWMutex // held for reading while the database is read; guards closed
	closed bool

	mu       sync.RWMutex // guards all below
	cursor   ledger.Position
	top      Top             // from Extend
	saved    ledger.Position // cursor that was written last
	version  Version
	floor    Version // up to here, entries may have left memory
	active   *table
	writing  *table // being written to Pebble, or nil
	heads    cache  // of streams that are not in a table
	failed   error
	room     *sync.Cond // writing became nil
	wake     chan struct{}
	stop     chan struct{}
	finished chan struct{}
}

// table holds what was applied since the last one.
type table struct {
	records int
	cursor  ledger.Position // of the index when the table became read-only, as the next two
	top     Top
	version Version
	entries []entry // of accepted events
	streams map[string]*run
}

// entry is what is kept of an accepted event.
type entry struct {
	key   ledger.Key
	found ledger.Found
}

// run is the newest part of a stream.
type run struct {
	head      ledger.StreamHead
	before    int64 // highest sequence in the stream before the run
	first     int64 // revision of positions[0]
	positions []ledger.Position
	entries   []int32              // of the run's accepted events, indexes into the table's
	newest    map[ledger.Key]int32 // of each key, an index as those; nil while each key of entries is above the one before
}

// newTable makes room for about as much as the table before came to hold.
func newTable(before *table) *table {
	if before == nil {
		before = &table{}
	}
	return &table{entries: make([]entry, 0, len(before.entries)), streams: make(map[string]*run, len(before.streams))}
}

// Open opens or creates the index in c.Dir and starts its writing goroutine.
func Open(c Config) (*Index, error) {
	if c.Table == 0 {
		c.Table = 50_000
	}
	if c.Every == 0 {
		c.Every = 5 * time.Second
	}
	if c.Durable == 0 {
		c.Durable = 500_000
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	db, err := OpenDB(DBConfig{Dir: c.Dir, Logger: c.Logger, Fatal: c.Fatal})
	if err != nil {
		return nil, fmt.Errorf("key index: %w", err)
	}
	x := &Index{c: c, db: db, active: newTable(nil), heads: newCache(), wake: make(chan struct{}, 1), stop: make(chan struct{}), finished: make(chan struct{})}
	x.room = sync.NewCond(&x.mu)
	if err = x.loadCursor(); err != nil {
		return nil, errors.Join(derived(c.Dir, err), db.Close())
	}
	go x.write()
	return x, nil
}

func (x *Index) loadCursor() error {
	v, err := x.get(cursorKey)
	if err != nil || v == nil {
		return err
	}
	if len(v) != 8 && len(v) != 16+len(x.top.Leaf) {
		return fmt.Errorf("key index %s: the cursor has %d bytes", x.c.Dir, len(v))
	}
	x.cursor = ledger.Position(binary.BigEndian.Uint64(v))
	x.saved = x.cursor
	if v = v[8:]; len(v) > 0 {
		x.top.Position = ledger.Position(binary.BigEndian.Uint64(v))
		copy(x.top.Leaf[:], v[8:])
	}
	return nil
}

// Cursor is the position up to which all of the ledger is in the index.
func (x *Index) Cursor() ledger.Position {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.cursor
}

// Applied is one record's part of the index.
type Applied struct {
	Position ledger.Position
	Stream   string
	Head     ledger.StreamHead // of Stream, after the record
	Before   int64             // highest sequence in Stream before the record
	Accepted bool              // the record is an accepted event: Key and Found are set
	Key      ledger.Key
	Found    ledger.Found
}

// Of is a record's part of the index, given its stream's head before it.
func Of(r *ledger.Record, before ledger.StreamHead) Applied {
	a := Applied{Position: r.Position, Stream: r.Header.Stream, Head: before.After(r), Before: before.HighestSequence}
	if r.Header.Type == ledger.EventAccepted {
		a.Accepted, a.Key, a.Found = true, r.Header.Key(), ledger.FoundIn(r)
	}
	return a
}

// Apply adds records, which follow the cursor without a gap. It waits while the table before the
// present one is still being written, so that memory stays bounded.
func (x *Index) Apply(records []Applied) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range records {
		x.add(&records[i])
		x.cursor = records[i].Position
	}
	return x.failed
}

// add puts a record into the active table, when there is room. It is called with mu held, and lets go
// of it while it waits.
func (x *Index) add(a *Applied) {
	for x.active.records >= x.c.Table && x.writing != nil && x.failed == nil {
		x.room.Wait()
	}
	if x.active.records >= x.c.Table {
		x.turn()
	}
	x.active.add(a)
	x.version++
}

// turn hands the active table to the writing goroutine. It is called with mu held and writing nil.
func (x *Index) turn() {
	if x.active.records == 0 && x.cursor == x.saved || x.failed != nil {
		return
	}
	x.active.cursor, x.active.top, x.active.version = x.cursor, x.top, x.version
	x.writing, x.active, x.saved = x.active, newTable(x.active), x.cursor
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

func (t *table) add(a *Applied) {
	t.records++
	r := t.streams[a.Stream]
	if r == nil {
		r = &run{first: a.Head.Revision, before: a.Before}
		t.streams[a.Stream] = r
	}
	r.head = a.Head
	r.positions = append(r.positions, a.Position)
	if a.Accepted {
		n := int32(len(t.entries))
		t.entries = append(t.entries, entry{a.Key, a.Found})
		t.enter(r, n)
	}
}

// enter adds an accepted event to its run. Most come in the order of their keys, and need no map to be found.
func (t *table) enter(r *run, n int32) {
	if last := len(r.entries) - 1; r.newest == nil && last >= 0 && compareKeys(&t.entries[r.entries[last]].key, &t.entries[n].key) >= 0 {
		r.newest = make(map[ledger.Key]int32, 2*len(r.entries))
		for _, n := range r.entries {
			r.newest[t.entries[n].key] = n
		}
	}
	if r.newest != nil {
		r.newest[t.entries[n].key] = n
	}
	r.entries = append(r.entries, n)
}

// find is the newest generation of a key in its run.
func (t *table) find(r *run, k *ledger.Key) (found ledger.Found, ok bool) {
	if r.newest != nil {
		n, ok := r.newest[*k]
		if ok {
			found = t.entries[n].found
		}
		return found, ok
	}
	i, ok := slices.BinarySearchFunc(r.entries, k, func(n int32, k *ledger.Key) int { return compareKeys(&t.entries[n].key, k) })
	if ok {
		found = t.entries[r.entries[i]].found
	}
	return found, ok
}

// Key finds the newest generation of a key. asOf says how new the answer is, for KeySince.
func (x *Index) Key(k ledger.Key) (found ledger.Found, asOf Version, err error) {
	x.mu.RLock()
	asOf = x.version
	found, ok := x.keyInMemory(k)
	x.mu.RUnlock()
	if ok {
		return found, asOf, nil
	}
	found, err = x.storedKey(keyOf(k))
	return found, asOf, err
}

// storedKey finds what the database has under a key.
func (x *Index) storedKey(key []byte) (found ledger.Found, err error) {
	v, err := x.get(key)
	if err != nil || v == nil {
		return found, err
	}
	return decodeFound(v)
}

// manyKeys is from how many keys on it is cheaper to go through the database in order than to look each one up.
const manyKeys = 256

// Keys is Key for many keys.
func (x *Index) Keys(keys []ledger.Key) ([]ledger.Found, error) {
	found := make([]ledger.Found, len(keys))
	var rest []wanted
	x.mu.RLock()
	for i, k := range keys {
		var ok bool
		if found[i], ok = x.keyInMemory(k); !ok {
			rest = append(rest, wanted{keyOf(k), &found[i]})
		}
	}
	x.mu.RUnlock()
	if len(rest) >= manyKeys {
		return found, x.passBy(rest)
	}
	for _, w := range rest {
		var err error
		if *w.found, err = x.storedKey(w.key); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// wanted is a key of the database and where what is found under it belongs.
type wanted struct {
	key   []byte
	found *ledger.Found
}

// passBy looks for keys in their order.
func (x *Index) passBy(want []wanted) (err error) {
	slices.SortFunc(want, func(a, b wanted) int { return bytes.Compare(a.key, b.key) })
	it, done, err := x.rows([]byte{'k'}, []byte{'k' + 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	at := false // it stands at a key
	for _, w := range want {
		for steps := 0; at && steps < manySteps && bytes.Compare(it.Key(), w.key) < 0; steps++ {
			at = it.Next()
		}
		if !at || bytes.Compare(it.Key(), w.key) < 0 {
			at = it.SeekGE(w.key)
		}
		if !at || !bytes.Equal(it.Key(), w.key) {
			continue
		}
		if *w.found, err = decodeFound(it.Value()); err != nil {
			return err
		}
	}
	return nil
}

// manySteps is how many keys are passed by one after the other: a jump takes as long.
const manySteps = 64

// KeySince is Key now, given what it answered before.
func (x *Index) KeySince(k ledger.Key, found ledger.Found, asOf Version) (ledger.Found, error) {
	x.mu.RLock()
	newer, ok := x.keyInMemory(k)
	stale := asOf < x.floor
	x.mu.RUnlock()
	switch {
	case ok:
		return newer, nil
	case stale:
		found, _, err := x.Key(k)
		return found, err
	}
	return found, nil
}

// keyInMemory reports whether memory knows the answer: it has the key, or all that the stream has from
// its sequence on.
func (x *Index) keyInMemory(k ledger.Key) (ledger.Found, bool) {
	stream := k.Stream()
	var oldest *run
	for _, t := range [...]*table{x.active, x.writing} {
		if t == nil {
			continue
		}
		r := t.streams[stream]
		if r == nil {
			continue
		}
		if found, ok := t.find(r, &k); ok {
			return found, true
		}
		oldest = r
	}
	return ledger.Found{}, oldest != nil && k.Sequence > oldest.before
}

// Head finds the head of a stream. asOf says how new the answer is, for HeadSince.
func (x *Index) Head(stream string) (head ledger.StreamHead, asOf Version, err error) {
	x.mu.RLock()
	asOf = x.version
	head, ok := x.headInMemory(stream)
	if !ok {
		head, ok = x.heads.get(stream)
	}
	x.mu.RUnlock()
	if ok {
		return head, asOf, nil
	}
	head = ledger.EmptyStream
	v, err := x.get(headKey(stream))
	if err != nil {
		return head, asOf, err
	}
	if v != nil {
		if head, err = decodeHead(v); err != nil {
			return head, asOf, err
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if asOf >= x.floor { // else a newer head may have left memory while this one was read
		x.heads.put(stream, head)
	}
	return head, asOf, nil
}

// HeadSince is Head now, given what it answered before.
func (x *Index) HeadSince(stream string, head ledger.StreamHead, asOf Version) (ledger.StreamHead, error) {
	x.mu.RLock()
	newer, ok := x.headInMemory(stream)
	stale := asOf < x.floor
	x.mu.RUnlock()
	switch {
	case ok:
		return newer, nil
	case stale:
		head, _, err := x.Head(stream)
		return head, err
	}
	return head, nil
}

func (x *Index) headInMemory(stream string) (ledger.StreamHead, bool) {
	if r := x.active.streams[stream]; r != nil {
		return r.head, true
	}
	if x.writing != nil {
		if r := x.writing.streams[stream]; r != nil {
			return r.head, true
		}
	}
	return ledger.StreamHead{}, false
}

// At finds the position of a stream's record. ok is false when there is no such record.
func (x *Index) At(stream string, revision int64) (at ledger.Position, ok bool, err error) {
	if revision < 0 {
		return 0, false, nil
	}
	x.mu.RLock()
	at, ok = x.positionInMemory(stream, revision)
	x.mu.RUnlock()
	if ok {
		return at, true, nil
	}
	return x.storedPosition(stream, revision)
}

// storedPosition finds the row that begins at the revision or before it.
func (x *Index) storedPosition(stream string, revision int64) (at ledger.Position, ok bool, err error) {
	it, done, err := x.rows(positionKey(stream, 0), positionKey(stream, revision+1))
	if err != nil {
		return 0, false, err
	}
	defer func() { err = errors.Join(err, done()) }()
	if !it.Last() {
		return 0, false, nil
	}
	first := binary.BigEndian.Uint64(it.Key()[len(it.Key())-8:])
	at, ok, err = decodePosition(it.Value(), uint64(revision)-first)
	if err != nil {
		err = fmt.Errorf("positions of %s from revision %d: %w", stream, first, err)
	}
	return at, ok, err
}

func (x *Index) positionInMemory(stream string, revision int64) (ledger.Position, bool) {
	for _, t := range []*table{x.active, x.writing} {
		if t == nil {
			continue
		}
		if r := t.streams[stream]; r != nil && revision >= r.first && revision-r.first < int64(len(r.positions)) {
			return r.positions[revision-r.first], true
		}
	}
	return 0, false
}

// write is the goroutine that owns writing to Pebble.
func (x *Index) write() {
	defer close(x.finished)
	tick := time.NewTicker(x.c.Every)
	defer tick.Stop()
	sinceFlush := 0
	for {
		select {
		case <-x.wake:
		case <-tick.C:
			x.mu.Lock()
			if x.writing == nil {
				x.turn()
			}
			x.mu.Unlock()
		case <-x.stop:
			return
		}
		n, err := x.writeTable()
		if err != nil {
			x.fail(err)
			return
		}
		if sinceFlush += n; sinceFlush >= x.c.Durable {
			sinceFlush = 0
			if _, err := x.db.AsyncFlush(); err != nil {
				x.fail(err)
				return
			}
		}
	}
}

func (x *Index) fail(err error) {
	x.mu.Lock()
	x.failed = fmt.Errorf("write key index: %w", err)
	x.room.Broadcast()
	x.mu.Unlock()
	x.c.Logger.Error("the key index stopped", "error", err)
	if x.c.Fatal != nil {
		x.c.Fatal(x.failed)
	}
}

// writeTable writes the table that waits, if any: rows and cursor in one batch.
func (x *Index) writeTable() (int, error) {
	x.mu.RLock()
	t := x.writing
	x.mu.RUnlock()
	if t == nil {
		return 0, nil
	}
	b := x.db.NewBatchWithSize(t.records * 220)
	defer b.Close()
	if err := t.writeTo(b); err != nil {
		return 0, err
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		return 0, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.writing, x.floor = nil, t.version
	for s, r := range t.streams {
		x.heads.put(s, r.head)
	}
	x.room.Broadcast()
	return t.records, nil
}

// writeTo writes the table's entries in the order of their keys, which the database takes much faster.
func (t *table) writeTo(b *pebble.Batch) error {
	var buf []byte
	cursor := binary.BigEndian.AppendUint64(nil, uint64(t.cursor))
	if t.top.Position > 0 {
		cursor = binary.BigEndian.AppendUint64(cursor, uint64(t.top.Position))
		cursor = append(cursor, t.top.Leaf[:]...)
	}
	err := b.Set(cursorKey, cursor, nil)
	streams := slices.Sorted(maps.Keys(t.streams))
	for _, s := range streams {
		buf = appendHead(buf[:0], t.streams[s].head)
		err = errors.Join(err, b.Set(headKey(s), buf, nil))
	}
	for _, s := range streams { // an event's contract is its stream's, and sorts as it does
		for _, n := range t.sorted(t.streams[s]) {
			e := &t.entries[n]
			buf = appendFound(buf[:0], &e.found)
			err = errors.Join(err, b.Set(keyOf(e.key), buf, nil))
		}
	}
	for _, s := range streams {
		r := t.streams[s]
		for from := 0; from < len(r.positions); from += maxPositions {
			part := r.positions[from:min(from+maxPositions, len(r.positions))]
			buf = appendPositions(buf[:0], part)
			err = errors.Join(err, b.Set(positionKey(s, r.first+int64(from)), buf, nil))
		}
	}
	return err
}

// sorted is a run's entries in the order of their keys, a key's generations as they came.
func (t *table) sorted(r *run) []int32 {
	if r.newest == nil {
		return r.entries // and they stay as they are: find may be looking at them
	}
	slices.SortFunc(r.entries, func(a, b int32) int {
		if c := compareKeys(&t.entries[a].key, &t.entries[b].key); c != 0 {
			return c
		}
		return cmp.Compare(a, b)
	})
	return r.entries
}

var errClosed = errors.New("the key index is closed")

// Close writes what is in memory and closes the database. Whoever asks for what is there from then on gets an error.
func (x *Index) Close() error {
	x.open.Lock()
	again := x.closed
	x.closed = true
	x.open.Unlock()
	if again {
		return nil
	}
	close(x.stop)
	<-x.finished
	err := x.flush()
	x.mu.Lock()
	x.failed = errors.Join(x.failed, errClosed)
	x.room.Broadcast()
	x.mu.Unlock()
	return errors.Join(err, x.db.Close())
}

// flush makes all that was applied durable. The writing goroutine must have stopped.
func (x *Index) flush() error {
	if _, err := x.writeTable(); err != nil {
		return err
	}
	x.mu.Lock()
	x.turn()
	err := x.failed
	x.mu.Unlock()
	if err != nil {
		return err
	}
	if _, err := x.writeTable(); err != nil {
		return err
	}
	return Flush(x.db)
}

// rows is the database from a key to before another. done must be called, and says what went wrong on the way.
func (x *Index) rows(from, to []byte) (it *pebble.Iterator, done func() error, err error) {
	x.open.RLock()
	if x.closed {
		x.open.RUnlock()
		return nil, nil, errClosed
	}
	if it, err = x.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to}); err != nil {
		x.open.RUnlock()
		return nil, nil, fmt.Errorf("read key index: %w", err)
	}
	return it, func() error {
		defer x.open.RUnlock()
		return it.Close() // with what went wrong before
	}, nil
}

func (x *Index) get(key []byte) ([]byte, error) {
	x.open.RLock()
	defer x.open.RUnlock()
	if x.closed {
		return nil, errClosed
	}
	v, closer, err := x.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read key index: %w", err)
	}
	defer closer.Close()
	return slices.Clone(v), nil
}

// Package projections keeps what people read of a ledger: the history of each contract, numbers, a
// list of contracts and findings. It follows the ledger and folds its records, in order, into the
// rows of four projections; the Query type is the one way to read them.
//
//	history    every accepted and every rejected event, by position and by contract
//	stats      how many of what, per hour and over all
//	contracts  what is known of each contract as a whole
//	findings   gaps, reused sequences, conflicts and what else an auditor should look at
//
// # Guarantees
//
// Rows are a function of the records up to the projection's cursor and of nothing else: no clock and
// no configuration. The same records give the same rows and the same Digest, followed live, after a
// crash or built anew. Rows and cursor change together, for all projections at once, so that a query
// sees one state, and every crash leaves a right one.
//
// # Failure
//
// The rows are derived: losing the folder costs the time to read the ledger again. A record that a
// projection cannot take in stops that projection before it, visibly, and no other. Rows that another
// version of the program wrote are dropped and built again. Rebuild builds a second set of rows beside
// the one that answers, and swaps them when both are at the same record.
//
// The database (Pebble) has no log of its own. It is flushed to disk every few seconds and at Close;
// after a kill the ledger is followed again from the last flush.
package projections

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/keyindex"
)

// Reader is the part of a ledger.Store that projections use: what is stored, and where a key is.
type Reader interface {
	ledger.Reader
	Find(ctx context.Context, keys []ledger.Key) ([]ledger.Found, error)
}

// Config is where the projections are and what they follow.
type Config struct {
	Dir     string
	Reader  Reader           // any ledger.Store; it must stay open until Close
	Pending func() int64     // repeats that are counted but not stored yet; they are lag. nil: none
	Now     func() time.Time // time.Now when nil
	Logger  *slog.Logger     // slog.Default() when nil
	Fatal   func(error)      // called when the database cannot go on; the caller shuts down
}

const (
	flushEvery   = 30 * time.Second
	flushRecords = 500_000
	saveEvery    = 250 * time.Millisecond // how often it is seen to that records that come slowly are written
	slow         = 5000                   // records in that time
	firstRetry   = 100 * time.Millisecond
	lastRetry    = 10 * time.Second
	memTable     = 32 << 20  // bytes of new rows in memory
	cacheBytes   = 128 << 20 // of the database; it takes what two of those tables need from this
	gather       = 131_072   // records that are written at once where so many wait: rows that many of them change are written once
	gatherBytes  = 64 << 20  // of their rows, likewise
	busy         = 500       // records at once from which more are waited for: the same again
	breath       = 100 * time.Millisecond
	behindMuch   = 10_000 // records of lag from which a projection is said to be catching up
	waitAtMost   = 2 * time.Second
)

// projection is one of the read models: its name, and how its rows come to be.
type projection struct {
	name    string
	id      byte // in keys
	version int  // of its rows; rows of another version are built anew
	open    func(*table) folder
	packs   string // tags of its rows that are stored packed
}

// folder takes records in. It belongs to one goroutine at a time.
type folder interface {
	// prepare is told which records will be folded next, to read what it will need all at once.
	prepare(recs []ledger.Record)
	// fold takes one record in. It may change rows of the table. An error is the record's fault.
	fold(r *ledger.Record) error
	// finish changes the rows that several of the folded records change. What comes of it must not
	// depend on how records were divided into batches.
	finish()
}

func shipped() []projection {
	return []projection{
		{"history", 'h', 2, newHistory, string([]byte{tagEntry, tagLine})},
		{"stats", 's', 1, newStats, ""},
		{"contracts", 'c', 1, newContracts, ""},
		{"findings", 'f', 2, newFindings, ""},
	}
}

// cursor says up to which record rows are complete, and of which version they are.
type cursor struct {
	version    int
	position   ledger.Position
	records    int64 // taken in so far
	recordedAt int64 // of the last one
}

func (c *cursor) append(b *row) {
	b.num(int64(c.version))
	b.pos(c.position)
	b.num(c.records)
	b.num(c.recordedAt)
}

func decodeCursor(b []byte) (cursor, error) {
	f := fields{b: b}
	c := cursor{int(f.num()), f.pos(), f.num(), f.num()}
	return c, f.end()
}

// after is the cursor behind the records.
func (c cursor) after(recs []ledger.Record) cursor {
	if n := len(recs); n > 0 {
		c.position, c.recordedAt = recs[n-1].Position, recs[n-1].Header.RecordedAt
		c.records += int64(n)
	}
	return c
}

// set says which generations of a projection's rows there are; 0 is none.
type set struct{ active, building byte }

// rows is one generation of a projection's rows and who writes it. Who changes it holds applying,
// and mu as well for what States shows of it: at, failure and joined.
type rows struct {
	projection
	table
	folder  folder   // what it remembers is not older than next
	at      cursor   // of what is written
	next    cursor   // of what is folded
	early   *tables  // of some of what is folded, begun before the rest; nil: none
	counts  int64    // of repeats, in what is folded and not written: one record may change many rows
	failure *Failure // it takes no more records in
	joined  bool     // it is in the group that follows together
	dropped bool     // its rows are gone
}

// Projections follow a ledger. Run must be running for them to do so.
type Projections struct {
	c          Config
	db         *pebble.DB
	files      vfs.FS // of the database
	gather     int64  // see there
	tableItems int    // see there
	ledgerID   string
	first      ledger.Position // of the ledger; 1 where positions count records
	known      []projection

	sets map[string]*pair

	using  sync.Mutex // guards closed
	closed bool
	users  sync.WaitGroup // of the database, from outside of Run

	jobs  chan *rows    // to be brought up to the others
	flush chan struct{} // many records were taken in

	applying sync.Mutex // held while rows change; guards the next four
	unsaved  int64      // records since the last flush
	begun    int64      // tables, so that each has a name of its own
	group    []*rows    // follow together
	next     tip        // up to which records are folded into the group

	mu     sync.RWMutex  // guards all below and what is in the pairs; taken after applying
	at     tip           // of the group; changes with applying held too
	broken bool          // the ledger cannot be followed for now
	moved  chan struct{} // closed when a cursor moves, or other rows answer
}

// tip is a cursor, and how the ledger was when the record there was read.
type tip struct {
	cursor
	head   ledger.Position
	behind int64 // records between the cursor and head, as far as they are known
}

// pair is a projection's rows that answer and those that are being built, nil for none. It changes
// with applying and mu held.
type pair struct {
	projection
	active, building *rows
}

// Open opens or creates the projections in c.Dir. Errors are a folder in use or unreadable, one of
// another ledger, and ledger.ErrBeyondHead when the ledger has lost records that were seen.
func Open(ctx context.Context, c Config) (*Projections, error) { return open(ctx, c, shipped()) }

func open(ctx context.Context, c Config, known []projection) (*Projections, error) {
	if c.Dir == "" {
		return nil, errors.New("projections: no folder given")
	}
	c = c.complete()
	db, err := keyindex.OpenDB(keyindex.DBConfig{Dir: c.Dir, MemTable: memTable, Cache: cacheBytes, Logger: c.Logger, Fatal: c.Fatal})
	if err != nil {
		return nil, fmt.Errorf("projections: %w", err)
	}
	p := newProjections(c, known, db)
	if err := p.load(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("projections in %s: %w", c.Dir, err), db.Close())
	}
	return p, nil
}

// complete fills in what is not set.
func (c Config) complete() Config {
	if c.Pending == nil {
		c.Pending = func() int64 { return 0 }
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func newProjections(c Config, known []projection, db *pebble.DB) *Projections {
	return &Projections{
		c: c, known: known, db: db, files: keyindex.Files, gather: gather, tableItems: tableItems, jobs: make(chan *rows, 4*len(known)), flush: make(chan struct{}, 1),
		sets: map[string]*pair{}, moved: make(chan struct{}),
	}
}

// load reads what is there of each projection and makes what is not.
func (p *Projections) load(ctx context.Context) error {
	dir := filepath.Join(p.c.Dir, tablesDir)
	if err := errors.Join(p.files.RemoveAll(dir), p.files.MkdirAll(dir, 0o700)); err != nil {
		return err
	}
	first, err := ledger.First(ctx, p.c.Reader)
	if err != nil {
		return err
	}
	p.ledgerID, p.first = first.Leaf.String(), first.Position
	id, err := get(p.db, metaKey("ledger"))
	if err != nil {
		return err
	}
	if id != nil && string(id) != p.ledgerID {
		return fmt.Errorf("they are of ledger %s, not of %s", id, p.ledgerID)
	}
	head, err := p.c.Reader.Head(ctx)
	if err != nil {
		return fmt.Errorf("read the head of the ledger: %w", err)
	}
	b := p.db.NewBatch()
	defer b.Close()
	if err := b.Set(metaKey("ledger"), []byte(p.ledgerID), nil); err != nil {
		return err
	}
	for _, known := range p.known {
		pair, err := p.loadPair(b, known)
		if err != nil {
			return fmt.Errorf("%s: %w", known.name, err)
		}
		if at := pair.active.at.position; at > head {
			return fmt.Errorf("%s has taken in position %s, but the ledger ends at %s: it lost records, or this folder is another ledger's; delete the folder where that is as it should be, all in it is built anew: %w", known.name, at, head, ledger.ErrBeyondHead)
		}
		p.sets[known.name] = pair
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("write the first rows: %w", err)
	}
	p.assemble(head)
	return nil
}

// assemble decides who follows together, those that are ahead, and sends the others after them.
func (p *Projections) assemble(head ledger.Position) {
	for _, known := range p.known {
		if a := p.sets[known.name].active; a.at.position >= p.at.position {
			p.at.cursor = a.at
		}
	}
	p.at.head = head
	p.next = p.at
	for _, known := range p.known {
		pair := p.sets[known.name]
		if pair.active.at.position == p.at.position {
			p.join(pair.active)
		} else {
			p.jobs <- pair.active
		}
		if pair.building != nil {
			p.jobs <- pair.building
		}
	}
}

// join makes the rows part of the group. It is called with applying held.
func (p *Projections) join(r *rows) {
	p.group = append(p.group, r)
	p.mu.Lock()
	defer p.mu.Unlock()
	r.joined = true
}

func (p *Projections) loadPair(b *pebble.Batch, known projection) (*pair, error) {
	s := set{active: 1}
	val, err := get(p.db, metaKey("set", known.id))
	if err != nil {
		return nil, err
	}
	if len(val) == 2 {
		s = set{val[0], val[1]}
	}
	pair := &pair{projection: known}
	if pair.active, err = p.loadRows(b, known, s.active); err == nil && s.building != 0 {
		pair.building, err = p.loadRows(b, known, s.building)
	}
	if err != nil {
		return nil, err
	}
	return pair, b.Set(metaKey("set", known.id), []byte{s.active, s.building}, nil)
}

// loadRows reads the cursor of a generation. Without one of this version the rows begin anew.
func (p *Projections) loadRows(b *pebble.Batch, known projection, generation byte) (*rows, error) {
	r := p.newRows(known, generation)
	val, err := get(p.db, metaKey("cursor", r.prefix[:]...))
	if err != nil {
		return nil, err
	}
	if at, err := decodeCursor(val); val != nil && err == nil && at.version == known.version {
		r.at, r.next = at, at
		return r, nil
	}
	if err := b.DeleteRange(r.prefix[:], r.prefix.end(), nil); err != nil {
		return nil, err
	}
	return r, r.saveCursor(b, r.at)
}

func (p *Projections) newRows(known projection, generation byte) *rows {
	start := cursor{version: known.version}
	return &rows{projection: known, table: table{prefix: prefix{known.id, generation}, packed: known.packs, db: p.db}, at: start, next: start}
}

func (r *rows) saveCursor(b *pebble.Batch, at cursor) error {
	key, val := r.cursorRow(at)
	return b.Set(key, val, nil)
}

func (r *rows) cursorRow(at cursor) (key, val []byte) {
	var v row
	at.append(&v)
	return metaKey("cursor", r.prefix[:]...), v
}

// Close waits for those who read, writes everything to disk and releases the folder. Run must have returned. Whoever
// asks for something from then on gets an error; once more, Close does nothing.
func (p *Projections) Close() error {
	p.using.Lock()
	again := p.closed
	p.closed = true
	p.using.Unlock()
	if p.users.Wait(); again {
		return nil
	}
	return errors.Join(keyindex.Flush(p.db), p.db.Close())
}

// use keeps the database open until done is called.
func (p *Projections) use() (done func(), err error) {
	p.using.Lock()
	defer p.using.Unlock()
	if p.closed {
		return nil, errors.New("the projections are closed")
	}
	p.users.Add(1)
	return p.users.Done, nil
}

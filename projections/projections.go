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
	"iter"
	"log/slog"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/sync/errgroup"

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
	flushEvery   = 5 * time.Second
	flushRecords = 200_000
	firstRetry   = 100 * time.Millisecond
	lastRetry    = 10 * time.Second
	gather       = 8192   // records that are taken in at once where so many wait: rows that many of them change are written once
	behindMuch   = 10_000 // records of lag from which a projection is said to be catching up
	waitAtMost   = 2 * time.Second
)

// projection is one of the read models: its name, and how its rows come to be.
type projection struct {
	name    string
	id      byte // in keys
	version int  // of its rows; rows of another version are built anew
	open    func(*table) folder
}

// folder takes records in. It belongs to one goroutine at a time.
type folder interface {
	// fold takes one record in. It may change rows of the table. An error is the record's fault.
	fold(r *ledger.Record) error
	// finish changes the rows that several of the folded records change. What comes of it must not
	// depend on how records were divided into batches.
	finish()
}

func shipped() []projection {
	return []projection{
		{"history", 'h', 1, newHistory},
		{"stats", 's', 1, newStats},
		{"contracts", 'c', 1, newContracts},
		{"findings", 'f', 1, newFindings},
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
	folder  folder
	at      cursor
	next    cursor   // once the batch at hand is written
	failure *Failure // it takes no more records in
	joined  bool     // it is in the group that follows together
	dropped bool     // its rows are gone
}

// Projections follow a ledger. Run must be running for them to do so.
type Projections struct {
	c        Config
	db       *pebble.DB
	ledgerID string
	known    []projection

	sets map[string]*pair

	jobs  chan *rows    // to be brought up to the others
	flush chan struct{} // many records were taken in

	applying sync.Mutex // held while rows change; guards the next two
	unsaved  int64      // records since the last flush
	group    []*rows    // follow together

	mu     sync.RWMutex    // guards all below and what is in the pairs; taken after applying
	at     cursor          // of the group; changes with applying held too
	seen   ledger.Position // head of the ledger when the last batch was read
	behind int64           // records between at and seen
	broken bool            // the ledger cannot be followed for now
	moved  chan struct{}   // closed when a cursor moves
}

// pair is a projection's rows that answer and those that are being built, nil for none. It changes
// with applying and mu held.
type pair struct {
	id               byte
	active, building *rows
}

// Open opens or creates the projections in c.Dir. Errors are a folder in use or unreadable, one of
// another ledger, and ledger.ErrBeyondHead when the ledger has lost records that were seen.
func Open(ctx context.Context, c Config) (*Projections, error) { return open(ctx, c, shipped()) }

func open(ctx context.Context, c Config, known []projection) (*Projections, error) {
	if c.Pending == nil {
		c.Pending = func() int64 { return 0 }
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	p := &Projections{
		c: c, known: known, jobs: make(chan *rows, 4*len(known)), flush: make(chan struct{}, 1),
		sets: map[string]*pair{}, moved: make(chan struct{}),
	}
	var err error
	if p.ledgerID, err = ledger.ID(ctx, c.Reader); err != nil {
		return nil, fmt.Errorf("projections: %w", err)
	}
	if p.db, err = keyindex.OpenDB(keyindex.DBConfig{Dir: c.Dir, Logger: c.Logger, Fatal: c.Fatal}); err != nil {
		return nil, fmt.Errorf("projections: %w", err)
	}
	if err := p.load(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("projections in %s: %w", c.Dir, err), p.db.Close())
	}
	return p, nil
}

// load reads what is there of each projection and makes what is not.
func (p *Projections) load(ctx context.Context) error {
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
			return fmt.Errorf("%s has taken in position %s, but the ledger ends at %s: it lost records, or this folder is another ledger's: %w", known.name, at, head, ledger.ErrBeyondHead)
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
			p.at = a.at
		}
	}
	p.seen, p.behind = head, int64(head-min(p.at.position, head))
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
	pair := &pair{id: known.id}
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
		r.at = at
		return r, nil
	}
	if err := b.DeleteRange(r.prefix[:], r.prefix.end(), nil); err != nil {
		return nil, err
	}
	return r, r.saveCursor(b, r.at)
}

func (p *Projections) newRows(known projection, generation byte) *rows {
	return &rows{projection: known, table: table{prefix: prefix{known.id, generation}, db: p.db}, at: cursor{version: known.version}}
}

func (r *rows) saveCursor(b *pebble.Batch, at cursor) error {
	var val row
	at.append(&val)
	return b.Set(metaKey("cursor", r.prefix[:]...), val, nil)
}

// Run follows the ledger until ctx ends. It returns early, with an error, only when the database fails.
func (p *Projections) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.follow(ctx) })
	g.Go(func() error { return p.flushNowAndThen(ctx) })
	g.Go(func() error {
		for {
			select {
			case r := <-p.jobs:
				g.Go(func() error { return p.bringUp(ctx, r) })
			case <-ctx.Done():
				return nil
			}
		}
	})
	return g.Wait()
}

// Close writes everything to disk and releases the folder. Run must have returned.
func (p *Projections) Close() error {
	return errors.Join(p.db.Flush(), p.db.Close())
}

func (p *Projections) flushNowAndThen(ctx context.Context) error {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-p.flush:
		}
		p.applying.Lock()
		unsaved := p.unsaved
		p.unsaved = 0
		p.applying.Unlock()
		if unsaved == 0 {
			continue
		}
		if _, err := p.db.AsyncFlush(); err != nil {
			return fmt.Errorf("flush the projections: %w", err)
		}
	}
}

// follow keeps the group at the head of the ledger.
func (p *Projections) follow(ctx context.Context) error {
	return p.retry(ctx, "all projections", func(progress func()) error {
		for batch, err := range p.batches(ctx, p.position()) {
			p.setBroken(err != nil)
			if err != nil {
				return err
			}
			if err := p.advance(batch); err != nil {
				return err
			}
			progress()
		}
		return nil
	})
}

// batches follows the ledger, in larger batches while there is more to come.
func (p *Projections) batches(ctx context.Context, after ledger.Position) iter.Seq2[ledger.Batch, error] {
	return func(yield func(ledger.Batch, error) bool) {
		var all ledger.Batch
		for batch, err := range p.c.Reader.Follow(ctx, after) {
			if len(all.Records) > 0 && err == nil {
				batch.Records = append(all.Records, batch.Records...)
			}
			if all = batch; batch.Behind > 0 && len(batch.Records) < gather {
				all.Records = slices.Clip(batch.Records) // the ledger may go on to use what is behind them
				continue
			}
			if !yield(all, err) || err != nil {
				return
			}
			all = ledger.Batch{}
		}
	}
}

// errDatabase marks what trying again does not help against.
var errDatabase = errors.New("the database of the projections failed")

// retry runs a loop over the ledger again after it failed, until it ends well or ctx ends. The loop
// tells when it gets ahead.
func (p *Projections) retry(ctx context.Context, who string, loop func(progress func()) error) error {
	wait := firstRetry
	for {
		err := loop(func() { wait = firstRetry })
		if ctx.Err() != nil || err == nil {
			return nil
		}
		if errors.Is(err, errDatabase) {
			return err
		}
		p.c.Logger.Warn("the ledger cannot be followed; trying again", "for", who, "in", wait, "error", err)
		pause(ctx, wait)
		wait = min(2*wait, lastRetry)
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

func (p *Projections) setBroken(broken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = broken
}

func (p *Projections) position() ledger.Position {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.at.position
}

// advance takes a batch of the ledger into the rows of the group.
func (p *Projections) advance(batch ledger.Batch) error {
	p.applying.Lock()
	defer p.applying.Unlock()
	if err := p.apply(p.group, batch.Records); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at, p.seen, p.behind = p.at.after(batch.Records), batch.Head, batch.Behind
	return nil
}

// apply folds the records into each of the rows, and writes all that follows from them and the
// cursors at once. Rows that cannot take a record in stop before it. It is called with applying held.
func (p *Projections) apply(group []*rows, recs []ledger.Record) error {
	for done := false; !done; {
		b := p.db.NewBatch()
		var err error
		if done, err = p.fold(group, b, recs); done && err == nil {
			err = b.Commit(pebble.NoSync)
		}
		if err := errors.Join(err, b.Close()); err != nil {
			return fmt.Errorf("%w: %w", errDatabase, err)
		}
	}
	if p.unsaved += int64(len(recs)); p.unsaved >= flushRecords {
		select {
		case p.flush <- struct{}{}:
		default:
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range group {
		r.at = r.next
	}
	close(p.moved)
	p.moved = make(chan struct{})
	return nil
}

// fold folds the records into the batch. It is not done when a record stopped one of the rows: then
// the batch is not to be written, and folding again leaves the record out.
func (p *Projections) fold(group []*rows, b *pebble.Batch, recs []ledger.Record) (done bool, err error) {
	for _, r := range group {
		failure := r.take(b, recs)
		if r.err != nil {
			return false, r.err
		}
		if failure != nil {
			p.stop(r, failure)
			for _, r := range group {
				r.folder = nil // it remembers what will not be written
			}
			return false, nil
		}
		if err := r.saveCursor(b, r.next); err != nil {
			return false, err
		}
	}
	return true, nil
}

// stop keeps the rows from taking in the record at which they failed, and any after it.
func (p *Projections) stop(r *rows, f *Failure) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.failure = f
	p.c.Logger.Error("a projection stopped", "projection", r.name, "position", f.Position, "reason", f.Reason)
}

// take folds those of the records that are the rows' to take.
func (r *rows) take(b *pebble.Batch, recs []ledger.Record) *Failure {
	r.batch, r.err, r.next = b, nil, r.at
	r.forget()
	if r.folder == nil {
		r.folder = r.open(&r.table)
	}
	recs = r.due(recs)
	for i := range recs {
		if err := r.safely(&recs[i]); err != nil {
			return &Failure{recs[i].Position, err.Error()}
		}
	}
	r.folder.finish()
	r.write()
	r.next = r.at.after(recs)
	return nil
}

// due leaves out what was taken in before, and what must not be.
func (r *rows) due(recs []ledger.Record) []ledger.Record {
	from := sort.Search(len(recs), func(i int) bool { return recs[i].Position > r.at.position })
	to := len(recs)
	if r.failure != nil {
		to = sort.Search(len(recs), func(i int) bool { return recs[i].Position >= r.failure.Position })
	}
	return recs[from:max(from, to)]
}

// safely folds one record. A record of a type that this version does not know could change any row.
func (r *rows) safely(rec *ledger.Record) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	switch rec.Header.Type {
	case ledger.LedgerCreated, ledger.EventAccepted, ledger.EventRejected, ledger.DuplicatesCounted, ledger.AccessRecorded:
		return r.folder.fold(rec)
	}
	return fmt.Errorf("record type %q is not known", rec.Header.Type)
}

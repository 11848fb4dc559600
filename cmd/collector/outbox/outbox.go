// Package outbox keeps events in a durable file until the ledger says they are on disk there.
//
// A source calls [Outbox.Enqueue]; when it returns, the events survive a power cut. A [Sender]
// takes them out in order, sends them, and removes an event only after the answer that says it is
// stored. What the ledger will never take becomes a dead letter, which stays until a person
// exports or requeues it. Every event is in exactly one of three places: pending, dead, or in the
// ledger; after a crash it can be pending although the ledger has it already, and the ledger then
// answers that it is a duplicate.
//
// The file is SQLite in WAL mode with synchronous=FULL and can be read with sqlite3 while it is in
// use. Several programs may put events into one outbox; at any time one of them sends (see
// [Outbox.Lease]).
//
// Two events are the same when form, contract id, event id, sequence and payload hash are equal.
// The second one is dropped while the first is pending. The same identity with another payload is
// kept as well, so that the ledger sees the conflict; for envelopes, of which the ledger keeps one
// per id for ever, it becomes a dead letter at once.
//
// [Rules] turn the lines of a source into events with deterministic ids.
package outbox

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// ErrFull says that the disk (or Config.MaxBytes) has no room for new events. Nothing was stored;
// what the outbox holds is safe and is still delivered. Try again later.
var ErrFull = errors.New("outbox is full")

// Config says where an outbox is and how much it may hold.
type Config struct {
	// Path of the SQLite file; the folder must exist. Beside it stand Path-wal, Path-shm and
	// Path-sender.
	Path string
	// MaxEventBytes bounds one event's body; a larger one becomes a dead letter at once, because
	// the ledger would refuse it. 0 is 8 MiB.
	MaxEventBytes int
	// MaxBytes bounds what the SQLite file holds: new events get ErrFull once it is over that.
	// 0 is unbounded.
	MaxBytes int64
	// Reserve is the free space on the disk below which new events get ErrFull, so that deliveries
	// can still be recorded. 0 is 256 MiB, negative is none. Much less is not enough: SQLite's
	// WAL, which takes the records of deliveries, has 32 MiB before it is written back.
	Reserve int64
	// Now is the clock for the times people see; no decision depends on it. nil is time.Now.
	Now func() time.Time
}

const (
	defaultMaxEventBytes = 8 << 20
	defaultReserve       = 256 << 20
)

// Outbox is an open outbox file. Its methods are safe for concurrent use.
type Outbox struct {
	cfg   Config
	write *sql.DB // one connection, held by conn
	read  *sql.DB
	conn  *sql.Conn // the transaction of the moment; used only while turn is held
	stmt  statements
	added chan struct{} // holds a token when events were enqueued here since the last look

	turn    sync.Mutex // who holds it commits for everybody in waiting
	mu      sync.Mutex // guards waiting and closed
	waiting []*change
	closed  bool
}

type statements struct{ insert, dead, isDead, hasOther, delete, bury, park, mark *sql.Stmt }

// Open opens the outbox, and creates the file (mode 0600) when there is none. The cost does not
// depend on how much is pending.
func Open(ctx context.Context, cfg Config) (*Outbox, error) {
	if cfg.MaxEventBytes == 0 {
		cfg.MaxEventBytes = defaultMaxEventBytes
	}
	if cfg.Reserve == 0 {
		cfg.Reserve = defaultReserve
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	path, err := filepath.Abs(cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("open outbox: %w", err)
	}
	cfg.Path = path
	o := &Outbox{cfg: cfg, added: make(chan struct{}, 1)}
	if err := o.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open outbox %s: %w", cfg.Path, err), o.release())
	}
	return o, nil
}

func (o *Outbox) open(ctx context.Context) (err error) {
	if err := createPrivate(o.cfg.Path); err != nil {
		return err
	}
	if o.write, err = openDatabase(o.cfg.Path, 1); err != nil {
		return err
	}
	if o.conn, err = o.write.Conn(ctx); err != nil {
		return err
	}
	if err := prepareSchema(ctx, o.conn); err != nil {
		return err
	}
	if err := o.prepare(ctx); err != nil {
		return err
	}
	o.read, err = openDatabase(o.cfg.Path, 4, "query_only(1)", "cache_size(-2048)")
	return err
}

// createPrivate creates the file before SQLite does, which would let others read it.
func createPrivate(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil // never open an existing one: closing it would drop SQLite's locks
	}
	if err != nil {
		return err
	}
	return f.Close()
}

func openDatabase(path string, connections int, pragmas ...string) (*sql.DB, error) {
	q := url.Values{"_pragma": append([]string{
		"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)",
		"cache_size(-32768)",       // 32 MiB
		"wal_autocheckpoint(8000)", // 32 MB: a page that changes often is written back once
		"journal_size_limit(67108864)",
	}, pragmas...)}
	db, err := sql.Open("sqlite", databaseURL(path)+"?"+q.Encode())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db, nil
}

// databaseURL lets a path hold any character, "?" and "#" too.
func databaseURL(path string) string {
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(path)}
	return u.String()
}

func (o *Outbox) prepare(ctx context.Context) error {
	for _, s := range []struct {
		stmt **sql.Stmt
		text string
	}{
		{&o.stmt.insert, `INSERT OR IGNORE INTO outbox
			(event_key, payload_hash, form, type, contract_id, event_id, sequence, body, size, origin, enqueued_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`},
		{&o.stmt.dead, `SELECT dead FROM totals`},
		{&o.stmt.isDead, `SELECT count(*) FROM dead WHERE event_key = ? AND payload_hash = ? AND body_hash = ?`},
		{&o.stmt.hasOther, `SELECT count(*) FROM outbox WHERE event_key = ? AND payload_hash <> ?`},
		{&o.stmt.delete, `DELETE FROM outbox WHERE seq IN (SELECT value FROM json_each(?))`},
		{&o.stmt.bury, `INSERT INTO dead
			(event_key, payload_hash, body_hash, form, type, contract_id, event_id, sequence, body, size, origin,
			 enqueued_at, died_at, status, code, reason)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT DO UPDATE SET times = times + 1, died_at = excluded.died_at, status = excluded.status,
			 code = excluded.code, reason = excluded.reason`},
		{&o.stmt.park, `UPDATE outbox SET parked = ? WHERE seq = ?`},
		{&o.stmt.mark, `INSERT INTO source (name, path, position, head, tail, updated_at) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT DO UPDATE SET path = excluded.path, position = excluded.position, head = excluded.head,
			 tail = excluded.tail, updated_at = excluded.updated_at`},
	} {
		stmt, err := o.conn.PrepareContext(ctx, s.text)
		if err != nil {
			return err
		}
		*s.stmt = stmt
	}
	return nil
}

// Close waits for the transaction under way and closes the file.
func (o *Outbox) Close() error {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.turn.Lock()
	defer o.turn.Unlock()
	return o.release()
}

func (o *Outbox) release() error {
	var errs []error
	if o.conn != nil {
		errs = append(errs, o.conn.Close())
	}
	for _, db := range []*sql.DB{o.read, o.write} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

// Outcome says what became of one enqueued event.
type Outcome int

const (
	Queued      Outcome = iota // it is pending now
	Known                      // the same event is pending already
	KnownBuried                // the same event is a dead letter already
	Buried                     // it is a dead letter
)

// Mark is how far a followed file has been read. It is stored in the same transaction as the
// events that were read, so that none is lost or read twice across a crash.
type Mark struct {
	Name     string // identity of the file
	Path     string
	Position int64
	Head     []byte // fingerprints; their meaning is the reader's
	Tail     []byte
}

// Enqueue stores the events and returns one outcome for each, in order. When it returns without an
// error they are on disk, all of them; with an error none is. ErrFull: there is no room.
// It waits for the disk whatever becomes of ctx once it has begun.
func (o *Outbox) Enqueue(ctx context.Context, events ...Event) ([]Outcome, error) {
	return o.EnqueueFrom(ctx, nil, events)
}

// EnqueueFrom is Enqueue that stores mark along with the events. mark may be nil, events empty.
func (o *Outbox) EnqueueFrom(ctx context.Context, mark *Mark, events []Event) ([]Outcome, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := o.checkSpace(); err != nil {
		return nil, err
	}
	outcomes := make([]Outcome, len(events))
	err := o.commit(ctx, func(tx txn) error {
		if err := tx.checkSize(); err != nil {
			return err
		}
		anyDead, err := tx.count(tx.o.stmt.dead)
		if err != nil {
			return err
		}
		for i, e := range events {
			outcome, err := tx.enqueue(e, anyDead)
			if err != nil {
				return err
			}
			outcomes[i] = outcome
		}
		return tx.mark(mark)
	})
	if err != nil {
		return nil, fmt.Errorf("enqueue: %w", err)
	}
	o.wake()
	return outcomes, nil
}

// checkSpace refuses new events before the disk is full: removing delivered ones takes room too.
func (o *Outbox) checkSpace() error {
	if o.cfg.Reserve < 0 {
		return nil
	}
	free, err := freeBytes(filepath.Dir(o.cfg.Path))
	if err != nil {
		return fmt.Errorf("free space: %w", err)
	}
	if free < o.cfg.Reserve {
		return fmt.Errorf("%w: %d bytes are free on the disk, %d are kept in reserve", ErrFull, free, o.cfg.Reserve)
	}
	return nil
}

func (o *Outbox) wake() {
	select {
	case o.added <- struct{}{}:
	default:
	}
}

// change is one caller's part of a transaction.
type change struct {
	apply func(txn) error
	done  chan error // holds the outcome
}

// txn is a transaction under way.
type txn struct {
	ctx context.Context
	o   *Outbox
	now int64 // milliseconds
}

// commit applies a change and returns when it is on disk. Changes that arrive while a transaction
// is being written share the next one and its fsync: everybody queues for turn, and who gets it
// commits for all who wait.
func (o *Outbox) commit(ctx context.Context, apply func(txn) error) error {
	c := &change{apply, make(chan error, 1)}
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		return errors.New("outbox is closed")
	}
	o.waiting = append(o.waiting, c)
	o.mu.Unlock()

	o.turn.Lock()
	defer o.turn.Unlock()
	select {
	case err := <-c.done:
		return err
	default:
	}
	o.mu.Lock()
	group := o.waiting
	o.waiting = nil
	o.mu.Unlock()
	o.commitGroup(context.WithoutCancel(ctx), group)
	return <-c.done
}

// commitGroup writes one transaction; when it fails, each change gets one of its own, so that no
// caller fails for another's sake.
func (o *Outbox) commitGroup(ctx context.Context, group []*change) {
	err := o.transact(ctx, group)
	for _, c := range group {
		if err != nil && len(group) > 1 {
			c.done <- o.transact(ctx, []*change{c})
			continue
		}
		c.done <- err
	}
}

func (o *Outbox) transact(ctx context.Context, group []*change) error {
	if _, err := o.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return storeError(err)
	}
	tx := txn{ctx, o, o.cfg.Now().UnixMilli()}
	for _, c := range group {
		if err := c.apply(tx); err != nil {
			o.conn.ExecContext(ctx, "ROLLBACK") // fails when SQLite has rolled back by itself
			return storeError(err)
		}
	}
	if _, err := o.conn.ExecContext(ctx, "COMMIT"); err != nil {
		o.conn.ExecContext(ctx, "ROLLBACK")
		return storeError(err)
	}
	return nil
}

func storeError(err error) error {
	var e *sqlite.Error
	if errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_FULL {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}

// checkSize holds new events to MaxBytes; moving one to the dead letters may go a little over it.
func (tx txn) checkSize() error {
	if tx.o.cfg.MaxBytes <= 0 {
		return nil
	}
	var used int64
	row := tx.o.conn.QueryRowContext(tx.ctx, `SELECT page_size * (page_count - freelist_count)
		FROM pragma_page_size, pragma_page_count, pragma_freelist_count`)
	if err := row.Scan(&used); err != nil {
		return err
	}
	if used > tx.o.cfg.MaxBytes {
		return fmt.Errorf("%w: it holds %d bytes, the limit is %d", ErrFull, used, tx.o.cfg.MaxBytes)
	}
	return nil
}

// enqueue stores one event. anyDead says whether there are dead letters at all, so that the usual
// case does not have to look for each event among them.
func (tx txn) enqueue(e Event, anyDead bool) (Outcome, error) {
	if limit := tx.o.cfg.MaxEventBytes; e.Refused == "" && len(e.Body) > limit {
		e.Refused = fmt.Sprintf("the event has %d bytes, the limit is %d", len(e.Body), limit)
	}
	if e.Refused != "" {
		return Buried, tx.bury(e, tx.now, Reason{Code: "refused", Text: e.Refused})
	}
	key := e.identity()
	if anyDead {
		bodyHash := sha256.Sum256(e.Body)
		if dead, err := tx.count(tx.o.stmt.isDead, key, e.PayloadHash[:], bodyHash[:]); err != nil || dead {
			return KnownBuried, err
		}
	}
	if e.Form == FormEnvelope {
		other, err := tx.count(tx.o.stmt.hasOther, key, e.PayloadHash[:])
		if err != nil {
			return 0, err
		}
		if other {
			return Buried, tx.bury(e, tx.now, Reason{Code: "id_conflict", Text: "an envelope of this id with another payload is pending"})
		}
	}
	res, err := tx.o.stmt.insert.ExecContext(tx.ctx, key, e.PayloadHash[:], string(e.Form), e.Type, e.ContractID, e.EventID, e.Sequence,
		column(e.Body), len(e.Body), e.Origin, tx.now)
	if err != nil {
		return 0, err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return Known, err
	}
	return Queued, nil
}

func (tx txn) count(stmt *sql.Stmt, args ...any) (found bool, err error) {
	var n int
	err = stmt.QueryRowContext(tx.ctx, args...).Scan(&n)
	return n > 0, err
}

func (tx txn) bury(e Event, enqueuedAt int64, why Reason) error {
	bodyHash := sha256.Sum256(e.Body)
	_, err := tx.o.stmt.bury.ExecContext(tx.ctx, e.identity(), e.PayloadHash[:], bodyHash[:], string(e.Form), e.Type, e.ContractID, e.EventID, e.Sequence,
		column(e.Body), len(e.Body), e.Origin, enqueuedAt, tx.now, why.Status, why.Code, why.Text)
	return err
}

func (tx txn) mark(m *Mark) error {
	if m == nil {
		return nil
	}
	_, err := tx.o.stmt.mark.ExecContext(tx.ctx, m.Name, m.Path, m.Position, m.Head, m.Tail, tx.now)
	return err
}

// column is how a body is stored: as text, so that sqlite3's JSON functions work on it, unless it
// holds bytes that SQLite's text does not carry.
func column(body []byte) any {
	if !utf8.Valid(body) {
		return body
	}
	for _, c := range body {
		if c == 0 {
			return body
		}
	}
	return string(body)
}

// Fate is what a sender decided about a pending event.
type Fate int

const (
	Sent   Fate = iota // the ledger has it: it leaves the outbox
	Dead               // the ledger will never take it: it becomes a dead letter
	Parked             // it stays, and is tried only now and then
)

// Reason says why an event died or is parked: the HTTP status and code that decided, and a
// sentence for a person. It never holds payload values.
type Reason struct {
	Status int
	Code   string
	Text   string
}

// Settlement is the fate of one pending event.
type Settlement struct {
	Pending Pending
	Fate    Fate
	Reason  Reason // of Dead and Parked
}

// Settle records what became of pending events, in one transaction.
func (o *Outbox) Settle(ctx context.Context, settled []Settlement) error {
	err := o.commit(ctx, func(tx txn) error {
		// Removals first: they make the room that dead letters need.
		if _, err := o.stmt.delete.ExecContext(tx.ctx, removals(settled)); err != nil {
			return err
		}
		for _, s := range settled {
			if err := tx.keep(s); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	return nil
}

// removals is the JSON array of the events that leave the outbox. One statement for all of them
// costs a third of one for each.
func removals(settled []Settlement) string {
	list := []byte{'['}
	for _, s := range settled {
		if s.Fate == Parked {
			continue
		}
		if len(list) > 1 {
			list = append(list, ',')
		}
		list = strconv.AppendInt(list, s.Pending.Seq, 10)
	}
	return string(append(list, ']'))
}

func (tx txn) keep(s Settlement) error {
	switch s.Fate {
	case Dead:
		return tx.bury(s.Pending.Event, s.Pending.EnqueuedAt.UnixMilli(), s.Reason)
	case Parked:
		_, err := tx.o.stmt.park.ExecContext(tx.ctx, s.Reason.Code, s.Pending.Seq)
		return err
	}
	return nil
}

// Pending is an event that waits for delivery.
type Pending struct {
	Seq int64 // order of arrival
	Event
	EnqueuedAt time.Time
	Parked     string // the code it was parked for, "" when it is not
}

const pendingColumns = `seq, form, type, contract_id, event_id, sequence, payload_hash, body, origin, enqueued_at, coalesce(parked, '')`

// Next returns pending events with Seq above after in order, parked ones or the others: at most
// limit of them, and no more once their bodies have maxBytes together.
func (o *Outbox) Next(ctx context.Context, after int64, parked bool, limit, maxBytes int) ([]Pending, error) {
	where := "parked IS NULL"
	if parked {
		where = "parked IS NOT NULL"
	}
	rows, err := o.read.QueryContext(ctx, `SELECT `+pendingColumns+` FROM outbox WHERE seq > ? AND `+where+` ORDER BY seq LIMIT ?`, after, limit)
	if err != nil {
		return nil, fmt.Errorf("read pending events: %w", err)
	}
	defer rows.Close()
	var events []Pending
	for bytes := 0; bytes < maxBytes && rows.Next(); {
		p, err := scanPending(rows)
		if err != nil {
			return nil, fmt.Errorf("read pending events: %w", err)
		}
		bytes += len(p.Body)
		events = append(events, p)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read pending events: %w", err)
	}
	return events, nil
}

func scanPending(rows *sql.Rows) (Pending, error) {
	var p Pending
	var hash []byte
	var at int64
	err := rows.Scan(&p.Seq, &p.Form, &p.Type, &p.ContractID, &p.EventID, &p.Sequence, &hash, &p.Body, &p.Origin, &at, &p.Parked)
	copy(p.PayloadHash[:], hash)
	p.EnqueuedAt = time.UnixMilli(at)
	return p, err
}

// Mark returns how far the file of this name has been read, or nil.
func (o *Outbox) Mark(ctx context.Context, name string) (*Mark, error) {
	marks, err := o.marks(ctx, "name = ?", name)
	if err != nil || len(marks) == 0 {
		return nil, err
	}
	return &marks[0], nil
}

// Marks returns every file that has been read, by path.
func (o *Outbox) Marks(ctx context.Context) ([]Mark, error) { return o.marks(ctx, "true") }

// Forget removes the mark of a file that is gone.
func (o *Outbox) Forget(ctx context.Context, name string) error {
	return o.commit(ctx, func(tx txn) error {
		_, err := o.conn.ExecContext(tx.ctx, `DELETE FROM source WHERE name = ?`, name)
		return err
	})
}

func (o *Outbox) marks(ctx context.Context, where string, args ...any) ([]Mark, error) {
	rows, err := o.read.QueryContext(ctx, `SELECT name, path, position, head, tail FROM source WHERE `+where+` ORDER BY path, updated_at`, args...)
	if err != nil {
		return nil, fmt.Errorf("read marks: %w", err)
	}
	defer rows.Close()
	var marks []Mark
	for rows.Next() {
		var m Mark
		if err := rows.Scan(&m.Name, &m.Path, &m.Position, &m.Head, &m.Tail); err != nil {
			return nil, fmt.Errorf("read marks: %w", err)
		}
		marks = append(marks, m)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read marks: %w", err)
	}
	return marks, nil
}

// Stats is the state of an outbox.
type Stats struct {
	Pending   int       `json:"pending"` // parked ones included
	Bytes     int64     `json:"bytes"`   // of their bodies
	Parked    int       `json:"parked"`
	Dead      int       `json:"dead"`
	Oldest    time.Time `json:"oldest,omitzero"` // arrival of the oldest pending event, zero when there is none
	FileBytes int64     `json:"fileBytes"`
	FreeBytes int64     `json:"freeBytes"` // on the disk
}

// Stats reads the state of the outbox. Its cost does not depend on how much is pending.
func (o *Outbox) Stats(ctx context.Context) (Stats, error) {
	var s Stats
	var oldest sql.NullInt64
	row := o.read.QueryRowContext(ctx, `SELECT pending, bytes, parked, dead,
		(SELECT enqueued_at FROM outbox ORDER BY seq LIMIT 1) FROM totals`)
	if err := row.Scan(&s.Pending, &s.Bytes, &s.Parked, &s.Dead, &oldest); err != nil {
		return Stats{}, fmt.Errorf("read outbox totals: %w", err)
	}
	if oldest.Valid {
		s.Oldest = time.UnixMilli(oldest.Int64)
	}
	info, err := os.Stat(o.cfg.Path)
	if err != nil {
		return Stats{}, err
	}
	s.FileBytes = info.Size()
	if s.FreeBytes, err = freeBytes(filepath.Dir(o.cfg.Path)); err != nil {
		return Stats{}, fmt.Errorf("free space: %w", err)
	}
	return s, nil
}

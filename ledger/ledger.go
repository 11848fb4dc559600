// Package ledger keeps the history of contracts: events that are accepted once, under one key, and
// are never changed afterwards.
//
// The life of an event, and the file in which each step stands:
//
//  1. event.go reads the received bytes: it cleans them, checks the base fields and makes the
//     payload's canonical form and hashes (package canonical). One bad event never sinks its neighbours.
//  2. schema.go holds the payload against the JSON Schema of its contract type; reject.go has the
//     age rule and every word that is said about a refused event.
//  3. ledger.go makes an Entry of it: header and body of a record (record.go), with all that does
//     not depend on its place in the ledger, hashed and committed to.
//  4. window.go asks the Window, when there is one, where the key was last seen.
//  5. The Store (store.go; packages disk and eventstore) appends it. Where nothing can come in between,
//     Decide (decide.go) says whether it is the first of its key, and Entry.Record completes the record.
//  6. It is durable. Only now the caller gets an Answer. Refused events are records too, in a stream of
//     their own; what was met again is counted (repeats.go).
//  7. Followers read the ledger in order with Reader.Follow and derive everything else.
//
// Nothing that got an answer is ever lost, counted twice or silently changed. A Store that cannot say
// so answers with an error, never with a guess.
package ledger

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Config is what a Ledger is made of. The zero value of every field but Store is usable.
type Config struct {
	Store    Store
	Window   Window // nil: none
	Instance string // names this instance's own streams; 1 to 64 characters of the id alphabet; "local" when empty

	Schemas       *Schemas       // of payloads; nil: the built-in ones
	Known         func(Key) bool // of a Store that is elsewhere: it knows the key without asking there, and the Window is not asked; nil: never
	Lax           bool           // payload schemas and unknown members are not checked
	PlainConflict bool           // conflicts have the code "conflict" (no payload integrity check)
	MaxAge        time.Duration  // of an event that was never seen; 24 h when 0
	MaxSkew       time.Duration  // into the future; 5 min when 0
	MaxPayload    int            // bytes, as received and in canonical form; 256 KiB when 0
	Chunk         int            // events appended at once; 100 when 0

	Now     func() time.Time     // time.Now when nil
	Elapsed func() time.Duration // a clock that only counts, sleep included; when nil the system's, or Now where that is set
	Logger  *slog.Logger         // slog.Default() when nil
}

// Ledger takes events into a Store. It is safe for concurrent use. Run must be running.
type Ledger struct {
	Config
	parsers  sync.Pool
	clock    clock
	repeats  repeats
	accesses accesses
}

// New checks the configuration and returns the ledger in its store.
func New(c Config) (*Ledger, error) {
	if c.Instance == "" {
		c.Instance = "local"
	}
	if !ValidID(c.Instance, instanceMaxLength) {
		return nil, fmt.Errorf("instance must be 1 to %d characters of A-Z a-z 0-9 _ - . @", instanceMaxLength)
	}
	if c.Schemas == nil {
		var err error
		if c.Schemas, err = LoadSchemas(""); err != nil {
			return nil, err
		}
	}
	c.MaxAge = or(c.MaxAge, 24*time.Hour)
	c.MaxSkew = or(c.MaxSkew, 5*time.Minute)
	c.MaxPayload = or(c.MaxPayload, 256<<10)
	c.Chunk = or(c.Chunk, 100)
	if c.Now == nil {
		c.Now, c.Elapsed = time.Now, systemElapsed
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	l := &Ledger{Config: c, repeats: newRepeats(), accesses: accesses{pending: map[access]tally{}}}
	l.clock.start(c.Now, c.Elapsed)
	l.parsers.New = func() any { return &parser{strict: !c.Lax, maxPayload: c.MaxPayload} }
	return l, nil
}

func or[T int | time.Duration](v, byDefault T) T {
	if v == 0 {
		return byDefault
	}
	return v
}

// Request is who sent a batch and how it can be found again.
type Request struct {
	Source        *Source
	CorrelationID string
	Traceparent   string
}

// Status is what a collector is told of an event.
type Status string

const (
	StatusAccepted  Status = "accepted"
	StatusDuplicate Status = "duplicate"
	StatusRejected  Status = "rejected"
)

// Result is the answer to one event.
type Result struct {
	Key             Key // only when HasKey
	HasKey          bool
	Status          Status
	Rejection       *Rejection // when rejected
	Position        Position   // of the record; a duplicate's is the first's
	Revision        int64      // when accepted
	Generation      int64      // when accepted
	PayloadHash     Hash       // zero when the payload was unusable
	Leaf            Hash       // when accepted
	ProcessedAt     int64      // epoch milliseconds; a duplicate's is the first's
	EnvelopeChanged bool       // a duplicate whose timestamp, type or signature is not the first's
}

// Ingest stores the events of one batch, each given as the bytes of its JSON object, and returns a
// result for each in order once all of them are durable. With an error, which is one of the Store's,
// some may be stored; sending the same batch again is right.
func (l *Ledger) Ingest(ctx context.Context, req Request, contractType string, events [][]byte) ([]Result, error) {
	results := make([]Result, len(events))
	for from := 0; from < len(events); from += l.Chunk {
		to := min(from+l.Chunk, len(events))
		prepare := func(now int64) []draft { return l.prepare(req, contractType, events[from:to], now) }
		if err := l.ingest(ctx, req, prepare, results[from:to]); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// ingest takes what prepare makes of some events, as of now, the whole way.
func (l *Ledger) ingest(ctx context.Context, req Request, prepare func(now int64) []draft, results []Result) error {
	now, err := l.clock.now()
	if err != nil {
		return err
	}
	if err := l.repeats.room(); err != nil {
		return err
	}
	drafts := prepare(now)
	if err := l.lookInWindow(ctx, drafts, now); err != nil {
		return err
	}
	if err := l.append(ctx, drafts, now); err != nil {
		return err
	}
	if err := l.appendRejections(ctx, req, drafts, now); err != nil {
		return err
	}
	l.bindInWindow(ctx, drafts)
	for i := range drafts {
		results[i] = drafts[i].result
	}
	return nil
}

// draft is one event between its bytes and its result.
type draft struct {
	event     Event
	entry     *Entry     // of an event that could be accepted
	rejection *Rejection // of an event that could not, or was not
	decided   bool       // nothing is left to ask of the store, but to keep a rejection
	result    Result
}

// prepare decodes, cleans, checks and hashes the events.
func (l *Ledger) prepare(req Request, contractType string, events [][]byte, now int64) []draft {
	p := l.parsers.Get().(*parser)
	defer l.parsers.Put(p)
	drafts, entries := make([]draft, len(events)), make([]Entry, len(events))
	for i, raw := range events {
		d := &drafts[i]
		d.rejection = p.parse(&d.event, raw)
		d.event.ContractType = contractType
		d.describe()
		if !req.Source.allows(contractType, d.event.ContractID) {
			d.rejection = notAllowed()
		}
		var keyID string
		if d.rejection == nil {
			keyID, d.rejection = req.Source.Signing.check(&d.event)
		}
		if d.rejection == nil {
			d.entry = &entries[i]
			l.fill(d.entry, req, &d.event, keyID, now)
		}
	}
	return drafts
}

// describe begins the result with what is known of the event.
func (d *draft) describe() {
	d.result = Result{Key: d.event.Key(), PayloadHash: d.event.PayloadHash}
	d.result.HasKey = d.event.hasKey()
}

func notAllowed() *Rejection {
	return reject(CodeTypeNotAllowed, "the source may not send events of this type for this contract", nil)
}

// fill makes e the record of an event that was never seen, as of now. keyID says which key verified its
// signature, if one did.
func (l *Ledger) fill(e *Entry, req Request, ev *Event, keyID string, now int64) {
	e.Window = req.Source.Window.Milliseconds()
	e.Header = Header{
		V: Version, Type: EventAccepted, Stream: ContractStream(ev.ContractID),
		ContractID: ev.ContractID, EventID: ev.EventID, Sequence: ev.Sequence, ContractType: ev.ContractType,
		Timestamp: ev.Timestamp, Generation: 1, RecordedAt: now, Source: req.Source.Name,
	}
	e.Body = Body{
		Payload: ev.Payload, Signature: ev.Signature, PayloadHash: ev.PayloadHash, RawHash: ev.RawHash,
		Supersedes: Absent, Sanitized: ev.Sanitized, ChatJID: ev.ChatJID,
		CorrelationID: req.CorrelationID, Traceparent: req.Traceparent, Salt: newSalt(),
	}
	if keyID != "" {
		e.Body.Verdict, e.Body.KeyID = VerdictVerified, keyID
	}
	if req.Source.SequenceFree {
		e.Body.SequencePolicy = SequenceFree
	}
	if !l.Lax {
		if errs := l.Schemas.Validate(ev.ContractType, ev.Payload); errs != nil {
			e.Invalid = reject(CodeInvalidPayload, sentence(errs), errs)
		}
	}
	if ev.Timestamp != Absent { // an envelope has none
		e.OutOfTime = outOfTime(ev.Timestamp, now, l.MaxAge, l.MaxSkew)
	}
	if e.OutOfTime != nil && e.OutOfTime.Code == CodeTooOld && req.Source.AcceptLate {
		e.OutOfTime, e.Body.Late = nil, true
	}
	e.Seal()
}

// append sends the events that could be accepted to the store.
func (l *Ledger) append(ctx context.Context, drafts []draft, now int64) error {
	entries, of := make([]*Entry, 0, len(drafts)), make([]*draft, 0, len(drafts))
	for i := range drafts {
		if d := &drafts[i]; d.entry != nil && !d.decided {
			entries, of = append(entries, d.entry), append(of, d)
		}
	}
	if len(entries) == 0 {
		return nil
	}
	outcomes, err := l.Store.Append(ctx, entries)
	if err != nil {
		return fmt.Errorf("append events: %w", err)
	}
	for i, o := range outcomes {
		if err := l.settle(ctx, of[i], o, now); err != nil {
			return err
		}
	}
	return nil
}

// settle turns the store's outcome for an event into its result, or into a rejection.
func (l *Ledger) settle(ctx context.Context, d *draft, o Outcome, now int64) error {
	switch o.Verdict {
	case Accepted:
		d.decided = true
		d.result.Status, d.result.Position, d.result.Revision, d.result.Generation = StatusAccepted, o.Position, o.Revision, o.Generation
		d.result.Leaf, d.result.ProcessedAt = o.Leaf, o.RecordedAt
	case Duplicate:
		d.duplicate(o.First)
		l.repeats.count(d.entry.Header.Stream, o.First.Revision, now)
	case Refused:
		d.refuse(o.Rejection)
	case Conflict:
		first, err := l.confirmConflict(ctx, d.entry, o.First)
		if err != nil {
			return err
		}
		d.refuse(l.conflict(first, d))
	}
	return nil
}

func (d *draft) duplicate(first Found) {
	d.decided = true
	d.result.Status, d.result.Position, d.result.ProcessedAt = StatusDuplicate, first.Position, first.RecordedAt
	d.result.EnvelopeChanged = !first.EventHash.Equal(d.entry.Body.EventHash)
}

func (d *draft) refuse(r *Rejection) { d.decided, d.rejection = true, r }

// conflict says that d's key is bound to the payload with the first hash.
func (l *Ledger) conflict(first Hash, d *draft) *Rejection {
	code := CodePayloadConflict
	if l.PlainConflict {
		code = CodeConflict
	}
	return reject(code, fmt.Sprintf("the key is bound to another payload: stored payload hash %s, sent payload hash %s", first, d.event.PayloadHash), nil)
}

// confirmConflict reads the record that the key is bound to before a conflict is said: the index
// is derived, the record decides.
func (l *Ledger) confirmConflict(ctx context.Context, e *Entry, first Found) (Hash, error) {
	recs, err := l.Store.Read(ctx, []Position{first.Position})
	if err != nil {
		return Hash{}, fmt.Errorf("read the record of %s: %w", e.Key(), err)
	}
	r := &recs[0]
	if r.Header.Type != EventAccepted || r.Header.Key() != e.Key() || r.Body.PayloadHash.Equal(e.Body.PayloadHash) {
		return Hash{}, fmt.Errorf("the key index names position %s for %s, and the record there says otherwise: %w", first.Position, e.Key(), ErrDamaged)
	}
	return r.Body.PayloadHash, nil
}

// appendRejections stores a record for each refused event, but one for all that are the same within
// a minute: the others are counted.
func (l *Ledger) appendRejections(ctx context.Context, req Request, drafts []draft, now int64) error {
	var entries []*Entry
	var of []*draft
	twins := map[rejectionID][]*draft{} // more of the same in this batch
	for i := range drafts {
		d := &drafts[i]
		if d.rejection == nil {
			continue
		}
		d.result.Status, d.result.Rejection = StatusRejected, d.rejection
		id := d.rejectionID(req)
		if more, ok := twins[id]; ok {
			twins[id] = append(more, d)
		} else if first, ok := l.repeats.again(id, now); ok {
			d.result.Position, d.result.ProcessedAt = first.position, first.recordedAt
		} else {
			twins[id] = nil
			entries, of = append(entries, l.rejectionEntry(req, d, now)), append(of, d)
		}
	}
	if len(entries) == 0 {
		return nil
	}
	outcomes, err := l.Store.Append(ctx, entries)
	if err != nil {
		return fmt.Errorf("append rejections: %w", err)
	}
	for i, o := range outcomes {
		id, first := of[i].rejectionID(req), remembered{target{entries[i].Header.Stream, o.Revision}, o.Position, o.RecordedAt}
		l.repeats.remember(id, first)
		for _, d := range append(twins[id], of[i]) {
			d.result.Position, d.result.ProcessedAt = first.position, first.recordedAt
		}
		for range twins[id] {
			l.repeats.count(first.stream, first.revision, now)
		}
		l.Logger.LogAttrs(ctx, slog.LevelInfo, "event rejected", slog.String("code", of[i].rejection.Code),
			slog.String("source", req.Source.Name), slog.Any("event", &of[i].event), slog.String("correlationId", req.CorrelationID))
	}
	return nil
}

func (d *draft) rejectionID(req Request) rejectionID {
	return rejectionID{req.Source.Name, d.rejection.Code, d.event.Key(), d.event.RawHash}
}

// rejectionEntry makes the record of a refused event: everything but the payload.
func (l *Ledger) rejectionEntry(req Request, d *draft, now int64) *Entry {
	ev := &d.event
	e := &Entry{}
	e.Header = Header{
		V: Version, Type: EventRejected, Stream: rejectionsPrefix + l.Instance,
		ContractID: ev.ContractID, EventID: ev.EventID, Sequence: ev.Sequence, ContractType: ev.ContractType,
		Timestamp: ev.Timestamp, Generation: Absent, RecordedAt: now, Source: req.Source.Name, Code: d.rejection.Code,
	}
	e.Body = Body{
		PayloadHash: ev.PayloadHash, RawHash: ev.RawHash, Supersedes: Absent, Sanitized: ev.Sanitized, ChatJID: ev.ChatJID,
		CorrelationID: req.CorrelationID, Traceparent: req.Traceparent, Reason: d.rejection.Reason, Errors: d.rejection.Errors, Salt: newSalt(),
	}
	if ev.Payload != nil && d.result.HasKey {
		e.Body.EventHash = EventHashOf(&e.Header, ev.PayloadHash, ev.Signature)
	}
	e.Seal()
	return e
}

// ID is the identity of the ledger in s: the leaf hash of its first record. It stays the same when the
// ledger moves to another store.
func ID(ctx context.Context, s Reader) (string, error) {
	first, err := First(ctx, s)
	if err != nil {
		return "", err
	}
	return first.Leaf.String(), nil
}

// First is the first record of the ledger in s, LedgerCreated.
func First(ctx context.Context, s Reader) (Record, error) {
	for rec, err := range s.Stream(ctx, LedgerStream, 0, false) {
		if err != nil {
			return rec, fmt.Errorf("read the ledger's first record: %w", err)
		}
		return rec, nil
	}
	return Record{}, fmt.Errorf("the ledger has no first record: %w", ErrDamaged)
}

// Creation is the entry of a new ledger's first record, for stores.
func Creation(now time.Time) *Entry {
	e := &Entry{Header: Header{
		V: Version, Type: LedgerCreated, Stream: LedgerStream, Sequence: Absent, Timestamp: Absent,
		Generation: Absent, RecordedAt: now.UnixMilli(),
	}}
	e.Body = Body{Supersedes: Absent, CorrelationID: uuid.NewString(), Salt: newSalt()}
	e.Seal()
	return e
}

package projections

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/talenttrust/auditledger/ledger"
)

// ErrNotCaughtUp says that the projections have not come far enough yet. Trying again a little later helps.
var ErrNotCaughtUp = errors.New("the projections have not caught up")

// ParameterError says which parameter of a query breaks which rule. It is the caller's mistake.
type ParameterError struct {
	Name string // first, last, after, before, asOf, from, to, bucket
	Rule string // reads on from the name: "must be …"
}

func (e *ParameterError) Error() string { return fmt.Sprintf("%s %s", e.Name, e.Rule) }

// Entry is one line of history: an accepted event, or a rejected one. Everything but the payload.
type Entry struct {
	Position        ledger.Position
	Stream          string
	Revision        int64  // in Stream
	ContractID      string // "" when a rejected event had no usable one
	EventID         string // likewise
	Sequence        int64  // likewise ledger.Absent
	ContractType    string
	Generation      int64 // ledger.Absent for a rejected event
	Supersedes      int64 // revision of the generation before, or ledger.Absent
	PayloadChanged  bool  // against the generation before
	Status          ledger.Status
	Code            string // of a rejection
	Reason          string // of a rejection
	Timestamp       int64  // the source's, epoch milliseconds, or ledger.Absent
	ProcessedAt     int64  // ours, epoch milliseconds
	PayloadHash     ledger.Hash
	LeafHash        ledger.Hash
	Source          string
	CorrelationID   string
	Duplicates      int64 // how often it was met again
	LastDuplicateAt int64 // epoch milliseconds; 0: never
	Sanitized       bool
	Late            bool
}

// Key is the entry's deduplication key; false when a rejected event had no usable ids.
func (e *Entry) Key() (ledger.Key, bool) {
	k := ledger.Key{ContractID: e.ContractID, EventID: e.EventID, Sequence: e.Sequence}
	return k, e.ContractID != "" && e.EventID != "" && e.Sequence >= 0
}

// Filter keeps the entries that meet all of it. Zero values keep everything.
type Filter struct {
	Status       ledger.Status // accepted or rejected
	Code         string
	ContractType string
	Source       string
	EventID      string
	From, To     int64 // processedAt in epoch milliseconds: from From on, before To
	SentFrom     int64 // timestamp likewise; entries without one are left out
	SentTo       int64
	FromSequence *int64 // both inclusive; entries without a sequence are left out
	ToSequence   *int64
}

// Order is by ledger position.
type Order int

const (
	Desc Order = iota // newest first
	Asc
)

// Limits of a page.
const (
	DefaultPage = 100
	MaxPage     = 1000
)

// Page says which part of a list is wanted, as in the GraphQL cursor connections specification:
// the first entries after a cursor, or the last ones before a cursor. Neither First nor Last: the
// first DefaultPage. All pages that follow from one another are read as of the first one's position.
type Page struct {
	First  int // 1 to MaxPage
	After  string
	Last   int // 1 to MaxPage
	Before string
	AsOf   ledger.Position // 0: now, or what the cursor says
}

// PageInfo is what the cursor connections specification says of a page.
type PageInfo struct {
	HasNextPage     bool
	HasPreviousPage bool
	StartCursor     string // "" when the page is empty
	EndCursor       string
}

// HistoryRequest asks for the history of a contract, or of the whole ledger.
type HistoryRequest struct {
	ContractID string // "": all of it, also rejections that name no contract
	Filter
	Order
	Page
}

// HistoryPage is a part of a history.
type HistoryPage struct {
	Entries []Entry
	Info    PageInfo
	AsOf    ledger.Position

	q       *Query
	req     HistoryRequest
	cursors cursors
}

// Cursor is the cursor of the i-th entry of the page.
func (p *HistoryPage) Cursor(i int) string { return p.cursors.at(i) }

// MaxTotal is how far the entries of a filtered list are counted.
const MaxTotal = 10_000

// Bucket is the width of a series.
type Bucket string

const (
	NoBucket Bucket = ""
	Hour     Bucket = "hour"
	Day      Bucket = "day" // of UTC
)

// StatsRequest asks for the numbers of a time range, from From (inclusive) to To (exclusive) on
// processedAt. Zero times are open ends. Both lie on full hours of UTC, with Day on midnight.
type StatsRequest struct {
	From, To time.Time
	Bucket   Bucket // of Series; NoBucket: no series
}

// Tally counts events.
type Tally struct {
	Accepted   int64
	Rejected   int64 // repeated rejections included
	Duplicates int64
	Conflicts  int64 // the rejected ones that are conflicts
	Contracts  int64 // first seen in the time range
}

// Total is every event that is in the trail: accepted and rejected ones.
func (t *Tally) Total() int64 { return t.Accepted + t.Rejected }

// Named is a count under a name.
type Named struct {
	Name  string
	Count int64
}

// Point is one bucket of a series.
type Point struct {
	At time.Time // its start, UTC
	Tally
}

// Stats are numbers over the ledger or a time range of it.
type Stats struct {
	Tally
	ByContractType []Named // accepted events, most first; the first 100 and "other"
	ByCode         []Named // rejected events, most first
	Findings       []Named // of the whole ledger, whatever the time range, by kind
	Series         []Point // oldest first; buckets in which nothing happened are left out
	AsOf           struct {
		Position ledger.Position
		Time     time.Time // at which the record there was stored; zero before the first
	}
	Lag struct {
		Records      int64 // stored or counted, and not yet in these numbers
		Milliseconds int64
	}
}

// ContractOrder is how contracts are sorted.
type ContractOrder int

const (
	ByContractID   ContractOrder = iota
	ByLastActivity               // latest first
)

// ContractsRequest asks for a list of contracts.
type ContractsRequest struct {
	Search  string // part of the contractId, in upper or lower case
	Type    string
	OrderBy ContractOrder
	Page
}

// Contract is what is known of a contract as a whole.
type Contract struct {
	ContractID       string
	Type             string // of its last accepted event; "" when it has none
	Accepted         int64
	Rejected         int64 // repeated rejections included
	Duplicates       int64
	Conflicts        int64
	FirstProcessedAt int64 // epoch milliseconds
	LastProcessedAt  int64
	LastSequence     int64 // of the last accepted event; ledger.Absent when there is none
	LowestSequence   int64 // of its accepted events, or ledger.Absent
	HighestSequence  int64
	LastPosition     ledger.Position // of its last entry
}

// ContractPage is a part of the list of contracts.
type ContractPage struct {
	Contracts []Contract
	Info      PageInfo
	AsOf      ledger.Position

	q       *Query
	req     ContractsRequest
	cursors cursors
}

// Cursor is the cursor of the i-th contract of the page.
func (p *ContractPage) Cursor(i int) string { return p.cursors.at(i) }

// FindingKind says what an auditor should look at.
type FindingKind string

const (
	SequenceGap        FindingKind = "SEQUENCE_GAP"
	SequenceReused     FindingKind = "SEQUENCE_REUSED"
	SequenceRegression FindingKind = "SEQUENCE_REGRESSION"
	Conflict           FindingKind = "CONFLICT"
	Reingested         FindingKind = "REINGESTED"
	Sanitized          FindingKind = "SANITIZED"
	Late               FindingKind = "LATE"
)

// Finding is something about a contract's history that an auditor should look at.
type Finding struct {
	Kind         FindingKind
	FromSequence int64             // ledger.Absent where there is none
	ToSequence   int64             // inclusive; differs from FromSequence only for a gap
	Positions    []ledger.Position // of entries it is about, at most two; see Query.Entries
	Message      string            // a sentence
}

// FindingPage is a part of a contract's findings, sorted by kind, then sequence, then position.
type FindingPage struct {
	Findings []Finding
	Info     PageInfo
	Total    int64
	AsOf     ledger.Position

	cursors cursors
}

// Cursor is the cursor of the i-th finding of the page.
func (p *FindingPage) Cursor(i int) string { return p.cursors.at(i) }

// Condition is how a projection is doing.
type Condition string

const (
	Live       Condition = "live"
	CatchingUp Condition = "catching_up"
	Rebuilding Condition = "rebuilding" // its rows answer while new ones are built
	Failed     Condition = "failed"
)

// State says where a projection stands.
type State struct {
	Name     string
	Position ledger.Position // of the last record in its rows
	Head     ledger.Position // of the ledger
	Lag      int64           // records between them
	State    Condition
	Progress float64  // 0 to 1, while catching up or rebuilding; else 1
	Failure  *Failure // when failed
}

// Failure says which record a projection could not take in, and why.
type Failure struct {
	Position ledger.Position
	Reason   string
}

// Query reads the projections. Every method sees one state of the rows, obeys its context, and is
// safe for concurrent use. Parameters that break a rule give a *ParameterError.
type Query struct{ p *Projections }

// Query returns the one way to read.
func (p *Projections) Query() *Query { return &Query{p} }

// moment is one state of all rows.
type moment struct {
	p    *Projections
	snap *pebble.Snapshot
}

// view returns the rows of the named projection that answer.
func (m *moment) view(name string) (*view, error) {
	pair, err := m.p.pair(name)
	if err != nil {
		return nil, err
	}
	id := pair.id
	val, err := get(m.snap, metaKey("set", id))
	if err != nil || len(val) != 2 {
		return nil, errors.Join(err, fmt.Errorf("%s: which rows answer is not known", name))
	}
	v := &view{prefix: prefix{id, val[0]}, packed: pair.packs, from: m.snap}
	if val, err = get(m.snap, metaKey("cursor", v.prefix[:]...)); err != nil {
		return nil, err
	}
	v.at, err = decodeCursor(val)
	return v, err
}

// on reads in one state of the named projection's rows.
func (q *Query) on(name string, read func(m *moment, v *view) error) (err error) {
	done, err := q.p.use()
	if err != nil {
		return err
	}
	defer done()
	m := moment{q.p, q.p.db.NewSnapshot()}
	defer func() { err = errors.Join(err, m.snap.Close()) }()
	v, err := m.view(name)
	if err != nil {
		return err
	}
	return read(&m, v)
}

func (q *Query) sealer(query ...any) sealer { return newSealer(q.p.ledgerID, query...) }

// settle says as of which position a page is read.
func (q *Query) settle(ctx context.Context, p *paging, now ledger.Position) error {
	if p.asOf == 0 {
		p.asOf = now
	}
	if p.asOf <= now {
		return nil
	}
	head, err := q.p.c.Reader.Head(ctx)
	if err != nil {
		return fmt.Errorf("read the head of the ledger: %w", err)
	}
	if p.asOf > head {
		return &ParameterError{"asOf", "must not be beyond the head of the ledger"}
	}
	return fmt.Errorf("position %s is asked for: %w", p.asOf, ErrNotCaughtUp)
}

// Stats returns the numbers of the whole ledger or of a time range.
func (q *Query) Stats(ctx context.Context, r StatsRequest) (s Stats, err error) {
	in, all, err := r.hours()
	if err != nil {
		return s, err
	}
	if all && r.Bucket == NoBucket {
		in = hours{allHours, allHours}
	}
	err = q.on("stats", func(m *moment, v *view) error {
		contracts, err := m.view("contracts")
		if err != nil {
			return err
		}
		if err := s.read(ctx, v, contracts, in, r.Bucket); err != nil {
			return err
		}
		found, err := m.view("findings")
		if err != nil {
			return err
		}
		if s.Findings, err = found.totals(); err != nil {
			return err
		}
		s.AsOf.Position = v.at.position
		if v.at.position > 0 {
			s.AsOf.Time = time.UnixMilli(v.at.recordedAt).UTC()
		}
		s.Lag.Records, s.Lag.Milliseconds = q.p.lag(ctx, v.at)
		return ctx.Err()
	})
	return s, err
}

func (s *Stats) read(ctx context.Context, v, contracts *view, in hours, bucket Bucket) (err error) {
	width := uint64(1)
	if bucket == Day {
		width = 24
	}
	points := map[uint64]Tally{}
	if err := v.tallies(ctx, in, width, points); err != nil {
		return err
	}
	if err := contracts.tallies(ctx, in, width, points); err != nil {
		return err
	}
	for _, hour := range slices.Sorted(maps.Keys(points)) {
		s.add(points[hour])
		if bucket != NoBucket {
			s.Series = append(s.Series, Point{time.UnixMilli(int64(hour) * hourMillis).UTC(), points[hour]})
		}
	}
	types, err := v.names(ctx, tagType, in)
	if err != nil {
		return err
	}
	s.ByContractType = topNames(types)
	s.ByCode, err = v.names(ctx, tagCode, in)
	return err
}

// Contracts lists contracts. As of a position there are those that had an entry by then; their
// numbers are always the latest.
func (q *Query) Contracts(ctx context.Context, r ContractsRequest) (page ContractPage, err error) {
	p, err := r.Page.check(q.sealer("contracts", r.Search, r.Type, r.OrderBy))
	if err != nil {
		return page, err
	}
	err = q.on("contracts", func(m *moment, v *view) error {
		if err := q.settle(ctx, &p, v.at.position); err != nil {
			return err
		}
		from, err := r.list(ctx, m, v, p.asOf)
		if err != nil {
			return err
		}
		page = ContractPage{AsOf: p.asOf, q: q, req: r}
		page.Contracts, page.cursors, page.Info, err = fetch(ctx, &p, from)
		return err
	})
	return page, err
}

func (r *ContractsRequest) list(ctx context.Context, m *moment, v *view, asOf ledger.Position) (list[Contract], error) {
	if r.OrderBy == ByContractID {
		return v.byID(r, asOf), nil
	}
	history, err := m.view("history")
	if err != nil {
		return nil, err
	}
	return v.byActivity(r, asOf, func(id string) (ledger.Position, error) {
		found, err := first(ctx, history.lines(&HistoryRequest{ContractID: id}, asOf), span{})
		if err != nil || found == nil {
			return 0, err
		}
		return *found, nil
	}), nil
}

// Contract returns one contract, nil when it is not known.
func (q *Query) Contract(_ context.Context, contractID string) (found *Contract, err error) {
	if !ledger.ValidID(contractID, ledger.MaxIDLen) {
		return nil, nil
	}
	err = q.on("contracts", func(_ *moment, v *view) error {
		c, err := v.contract(contractID)
		if c != nil {
			found = &c.Contract
		}
		return err
	})
	return found, err
}

// History returns a page of the history of a contract or of the whole ledger. An unknown contract's is empty.
func (q *Query) History(ctx context.Context, r HistoryRequest) (page HistoryPage, err error) {
	if r.Status != "" && r.Status != ledger.StatusAccepted && r.Status != ledger.StatusRejected {
		return page, &ParameterError{"status", "must be accepted or rejected"}
	}
	if r.Code != "" && !slices.Contains(ledger.Codes, r.Code) { // an answer without entries would look like a clean record
		return page, &ParameterError{"code", "must be one of " + strings.Join(ledger.Codes, ", ")}
	}
	p, err := r.Page.check(q.sealer("history", r.ContractID, r.Filter, r.Order))
	if err != nil {
		return page, err
	}
	err = q.on("history", func(_ *moment, v *view) error {
		if err := q.settle(ctx, &p, v.at.position); err != nil {
			return err
		}
		page = HistoryPage{AsOf: p.asOf, q: q, req: r}
		var found []ledger.Position
		if found, page.cursors, page.Info, err = fetch(ctx, &p, v.lines(&r, p.asOf)); err != nil {
			return err
		}
		page.Entries, err = v.entries(found)
		return err
	})
	return page, err
}

// Total is how many entries all pages have together. It is counted when asked for; nil when the
// history is filtered and more than MaxTotal entries are left.
func (p *HistoryPage) Total(ctx context.Context) (n *int64, err error) {
	err = p.q.on("history", func(m *moment, v *view) error {
		if p.req.Filter != (Filter{}) {
			n, err = count(ctx, v.lines(&p.req, p.AsOf), span{}, MaxTotal)
			return err
		}
		n, err = p.all(ctx, m, v)
		return err
	})
	return n, err
}

// all is how many entries there are without a filter: the newest one's ordinal, or for a contract
// how many it has by now without those that came after the page.
func (p *HistoryPage) all(ctx context.Context, m *moment, v *view) (*int64, error) {
	if p.req.ContractID == "" {
		n, err := v.ordinal(ctx, p.AsOf)
		return &n, err
	}
	contracts, err := m.view("contracts")
	if err != nil {
		return nil, err
	}
	c, err := contracts.contract(p.req.ContractID)
	if err != nil || contracts.at.position != v.at.position || c == nil {
		return count(ctx, v.lines(&p.req, p.AsOf), span{}, math.MaxInt64)
	}
	r := HistoryRequest{ContractID: p.req.ContractID, Order: Asc}
	n, err := count(ctx, v.lines(&r, v.at.position), span{after: appendNumbers(nil, uint64(p.AsOf))}, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	*n = c.entries - *n
	return n, nil
}

// Total is how many contracts all pages have together, as in HistoryPage.
func (p *ContractPage) Total(ctx context.Context) (n *int64, err error) {
	err = p.q.on("contracts", func(m *moment, v *view) error {
		most := int64(MaxTotal)
		if p.req.Search == "" && p.req.Type == "" {
			if most = math.MaxInt64; v.at.position == p.AsOf {
				all, err := v.counter(metricKey(v.prefix, allHours, metricContracts))
				n = &all
				return err
			}
		}
		n, err = count(ctx, v.byID(&p.req, p.AsOf), span{}, most)
		return err
	})
	return n, err
}

// followPage is how many entries Follow reads at once.
const followPage = 500

// Follow yields the entries after the position that meet the request's contract and filter, in ledger
// order, then waits for more until ctx ends. Order and Page of the request are not used. The error
// that ends it is the last thing yielded; ctx's end is one too. ledger.ErrBeyondHead when after is
// no position of this ledger yet.
func (q *Query) Follow(ctx context.Context, r HistoryRequest, after ledger.Position) iter.Seq2[Entry, error] {
	r.Order = Asc
	return func(yield func(Entry, error) bool) {
		if err := q.belowHead(ctx, after); err != nil {
			yield(Entry{}, err)
			return
		}
		for {
			_, moved := q.p.reached(0)
			found, to, err := q.following(ctx, &r, after)
			for i := range found {
				if !yield(found[i], nil) {
					return
				}
			}
			if err == nil && to == after {
				err = await(ctx, moved)
			}
			if err != nil {
				yield(Entry{}, err)
				return
			}
			after = to
		}
	}
}

// following reads the next entries after a position, and up to where there are no others.
func (q *Query) following(ctx context.Context, r *HistoryRequest, after ledger.Position) (found []Entry, to ledger.Position, err error) {
	err = q.on("history", func(_ *moment, v *view) error {
		p := paging{span: span{after: appendNumbers(nil, uint64(after))}, size: followPage}
		at, _, info, err := fetch(ctx, &p, v.lines(r, v.at.position))
		if err != nil {
			return err
		}
		if to = max(after, v.at.position); info.HasNextPage {
			to = at[len(at)-1]
		}
		found, err = v.entries(at)
		return err
	})
	return found, to, err
}

func await(ctx context.Context, moved <-chan struct{}) error {
	select {
	case <-moved:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Event returns every generation of an accepted event, oldest first; none when the key is not known.
func (q *Query) Event(ctx context.Context, key ledger.Key) (found []Entry, err error) {
	if !ledger.ValidID(key.ContractID, ledger.MaxIDLen) || !ledger.ValidID(key.EventID, ledger.MaxIDLen) || key.Sequence < 0 {
		return nil, nil
	}
	at, err := q.generations(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("find event %s: %w", key, err)
	}
	return q.Entries(ctx, at)
}

// generations asks the ledger where the key's newest record is, and follows what each supersedes.
func (q *Query) generations(ctx context.Context, key ledger.Key) (at []ledger.Position, err error) {
	found, err := q.p.c.Reader.Find(ctx, []ledger.Key{key})
	if err != nil || !found[0].Known() {
		return nil, err
	}
	for revision := found[0].Revision; revision != ledger.Absent; {
		rec, err := q.recordAt(ctx, key.Stream(), revision)
		if err != nil {
			return nil, err
		}
		at, revision = append(at, rec.Position), rec.Body.Supersedes
	}
	slices.Reverse(at)
	return at, nil
}

func (q *Query) recordAt(ctx context.Context, stream string, revision int64) (ledger.Record, error) {
	if revision < 0 {
		return ledger.Record{}, ledger.ErrNotFound
	}
	for rec, err := range q.p.c.Reader.Stream(ctx, stream, revision, false) {
		return rec, err
	}
	return ledger.Record{}, ledger.ErrNotFound
}

// EntryAt returns the entry of a stream's revision, nil when there is none.
func (q *Query) EntryAt(ctx context.Context, stream string, revision int64) (*Entry, error) {
	rec, err := q.recordAt(ctx, stream, revision)
	if errors.Is(err, ledger.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", stream, err)
	}
	found, err := q.Entries(ctx, []ledger.Position{rec.Position})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// Entries returns the entries at the positions, in the order asked, without those where there is none.
func (q *Query) Entries(_ context.Context, positions []ledger.Position) (found []Entry, err error) {
	err = q.on("history", func(_ *moment, v *view) error {
		found, err = v.entries(positions)
		return err
	})
	return found, err
}

// Neighbours returns the entries before and after e in its contract's history, nil at its ends.
func (q *Query) Neighbours(ctx context.Context, e *Entry) (previous, next *Entry, err error) {
	if e.ContractID == "" {
		return nil, nil, nil
	}
	err = q.on("history", func(_ *moment, v *view) error {
		if previous, err = v.beside(ctx, e, Desc); err == nil {
			next, err = v.beside(ctx, e, Asc)
		}
		return err
	})
	return previous, next, err
}

func (v *view) beside(ctx context.Context, e *Entry, order Order) (*Entry, error) {
	r := HistoryRequest{ContractID: e.ContractID, Order: order}
	at, err := first(ctx, v.lines(&r, v.at.position), span{after: appendNumbers(nil, uint64(e.Position))})
	if err != nil || at == nil {
		return nil, err
	}
	found, err := v.entries([]ledger.Position{*at})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// Findings returns a page of a contract's findings. They are always the latest: filling a gap takes
// its finding away from later pages too.
func (q *Query) Findings(ctx context.Context, contractID string, page Page) (found FindingPage, err error) {
	p, err := page.check(q.sealer("findings", contractID))
	if err != nil {
		return found, err
	}
	err = q.on("findings", func(_ *moment, v *view) error {
		if err := q.settle(ctx, &p, v.at.position); err != nil {
			return err
		}
		if found.AsOf = v.at.position; !ledger.ValidID(contractID, ledger.MaxIDLen) {
			return nil
		}
		if found.Findings, found.cursors, found.Info, err = fetch(ctx, &p, v.findings(contractID)); err != nil {
			return err
		}
		found.Total, err = v.foundIn(contractID)
		return err
	})
	return found, err
}

// Payloads reads the payloads of the entries from the ledger, canonical JSON; nil for rejected ones. A record that is not
// as it was written is shown to nobody: ledger.ErrDamaged.
func (q *Query) Payloads(ctx context.Context, entries []Entry) ([][]byte, error) {
	payloads := make([][]byte, len(entries))
	var positions []ledger.Position
	var of []int
	for i := range entries {
		if entries[i].Status == ledger.StatusAccepted {
			positions, of = append(positions, entries[i].Position), append(of, i)
		}
	}
	if len(positions) == 0 {
		return payloads, nil
	}
	recs, err := q.p.c.Reader.Read(ctx, positions)
	if err != nil {
		return nil, fmt.Errorf("read %d payloads: %w", len(positions), err)
	}
	for i := range recs {
		r, e := &recs[i], &entries[of[i]]
		if err := r.Check(r.Header.Prev); err != nil {
			return nil, fmt.Errorf("position %s: %w: %w", r.Position, err, ledger.ErrDamaged)
		}
		if !r.Leaf.Equal(e.LeafHash) {
			return nil, fmt.Errorf("position %s: the record is not the one that was taken into the history: %w", r.Position, ledger.ErrDamaged)
		}
		payloads[of[i]] = r.Body.Payload
	}
	return payloads, nil
}

// States says where each projection stands.
func (q *Query) States(ctx context.Context) ([]State, error) { return q.p.states(ctx), ctx.Err() }

// Wait returns when the projections have taken in the record at the position. Failed ones are not
// waited for. ErrNotCaughtUp after two seconds; ledger.ErrBeyondHead when the ledger does not reach so far.
func (q *Query) Wait(ctx context.Context, atLeast ledger.Position) error {
	reached, moved := q.p.reached(atLeast)
	if reached {
		return nil
	}
	if err := q.belowHead(ctx, atLeast); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, waitAtMost)
	defer cancel()
	for !reached {
		if await(bounded, moved) != nil && ctx.Err() == nil {
			return fmt.Errorf("position %s: %w", atLeast, ErrNotCaughtUp)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		reached, moved = q.p.reached(atLeast)
	}
	return nil
}

func (q *Query) belowHead(ctx context.Context, p ledger.Position) error {
	head, err := q.p.c.Reader.Head(ctx)
	if err != nil {
		return fmt.Errorf("read the head of the ledger: %w", err)
	}
	if p > head {
		return fmt.Errorf("position %s: %w", p, ledger.ErrBeyondHead)
	}
	return nil
}

// ActiveKeys is how many accepted events are still bound to their keys at the time: those whose
// window has not passed.
func (q *Query) ActiveKeys(now time.Time) (n int64, err error) {
	err = q.on("stats", func(_ *moment, v *view) error {
		n, err = v.activeKeys(context.Background(), now.UnixMilli())
		return err
	})
	return n, err
}

// Evictions is how often a key came back after its window had passed and was accepted anew.
func (q *Query) Evictions() (n int64, err error) {
	err = q.on("stats", func(_ *moment, v *view) error {
		n, err = v.counter(metricKey(v.prefix, allHours, metricEvictions))
		return err
	})
	return n, err
}

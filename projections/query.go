package projections

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

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

	q   *Query
	req HistoryRequest
}

// Cursor is the cursor of the i-th entry of the page.
func (p *HistoryPage) Cursor(i int) string { return "" }

// Total is how many entries all pages have together. It is counted when asked for; nil when the
// history is filtered and more than MaxTotal entries are left.
func (p *HistoryPage) Total(ctx context.Context) (*int64, error) { return nil, errors.ErrUnsupported }

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

	q   *Query
	req ContractsRequest
}

// Cursor is the cursor of the i-th contract of the page.
func (p *ContractPage) Cursor(i int) string { return "" }

// Total is how many contracts all pages have together, as in HistoryPage.
func (p *ContractPage) Total(ctx context.Context) (*int64, error) { return nil, errors.ErrUnsupported }

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

	cursors []string
}

// Cursor is the cursor of the i-th finding of the page.
func (p *FindingPage) Cursor(i int) string { return p.cursors[i] }

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
type Query struct{}

// Stats returns the numbers of the whole ledger or of a time range.
func (q *Query) Stats(ctx context.Context, r StatsRequest) (Stats, error) {
	return Stats{}, errors.ErrUnsupported
}

// Contracts lists contracts. As of a position there are those that had an entry by then; their
// numbers are always the latest.
func (q *Query) Contracts(ctx context.Context, r ContractsRequest) (ContractPage, error) {
	return ContractPage{}, errors.ErrUnsupported
}

// Contract returns one contract, nil when it is not known.
func (q *Query) Contract(ctx context.Context, contractID string) (*Contract, error) {
	return nil, errors.ErrUnsupported
}

// History returns a page of the history of a contract or of the whole ledger. An unknown contract's is empty.
func (q *Query) History(ctx context.Context, r HistoryRequest) (HistoryPage, error) {
	return HistoryPage{}, errors.ErrUnsupported
}

// Follow yields the entries after the position that meet the request's contract and filter, in ledger
// order, then waits for more until ctx ends. Order and Page of the request are not used. The error
// that ends it is the last thing yielded; ctx's end is one too.
func (q *Query) Follow(ctx context.Context, r HistoryRequest, after ledger.Position) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) { yield(Entry{}, errors.ErrUnsupported) }
}

// Event returns every generation of an accepted event, oldest first; none when the key is not known.
func (q *Query) Event(ctx context.Context, key ledger.Key) ([]Entry, error) {
	return nil, errors.ErrUnsupported
}

// EntryAt returns the entry of a stream's revision, nil when there is none.
func (q *Query) EntryAt(ctx context.Context, stream string, revision int64) (*Entry, error) {
	return nil, errors.ErrUnsupported
}

// Entries returns the entries at the positions, in the order asked, without those where there is none.
func (q *Query) Entries(ctx context.Context, positions []ledger.Position) ([]Entry, error) {
	return nil, errors.ErrUnsupported
}

// Neighbours returns the entries before and after e in its contract's history, nil at its ends.
func (q *Query) Neighbours(ctx context.Context, e *Entry) (previous, next *Entry, err error) {
	return nil, nil, errors.ErrUnsupported
}

// Findings returns a page of a contract's findings.
func (q *Query) Findings(ctx context.Context, contractID string, page Page) (FindingPage, error) {
	return FindingPage{}, errors.ErrUnsupported
}

// Payloads reads the payloads of the entries from the ledger, canonical JSON; nil for rejected ones.
func (q *Query) Payloads(ctx context.Context, entries []Entry) ([][]byte, error) {
	return nil, errors.ErrUnsupported
}

// States says where each projection stands.
func (q *Query) States(ctx context.Context) ([]State, error) { return nil, errors.ErrUnsupported }

// Wait returns when the projections have taken in the record at the position. Failed ones are not
// waited for. ErrNotCaughtUp after two seconds; ledger.ErrBeyondHead when the ledger does not reach so far.
func (q *Query) Wait(ctx context.Context, atLeast ledger.Position) error {
	return errors.ErrUnsupported
}

// ActiveKeys is how many accepted events are still bound to their keys at the time: those whose
// window has not passed.
func (q *Query) ActiveKeys(now time.Time) (int64, error) { return 0, errors.ErrUnsupported }

// Evictions is how often a key came back after its window had passed and was accepted anew.
func (q *Query) Evictions() (int64, error) { return 0, errors.ErrUnsupported }

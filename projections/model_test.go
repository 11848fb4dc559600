package projections

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// book is a ledger in memory: what projections follow, made of real records.
type book struct {
	mu         sync.Mutex // guards all below
	records    []ledger.Record
	streams    map[string][]int
	heads      map[string]ledger.StreamHead
	found      map[ledger.Key]ledger.Found
	moved      chan struct{}
	broken     error           // of Follow
	breakAfter ledger.Position // Follow ends with an error there; 0: nowhere
	batch      int             // records that Follow yields at once; 0: all there are
	alone      bool            // Follow does not say that there is more, so that each batch is taken in on its own
	stride     int             // between positions; 1 when 0
}

var _ Reader = (*book)(nil)

func newBook() *book {
	b := &book{streams: map[string][]int{}, heads: map[string]ledger.StreamHead{}, found: map[ledger.Key]ledger.Found{}, moved: make(chan struct{})}
	b.add(ledger.Creation(ledgertest.Epoch))
	return b
}

// add decides the entries one by one, as a store does, and returns the outcomes' positions; 0 for
// what was not stored.
func (b *book) add(entries ...*ledger.Entry) (at []ledger.Position) {
	for _, e := range entries {
		b.mu.Lock()
		head, ok := b.heads[e.Header.Stream]
		if !ok {
			head = ledger.EmptyStream
		}
		d := ledger.Decide(e, head, b.found[e.Key()])
		b.mu.Unlock()
		if d.Verdict != ledger.Accepted {
			at = append(at, 0)
			continue
		}
		r, _ := e.Record(d, head, 0)
		at = append(at, b.put(r))
	}
	return at
}

// put stores a record as it is.
func (b *book) put(r ledger.Record) ledger.Position {
	b.mu.Lock()
	defer b.mu.Unlock()
	r.Position = ledger.Position(max(b.stride, 1) * (len(b.records) + 1))
	b.streams[r.Header.Stream] = append(b.streams[r.Header.Stream], len(b.records))
	head, ok := b.heads[r.Header.Stream]
	if !ok {
		head = ledger.EmptyStream
	}
	b.heads[r.Header.Stream] = head.After(&r)
	if r.Header.Type == ledger.EventAccepted {
		b.found[r.Header.Key()] = ledger.FoundIn(&r)
	}
	b.records = append(b.records, r)
	close(b.moved)
	b.moved = make(chan struct{})
	return r.Position
}

func (b *book) all() []ledger.Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.records)
}

func (b *book) setBroken(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken = err
	close(b.moved)
	b.moved = make(chan struct{})
}

func (b *book) Head(context.Context) (ledger.Position, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.records[len(b.records)-1].Position, nil
}

func (b *book) Find(_ context.Context, keys []ledger.Key) ([]ledger.Found, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	found := make([]ledger.Found, len(keys))
	for i, k := range keys {
		found[i] = b.found[k]
	}
	return found, nil
}

func (b *book) Read(_ context.Context, positions []ledger.Position) (recs []ledger.Record, err error) {
	all := b.all()
	for _, p := range positions {
		i, ok := slices.BinarySearchFunc(all, p, func(r ledger.Record, p ledger.Position) int { return cmp.Compare(r.Position, p) })
		if !ok {
			return nil, fmt.Errorf("position %s: %w", p, ledger.ErrNotFound)
		}
		recs = append(recs, all[i])
	}
	return recs, nil
}

func (b *book) Stream(_ context.Context, stream string, from int64, backwards bool) iter.Seq2[ledger.Record, error] {
	if backwards {
		panic("projections do not read backwards")
	}
	b.mu.Lock()
	var recs []ledger.Record
	for _, i := range b.streams[stream][min(int(from), len(b.streams[stream])):] {
		recs = append(recs, b.records[i])
	}
	b.mu.Unlock()
	return func(yield func(ledger.Record, error) bool) {
		for _, r := range recs {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func (b *book) Follow(ctx context.Context, after ledger.Position) iter.Seq2[ledger.Batch, error] {
	return func(yield func(ledger.Batch, error) bool) {
		for {
			batch, moved, err := b.next(after)
			if err == nil && ctx.Err() == nil && len(batch.Records) == 0 {
				select {
				case <-moved:
					continue
				case <-ctx.Done():
				}
			}
			if err = firstOf(ctx.Err(), err); err != nil {
				yield(ledger.Batch{}, err)
				return
			}
			if !yield(batch, nil) {
				return
			}
			after = batch.Records[len(batch.Records)-1].Position
		}
	}
}

func (b *book) next(after ledger.Position) (ledger.Batch, <-chan struct{}, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	head := b.records[len(b.records)-1].Position
	if after > head {
		return ledger.Batch{}, nil, ledger.ErrBeyondHead
	}
	from := 0
	for from < len(b.records) && b.records[from].Position <= after {
		from++
	}
	to := len(b.records)
	if b.batch > 0 {
		to = min(to, from+b.batch)
	}
	batch := ledger.Batch{Records: b.records[from:to], Head: head, Behind: int64(len(b.records) - to)}
	if b.alone {
		batch.Behind = 0
	}
	if b.breakAfter > 0 && after >= b.breakAfter && len(batch.Records) > 0 {
		return batch, b.moved, errors.New("the ledger cannot be read here")
	}
	return batch, b.moved, b.broken
}

// accepted makes the entry of an event; edit may change it before it is sealed.
func accepted(contract, event string, sequence, ms int64, edit ...func(*ledger.Entry)) *ledger.Entry {
	e := ledgertest.Event(ledger.Key{ContractID: contract, EventID: event, Sequence: sequence}, `{}`, ms)
	for _, f := range edit {
		f(e)
	}
	e.Seal()
	return e
}

// rejected makes the entry of a refused event; contract may be "".
func rejected(contract, event string, sequence int64, code string, ms int64) *ledger.Entry {
	e := ledgertest.Rejected("because", ms)
	e.Header.ContractID, e.Header.EventID, e.Header.Sequence, e.Header.Code = contract, event, sequence, code
	e.Seal()
	return e
}

// counted makes the entry of counts of repeats.
func counted(ms int64, counts ...ledger.Count) *ledger.Entry {
	e := &ledger.Entry{Header: ledger.Header{
		V: ledger.Version, Type: ledger.DuplicatesCounted, Stream: "duplicates-suite", Sequence: ledger.Absent, Timestamp: ledger.Absent,
		Generation: ledger.Absent, RecordedAt: ledgertest.Epoch.UnixMilli() + ms,
	}}
	e.Body = ledger.Body{Supersedes: ledger.Absent, Counts: counts}
	e.Seal()
	return e
}

// scribble appends n random entries of every kind.
func scribble(b *book, rnd *rand.Rand, n int) {
	for range n {
		b.mu.Lock()
		ms := int64(len(b.records)) * 7 * 60_000 // the hours go by
		if rnd.IntN(10) == 0 {
			ms -= rnd.Int64N(5 * hourMillis) // but the clock steps back now and then
		}
		records := len(b.records)
		b.mu.Unlock()
		contract := []string{"a", "a-", "b@x.y", "C"}[rnd.IntN(4)]
		sequence := int64(rnd.IntN(30))
		event := fmt.Sprint("e", rnd.IntN(40))
		switch rnd.IntN(10) {
		case 0:
			code := []string{ledger.CodePayloadConflict, ledger.CodeConflict, ledger.CodeInvalidEvent, ledger.CodeTooOld}[rnd.IntN(4)]
			b.add(rejected(contract, event, sequence, code, ms))
		case 1:
			b.add(rejected("", "", ledger.Absent, ledger.CodeInvalidEvent, ms))
		case 2:
			b.scribbleCounts(rnd, ms, records)
		case 3:
			b.add(&ledger.Entry{Header: ledger.Header{V: 1, Type: ledger.AccessRecorded, Stream: "access-suite", Sequence: ledger.Absent, Generation: ledger.Absent, Timestamp: ledger.Absent, RecordedAt: 1}, Body: ledger.Body{Supersedes: ledger.Absent}})
		default:
			b.add(accepted(contract, event, sequence, ms, func(e *ledger.Entry) {
				e.Window = []int64{0, 1, 600_000, 5 * 24 * hourMillis}[rnd.IntN(4)]
				e.Header.ContractType = []string{"t", "u", "other"}[rnd.IntN(3)]
				e.Header.Source = []string{"s1", "s2"}[rnd.IntN(2)]
				e.Header.Timestamp -= rnd.Int64N(hourMillis)
				e.Body.Sanitized, e.Body.Late = rnd.IntN(15) == 0, rnd.IntN(15) == 0
				if rnd.IntN(8) == 0 {
					e.Body.SequencePolicy, e.Header.Timestamp = ledger.SequenceFree, ledger.Absent
				}
			}))
		}
	}
}

func (b *book) scribbleCounts(rnd *rand.Rand, ms int64, records int) {
	var counts []ledger.Count
	for range 1 + rnd.IntN(3) {
		r := b.all()[rnd.IntN(records)]
		if t := r.Header.Type; t == ledger.EventAccepted || t == ledger.EventRejected {
			counts = append(counts, ledger.Count{Stream: r.Header.Stream, Revision: r.Header.Revision, Count: 1 + rnd.Int64N(5), LastSeen: ms})
		}
	}
	if len(counts) > 0 {
		b.add(counted(ms, counts...))
	}
}

// model is what the projections should say, made anew from all records in the simplest way.
type model struct {
	entries   []Entry
	stats     Stats
	byHour    map[int64]*Tally
	contracts map[string]*Contract
	findings  map[string][]Finding
	bound     []int64
	evictions int64
}

func modelOf(recs []ledger.Record) *model {
	m := &model{byHour: map[int64]*Tally{}, contracts: map[string]*Contract{}, findings: map[string][]Finding{}}
	types, codes := map[string]int64{}, map[string]int64{}
	byID := map[recordID]int{}
	for i := range recs {
		h, y := &recs[i].Header, &recs[i].Body
		hour := h.RecordedAt / hourMillis
		if m.byHour[hour] == nil {
			m.byHour[hour] = &Tally{}
		}
		t := m.byHour[hour]
		if h.Type == ledger.DuplicatesCounted {
			for _, c := range y.Counts {
				e := &m.entries[byID[recordID{c.Stream, c.Revision}]]
				e.Duplicates += c.Count
				e.LastDuplicateAt = max(e.LastDuplicateAt, c.LastSeen)
				of := m.contracts[e.ContractID]
				if of == nil {
					of = &Contract{}
				}
				if e.Status == ledger.StatusAccepted {
					t.Duplicates += c.Count
					of.Duplicates += c.Count
					continue
				}
				m.reject(t, of, e.Code, c.Count)
				codes[e.Code] += c.Count
			}
			continue
		}
		if h.Type != ledger.EventAccepted && h.Type != ledger.EventRejected {
			continue
		}
		e := Entry{
			Position: recs[i].Position, Stream: h.Stream, Revision: h.Revision, ContractID: h.ContractID, EventID: h.EventID, Sequence: h.Sequence,
			ContractType: h.ContractType, Generation: h.Generation, Supersedes: y.Supersedes, PayloadChanged: y.PayloadChanged, Status: ledger.StatusAccepted,
			Code: h.Code, Reason: y.Reason, Timestamp: h.Timestamp, ProcessedAt: h.RecordedAt, PayloadHash: y.PayloadHash, LeafHash: recs[i].Leaf,
			Source: h.Source, CorrelationID: y.CorrelationID, Sanitized: y.Sanitized, Late: y.Late,
		}
		if h.Type == ledger.EventRejected {
			e.Status = ledger.StatusRejected
		}
		byID[recordID{h.Stream, h.Revision}] = len(m.entries)
		m.entries = append(m.entries, e)
		c := m.contracts[h.ContractID]
		if c == nil && h.ContractID != "" {
			c = &Contract{ContractID: h.ContractID, FirstProcessedAt: h.RecordedAt, LastSequence: ledger.Absent, LowestSequence: ledger.Absent, HighestSequence: ledger.Absent}
			m.contracts[h.ContractID] = c
			t.Contracts++
		} else if c == nil {
			c = &Contract{}
		}
		c.LastProcessedAt, c.LastPosition = h.RecordedAt, recs[i].Position
		if e.Status == ledger.StatusRejected {
			m.reject(t, c, h.Code, 1)
			codes[h.Code]++
			continue
		}
		t.Accepted++
		c.Accepted++
		c.Type, c.LastSequence = h.ContractType, h.Sequence
		if c.LowestSequence == ledger.Absent || c.LowestSequence > h.Sequence {
			c.LowestSequence = h.Sequence
		}
		c.HighestSequence = max(c.HighestSequence, h.Sequence)
		types[h.ContractType]++
		m.bound = append(m.bound, y.BoundUntil)
		if h.Generation > 1 {
			m.evictions++
		}
	}
	for _, t := range m.byHour {
		m.stats.add(*t)
	}
	m.stats.ByContractType, m.stats.ByCode = namedOf(types), namedOf(codes)
	for id := range m.contracts {
		m.findings[id] = findingsOf(recs, id)
	}
	return m
}

func (m *model) reject(t *Tally, c *Contract, code string, n int64) {
	t.Rejected += n
	c.Rejected += n
	if isConflict(code) {
		t.Conflicts += n
		c.Conflicts += n
	}
}

func namedOf(counts map[string]int64) []Named {
	named := []Named{}
	for name, n := range counts {
		named = append(named, Named{name, n})
	}
	slices.SortFunc(named, func(a, b Named) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Name, b.Name))
	})
	return named
}

// findingsOf looks at a contract's records with a set of all sequences it has seen.
func findingsOf(recs []ledger.Record, id string) (found []Finding) {
	seen := map[int64]ledger.Position{}
	again := map[int64][]ledger.Position{}
	low, high := int64(ledger.Absent), int64(ledger.Absent)
	one := func(kind FindingKind, r *ledger.Record) {
		seq := r.Header.Sequence
		found = append(found, Finding{Kind: kind, FromSequence: seq, ToSequence: seq, Positions: []ledger.Position{r.Position}})
	}
	for i := range recs {
		r := &recs[i]
		switch h, y := &r.Header, &r.Body; {
		case h.ContractID != id:
		case h.Type == ledger.EventRejected && isConflict(h.Code):
			one(Conflict, r)
		case h.Type != ledger.EventAccepted:
		case h.Generation > 1:
			one(Reingested, r)
		default:
			if y.Sanitized {
				one(Sanitized, r)
			}
			if y.Late {
				one(Late, r)
			}
			if y.SequencePolicy == ledger.SequenceFree {
				break
			}
			if _, ok := seen[h.Sequence]; ok {
				again[h.Sequence] = append(again[h.Sequence], r.Position)
				break
			}
			if h.Sequence < high {
				one(SequenceRegression, r)
			}
			seen[h.Sequence] = r.Position
			if high = max(high, h.Sequence); low == ledger.Absent || h.Sequence < low {
				low = h.Sequence
			}
		}
	}
	for seq := low; seq < high; seq++ {
		if _, ok := seen[seq]; ok {
			continue
		}
		g := Finding{Kind: SequenceGap, FromSequence: seq, Positions: []ledger.Position{seen[seq-1]}}
		for seen[seq+1] == 0 {
			seq++
		}
		g.ToSequence, g.Positions = seq, append(g.Positions, seen[seq+1])
		found = append(found, g)
	}
	for seq, at := range again {
		f := Finding{Kind: SequenceReused, FromSequence: seq, ToSequence: seq, Positions: at[:1]}
		if len(at) > 1 {
			f.Positions = append(f.Positions, at[len(at)-1])
		}
		found = append(found, f)
	}
	slices.SortFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(slices.Index(kinds[:], a.Kind), slices.Index(kinds[:], b.Kind)), cmp.Compare(a.FromSequence, b.FromSequence), cmp.Compare(a.Positions[0], b.Positions[0]))
	})
	return found
}

// running opens projections of the reader and runs them until the test ends, or until stop is called.
func running(t *testing.T, c Config, known []projection) (p *Projections, stop func()) {
	t.Helper()
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	c.Logger = slog.New(slog.DiscardHandler)
	p, err := open(t.Context(), c, known)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	t.Cleanup(stop)
	return p, stop
}

// caughtUp returns projections that have taken in all that is in the book.
func caughtUp(t *testing.T, b *book) *Projections {
	t.Helper()
	p, _ := running(t, Config{Reader: b}, shipped())
	wait(t, p, b)
	return p
}

func wait(t *testing.T, p *Projections, b *book) {
	t.Helper()
	head, _ := b.Head(t.Context())
	until(t, func() bool {
		ok, _ := p.reached(head)
		return ok
	})
}

// until polls, because what it waits for happens in the system's time.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen within 30 s")
		}
	}
}

// digests returns the digest of each projection.
func digests(t *testing.T, p *Projections) map[string]ledger.Hash {
	t.Helper()
	all := map[string]ledger.Hash{}
	for _, known := range p.known {
		h, _, err := p.Digest(t.Context(), known.name)
		if err != nil {
			t.Fatal(err)
		}
		all[known.name] = h
	}
	return all
}

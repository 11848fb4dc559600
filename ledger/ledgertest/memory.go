package ledgertest

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/talenttrust/auditledger/ledger"
)

// Backend is a server with optimistic streams, in memory: an append names the revision that the
// stream must have, and repeating one that was stored at exactly that place succeeds without a
// trace, whatever it carries. It forgets nothing and decides nothing.
type Backend struct {
	mu      sync.Mutex // guards all below
	all     []stored
	streams map[string][]int // indexes into all
	moved   chan struct{}
}

// stored is a record and who wrote it.
type stored struct {
	record ledger.Record
	token  uint64
	id     string
}

// eventID is all that the backend compares: of the key and generation where there is one, else of
// the logical append.
func eventID(r *ledger.Record, token uint64) string {
	if r.Header.Type == ledger.EventAccepted {
		return r.Header.Key().ID(r.Header.Generation).String()
	}
	return fmt.Sprint(token)
}

// NewBackend returns an empty server.
func NewBackend() *Backend {
	return &Backend{streams: map[string][]int{}, moved: make(chan struct{})}
}

// append stores the record as the stream's revision. It is false when a record with another ID is there.
func (b *Backend) append(r ledger.Record, token uint64) (ok bool) {
	id := eventID(&r, token)
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.streams[r.Header.Stream]
	if rev := int(r.Header.Revision); rev < len(s) {
		return b.all[s[rev]].id == id
	}
	r.Position = ledger.Position(len(b.all) + 1)
	b.streams[r.Header.Stream] = append(s, len(b.all))
	b.all = append(b.all, stored{r, token, id})
	close(b.moved)
	b.moved = make(chan struct{})
	return true
}

func (b *Backend) stream(name string, from int) []stored {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []stored
	for _, i := range b.streams[name][min(from, len(b.streams[name])):] {
		out = append(out, b.all[i])
	}
	return out
}

// Memory is a ledger.Store over a Backend, as an instance in front of a cluster is: it learns of a
// stream by reading it, appends at an exact revision, and reads back to see whose record is there.
// Faults happen to it at random. All it knows of decisions is ledger.Decide.
type Memory struct {
	backend *Backend
	faults  Faults

	mu  sync.Mutex // guards rnd
	rnd *rand.Rand
}

var _ ledger.Store = (*Memory)(nil)

// Faults are probabilities, from 0 to 1, per attempt to append.
type Faults struct {
	LostRace   float64 // another writer gets in between the decision and the append
	LostAnswer float64 // the append is stored and its answer is lost; the attempt is repeated
	LostCall   float64 // the append is lost on the way; the attempt is repeated
	Twin       float64 // another instance appends the same event at the same moment
}

// OpenMemory returns an instance in front of the backend; the first one creates the ledger.
func OpenMemory(b *Backend, f Faults, seed uint64) *Memory {
	m := &Memory{backend: b, faults: f, rnd: rand.New(rand.NewPCG(seed, 1))}
	creation := ledger.Creation(Epoch)
	rec, _ := creation.Record(ledger.Decide(creation, ledger.EmptyStream, ledger.Found{}), ledger.EmptyStream, 0)
	b.mu.Lock()
	empty := len(b.all) == 0
	b.mu.Unlock()
	if empty {
		b.append(rec, m.token())
	}
	return m
}

func (m *Memory) token() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rnd.Uint64()
}

func (m *Memory) happens(p float64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return p > 0 && m.rnd.Float64() < p
}

// Append implements ledger.Store.
func (m *Memory) Append(ctx context.Context, entries []*ledger.Entry) ([]ledger.Outcome, error) {
	outcomes := make([]ledger.Outcome, len(entries))
	for i, e := range entries {
		var err error
		if outcomes[i], err = m.appendOne(ctx, e); err != nil {
			return nil, err
		}
	}
	return outcomes, nil
}

func (m *Memory) appendOne(ctx context.Context, e *ledger.Entry) (o ledger.Outcome, err error) {
	token := m.token()
	for ctx.Err() == nil {
		head, found := m.state(e)
		o.Decision = ledger.Decide(e, head, found)
		if o.Verdict != ledger.Accepted {
			o.Position, o.Revision = found.Position, found.Revision
			return o, nil
		}
		rec, _ := e.Record(o.Decision, head, 0)
		if m.happens(m.faults.LostRace) {
			m.disturb(e)
		}
		if m.happens(m.faults.Twin) {
			m.twin(e)
		}
		if !m.attempt(rec, token) {
			continue // the stream has moved on: learn what is new and decide again
		}
		if back := m.backend.stream(rec.Header.Stream, int(rec.Header.Revision))[0]; back.token == token {
			o.Position, o.Revision, o.Leaf = back.record.Position, back.record.Header.Revision, back.record.Leaf
			return o, nil
		}
	}
	return o, fmt.Errorf("%w: %w", ctx.Err(), ledger.ErrUnavailable)
}

// attempt appends the same record until there is an answer.
func (m *Memory) attempt(rec ledger.Record, token uint64) bool {
	for {
		if m.happens(m.faults.LostCall) {
			continue
		}
		ok := m.backend.append(rec, token)
		if !m.happens(m.faults.LostAnswer) {
			return ok
		}
	}
}

// state reads the entry's stream from its beginning.
func (m *Memory) state(e *ledger.Entry) (ledger.StreamHead, ledger.Found) {
	head, found := ledger.EmptyStream, ledger.Found{}
	for _, s := range m.backend.stream(e.Header.Stream, 0) {
		head = head.After(&s.record)
		if e.Header.HasKey() && s.record.Header.Key() == e.Key() {
			found = ledger.FoundIn(&s.record)
		}
	}
	return head, found
}

// disturb appends an unrelated record to the entry's stream.
func (m *Memory) disturb(e *ledger.Entry) {
	other := *e
	other.Header.EventID = fmt.Sprintf("%s.race-%d", "other", m.token())
	other.Seal()
	m.store(&other)
}

// twin stores the same event, now and then with another payload, as another instance would.
func (m *Memory) twin(e *ledger.Entry) {
	other := *e
	other.Body.Salt[0]++
	if e.Header.Type == ledger.EventAccepted && m.happens(0.3) {
		other.Body.Payload = []byte(`{"twin":true}`)
		other.Body.PayloadHash = sumOf(other.Body.Payload)
	}
	other.Seal()
	m.store(&other)
}

func (m *Memory) store(e *ledger.Entry) {
	head, found := m.state(e)
	if d := ledger.Decide(e, head, found); d.Verdict == ledger.Accepted {
		rec, _ := e.Record(d, head, 0)
		m.backend.append(rec, m.token())
	}
}

// Find implements ledger.Store.
func (m *Memory) Find(_ context.Context, keys []ledger.Key) ([]ledger.Found, error) {
	found := make([]ledger.Found, len(keys))
	for i, k := range keys {
		_, found[i] = m.state(&ledger.Entry{Header: ledger.Header{Stream: k.Stream(), ContractID: k.ContractID, EventID: k.EventID, Sequence: k.Sequence}})
	}
	return found, nil
}

// Head implements ledger.Reader.
func (m *Memory) Head(context.Context) (ledger.Position, error) {
	m.backend.mu.Lock()
	defer m.backend.mu.Unlock()
	return ledger.Position(len(m.backend.all)), nil
}

// Read implements ledger.Reader.
func (m *Memory) Read(_ context.Context, positions []ledger.Position) ([]ledger.Record, error) {
	m.backend.mu.Lock()
	defer m.backend.mu.Unlock()
	recs := make([]ledger.Record, len(positions))
	for i, p := range positions {
		if p == 0 || int(p) > len(m.backend.all) {
			return nil, fmt.Errorf("position %d: %w", p, ledger.ErrNotFound)
		}
		recs[i] = m.backend.all[p-1].record
	}
	return recs, nil
}

// Stream implements ledger.Reader.
func (m *Memory) Stream(_ context.Context, stream string, from int64, backwards bool) iter.Seq2[ledger.Record, error] {
	recs := m.backend.stream(stream, 0)
	if backwards {
		recs = recs[:min(int(from)+1, len(recs))]
		slices.Reverse(recs)
	} else {
		recs = recs[min(int(max(from, 0)), len(recs)):]
	}
	return func(yield func(ledger.Record, error) bool) {
		for _, s := range recs {
			if !yield(s.record, nil) {
				return
			}
		}
	}
}

// Follow implements ledger.Reader.
func (m *Memory) Follow(ctx context.Context, after ledger.Position) iter.Seq2[ledger.Batch, error] {
	return func(yield func(ledger.Batch, error) bool) {
		if head, _ := m.Head(ctx); after > head {
			yield(ledger.Batch{}, ledger.ErrBeyondHead)
			return
		}
		for {
			batch, moved := m.after(after)
			if ctx.Err() == nil && len(batch.Records) == 0 {
				select {
				case <-moved:
					continue
				case <-ctx.Done():
				}
			}
			if ctx.Err() != nil {
				yield(ledger.Batch{}, ctx.Err())
				return
			}
			if !yield(batch, nil) {
				return
			}
			after = batch.Head
		}
	}
}

func (m *Memory) after(p ledger.Position) (ledger.Batch, <-chan struct{}) {
	m.backend.mu.Lock()
	defer m.backend.mu.Unlock()
	batch := ledger.Batch{Head: ledger.Position(len(m.backend.all))}
	for _, s := range m.backend.all[p:] {
		batch.Records = append(batch.Records, s.record)
	}
	return batch, m.backend.moved
}

// Close implements ledger.Store. The backend stays.
func (m *Memory) Close() error { return nil }

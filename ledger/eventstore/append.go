package eventstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/talenttrust/auditledger/ledger"
)

// part is what one call of Append has for one stream, on its way.
type part struct {
	stream   string
	entries  []*ledger.Entry
	at       []int // of the entries in the call
	outcomes []ledger.Outcome
	err      error
	stored   bool          // of the entries, some are stored by this part
	done     chan struct{} // closed when the above is final
}

// queue holds the parts that wait for their stream. One goroutine at a time works on a stream, so that
// an instance's own appends do not contend, and what has gathered meanwhile goes together.
type queue struct {
	stream string
	parts  []*part
}

// Append implements ledger.Store.
func (s *Store) Append(ctx context.Context, entries []*ledger.Entry) ([]ledger.Outcome, error) {
	if s.c.Import {
		return nil, fmt.Errorf("the store was opened to import records: %w", ledger.ErrUnavailable)
	}
	parts := split(entries)
	if err := s.enqueue(ctx, parts, len(entries)); err != nil {
		return nil, err
	}
	outcomes := make([]ledger.Outcome, len(entries))
	var first error
	stored := false
	for _, p := range parts {
		err := s.await(ctx, p)
		if err == nil {
			for i, o := range p.outcomes {
				outcomes[p.at[i]] = o
				stored = stored || o.Verdict == ledger.Accepted
			}
			continue
		}
		stored = stored || errors.Is(err, ledger.ErrUnknown)
		if first == nil {
			first = err
		}
	}
	if first == nil {
		return outcomes, nil
	}
	if stored && !errors.Is(first, ledger.ErrUnknown) {
		first = fmt.Errorf("other entries of the call are stored: %s: %w", first.Error(), ledger.ErrUnknown)
	}
	return nil, first
}

// split makes one part for each stream; in each, the entries keep their order.
func split(entries []*ledger.Entry) (parts []*part) {
	of := map[string]*part{}
	for i, e := range entries {
		p := of[e.Header.Stream]
		if p == nil {
			p = &part{stream: e.Header.Stream, done: make(chan struct{})}
			of[p.stream] = p
			parts = append(parts, p)
		}
		p.entries, p.at = append(p.entries, e), append(p.at, i)
	}
	for _, p := range parts {
		p.outcomes = make([]ledger.Outcome, len(p.entries))
	}
	return parts
}

// enqueue hands all parts to their streams, or none.
func (s *Store) enqueue(ctx context.Context, parts []*part, entries int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return unavailable(context.Cause(ctx))
	case s.closed:
		return fmt.Errorf("the store is closed: %w", ledger.ErrUnavailable)
	case s.waiting > 0 && s.waiting+entries > s.c.Queue:
		return fmt.Errorf("%d entries are waiting: %w", s.waiting, ledger.ErrBusy)
	}
	s.waiting += entries
	for _, p := range parts {
		q := s.queues[p.stream]
		if q == nil {
			q = &queue{stream: p.stream}
			s.queues[p.stream] = q
			s.running.Go(func() { s.work(q) })
		}
		q.parts = append(q.parts, p)
	}
	return nil
}

// await waits until a part is done or ctx ends. A part that nobody has taken yet is taken back.
func (s *Store) await(ctx context.Context, p *part) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[p.stream]; q != nil {
		if i := slices.Index(q.parts, p); i >= 0 {
			q.parts = slices.Delete(q.parts, i, i+1)
			s.waiting -= len(p.entries)
			return fmt.Errorf("the stream's turn did not come in time: %w: %w", context.Cause(ctx), ledger.ErrUnavailable)
		}
	}
	return fmt.Errorf("wait for the server: %w: %w", context.Cause(ctx), ledger.ErrUnknown)
}

// take returns what waits for a stream, as far as it goes into one append. None is left when it
// returns nothing, and then the queue is gone.
func (s *Store) take(q *queue) []*part {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, entries := 0, 0
	for n < len(q.parts) && (n == 0 || entries+len(q.parts[n].entries) <= maxEvents) {
		entries += len(q.parts[n].entries)
		n++
	}
	parts := slices.Clone(q.parts[:n])
	q.parts = slices.Delete(q.parts, 0, n)
	s.waiting -= entries
	if n == 0 {
		delete(s.queues, q.stream)
	}
	return parts
}

// work is the goroutine that appends to a stream as long as something waits for it.
func (s *Store) work(q *queue) {
	for {
		s.slots <- struct{}{}
		parts := s.take(q)
		if len(parts) > 0 {
			s.workOn(q.stream, parts)
		}
		<-s.slots
		if len(parts) == 0 {
			return
		}
	}
}

// workOn brings the entries of some parts to their outcomes.
func (s *Store) workOn(stream string, parts []*part) {
	ctx, cancel := context.WithTimeoutCause(s.life, s.c.Budget, fmt.Errorf("%s have passed", s.c.Budget))
	defer cancel()
	if parts[0].entries[0].Header.Type == ledger.DuplicatesCounted {
		ctx = s.life // counts that may be stored are never sent again: they are lost where this gives up
	}
	w := &writer{s: s, stream: stream}
	for _, p := range parts {
		for i, e := range p.entries {
			w.items = append(w.items, item{e, &p.outcomes[i], p})
		}
	}
	err := w.run(ctx)
	if err != nil {
		s.c.Logger.Debug("an append did not succeed", slog.String("stream", stream), slog.Int("entries", len(w.items)-w.decided), slog.Any("error", err))
	}
	for _, it := range w.items[w.decided:] {
		it.part.err = err
	}
	for _, p := range parts {
		if p.err != nil && p.stored && !errors.Is(p.err, ledger.ErrUnknown) {
			p.err = fmt.Errorf("entries before are stored: %s: %w", p.err.Error(), ledger.ErrUnknown)
		}
		close(p.done)
	}
}

// writer brings entries of one stream to their outcomes, in order.
type writer struct {
	s       *Store
	stream  string
	items   []item
	decided int  // of items, from the first on
	fresh   bool // the index was brought up to the stream's end after the entries had come
}

type item struct {
	entry   *ledger.Entry
	outcome *ledger.Outcome
	part    *part
}

// batch is what the next items would be, given the index: records to append, all at once or not at all.
type batch struct {
	items    int   // so many are decided by it
	head     int64 // revision before its records
	expected int64 // number of the stream's last event
	token    string
	records  []ledger.Record
	events   []event
	bytes    int
}

func (w *writer) run(ctx context.Context) error {
	for w.decided < len(w.items) {
		b, err := w.decide(ctx)
		stored := err == nil
		if stored && len(b.events) > 0 {
			stored, err = w.store(ctx, b)
		}
		if errors.Is(err, errDeleted) {
			return w.refuseAll(err)
		}
		if err != nil {
			return err
		}
		if stored {
			w.finish(b)
		}
	}
	return nil
}

// decide asks ledger.Decide for the items that come next, as many as go into one append. What is
// neither to be stored nor a duplicate is said only of an index that is up to the stream's end.
func (w *writer) decide(ctx context.Context) (*batch, error) {
	s := w.s
	head, _, err := s.index.Head(w.stream)
	if err != nil {
		return nil, unavailable(err)
	}
	if head.Revision < 0 && !w.fresh && s.index.Cursor() < s.start {
		return w.freshen(ctx) // the index has not seen all yet, and perhaps not this stream
	}
	b := &batch{head: head.Revision, expected: s.next(w.stream, head) - 1, token: newToken()}
	staged := map[ledger.Key]ledger.Found{}
	for _, it := range w.items[w.decided:] {
		e := it.entry
		found, ok := staged[e.Key()]
		if !ok && e.Header.Type == ledger.EventAccepted && e.Header.Sequence <= head.HighestSequence {
			if found, _, err = s.index.Key(e.Key()); err != nil {
				return nil, unavailable(err)
			}
		}
		o := ledger.Outcome{Decision: ledger.Decide(e, head, found)}
		switch o.Verdict {
		case ledger.Accepted:
			rec, _ := e.Record(o.Decision, head, 0)
			ev := encode(&rec, b.token)
			if ev.size() > maxBytes {
				if e.Header.Type != ledger.EventAccepted {
					return nil, fmt.Errorf("a record of type %s has %d bytes, at most %d can be stored: %w", e.Header.Type, ev.size(), maxBytes, ledger.ErrUnavailable)
				}
				o.Decision = ledger.TooLarge(ev.size(), maxBytes)
				break
			}
			if len(b.events) == maxEvents || b.bytes+ev.size() > maxBytes {
				return b, nil
			}
			b.records, b.events, b.bytes = append(b.records, rec), append(b.events, ev), b.bytes+ev.size()
			if head = head.After(&rec); e.Header.Type == ledger.EventAccepted {
				staged[e.Key()] = ledger.FoundIn(&rec)
			}
			o.Revision, o.Leaf = rec.Header.Revision, rec.Leaf
		case ledger.Duplicate:
			o.Position, o.Revision = found.Position, found.Revision
		default:
			o.Position, o.Revision = found.Position, found.Revision
			if !w.fresh {
				return w.freshen(ctx)
			}
		}
		*it.outcome = o
		b.items++
	}
	return b, nil
}

// freshen brings the index up to the stream's end and decides again.
func (w *writer) freshen(ctx context.Context) (*batch, error) {
	if err := w.s.fill(ctx, w.stream); err != nil {
		return nil, err
	}
	w.fresh = true
	return w.decide(ctx)
}

// finish makes the outcomes of a batch final. What refers to a record of the batch gets its position.
func (w *writer) finish(b *batch) {
	position := func(revision int64) (ledger.Position, bool) {
		if i := revision - b.head - 1; i >= 0 && i < int64(len(b.records)) {
			return b.records[i].Position, true
		}
		return 0, false
	}
	for _, it := range w.items[w.decided : w.decided+b.items] {
		o := it.outcome
		if p, ok := position(o.First.Revision); ok && o.First.Known() {
			o.First.Position = p
		}
		if p, ok := position(o.Revision); ok && o.Verdict != ledger.Refused {
			o.Position = p
		}
		it.part.stored = it.part.stored || o.Verdict == ledger.Accepted
	}
	w.decided += b.items
}

// refuseAll answers for a stream that takes nothing any more: what is in it is a duplicate still.
func (w *writer) refuseAll(cause error) error {
	s := w.s
	s.c.Logger.Error("a stream of the ledger was deleted on the server: nothing can be added to it", slog.String("stream", w.stream), slog.Any("error", cause))
	for _, it := range w.items[w.decided:] {
		e := it.entry
		if e.Header.Type != ledger.EventAccepted {
			return fmt.Errorf("stream %s: %w: %w", w.stream, cause, ledger.ErrUnavailable)
		}
		head, _, err := s.index.Head(w.stream)
		if err != nil {
			return unavailable(err)
		}
		found, _, err := s.index.Key(e.Key())
		if err != nil {
			return unavailable(err)
		}
		o := ledger.Outcome{Decision: ledger.Decide(e, head, found), Position: found.Position, Revision: found.Revision}
		if o.Verdict == ledger.Accepted {
			o = ledger.Outcome{Decision: ledger.Closed()}
		}
		*it.outcome = o
		w.decided++
	}
	return nil
}

// store appends a batch. It is false when other records stand at its place; the index knows them then.
func (w *writer) store(ctx context.Context, b *batch) (bool, error) {
	s := w.s
	maybe := false // an earlier try may have stored it
	cut := 0
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		_, err := s.client.append(ctx, w.stream, b.expected, b.events)
		switch {
		case err == nil || errors.Is(err, errWrongRevision):
			return w.settle(ctx, b, err == nil)
		case errors.Is(err, errDeleted):
			return false, err
		case errors.Is(err, errDenied), errors.Is(err, errRefused):
			s.c.Logger.Error("the server refuses to store events", slog.String("stream", w.stream), slog.Any("error", err))
			return false, failed(maybe, err)
		case errors.Is(err, errNotSent), errors.Is(err, errNotLeader):
		default:
			maybe = true
		}
		if errors.Is(err, errCutShort) {
			if cut++; cut >= 2 {
				if cause := s.probe(ctx, w.stream); cause != nil {
					return false, failed(maybe, cause)
				}
			}
		}
		if ctx.Err() != nil || pause(ctx, jitter(wait)) != nil {
			return false, failed(maybe, fmt.Errorf("%w: %w", context.Cause(ctx), err))
		}
	}
}

func failed(maybe bool, err error) error {
	if maybe {
		return fmt.Errorf("append: %w: %w", err, ledger.ErrUnknown)
	}
	return fmt.Errorf("append: %w: %w", err, ledger.ErrUnavailable)
}

// never is a revision that no stream has.
const never = 1 << 62

// probe finds out why the server ends appends early: it sends one small event at a revision that the
// stream does not have, which is never stored. Where the node is not the leader, that also makes the
// client turn to the one that is.
func (s *Store) probe(ctx context.Context, stream string) error {
	_, err := s.client.append(ctx, stream, never, []event{{id: uuid.New(), typ: "Probe", data: []byte("{}"), meta: []byte("{}")}})
	if errors.Is(err, errDenied) || errors.Is(err, errDeleted) || errors.Is(err, errRefused) {
		s.c.Logger.Error("the server refuses to store events", slog.String("stream", stream), slog.Any("error", err))
		return err
	}
	return nil
}

// visible is how long a stream may take to show what an answer spoke of.
const visible = time.Second

// settle reads what stands at a batch's place after the server said that it, or something else, does.
// It is true when all of it is the batch's own.
func (w *writer) settle(ctx context.Context, b *batch, success bool) (bool, error) {
	want := 1
	if success {
		want = len(b.events)
	}
	for until := time.Now().Add(visible); ; {
		n, mine, err := w.readBack(ctx, b)
		switch {
		case err == nil && n >= want && success && !mine:
			return false, w.moved(b)
		case err == nil && n >= want:
			return mine, nil
		case errors.Is(err, ledger.ErrDamaged), errors.Is(err, errDeleted):
			return false, err
		case err == nil && time.Now().After(until):
			return false, failed(success, fmt.Errorf("stream %s does not show what the server says is behind event %d", w.stream, b.expected))
		}
		if stop := pause(ctx, jitter(20*time.Millisecond)); stop != nil {
			return false, failed(success, errors.Join(stop, err))
		}
	}
}

// moved holds that the index has learned something where a batch's place is taken. Otherwise to decide
// again would append the same again.
func (w *writer) moved(b *batch) error {
	head, _, err := w.s.index.Head(w.stream)
	if err == nil && head.Revision <= b.head {
		err = fmt.Errorf("what stands behind event %d of stream %s is no record of the ledger, and the server says it is the one sent", b.expected, w.stream)
		w.s.c.Logger.Error("the server is not to be understood", slog.Any("error", err))
	}
	if err != nil {
		return failed(true, err)
	}
	return nil
}

// readBack reads the stream behind the batch's expected event. mine says that what stands there begins
// with all of the batch, written by it; then its records have their positions.
func (w *writer) readBack(ctx context.Context, b *batch) (n int, mine bool, err error) {
	own := 0
	n, err = w.s.readOn(ctx, w.stream, b.expected+1, func(ev *recorded, p *placed) {
		i := int(ev.number - b.expected - 1)
		if p == nil || i != own || i >= len(b.events) || p.token != b.token || ev.id != b.events[i].id {
			return
		}
		b.records[i].Position = p.Position
		own++
	})
	return n, own == len(b.events), err
}

package disk

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/keyindex"
)

// call is one Append on its way through the writer.
type call struct {
	ctx      context.Context
	entries  []*ledger.Entry
	records  []ledger.Record // instead of entries: to be stored as they are
	bodies   [][]byte        // of records, encoded
	stored   int             // so many of records are
	refused  error           // why the next is not
	seen     []sight
	outcomes []ledger.Outcome
	err      error
	done     chan struct{} // closed when outcomes and err are final
}

// sight is what the index knew of an entry's stream and key before the call waited for its turn.
type sight struct {
	head   ledger.StreamHead
	headAt keyindex.Version
	found  ledger.Found
	keyAt  keyindex.Version
}

// Append implements ledger.Store. The look-ups and the encoding are done here, in the caller's
// goroutine; what the writer does per entry is short.
func (s *Store) Append(ctx context.Context, entries []*ledger.Entry) ([]ledger.Outcome, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	if s.c.Import {
		return nil, fmt.Errorf("the store was opened to import records: %w", ledger.ErrUnavailable)
	}
	if err := s.Healthy(ctx); err != nil && s.stopped() {
		return nil, err
	}
	c := &call{ctx: ctx, entries: entries, seen: make([]sight, len(entries)), outcomes: make([]ledger.Outcome, len(entries)), done: make(chan struct{})}
	size := 0
	for _, e := range entries {
		size += len(e.Body.Payload) + typicalBody
	}
	bodies := make([]byte, 0, size)
	for i, e := range entries {
		var err error
		if c.seen[i], err = s.look(&e.Header); err != nil {
			return nil, fmt.Errorf("%w: %w", ledger.ErrUnavailable, err)
		}
		from := len(bodies)
		bodies = appendBody(bodies, &e.Body)
		e.Prepared = bodies[from:len(bodies):len(bodies)]
	}
	if err := s.enqueue(c); err != nil {
		return nil, err
	}
	select {
	case <-c.done:
		return c.outcomes, c.err
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the disk: %w: %w", context.Cause(ctx), ledger.ErrUnknown)
	}
}

// typicalBody is about how many bytes a body has besides its payload.
const typicalBody = 256

func (s *Store) stopped() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.failed != nil
}

// look asks the index for a header's stream and key. A sequence above the stream's highest is that of
// a key never seen: events that come in order cost no look-up of their key.
func (s *Store) look(h *ledger.Header) (w sight, err error) {
	if w.head, w.headAt, err = s.index.Head(h.Stream); err != nil || h.Type != ledger.EventAccepted {
		return w, err
	}
	if w.keyAt = w.headAt; h.Sequence <= w.head.HighestSequence {
		w.found, w.keyAt, err = s.index.Key(h.Key())
	}
	return w, err
}

func (s *Store) enqueue(c *call) error {
	s.closing.RLock()
	defer s.closing.RUnlock()
	if s.closed {
		return fmt.Errorf("the store is closed: %w", ledger.ErrUnavailable)
	}
	select {
	case s.queue <- c:
		return nil
	default:
		return fmt.Errorf("%d appends are waiting: %w", cap(s.queue), ledger.ErrBusy)
	}
}

// write is the goroutine that owns the end of the log.
func (s *Store) write() {
	defer close(s.written)
	g := newGroup(s)
	for c := range s.queue {
		g.reset()
		s.add(g, c)
		// Goroutines that are ready to run may be about to append: they go first, so that one sync is for
		// all of them. A sync keeps a processor from them for much of its time. With nobody ready this
		// costs nothing.
		runtime.Gosched()
		for more := true; more && len(g.frames) < s.c.Group; {
			select {
			case next, open := <-s.queue:
				if more = open; open {
					s.add(g, next)
				}
			default:
				more = false
			}
		}
		g.answer(s.commit(g))
	}
}

// add stages a call's entries in the group. A call whose entries cannot be decided leaves no trace in it.
func (s *Store) add(g *group, c *call) {
	mark := g.mark()
	if err := c.ctx.Err(); err != nil {
		c.err = fmt.Errorf("nothing was stored in time: %w: %w", err, ledger.ErrUnavailable)
	}
	for i := 0; i < len(c.entries) && c.err == nil; i++ {
		var err error
		if c.outcomes[i], err = g.stage(c.entries[i], &c.seen[i]); err != nil {
			c.err = fmt.Errorf("%w: %w", ledger.ErrUnavailable, err)
		}
	}
	if c.err == nil {
		c.err = g.stageRecords(c)
	}
	if c.err != nil {
		g.rollback(mark)
	}
	g.calls = append(g.calls, c)
}

// commit makes the group durable and then visible. What it returns is the outcome of the group's
// records; a group without records refers to durable ones only.
func (s *Store) commit(g *group) error {
	if len(g.applied) == 0 {
		return nil
	}
	if s.stopped() {
		return s.Healthy(context.Background())
	}
	if err := s.room(len(g.frames)); err != nil {
		s.setFull(err)
		return err
	}
	seg := s.log.active()
	g.close(uint32(seg.end))
	if _, err := s.c.Write(seg.f, g.frames, seg.end); err != nil {
		return s.takeBack(seg, err)
	}
	if err := s.c.Sync(seg.f); err != nil {
		return s.fail(fmt.Errorf("sync %s: %w: %w", seg.path, err, ledger.ErrUnknown))
	}
	s.log.extend(len(g.frames), g.offsets(uint32(seg.end)))
	if err := s.index.Apply(g.applied); err != nil {
		return s.fail(fmt.Errorf("%w: %w", err, ledger.ErrUnknown))
	}
	s.setFull(nil)
	s.publish(g.records)
	if seg.end >= s.c.Segment {
		if err := s.log.roll(); err != nil {
			_ = s.fail(err) // the group itself is stored
		}
	}
	return nil
}

// room keeps the reserve of free space.
func (s *Store) room(n int) error {
	free, err := s.c.Free(s.c.Dir)
	if err != nil {
		return fmt.Errorf("free space: %w: %w", err, ledger.ErrUnavailable)
	}
	if free < s.c.Reserve+uint64(n) {
		return fmt.Errorf("%d bytes are free, %d are kept in reserve: %w", free, s.c.Reserve, ledger.ErrUnavailable)
	}
	return nil
}

// takeBack goes back to the last commit after a write that failed: nothing of the group is stored.
func (s *Store) takeBack(seg *segment, err error) error {
	if cut := s.log.truncate(seg); cut != nil {
		return s.fail(fmt.Errorf("write %s: %w, and it cannot be taken back: %w: %w", seg.path, err, cut, ledger.ErrUnknown))
	}
	err = fmt.Errorf("write %s: %w: %w", seg.path, err, ledger.ErrUnavailable)
	s.setFull(err)
	return err
}

func (s *Store) setFull(err error) {
	s.mu.Lock()
	before := s.full
	s.full = err
	s.mu.Unlock()
	switch {
	case err != nil && before == nil:
		s.c.Logger.Error("nothing is stored for now", "error", err)
	case err == nil && before != nil:
		s.c.Logger.Info("events are stored again")
	}
}

// fail ends writing until a restart: what is on disk is not known any more.
func (s *Store) fail(err error) error {
	s.mu.Lock()
	s.failed = fmt.Errorf("nothing is stored until a restart: %w", errors.Join(ledger.ErrUnavailable, withoutUnknown(err)))
	s.mu.Unlock()
	s.c.Logger.Error("writing stopped", "error", err)
	s.c.Fatal(err)
	return err
}

// withoutUnknown keeps the words of an error: later calls are surely not stored.
func withoutUnknown(err error) error { return errors.New(err.Error()) }

func (s *Store) publish(records []ledger.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recent.add(records)
	s.head = records[len(records)-1].Position
	close(s.moved)
	s.moved = make(chan struct{})
}

// group is what one commit makes durable. It is used again and again.
type group struct {
	s       *Store
	calls   []*call
	frames  []byte
	starts  []uint32 // of the records in frames
	applied []keyindex.Applied
	records []ledger.Record
	header  []byte
	next    ledger.Position

	// What the staged records changed, over the index.
	heads map[string]ledger.StreamHead
	keys  map[ledger.Key]int // index in applied
}

func newGroup(s *Store) *group {
	return &group{s: s, heads: map[string]ledger.StreamHead{}, keys: map[ledger.Key]int{}}
}

func (g *group) reset() {
	g.calls, g.frames, g.starts, g.applied, g.records = g.calls[:0], g.frames[:0], g.starts[:0], g.applied[:0], g.records[:0]
	clear(g.heads)
	clear(g.keys)
	g.next = g.s.log.last() + 1
}

// stage decides one entry and, if it is accepted, appends its record to the group.
func (g *group) stage(e *ledger.Entry, seen *sight) (o ledger.Outcome, err error) {
	head, found, err := g.now(&e.Header, seen)
	if err != nil {
		return o, err
	}
	o.Decision = ledger.Decide(e, head, found)
	if o.Verdict != ledger.Accepted {
		o.Position, o.Revision = found.Position, found.Revision
		return o, nil
	}
	rec, changed := e.Record(o.Decision, head, g.next)
	body := e.Prepared
	if changed {
		body = appendBody(nil, &rec.Body)
	}
	g.add(&rec, body, head)
	o.Position, o.Revision, o.Leaf = rec.Position, rec.Header.Revision, rec.Leaf
	return o, nil
}

// add appends a record to the group; head is its stream's before it.
func (g *group) add(rec *ledger.Record, body []byte, head ledger.StreamHead) {
	g.header = appendHeader(g.header[:0], &rec.Header, &rec.Leaf)
	g.starts = append(g.starts, uint32(len(g.frames)))
	g.frames = appendRecord(g.frames, g.header, body)
	a := keyindex.Of(rec, head)
	g.applied, g.records = append(g.applied, a), append(g.records, *rec)
	g.heads[a.Stream] = a.Head
	if a.Accepted {
		g.keys[a.Key] = len(g.applied) - 1
	}
	g.next++
}

// now is the stream's head and the key's newest generation, the group's own records included.
func (g *group) now(h *ledger.Header, seen *sight) (head ledger.StreamHead, found ledger.Found, err error) {
	head, staged := g.heads[h.Stream]
	if !staged {
		if head, err = g.s.index.HeadSince(h.Stream, seen.head, seen.headAt); err != nil {
			return head, found, err
		}
	}
	if h.Type != ledger.EventAccepted || h.Sequence > head.HighestSequence {
		return head, found, nil
	}
	if n, staged := g.keys[h.Key()]; staged {
		return head, g.applied[n].Found, nil
	}
	found, err = g.s.index.KeySince(h.Key(), seen.found, seen.keyAt)
	return head, found, err
}

// mark and rollback take back what a call staged.
func (g *group) mark() int { return len(g.applied) }

func (g *group) rollback(mark int) {
	if mark == len(g.applied) {
		return
	}
	g.frames = g.frames[:g.starts[mark]]
	g.next = g.applied[mark].Position
	g.starts, g.applied, g.records = g.starts[:mark], g.applied[:mark], g.records[:mark]
	clear(g.heads)
	clear(g.keys)
	for i, a := range g.applied {
		g.heads[a.Stream] = a.Head
		if a.Accepted {
			g.keys[a.Key] = i
		}
	}
}

// close ends the frames, which will start at the given offset of the file, with their commit.
func (g *group) close(start uint32) {
	g.frames = appendCommit(g.frames, commit{records: uint32(len(g.applied)), last: g.last(), start: start})
}

func (g *group) last() ledger.Position { return g.applied[len(g.applied)-1].Position }

func (g *group) offsets(start uint32) []uint32 {
	for i := range g.starts {
		g.starts[i] += start
	}
	return g.starts
}

// answer ends every call of the group. A call that was refused on its own keeps its error.
func (g *group) answer(err error) {
	for _, c := range g.calls {
		if c.err == nil {
			c.err = err
		}
		close(c.done)
	}
}

package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/keyindex"
)

// call is one Append on its way through the writer.
type call struct {
	ctx      context.Context
	entries  []*ledger.Entry
	records  []ledger.Record // instead of entries: to be stored as they are
	stored   int             // so many of records are
	refused  error           // why the next is not
	seen     []sight
	outcomes []ledger.Outcome
	err      error
	done     chan struct{} // closed when outcomes and err are final
}

// sight is what is made of an entry before the call waits for its turn: its body, encoded, and what the index
// knew of its stream and key. It is not kept in the entry, which is the caller's again when the context ends.
type sight struct {
	body   []byte
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
	if s.c.Import || s.c.Existing {
		return nil, fmt.Errorf("the store was opened to import records, or only to be read: %w", ledger.ErrUnavailable)
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
		c.seen[i].body = bodies[from:len(bodies):len(bodies)]
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
	if s.waiting.Add(1) > int64(cap(s.queue)) {
		s.waiting.Add(-1)
		return fmt.Errorf("%d appends are waiting: %w", cap(s.queue), ledger.ErrBusy)
	}
	s.queue <- c
	return nil
}

// write is the goroutine that owns the end of the log. While a group is synced, the next is staged on it.
func (s *Store) write() {
	defer close(s.written)
	syncs, synced := make(chan *os.File), make(chan error)
	defer close(syncs)
	go func() {
		for f := range syncs {
			synced <- s.c.Sync(f)
		}
	}()
	g, other := newGroup(s), newGroup(s)
	g.reset(nil)
	for open := true; open || g.base != nil; {
		if g.base == nil || open && len(g.frames) < s.c.Group {
			select {
			case c, more := <-s.queue:
				if open = more; more {
					s.add(g, c)
				}
			case err := <-synced:
				g.landed(err)
			}
		} else {
			g.landed(<-synced)
		}
		if g.base != nil {
			continue
		}
		if open {
			s.join(g)
		}
		if s.launch(g) {
			syncs <- s.log.active().f
			g, other = other, g
			g.reset(other)
		} else {
			g.reset(nil)
		}
	}
}

// join takes those into the group who are about to append.
func (s *Store) join(g *group) {
	if len(g.calls) == 0 {
		return
	}
	// Goroutines that are ready to run may be about to append: they go first, so that one sync is for
	// all of them. With nobody ready this costs nothing.
	runtime.Gosched()
	for len(g.frames) < s.c.Group {
		select {
		case c, open := <-s.queue:
			if !open {
				return
			}
			s.add(g, c)
		default:
			return
		}
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

// launch writes the group. It is then to be synced, unless it is answered: where it holds no records, or
// they could not be written.
func (s *Store) launch(g *group) bool {
	s.waiting.Add(-int64(len(g.calls)))
	if len(g.applied) == 0 {
		g.answer(g.failed)
		return false
	}
	if err := s.writeGroup(g); err != nil {
		g.answer(err)
		return false
	}
	return true
}

func (s *Store) writeGroup(g *group) error {
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
	return nil
}

// landed ends the group that g is staged on: it is synced, or that failed, and then nothing of g holds either.
func (g *group) landed(err error) {
	err = g.s.finish(g.base, err)
	g.base.answer(err)
	g.base, g.failed = nil, err
}

// finish makes a group that was written durable and then visible. What it returns is the outcome of the
// group's records.
func (s *Store) finish(g *group, err error) error {
	seg := s.log.active()
	if err != nil {
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
		return fmt.Errorf("%w: %w: %w", errNoRoom, err, ledger.ErrUnavailable)
	}
	if free < s.c.Reserve+uint64(n) {
		return fmt.Errorf("%w: %d bytes are free, %d are kept in reserve: %w", errNoRoom, free, s.c.Reserve, ledger.ErrUnavailable)
	}
	return nil
}

var errNoRoom = errors.New("free space")

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
	base    *group // written and not yet synced, nil: none. What is staged follows on it
	failed  error  // why the base is not on disk, once that ended
	calls   []*call
	frames  []byte
	starts  []uint32 // of the records in frames
	applied []keyindex.Applied
	records []ledger.Record
	header  []byte
	next    ledger.Position

	// What the staged records changed, over the index.
	heads map[string]ledger.StreamHead
	keys  map[ledger.Key]int // index in applied, of the first so many
	keyed int
}

func newGroup(s *Store) *group {
	return &group{s: s, heads: map[string]ledger.StreamHead{}, keys: map[ledger.Key]int{}}
}

func (g *group) reset(base *group) {
	g.base, g.failed = base, nil
	g.calls, g.frames, g.starts, g.applied, g.records = g.calls[:0], g.frames[:0], g.starts[:0], g.applied[:0], g.records[:0]
	clear(g.heads)
	clear(g.keys)
	g.keyed = 0
	if g.next = g.s.log.last() + 1; base != nil {
		g.next = base.next
	}
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
	body := seen.body
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
	g.next++
}

// staged is the newest generation of a key among the group's records. Few ask, so that keys are put into the map
// when somebody does.
func (g *group) staged(k ledger.Key) (ledger.Found, bool) {
	for ; g.keyed < len(g.applied); g.keyed++ {
		if a := &g.applied[g.keyed]; a.Accepted {
			g.keys[a.Key] = g.keyed
		}
	}
	n, ok := g.keys[k]
	if !ok {
		return ledger.Found{}, false
	}
	return g.applied[n].Found, true
}

// now is the stream's head and the key's newest generation, the group's own records included.
func (g *group) now(h *ledger.Header, seen *sight) (head ledger.StreamHead, found ledger.Found, err error) {
	head, staged := g.heads[h.Stream]
	if !staged && g.base != nil {
		head, staged = g.base.heads[h.Stream]
	}
	if !staged {
		if head, err = g.s.index.HeadSince(h.Stream, seen.head, seen.headAt); err != nil {
			return head, found, err
		}
	}
	if h.Type != ledger.EventAccepted || h.Sequence > head.HighestSequence {
		return head, found, nil
	}
	for of := g; of != nil; of = of.base {
		if found, staged := of.staged(h.Key()); staged {
			return head, found, nil
		}
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
	for i := range g.applied {
		g.heads[g.applied[i].Stream] = g.applied[i].Head
	}
	clear(g.keys)
	g.keyed = 0
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

package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	repeatEvery    = time.Second      // counts are stored at once, then at most this often
	sameRejection  = 60 * time.Second // for which the same rejection is counted instead of stored again
	maxRemembered  = 50_000           // rejections, twice
	maxPending     = 200_000          // different records with counts waiting to be stored
	countsPerEntry = 2_000            // keeps a DuplicatesCounted record well under 512 KiB
	flushTimeout   = 5 * time.Second
)

// repeats counts what is met again: duplicates of accepted events, and rejections that were stored
// a moment ago. Counts are held here until Run stores them as DuplicatesCounted records; a kill
// loses those of the last second and nothing is ever counted twice.
type repeats struct {
	wake chan struct{} // holds one token while counts or accesses are pending

	mu       sync.Mutex // guards all below
	pending  map[target]tally
	flushing int64 // counts on their way to the store
	sum      int64 // of pending
	recent   map[rejectionID]remembered
	older    map[rejectionID]remembered // recent, before the last turn
	turned   int64                      // when recent became older, epoch milliseconds
}

type target struct {
	stream   string
	revision int64
}

type tally struct{ count, lastSeen int64 }

// rejectionID says which rejections are the same.
type rejectionID struct {
	source, code string
	key          Key
	raw          Hash
}

type remembered struct {
	target
	position   Position
	recordedAt int64
}

func newRepeats() repeats {
	return repeats{wake: make(chan struct{}, 1), pending: map[target]tally{}, recent: map[rejectionID]remembered{}}
}

// room refuses new events while so many counts wait that more could not be held.
func (r *repeats) room() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending) >= maxPending {
		return fmt.Errorf("%d counts of repeated events: %w", len(r.pending), ErrBusy)
	}
	return nil
}

func (r *repeats) count(stream string, revision, now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(target{stream, revision}, tally{1, now})
}

// add is called with mu held.
func (r *repeats) add(at target, t tally) {
	had := r.pending[at]
	r.pending[at] = tally{had.count + t.count, max(had.lastSeen, t.lastSeen)}
	r.sum += t.count
	r.awake()
}

// awake has Run store what is pending.
func (r *repeats) awake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// again counts the rejection when the same one was stored within the last minute, and returns that one.
func (r *repeats) again(id rejectionID, now int64) (remembered, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first, ok := r.recent[id]
	if !ok {
		first, ok = r.older[id]
	}
	if !ok || now-first.recordedAt >= sameRejection.Milliseconds() {
		return remembered{}, false
	}
	r.add(first.target, tally{1, now})
	return first, true
}

// remember keeps a durable rejection for again.
func (r *repeats) remember(id rejectionID, first remembered) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if first.recordedAt-r.turned >= sameRejection.Milliseconds() || len(r.recent) >= maxRemembered {
		r.older, r.recent, r.turned = r.recent, map[rejectionID]remembered{}, first.recordedAt
	}
	r.recent[id] = first
}

// Pending is how many repeats are counted but not yet stored.
func (l *Ledger) Pending() int64 {
	l.repeats.mu.Lock()
	defer l.repeats.mu.Unlock()
	return l.repeats.sum + l.repeats.flushing
}

// Run stores the counts of repeated events, and who read payloads, until ctx ends, and then once more.
// The store must be open until it returns.
func (l *Ledger) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return errors.Join(l.flushRepeats(ctx), l.flushAccesses(ctx))
		case <-l.repeats.wake:
		}
		if err := l.flushRepeats(ctx); err != nil {
			l.Logger.Warn("counts of repeated events wait to be stored", "pending", l.Pending(), "error", err)
		}
		if err := l.flushAccesses(ctx); err != nil {
			l.Logger.Warn("reads of payloads wait to be recorded", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(repeatEvery):
		}
	}
}

// flushRepeats stores what is pending. What was surely not stored is pending again; what may have
// been stored is not, so that nothing is counted twice. The end of ctx does not end it: that would
// leave counts unknown which could have been stored.
func (l *Ledger) flushRepeats(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	counts := l.repeats.take()
	if len(counts) == 0 {
		return nil
	}
	now, err := l.clock.now()
	if err == nil {
		_, err = l.Store.Append(ctx, l.countEntries(counts, now))
	}
	kept := err != nil && !errors.Is(err, ErrUnknown)
	l.repeats.done(counts, kept)
	if err != nil && !kept {
		l.Logger.Error("counts of repeated events may be stored later, or be lost", slog.Int("records", len(counts)), slog.Any("error", err))
	}
	return err
}

func (r *repeats) take() []Count {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := make([]Count, 0, len(r.pending))
	for at, t := range r.pending {
		counts = append(counts, Count{at.stream, at.revision, t.count, t.lastSeen})
	}
	r.pending, r.flushing, r.sum = map[target]tally{}, r.sum, 0
	return counts
}

func (r *repeats) done(counts []Count, again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flushing = 0
	if !again {
		return
	}
	for _, c := range counts {
		r.add(target{c.Stream, c.Revision}, tally{c.Count, c.LastSeen})
	}
}

// countEntries makes the records of the counts. They have one order, so that the same counts give
// the same record.
func (l *Ledger) countEntries(counts []Count, now int64) []*Entry {
	slices.SortFunc(counts, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Revision, b.Revision))
	})
	var entries []*Entry
	for part := range slices.Chunk(counts, countsPerEntry) {
		e := &Entry{Header: Header{
			V: Version, Type: DuplicatesCounted, Stream: duplicatesPrefix + l.Instance, Sequence: Absent, Timestamp: Absent,
			Generation: Absent, RecordedAt: now,
		}}
		e.Body = Body{Counts: part, Supersedes: Absent, Salt: newSalt()}
		e.Seal()
		entries = append(entries, e)
	}
	return entries
}

package ledger

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// accesses are the reads of payloads that wait to be stored. Run stores them with the counts of
// repeats, as AccessRecorded records: one for each source, which says what it read, how often and when
// last. A kill loses those of the last second; where it is not known whether they were stored they
// are stored again, so that a read may be said twice and is never left out.
type accesses struct {
	mu      sync.Mutex // guards pending
	pending map[access]tally
}

// access is what one source read.
type access struct {
	source string
	target
}

// RecordAccess notes that a source reads the payload of a contract's record now. It is cheap: what is
// noted is stored within about a second. An error that is ErrBusy says that too much waits already, and
// then the payload must not be shown.
func (l *Ledger) RecordAccess(source, contractID string, revision int64) error {
	now, err := l.clock.now()
	if err != nil {
		return err
	}
	a := &l.accesses
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.pending) >= maxPending {
		return fmt.Errorf("%d reads of payloads wait to be stored: %w", len(a.pending), ErrBusy)
	}
	a.add(access{source, target{ContractStream(contractID), revision}}, tally{1, now})
	l.repeats.awake()
	return nil
}

// add is called with mu held.
func (a *accesses) add(what access, t tally) {
	had := a.pending[what]
	a.pending[what] = tally{had.count + t.count, max(had.lastSeen, t.lastSeen)}
}

func (a *accesses) take() map[access]tally {
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := a.pending
	a.pending = map[access]tally{}
	return taken
}

// flushAccesses stores what is pending; with an error it is pending again. The end of ctx does not end it.
func (l *Ledger) flushAccesses(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	taken := l.accesses.take()
	if len(taken) == 0 {
		return nil
	}
	now, err := l.clock.now()
	if err == nil {
		_, err = l.Store.Append(ctx, l.accessEntries(taken, now))
	}
	if err == nil {
		return nil
	}
	l.accesses.mu.Lock()
	defer l.accesses.mu.Unlock()
	for what, t := range taken {
		l.accesses.add(what, t)
	}
	l.repeats.awake()
	return fmt.Errorf("store reads of payloads: %w", err)
}

// accessEntries makes the records of reads, in one order.
func (l *Ledger) accessEntries(reads map[access]tally, now int64) []*Entry {
	bySource := map[string][]Count{}
	for what, t := range reads {
		bySource[what.source] = append(bySource[what.source], Count{what.stream, what.revision, t.count, t.lastSeen})
	}
	var entries []*Entry
	for _, source := range slices.Sorted(maps.Keys(bySource)) {
		counts := bySource[source]
		slices.SortFunc(counts, func(a, b Count) int {
			return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Revision, b.Revision))
		})
		for part := range slices.Chunk(counts, countsPerEntry) {
			e := &Entry{Header: Header{
				V: Version, Type: AccessRecorded, Stream: accessPrefix + l.Instance, Sequence: Absent, Timestamp: Absent,
				Generation: Absent, RecordedAt: now, Source: source,
			}}
			e.Body = Body{Counts: part, Supersedes: Absent, Salt: newSalt()}
			e.Seal()
			entries = append(entries, e)
		}
	}
	return entries
}

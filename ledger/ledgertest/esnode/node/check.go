package node

import "github.com/google/uuid"

// verdict is what CheckCommit says of a write.
type verdict int

const (
	store         verdict = iota // it is new: write it
	repeat                       // all of it is stored already, where it was expected
	notReady                     // as repeat, but what is stored is not replicated yet: the request is dropped
	wrongRevision                // also a repeat that only partly matches
	deleted                      // the stream is deleted
	confused                     // the server throws
)

// check decides a write by the rules of the server's CheckCommit: IDs are compared, contents never.
func (l *log) check(w write) outcome {
	out := outcome{current: l.last(w.stream)}
	exists := out.current != noStream
	switch {
	case l.tombstoned(w.stream), w.expected == streamExists && l.softDeleted(w.stream):
		out.verdict = deleted
	case w.expected == streamExists && !exists && l.last("$$"+w.stream) == noStream:
		out.verdict = wrongRevision
	case w.expected == anyRevision || w.expected == streamExists:
		out.verdict, out.last = l.checkWeak(w)
	case w.expected > out.current:
		out.verdict = wrongRevision
	case w.expected < out.current:
		out.verdict, out.last = l.checkStrong(w)
	}
	if out.verdict == repeat {
		out.current = out.last.revision()
		out.hidden = !l.showsLocked(out.last)
		if out.last.index >= l.visible {
			out.verdict = notReady
		}
	}
	return out
}

// checkWeak is the rule for Any and StreamExists: only IDs still in memory are recognised.
func (l *log) checkWeak(w write) (verdict, *event) {
	var first, last *event
	for _, e := range w.events {
		known := l.ids.known[e.id]
		if known == nil || known.stream != w.stream {
			if first == nil {
				return store, nil
			}
			return wrongRevision, nil
		}
		if first == nil {
			first = known
		}
		last = known
	}
	switch {
	case first == nil:
		return store, nil
	case last.revision() < first.revision()-1:
		return confused, nil
	}
	return repeat, last
}

// checkStrong is the rule for a revision below the stream's last: event i must lie exactly at expected+1+i.
func (l *log) checkStrong(w write) (verdict, *event) {
	stored := l.streams[w.stream].events
	var last *event
	for i, e := range w.events {
		at := w.expected + 1 + int64(i)
		if at >= int64(len(stored)) || stored[at].id != e.id {
			if i == 0 && w.expected == noStream && l.softDeleted(w.stream) {
				return store, nil
			}
			return wrongRevision, nil
		}
		last = stored[at]
	}
	if last == nil {
		return wrongRevision, nil
	}
	return repeat, last
}

// idCache remembers the events written last by their IDs. The first to use an ID keeps its place,
// whatever the stream; a restart forgets all.
type idCache struct {
	known map[uuid.UUID]*event
	order []uuid.UUID
}

// cachedIDs is about what 8 MiB hold on a real server.
const cachedIDs = 80_000

func (c *idCache) add(e *event) {
	if c.known == nil {
		c.known = map[uuid.UUID]*event{}
	}
	if c.known[e.id] != nil {
		return
	}
	c.known[e.id] = e
	c.order = append(c.order, e.id)
	if len(c.order) > cachedIDs {
		delete(c.known, c.order[0])
		c.order = c.order[1:]
	}
}

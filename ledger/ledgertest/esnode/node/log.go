package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/shared"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	"github.com/google/uuid"
)

// Expected revisions below zero, as the server numbers them.
const (
	noStream     int64 = -1
	anyRevision  int64 = -2
	streamExists int64 = -4
)

// deletedRevision is the number of a tombstone, and the $tb of a stream that is soft-deleted.
const deletedRevision int64 = math.MaxInt64

const (
	tombstoneType = "$streamDeleted"
	metadataType  = "$metadata"
	jsonType      = "application/json"
)

// event is one stored event: wire is the form it is sent in and never changes once it is in the log.
type event struct {
	wire    *streams.ReadResp_ReadEvent_RecordedEvent
	id      uuid.UUID
	stream  string
	typ     string
	created time.Time
	index   int  // its place in the log
	ready   bool // replicated and indexed: guarded by log.mu
}

func (e *event) revision() int64  { return int64(e.wire.StreamRevision) }
func (e *event) tombstone() bool  { return e.revision() == deletedRevision }
func (e *event) position() uint64 { return e.wire.CommitPosition }

// log is everything the node stores, in the order of $all.
type log struct {
	now  func() time.Time
	file *logFile // nil: in memory only

	mu      sync.RWMutex // guards what follows
	events  []*event
	visible int // events[:visible] are replicated and indexed: only they are read and acknowledged
	streams map[string]*stream
	ids     idCache
	next    uint64        // position of the next event
	changed chan struct{} // closed and replaced when visible grows
}

// stream holds a stream's events; nothing is ever scavenged, so an event's revision is its index.
type stream struct {
	events    []*event
	tombstone *event
}

// firstPosition is where a new log begins: a real one starts with records of its own.
const firstPosition = 1024

func newLog(now func() time.Time) *log {
	return &log{now: now, streams: map[string]*stream{}, next: firstPosition, changed: make(chan struct{})}
}

// write is one request to change a stream.
type write struct {
	stream   string
	expected int64
	events   []*event
	hard     bool          // the write is a tombstone
	lag      time.Duration // how long the write stays unreplicated: unseen by reads, not acknowledged
}

// outcome is what became of a write.
type outcome struct {
	verdict verdict
	current int64  // revision of the stream's last event, noStream if it has none
	last    *event // the last event that was written or, for a repeat, found
	hidden  bool   // of a repeat: reads do not show last any more, so the answer carries no position
}

// append stores the events of w if the stream is as w expects it. It returns when they are on disk;
// whoever answers waits until they are visible.
func (l *log) append(w write) (outcome, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.check(w)
	if out.verdict != store {
		return out, nil
	}
	again := l.undelete(w)
	batches := [][]*event{l.stamp(w.stream, l.last(w.stream)+1, w.events)}
	if again != nil {
		revision := l.last(again.stream) + 1
		if again.stream == w.stream {
			revision += int64(len(w.events))
		}
		batches = append(batches, l.stamp(again.stream, revision, again.events))
	}
	if err := l.file.write(batches); err != nil {
		return outcome{}, err
	}
	for _, batch := range batches {
		for _, e := range batch {
			l.index(e)
			l.ids.add(e)
		}
	}
	l.settle(slices.Concat(batches...), w.lag)
	if n := len(w.events); n > 0 {
		out.last = w.events[n-1]
		out.current = out.last.revision()
	}
	return out, nil
}

// stamp gives the events of one batch their revisions, positions and time. The caller stores them at once.
func (l *log) stamp(name string, revision int64, events []*event) []*event {
	position, now := l.next, l.now()
	if n := len(l.events); n > 0 && now.Before(l.events[n-1].created) {
		now = l.events[n-1].created
	}
	for i, e := range events {
		e.stream, e.created = name, now
		if !e.tombstone() {
			e.wire.StreamRevision = uint64(revision + int64(i))
		}
		e.wire.StreamIdentifier = &shared.StreamIdentifier{StreamName: []byte(name)}
		e.wire.CommitPosition, e.wire.PreparePosition = position, position
		e.wire.Metadata["created"] = strconv.FormatInt(now.UnixNano()/100, 10)
		position += e.size()
	}
	l.next = position
	return events
}

// size is what an event takes in the log: positions are offsets and therefore sparse.
func (e *event) size() uint64 {
	return uint64(96 + len(e.stream) + len(e.typ) + len(e.wire.Data) + len(e.wire.CustomMetadata))
}

// index adds e, the next event of the log, to what reads and checks look at.
func (l *log) index(e *event) {
	e.index = len(l.events)
	l.events = append(l.events, e)
	s := l.streams[e.stream]
	if s == nil {
		s = &stream{}
		l.streams[e.stream] = s
	}
	if e.tombstone() {
		s.tombstone = e
	} else {
		s.events = append(s.events, e)
	}
	l.next = e.position() + e.size()
}

// settle makes the events visible, after lag when there is one, and never before what was written before them.
func (l *log) settle(events []*event, lag time.Duration) {
	ready := func() {
		for _, e := range events {
			e.ready = true
		}
		l.advance()
	}
	if lag <= 0 {
		ready()
		return
	}
	time.AfterFunc(lag, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		ready()
	})
}

func (l *log) advance() {
	from := l.visible
	for l.visible < len(l.events) && l.events[l.visible].ready {
		l.visible++
	}
	if l.visible > from {
		close(l.changed)
		l.changed = make(chan struct{})
	}
}

// undelete is the record that ends the soft deletion of a stream that w writes to, or whose metadata
// it writes: its metadata again, with $tb at the first revision that is new. A record of its own, after the write.
func (l *log) undelete(w write) *write {
	name, written := w.stream, []byte(nil)
	if original, ok := strings.CutPrefix(name, "$$"); ok && len(w.events) > 0 {
		name, written = original, w.events[len(w.events)-1].wire.Data
	}
	if w.hard || len(w.events) == 0 || !l.softDeleted(name) || l.deleting(w, name) {
		return nil
	}
	fields := map[string]any{}
	if json.Unmarshal(written, &fields) != nil {
		fields = map[string]any{}
	}
	fields["$tb"] = l.last(name) + 1
	data, err := json.Marshal(fields)
	if err != nil {
		return nil // cannot be: the fields were just decoded
	}
	return &write{stream: "$$" + name, events: []*event{newEvent(uuid.New(), metadataType, jsonType, data, nil)}}
}

// deleting says that w is itself a soft deletion of name, once more.
func (l *log) deleting(w write, name string) bool {
	return w.stream == "$$"+name && parseMetadata(w.events[len(w.events)-1].wire.Data).deleted()
}

// delete ends a stream: softly, by metadata that hides every event, or for ever, by a tombstone.
func (l *log) delete(name string, expected int64, hard bool) (outcome, error) {
	if !hard {
		return l.softDelete(name, expected)
	}
	e := newEvent(uuid.New(), tombstoneType, "application/octet-stream", nil, nil)
	e.wire.StreamRevision = uint64(deletedRevision)
	return l.append(write{stream: name, expected: expected, events: []*event{e}, hard: true})
}

func (l *log) softDelete(name string, expected int64) (outcome, error) {
	l.mu.RLock()
	out := l.check(write{stream: name, expected: expected, events: []*event{{id: uuid.New()}}})
	if out.verdict == store && l.last(name) == noStream {
		out.verdict = wrongRevision
	}
	l.mu.RUnlock()
	if out.verdict != store {
		return out, nil
	}
	data := fmt.Appendf(nil, `{"$tb":%d}`, deletedRevision)
	e := newEvent(uuid.New(), metadataType, jsonType, data, nil)
	return l.append(write{stream: "$$" + name, expected: anyRevision, events: []*event{e}})
}

// last is the revision of a stream's last event, visible or not.
func (l *log) last(name string) int64 {
	s := l.streams[name]
	if s == nil {
		return noStream
	}
	return int64(len(s.events)) - 1
}

// tombstoned says that the stream, or the one whose metadata it holds, is deleted for ever.
func (l *log) tombstoned(name string) bool {
	s, original := l.streams[name], l.streams[strings.TrimPrefix(name, "$$")]
	return s != nil && s.tombstone != nil || original != nil && original.tombstone != nil
}

func (l *log) softDeleted(name string) bool { return l.metadata(name, len(l.events)).deleted() }

// metadata is a stream's metadata as a reader of events[:visible] knows it.
func (l *log) metadata(name string, visible int) streamMetadata {
	if strings.HasPrefix(name, "$$") {
		one := int64(1)
		return streamMetadata{MaxCount: &one}
	}
	shown := l.streams["$$"+name].until(visible)
	if len(shown) == 0 {
		return streamMetadata{}
	}
	return parseMetadata(shown[len(shown)-1].wire.Data)
}

// until is the stream's events among the first n of the log.
func (s *stream) until(n int) []*event {
	if s == nil {
		return nil
	}
	end := len(s.events)
	for end > 0 && s.events[end-1].index >= n {
		end--
	}
	return s.events[:end]
}

// streamMetadata is the part of a stream's metadata that hides events.
type streamMetadata struct {
	MaxAge         *int64 `json:"$maxAge"`
	MaxCount       *int64 `json:"$maxCount"`
	TruncateBefore *int64 `json:"$tb"`
}

// parseMetadata takes what is no metadata as none, as the server does.
func parseMetadata(data []byte) streamMetadata {
	var m streamMetadata
	if json.Unmarshal(data, &m) != nil {
		return streamMetadata{}
	}
	return m
}

func (m streamMetadata) deleted() bool {
	return m.TruncateBefore != nil && *m.TruncateBefore == deletedRevision
}

// shows says whether a read of the stream, whose last revision is last, shows e.
func (m streamMetadata) shows(e *event, last int64, now time.Time) bool {
	switch {
	case m.TruncateBefore != nil && e.revision() < *m.TruncateBefore,
		m.MaxCount != nil && e.revision() <= last-*m.MaxCount,
		m.MaxAge != nil && e.created.Before(now.Add(-time.Duration(*m.MaxAge)*time.Second)):
		return false
	}
	return true
}

var (
	errNotFound = errors.New("stream not found")
	errDeleted  = errors.New("stream deleted")
)

// read returns at most count events of a stream, from a revision on (deletedRevision: the end), and errNotFound or errDeleted.
func (l *log) read(name string, from int64, backwards bool, count uint64) ([]*event, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.tombstoned(name) {
		return nil, errDeleted
	}
	all, metadata := l.streams[name].until(l.visible), l.metadata(name, l.visible)
	if len(all) == 0 || metadata.deleted() {
		return nil, errNotFound
	}
	last := int64(len(all)) - 1
	step := int64(1)
	if backwards {
		from, step = min(from, last), -1
	}
	var out []*event
	for r := from; r >= 0 && r <= last && uint64(len(out)) < count; r += step {
		if e := all[r]; metadata.shows(e, last, l.now()) {
			out = append(out, e)
		}
	}
	return out, nil
}

// shows says whether a read of e's stream shows it now.
func (l *log) shows(e *event) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.showsLocked(e)
}

func (l *log) showsLocked(e *event) bool {
	last := int64(len(l.streams[e.stream].until(l.visible))) - 1
	return l.metadata(e.stream, l.visible).shows(e, last, l.now())
}

// seen is the visible log and a channel that is closed when more of it is.
func (l *log) seen() ([]*event, <-chan struct{}) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.events[:l.visible:l.visible], l.changed
}

// has says whether a stream has an event, visible or not.
func (l *log) has(name string) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.last(name) != noStream
}

func (l *log) gone(name string) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.tombstoned(name)
}

func (l *log) isVisible(e *event) (bool, <-chan struct{}) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return e.index < l.visible, l.changed
}

// search is the index of the first of events at or after a position.
func search(events []*event, position uint64) int {
	return sort.Search(len(events), func(i int) bool { return events[i].position() >= position })
}

// valid says whether a position is one the log gave, or lies beyond its end.
func (l *log) valid(position uint64) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	i := search(l.events, position)
	return position < firstPosition || position >= l.next || i < len(l.events) && l.events[i].position() == position
}

// rebuild makes the log hold exactly these events, all of them visible, and forgets the IDs it had in memory.
func (l *log) rebuild(events []*event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events, l.streams, l.visible, l.next, l.ids = nil, map[string]*stream{}, 0, firstPosition, idCache{}
	for _, e := range events {
		e.ready = true
		l.index(e)
	}
	l.advance()
}

func newEvent(id uuid.UUID, typ, contentType string, data, metadata []byte) *event {
	return &event{id: id, typ: typ, wire: &streams.ReadResp_ReadEvent_RecordedEvent{
		Id:             structured(id),
		Metadata:       map[string]string{"type": typ, "content-type": contentType},
		CustomMetadata: metadata,
		Data:           data,
	}}
}

// truncate removes the last n events, in the file as well.
func (l *log) truncate(n int) error {
	l.mu.Lock()
	kept := slices.Clone(l.events[:max(0, len(l.events)-n)])
	l.mu.Unlock()
	if err := l.file.replace(kept); err != nil {
		return fmt.Errorf("cut the log: %w", err)
	}
	l.rebuild(kept)
	return nil
}

func (l *log) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids = idCache{}
}

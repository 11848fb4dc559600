package projections

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/talenttrust/auditledger/ledger"
)

// The rows of history:
//
//	e position                     → entry: what filters look at, then the rest, then how many entries there are up to it; packed
//	h contractId 0x00 position     → what filters look at; packed
//	d stream 0x00 revision         → how often the record was met again, and when last
//	w hour                         → first and last position of the entries processed in that hour of UTC
const (
	tagEntry  = 'e'
	tagLine   = 'h'
	tagRepeat = 'd'
	tagHour   = 'w'
)

// hourMillis is the width of the smallest range of time that numbers are kept for.
const hourMillis = 60 * 60 * 1000

// history folds records into the lines of contracts' histories.
type history struct {
	t       *table
	entries int64 // so far
	repeats map[recordID]repeat
	hours   map[uint64]positions
}

type recordID struct {
	stream   string
	revision int64
}

// repeat says how often a record was met again, and when last.
type repeat struct{ count, last int64 }

// positions is a range of them, both inclusive.
type positions struct{ first, last ledger.Position }

func newHistory(t *table) folder {
	h := &history{t: t, repeats: map[recordID]repeat{}, hours: map[uint64]positions{}}
	var err error
	h.entries, err = t.view(t.db).ordinal(context.Background(), math.MaxInt64)
	t.fail(err)
	return h
}

func (h *history) prepare([]ledger.Record) {}

func (h *history) fold(r *ledger.Record) error {
	switch r.Header.Type {
	case ledger.EventAccepted, ledger.EventRejected:
		return h.add(r)
	case ledger.DuplicatesCounted:
		for i := range r.Body.Counts {
			h.again(&r.Body.Counts[i])
		}
	}
	return nil
}

func (h *history) add(r *ledger.Record) error {
	if err := checkEvent(&r.Header); err != nil {
		return err
	}
	h.entries++
	t := h.t
	t.val = t.val[:0]
	n := appendEntry(&t.val, r, h.entries)
	t.key = appendNumbers(append(t.key[:0], t.prefix[0], t.prefix[1], tagEntry), uint64(r.Position))
	t.put(t.key, t.val)
	if id := r.Header.ContractID; id != "" {
		t.key = append(t.key[:0], t.prefix[0], t.prefix[1], tagLine)
		t.key = appendNumbers(append(append(t.key, id...), 0), uint64(r.Position))
		t.put(t.key, t.val[:n])
	}
	hour := uint64(r.Header.RecordedAt / hourMillis)
	span, ok := h.hours[hour]
	if !ok {
		span.first = r.Position
	}
	h.hours[hour] = positions{span.first, r.Position}
	return nil
}

func (h *history) again(c *ledger.Count) {
	id := recordID{c.Stream, c.Revision}
	rep, ok := h.repeats[id]
	if !ok {
		rep, _ = decodeRepeat(h.t.get(h.t.keyOf(tagRepeat, c.Stream, uint64(c.Revision))))
	}
	h.repeats[id] = repeat{rep.count + c.Count, max(rep.last, c.LastSeen)}
}

func (h *history) finish() {
	t := h.t
	for id, rep := range h.repeats {
		t.val = t.val[:0]
		t.val.num(rep.count)
		t.val.num(rep.last)
		t.put(t.keyOf(tagRepeat, id.stream, uint64(id.revision)), t.val)
	}
	clear(h.repeats)
	for hour, span := range h.hours {
		key := appendNumbers(t.prefix.key(tagHour), hour)
		if before, ok := decodePositions(t.get(key)); ok {
			span.first = before.first
		}
		t.val = t.val[:0]
		t.val.pos(span.first)
		t.val.pos(span.last)
		t.put(key, t.val)
	}
	clear(h.hours)
}

// checkEvent refuses an event's record whose fields cannot stand in a key.
func checkEvent(h *ledger.Header) error {
	switch {
	case h.RecordedAt < 0:
		return fmt.Errorf("recordedAt is negative")
	case h.Type == ledger.EventRejected && h.ContractID == "":
		return nil
	case !ledger.ValidID(h.ContractID, ledger.MaxIDLen):
		return fmt.Errorf("contractId is not an id")
	case h.Type == ledger.EventAccepted && (h.Sequence < 0 || h.Generation < 1):
		return fmt.Errorf("sequence or generation of an accepted event is missing")
	}
	return nil
}

// Bits of a line.
const (
	bitRejected = 1 << iota
	bitPayloadChanged
	bitSanitized
	bitLate
)

// line is what filters look at. Its texts are valid as long as the row is.
type line struct {
	bits                          byte
	code, kind, source, eventID   []byte
	sequence, timestamp, recorded int64
}

// appendEntry writes the entry's row. The first n bytes of it are its line.
func appendEntry(b *row, r *ledger.Record, ordinal int64) (n int) {
	h, y := &r.Header, &r.Body
	var bits byte
	if h.Type == ledger.EventRejected {
		bits |= bitRejected
	}
	if y.PayloadChanged {
		bits |= bitPayloadChanged
	}
	if y.Sanitized {
		bits |= bitSanitized
	}
	if y.Late {
		bits |= bitLate
	}
	*b = append(*b, bits)
	b.text(h.Code)
	b.text(h.ContractType)
	b.text(h.Source)
	b.text(h.EventID)
	b.num(h.Sequence)
	b.num(h.Timestamp)
	b.num(h.RecordedAt)
	n = len(*b)
	b.text(h.ContractID)
	if id, ok := strings.CutPrefix(h.Stream, ledger.ContractStream("")); ok && id == h.ContractID {
		b.text("")
	} else {
		b.text(h.Stream)
	}
	b.num(h.Revision)
	b.num(h.Generation)
	b.num(y.Supersedes)
	b.text(y.Reason)
	b.text(y.CorrelationID)
	b.hash(&y.PayloadHash)
	b.hash(&r.Leaf)
	b.num(ordinal)
	return n
}

func (l *line) take(f *fields) {
	l.bits = f.byte()
	l.code, l.kind, l.source, l.eventID = f.text(), f.text(), f.text(), f.text()
	l.sequence, l.timestamp, l.recorded = f.num(), f.num(), f.num()
}

// decodeEntry reads what appendEntry wrote. Position and repeats are not in the row.
func decodeEntry(b []byte) (e Entry, ordinal int64, err error) {
	f := fields{b: b}
	var l line
	l.take(&f)
	e = Entry{
		EventID: string(l.eventID), Sequence: l.sequence, ContractType: string(l.kind), Code: string(l.code), Timestamp: l.timestamp,
		ProcessedAt: l.recorded, Source: string(l.source), Status: l.status(),
		PayloadChanged: l.bits&bitPayloadChanged != 0, Sanitized: l.bits&bitSanitized != 0, Late: l.bits&bitLate != 0,
	}
	e.ContractID = string(f.text())
	if e.Stream = string(f.text()); e.Stream == "" {
		e.Stream = ledger.ContractStream(e.ContractID)
	}
	e.Revision, e.Generation, e.Supersedes = f.num(), f.num(), f.num()
	e.Reason, e.CorrelationID = string(f.text()), string(f.text())
	f.hash(&e.PayloadHash)
	f.hash(&e.LeafHash)
	ordinal = f.num()
	return e, ordinal, f.end()
}

func decodeRepeat(b []byte) (repeat, error) {
	if b == nil {
		return repeat{}, nil
	}
	f := fields{b: b}
	rep := repeat{f.num(), f.num()}
	return rep, f.end()
}

func decodePositions(b []byte) (positions, bool) {
	f := fields{b: b}
	p := positions{f.pos(), f.pos()}
	return p, f.end() == nil
}

func (l *line) status() ledger.Status {
	if l.bits&bitRejected != 0 {
		return ledger.StatusRejected
	}
	return ledger.StatusAccepted
}

// keeps reports whether the line meets the filter.
func (f *Filter) keeps(l *line) bool {
	return (f.Status == "" || f.Status == l.status()) &&
		(f.Code == "" || f.Code == string(l.code)) &&
		(f.ContractType == "" || f.ContractType == string(l.kind)) &&
		(f.Source == "" || f.Source == string(l.source)) &&
		(f.EventID == "" || f.EventID == string(l.eventID)) &&
		l.recorded >= f.From && (f.To == 0 || l.recorded < f.To) &&
		(f.SentFrom == 0 && f.SentTo == 0 || l.timestamp >= max(f.SentFrom, 0) && (f.SentTo == 0 || l.timestamp < f.SentTo)) &&
		(f.FromSequence == nil && f.ToSequence == nil || l.sequence >= 0) &&
		(f.FromSequence == nil || l.sequence >= *f.FromSequence) &&
		(f.ToSequence == nil || l.sequence <= *f.ToSequence)
}

// lines is the list of the positions of entries that the request keeps, up to asOf.
func (v *view) lines(r *HistoryRequest, asOf ledger.Position) list[ledger.Position] {
	return func(ctx context.Context, s span, use func([]byte, ledger.Position) (bool, error)) error {
		within, err := v.within(ctx, &r.Filter, asOf)
		if err != nil {
			return err
		}
		first, last := s.after, s.before // in the order of positions
		if r.Order == Desc {
			first, last = last, first
		}
		if first != nil {
			within.first = max(within.first, ledger.Position(number(first))+1)
		}
		if last != nil {
			within.last = min(within.last, ledger.Position(number(last))-1)
		}
		if within.first > within.last || r.ContractID != "" && !ledger.ValidID(r.ContractID, ledger.MaxIDLen) {
			return nil
		}
		under := v.prefix.key(tagEntry)
		if r.ContractID != "" {
			under = v.prefix.keyOf(tagLine, r.ContractID)
		}
		var key []byte
		return v.items(ctx, under, within, (r.Order == Desc) != s.backwards, func(it item) (bool, error) {
			f, l := fields{b: it.val}, line{}
			if l.take(&f); f.bad {
				return false, f.end()
			}
			if !r.keeps(&l) {
				return true, nil
			}
			key = appendNumbers(key[:0], uint64(it.at))
			return use(key, it.at)
		})
	}
}

// within says between which positions the entries of the filter's time range lie. Entries of one
// hour are close together, so this spares reading what lies far away.
func (v *view) within(ctx context.Context, f *Filter, asOf ledger.Position) (positions, error) {
	all := positions{1, asOf}
	if f.From <= 0 && f.To <= 0 {
		return all, nil
	}
	from, to := uint64(max(f.From, 0)/hourMillis), uint64(math.MaxInt64)
	if f.To > 0 {
		to = uint64((f.To-1)/hourMillis) + 1
	}
	found := positions{math.MaxInt64, 0}
	start := v.prefix.key(tagHour)
	err := v.scan(ctx, appendNumbers(bytes.Clone(start), from), appendNumbers(bytes.Clone(start), max(from, to)), false, func(_, val []byte) (bool, error) {
		p, _ := decodePositions(val)
		found = positions{min(found.first, p.first), max(found.last, p.last)}
		return true, nil
	})
	return positions{max(all.first, found.first), min(all.last, found.last)}, err
}

// entries reads the entries at the positions with their repeats, in the order of the positions given;
// there may be none at some. Rows are looked up in their own order, which is several times as fast.
func (v *view) entries(at []ledger.Position) (found []Entry, err error) {
	entries := make(map[ledger.Position]*Entry, len(at))
	sorted := slices.Sorted(slices.Values(at))
	if err := v.lookUp(func(rows *looker) error { return v.readEntries(rows, sorted, entries) }); err != nil {
		return nil, err
	}
	if err := v.lookUp(func(rows *looker) error { return v.readRepeats(rows, sorted, entries) }); err != nil {
		return nil, err
	}
	found = make([]Entry, 0, len(at))
	for _, p := range at {
		if e := entries[p]; e != nil {
			found = append(found, *e)
		}
	}
	return found, nil
}

// lookUp lets read look rows up.
func (v *view) lookUp(read func(*looker) error) error {
	rows, err := v.look()
	if err != nil {
		return err
	}
	return errors.Join(read(rows), rows.close())
}

func (v *view) readEntries(rows *looker, at []ledger.Position, entries map[ledger.Position]*Entry) error {
	return v.itemsAt(rows, v.prefix.key(tagEntry), at, func(it item) error {
		e, _, err := decodeEntry(it.val)
		if err != nil {
			return fmt.Errorf("entry at position %s: %w", it.at, err)
		}
		e.Position, entries[it.at] = it.at, &e
		return nil
	})
}

func (v *view) readRepeats(rows *looker, at []ledger.Position, entries map[ledger.Position]*Entry) error {
	for _, p := range at {
		e := entries[p]
		if e == nil {
			continue
		}
		rep, err := decodeRepeat(rows.get(v.prefix.keyOf(tagRepeat, e.Stream, uint64(e.Revision))))
		if err != nil {
			return fmt.Errorf("repeats of the entry at position %s: %w", p, err)
		}
		e.Duplicates, e.LastDuplicateAt = rep.count, rep.last
	}
	return nil
}

// ordinal is how many entries there are up to the position.
func (v *view) ordinal(ctx context.Context, upTo ledger.Position) (n int64, err error) {
	err = v.items(ctx, v.prefix.key(tagEntry), positions{0, upTo}, true, func(it item) (bool, error) {
		_, n, err = decodeEntry(it.val)
		return false, err
	})
	return n, err
}

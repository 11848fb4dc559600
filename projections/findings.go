package projections

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/talenttrust/auditledger/ledger"
)

// The rows of findings:
//
//	s contractId 0x00              → lowest and highest accepted sequence and where they are, gaps, findings but conflicts
//	k contractId 0x00              → counter of conflicts
//	f contractId 0x00 kind sequence place → finding
//	t kind 0x00                    → counter of all findings of a kind
//
// sequence is one higher than the finding's, 0 for none. place is the position of a finding about one entry. It is 0
// for a gap and for a reused sequence, of which there is one row however often it was reused.
const (
	tagSequences = 's'
	tagConflicts = 'k'
	tagFinding   = 'f'
	tagFindings  = 't'
)

// kinds are the kinds of findings; the index is the byte in the key.
var kinds = [...]FindingKind{1: SequenceGap, 2: SequenceReused, 3: SequenceRegression, 4: Conflict, 5: Reingested, 6: Sanitized, 7: Late}

const (
	kindGap byte = iota + 1
	kindReused
	kindRegression
	kindConflict
	kindReingested
	kindSanitized
	kindLate
)

// findings folds records into what an auditor should look at. Sequences of events from sources
// whose sequences are free, and of events that came back after their window, are none of its business.
type findings struct {
	t        *table
	counters counters
	rows     contractRows[*sequences]
	reuses   map[reusedSequence]*reuse // of the records at hand

	// ranges holds the rows of gaps that the records at hand change, readable together with what is
	// stored; nil when there are none.
	ranges *pebble.Batch
}

// sequences is what is known of a contract's sequences. Between lowest and highest, all that is in
// no gap was accepted.
type sequences struct {
	id                  string
	lowest, highest     int64 // ledger.Absent before the first
	atLowest, atHighest ledger.Position
	gaps                int64 // how many
	found               int64 // findings, gaps included, conflicts not
	dirty               bool

	// Few gaps are kept here, by sequence, and their rows are written once for all records at hand:
	// most gaps of a contract that is written to from several sides are filled at once. Many gaps are
	// in their rows only.
	few    bool // list is all gaps
	list   []gap
	stored []gap // those that have rows
}

// fewGaps is how many gaps of a contract are kept in memory.
const fewGaps = 32

func newFindings(t *table) folder {
	return &findings{t: t, counters: newCounters(t), rows: newContractRows(t, tagSequences, newSequences), reuses: map[reusedSequence]*reuse{}}
}

func (f *findings) fold(r *ledger.Record) error {
	h, s := &r.Header, f.rows.next()
	if h.Type != ledger.EventAccepted && h.Type != ledger.EventRejected {
		return nil
	}
	if err := checkEvent(h); err != nil || h.ContractID == "" {
		return err
	}
	if h.Type == ledger.EventRejected {
		if isConflict(h.Code) {
			f.note(kindConflict, r)
			f.counters.add(f.t.keyOf(tagConflicts, h.ContractID), 1)
		}
		return nil
	}
	return f.accepted(s, r)
}

func (f *findings) accepted(s *sequences, r *ledger.Record) error {
	h, y := &r.Header, &r.Body
	free := y.SequencePolicy == ledger.SequenceFree
	if free && h.Generation == 1 && !y.Sanitized && !y.Late {
		return nil
	}
	f.rows.change(s)
	if h.Generation > 1 {
		f.single(s, kindReingested, r)
		return nil
	}
	if y.Sanitized {
		f.single(s, kindSanitized, r)
	}
	if y.Late {
		f.single(s, kindLate, r)
	}
	if free {
		return nil
	}
	return f.sequence(s, r)
}

// sequence puts an accepted sequence in its place.
func (f *findings) sequence(s *sequences, r *ledger.Record) error {
	seq, at := r.Header.Sequence, r.Position
	switch {
	case s.highest == ledger.Absent:
		s.lowest, s.highest, s.atLowest, s.atHighest = seq, seq, at, at
	case seq > s.highest:
		f.gap(s, s.highest+1, seq-1, s.atHighest, at)
		s.highest, s.atHighest = seq, at
	case seq < s.lowest:
		f.single(s, kindRegression, r)
		f.gap(s, seq+1, s.lowest-1, at, s.atLowest)
		s.lowest, s.atLowest = seq, at
	default:
		return f.between(s, r)
	}
	return nil
}

// between is about a sequence from the lowest to the highest: it is in a gap, or was there before.
func (f *findings) between(s *sequences, r *ledger.Record) error {
	seq, at := r.Header.Sequence, r.Position
	g, ok, err := f.gapAround(s, seq)
	if err != nil {
		return err
	}
	if !ok {
		f.reused(s, seq, at)
		return nil
	}
	f.drop(s, g)
	f.gap(s, g.from, seq-1, g.before, at)
	f.gap(s, seq+1, g.to, at, g.after)
	f.single(s, kindRegression, r)
	return nil
}

// gap is a range of sequences that were not accepted, and the entries beside it.
type gap struct {
	from, to      int64
	before, after ledger.Position
}

// gap notes a gap, unless there is nothing in it.
func (f *findings) gap(s *sequences, from, to int64, before, after ledger.Position) {
	if from > to {
		return
	}
	s.gaps++
	s.found++
	f.total(kindGap, 1)
	g := gap{from, to, before, after}
	if !s.few {
		f.writeGap(s, g)
		return
	}
	i, _ := slices.BinarySearchFunc(s.list, g, byFrom)
	if s.list = slices.Insert(s.list, i, g); len(s.list) > fewGaps {
		f.writeList(s)
		s.few, s.list, s.stored = false, nil, nil
	}
}

func byFrom(a, b gap) int { return cmp.Compare(a.from, b.from) }

func (f *findings) drop(s *sequences, g gap) {
	s.gaps--
	s.found--
	f.total(kindGap, -1)
	if !s.few {
		f.deleteGap(s, g)
		return
	}
	i, _ := slices.BinarySearchFunc(s.list, g, byFrom)
	s.list = slices.Delete(s.list, i, i+1)
}

func (f *findings) writeGap(s *sequences, g gap) {
	val := row{}
	val.num(g.to)
	val.pos(g.before)
	val.pos(g.after)
	f.t.fail(f.writable().Set(f.key(s, kindGap, g.from, 0), val, nil))
}

func (f *findings) deleteGap(s *sequences, g gap) {
	f.t.fail(f.writable().Delete(f.key(s, kindGap, g.from, 0), nil))
}

// writeList brings the rows of a contract's gaps to what is in memory.
func (f *findings) writeList(s *sequences) {
	if slices.Equal(s.list, s.stored) {
		return
	}
	for _, g := range s.stored {
		if _, ok := slices.BinarySearchFunc(s.list, g, byFrom); !ok {
			f.deleteGap(s, g)
		}
	}
	for _, g := range s.list {
		if i, ok := slices.BinarySearchFunc(s.stored, g, byFrom); !ok || s.stored[i] != g {
			f.writeGap(s, g)
		}
	}
	s.stored = append(s.stored[:0], s.list...)
}

// gapAround finds the gap that the sequence is in.
func (f *findings) gapAround(s *sequences, seq int64) (g gap, ok bool, err error) {
	if s.gaps == 0 {
		return g, false, nil
	}
	if !s.few && s.gaps <= fewGaps/2 {
		if err := f.readList(s); err != nil {
			return g, false, err
		}
	}
	if !s.few {
		return f.storedGapAround(s, seq)
	}
	i, exact := slices.BinarySearchFunc(s.list, gap{from: seq}, byFrom)
	if !exact {
		i-- // the last one that begins before it
	}
	if i < 0 {
		return g, false, nil
	}
	return s.list[i], s.list[i].to >= seq, nil
}

// readList takes the gaps of a contract from their rows into memory.
func (f *findings) readList(s *sequences) error {
	it, err := f.gapRows(s, ledger.MaxInteger)
	if err != nil {
		return err
	}
	s.list = s.list[:0]
	for ok := it.First(); ok; ok = it.Next() {
		g, err := decodeGap(it.Key(), it.Value())
		if err != nil {
			return errors.Join(err, it.Close())
		}
		s.list = append(s.list, g)
	}
	err = errors.Join(it.Error(), it.Close())
	f.t.fail(err)
	s.few, s.stored = err == nil, slices.Clone(s.list)
	return err
}

// gapRows iterates over the rows of a contract's gaps that begin at a sequence or before it.
func (f *findings) gapRows(s *sequences, upTo int64) (*pebble.Iterator, error) {
	it, err := f.writable().NewIter(&pebble.IterOptions{LowerBound: f.key(s, kindGap, 0, 0), UpperBound: f.key(s, kindGap, upTo+1, 0)})
	f.t.fail(err)
	return it, err
}

func (f *findings) storedGapAround(s *sequences, seq int64) (g gap, ok bool, err error) {
	it, err := f.gapRows(s, seq)
	if err != nil {
		return g, false, err
	}
	defer func() { f.t.fail(it.Close()) }()
	if !it.Last() {
		f.t.fail(it.Error())
		return g, false, it.Error()
	}
	if g, err = decodeGap(it.Key(), it.Value()); err != nil {
		return g, false, err
	}
	return g, g.to >= seq, nil
}

func decodeGap(key, val []byte) (g gap, err error) {
	f := fields{b: val}
	g = gap{from: int64(number(key[:len(key)-8])) - 1, to: f.num(), before: f.pos(), after: f.pos()}
	return g, f.end()
}

// reuse says how often a sequence was accepted again.
type reuse struct {
	count       int64
	first, last ledger.Position
}

// reusedSequence is one of a contract.
type reusedSequence struct {
	s   *sequences
	seq int64
}

func (f *findings) reused(s *sequences, seq int64, at ledger.Position) {
	u := f.reuses[reusedSequence{s, seq}]
	if u == nil {
		u = &reuse{first: at}
		f.reuses[reusedSequence{s, seq}] = u
	}
	u.count, u.last = u.count+1, at
}

// writeReuses adds what the records at hand reused to what was reused before them.
func (f *findings) writeReuses() {
	order := slices.SortedFunc(maps.Keys(f.reuses), func(a, b reusedSequence) int {
		return cmp.Or(cmp.Compare(a.s.id, b.s.id), cmp.Compare(a.seq, b.seq))
	})
	key := func(of reusedSequence) []byte { return f.key(of.s, kindReused, of.seq, 0) }
	before := map[reusedSequence]bool{}
	f.t.getAll(func(yield func([]byte, func([]byte) error) bool) {
		for _, of := range order {
			if !yield(key(of), func(val []byte) error {
				old, err := decodeReuse(val)
				u := f.reuses[of]
				u.count, u.first, before[of] = u.count+old.count, old.first, true
				return err
			}) {
				return
			}
		}
	}, len(order))
	for _, of := range order {
		if !before[of] {
			of.s.found++
			f.total(kindReused, 1)
		}
		u := f.reuses[of]
		f.t.val = f.t.val[:0]
		f.t.val.num(u.count)
		f.t.val.pos(u.first)
		f.t.val.pos(u.last)
		f.t.put(key(of), f.t.val)
	}
	clear(f.reuses)
}

func decodeReuse(val []byte) (reuse, error) {
	f := fields{b: val}
	u := reuse{f.num(), f.pos(), f.pos()}
	return u, f.end()
}

// single notes a finding about one accepted event.
func (f *findings) single(s *sequences, kind byte, r *ledger.Record) {
	s.found++
	f.note(kind, r)
}

// note writes the row of a finding about one entry. It says nothing that is not in its key, but for one that came back
// with another payload: any value says that.
func (f *findings) note(kind byte, r *ledger.Record) {
	f.total(kind, 1)
	var val []byte
	if kind == kindReingested && r.Body.PayloadChanged {
		val = []byte{1}
	}
	f.t.put(findingKey(f.t.prefix, r.Header.ContractID, kind, r.Header.Sequence, r.Position), val)
}

// total counts a finding among all of its kind, or one less.
func (f *findings) total(kind byte, n int64) {
	f.counters.add(f.t.keyOf(tagFindings, string(kinds[kind])), n)
}

func (f *findings) key(s *sequences, kind byte, seq int64, place ledger.Position) []byte {
	return findingKey(f.t.prefix, s.id, kind, seq, place)
}

func findingKey(p prefix, id string, kind byte, seq int64, place ledger.Position) []byte {
	return appendNumbers(append(p.keyOf(tagFinding, id), kind), uint64(seq+1), uint64(place))
}

func (f *findings) writable() *pebble.Batch {
	if f.ranges == nil {
		f.ranges = f.t.db.NewIndexedBatch()
	}
	return f.ranges
}

func (f *findings) prepare(recs []ledger.Record) { f.rows.prepare(recs) }

func (s *sequences) contract() string { return s.id }
func (s *sequences) isDirty() *bool   { return &s.dirty }

func newSequences(id string) *sequences {
	return &sequences{id: id, lowest: ledger.Absent, highest: ledger.Absent, few: true}
}

func (f *findings) finish() {
	f.writeReuses()
	f.rows.finish(func(s *sequences) {
		if s.few {
			f.writeList(s)
		}
		f.t.val = f.t.val[:0]
		s.append(&f.t.val)
		f.t.put(f.t.keyOf(tagSequences, s.id), f.t.val)
	})
	if f.ranges != nil {
		f.t.putAll(f.ranges)
		f.t.fail(f.ranges.Close())
		f.ranges = nil
	}
	f.counters.finish(noSums)
}

func (s *sequences) append(b *row) {
	for _, n := range []int64{s.lowest, s.highest, s.gaps, s.found} {
		b.num(n)
	}
	b.pos(s.atLowest)
	b.pos(s.atHighest)
}

func (s *sequences) decode(b []byte) error {
	f := fields{b: b}
	for _, n := range []*int64{&s.lowest, &s.highest, &s.gaps, &s.found} {
		*n = f.num()
	}
	s.atLowest, s.atHighest = f.pos(), f.pos()
	s.few = s.gaps == 0
	return f.end()
}

// findings is the list of a contract's findings. An item's key is what follows the contract in its row's key.
func (v *view) findings(id string) list[Finding] {
	return func(ctx context.Context, s span, use func([]byte, Finding) (bool, error)) error {
		start := v.prefix.keyOf(tagFinding, id)
		lower, upper := start, append(bytes.Clone(start), byte(len(kinds)))
		if s.after != nil {
			lower = append(append(bytes.Clone(start), s.after...), 0)
		}
		if s.before != nil {
			upper = append(bytes.Clone(start), s.before...)
		}
		return v.scan(ctx, lower, upper, s.backwards, func(key, val []byte) (bool, error) {
			item := key[len(start):]
			found, err := decodeFinding(item, val)
			if err != nil {
				return false, fmt.Errorf("finding of contract %s: %w", id, err)
			}
			return use(item, found)
		})
	}
}

// foundIn is how many findings the contract has.
func (v *view) foundIn(id string) (int64, error) {
	n, err := v.counter(v.prefix.keyOf(tagConflicts, id))
	if err != nil {
		return 0, err
	}
	val, err := v.get(v.prefix.keyOf(tagSequences, id))
	if err != nil || val == nil {
		return n, err
	}
	var s sequences
	err = s.decode(val)
	return n + s.found, err
}

// decodeFinding reads a row from kind, sequence and place in its key, and its value.
func decodeFinding(key, val []byte) (f Finding, err error) {
	if len(key) != 17 || key[0] == 0 || int(key[0]) >= len(kinds) {
		return f, errors.New("the key of a finding is not one")
	}
	seq := int64(binary.BigEndian.Uint64(key[1:])) - 1
	f = Finding{Kind: kinds[key[0]], FromSequence: seq, ToSequence: seq, Positions: []ledger.Position{ledger.Position(number(key))}}
	switch key[0] {
	case kindGap:
		g, err := decodeGap(key, val)
		f.ToSequence, f.Positions = g.to, []ledger.Position{g.before, g.after}
		f.Message = f.message(0)
		return f, err
	case kindReused:
		u, err := decodeReuse(val)
		f.Positions = []ledger.Position{u.first, u.last}
		if u.first == u.last {
			f.Positions = f.Positions[:1]
		}
		f.Message = f.message(u.count)
		return f, err
	}
	f.Message = f.message(1)
	if key[0] == kindReingested && len(val) > 0 {
		f.Message = fmt.Sprintf("The event with sequence %d came back with another payload after its window had passed and was accepted anew.", seq)
	}
	return f, nil
}

// message is the finding in a sentence.
func (f *Finding) message(times int64) string {
	switch f.Kind {
	case SequenceGap:
		if f.FromSequence == f.ToSequence {
			return fmt.Sprintf("No event with sequence %d was accepted, though there are some before and behind it.", f.FromSequence)
		}
		return fmt.Sprintf("No events with sequences %d to %d were accepted, though there are some before and behind them.", f.FromSequence, f.ToSequence)
	case SequenceReused:
		if times == 1 {
			return fmt.Sprintf("Sequence %d was accepted once more, under another event id.", f.FromSequence)
		}
		return fmt.Sprintf("Sequence %d was accepted %d times more, under other event ids.", f.FromSequence, times)
	case SequenceRegression:
		return fmt.Sprintf("Sequence %d arrived after a higher one.", f.FromSequence)
	case Conflict:
		return fmt.Sprintf("An event with sequence %d was refused: its key is bound to another payload.", f.FromSequence)
	case Reingested:
		return fmt.Sprintf("The event with sequence %d came back after its window had passed and was accepted anew.", f.FromSequence)
	case Sanitized:
		return fmt.Sprintf("The event with sequence %d held characters that were removed or replaced before it was stored.", f.FromSequence)
	}
	return fmt.Sprintf("The event with sequence %d was older than the age limit when it arrived.", f.FromSequence)
}

// totals is how many findings of each kind there are.
func (v *view) totals() (named []Named, err error) {
	for _, kind := range kinds[1:] {
		n, err := v.counter(v.keyOf(tagFindings, string(kind)))
		if err != nil {
			return nil, err
		}
		if n > 0 {
			named = append(named, Named{string(kind), n})
		}
	}
	return named, nil
}

package projections

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/talenttrust/auditledger/ledger"
)

// The rows of contracts:
//
//	s contractId 0x00              → what is known of the contract
//	a position                     → contractId of the contract whose last entry is there
//	n hour metric                  → counter of the contracts first seen then
//	r stream 0x00 revision         → contractId and code of the rejection, for when it is met again
const (
	tagContract = 's'
	tagActivity = 'a'
)

// contracts folds records into what is known of each contract as a whole.
type contracts struct {
	t        *table
	counters counters
	rows     contractRows[*contract]
	rejected map[recordID]contractCode // of the records at hand
}

// contract is a Contract with what only the projection needs.
type contract struct {
	Contract
	entries int64           // accepted and rejected, without repeats
	first   ledger.Position // of its first entry
	stored  ledger.Position // its place in the order of activity in the database; 0: none
	dirty   bool
}

type contractCode struct{ contractID, code string }

func newContracts(t *table) folder {
	return &contracts{t: t, counters: newCounters(t), rows: newContractRows(t, tagContract, newContract), rejected: map[recordID]contractCode{}}
}

func (c *contracts) fold(r *ledger.Record) error {
	row := c.rows.next()
	switch r.Header.Type {
	case ledger.EventAccepted, ledger.EventRejected:
		if err := checkEvent(&r.Header); err != nil || r.Header.ContractID == "" {
			return err
		}
		c.add(row, r)
	case ledger.DuplicatesCounted:
		for i := range r.Body.Counts {
			c.again(&r.Body.Counts[i])
		}
	}
	return nil
}

func (c *contracts) add(row *contract, r *ledger.Record) {
	h := &r.Header
	c.rows.change(row)
	if row.entries == 0 {
		row.FirstProcessedAt, row.first = h.RecordedAt, r.Position
		key := appendNumbers(append(c.t.key[:0], c.t.prefix[0], c.t.prefix[1], tagMetric), uint64(h.RecordedAt/hourMillis))
		c.counters.add(append(key, metricContracts), 1)
	}
	row.entries++
	row.LastProcessedAt, row.LastPosition = h.RecordedAt, r.Position
	if h.Type == ledger.EventRejected {
		c.rejected[recordID{h.Stream, h.Revision}] = contractCode{h.ContractID, h.Code}
		row.reject(h.Code, 1)
		return
	}
	row.Accepted++
	row.Type, row.LastSequence = h.ContractType, h.Sequence
	row.HighestSequence = max(row.HighestSequence, h.Sequence)
	if row.LowestSequence == ledger.Absent || h.Sequence < row.LowestSequence {
		row.LowestSequence = h.Sequence
	}
}

func (r *contract) reject(code string, n int64) {
	r.Rejected += n
	if isConflict(code) {
		r.Conflicts += n
	}
}

// again adds repeats to the contract of the record that was met again, if it has one.
func (c *contracts) again(n *ledger.Count) {
	if id, ok := strings.CutPrefix(n.Stream, ledger.ContractStream("")); ok {
		if row := c.rows.of(id); row.entries > 0 {
			c.rows.change(row)
			row.Duplicates += n.Count
		}
		return
	}
	of, ok := c.rejected[recordID{n.Stream, n.Revision}]
	if !ok {
		f := fields{b: c.t.get(c.t.keyOf(tagRejection, n.Stream, uint64(n.Revision)))}
		of = contractCode{string(f.text()), string(f.text())}
	}
	if of.contractID != "" {
		row := c.rows.of(of.contractID)
		c.rows.change(row)
		row.reject(of.code, n.Count)
	}
}

func (c *contracts) prepare(recs []ledger.Record) { c.rows.prepare(recs) }

func (r *contract) contract() string { return r.ContractID }
func (r *contract) isDirty() *bool   { return &r.dirty }

func newContract(id string) *contract {
	return &contract{Contract: Contract{ContractID: id, LastSequence: ledger.Absent, LowestSequence: ledger.Absent, HighestSequence: ledger.Absent}}
}

func (c *contracts) finish() {
	c.rows.finish(func(row *contract) {
		if row.entries > 0 {
			c.store(row)
		}
	})
	for id, of := range c.rejected {
		c.t.val = c.t.val[:0]
		c.t.val.text(of.contractID)
		c.t.val.text(of.code)
		c.t.put(c.t.keyOf(tagRejection, id.stream, uint64(id.revision)), c.t.val)
	}
	clear(c.rejected)
	c.counters.finish(sums)
}

func (c *contracts) store(row *contract) {
	t := c.t
	t.val = t.val[:0]
	row.append(&t.val)
	t.put(t.keyOf(tagContract, row.ContractID), t.val)
	if row.stored == row.LastPosition {
		return
	}
	if row.stored != 0 {
		t.delete(appendNumbers(t.prefix.key(tagActivity), uint64(row.stored)))
	}
	t.put(appendNumbers(t.prefix.key(tagActivity), uint64(row.LastPosition)), []byte(row.ContractID))
	row.stored = row.LastPosition
}

func (r *contract) append(b *row) {
	b.text(r.Type)
	for _, n := range []int64{r.entries, r.Accepted, r.Rejected, r.Duplicates, r.Conflicts, r.FirstProcessedAt, r.LastProcessedAt, r.LastSequence, r.LowestSequence, r.HighestSequence} {
		b.num(n)
	}
	b.pos(r.first)
	b.pos(r.LastPosition)
}

// decode reads what append wrote. The contract's id is in the key.
func (r *contract) decode(b []byte) error {
	f := fields{b: b}
	r.Type = string(f.text())
	for _, n := range []*int64{&r.entries, &r.Accepted, &r.Rejected, &r.Duplicates, &r.Conflicts, &r.FirstProcessedAt, &r.LastProcessedAt, &r.LastSequence, &r.LowestSequence, &r.HighestSequence} {
		*n = f.num()
	}
	r.first, r.LastPosition = f.pos(), f.pos()
	r.stored = r.LastPosition
	return f.end()
}

// contract reads one contract; nil when it is not known.
func (v *view) contract(id string) (*contract, error) {
	val, err := v.get(v.prefix.keyOf(tagContract, id))
	if err != nil || val == nil {
		return nil, err
	}
	c := newContract(id)
	if err := c.decode(val); err != nil {
		return nil, fmt.Errorf("contract %s: %w", id, err)
	}
	return c, nil
}

// keeps reports whether the request asks for the contract, as of a position.
func (r *ContractsRequest) keeps(c *contract, asOf ledger.Position) bool {
	return c.first <= asOf && (r.Type == "" || r.Type == c.Type)
}

// named reports whether the id holds what is searched for.
func (r *ContractsRequest) named(id []byte) bool {
	return r.Search == "" || bytes.Contains(bytes.ToLower(id), []byte(strings.ToLower(r.Search)))
}

// byID is the list of contracts sorted by id.
func (v *view) byID(r *ContractsRequest, asOf ledger.Position) list[Contract] {
	return func(ctx context.Context, s span, use func([]byte, Contract) (bool, error)) error {
		lower, upper := v.prefix.key(tagContract), v.prefix.key(tagContract+1)
		start := len(lower)
		if s.after != nil {
			lower = append(append(lower, s.after...), 1) // behind the zero byte that ends the id
		}
		if s.before != nil {
			upper = append(v.prefix.key(tagContract), s.before...)
		}
		return v.scan(ctx, lower, upper, s.backwards, func(key, val []byte) (bool, error) {
			id := key[start : len(key)-1]
			if !r.named(id) {
				return true, nil
			}
			c := newContract(string(id))
			if err := c.decode(val); err != nil || !r.keeps(c, asOf) {
				return err == nil, err
			}
			return use(id, c.Contract)
		})
	}
}

// maxMoved is how many contracts may have had an entry after the position as of which a list by
// activity is read. The list is a page of what people look at now, not an archive.
const maxMoved = 100_000

// placed is a contract and its last entry as of a position.
type placed struct {
	at ledger.Position
	id string
}

// byActivity is the list of contracts by their last entry up to asOf, latest first. Those that had
// one since are no longer in their place; lastBefore finds it.
func (v *view) byActivity(r *ContractsRequest, asOf ledger.Position, lastBefore func(id string) (ledger.Position, error)) list[Contract] {
	return func(ctx context.Context, s span, use func([]byte, Contract) (bool, error)) error {
		moved, err := v.moved(ctx, asOf, lastBefore)
		if err != nil {
			return err
		}
		first, last := ledger.Position(0), asOf+1 // exclusive, in the order of positions
		if s.after != nil {
			last = min(last, ledger.Position(number(s.after)))
		}
		if s.before != nil {
			first = ledger.Position(number(s.before))
		}
		moved = slices.DeleteFunc(moved, func(p placed) bool { return p.at <= first || p.at >= last })
		if !s.backwards {
			slices.Reverse(moved)
		}
		return v.merge(ctx, first, last, !s.backwards, moved, func(p placed) (bool, error) {
			if !r.named([]byte(p.id)) {
				return true, nil
			}
			c, err := v.contract(p.id)
			if err != nil || c == nil || !r.keeps(c, asOf) {
				return err == nil, err
			}
			return use(appendNumbers(nil, uint64(p.at)), c.Contract)
		})
	}
}

// moved returns the contracts with an entry after asOf in their place as of then, oldest first.
func (v *view) moved(ctx context.Context, asOf ledger.Position, lastBefore func(id string) (ledger.Position, error)) (moved []placed, err error) {
	lower := appendNumbers(v.prefix.key(tagActivity), uint64(asOf)+1)
	err = v.scan(ctx, lower, v.prefix.key(tagActivity+1), false, func(_, id []byte) (bool, error) {
		if len(moved) == maxMoved {
			return false, &ParameterError{"after", "is too old for this list: begin again"}
		}
		at, err := lastBefore(string(id))
		if at > 0 {
			moved = append(moved, placed{at, string(id)})
		}
		return true, err
	})
	slices.SortFunc(moved, func(a, b placed) int { return int(int64(a.at) - int64(b.at)) })
	return moved, err
}

// merge hands out, between two positions, the contracts in their place and those in moved, which is
// sorted in the same direction.
func (v *view) merge(ctx context.Context, first, last ledger.Position, backwards bool, moved []placed, use func(placed) (bool, error)) error {
	more := true
	err := v.scan(ctx, appendNumbers(v.prefix.key(tagActivity), uint64(first)+1), appendNumbers(v.prefix.key(tagActivity), uint64(last)), backwards, func(key, id []byte) (_ bool, err error) {
		at := ledger.Position(number(key))
		for more && err == nil && len(moved) > 0 && (moved[0].at > at) == backwards {
			more, err = use(moved[0])
			moved = moved[1:]
		}
		if more && err == nil {
			more, err = use(placed{at, string(id)})
		}
		return more, err
	})
	for more && err == nil && len(moved) > 0 {
		more, err = use(moved[0])
		moved = moved[1:]
	}
	return err
}

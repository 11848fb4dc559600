package projections

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/talenttrust/auditledger/ledger"
)

// manyContracts is how many contracts a cache remembers.
const manyContracts = 65_536

// cache remembers the values used last, in two halves: when the younger is full it becomes the
// older one, and what was in that and not used since is forgotten. So it remembers at least half values,
// and twice as many at most.
type cache[K comparable, V any] struct {
	young, old map[K]V
	half       int
}

func newCache[K comparable, V any](half int) cache[K, V] {
	return cache[K, V]{young: map[K]V{}, half: half}
}

func (c *cache[K, V]) get(key K) (V, bool) {
	v, ok := c.young[key]
	if ok {
		return v, true
	}
	if v, ok = c.old[key]; ok {
		c.young[key] = v
	}
	return v, ok
}

func (c *cache[K, V]) put(key K, v V) { c.young[key] = v }

// age may forget. It is called where every value is stored.
func (c *cache[K, V]) age() {
	if len(c.young) >= c.half {
		c.young, c.old = make(map[K]V, c.half), c.young
	}
}

// contractRow is a row of which a projection has one for each contract, in memory.
type contractRow interface {
	comparable
	contract() string
	decode([]byte) error
	isDirty() *bool // it is in memory otherwise than in the database
}

// contractRows are the rows under a tag, one for each contract.
type contractRows[R contractRow] struct {
	t      *table
	tag    byte
	make   func(contractID string) R
	known  cache[string, R]
	coming []R // of the records that will be folded, in their order
	dirty  []R
}

func newContractRows[R contractRow](t *table, tag byte, make func(string) R) contractRows[R] {
	return contractRows[R]{t: t, tag: tag, make: make, known: newCache[string, R](manyContracts)}
}

// prepare finds the rows of the records' contracts, and reads those that are not remembered.
func (c *contractRows[R]) prepare(recs []ledger.Record) {
	c.coming = c.coming[:0]
	var missing []R
	for i := range recs {
		row, ok := c.known.get(recs[i].Header.ContractID)
		if !ok {
			row = c.make(strings.Clone(recs[i].Header.ContractID)) // which would keep more of the record
			c.known.put(row.contract(), row)
			missing = append(missing, row)
		}
		c.coming = append(c.coming, row)
	}
	c.load(missing)
}

func (c *contractRows[R]) load(missing []R) {
	slices.SortFunc(missing, func(a, b R) int { return cmp.Compare(a.contract(), b.contract()) })
	c.t.getAll(func(yield func([]byte, func([]byte) error) bool) {
		for _, row := range missing {
			if !yield(c.t.keyOf(c.tag, row.contract()), row.decode) {
				return
			}
		}
	}, len(missing))
}

// next returns the row of the contract of the record at hand. It is called once for every record.
func (c *contractRows[R]) next() (row R) {
	row, c.coming = c.coming[0], c.coming[1:]
	return row
}

// of returns the row of any contract.
func (c *contractRows[R]) of(contractID string) R {
	row, ok := c.known.get(contractID)
	if !ok {
		row = c.make(strings.Clone(contractID))
		c.known.put(row.contract(), row)
		c.load([]R{row})
	}
	return row
}

// change has the row written with the others.
func (c *contractRows[R]) change(row R) {
	if dirty := row.isDirty(); !*dirty {
		*dirty, c.dirty = true, append(c.dirty, row)
	}
}

// finish hands the changed rows out and may forget rows.
func (c *contractRows[R]) finish(write func(row R)) {
	for _, row := range c.dirty {
		*row.isDirty() = false
		write(row)
	}
	c.dirty = c.dirty[:0]
	c.known.age()
}

// counters are rows that hold one number each, and are added to.
type counters struct {
	t      *table
	deltas map[string]*int64 // of the records at hand
	stored cache[string, int64]
}

func newCounters(t *table) counters {
	return counters{t: t, deltas: map[string]*int64{}, stored: newCache[string, int64](10_000)}
}

// add adds n to the counter under the key, which the caller may reuse.
func (c *counters) add(key []byte, n int64) { *c.delta(key) += n }

// delta is what is added to the counter under the key, which the caller may reuse. It is good until finish.
func (c *counters) delta(key []byte) *int64 {
	d := c.deltas[string(key)]
	if d == nil {
		d = new(int64)
		c.deltas[string(key)] = d
	}
	return d
}

// finish writes each counter once, after adding it to its sums.
func (c *counters) finish(sums func(key []byte, add func(sum []byte))) {
	for _, key := range slices.Collect(maps.Keys(c.deltas)) {
		n := *c.deltas[key]
		sums([]byte(key), func(sum []byte) { c.add(sum, n) })
	}
	for key, d := range c.deltas {
		old, ok := c.stored.get(key)
		if !ok {
			f := fields{b: c.t.get([]byte(key))}
			old = f.num()
		}
		c.t.val = c.t.val[:0]
		c.t.val.num(old + *d)
		c.t.put([]byte(key), c.t.val)
		c.stored.put(key, old+*d)
	}
	clear(c.deltas)
	c.stored.age()
}

// noSums is for counters that are part of no other.
func noSums([]byte, func([]byte)) {}

// counter reads a counter; 0 when it was never added to.
func (v *view) counter(key []byte) (int64, error) {
	val, err := v.get(key)
	if err != nil || val == nil {
		return 0, err
	}
	f := fields{b: val}
	n := f.num()
	return n, f.end()
}

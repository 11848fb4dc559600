package projections

import (
	"maps"
	"slices"

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

// missing returns the contracts of the records that are not remembered, each once, sorted.
func missing[V any](recs []ledger.Record, known *cache[string, V]) (ids []string) {
	for i := range recs {
		id := recs[i].Header.ContractID
		if _, ok := known.get(id); !ok && id != "" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
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
func (c *counters) add(key []byte, n int64) {
	if d := c.deltas[string(key)]; d != nil {
		*d += n
		return
	}
	first := n // n itself would be on the heap in every call
	c.deltas[string(key)] = &first
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

package keyindex

import "github.com/talenttrust/auditledger/ledger"

// cacheHalf streams are remembered at least, twice as many at most.
const cacheHalf = 32_768

// cache remembers the heads used last, in two halves: when the younger is full it becomes the
// older one, and what was in that and not used since is forgotten.
type cache struct{ young, old map[string]ledger.StreamHead }

func newCache() cache { return cache{young: map[string]ledger.StreamHead{}} }

func (c *cache) get(stream string) (ledger.StreamHead, bool) {
	h, ok := c.young[stream]
	if !ok {
		h, ok = c.old[stream]
	}
	return h, ok
}

func (c *cache) put(stream string, h ledger.StreamHead) {
	if len(c.young) >= cacheHalf {
		c.young, c.old = make(map[string]ledger.StreamHead, cacheHalf), c.young
	}
	c.young[stream] = h
}

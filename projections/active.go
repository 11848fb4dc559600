package projections

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
)

// How many keys are bound until when, in rows of stats:
//
//	b 0 second                     → for each millisecond of it, in order: which it is, and how many
//	b 1 minute, b 2 day            → counters of those in it
//	b 3 0                          → counter of those bound for ever
//
// Seconds, minutes and days are counted since 1970. So the keys active at a moment are the rest of a second, of
// a minute and of a day, and whole days.
const tagBound = 'b'

// widths are those of what is counted together, in milliseconds.
var widths = [...]int64{1000, 60_000, 24 * hourMillis}

const forever = byte(len(widths))

// active counts keys by the time until which they are bound. Nothing is ever taken away: a key that
// comes back is bound until a later time.
type active struct {
	t        *table
	counters counters
	seconds  cache[int64, *second]
	dirty    map[int64]*second
	last     tallied // most events that follow one another are bound until the same second
}

// tallied is what an event is counted in that is bound until a second.
type tallied struct {
	second *second
	n      int64 // of the second
	wider  [len(widths) - 1]*int64
}

// second holds how many keys are bound until each of its milliseconds that there are any for, in order.
type second struct{ millis []milli }

type milli struct{ at, keys int64 }

func (s *second) add(at, keys int64) {
	i := len(s.millis)
	if i > 0 && s.millis[i-1].at == at { // they come in order, more or less
		i--
	} else if i > 0 && s.millis[i-1].at > at {
		i, _ = slices.BinarySearchFunc(s.millis, at, func(m milli, at int64) int { return cmp.Compare(m.at, at) })
	}
	if i == len(s.millis) || s.millis[i].at != at {
		s.millis = slices.Insert(s.millis, i, milli{at: at})
	}
	s.millis[i].keys += keys
}

// manySeconds is how many of them are remembered; each source with a window of its own fills another.
const manySeconds = 512

func newActive(t *table) active {
	return active{t: t, counters: newCounters(t), seconds: newCache[int64, *second](manySeconds), dirty: map[int64]*second{}}
}

// add counts a key as bound until then; 0 is for ever.
func (a *active) add(until int64) {
	if until <= 0 {
		a.counters.add(boundKey(a.t.prefix, forever, 0), 1)
		return
	}
	if n := until / widths[0]; a.last.second == nil || a.last.n != n {
		a.last = a.tallied(n)
	}
	a.last.second.add(until%widths[0], 1)
	for _, wider := range a.last.wider {
		*wider++
	}
}

func (a *active) tallied(n int64) tallied {
	c := tallied{second: a.dirty[n], n: n}
	if c.second == nil {
		c.second = a.second(n)
		a.dirty[n] = c.second
	}
	for i, width := range widths[1:] {
		a.t.key = appendNumbers(append(a.t.key[:0], a.t.prefix[0], a.t.prefix[1], tagBound, byte(i+1)), uint64(n*widths[0]/width))
		c.wider[i] = a.counters.delta(a.t.key)
	}
	return c
}

func (a *active) second(n int64) *second {
	s, ok := a.seconds.get(n)
	if !ok {
		s = &second{}
		if val := a.t.get(boundKey(a.t.prefix, 0, uint64(n))); val != nil {
			a.t.fail(s.decode(val))
		}
		a.seconds.put(n, s)
	}
	return s
}

func (a *active) finish() {
	for n, s := range a.dirty {
		a.t.val = a.t.val[:0]
		s.append(&a.t.val)
		a.t.put(boundKey(a.t.prefix, 0, uint64(n)), a.t.val)
	}
	clear(a.dirty)
	a.last = tallied{}
	a.seconds.age()
	a.counters.finish(noSums)
}

func boundKey(p prefix, width byte, slot uint64) []byte {
	return appendNumbers(append(p.key(tagBound), width), slot)
}

func (s *second) append(b *row) {
	for _, m := range s.millis {
		b.num(m.at)
		b.num(m.keys)
	}
}

func (s *second) decode(b []byte) error {
	f := fields{b: b}
	for len(f.b) > 0 {
		s.add(f.num(), f.num())
	}
	return f.end()
}

// activeKeys is how many keys are bound until after now.
func (v *view) activeKeys(ctx context.Context, now int64) (n int64, err error) {
	if n, err = v.counter(boundKey(v.prefix, forever, 0)); err != nil {
		return 0, err
	}
	now = max(now, 0)
	rest, err := v.restOfSecond(now)
	if err != nil {
		return 0, err
	}
	n += rest
	from := now/widths[0] + 1
	for i, width := range widths {
		next, to := int64(0), uint64(math.MaxUint64)
		if i+1 < len(widths) {
			ratio := widths[i+1] / width
			next = (from + ratio - 1) / ratio
			to = uint64(next * ratio)
		}
		sum, err := v.bound(ctx, byte(i), uint64(from), to)
		if err != nil {
			return 0, err
		}
		n, from = n+sum, next
	}
	return n, nil
}

// restOfSecond is how many keys are bound until a later millisecond of now's second.
func (v *view) restOfSecond(now int64) (n int64, err error) {
	val, err := v.get(boundKey(v.prefix, 0, uint64(now/widths[0])))
	if err != nil || val == nil {
		return 0, err
	}
	s := second{}
	if err := s.decode(val); err != nil {
		return 0, fmt.Errorf("keys bound until the second of %d: %w", now, err)
	}
	for _, m := range s.millis {
		if m.at > now%widths[0] {
			n += m.keys
		}
	}
	return n, nil
}

// bound sums what is in the slots of one width from the first to before the last.
func (v *view) bound(ctx context.Context, width byte, from, to uint64) (n int64, err error) {
	err = v.scan(ctx, boundKey(v.prefix, width, from), boundKey(v.prefix, width, to), false, func(_, val []byte) (bool, error) {
		f := fields{b: val}
		if width > 0 {
			n += f.num()
			return true, f.end()
		}
		for len(f.b) > 0 {
			f.num()
			n += f.num()
		}
		return true, f.end()
	})
	return n, err
}

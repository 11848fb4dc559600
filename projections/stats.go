package projections

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/talenttrust/auditledger/ledger"
)

// The rows of stats, counters but for the last, and those of active.go:
//
//	n hour metric                  → events
//	y hour contractType            → accepted events
//	c hour code                    → rejected events
//	r stream 0x00 revision         → code of the rejection, for when it is met again
//
// hour counts hours of UTC since 1970 by recordedAt; the last possible one holds the sums of all.
const (
	tagMetric    = 'n'
	tagType      = 'y'
	tagCode      = 'c'
	tagRejection = 'r'

	allHours = math.MaxUint64
)

// Metrics of an hour.
const (
	metricAccepted = iota
	metricRejected
	metricDuplicates
	metricConflicts
	metricEvictions
	metricContracts // counted by contracts
)

// stats folds records into numbers, per hour and over all.
type stats struct {
	t        *table
	counters counters
	active   active
	codes    map[recordID]string // of the rejections of the records at hand
	accepted map[hourOfType]*int64
	last     hourOfType // most events are like the one before
	lastN    *int64     // its count; nil: none
}

// hourOfType is where an accepted event is counted.
type hourOfType struct {
	hour         uint64
	contractType string
}

func newStats(t *table) folder {
	return &stats{t: t, counters: newCounters(t), active: newActive(t), codes: map[recordID]string{}, accepted: map[hourOfType]*int64{}}
}

func (s *stats) prepare([]ledger.Record) {}

func (s *stats) fold(r *ledger.Record) error {
	h := &r.Header
	if h.RecordedAt < 0 {
		return fmt.Errorf("recordedAt is negative")
	}
	hour := uint64(h.RecordedAt / hourMillis)
	switch h.Type {
	case ledger.EventAccepted:
		s.accept(hourOfType{hour, h.ContractType})
		if h.Generation > 1 {
			s.metric(hour, metricEvictions, 1)
		}
		s.active.add(r.Body.BoundUntil)
	case ledger.EventRejected:
		s.codes[recordID{h.Stream, h.Revision}] = h.Code
		s.rejected(hour, h.Code, 1)
	case ledger.DuplicatesCounted:
		for i := range r.Body.Counts {
			s.again(hour, &r.Body.Counts[i])
		}
	}
	return nil
}

func (s *stats) accept(in hourOfType) {
	if s.lastN == nil || s.last != in {
		if s.last, s.lastN = in, s.accepted[in]; s.lastN == nil {
			s.lastN = new(int64)
			s.accepted[in] = s.lastN
		}
	}
	*s.lastN++
}

func (s *stats) rejected(hour uint64, code string, n int64) {
	s.metric(hour, metricRejected, n)
	s.named(tagCode, hour, code, n)
	if isConflict(code) {
		s.metric(hour, metricConflicts, n)
	}
}

func isConflict(code string) bool {
	return code == ledger.CodePayloadConflict || code == ledger.CodeConflict
}

// again counts a record that was met again: an accepted event as a duplicate, a rejection as one more.
func (s *stats) again(hour uint64, c *ledger.Count) {
	if !ledger.IsRejectionStream(c.Stream) {
		s.metric(hour, metricDuplicates, c.Count)
		return
	}
	code, ok := s.codes[recordID{c.Stream, c.Revision}]
	if !ok {
		code = string(s.t.get(s.t.keyOf(tagRejection, c.Stream, uint64(c.Revision))))
	}
	s.rejected(hour, code, c.Count)
}

func (s *stats) scratch(tag byte) []byte {
	return append(s.t.key[:0], s.t.prefix[0], s.t.prefix[1], tag)
}

func (s *stats) add(key []byte, n int64) { s.t.key = key; s.counters.add(key, n) }

func (s *stats) metric(hour uint64, metric byte, n int64) {
	s.add(append(appendNumbers(s.scratch(tagMetric), hour), metric), n)
}

func (s *stats) named(tag byte, hour uint64, name string, n int64) {
	s.add(append(appendNumbers(s.scratch(tag), hour), name...), n)
}

func (s *stats) finish() {
	for id, code := range s.codes {
		s.t.put(s.t.keyOf(tagRejection, id.stream, uint64(id.revision)), []byte(code))
	}
	clear(s.codes)
	for in, n := range s.accepted {
		s.metric(in.hour, metricAccepted, *n)
		s.named(tagType, in.hour, in.contractType, *n)
	}
	clear(s.accepted)
	s.lastN = nil
	s.counters.finish(sums)
	s.active.finish()
}

// sums names the counter of all hours that an hour's counter is part of.
func sums(key []byte, add func(key []byte)) {
	add(append(appendNumbers(bytes.Clone(key[:3]), allHours), key[11:]...))
}

func metricKey(p prefix, hour uint64, metric byte) []byte {
	return append(appendNumbers(p.key(tagMetric), hour), metric)
}

// set sets the metric of a tally.
func (t *Tally) set(metric byte, n int64) {
	switch metric {
	case metricAccepted:
		t.Accepted = n
	case metricRejected:
		t.Rejected = n
	case metricDuplicates:
		t.Duplicates = n
	case metricConflicts:
		t.Conflicts = n
	case metricContracts:
		t.Contracts = n
	}
}

func (t *Tally) add(o Tally) {
	t.Accepted += o.Accepted
	t.Rejected += o.Rejected
	t.Duplicates += o.Duplicates
	t.Conflicts += o.Conflicts
	t.Contracts += o.Contracts
}

// hours is a range of hours, the second exclusive.
type hours struct{ from, to uint64 }

// hours checks the request's range. all says that it is open at both ends.
func (r *StatsRequest) hours() (h hours, all bool, err error) {
	edge := time.Hour
	switch r.Bucket {
	case NoBucket, Hour:
	case Day:
		edge = 24 * time.Hour
	default:
		return h, false, &ParameterError{"bucket", "must be hour or day"}
	}
	h = hours{0, allHours}
	for _, p := range []struct {
		name string
		at   time.Time
		hour *uint64
	}{{"from", r.From, &h.from}, {"to", r.To, &h.to}} {
		if p.at.IsZero() {
			continue
		}
		ms := p.at.UnixMilli()
		if ms < 0 || !p.at.Equal(time.UnixMilli(ms)) || ms%edge.Milliseconds() != 0 {
			return h, false, &ParameterError{p.name, fmt.Sprintf("must be the start of %s in UTC, 1970 or later", map[bool]string{false: "an hour", true: "a day"}[r.Bucket == Day])}
		}
		*p.hour = uint64(ms / hourMillis)
	}
	if h.to < h.from {
		return h, false, &ParameterError{"to", "must not be before from"}
	}
	return h, r.From.IsZero() && r.To.IsZero(), nil
}

// scanHours hands the counters under tag out, those of a range of hours; of allHours, if it begins there.
func (v *view) scanHours(ctx context.Context, tag byte, in hours, use func(key, val []byte) (bool, error)) error {
	lower, upper := appendNumbers(v.prefix.key(tag), in.from), appendNumbers(v.prefix.key(tag), in.to)
	if in.from == allHours {
		upper = v.prefix.key(tag + 1)
	}
	return v.scan(ctx, lower, upper, false, use)
}

// tallies adds the metrics of a range of hours to points, by bucket.
func (v *view) tallies(ctx context.Context, in hours, bucketHours uint64, points map[uint64]Tally) error {
	return v.scanHours(ctx, tagMetric, in, func(key, val []byte) (bool, error) {
		f, one := fields{b: val}, Tally{}
		one.set(key[len(key)-1], f.num())
		bucket := number(key[:len(key)-1]) / bucketHours * bucketHours
		t := points[bucket]
		t.add(one)
		points[bucket] = t
		return true, f.end()
	})
}

// names sums the counters under tag by name over a range of hours.
func (v *view) names(ctx context.Context, tag byte, in hours) ([]Named, error) {
	sum := map[string]int64{}
	err := v.scanHours(ctx, tag, in, func(key, val []byte) (bool, error) {
		f := fields{b: val}
		sum[string(key[11:])] += f.num()
		return true, f.end()
	})
	named := make([]Named, 0, len(sum))
	for name, n := range sum {
		named = append(named, Named{name, n})
	}
	slices.SortFunc(named, func(a, b Named) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name))
	})
	return named, err
}

const (
	maxNames  = 100
	otherName = "other"
)

// topNames keeps the first maxNames and sums the rest up as "other".
func topNames(named []Named) []Named {
	if len(named) <= maxNames {
		return named
	}
	rest := Named{Name: otherName}
	kept := slices.DeleteFunc(named, func(n Named) bool {
		if n.Name == otherName {
			rest.Count += n.Count
		}
		return n.Name == otherName
	})
	for _, n := range kept[min(maxNames, len(kept)):] {
		rest.Count += n.Count
	}
	return append(kept[:min(maxNames, len(kept))], rest)
}

package disk

import (
	"slices"
	"unsafe"

	"github.com/talenttrust/auditledger/ledger"
)

// How much is recent: enough for followers that pause for a moment under load, and little memory.
const (
	recentRecords = 16_000
	recentBytes   = 16 << 20
)

// recent are the newest durable records as they were written, one after the other up to the head, so
// that a follower who keeps up need not read them back. What is taken from it never changes: records
// are only added behind, and left off by making a new list.
type recent struct {
	records []ledger.Record
	bytes   int
}

func (r *recent) add(records []ledger.Record) {
	r.records = append(r.records, records...)
	for i := range records {
		r.bytes += memoryOf(&records[i])
	}
	if len(r.records) > recentRecords || r.bytes > recentBytes {
		r.halve()
	}
}

// halve keeps the newest records, as many as fill half of the room.
func (r *recent) halve() {
	bytes, from := 0, len(r.records)
	for from > 0 && len(r.records)-from < recentRecords/2 && bytes+memoryOf(&r.records[from-1]) <= recentBytes/2 {
		from--
		bytes += memoryOf(&r.records[from])
	}
	r.records, r.bytes = slices.Clone(r.records[from:]), bytes
}

// memoryOf is about what a record takes.
func memoryOf(r *ledger.Record) int {
	return int(unsafe.Sizeof(*r)) + len(r.Body.Payload) + 32*len(r.Body.Counts) + 64*len(r.Body.Errors)
}

// after returns at most n records behind a position; none when the first of them is not recent any more.
func (r *recent) after(p ledger.Position, n int) []ledger.Record {
	if len(r.records) == 0 || p+1 < r.records[0].Position {
		return nil
	}
	from := int(p + 1 - r.records[0].Position)
	to := min(from+n, len(r.records))
	return r.records[from:to:to]
}

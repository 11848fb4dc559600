package disk

import (
	"unsafe"

	"github.com/talenttrust/auditledger/ledger"
)

// How much is recent: enough for followers that pause for a moment under load, and little memory.
const (
	recentChunks = 16
	chunkRecords = 1000
	chunkBytes   = 1 << 20
)

// recent are the newest durable records as they were written, one after the other up to the head, so
// that a follower who keeps up need not read them back. What is taken from it never changes: records
// are only added behind, and the oldest are left off a chunk at a time.
type recent struct {
	chunks []chunk
}

// chunk is a run of consecutive records, at least one.
type chunk struct {
	records []ledger.Record
	bytes   int
}

func (r *recent) add(records []ledger.Record) {
	for i := range records {
		last := len(r.chunks) - 1
		if last < 0 || len(r.chunks[last].records) == chunkRecords || r.chunks[last].bytes >= chunkBytes {
			if last++; last == recentChunks {
				r.chunks = append(r.chunks[:0:0], r.chunks[1:]...)
				last--
			}
			r.chunks = append(r.chunks, chunk{records: make([]ledger.Record, 0, chunkRecords)})
		}
		c := &r.chunks[last]
		c.records = append(c.records, records[i])
		c.bytes += memoryOf(&records[i])
	}
}

// memoryOf is about what a record takes.
func memoryOf(r *ledger.Record) int {
	return int(unsafe.Sizeof(*r)) + len(r.Body.Payload) + 32*len(r.Body.Counts) + 64*len(r.Body.Errors)
}

// after returns records behind a position, some of those that there are; none when the first of them
// is not recent any more.
func (r *recent) after(p ledger.Position) []ledger.Record {
	for i := len(r.chunks) - 1; i >= 0; i-- {
		records := r.chunks[i].records
		if first := records[0].Position; first <= p+1 {
			from := min(int(p+1-first), len(records))
			return records[from:len(records):len(records)]
		}
	}
	return nil
}

package disk

import (
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// What a follower gets from memory is what it would read.
func TestRecentIsWhatIsStored(t *testing.T) {
	s, err := Open(Config{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	odd := ledgertest.Event(ledger.Key{ContractID: "c", EventID: "odd", Sequence: 2}, `{"a":"\u2028"}`, 3)
	odd.Body.Sanitized, odd.Body.ChatJID, odd.Body.Verdict, odd.Body.KeyID, odd.Window = true, "x@g.us", "verified", "k", 1000
	odd.Seal()
	refused := ledgertest.Rejected("no", 4)
	refused.Body.Errors = []ledger.FieldError{{Path: "/a", Message: "m"}}
	refused.Seal()
	counted := &ledger.Entry{Header: ledger.Header{V: ledger.Version, Type: ledger.DuplicatesCounted, Stream: "duplicates-x", Sequence: ledger.Absent, Timestamp: ledger.Absent, Generation: ledger.Absent, RecordedAt: odd.Header.RecordedAt}}
	counted.Body = ledger.Body{Supersedes: ledger.Absent, Counts: []ledger.Count{{Stream: "contract-c", Revision: 0, Count: 2, LastSeen: 5}}}
	counted.Seal()
	again := ledgertest.Event(ledger.Key{ContractID: "c", EventID: "odd", Sequence: 2}, `{"a":1}`, 60_000) // a second generation
	for _, e := range []*ledger.Entry{odd, refused, counted, again} {
		if _, err := s.Append(t.Context(), []*ledger.Entry{e}); err != nil {
			t.Fatal(err)
		}
	}
	kept := s.recent.after(0, 100)
	read, err := s.log.read(1, s.head, 100, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(read, kept, cmpopts.EquateEmpty()); diff != "" || len(kept) != 5 {
		t.Errorf("%d records: -read +kept\n%s", len(kept), diff)
	}
}

// However many and large the records, what is kept is bounded, consecutive and ends at the head.
func TestRecentIsBounded(t *testing.T) {
	payloads := map[int][]byte{}
	for _, size := range []int{0, 1000, 200_000, recentBytes / 3, 2 * recentBytes} {
		payloads[size] = make([]byte, size)
	}
	for _, sizes := range [][]int{{0}, {1000}, {200_000}, {recentBytes / 3}, {2 * recentBytes, 0, 0}, {0, 200_000, 1000}} {
		var r recent
		head := ledger.Position(0)
		for range 2 * recentRecords {
			head++
			r.add([]ledger.Record{{Position: head, Body: ledger.Body{Payload: payloads[sizes[int(head)%len(sizes)]]}}})
			held := 0
			for i := 0; i < len(r.records) && len(r.records) < 500; i++ { // the long lists hold small ones
				held += len(r.records[i].Body.Payload)
			}
			if len(r.records) > recentRecords || held > recentBytes {
				t.Fatalf("%v: %d records of %d bytes are kept", sizes, len(r.records), held)
			}
			if n := len(r.records); n > 0 && (r.records[n-1].Position != head || r.records[0].Position != head-ledger.Position(n)+1) {
				t.Fatalf("%v: records %d to %d are kept, the head is %d", sizes, r.records[0].Position, r.records[n-1].Position, head)
			}
		}
		if got := r.after(head, 10); len(got) != 0 {
			t.Errorf("%v: %d records behind the head", sizes, len(got))
		}
		if got := r.after(head-ledger.Position(len(r.records))-1, 10); got != nil {
			t.Errorf("%v: got records although one before them is not recent", sizes)
		}
	}
}

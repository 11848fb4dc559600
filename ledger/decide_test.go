package ledger_test

import (
	"fmt"
	"testing"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/canonical"
)

// TestDecide has a row for every branch, and the moments at its edges.
func TestDecide(t *testing.T) {
	one, two := canonical.Sum([]byte("1")), canonical.Sum([]byte("2"))
	invalid, age := &ledger.Rejection{Code: "schema"}, &ledger.Rejection{Code: "age"}
	never := ledger.Found{}
	bound := ledger.Found{Generation: 3, Revision: 7, BoundUntil: 1000, PayloadHash: one}
	forever := ledger.Found{Generation: 1, PayloadHash: one}
	for _, c := range []struct {
		name         string
		found        ledger.Found
		now, head    int64
		payload      ledger.Hash
		invalid, age *ledger.Rejection
		verdict      ledger.Verdict
		generation   int64
		recordedAt   int64
	}{
		{"never seen", never, 5, ledger.Absent, one, nil, nil, ledger.Accepted, 1, 5},
		{"never seen, invalid", never, 5, 0, one, invalid, nil, ledger.Refused, ledger.Absent, 5},
		{"never seen, invalid and old", never, 5, 0, one, invalid, age, ledger.Refused, ledger.Absent, 5},
		{"never seen, old", never, 5, 0, one, nil, age, ledger.Refused, ledger.Absent, 5},
		{"bound, the same", bound, 999, 0, one, nil, nil, ledger.Duplicate, ledger.Absent, 999},
		{"bound, the same, invalid and old by now", bound, 999, 0, one, invalid, age, ledger.Duplicate, ledger.Absent, 999},
		{"bound, another", bound, 999, 0, two, nil, nil, ledger.Conflict, ledger.Absent, 999},
		{"bound, another, old", bound, 999, 0, two, nil, age, ledger.Conflict, ledger.Absent, 999},
		{"bound, another, invalid", bound, 999, 0, two, invalid, nil, ledger.Refused, ledger.Absent, 999},
		{"at the end of the window, the same", bound, 1000, 0, one, nil, nil, ledger.Accepted, 4, 1000},
		{"at the end of the window, another", bound, 1000, 0, two, nil, nil, ledger.Accepted, 4, 1000},
		{"after the window, old", bound, 5000, 0, one, nil, age, ledger.Accepted, 4, 5000},
		{"after the window, invalid", bound, 5000, 0, one, invalid, nil, ledger.Refused, ledger.Absent, 5000},
		{"the stream's clock is past the window", bound, 10, 1000, one, nil, nil, ledger.Accepted, 4, 1000},
		{"the stream's clock is ahead", never, 10, 77, one, nil, nil, ledger.Accepted, 1, 77},
		{"for ever, the same", forever, 1 << 50, 0, one, nil, nil, ledger.Duplicate, ledger.Absent, 1 << 50},
		{"for ever, another", forever, 1 << 50, 0, two, nil, nil, ledger.Conflict, ledger.Absent, 1 << 50},
	} {
		e := &ledger.Entry{Invalid: c.invalid, OutOfTime: c.age}
		e.Header.Type, e.Header.RecordedAt, e.Body.PayloadHash = ledger.EventAccepted, c.now, c.payload
		d := ledger.Decide(e, ledger.StreamHead{RecordedAt: c.head}, c.found)
		got, want := fmt.Sprint(d.Verdict, d.Generation, d.RecordedAt), fmt.Sprint(c.verdict, c.generation, c.recordedAt)
		if got != want {
			t.Errorf("%s: verdict, generation, recordedAt %s, want %s", c.name, got, want)
		}
		wantRejection := map[bool]*ledger.Rejection{true: c.invalid, false: c.age}[c.invalid != nil]
		if c.verdict == ledger.Refused && d.Rejection != wantRejection || c.verdict != ledger.Refused && d.Rejection != nil {
			t.Errorf("%s: rejection %v", c.name, d.Rejection)
		}
	}
	for _, typ := range []ledger.Type{ledger.EventRejected, ledger.DuplicatesCounted, ledger.LedgerCreated} {
		e := &ledger.Entry{Invalid: invalid, OutOfTime: age}
		e.Header.Type = typ
		if d := ledger.Decide(e, ledger.StreamHead{}, bound); d.Verdict != ledger.Accepted || d.Generation != ledger.Absent {
			t.Errorf("%s: %+v, want it accepted without a generation", typ, d)
		}
	}
}

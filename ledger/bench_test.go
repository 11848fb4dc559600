package ledger_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/ledger"
)

// accepting is a store that says of every entry that it is the first, and makes its record, but keeps none.
type accepting struct{ ledger.Store }

func (accepting) Append(_ context.Context, entries []*ledger.Entry) ([]ledger.Outcome, error) {
	outcomes := make([]ledger.Outcome, len(entries))
	for i, e := range entries {
		d := ledger.Decide(e, ledger.EmptyStream, ledger.Found{})
		r, _ := e.Record(d, ledger.EmptyStream, 1)
		outcomes[i] = ledger.Outcome{Decision: d, Position: 1, Leaf: r.Leaf}
	}
	return outcomes, nil
}

// BenchmarkIngest is what an event costs without a store: decoding, rules, hashes, record.
func BenchmarkIngest(b *testing.B) {
	l, err := ledger.New(ledger.Config{Store: accepting{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	req := ledger.Request{Source: &ledger.Source{Name: "bench", Window: time.Hour}, CorrelationID: "01234567-89ab-cdef-0123-456789abcdef"}
	var events [][]byte
	for i := range 100 {
		events = append(events, fmt.Appendf(nil, `{"contractId":"payment-contract-%05d","eventId":"payment-event-%010d","sequence":%d,"timestamp":%d,"payload":{"paymentId":"pay-%012d","amount":%d.%02d,"currency":"EUR","status":"completed","timestamp":%d,"debtor":{"name":"Example Company %d","country":"DE"},"reference":"invoice 2026-%06d"}}`,
			i, i, i, time.Now().UnixMilli(), i, i, i%100, time.Now().UnixMilli(), i, i))
	}
	b.ReportAllocs()
	for b.Loop() {
		results, err := l.Ingest(b.Context(), req, "payment_contract", events)
		if err != nil || results[99].Status != ledger.StatusAccepted {
			b.Fatal(err, results[99])
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(events)), "ns/event")
}

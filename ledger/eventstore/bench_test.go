package eventstore_test

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/eventstore"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
	"github.com/talenttrust/auditledger/ledger/ledgertest/esnode/node"
)

func benchStore(b *testing.B) *eventstore.Store {
	n, err := node.Open(node.Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = n.Close() })
	s, err := eventstore.Open(b.Context(), eventstore.Config{URL: n.URL(), Dir: b.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return s
}

// BenchmarkAppend stores batches of 100 new events, of 1 contract or of 20, from 16 callers. The
// server runs in the same process.
func BenchmarkAppend(b *testing.B) {
	for _, contracts := range []int{1, 20} {
		b.Run(fmt.Sprint(contracts, " contracts"), func(b *testing.B) {
			s := benchStore(b)
			var caller atomic.Int64
			b.SetParallelism(8)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				me := caller.Add(1)
				for i := int64(0); pb.Next(); i++ {
					batch := make([]*ledger.Entry, 100)
					for j := range batch {
						k := key(fmt.Sprintf("c%d-%d", me, j%contracts), fmt.Sprintf("e%d-%d", i, j), i*100+int64(j))
						batch[j] = ledgertest.Event(k, `{"paymentId":"p-1","amount":12.5,"currency":"EUR","status":"completed"}`, i)
					}
					if _, err := s.Append(b.Context(), batch); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)*100/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkFollow reads a ledger of 20,000 records whose index is complete.
func BenchmarkFollow(b *testing.B) {
	s := benchStore(b)
	const records = 20_000
	for i := int64(0); i < records; i += 1000 {
		batch := make([]*ledger.Entry, 1000)
		for j := range batch {
			batch[j] = ledgertest.Event(key(fmt.Sprint("c", j%50), fmt.Sprint("e", i, j), i+int64(j)), `{"amount":12.5}`, i)
		}
		if _, err := s.Append(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		n := 0
		for batch, err := range s.Follow(b.Context(), 0) {
			if err != nil {
				b.Fatal(err)
			}
			if n += len(batch.Records); n > records {
				break
			}
		}
	}
	b.ReportMetric(float64(b.N)*records/b.Elapsed().Seconds(), "records/s")
}

package projections

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// load makes records of accepted events: one contract after another at random, in sequence but for
// a share that swaps places with the one before.
func load(n, contracts int, swapped float64) []ledger.Record {
	rnd := rand.New(rand.NewPCG(1, 1))
	recs := make([]ledger.Record, n)
	next := make([]int64, contracts)
	for i := range recs {
		c := rnd.IntN(contracts)
		recs[i] = record(i, fmt.Sprintf("contract_%06d", c), next[c])
		next[c]++
		if j := i - 1; j >= 0 && rnd.Float64() < swapped {
			recs[j].Header.ContractID, recs[j].Header.Stream = recs[i].Header.ContractID, recs[i].Header.Stream
			recs[i].Header.Sequence, recs[j].Header.Sequence = next[c]-1, next[c]
			next[c]++
		}
	}
	return recs
}

func record(i int, contract string, sequence int64) ledger.Record {
	at := ledgertest.Epoch.UnixMilli() + int64(i/50)
	r := ledger.Record{Position: ledger.Position(i + 1), Header: ledger.Header{
		V: 1, Type: ledger.EventAccepted, Stream: ledger.ContractStream(contract), Revision: sequence, ContractID: contract, EventID: fmt.Sprintf("evt_%012x", i*7919),
		Sequence: sequence, ContractType: "payment_contract", Timestamp: at, Generation: 1, RecordedAt: at, Source: "collector-1",
	}}
	r.Body = ledger.Body{BoundUntil: at + 24*hourMillis, Supersedes: ledger.Absent, CorrelationID: fmt.Sprintf("req-%08x", i/100)}
	for j := range r.Leaf {
		r.Leaf[j], r.Body.PayloadHash[j] = byte(rand.Uint32()), byte(rand.Uint32())
	}
	return r
}

func opened(b *testing.B) *Projections {
	p, err := Open(b.Context(), Config{Dir: b.TempDir(), Reader: newBook(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := p.Close(); err != nil {
			b.Error(err)
		}
	})
	return p
}

// BenchmarkFold says what an accepted event costs, all projections together.
func BenchmarkFold(b *testing.B) {
	for name, c := range map[string]struct {
		contracts, batch int
		swapped          float64
	}{
		"1000 contracts":        {1000, gather, 0},
		"1000, batches of 1000": {1000, 1000, 0},
		"1000, batches of 50":   {1000, 50, 0},
		"100000 contracts":      {100_000, gather, 0},
		"1000, 2% swapped":      {1000, gather, 0.02},
	} {
		b.Run(name, func(b *testing.B) {
			recs := load(b.N, c.contracts, c.swapped)
			p := opened(b)
			b.ReportAllocs()
			b.ResetTimer()
			began := cpu(b)
			for from := 0; from < b.N; from += c.batch {
				batch := recs[from:min(from+c.batch, b.N)]
				if err := p.advance(ledger.Batch{Records: batch, Head: batch[len(batch)-1].Position}); err != nil {
					b.Fatal(err)
				}
			}
			if err := p.db.Flush(); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(p.db.Metrics().DiskSpaceUsage())/float64(b.N), "disk-B/op")
		})
	}
}

// cpu is the processor time that the program has used, flushes and compactions included.
func cpu(b *testing.B) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkPage reads pages of 100 at both ends and in the middle of a long history.
func BenchmarkPage(b *testing.B) {
	const n = 300_000
	recs := load(n, 1, 0)
	p := opened(b)
	for from := 0; from < n; from += 1000 {
		if err := p.advance(ledger.Batch{Records: recs[from : from+1000], Head: n}); err != nil {
			b.Fatal(err)
		}
	}
	r := HistoryRequest{ContractID: "contract_000000", Page: Page{First: 100}}
	s := p.Query().sealer("history", r.ContractID, r.Filter, r.Order)
	for name, at := range map[string]uint64{"newest": n + 1, "middle": n / 2, "oldest": 101} {
		b.Run(name, func(b *testing.B) {
			r := r
			r.After = s.seal(n, appendNumbers(nil, at))
			for b.Loop() {
				page, err := p.Query().History(b.Context(), r)
				if err != nil || len(page.Entries) != 100 {
					b.Fatal(len(page.Entries), err)
				}
			}
		})
	}
	b.Run("total", func(b *testing.B) {
		page, err := p.Query().History(b.Context(), r)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if total, err := page.Total(b.Context()); err != nil || *total != n {
				b.Fatal(total, err)
			}
		}
	})
	b.Run("stats", func(b *testing.B) {
		for b.Loop() {
			if _, err := p.Query().Stats(b.Context(), StatsRequest{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

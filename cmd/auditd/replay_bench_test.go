package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/graphql"
	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/disk"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
	"github.com/talenttrust/auditledger/projections"
)

const (
	replayContracts = 10_000
	largeShare      = 4 // one of so many records is of the large contract
	largeContract   = "contract-large"
)

// BenchmarkReplay makes a ledger on disk and reports
//
//	read      how fast the log alone is read
//	rebuild   how fast all projections are built from it, beside that, and the heap in MB at each quarter
//	start     how long the projections take to open when they are live, for the ledger and for a tenth of it
//	page      a page of 100 of the large contract, of its newest, middle and oldest in turn: median and p99
//	          in µs, and the dearest median over the cheapest
//	graphql   a page of 100 entries with ten fields each
//
// REPLAY_RECORDS is how many records the ledger has, 100000 unless set: a quarter of them are of one
// contract, the others of 10,000. Run it with -benchtime 1x.
func BenchmarkReplay(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(memoryLimit))
	n := 100_000
	if s := os.Getenv("REPLAY_RECORDS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			b.Fatal(err)
		}
	}
	store := makeLedger(b, n)
	var read, built float64
	b.Run("read", func(b *testing.B) { read = readLog(b, store) })
	dir := filepath.Join(b.TempDir(), "projections")
	b.Run("rebuild", func(b *testing.B) {
		built = rebuildAll(b, store, dir)
		b.ReportMetric(built/read, "of-read")
	})
	b.Run("start", func(b *testing.B) { startLive(b, store, dir) })
	small, smallDir := makeLedger(b, n/10), filepath.Join(b.TempDir(), "projections")
	b.Run("start of a tenth", func(b *testing.B) {
		build(b, small, smallDir, func(float64) {})
		startLive(b, small, smallDir)
	})
	p, stop := openViews(b, store, dir)
	defer stop()
	reached(b, p, func(float64) {})
	b.Run("page", func(b *testing.B) { readPages(b, p.Query(), n/largeShare) })
	b.Run("graphql", func(b *testing.B) { readGraphQL(b, p.Query()) })
}

func makeLedger(b *testing.B, n int) *disk.Store {
	store := openStore(b, b.TempDir())
	b.Cleanup(func() {
		if err := store.Close(); err != nil {
			b.Error(err)
		}
	})
	fillLedger(b, store, n)
	return store
}

// fillLedger gives a new store n records: nearly all accepted, in sequence but for some that are left
// out, filled in later or used again, and a few rejections and counts.
func fillLedger(b testing.TB, store *disk.Store, n int) {
	rnd := rand.New(rand.NewPCG(1, 1))
	next := map[string]int64{}
	for from := 1; from < n; from += 1000 {
		entries := make([]*ledger.Entry, min(1000, n-from))
		for i := range entries {
			entries[i] = replayEntry(rnd, next, from+i)
		}
		if _, err := store.Append(b.Context(), entries); err != nil {
			b.Fatal(err)
		}
	}
}

func replayEntry(rnd *rand.Rand, next map[string]int64, i int) *ledger.Entry {
	ms := int64(i) // a thousand events a second
	switch rnd.IntN(200) {
	case 0, 1:
		e := ledgertest.Rejected("payload/status must be one of pending, completed, failed", ms)
		e.Header.ContractID, e.Header.EventID, e.Header.Sequence = "contract-00001", fmt.Sprint("evt-", i), 1
		e.Seal()
		return e
	case 2:
		e := &ledger.Entry{Header: ledger.Header{
			V: ledger.Version, Type: ledger.DuplicatesCounted, Stream: "duplicates-suite", Sequence: ledger.Absent, Timestamp: ledger.Absent,
			Generation: ledger.Absent, RecordedAt: ledgertest.Epoch.UnixMilli() + ms,
		}}
		e.Body = ledger.Body{Supersedes: ledger.Absent, Counts: []ledger.Count{{Stream: ledger.ContractStream(largeContract), Revision: rnd.Int64N(max(next[largeContract], 1)), Count: 1, LastSeen: ms}}}
		e.Seal()
		return e
	}
	id := largeContract
	if rnd.IntN(largeShare) > 0 {
		id = fmt.Sprintf("contract-%05d", rnd.IntN(replayContracts-1))
	}
	sequence := next[id]
	next[id]++
	switch rnd.IntN(100) {
	case 0:
		next[id]++ // a gap
	case 1:
		sequence = rnd.Int64N(sequence + 1) // used again, or a gap filled
	}
	payload := fmt.Sprintf(`{"amount":%d.%02d,"currency":"EUR","debtor":{"country":"DE","name":"Example Company %d"},"paymentId":"pay-%012d","reference":"invoice 2026-%06d","status":"completed"}`, i, i%99+1, i%77, i, i)
	return ledgertest.Event(ledger.Key{ContractID: id, EventID: fmt.Sprintf("payment-event-%010d", i), Sequence: sequence}, payload, ms)
}

// readLog returns how many records are read in a second.
func readLog(b *testing.B, store *disk.Store) float64 {
	head, err := store.Head(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	before := cpuTime(b)
	for b.Loop() {
		for batch, err := range store.Follow(b.Context(), 0) {
			if err != nil {
				b.Fatal(err)
			}
			if batch.Behind == 0 {
				break
			}
		}
	}
	return rate(b, int(head)*b.N, before)
}

// rate reports what each of n records took since the CPU time was before.
func rate(b *testing.B, n int, before time.Duration) float64 {
	perSecond := float64(n) / b.Elapsed().Seconds()
	b.ReportMetric(perSecond, "records/s")
	b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(n), "cpu-ns/record")
	return perSecond
}

// rebuildAll returns how many records a second become rows of all projections.
func rebuildAll(b *testing.B, store *disk.Store, dir string) float64 {
	head, err := store.Head(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	before := cpuTime(b)
	for b.Loop() {
		b.StopTimer()
		runtime.GC()
		if err := os.RemoveAll(dir); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		quarter := 1
		build(b, store, dir, func(progress float64) {
			for ; quarter <= 4 && progress >= float64(quarter)/4; quarter++ {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				b.ReportMetric(float64(m.HeapInuse)/(1<<20), fmt.Sprintf("MB-at-%d%%", 25*quarter))
			}
		})
	}
	return rate(b, int(head)*b.N, before)
}

func build(b *testing.B, store *disk.Store, dir string, at func(progress float64)) {
	p, stop := openViews(b, store, dir)
	defer stop()
	reached(b, p, at)
}

func openViews(b testing.TB, store *disk.Store, dir string) (p *projections.Projections, stop func()) {
	p, err := projections.Open(b.Context(), projections.Config{Dir: dir, Reader: store, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	return p, func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
		if err := p.Close(); err != nil {
			b.Error(err)
		}
	}
}

// reached waits until the projections are at the head, and tells meanwhile how far they are.
func reached(b testing.TB, p *projections.Projections, at func(progress float64)) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		states, err := p.Query().States(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		least := slices.MinFunc(states, func(x, y projections.State) int { return int(int64(x.Position) - int64(y.Position)) })
		at(float64(least.Position) / float64(least.Head))
		if least.Position == least.Head {
			return
		}
		<-tick.C
	}
}

func startLive(b *testing.B, store *disk.Store, dir string) {
	var took []time.Duration
	for range max(b.N, 10) {
		began := time.Now()
		p, err := projections.Open(b.Context(), projections.Config{Dir: dir, Reader: store, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
		if err := p.Close(); err != nil {
			b.Fatal(err)
		}
	}
	percentiles(b, took)
}

// readPages reads pages of a contract with about n entries, at three places in turn: fifty pages from each on,
// then again.
func readPages(b *testing.B, q *projections.Query, n int) {
	oldest := projections.HistoryRequest{ContractID: largeContract, Order: projections.Asc, Page: projections.Page{First: 100}}
	newest := oldest
	newest.Order = projections.Desc
	middle := newest
	for middle.Page.First = 1000; n > 0; n -= 2000 {
		middle.After = readPage(b, q, middle).Info.EndCursor
	}
	middle.Page.First = 100
	places := []string{"newest", "middle", "oldest"}
	var took [3][]time.Duration
	for range max(b.N, 20) {
		next := []projections.HistoryRequest{newest, middle, oldest}
		for range 50 {
			for i := range next {
				began := time.Now()
				page := readPage(b, q, next[i])
				took[i] = append(took[i], time.Since(began))
				next[i].After = page.Info.EndCursor
			}
		}
	}
	var medians []float64
	for i, place := range places {
		slices.Sort(took[i])
		medians = append(medians, float64(took[i][len(took[i])/2].Microseconds()))
		b.ReportMetric(medians[i], place+"-median-µs")
		b.ReportMetric(float64(took[i][len(took[i])*99/100].Microseconds()), place+"-p99-µs")
	}
	b.ReportMetric(slices.Max(medians)/slices.Min(medians), "dearest/cheapest")
}

func readPage(b *testing.B, q *projections.Query, r projections.HistoryRequest) projections.HistoryPage {
	page, err := q.History(b.Context(), r)
	if err != nil || len(page.Entries) != r.Page.First {
		b.Fatal(len(page.Entries), err)
	}
	return page
}

func percentiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "median-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

func readGraphQL(b *testing.B, q *projections.Query) {
	h, err := graphql.New(graphql.Config{Query: q})
	if err != nil {
		b.Fatal(err)
	}
	body, err := json.Marshal(map[string]string{"query": `{contract(id:"` + largeContract + `"){history(first:100){edges{node{position revision eventId sequence contractType status timestamp processedAt payloadHash leafHash}} pageInfo{endCursor}}}}`})
	if err != nil {
		b.Fatal(err)
	}
	var took []time.Duration
	for range max(b.N, 200) {
		req := httptest.NewRequest(http.MethodPost, "/graphql", strings.NewReader(string(body)))
		req.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		began := time.Now()
		h.ServeHTTP(w, req)
		took = append(took, time.Since(began))
		if w.Code != http.StatusOK || strings.Count(w.Body.String(), `"leafHash"`) != 100 {
			b.Fatalf("status %d: %.300s", w.Code, w.Body)
		}
	}
	percentiles(b, took)
}

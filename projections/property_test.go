package projections

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/talenttrust/auditledger/ledger"
)

// TestAnyLedger takes many short random ledgers in, in random batches, some written at once and some
// later, few as batches and many as tables. What is followed, what is built anew in one go and a model in memory must say the same.
func TestAnyLedger(t *testing.T) {
	const workers = 4
	seeds := uint64(1200)
	if testing.Short() {
		seeds = 200
	}
	for worker := range uint64(workers) {
		t.Run(fmt.Sprint("worker ", worker), func(t *testing.T) {
			t.Parallel()
			for seed := worker; seed < seeds && !t.Failed(); seed += workers {
				anyLedger(t, seed)
				if t.Failed() {
					t.Logf("it was seed %d", seed)
				}
			}
		})
	}
}

func anyLedger(t *testing.T, seed uint64) {
	files := vfs.NewMem()
	db, err := pebble.Open("", &pebble.Options{FS: files, DisableWAL: true, MemTableSize: 256 << 10, CacheSize: 1 << 20, FormatMajorVersion: pebble.FormatNewest, Logger: noLogger{}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	rnd := rand.New(rand.NewPCG(seed, 11))
	b := newBook()
	b.stride = 1 + rnd.IntN(3)
	scribble(b, rnd, rnd.IntN(30))
	recs := b.all()
	p := newProjections(Config{Reader: b, Logger: slog.New(slog.DiscardHandler)}.complete(), shipped(), db)
	p.files, p.gather, p.tableItems = files, int64(1+rnd.IntN(30)), 1+rnd.IntN(15)
	if err := p.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	for from := 0; from < len(recs); {
		to := min(len(recs), from+1+rnd.IntN(12))
		behind := (len(recs) - to) * rnd.IntN(2)
		if err := p.advance(ledger.Batch{Records: recs[from:to], Head: recs[len(recs)-1].Position, Behind: int64(behind)}); err != nil {
			t.Fatal(err)
		}
		if from = to; behind == 0 && rnd.IntN(8) == 0 {
			compareAll(t, p.Query(), modelOf(recs[:to]))
		}
	}
	compareAll(t, p.Query(), modelOf(recs))
	for _, known := range p.known {
		r := p.newRows(known, 2)
		if err := errors.Join(p.fold([]*rows{r}, recs), p.write([]*rows{r})); err != nil {
			t.Fatal(err)
		}
		live, err1 := digest(t.Context(), p.sets[known.name].active.view(db))
		anew, err2 := digest(t.Context(), r.view(db))
		if err := errors.Join(err1, err2); err != nil || live != anew {
			t.Errorf("%s: followed %s, built anew %s, %v", known.name, live, anew, err)
		}
	}
}

// noLogger says nothing of thousands of databases.
type noLogger struct{}

func (noLogger) Infof(string, ...any)      {}
func (noLogger) Errorf(string, ...any)     {}
func (noLogger) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// TestAnyPage asks for thousands of random pages, with every combination of first, last, after and
// before, and expects the edges and the page info that the filtered list has.
func TestAnyPage(t *testing.T) {
	b := newBook()
	rnd := rand.New(rand.NewPCG(12, 12))
	scribble(b, rnd, 300)
	q := caughtUp(t, b).Query()
	entries := modelOf(b.all()).entries
	lists := 250
	if testing.Short() {
		lists = 40
	}
	for range lists {
		r := anyHistory(rnd)
		want := kept(entries, &r)
		r.First = MaxPage
		all, err := q.History(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			anyPage(t, q, rnd, r, &all, want)
		}
	}
}

func anyHistory(rnd *rand.Rand) (r HistoryRequest) {
	one := func(of ...string) string { return append(of, "", "", "")[rnd.IntN(len(of)+3)] }
	r.ContractID, r.Order = one("a", "a-", "b@x.y", "C"), Order(rnd.IntN(2))
	r.Status, r.Code = ledger.Status(one("accepted", "rejected")), one(ledger.CodeInvalidEvent)
	r.ContractType, r.Source, r.EventID = one("t", "u"), one("s1", "suite"), one("e1")
	if rnd.IntN(4) == 0 {
		n := rnd.Int64N(30)
		r.FromSequence = &n
	}
	return r
}

func anyPage(t *testing.T, q *Query, rnd *rand.Rand, r HistoryRequest, all *HistoryPage, want []ledger.Position) {
	from, to, size := 0, len(want), 1+rnd.IntN(20)
	r.First = 0
	if len(want) > 0 && rnd.IntN(2) == 0 {
		i := rnd.IntN(len(want))
		from, r.After = i+1, all.Cursor(i)
	}
	if len(want) > 0 && rnd.IntN(2) == 0 {
		i := rnd.IntN(len(want))
		to, r.Before = i, all.Cursor(i)
	}
	to = max(from, to)
	if rnd.IntN(2) == 0 {
		r.First, to = size, min(to, from+size)
	} else {
		r.Last, from = size, max(from, to-size)
	}
	page, err := q.History(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	var got []ledger.Position
	for i := range page.Entries {
		got = append(got, page.Entries[i].Position)
		if page.Cursor(i) != all.Cursor(from+i) {
			t.Errorf("%+v: the cursor of entry %d is not that of the whole list", r, i)
		}
	}
	if !slices.Equal(got, want[from:to]) {
		t.Fatalf("%+v: got %v, want %v", r, got, want[from:to])
	}
	if from == to {
		return
	}
	if info := (PageInfo{to < len(want), from > 0, all.Cursor(from), all.Cursor(to - 1)}); page.Info != info {
		t.Fatalf("%+v: page info %+v, want %+v", r, page.Info, info)
	}
}

// TestRowsHoldNoPayload: what a projection keeps of an event does not grow with its payload.
func TestRowsHoldNoPayload(t *testing.T) {
	b := newBook()
	const marker = "payload-text-that-is-in-no-row"
	b.add(accepted("c", "e", 1, 0, func(e *ledger.Entry) { e.Body.Payload = []byte(`{"x":"` + strings.Repeat(marker, 10_000) + `"}`) }))
	p := caughtUp(t, b)
	v := view{from: p.db}
	err := v.scan(t.Context(), []byte{0}, []byte{0xff}, false, func(key, val []byte) (bool, error) {
		if len(key)+len(val) > 512 || strings.Contains(string(val), marker) {
			t.Errorf("the row %q has %d bytes", key, len(val))
		}
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestManyFindings pages through the findings of a contract with 100,000 gaps: a page costs what it
// shows, wherever it is and however many there are.
func TestManyFindings(t *testing.T) {
	const n = 100_000
	p, err := open(t.Context(), Config{Dir: t.TempDir(), Reader: newBook(), Logger: slog.New(slog.DiscardHandler)}, shipped()[3:])
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	recs := make([]ledger.Record, n+1)
	for i := range recs {
		recs[i] = record(i+1, "c", int64(2*i))
	}
	if err := p.advance(ledger.Batch{Records: recs, Head: n + 2}); err != nil {
		t.Fatal(err)
	}
	q, seen := p.Query(), int64(0)
	for page := (Page{First: MaxPage}); ; {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		found, err := q.Findings(t.Context(), "c", page)
		if err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
			t.Errorf("the page behind %d findings took %d bytes of memory", seen, used)
		}
		for _, f := range found.Findings {
			if f.Kind != SequenceGap || f.FromSequence != 2*seen+1 {
				t.Fatalf("finding %d is %+v", seen, f)
			}
			seen++
		}
		if found.Total != n {
			t.Errorf("total %d, want %d", found.Total, n)
		}
		if page.After = found.Info.EndCursor; !found.Info.HasNextPage {
			break
		}
	}
	if seen != n {
		t.Errorf("%d findings on all pages, want %d", seen, n)
	}
}

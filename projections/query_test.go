package projections

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/canonical"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

func diff(t *testing.T, what string, want, got any) {
	t.Helper()
	if reflect.DeepEqual(want, got) { // much faster
		return
	}
	if d := gocmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// TestModel compares every answer with a model that is made anew from all records, for many random ledgers.
func TestModel(t *testing.T) {
	for seed := range uint64(16) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			b := newBook()
			b.batch, b.alone = int(seed%7), seed%2 == 0
			b.stride = 1 + int(seed%3)
			scribble(b, rand.New(rand.NewPCG(seed, 1)), 300)
			p := caughtUp(t, b)
			compareAll(t, p.Query(), modelOf(b.all()))
		})
	}
}

func compareAll(t *testing.T, q *Query, m *model) {
	t.Helper()
	ctx := t.Context()
	page, err := q.History(ctx, HistoryRequest{Order: Asc, Page: Page{First: MaxPage}})
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "activity", m.entries, page.Entries)
	if n, err := page.Total(ctx); err != nil || *n != int64(len(m.entries)) {
		t.Errorf("total %v, %v, want %d", n, err, len(m.entries))
	}
	s, err := q.Stats(ctx, StatsRequest{Bucket: Hour})
	if err != nil {
		t.Fatal(err)
	}
	diff(t, "stats by hour", m.stats.Tally, s.Tally)
	for _, p := range s.Series {
		diff(t, "hour "+p.At.String(), *m.byHour[p.At.UnixMilli()/hourMillis], p.Tally)
	}
	if s, err = q.Stats(ctx, StatsRequest{}); err != nil {
		t.Fatal(err)
	}
	diff(t, "stats", m.stats.Tally, s.Tally)
	diff(t, "types", m.stats.ByContractType, s.ByContractType)
	diff(t, "codes", m.stats.ByCode, s.ByCode)
	contracts, err := q.Contracts(ctx, ContractsRequest{})
	if err != nil || len(contracts.Contracts) != len(m.contracts) {
		t.Errorf("%d contracts, %v, want %d", len(contracts.Contracts), err, len(m.contracts))
	}
	for _, c := range contracts.Contracts {
		diff(t, "contract "+c.ContractID, *m.contracts[c.ContractID], c)
		found, err := q.Findings(ctx, c.ContractID, Page{First: MaxPage})
		if err != nil || found.Total != int64(len(m.findings[c.ContractID])) {
			t.Errorf("contract %s: %d findings, %v, want %d", c.ContractID, found.Total, err, len(m.findings[c.ContractID]))
		}
		for i := range found.Findings {
			found.Findings[i].Message = "" // the model has none
		}
		diff(t, "findings of contract "+c.ContractID, m.findings[c.ContractID], found.Findings)
	}
	if n, err := q.Evictions(); err != nil || n != m.evictions {
		t.Errorf("evictions %d, %v, want %d", n, err, m.evictions)
	}
	compareActive(t, q, m)
}

func compareActive(t *testing.T, q *Query, m *model) {
	t.Helper()
	moments := []int64{0, ledgertest.Epoch.UnixMilli(), ledgertest.Epoch.UnixMilli() + 1000*24*hourMillis}
	for i := 0; i < len(m.bound); i += 8 {
		until := m.bound[i]
		moments = append(moments, until-1, until, until+1, until-60_000, until-24*hourMillis)
	}
	for _, now := range moments {
		if now < 0 {
			continue
		}
		want := int64(0)
		for _, until := range m.bound {
			if until == 0 || now < until {
				want++
			}
		}
		if got, err := q.ActiveKeys(time.UnixMilli(now)); err != nil || got != want {
			t.Errorf("active keys at %d: %d, %v, want %d", now, got, err, want)
		}
	}
}

// TestPages walks random histories with random filters, in both orders and both directions, while
// the ledger grows, and compares each page with the filtered model as of the first page.
func TestPages(t *testing.T) {
	b := newBook()
	rnd := rand.New(rand.NewPCG(7, 7))
	scribble(b, rnd, 400)
	p := caughtUp(t, b)
	q := p.Query()
	rapid.Check(t, func(t *rapid.T) {
		r := HistoryRequest{
			ContractID: rapid.SampledFrom([]string{"", "a", "a-", "b@x.y", "C", "nobody", "a\x00"}).Draw(t, "contract"),
			Filter:     filters(t),
			Order:      rapid.SampledFrom([]Order{Desc, Asc}).Draw(t, "order"),
		}
		size, back := rapid.IntRange(1, 40).Draw(t, "size"), rapid.Bool().Draw(t, "back")
		want := kept(modelOf(b.all()).entries, &r)
		var got []ledger.Position
		total := int64(-1)
		for {
			if r.First, r.Last = size, 0; back {
				r.First, r.Last = 0, size
			}
			page, err := q.History(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := page.Total(t.Context()); err != nil || total >= 0 && *n != total {
				t.Fatalf("total %v, %v, before it was %d", *n, err, total)
			} else {
				total = *n
			}
			var part []ledger.Position
			for _, e := range page.Entries {
				part = append(part, e.Position)
			}
			more := page.Info.HasNextPage
			if r.After = page.Info.EndCursor; back {
				got, r.After, r.Before, more = append(part, got...), "", page.Info.StartCursor, page.Info.HasPreviousPage
			} else {
				got = append(got, part...)
			}
			if !more {
				break
			}
			scribble(b, rnd, 1)
			head, _ := b.Head(t.Context())
			if err := q.Wait(t.Context(), head); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(got, want) || total != int64(len(want)) {
			t.Fatalf("%+v, %d at once, backwards %v: got %v (total %d), want %v", r, size, back, got, total, want)
		}
	})
}

func filters(t *rapid.T) (f Filter) {
	one := func(label string, values ...string) string {
		return rapid.SampledFrom(append(values, "", "")).Draw(t, label)
	}
	f.Status = ledger.Status(one("status", "accepted", "rejected"))
	f.Code = one("code", ledger.CodeInvalidEvent, ledger.CodeConflict)
	f.ContractType = one("type", "t", "u")
	f.Source = one("source", "s1", "suite")
	f.EventID = one("event", "e1", "e2")
	at := func(label string) int64 {
		return rapid.SampledFrom([]int64{0, 0, 0, ledgertest.Epoch.UnixMilli() + rapid.Int64Range(0, 3000*60_000).Draw(t, label)}).Draw(t, label)
	}
	f.From, f.To, f.SentFrom, f.SentTo = at("from"), at("to"), at("sentFrom"), at("sentTo")
	seq := func(label string) *int64 {
		n := rapid.Int64Range(0, 29).Draw(t, label)
		return rapid.SampledFrom([]*int64{nil, nil, &n}).Draw(t, label)
	}
	f.FromSequence, f.ToSequence = seq("fromSequence"), seq("toSequence")
	return f
}

// kept is the positions of the entries that the request asks for, in its order.
func kept(entries []Entry, r *HistoryRequest) (at []ledger.Position) {
	for _, e := range entries {
		f := &r.Filter
		sent, sequence := f.SentFrom != 0 || f.SentTo != 0, f.FromSequence != nil || f.ToSequence != nil
		switch {
		case r.ContractID != "" && e.ContractID != r.ContractID,
			f.Status != "" && e.Status != f.Status, f.Code != "" && e.Code != f.Code, f.ContractType != "" && e.ContractType != f.ContractType,
			f.Source != "" && e.Source != f.Source, f.EventID != "" && e.EventID != f.EventID,
			e.ProcessedAt < f.From, f.To != 0 && e.ProcessedAt >= f.To,
			sent && e.Timestamp == ledger.Absent, e.Timestamp < f.SentFrom && f.SentFrom != 0, f.SentTo != 0 && e.Timestamp >= f.SentTo,
			sequence && e.Sequence == ledger.Absent, f.FromSequence != nil && e.Sequence < *f.FromSequence, f.ToSequence != nil && e.Sequence > *f.ToSequence:
			continue
		}
		at = append(at, e.Position)
	}
	if r.Order == Desc {
		slices.Reverse(at)
	}
	return at
}

// TestContractPages walks the list of contracts in both orders while their activity changes.
func TestContractPages(t *testing.T) {
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		b := newBook()
		touch := func(n int) {
			for range n {
				id := fmt.Sprintf("Con-%d", rnd.IntN(60))
				b.add(accepted(id, fmt.Sprint("e", rnd.Int64()), rnd.Int64N(1000), 0), rejected("", "", ledger.Absent, "x", 0))
			}
		}
		touch(100)
		p := caughtUp(t, b)
		for _, r := range []ContractsRequest{{}, {Search: "oN-3"}, {OrderBy: ByLastActivity}, {OrderBy: ByLastActivity, Search: "CON-1"}, {Type: "nothing"}} {
			var want, got []string
			for id, c := range modelOf(b.all()).contracts {
				if strings.Contains(strings.ToLower(id), strings.ToLower(r.Search)) && (r.Type == "" || c.Type == r.Type) {
					want = append(want, id)
				}
			}
			last := modelOf(b.all()).contracts
			slices.SortFunc(want, func(a, b string) int {
				if r.OrderBy == ByLastActivity {
					return cmp.Compare(last[b].LastPosition, last[a].LastPosition)
				}
				return strings.Compare(a, b)
			})
			for {
				r.First = 1 + rnd.IntN(9)
				page, err := p.Query().Contracts(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				if n, err := page.Total(t.Context()); err != nil || *n != int64(len(want)) {
					t.Fatalf("total %v, %v, want %d", *n, err, len(want))
				}
				for _, c := range page.Contracts {
					got = append(got, c.ContractID)
				}
				if r.After = page.Info.EndCursor; !page.Info.HasNextPage {
					// and the same way back from the last one
					r.First, r.After, r.Last, r.Before = 0, "", MaxPage, page.Info.EndCursor
					break
				}
				touch(1 + rnd.IntN(10))
				wait(t, p, b)
			}
			diff(t, fmt.Sprintf("seed %d: %+v", seed, r), want, got)
			if len(want) == 0 {
				continue
			}
			page, err := p.Query().Contracts(t.Context(), r)
			if err != nil || len(page.Contracts) != len(want)-1 || page.Info.HasPreviousPage || !page.Info.HasNextPage {
				t.Errorf("seed %d: %+v backwards: %d, %v, %v, want %d", seed, r, len(page.Contracts), page.Info, err, len(want)-1)
			}
			for i, c := range page.Contracts {
				if c.ContractID != want[i] {
					t.Errorf("seed %d: %+v backwards: %s at %d, want %s", seed, r, c.ContractID, i, want[i])
				}
			}
		}
	}
}

func TestPageErrors(t *testing.T) {
	b := newBook()
	for i := range int64(5) {
		b.add(accepted("c", fmt.Sprint("e", i), i, 0))
	}
	q := caughtUp(t, b).Query()
	page, err := q.History(t.Context(), HistoryRequest{ContractID: "c", Page: Page{First: 2}})
	if err != nil {
		t.Fatal(err)
	}
	good := page.Info.EndCursor
	edited := []byte(good)
	edited[3] ^= 1
	for name, c := range map[string]struct {
		r    HistoryRequest
		want string
	}{
		"first too large":  {HistoryRequest{ContractID: "c", Page: Page{First: 1001}}, "first"},
		"first negative":   {HistoryRequest{ContractID: "c", Page: Page{First: -1}}, "first"},
		"last too large":   {HistoryRequest{ContractID: "c", Page: Page{Last: 1001}}, "last"},
		"both":             {HistoryRequest{ContractID: "c", Page: Page{First: 1, Last: 1}}, "last"},
		"edited":           {HistoryRequest{ContractID: "c", Page: Page{After: string(edited)}}, "after"},
		"edited before":    {HistoryRequest{ContractID: "c", Page: Page{Before: string(edited)}}, "before"},
		"not a cursor":     {HistoryRequest{ContractID: "c", Page: Page{After: "€"}}, "after"},
		"short":            {HistoryRequest{ContractID: "c", Page: Page{After: good[:4]}}, "after"},
		"another contract": {HistoryRequest{ContractID: "d", Page: Page{After: good}}, "after"},
		"another order":    {HistoryRequest{ContractID: "c", Order: Asc, Page: Page{After: good}}, "after"},
		"another filter":   {HistoryRequest{ContractID: "c", Filter: Filter{Status: ledger.StatusAccepted}, Page: Page{After: good}}, "after"},
		"another as-of":    {HistoryRequest{ContractID: "c", Page: Page{After: good, AsOf: 2}}, "after"},
		"beyond the head":  {HistoryRequest{ContractID: "c", Page: Page{AsOf: 100}}, "asOf"},
		"no such status":   {HistoryRequest{ContractID: "c", Filter: Filter{Status: ledger.StatusDuplicate}}, "status"},
	} {
		var p *ParameterError
		if _, err := q.History(t.Context(), c.r); !errors.As(err, &p) || p.Name != c.want {
			t.Errorf("%s: got %v, want an error about %s", name, err, c.want)
		}
	}
	other := caughtUp(t, newBook())
	var pe *ParameterError
	if _, err := other.Query().History(t.Context(), HistoryRequest{ContractID: "c", Page: Page{After: good}}); !errors.As(err, &pe) {
		t.Errorf("a cursor of another ledger: %v", err)
	}
	if asOf, err := q.History(t.Context(), HistoryRequest{ContractID: "c", Page: Page{AsOf: 3}}); err != nil || len(asOf.Entries) != 2 {
		t.Errorf("as of position 3: %d entries, %v, want 2", len(asOf.Entries), err)
	}
}

func TestStatsRanges(t *testing.T) {
	b := newBook()
	at := func(hours float64) int64 { return int64(hours * hourMillis) }
	b.add(accepted("c", "a", 1, at(0)), accepted("c", "b", 2, at(1)-1), accepted("d", "c", 3, at(1)), rejected("e", "d", 1, "x", at(48)-1), accepted("f", "e", 1, at(48)))
	q := caughtUp(t, b).Query()
	hour := func(h int) time.Time { return ledgertest.Epoch.Add(time.Duration(h) * time.Hour) }
	for name, c := range map[string]struct {
		r      StatsRequest
		want   Tally
		points int
	}{
		"all":           {StatsRequest{}, Tally{Accepted: 4, Rejected: 1, Contracts: 4}, 0},
		"all by hour":   {StatsRequest{Bucket: Hour}, Tally{Accepted: 4, Rejected: 1, Contracts: 4}, 4},
		"all by day":    {StatsRequest{Bucket: Day}, Tally{Accepted: 4, Rejected: 1, Contracts: 4}, 3},
		"first hour":    {StatsRequest{From: hour(0), To: hour(1)}, Tally{Accepted: 2, Contracts: 1}, 0},
		"from an hour":  {StatsRequest{From: hour(1), Bucket: Hour}, Tally{Accepted: 2, Rejected: 1, Contracts: 3}, 3},
		"until a day":   {StatsRequest{To: hour(48), Bucket: Day}, Tally{Accepted: 3, Rejected: 1, Contracts: 3}, 2},
		"nothing":       {StatsRequest{From: hour(5), To: hour(5)}, Tally{}, 0},
		"other zone":    {StatsRequest{From: hour(1).In(time.FixedZone("", 3600)), To: hour(2)}, Tally{Accepted: 1, Contracts: 1}, 0},
		"far in future": {StatsRequest{From: hour(1_000_000)}, Tally{}, 0},
	} {
		s, err := q.Stats(t.Context(), c.r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		diff(t, name, c.want, s.Tally)
		if len(s.Series) != c.points {
			t.Errorf("%s: %d points, want %d", name, len(s.Series), c.points)
		}
		if s.AsOf.Position != 6 || !s.AsOf.Time.Equal(hour(48)) || s.Lag.Records != 0 {
			t.Errorf("%s: as of %+v, lag %+v", name, s.AsOf, s.Lag)
		}
	}
	for name, c := range map[string]struct {
		r    StatsRequest
		want string
	}{
		"half an hour": {StatsRequest{From: hour(0).Add(30 * time.Minute)}, "from"},
		"nanosecond":   {StatsRequest{To: hour(0).Add(1)}, "to"},
		"not midnight": {StatsRequest{To: hour(1), Bucket: Day}, "to"},
		"backwards":    {StatsRequest{From: hour(2), To: hour(1)}, "to"},
		"before 1970":  {StatsRequest{From: time.Unix(-3600, 0)}, "from"},
		"bucket":       {StatsRequest{Bucket: "week"}, "bucket"},
	} {
		var p *ParameterError
		if _, err := q.Stats(t.Context(), c.r); !errors.As(err, &p) || p.Name != c.want {
			t.Errorf("%s: got %v, want an error about %s", name, err, c.want)
		}
	}
}

func TestTopTypes(t *testing.T) {
	b := newBook()
	for i := range 150 {
		b.add(accepted("c", fmt.Sprint("e", i), int64(i), 0, func(e *ledger.Entry) { e.Header.ContractType = fmt.Sprintf("type%03d", i) }))
	}
	for i := range 3 {
		b.add(accepted("c", fmt.Sprint("o", i), int64(150+i), 0, func(e *ledger.Entry) { e.Header.ContractType = "other" }))
	}
	s, err := caughtUp(t, b).Query().Stats(t.Context(), StatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.ByContractType); n != 101 || s.ByContractType[100] != (Named{"other", 53}) || s.ByContractType[0] != (Named{"type000", 1}) {
		t.Errorf("%d types, the last is %v", n, s.ByContractType[n-1])
	}
}

// TestReads covers the single look-ups.
func TestReads(t *testing.T) {
	b := newBook()
	window := func(e *ledger.Entry) { e.Window = 10 }
	at := b.add(
		accepted("c", "a", 1, 0, window), accepted("c", "b", 2, 1), rejected("c", "a", 1, ledger.CodePayloadConflict, 2),
		accepted("d", "a", 1, 3), accepted("c", "a", 1, 10, window), accepted("c", "a", 1, 20, window), rejected("", "", ledger.Absent, "x", 21))
	b.add(counted(30, ledger.Count{Stream: "contract-c", Revision: 0, Count: 2, LastSeen: 5}, ledger.Count{Stream: "rejections-suite", Revision: 1, Count: 4, LastSeen: 9}))
	p := caughtUp(t, b)
	q, ctx := p.Query(), t.Context()

	found, err := q.Event(ctx, ledger.Key{ContractID: "c", EventID: "a", Sequence: 1})
	if err != nil || len(found) != 3 {
		t.Fatalf("%d generations, %v, want 3", len(found), err)
	}
	for i, e := range found {
		if e.Generation != int64(i+1) || e.Position != at[[]int{0, 4, 5}[i]] {
			t.Errorf("generation %d is %+v", i+1, e)
		}
	}
	if found[0].Duplicates != 2 || found[0].LastDuplicateAt != 5 || found[2].Supersedes != found[1].Revision {
		t.Errorf("generations %+v", found)
	}
	for _, k := range []ledger.Key{{ContractID: "c", EventID: "a", Sequence: 2}, {ContractID: "c:", EventID: "a"}, {ContractID: "c", EventID: "a", Sequence: -1}} {
		if found, err := q.Event(ctx, k); err != nil || len(found) != 0 {
			t.Errorf("event %s: %v, %v, want none", k, found, err)
		}
	}

	for _, c := range []struct {
		stream   string
		revision int64
		want     ledger.Position
	}{{"contract-c", 1, at[1]}, {"contract-c", 9, 0}, {"contract-c", -1, 0}, {"rejections-suite", 1, at[6]}, {"contract-x", 0, 0}, {"ledger", 0, 0}, {"duplicates-suite", 0, 0}} {
		e, err := q.EntryAt(ctx, c.stream, c.revision)
		if err != nil || (e == nil) != (c.want == 0) || e != nil && e.Position != c.want {
			t.Errorf("entry at %s %d: %+v, %v, want position %s", c.stream, c.revision, e, err, c.want)
		}
	}

	all, err := q.Entries(ctx, []ledger.Position{at[6], at[2], 1, 999, at[0]})
	if err != nil || len(all) != 3 || all[0].Duplicates != 4 || all[1].Position != at[2] {
		t.Fatalf("entries %+v, %v", all, err)
	}
	for _, c := range []struct {
		of             *Entry
		previous, next ledger.Position
	}{{&all[1], at[1], at[4]}, {&all[2], 0, at[1]}, {&all[0], 0, 0}} {
		previous, next, err := q.Neighbours(ctx, c.of)
		if err != nil || place(previous) != c.previous || place(next) != c.next {
			t.Errorf("neighbours of %s: %s, %s, %v, want %s, %s", c.of.Position, place(previous), place(next), err, c.previous, c.next)
		}
	}
	payloads, err := q.Payloads(ctx, all)
	if err != nil || payloads[0] != nil || payloads[1] != nil || string(payloads[2]) != "{}" {
		t.Errorf("payloads %q, %v", payloads, err)
	}
	if c, err := q.Contract(ctx, "nobody"); c != nil || err != nil {
		t.Errorf("an unknown contract: %v, %v", c, err)
	}
	if k, ok := all[0].Key(); ok {
		t.Errorf("a rejection without ids has the key %s", k)
	}
	if k, ok := all[1].Key(); !ok || k.String() != "c:a:1" {
		t.Errorf("key %s, %v", k, ok)
	}
}

func place(e *Entry) ledger.Position {
	if e == nil {
		return 0
	}
	return e.Position
}

// TestChangedPayload: a payload is not shown when it, or its record as a whole, is not the one that was taken in.
func TestChangedPayload(t *testing.T) {
	other := accepted("c", "a", 1, 0)
	other.Body.Payload = []byte(`{"amount":92.5}`)
	other.Body.PayloadHash = canonical.Sum(other.Body.Payload)
	other.Seal()
	for name, change := range map[string]func(r *ledger.Record){
		"payload": func(r *ledger.Record) { r.Body.Payload = other.Body.Payload },
		"payload and hash": func(r *ledger.Record) {
			r.Body.Payload, r.Body.PayloadHash = other.Body.Payload, other.Body.PayloadHash
		},
		"body": func(r *ledger.Record) { r.Body = other.Body },
		"whole record": func(r *ledger.Record) {
			r.Body, r.Header.Commitment = other.Body, other.Header.Commitment
			r.Leaf = r.Header.LeafHash()
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBook()
			at := b.add(accepted("c", "a", 1, 0), accepted("c", "b", 2, 0))
			q := caughtUp(t, b).Query()
			all, err := q.Entries(t.Context(), at)
			if err != nil {
				t.Fatal(err)
			}
			if shown, err := q.Payloads(t.Context(), all); err != nil || len(shown) != 2 {
				t.Fatalf("before: %q, %v", shown, err)
			}
			b.mu.Lock()
			change(&b.records[at[0]-1])
			b.mu.Unlock()
			if shown, err := q.Payloads(t.Context(), all); !errors.Is(err, ledger.ErrDamaged) || !strings.Contains(fmt.Sprint(err), "position "+at[0].String()) {
				t.Errorf("shown: %q, %v", shown, err)
			}
		})
	}
}

// TestFollow reads entries as they come.
func TestFollow(t *testing.T) {
	b := newBook()
	at := b.add(accepted("c", "a", 1, 0), accepted("d", "a", 1, 0), accepted("c", "b", 2, 0))
	p := caughtUp(t, b)
	var got []ledger.Position
	for e, err := range p.Query().Follow(t.Context(), HistoryRequest{ContractID: "c"}, at[0]) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, e.Position); len(got) == 3 {
			break
		}
		at = append(at, b.add(accepted("d", fmt.Sprint("x", len(got)), 9, 0), accepted("c", fmt.Sprint("y", len(got)), 9, 0))...)
	}
	diff(t, "followed", []ledger.Position{at[2], at[4], at[6]}, got)
	for _, err := range p.Query().Follow(t.Context(), HistoryRequest{}, 1000) {
		if !errors.Is(err, ledger.ErrBeyondHead) {
			t.Errorf("from beyond the head: %v", err)
		}
	}
}

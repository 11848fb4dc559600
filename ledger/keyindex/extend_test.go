package keyindex

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/talenttrust/auditledger/ledger"
)

// history makes n records of few streams in ledger order, with positions that leave gaps.
func history(rnd *rand.Rand, m *model, n int) (all []ledger.Record) {
	for range n {
		k := ledger.Key{ContractID: fmt.Sprint("c", rnd.IntN(7)), EventID: fmt.Sprint("e", rnd.IntN(5)), Sequence: rnd.Int64N(40)}
		r := ledger.Record{Position: ledger.Position(len(all)*10 + 7)}
		r.Header = ledger.Header{Type: ledger.EventAccepted, Stream: k.Stream(), ContractID: k.ContractID, EventID: k.EventID, Sequence: k.Sequence, Generation: m.keys[k].Generation + 1}
		head, ok := m.heads[r.Header.Stream]
		if !ok {
			head = ledger.EmptyStream
		}
		r.Header.Revision, r.Header.Prev = head.Revision+1, head.Leaf
		r.Leaf[0], r.Leaf[1], r.Leaf[2] = byte(r.Position), byte(r.Position>>8), 1
		a := Of(&r, head)
		m.heads[a.Stream], m.keys[k], m.at[fmt.Sprint(a.Stream, r.Header.Revision)] = a.Head, a.Found, r.Position
		all = append(all, r)
	}
	return all
}

// checkStreams is check without a cursor.
func (m *model) checkStreams(t *testing.T, x *Index) {
	t.Helper()
	for s, want := range m.heads {
		if got, _, err := x.Head(s); got != want || err != nil {
			t.Fatalf("head of %s: %+v, %v, want %+v", s, got, err, want)
		}
		for rev := range want.Revision + 1 {
			if at, ok, err := x.At(s, rev); at != m.at[fmt.Sprint(s, rev)] || !ok || err != nil {
				t.Fatalf("%s %d is at %d, %v, %v", s, rev, at, ok, err)
			}
		}
	}
	for k, want := range m.keys {
		if got, _, err := x.Key(k); got != want || err != nil {
			t.Fatalf("%s: %+v, %v, want %+v", k, got, err, want)
		}
	}
}

// TestExtend has a follower and readers of single streams bring the same records at once, while
// tables of few records come and go; then the index is killed and brought up again from its cursor.
func TestExtend(t *testing.T) {
	for seed := range uint64(3) {
		rnd, m, dir := rand.New(rand.NewPCG(seed, 5)), newModel(), t.TempDir()
		all := history(rnd, m, 600)
		x := openIndex(t, filepath.Join(dir, "a"), 1+rnd.IntN(40))
		defer x.Close()
		streams := map[string][]ledger.Record{}
		for _, r := range all {
			streams[r.Header.Stream] = append(streams[r.Header.Stream], r)
		}
		extend := func(r *ledger.Record) bool {
			fit, err := x.Extend(r)
			if err != nil || fit == Strange {
				t.Errorf("%s %d: %v, %v", r.Header.Stream, r.Header.Revision, fit, err)
			}
			return fit != Missing
		}
		var wg sync.WaitGroup
		for _, recs := range streams {
			wg.Go(func() {
				for i := range recs {
					if !extend(&recs[i]) {
						t.Errorf("%s %d: records before it are missing", recs[i].Header.Stream, i)
					}
				}
			})
		}
		wg.Go(func() {
			for i := range all {
				if !extend(&all[i]) {
					t.Errorf("record %d of the ledger: records before it are missing", i)
				}
				x.Advance(all[i].Position)
			}
		})
		wg.Wait()
		m.checkStreams(t, x)
		if top := x.Top(); x.Cursor() != all[599].Position || top != (Top{all[599].Position, all[599].Leaf}) {
			t.Errorf("cursor %d, top %d, want %d with the leaf there", x.Cursor(), top.Position, all[599].Position)
		}
		if err := x.db.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(filepath.Join(dir, "b"), os.DirFS(filepath.Join(dir, "a"))); err != nil {
			t.Fatal(err)
		}
		y := openIndex(t, filepath.Join(dir, "b"), 30)
		defer y.Close()
		at, top := y.Cursor(), y.Top()
		if top.Position < at {
			t.Errorf("top %d is below the cursor, %d", top.Position, at)
		}
		for i := range all {
			if all[i].Position == top.Position && all[i].Leaf != top.Leaf {
				t.Errorf("the top's leaf is not the one at %d", at)
			}
			if all[i].Position > at {
				if fit, err := y.Extend(&all[i]); fit != Added && fit != Known || err != nil {
					t.Fatalf("record %d behind the cursor: %v, %v", i, fit, err)
				}
			}
		}
		m.checkStreams(t, y)
	}
}

func TestExtendRefuses(t *testing.T) {
	x := openIndex(t, t.TempDir(), 10)
	defer x.Close()
	recs := history(rand.New(rand.NewPCG(1, 1)), newModel(), 40)
	var one []ledger.Record // of one stream
	for _, r := range recs {
		if r.Header.Stream == recs[0].Header.Stream {
			one = append(one, r)
		}
	}
	want := func(what string, r ledger.Record, fit Fit) {
		t.Helper()
		if got, err := x.Extend(&r); got != fit || err != nil {
			t.Errorf("%s: %v, %v, want %v", what, got, err, fit)
		}
	}
	want("the second", one[1], Missing)
	want("the first", one[0], Added)
	want("the first again", one[0], Known)
	copied, unchained, earlier := one[0], one[1], one[1]
	copied.Position++
	unchained.Header.Prev[3]++
	earlier.Header.RecordedAt = -1
	want("a copy of the first", copied, Strange)
	want("a second that continues another", unchained, Strange)
	want("a second before the first", earlier, Strange)
	want("the second", one[1], Added)
	want("the fourth", one[3], Missing)
}

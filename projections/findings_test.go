package projections

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/canonical"
)

// TestReingested: a key that came back with another payload says so.
func TestReingested(t *testing.T) {
	const hour = 3_600_000
	b := newBook()
	other := func(e *ledger.Entry) {
		e.Body.Payload = []byte(`{"amount":1000}`)
		e.Body.PayloadHash = canonical.Sum(e.Body.Payload)
	}
	b.add(accepted("c", "a", 1, 0), accepted("c", "a", 1, 2*hour), accepted("c", "a", 1, 4*hour, other))
	page, err := caughtUp(t, b).Query().Findings(t.Context(), "c", Page{First: MaxPage})
	if err != nil || len(page.Findings) != 2 {
		t.Fatalf("%+v, %v", page.Findings, err)
	}
	for i, f := range page.Findings {
		if f.Kind != Reingested || strings.Contains(f.Message, "another payload") != (i == 1) {
			t.Errorf("%d: %+v", i, f)
		}
	}
}

// TestManyGaps fills the sequences of a contract in random order, so that its gaps grow beyond what
// is kept in memory and shrink again, in batches of every size, with restarts in between.
func TestManyGaps(t *testing.T) {
	for seed := range uint64(4) {
		rnd := rand.New(rand.NewPCG(seed, 8))
		b := newBook()
		order := rnd.Perm(400)
		p, stop := running(t, Config{Dir: t.TempDir(), Reader: b}, shipped())
		for len(order) > 0 {
			n := min(len(order), 1+rnd.IntN(60))
			for _, seq := range order[:n] {
				b.add(accepted("c", fmt.Sprint("e", seq), int64(seq), int64(len(order))))
				if rnd.IntN(20) == 0 {
					b.add(accepted("c", fmt.Sprint("again", seq), int64(seq), int64(len(order))))
				}
			}
			order = order[n:]
			wait(t, p, b)
			page, err := p.Query().Findings(t.Context(), "c", Page{First: MaxPage})
			if err != nil {
				t.Fatal(err)
			}
			for i := range page.Findings {
				page.Findings[i].Message = "" // the model has none
			}
			want := findingsOf(b.all(), "c")
			diff(t, fmt.Sprintf("seed %d, %d to come: findings", seed, len(order)), want, page.Findings)
			if page.Total != int64(len(want)) {
				t.Errorf("total %d, want %d", page.Total, len(want))
			}
			if rnd.IntN(4) == 0 {
				stop()
				p, stop = running(t, Config{Dir: p.c.Dir, Reader: b}, shipped())
			}
		}
		stop()
	}
}

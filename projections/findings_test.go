package projections

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

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

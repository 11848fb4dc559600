package projections

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/talenttrust/auditledger/ledger"
)

// TestItems packs items in random batches, some too large to share a row, and reads random ranges and
// positions of them, in both directions.
func TestItems(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 21))
		db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem(), DisableWAL: true, Logger: noLogger{}})
		if err != nil {
			t.Fatal(err)
		}
		under := map[string][]item{}
		tab := &table{prefix: prefix{'h', 1}, packed: "h", db: db}
		at, most := ledger.Position(0), 1+rnd.IntN(40)
		for range 1 + rnd.IntN(30) {
			for range rnd.IntN(most) {
				at += ledger.Position(1 + rnd.IntN(3))
				name := fmt.Sprint("c", rnd.IntN(3))
				val := bytes.Repeat([]byte{byte(at)}, rnd.IntN(20)*rnd.IntN(20)*rnd.IntN(20))
				under[name] = append(under[name], item{at, val})
				tab.put(tab.keyOf('h', name, uint64(at)), val)
			}
			b := db.NewBatch()
			l := &tab.lots['h']
			l.sort()
			if err := l.emit(func(k, v []byte) error { return b.Set(k, v, nil) }, nil); err != nil {
				t.Fatal(err)
			}
			tab.forget(true)
			if err := b.Commit(pebble.NoSync); err != nil {
				t.Fatal(err)
			}
		}
		v := tab.view(db)
		for range 50 {
			name := fmt.Sprint("c", rnd.IntN(4))
			in := positions{ledger.Position(rnd.IntN(int(at) + 3)), ledger.Position(rnd.IntN(int(at) + 3))}
			readItems(t, v, v.keyOf('h', name), in, under[name])
		}
		if t.Failed() {
			t.Fatal("seed", seed)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func readItems(t *testing.T, v *view, under []byte, in positions, all []item) {
	t.Helper()
	var want []item
	for _, it := range all {
		if it.at >= in.first && it.at <= in.last {
			want = append(want, it)
		}
	}
	for _, backwards := range []bool{false, true} {
		var got []item
		if err := v.items(t.Context(), under, in, backwards, func(it item) (bool, error) {
			got = append(got, item{it.at, bytes.Clone(it.val)})
			return true, nil
		}); err != nil {
			t.Fatal(err)
		}
		if backwards {
			slices.Reverse(got)
		}
		if !slices.EqualFunc(got, want, same) {
			t.Errorf("%d to %d, backwards %v: got %d items, want %d", in.first, in.last, backwards, len(got), len(want))
		}
	}
	var asked []ledger.Position
	for p := in.first; p <= in.last; p += 1 + p%2 {
		asked = append(asked, p)
	}
	want = slices.DeleteFunc(want, func(it item) bool { return !slices.Contains(asked, it.at) })
	var got []item
	if err := v.lookUp(func(rows *looker) error {
		return v.itemsAt(rows, under, asked, func(it item) error {
			got = append(got, item{it.at, bytes.Clone(it.val)})
			return nil
		})
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(got, want, same) {
		t.Errorf("at %d: got %d items, want %d", asked, len(got), len(want))
	}
}

func same(a, b item) bool { return a.at == b.at && bytes.Equal(a.val, b.val) }

// TestDamagedItems: a packed row that is cut or overwritten is an error or other items, and never a panic
// or a loop without end.
func TestDamagedItems(t *testing.T) {
	tab := &table{prefix: prefix{'h', 1}, packed: "h"}
	for at := range uint64(packItems) {
		tab.put(tab.keyOf('h', "c", at), bytes.Repeat([]byte{'x'}, int(at)))
	}
	var val row
	l := &tab.lots['h']
	key, rest := l.pack(&val, l.list)
	if len(rest) != 0 {
		t.Fatal(len(rest), "items are left")
	}
	cut := 0
	for n := range val {
		for it, err := range unpack(key, val[:n]) {
			if _ = it; err != nil {
				cut++
			}
		}
		for b := range 256 {
			broken := bytes.Clone(val)
			broken[n] = byte(b)
			for range unpack(key, broken) {
			}
		}
	}
	if cut < len(val) {
		t.Errorf("%d of %d cuts were found", cut, len(val))
	}
	for _, val := range [][]byte{nil, {1, 0}} {
		for _, err := range unpack(key, val) {
			if err == nil {
				t.Errorf("row %v without an item at its key's position was taken", val)
			}
		}
	}
	for _, err := range unpack(key[:3], val) {
		if err == nil {
			t.Error("a key without a position was taken")
		}
	}
}

// TestSort sorts few and many changes, with keys that share their beginnings and keys that are equal.
func TestSort(t *testing.T) {
	rnd := rand.New(rand.NewPCG(4, 4))
	for _, n := range []int{0, 1, 2, 100, manyChanges - 1, manyChanges, 5 * manyChanges} {
		for shared := range 4 {
			tab := &table{prefix: prefix{'x', 1}}
			for i := range n {
				key := tab.prefix.key('k')
				key = append(key, bytes.Repeat([]byte("shared-"), shared*rnd.IntN(2))...)
				for range rnd.IntN(24) {
					key = append(key, "\x00a\xff"[rnd.IntN(3)])
				}
				tab.put(key, fmt.Append(nil, i))
			}
			l := &tab.lots['k']
			want := slices.Clone(l.list)
			slices.SortStableFunc(want, func(x, y change) int { return bytes.Compare(l.key(&x), l.key(&y)) })
			if l.sort(); !slices.Equal(l.list, want) {
				t.Errorf("%d changes, %d shared: not in order", n, shared)
			}
		}
	}
}

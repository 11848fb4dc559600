package keyindex

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/talenttrust/auditledger/ledger"
)

// model is what the index must answer.
type model struct {
	keys    map[ledger.Key]ledger.Found
	heads   map[string]ledger.StreamHead
	at      map[string]ledger.Position // stream, revision
	applied []Applied
}

func newModel() *model {
	return &model{map[ledger.Key]ledger.Found{}, map[string]ledger.StreamHead{}, map[string]ledger.Position{}, nil}
}

// grow makes the next n records, accepted events and others, of few keys and streams. Some streams are in the order of
// their keys at first.
func (m *model) grow(rnd *rand.Rand, n int) []Applied {
	from := len(m.applied)
	for range n {
		r := ledger.Record{Position: ledger.Position(len(m.applied) + 1)}
		k := ledger.Key{ContractID: fmt.Sprint("c", rnd.IntN(7)), EventID: fmt.Sprint("e", rnd.IntN(5)), Sequence: rnd.Int64N(40)}
		if head, ok := m.heads[k.Stream()]; ok && k.ContractID < "c4" {
			k.Sequence = (head.HighestSequence + 1) % 41
		}
		r.Header = ledger.Header{Type: ledger.EventAccepted, Stream: k.Stream(), ContractID: k.ContractID, EventID: k.EventID, Sequence: k.Sequence, Generation: m.keys[k].Generation + 1}
		if rnd.IntN(5) == 0 {
			r.Header = ledger.Header{Type: ledger.EventRejected, Stream: "rejections-x", Sequence: ledger.Absent}
		}
		head, ok := m.heads[r.Header.Stream]
		if !ok {
			head = ledger.EmptyStream
		}
		r.Header.Revision, r.Header.RecordedAt = head.Revision+1, rnd.Int64N(1e12)
		r.Leaf[0], r.Body.PayloadHash[31], r.Body.EventHash[0], r.Body.BoundUntil = byte(r.Position), byte(r.Position), 7, rnd.Int64N(3)
		a := Of(&r, head)
		m.applied = append(m.applied, a)
		m.heads[a.Stream] = a.Head
		m.at[fmt.Sprint(a.Stream, r.Header.Revision)] = r.Position
		if a.Accepted {
			m.keys[a.Key] = a.Found
		}
	}
	return m.applied[from:]
}

func (m *model) check(t *testing.T, x *Index) {
	t.Helper()
	if got := x.Cursor(); int(got) != len(m.applied) {
		t.Fatalf("cursor %d, want %d", got, len(m.applied))
	}
	var keys []ledger.Key
	var want []ledger.Found
	for c := range 8 {
		for e := range 6 {
			for s := range int64(41) {
				k := ledger.Key{ContractID: fmt.Sprint("c", c), EventID: fmt.Sprint("e", e), Sequence: s}
				got, _, err := x.Key(k)
				if d := cmp.Diff(m.keys[k], got); d != "" || err != nil {
					t.Fatalf("%s: %v (-want +got):\n%s", k, err, d)
				}
				keys, want = append(keys, k), append(want, m.keys[k])
			}
		}
	}
	rand.New(rand.NewPCG(uint64(len(m.applied)), 3)).Shuffle(len(keys), func(i, j int) {
		keys[i], keys[j], want[i], want[j] = keys[j], keys[i], want[j], want[i]
	})
	for _, n := range []int{0, 1, 50, len(keys)} {
		got, err := x.Keys(keys[:n])
		if d := cmp.Diff(want[:n], got, cmpopts.EquateEmpty()); d != "" || err != nil {
			t.Fatalf("%d keys at once: %v (-want +got):\n%s", n, err, d)
		}
	}
	for s, want := range m.heads {
		got, _, err := x.Head(s)
		if got != want || err != nil {
			t.Fatalf("head of %s: %+v, %v, want %+v", s, got, err, want)
		}
		for rev := range want.Revision + 1 {
			at, ok, err := x.At(s, rev)
			if want := m.at[fmt.Sprint(s, rev)]; at != want || !ok || err != nil {
				t.Fatalf("%s %d is at %d, %v, %v, want %d", s, rev, at, ok, err, want)
			}
		}
		if _, ok, err := x.At(s, want.Revision+1); ok || err != nil {
			t.Fatalf("%s has a revision beyond its head: %v", s, err)
		}
	}
	if h, _, err := x.Head("contract-nobody"); h != ledger.EmptyStream || err != nil {
		t.Fatalf("head of an unknown stream: %+v, %v", h, err)
	}
}

func openIndex(t *testing.T, dir string, table int) *Index {
	t.Helper()
	x, err := Open(Config{Dir: dir, Table: table, Every: time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// TestAgainstModel applies records in runs of random length, with tables so small that most entries
// have left memory, and opens the index again now and then.
func TestAgainstModel(t *testing.T) {
	for seed := range uint64(4) {
		rnd, m, dir := rand.New(rand.NewPCG(seed, 3)), newModel(), t.TempDir()
		for range 4 {
			x := openIndex(t, dir, 1+rnd.IntN(60))
			for range 10 {
				if err := x.Apply(m.grow(rnd, rnd.IntN(50))); err != nil {
					t.Fatal(err)
				}
			}
			m.check(t, x)
			if err := x.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestSince: an old answer is brought up to date, whether what came after it is still in memory,
// is being written, or has left.
func TestSince(t *testing.T) {
	rnd, m := rand.New(rand.NewPCG(1, 3)), newModel()
	x := openIndex(t, t.TempDir(), 20)
	defer x.Close()
	type seen struct {
		key    ledger.Key
		found  ledger.Found
		keyAt  Version
		stream string
		head   ledger.StreamHead
		headAt Version
	}
	var old []seen
	for range 60 {
		k := ledger.Key{ContractID: fmt.Sprint("c", rnd.IntN(7)), EventID: fmt.Sprint("e", rnd.IntN(5)), Sequence: rnd.Int64N(40)}
		s := seen{key: k, stream: k.Stream()}
		var err error
		if s.found, s.keyAt, err = x.Key(k); err != nil {
			t.Fatal(err)
		}
		if s.head, s.headAt, err = x.Head(s.stream); err != nil {
			t.Fatal(err)
		}
		old = append(old, s)
		if err := x.Apply(m.grow(rnd, rnd.IntN(20))); err != nil {
			t.Fatal(err)
		}
		for _, s := range old {
			got, err := x.KeySince(s.key, s.found, s.keyAt)
			if got != m.keys[s.key] || err != nil {
				t.Fatalf("%s as of %d is now %+v, %v, want %+v", s.key, s.keyAt, got, err, m.keys[s.key])
			}
			want, ok := m.heads[s.stream]
			if !ok {
				want = ledger.EmptyStream
			}
			if head, err := x.HeadSince(s.stream, s.head, s.headAt); head != want || err != nil {
				t.Fatalf("%s as of %d is now %+v, %v, want %+v", s.stream, s.headAt, head, err, want)
			}
		}
	}
}

// TestKilled copies the folder of a running index: what is in the copy is a prefix, and the cursor
// says which.
func TestKilled(t *testing.T) {
	rnd, m, dir := rand.New(rand.NewPCG(9, 3)), newModel(), t.TempDir()
	x := openIndex(t, filepath.Join(dir, "a"), 30)
	defer x.Close()
	if err := x.Apply(m.grow(rnd, 500)); err != nil {
		t.Fatal(err)
	}
	if err := x.db.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := x.Apply(m.grow(rnd, 500)); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "b"), os.DirFS(filepath.Join(dir, "a"))); err != nil {
		t.Fatal(err)
	}
	y := openIndex(t, filepath.Join(dir, "b"), 30)
	defer y.Close()
	cursor := y.Cursor()
	if cursor == 0 || int(cursor) > len(m.applied) {
		t.Fatalf("the copy's cursor is %d", cursor)
	}
	if err := y.Apply(m.applied[cursor:]); err != nil {
		t.Fatal(err)
	}
	m.check(t, y)
}

func FuzzDecode(f *testing.F) {
	f.Add(appendFound(nil, &ledger.Found{Generation: 3, Position: 9, RecordedAt: -1}))
	f.Add(appendHead(nil, ledger.EmptyStream))
	f.Fuzz(func(t *testing.T, b []byte) {
		if found, err := decodeFound(b); err == nil {
			if again, err := decodeFound(appendFound(nil, &found)); err != nil || again != found {
				t.Errorf("%+v becomes %+v, %v", found, again, err)
			}
		}
		for n := range uint64(4) {
			if at, ok, err := decodePosition(b, n); ok && err != nil {
				t.Errorf("position %d: %d and %v", n, at, err)
			}
		}
		if head, err := decodeHead(b); err == nil {
			if again, err := decodeHead(appendHead(nil, head)); err != nil || again != head {
				t.Errorf("%+v becomes %+v, %v", head, again, err)
			}
		}
	})
}

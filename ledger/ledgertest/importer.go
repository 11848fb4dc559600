package ledgertest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/talenttrust/auditledger/ledger"
)

// Reopener opens the same store again and again, to be imported into or to be used: each call closes what
// the one before returned.
type Reopener func(t *testing.T, toImport bool) (ledger.Importer, error)

// TestImporter runs the suite of stores that take over another one's ledger. newStore makes an empty store and
// returns how to open it.
func TestImporter(t *testing.T, newStore func(t *testing.T) Reopener) {
	past := Past(t)
	t.Run("whole", func(t *testing.T) {
		t.Parallel()
		testImport(t, newStore(t), past)
	})
	for _, c := range badPasts(past) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, newStore(t))
		})
	}
}

// Past is a ledger with every type of record, contracts that take turns, generations, odd names and texts.
func Past(t *testing.T) []ledger.Record {
	t.Helper()
	s := OpenMemory(NewBackend(), Faults{}, 1)
	hour, long := time.Hour.Milliseconds(), strings.Repeat("a@.-_", 51)
	own := func(typ ledger.Type, stream string, ms int64) *ledger.Entry {
		e := &ledger.Entry{Header: ledger.Header{V: ledger.Version, Type: typ, Stream: stream, Sequence: ledger.Absent, Timestamp: ledger.Absent, Generation: ledger.Absent, RecordedAt: Epoch.UnixMilli() + ms}}
		e.Body = ledger.Body{Supersedes: ledger.Absent, Counts: []ledger.Count{{Stream: "contract-lamp-0", Revision: 0, Count: 3, LastSeen: 9}}}
		e.Seal()
		return e
	}
	odd := Event(key("@.-_", "..", ledger.MaxInteger), `{"":"\u001f \" <&>é","n":9.007199254740993e+15}`, 1)
	odd.Body.Signature, odd.Body.ChatJID, odd.Body.Sanitized, odd.Body.SequencePolicy = "s\"\n", "чат@g.us", true, ledger.SequenceFree
	odd.Header.Timestamp = ledger.Absent
	odd.Seal()
	mustAppend(t, s, odd, Event(key(long, long, 0), `[]`, 2), Rejected("\u2028 <&> \"quoted\" \u0001", 3))
	for i := range int64(60) {
		mustAppend(t, s, Event(key(fmt.Sprint("lamp-", i%3), fmt.Sprint("e", i), i), fmt.Sprintf(`{"i":%d}`, i), i))
		if i%20 == 0 {
			mustAppend(t, s, Rejected("why", i), own(ledger.DuplicatesCounted, "duplicates-suite", i), own(ledger.AccessRecorded, "access-suite", i))
		}
	}
	for i := range int64(150) { // a run that goes into more than one append
		mustAppend(t, s, Event(key("run", fmt.Sprint("e", i), i), `{"x":"`+strings.Repeat("x", 10_000)+`"}`, i))
	}
	mustAppend(t, s, Event(key("lamp-0", "e0", 0), `{"again":1}`, 2*hour), Event(key("lamp-0", "e0", 0), `{"again":2}`, 4*hour), Event(key("lamp-1", "last", 99), `{}`, 4*hour))
	return ReadAll(t, s)
}

// texts are the records as they stand in an export.
func texts(records []ledger.Record) (all []string) {
	for i := range records {
		all = append(all, string(records[i].AppendJSON(nil)))
	}
	return all
}

func mustImport(t *testing.T, s ledger.Importer, records []ledger.Record) {
	t.Helper()
	if n, err := s.Import(ctx(t), records); err != nil || n != len(records) {
		t.Fatalf("import %d records: %d are stored, %v", len(records), n, err)
	}
}

func testImport(t *testing.T, open Reopener, past []ledger.Record) {
	must := func(toImport bool) ledger.Importer {
		t.Helper()
		s, err := open(t, toImport)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := must(true)
	if head, err := s.Head(ctx(t)); head != 0 || err != nil {
		t.Fatalf("a store that was opened to import has its head at %d, %v; want none", head, err)
	}
	half := len(past) / 2
	mustImport(t, s, past[:1])
	for lot := range slices.Chunk(past[1:half], 7) {
		mustImport(t, s, lot)
	}
	if _, err := s.Append(ctx(t), []*ledger.Entry{Event(key("c", "e", 1), `{}`, 0)}); !errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("append meanwhile: got %v, want %v", err, ledger.ErrUnavailable)
	}
	if _, err := open(t, false); !errors.Is(err, ledger.ErrUnfinished) {
		t.Fatalf("open half a ledger: got %v, want %v", err, ledger.ErrUnfinished)
	}
	s = must(true)
	if d := cmp.Diff(texts(past[:half]), texts(ReadAll(t, s))); d != "" {
		t.Fatalf("half of the records (-want +got):\n%s", d)
	}
	mustImport(t, s, past[half:])
	if err := s.Finish(ctx(t)); err != nil {
		t.Fatal(err)
	}
	s = must(false)
	if d := cmp.Diff(texts(past), texts(ReadAll(t, s))); d != "" {
		t.Fatalf("the records (-want +got):\n%s", d)
	}
	if v, err := ledger.Verify(ctx(t), s, 0, nil); err != nil || v.Records != int64(len(past)) {
		t.Errorf("verify: %d records, %v", v.Records, err)
	}
	if _, err := s.Import(ctx(t), past[:1]); !errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("import into a ledger in use: got %v, want %v", err, ledger.ErrUnavailable)
	}
	o := mustAppend(t, s, Event(key("lamp-2", "e5", 5), `{"i":5}`, 9), Event(key("lamp-2", "e5", 5), `{"i":6}`, 9), Event(key("lamp-2", "new", 100), `{}`, 9))
	wantVerdicts(t, o, ledger.Duplicate, ledger.Conflict, ledger.Accepted)
	if o[0].Revision != 1 || o[1].Revision != 1 || o[2].Revision != 20 {
		t.Errorf("revisions %d, %d and %d, want 1, 1 and 20", o[0].Revision, o[1].Revision, o[2].Revision)
	}
}

// badPast is records that are no ledger.
type badPast struct {
	name    string
	records []ledger.Record
	bad     int    // index of the first that cannot be where it is
	says    string // of it
}

func badPasts(past []ledger.Record) []badPast {
	forged := func(i int, change func(*ledger.Header)) []ledger.Record {
		list := slices.Clone(past)
		change(&list[i].Header)
		list[i].Leaf = list[i].Header.LeafHash()
		return list
	}
	at := slices.IndexFunc(past, func(r ledger.Record) bool { return r.Header.Stream == "contract-lamp-1" && r.Header.Revision == 2 })
	next := at + 1 + slices.IndexFunc(past[at+1:], func(r ledger.Record) bool { return r.Header.Stream == "contract-lamp-1" })
	swapped := slices.Clone(past)
	swapped[at], swapped[next] = swapped[next], swapped[at]
	return []badPast{
		{"no first record", past[1:], 0, "begins with a record of type LedgerCreated"},
		{"another beginning", slices.Insert(slices.Clone(past), 2, past[0]), 2, "revision 0 of stream ledger, where revision 1"},
		{"reordered", swapped, at, "revision 3 of stream contract-lamp-1, where revision 2"},
		{"removed", slices.Delete(slices.Clone(past), at, at+1), next - 1, "revision 3 of stream contract-lamp-1, where revision 2"},
		{"twice", slices.Insert(slices.Clone(past), next, past[at]), next, "revision 2 of stream contract-lamp-1, where revision 3"},
		{"prev", forged(next, func(h *ledger.Header) { h.Prev[0]++ }), next, "prev does not name"},
		{"clock", forged(next, func(h *ledger.Header) { h.RecordedAt = 5 }), next, "clock is behind"},
		{"generation", forged(next, func(h *ledger.Header) { h.Generation = 2 }), next, "generation 2 of its key, where 1"},
		{"old generation", forged(len(past)-2, func(h *ledger.Header) { h.Generation = 2 }), len(past) - 2, "generation 2 of its key, where 3"},
	}
}

// test imports the records: what comes before the bad one is stored, and nothing else.
func (c *badPast) test(t *testing.T, open Reopener) {
	s, err := open(t, true)
	if err != nil {
		t.Fatal(err)
	}
	n, err := s.Import(ctx(t), c.records)
	if n != c.bad || err == nil || !strings.Contains(err.Error(), c.says) {
		t.Fatalf("%d are stored, %v; want %d, and an error that says %q", n, err, c.bad, c.says)
	}
	if d := cmp.Diff(texts(c.records[:n]), texts(ReadAll(t, s))); d != "" {
		t.Errorf("what came before (-want +got):\n%s", d)
	}
}

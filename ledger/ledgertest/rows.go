package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/ledger"
)

// The conformance table of an append-only server with expected revisions, through the port of a Store. The
// numbers are the table's. On the wire a row says at which revision something is sent; the port has
// no such thing, it decides, so that a row here says which events are stored before, which are
// appended then, and what becomes of each: +n is accepted as revision n, =n a duplicate of revision n.
// Small letters are events of the contract lamp-7, capital ones of lamp-8.
var decisionRows = []struct {
	row             int
	given, do, want string
}{
	{1, "", "a", "+0"},
	{3, "", "a", "+0"},
	{5, "a", "b", "+1"},
	{6, "a", "b", "+1"},
	{7, "a", "b", "+1"},
	{8, "abc", "d", "+3"},
	{11, "abc", "d", "+3"},
	{12, "", "abc", "+0 +1 +2"},
	{13, "a", "B", "+0"},
	{18, "abc", "abc", "=0 =1 =2"},
	{19, "abc", "ab", "=0 =1"},
	{20, "abc", "a", "=0"},
	{21, "abc", "bc", "=1 =2"},
	{22, "abc", "b", "=1"},
	{23, "abc", "c", "=2"},
	{24, "abc", "abcd", "=0 =1 =2 +3"},
	{25, "abc", "cd", "=2 +3"},
	{26, "abc", "axc", "=0 +3 =2"},
	{27, "abc", "xbc", "+3 =1 =2"},
	{28, "abc", "b", "=1"},
	{29, "abc", "c", "=2"},
	{30, "abc", "cbaacb", "=2 =1 =0 =0 =2 =1"},
	{33, "abc", "a", "=0"},
	{34, "abcde", "abc", "=0 =1 =2"},
	{35, "abcde", "de", "=3 =4"},
	{37, "a", "AA", "+0 =0"},
	{38, "abc", strings.Repeat("abc", 200), strings.TrimSpace(strings.Repeat("=0 =1 =2 ", 200))},
	{39, "abc", "dd", "+3 =3"},
	{40, "abc", "d", "+3"},
	{41, "abc", "ded", "+3 +4 =3"},
	{42, "abc", "ed", "+3 +4"},
}

// Rows that read, follow, or append from several sides.
var otherRows = map[int]func(*testing.T, Opener){
	14: rowWriters, 17: rowTwoPayloads,
	65: rowStream("", 0, false, ""), 66: rowStream("abcde", 1, false, "b c d e"), 67: rowStream("abcde", 5, false, ""), 68: rowStream("abcde", 4, true, "e d c b a"),
	69: rowStream("abcde", 3, true, "d c b a"), 70: rowStream("abcde", 99, true, "e d c b a"), 72: rowPages,
	73: rowFollow("abC", 0, "abC"), 76: rowHead, 78: rowFollow("abCd", 3, "d"), 79: rowEmpty, 82: rowPositions,
	83: rowLive, 84: rowFollow("abc", 2, "c"), 89: rowFollow("abc", 3, ""), 90: rowResumed, 91: rowChangeOver, 92: rowCancelled, 95: rowSlow,
	100: rowLarge, 101: rowLongName, 102: rowNothing,
}

// Rows of which nothing is to be seen through the port of a sound store, and where they are tested.
var elsewhere = map[int]string{
	80: "data is JSON always; TestStore, hostile, has the bytes", 81: "data is JSON always; TestStore, hostile, has the bytes",
	93: "a server that stops: package eventstore", 96: "a position beyond the head: TestStore, following; a restored server: package eventstore",
	103: "package eventstore", 104: "package eventstore", 105: "package eventstore", 106: "package eventstore", 107: "package eventstore", 108: "package eventstore",
	109: "package eventstore", 110: "package eventstore", 111: "package eventstore", 112: "package eventstore", 113: "package eventstore", 114: "package eventstore", 115: "package eventstore",
}

// portRows is how many rows of the table say something of a Store.
const portRows = 72

// TestRows runs the rows of the conformance table that hold for every Store.
func TestRows(t *testing.T, newLedger func(t *testing.T) Opener) {
	if n := len(decisionRows) + len(otherRows) + len(elsewhere); n != portRows {
		t.Errorf("%d rows, want %d", n, portRows)
	}
	for _, r := range decisionRows {
		t.Run(strconv.Itoa(r.row), func(t *testing.T) {
			t.Parallel()
			rowDecisions(t, newLedger(t), r.given, r.do, r.want)
		})
	}
	for row, test := range otherRows {
		t.Run(strconv.Itoa(row), func(t *testing.T) {
			t.Parallel()
			test(t, newLedger(t))
		})
	}
	for row, where := range elsewhere {
		if _, twice := otherRows[row]; twice {
			t.Errorf("row %d is run here and elsewhere (%s)", row, where)
		}
	}
}

// letter is the event that a letter stands for.
func letter(c rune) *ledger.Entry {
	contract, lower := "lamp-7", strings.ToLower(string(c))
	if lower != string(c) {
		contract = "lamp-8"
	}
	return Event(key(contract, lower, 0), `{"k":"`+lower+`"}`, 0)
}

func letters(s string) (entries []*ledger.Entry) {
	for _, c := range s {
		entries = append(entries, letter(c))
	}
	return entries
}

// given appends letters one by one, so that their order in the ledger is theirs.
func given(t *testing.T, s ledger.Store, events string) (o []ledger.Outcome) {
	t.Helper()
	for _, e := range letters(events) {
		o = append(o, mustAppend(t, s, e)...)
	}
	return o
}

// named is which letter a record is; the ledger's first has none.
func named(r *ledger.Record) string {
	if r.Header.ContractID == "lamp-8" {
		return strings.ToUpper(r.Header.EventID)
	}
	return r.Header.EventID
}

// said writes outcomes as the table does.
func said(outcomes []ledger.Outcome) string {
	signs := map[ledger.Verdict]string{ledger.Accepted: "+", ledger.Duplicate: "=", ledger.Conflict: "!", ledger.Refused: "-"}
	var all []string
	for _, o := range outcomes {
		all = append(all, signs[o.Verdict]+strconv.FormatInt(o.Revision, 10))
	}
	return strings.Join(all, " ")
}

// rowDecisions also holds that accepted records stand in order, that duplicates have the position of
// the first, and that all of it is a duplicate after a restart, when nothing is stored any more.
func rowDecisions(t *testing.T, open Opener, before, do, want string) {
	s := open(t)
	given(t, s, before)
	o := mustAppend(t, s, letters(do)...)
	if got := said(o); got != want {
		t.Errorf("%q, then %q: got %s, want %s", before, do, got, want)
	}
	all := ReadAll(t, s)
	at := map[string]ledger.Position{}
	for i := range all {
		at[named(&all[i])] = all[i].Position
	}
	for i, c := range do {
		if o[i].Position != at[string(c)] {
			t.Errorf("%c is answered to be at %d, it is at %d", c, o[i].Position, at[string(c)])
		}
	}
	s = open(t)
	if got, want := said(mustAppend(t, s, letters(do)...)), strings.ReplaceAll(want, "+", "="); got != want {
		t.Errorf("after a restart: got %s, want %s", got, want)
	}
	if n := len(ReadAll(t, s)); n != len(all) {
		t.Errorf("%d records after a restart, want %d", n, len(all))
	}
}

func rowWriters(t *testing.T, open Opener) {
	s := open(t)
	var wg sync.WaitGroup
	revisions := make([]int64, 16)
	for i := range revisions {
		wg.Go(func() {
			revisions[i] = mustAppend(t, s, Event(key("lamp-7", fmt.Sprint("w", i), 0), `{}`, 0))[0].Revision
		})
	}
	wg.Wait()
	seen := map[int64]bool{}
	for _, r := range revisions {
		seen[r] = true
	}
	if len(seen) != 16 || !seen[0] || !seen[15] {
		t.Errorf("16 writers have the revisions %v, want each of 0 to 15 once", revisions)
	}
	ReadAll(t, s)
}

func rowTwoPayloads(t *testing.T, open Opener) {
	s := open(t)
	given(t, s, "a")
	var o [2]ledger.Outcome
	var wg sync.WaitGroup
	for i := range o {
		wg.Go(func() { o[i] = mustAppend(t, s, Event(key("lamp-7", "b", 0), fmt.Sprintf(`{"payload":%d}`, i), 0))[0] })
	}
	wg.Wait()
	if o[0].Verdict == ledger.Conflict {
		o[0], o[1] = o[1], o[0]
	}
	if o[0].Verdict != ledger.Accepted || o[1].Verdict != ledger.Conflict || o[1].First.Position != o[0].Position {
		t.Errorf("got %s, want one accepted and the other in conflict with it", said(o[:]))
	}
}

func rowStream(events string, from int64, backwards bool, want string) func(*testing.T, Opener) {
	return func(t *testing.T, open Opener) {
		s := open(t)
		given(t, s, events)
		var got []string
		for r, err := range s.Stream(ctx(t), "contract-lamp-7", from, backwards) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, named(&r))
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s from %d, backwards %v: got %q, want %q", events, from, backwards, text, want)
		}
	}
}

func rowPages(t *testing.T, open Opener) {
	s := open(t)
	var entries []*ledger.Entry
	for i := range int64(400) {
		entries = append(entries, Event(key("lamp-7", fmt.Sprint("e", i), i), `{}`, i))
	}
	mustAppend(t, s, entries...)
	for _, backwards := range []bool{false, true} {
		n := int64(0)
		for r, err := range s.Stream(ctx(t), "contract-lamp-7", map[bool]int64{false: 0, true: 399}[backwards], backwards) {
			if want := map[bool]int64{false: n, true: 399 - n}[backwards]; err != nil || r.Header.Revision != want {
				t.Fatalf("backwards %v: got revision %d, %v, want %d", backwards, r.Header.Revision, err, want)
			}
			n++
		}
		if n != 400 {
			t.Errorf("backwards %v: %d records, want 400", backwards, n)
		}
	}
}

// follow reads n records behind a position.
func follow(t *testing.T, s ledger.Reader, after ledger.Position, n int) (all []ledger.Record) {
	t.Helper()
	if n == 0 {
		return nil
	}
	for batch, err := range s.Follow(ctx(t), after) {
		if err != nil {
			t.Fatal(err)
		}
		if all = append(all, batch.Records...); len(all) >= n {
			break
		}
	}
	return all
}

// rowFollow follows from behind the n-th event, 0 being before the ledger's first record.
func rowFollow(events string, n int, want string) func(*testing.T, Opener) {
	return func(t *testing.T, open Opener) {
		s := open(t)
		o := given(t, s, events)
		after, first := ledger.Position(0), 1
		if n > 0 {
			after, first = o[n-1].Position, 0
		}
		got := ""
		for _, r := range follow(t, s, after, len(want)+first) {
			got += named(&r)
		}
		if got != want {
			t.Errorf("%s from behind %d: got %q, want %q", events, n, got, want)
		}
		later := given(t, s, "z")[0]
		last := after
		if len(o) > 0 {
			last = o[len(o)-1].Position
		}
		if r := follow(t, s, last, 1); r[0].Position != later.Position {
			t.Errorf("what comes next is at %d, want %d", r[0].Position, later.Position)
		}
	}
}

func rowHead(t *testing.T, open Opener) {
	s := open(t)
	o := given(t, s, "abCD")
	if head, err := s.Head(ctx(t)); err != nil || head != o[3].Position {
		t.Errorf("got head %d, %v, want %d", head, err, o[3].Position)
	}
}

func rowEmpty(t *testing.T, open Opener) {
	s := open(t)
	e := &ledger.Entry{Header: ledger.Header{V: ledger.Version, Type: ledger.AccessRecorded, Stream: "access-suite", Sequence: ledger.Absent, Timestamp: ledger.Absent, Generation: ledger.Absent}}
	e.Body.Supersedes = ledger.Absent
	e.Seal()
	o := mustAppend(t, s, e)
	recs, err := s.Read(ctx(t), []ledger.Position{o[0].Position})
	if err != nil || recs[0].Header.Type != ledger.AccessRecorded || recs[0].Body.Payload != nil || recs[0].Leaf != o[0].Leaf {
		t.Errorf("a record with an empty body is read as %+v, %v", recs, err)
	}
}

// rowPositions: an event has the same position wherever it is met.
func rowPositions(t *testing.T, open Opener) {
	s := open(t)
	o := given(t, s, "aBcD")
	for i, r := range follow(t, s, 0, 5)[1:] {
		if r.Position != o[i].Position {
			t.Errorf("followed event %d is at %d, was answered to be at %d", i, r.Position, o[i].Position)
		}
		for again, err := range s.Stream(ctx(t), r.Header.Stream, r.Header.Revision, false) {
			if err != nil || again.Position != r.Position {
				t.Errorf("event %d is at %d in its stream, %v, and at %d in the ledger", i, again.Position, err, r.Position)
			}
			break
		}
		if recs, err := s.Read(ctx(t), []ledger.Position{r.Position}); err != nil || recs[0].Position != r.Position || recs[0].Leaf != r.Leaf {
			t.Errorf("event %d read by its position: %v", i, err)
		}
	}
}

func rowLive(t *testing.T, open Opener) {
	s := open(t)
	given(t, s, "abc")
	next, got := "def", ""
	for batch, err := range s.Follow(ctx(t), 0) {
		if err != nil {
			t.Fatal(err)
		}
		for i := range batch.Records {
			got += named(&batch.Records[i])
		}
		if batch.Behind == 0 && next != "" {
			given(t, s, next[:1])
			next = next[1:]
		}
		if len(got) >= 6 {
			break
		}
	}
	if got != "abcdef" {
		t.Errorf("got %q, want abcdef", got)
	}
}

func many(t *testing.T, s ledger.Store, contract string, from, n int64) {
	t.Helper()
	var entries []*ledger.Entry
	for i := from; i < from+n; i++ {
		entries = append(entries, Event(key(contract, fmt.Sprint("e", i), i), `{}`, i))
	}
	mustAppend(t, s, entries...)
}

func rowResumed(t *testing.T, open Opener) {
	s := open(t)
	many(t, s, "lamp-7", 0, 500)
	var all []ledger.Record
	at := ledger.Position(0)
	for len(all) < 501 {
		recs := follow(t, s, at, 1)
		recs = recs[:min(len(recs), 130)] // the rest is thrown away with the subscription
		all, at = append(all, recs...), recs[len(recs)-1].Position
	}
	CheckChains(t, all)
	if len(all) != 501 {
		t.Errorf("%d records over all, want 501", len(all))
	}
}

func rowChangeOver(t *testing.T, open Opener) {
	s := open(t)
	many(t, s, "lamp-7", 0, 300)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range int64(60) {
			many(t, s, "lamp-8", 5*i, 5)
		}
	})
	CheckChains(t, follow(t, s, 0, 601))
	wg.Wait()
}

func rowCancelled(t *testing.T, open Opener) {
	s := open(t)
	c, cancel := context.WithCancel(ctx(t))
	defer cancel()
	var ended time.Time
	for _, err := range s.Follow(c, 0) {
		if err == nil {
			ended = time.Now()
			cancel()
		} else if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the end of the context", err)
		}
	}
	if took := time.Since(ended); took > time.Second {
		t.Errorf("it took %s to end", took)
	}
}

func rowSlow(t *testing.T, open Opener) {
	s := open(t)
	var all []ledger.Record
	for batch, err := range s.Follow(ctx(t), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == 0 {
			many(t, s, "lamp-7", 0, 200)
		}
		if all = append(all, batch.Records...); len(all) == 201 {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	CheckChains(t, all)
}

// rowLarge: what goes into no one write is divided, and all of it is stored.
func rowLarge(t *testing.T, open Opener) {
	s := open(t)
	var entries []*ledger.Entry
	for i := range int64(250) {
		entries = append(entries, Event(key("lamp-7", fmt.Sprint("e", i), i), `{"x":"`+strings.Repeat("x", 20_000)+`"}`, i))
	}
	for i, o := range mustAppend(t, s, entries...) {
		if o.Verdict != ledger.Accepted || o.Revision != int64(i) {
			t.Errorf("entry %d: %+v", i, o)
		}
	}
	if n := len(ReadAll(t, s)); n != 251 {
		t.Errorf("%d records, want 251", n)
	}
}

func rowLongName(t *testing.T, open Opener) {
	s := open(t)
	k := key(strings.Repeat("a@._-", 51), strings.Repeat("-.@_z", 51), ledger.MaxInteger)
	o := mustAppend(t, s, Event(k, `{}`, 0))
	for r, err := range s.Stream(ctx(t), k.Stream(), 0, true) {
		if err != nil || r.Header.Key() != k || r.Position != o[0].Position {
			t.Errorf("got %s at %d, %v", r.Header.Key(), r.Position, err)
		}
	}
}

// rowNothing: what asks for nothing does nothing, and the same event twice in a call is one.
func rowNothing(t *testing.T, open Opener) {
	s := open(t)
	if o, err := s.Append(ctx(t), nil); err != nil || len(o) != 0 {
		t.Errorf("append nothing: %v, %v", o, err)
	}
	if f, err := s.Find(ctx(t), nil); err != nil || len(f) != 0 {
		t.Errorf("find nothing: %v, %v", f, err)
	}
	if r, err := s.Read(ctx(t), nil); err != nil || len(r) != 0 {
		t.Errorf("read nothing: %v, %v", r, err)
	}
	if got := said(mustAppend(t, s, letters("aa")...)); got != "+0 =0" {
		t.Errorf("one event twice: got %s", got)
	}
	if n := len(ReadAll(t, s)); n != 2 {
		t.Errorf("%d records, want 2", n)
	}
}

// Package ledgertest holds what every implementation of ledger.Store must pass, and a small store in
// memory that works as instances in front of a cluster do, to prove that the suite and the port are
// not shaped by one implementation.
package ledgertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/canonical"
)

// Epoch is the moment at which tests happen, unless they say otherwise.
var Epoch = time.UnixMilli(1767225600000) // 2026-01-01T00:00:00Z

// Opener opens the same ledger again and again: each call closes what the one before returned.
type Opener func(t *testing.T) ledger.Store

// TestStore runs the suite. newLedger starts an empty ledger and returns how to open it.
func TestStore(t *testing.T, newLedger func(t *testing.T) Opener) {
	run(t, newLedger, map[string]func(*testing.T, Opener){
		"creation":      testCreation,
		"decisions":     testDecisions,
		"generations":   testGenerations,
		"verdict order": testVerdictOrder,
		"clock":         testClock,
		"hostile":       testHostile,
		"reading":       testReading,
		"following":     testFollowing,
	})
	TestRaces(t, newLedger)
}

// TestRaces is the part of the suite that also holds while writers unknown to it append to the same
// streams, the same events included.
func TestRaces(t *testing.T, newLedger func(t *testing.T) Opener) {
	run(t, newLedger, map[string]func(*testing.T, Opener){
		"copies": testCopies,
		"rivals": testRivals,
		"random": testRandom,
	})
}

func run(t *testing.T, newLedger func(t *testing.T) Opener, tests map[string]func(*testing.T, Opener)) {
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newLedger(t))
		})
	}
}

// Event makes the entry of an event with the given payload, canonical JSON, sent ms milliseconds
// after Epoch and bound for an hour.
func Event(key ledger.Key, payload string, ms int64) *ledger.Entry {
	e := &ledger.Entry{Window: time.Hour.Milliseconds()}
	at := Epoch.UnixMilli() + ms
	e.Header = ledger.Header{
		V: ledger.Version, Type: ledger.EventAccepted, Stream: key.Stream(), ContractID: key.ContractID, EventID: key.EventID,
		Sequence: key.Sequence, ContractType: "test_contract", Timestamp: at, Generation: 1, RecordedAt: at, Source: "suite",
	}
	e.Body = ledger.Body{Payload: []byte(payload), PayloadHash: sumOf([]byte(payload)), RawHash: sumOf([]byte("raw" + payload)), Supersedes: ledger.Absent, CorrelationID: "suite-1"}
	e.Body.Salt[0] = byte(ms)
	e.Seal()
	return e
}

// Rejected makes the entry of a refused event without usable ids.
func Rejected(reason string, ms int64) *ledger.Entry {
	e := &ledger.Entry{Header: ledger.Header{
		V: ledger.Version, Type: ledger.EventRejected, Stream: "rejections-suite", Sequence: ledger.Absent, Timestamp: ledger.Absent,
		Generation: ledger.Absent, RecordedAt: Epoch.UnixMilli() + ms, Source: "suite", Code: ledger.CodeInvalidEvent,
	}}
	e.Body = ledger.Body{RawHash: sumOf([]byte(reason)), Supersedes: ledger.Absent, Reason: reason, Errors: []ledger.FieldError{{Path: "/contractId", Message: "is required"}}}
	e.Seal()
	return e
}

func sumOf(b []byte) ledger.Hash { return canonical.Sum(b) }

func key(contract, event string, sequence int64) ledger.Key {
	return ledger.Key{ContractID: contract, EventID: event, Sequence: sequence}
}

func ctx(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return c
}

func mustAppend(t *testing.T, s ledger.Store, entries ...*ledger.Entry) []ledger.Outcome {
	t.Helper()
	outcomes, err := s.Append(ctx(t), entries)
	if err != nil {
		t.Fatalf("append %d entries: %v", len(entries), err)
	}
	if len(outcomes) != len(entries) {
		t.Fatalf("append %d entries: got %d outcomes", len(entries), len(outcomes))
	}
	return outcomes
}

func wantVerdicts(t *testing.T, outcomes []ledger.Outcome, want ...ledger.Verdict) {
	t.Helper()
	var got []ledger.Verdict
	for _, o := range outcomes {
		got = append(got, o.Verdict)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("verdicts (-want +got):\n%s", d)
	}
}

// ReadAll returns every record of the ledger in order, and checks that each stream is an unbroken chain.
func ReadAll(t *testing.T, s ledger.Reader) []ledger.Record {
	t.Helper()
	head, err := s.Head(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	var all []ledger.Record
	if head == 0 {
		return nil
	}
	for batch, err := range s.Follow(ctx(t), 0) {
		if err != nil {
			t.Fatalf("follow: %v", err)
		}
		all = append(all, batch.Records...)
		if all[len(all)-1].Position >= head {
			break
		}
	}
	CheckChains(t, all)
	return all
}

// CheckChains checks, for records in ledger order, positions, revisions, clocks, every hash and prev.
func CheckChains(t *testing.T, all []ledger.Record) {
	t.Helper()
	heads := map[string]ledger.StreamHead{}
	var before ledger.Position
	for i := range all {
		r := &all[i]
		head, ok := heads[r.Header.Stream]
		if !ok {
			head = ledger.EmptyStream
		}
		if r.Position <= before {
			t.Fatalf("position %d follows %d", r.Position, before)
		}
		if r.Header.Revision != head.Revision+1 || r.Header.RecordedAt < head.RecordedAt {
			t.Fatalf("%s: revision %d at %d follows revision %d at %d", r.Header.Stream, r.Header.Revision, r.Header.RecordedAt, head.Revision, head.RecordedAt)
		}
		if err := r.Check(head.Leaf); err != nil {
			t.Fatalf("position %d: %v", r.Position, err)
		}
		heads[r.Header.Stream], before = head.After(r), r.Position
	}
}

func testCreation(t *testing.T, open Opener) {
	s := open(t)
	first := ReadAll(t, s)
	if len(first) != 1 || first[0].Header.Type != ledger.LedgerCreated || first[0].Header.Stream != ledger.LedgerStream {
		t.Fatalf("a new ledger holds %v, want one LedgerCreated", first)
	}
	id, err := ledger.ID(ctx(t), s)
	if err != nil {
		t.Fatal(err)
	}
	s = open(t)
	if again, err := ledger.ID(ctx(t), s); err != nil || again != id {
		t.Fatalf("the ledger's id is %q (%v) after a restart, was %q", again, err, id)
	}
	if n := len(ReadAll(t, s)); n != 1 {
		t.Fatalf("%d records after a restart, want 1", n)
	}
}

func testDecisions(t *testing.T, open Opener) {
	s := open(t)
	k := key("led-9", "ev-4", 7)
	o := mustAppend(t, s, Event(k, `{"a":1}`, 0), Event(k, `{"a":1}`, 1), Event(k, `{"a":2}`, 2), Event(key("led-9", "ev-4", 8), `{"a":1}`, 3))
	wantVerdicts(t, o, ledger.Accepted, ledger.Duplicate, ledger.Conflict, ledger.Accepted)
	for i, want := range []int64{0, 0, 0, 1} {
		if o[i].Revision != want {
			t.Errorf("entry %d: revision %d, want %d", i, o[i].Revision, want)
		}
	}
	if o[1].Position != o[0].Position || o[2].First.Position != o[0].Position || o[3].Position <= o[0].Position {
		t.Errorf("positions %d %d %d %d", o[0].Position, o[1].Position, o[2].First.Position, o[3].Position)
	}
	for range 2 { // before and after a restart
		again := mustAppend(t, s, Event(k, `{"a":1}`, 10), Event(k, `{"a":2}`, 11))
		wantVerdicts(t, again, ledger.Duplicate, ledger.Conflict)
		if again[0].Position != o[0].Position || again[0].First.RecordedAt != o[0].RecordedAt || !again[1].First.PayloadHash.Equal(sumOf([]byte(`{"a":1}`))) {
			t.Errorf("the repeat refers to %+v, want the first, %+v", again[0].First, o[0])
		}
		found, err := s.Find(ctx(t), []ledger.Key{k, key("led-9", "ev-4", 9)})
		if err != nil || !found[0].Known() || found[0].Position != o[0].Position || found[1].Known() {
			t.Errorf("find: %+v, %v", found, err)
		}
		s = open(t)
	}
	if all := ReadAll(t, s); len(all) != 3 {
		t.Errorf("%d records, want 3", len(all))
	}
}

func testGenerations(t *testing.T, open Opener) {
	s := open(t)
	k, hour := key("led-9", "ev-4", 7), time.Hour.Milliseconds()
	o := mustAppend(t, s, Event(k, `{"a":1}`, 0), Event(k, `{"a":1}`, hour-1), Event(k, `{"a":2}`, hour), Event(k, `{"a":2}`, hour+1), Event(k, `{"a":1}`, 2*hour-1))
	wantVerdicts(t, o, ledger.Accepted, ledger.Duplicate, ledger.Accepted, ledger.Duplicate, ledger.Conflict)
	if o[2].Generation != 2 || o[3].Generation == 1 {
		t.Errorf("generations %d, %d", o[2].Generation, o[3].Generation)
	}
	s = open(t)
	forever := Event(k, `{"a":2}`, 2*hour)
	forever.Window = 0
	forever.Seal()
	wantVerdicts(t, mustAppend(t, s, forever, Event(k, `{"a":2}`, 1000*hour)), ledger.Accepted, ledger.Duplicate)
	var got []string
	for _, r := range ReadAll(t, s)[1:] {
		got = append(got, fmt.Sprint(r.Header.Generation, r.Body.Supersedes, r.Body.PayloadChanged, r.Body.BoundUntil-r.Header.RecordedAt))
	}
	want := []string{fmt.Sprint(1, ledger.Absent, false, hour), fmt.Sprint(2, 0, true, hour), fmt.Sprint(3, 1, false, -Epoch.UnixMilli()-2*hour)}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("generation, supersedes, payloadChanged, window (-want +got):\n%s", d)
	}
}

func testVerdictOrder(t *testing.T, open Opener) {
	s := open(t)
	k := key("led-9", "ev-4", 7)
	invalid, old := &ledger.Rejection{Code: ledger.CodeInvalidPayload}, &ledger.Rejection{Code: ledger.CodeTooOld}
	with := func(payload string, ms int64, inv, age *ledger.Rejection) *ledger.Entry {
		e := Event(k, payload, ms)
		e.Invalid, e.OutOfTime = inv, age
		return e
	}
	hour := time.Hour.Milliseconds()
	o := mustAppend(t, s,
		with(`{}`, 0, invalid, old), with(`{}`, 0, nil, old), // never seen: schema, then age
		with(`{}`, 0, nil, nil), with(`{}`, 1, invalid, old), // a known key with the same payload is a duplicate whatever else
		with(`{"x":1}`, 2, invalid, old), with(`{"x":1}`, 3, nil, old), // another payload: schema, then conflict
		with(`{}`, hour, invalid, old), with(`{}`, hour, nil, old)) // after the window: schema; age does not matter
	wantVerdicts(t, o, ledger.Refused, ledger.Refused, ledger.Accepted, ledger.Duplicate, ledger.Refused, ledger.Conflict, ledger.Refused, ledger.Accepted)
	for i, want := range map[int]*ledger.Rejection{0: invalid, 1: old, 4: invalid, 6: invalid} {
		if o[i].Rejection != want {
			t.Errorf("entry %d: refused as %+v, want %s", i, o[i].Rejection, want.Code)
		}
	}
}

func testClock(t *testing.T, open Opener) {
	s := open(t)
	o := mustAppend(t, s, Event(key("c", "a", 1), `{}`, 5000), Event(key("c", "b", 2), `{}`, 1000), Event(key("d", "b", 2), `{}`, 1000))
	s = open(t)
	o = append(o, mustAppend(t, s, Event(key("c", "d", 3), `{}`, 2000), Event(key("c", "e", 4), `{}`, 6000))...)
	for i, want := range []int64{5000, 5000, 1000, 5000, 6000} {
		if got := o[i].RecordedAt - Epoch.UnixMilli(); got != want {
			t.Errorf("entry %d is recorded at %d, want %d", i, got, want)
		}
	}
	ReadAll(t, s)
}

// limited is a Store that refuses records above a size: bytes of their JSON form.
type limited interface{ MaxRecord() int }

func testHostile(t *testing.T, open Opener) {
	s := open(t)
	large := 4 << 20
	if l, ok := s.(limited); ok {
		large = l.MaxRecord() - 2000
		over := Event(key("big", "over", 1), `{"x":"`+strings.Repeat("x", l.MaxRecord())+`"}`, 3)
		o := mustAppend(t, s, over, Event(key("big", "beside", 2), `{}`, 3))
		if wantVerdicts(t, o, ledger.Refused, ledger.Accepted); o[0].Rejection.Code != ledger.CodePayloadTooLarge {
			t.Errorf("a record that is too large is refused as %+v", o[0].Rejection)
		}
	}
	before := len(ReadAll(t, s))
	long := strings.Repeat("a@.-_", 51)
	entries := []*ledger.Entry{
		Event(key("-", "-", 0), `{}`, 0),
		Event(key("@.-_", "..", ledger.MaxInteger), `{"":""}`, 1),
		Event(key(long, long, 1), `[]`, 2),
		Event(key("big", "4MiB", 1), `{"x":"`+strings.Repeat("é�\U0001F600", large/9)+`"}`, 3),
		Rejected("\u2028 <&> \"quoted\" \\ \u0001 "+strings.Repeat("x", 70_000), 4),
		Rejected("", 5),
	}
	entries[1].Body.Signature, entries[1].Body.ChatJID, entries[1].Body.Traceparent = "s\"\n", "чат@g.us", "00-a-b-01"
	entries[1].Body.Sanitized, entries[1].Body.SequencePolicy = true, ledger.SequenceFree
	entries[1].Header.Timestamp = ledger.Absent
	entries[1].Seal()
	counts := &ledger.Entry{Header: ledger.Header{V: ledger.Version, Type: ledger.DuplicatesCounted, Stream: "duplicates-suite", Sequence: ledger.Absent, Timestamp: ledger.Absent, Generation: ledger.Absent, RecordedAt: 1}}
	counts.Body = ledger.Body{Supersedes: ledger.Absent, Counts: []ledger.Count{{Stream: "contract--", Revision: 0, Count: 3, LastSeen: 9}, {Stream: "rejections-suite", Revision: 1, Count: 1, LastSeen: 1}}}
	counts.Seal()
	entries = append(entries, counts)
	o := mustAppend(t, s, entries...)
	s = open(t)
	all := ReadAll(t, s)[before:]
	if len(all) != len(entries) {
		t.Fatalf("%d records, want %d", len(all), len(entries))
	}
	slices.SortFunc(all, func(a, b ledger.Record) int { return place(o, a) - place(o, b) }) // streams may be written to at once
	for i, e := range entries {
		got := all[i]
		if got.Position != o[i].Position || !got.Leaf.Equal(o[i].Leaf) {
			t.Errorf("entry %d: position %d, leaf %s; answered %d, %s", i, got.Position, got.Leaf, o[i].Position, o[i].Leaf)
		}
		want := e.Header
		want.Revision, want.Prev = got.Header.Revision, got.Header.Prev
		if d := cmp.Diff(want, got.Header); d != "" {
			t.Errorf("header %d (-want +got):\n%s", i, d)
		}
		if !bytes.Equal(e.Body.Payload, got.Body.Payload) {
			t.Errorf("payload %d has %d bytes, want the same %d", i, len(got.Body.Payload), len(e.Body.Payload))
		}
		body := e.Body
		body.Payload, got.Body.Payload = nil, nil
		if d := cmp.Diff(body, got.Body); d != "" {
			t.Errorf("body %d (-want +got):\n%s", i, d)
		}
	}
}

// place is which of the outcomes a record belongs to.
func place(o []ledger.Outcome, r ledger.Record) int {
	return slices.IndexFunc(o, func(o ledger.Outcome) bool { return o.Position == r.Position })
}

func testReading(t *testing.T, open Opener) {
	s := open(t)
	var entries []*ledger.Entry
	for i := range int64(40) {
		entries = append(entries, Event(key("lamp-7", fmt.Sprint("e", i), i), fmt.Sprintf(`{"i":%d}`, i), i), Event(key("lamp-8", "e", i), `{}`, i))
	}
	o := mustAppend(t, s, entries...)
	for range 2 {
		for _, c := range []struct {
			from      int64
			backwards bool
			want      []int64 // first, last
		}{
			{0, false, []int64{0, 39}}, {38, false, []int64{38, 39}}, {40, false, nil}, {1000, false, nil},
			{39, true, []int64{39, 0}}, {2, true, []int64{2, 0}}, {0, true, []int64{0, 0}}, {1000, true, []int64{39, 0}},
		} {
			var got []int64
			for r, err := range s.Stream(ctx(t), "contract-lamp-7", c.from, c.backwards) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, r.Header.Revision)
			}
			if len(got) > 0 {
				got = []int64{got[0], got[len(got)-1]}
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("stream from %d, backwards %v: first and last revision (-want +got):\n%s", c.from, c.backwards, d)
			}
		}
		for range s.Stream(ctx(t), "contract-nobody", 0, false) {
			t.Error("an unknown stream holds a record")
		}
		recs, err := s.Read(ctx(t), []ledger.Position{o[70].Position, o[3].Position, o[70].Position})
		if err != nil || recs[0].Header.Key() != entries[70].Key() || recs[1].Header.Key() != entries[3].Key() || recs[2].Position != o[70].Position {
			t.Errorf("read 70, 3, 70: %v", err)
		}
		for _, p := range []ledger.Position{0, o[79].Position + 1, 1 << 60} {
			if _, err := s.Read(ctx(t), []ledger.Position{p}); !errors.Is(err, ledger.ErrNotFound) {
				t.Errorf("read position %d: %v, want ErrNotFound", p, err)
			}
		}
		s = open(t)
	}
}

func testFollowing(t *testing.T, open Opener) {
	s := open(t)
	const n = 300
	c, cancel := context.WithCancel(ctx(t))
	seen := make(chan ledger.Position, 4*n)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(seen)
		for batch, err := range s.Follow(c, 0) {
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("follow: %v", err)
				}
				return
			}
			if len(batch.Records) == 0 || batch.Head < batch.Records[len(batch.Records)-1].Position {
				t.Errorf("a batch of %d records up to head %d", len(batch.Records), batch.Head)
			}
			for _, r := range batch.Records {
				seen <- r.Position
			}
		}
	})
	var last ledger.Position
	for i := range int64(n) {
		last = mustAppend(t, s, Event(key("f", "e", i), `{}`, i))[0].Position
	}
	var got []ledger.Position
	for p := range seen {
		if got = append(got, p); p == last {
			cancel()
		}
	}
	cancel()
	wg.Wait()
	if len(got) != n+1 || !increasing(got) {
		t.Errorf("followed %d records, want %d, each once and in order", len(got), n+1)
	}
	for batch, err := range s.Follow(ctx(t), got[n-2]) {
		if err != nil || batch.Records[0].Position != got[n-1] {
			t.Errorf("follow after %d: %v, %v", got[n-2], batch.Records, err)
		}
		break
	}
	for _, err := range s.Follow(ctx(t), last+1) {
		if !errors.Is(err, ledger.ErrBeyondHead) {
			t.Errorf("follow from beyond the head: %v", err)
		}
		break
	}
}

func increasing(p []ledger.Position) bool {
	for i := 1; i < len(p); i++ {
		if p[i] <= p[i-1] {
			return false
		}
	}
	return true
}

func testCopies(t *testing.T, open Opener) {
	s := open(t)
	const n = 50
	verdicts := make([]ledger.Verdict, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			o, err := s.Append(ctx(t), []*ledger.Entry{Event(key("c", "e", 1), `{}`, int64(i))})
			if err != nil {
				t.Error(err)
				return
			}
			verdicts[i] = o[0].Verdict
		})
	}
	wg.Wait()
	count := map[ledger.Verdict]int{}
	for _, v := range verdicts {
		count[v]++
	}
	// Where others append twins, none of ours need be the first.
	if count[ledger.Accepted] > 1 || count[ledger.Refused] > 0 || count[ledger.Accepted]+count[ledger.Duplicate]+count[ledger.Conflict] != n {
		t.Errorf("verdicts %v of %d copies", count, n)
	}
	accepted := 0
	for _, r := range ReadAll(t, s) {
		if r.Header.HasKey() && r.Header.Key() == key("c", "e", 1) {
			accepted++
		}
	}
	if accepted != 1 {
		t.Errorf("the event is stored %d times, want once", accepted)
	}
}

func testRivals(t *testing.T, open Opener) {
	s := open(t)
	for round := range int64(20) {
		var o [2]ledger.Outcome
		var wg sync.WaitGroup
		for i := range o {
			wg.Go(func() {
				out, err := s.Append(ctx(t), []*ledger.Entry{Event(key("c", "e", round), fmt.Sprintf(`{"from":%d}`, i), round)})
				if err != nil {
					t.Error(err)
					return
				}
				o[i] = out[0]
			})
		}
		wg.Wait()
		if o[0].Verdict == ledger.Accepted && o[1].Verdict == ledger.Accepted {
			t.Fatalf("round %d: both payloads are accepted", round)
		}
	}
	ReadAll(t, s)
}

// testRandom appends from many goroutines out of a small set of keys, with clocks that differ, and
// then judges the whole ledger again, record by record.
func testRandom(t *testing.T, open Opener) {
	s := open(t)
	const writers, rounds = 8, 60
	answers := make([][]Answer, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 7))
			for range rounds {
				batch := RandomBatch(rnd)
				out, err := s.Append(ctx(t), batch)
				if err != nil {
					t.Error(err)
					return
				}
				for i := range out {
					answers[w] = append(answers[w], Answer{batch[i], out[i]})
				}
			}
		})
	}
	wg.Wait()
	s = open(t)
	all := slicesOf(answers)
	CheckAnswers(t, ReadAll(t, s), all)
	if !slices.ContainsFunc(all, func(a Answer) bool { return a.Outcome.Verdict == ledger.Accepted }) {
		t.Error("nothing was accepted")
	}
}

// RandomBatch is a few events of few keys and payloads, with clocks and windows that differ.
func RandomBatch(rnd *rand.Rand) (batch []*ledger.Entry) {
	for range 1 + rnd.IntN(8) {
		k := key(fmt.Sprint("c", rnd.IntN(3)), fmt.Sprint("e", rnd.IntN(4)), int64(rnd.IntN(5)))
		e := Event(k, fmt.Sprintf(`{"v":%d}`, rnd.IntN(2)), rnd.Int64N(10_000))
		e.Window = []int64{0, 500, 2000}[rnd.IntN(3)]
		e.Seal()
		batch = append(batch, e)
	}
	return batch
}

// Answer is what a store said of an entry.
type Answer struct {
	Entry   *ledger.Entry
	Outcome ledger.Outcome
}

// CheckAnswers judges the answers by all records of the ledger: each accepted event is the next generation of its key,
// after the window of the one before; what was accepted is there as it was told; and every other answer names the
// record that its key was bound to.
func CheckAnswers(t *testing.T, all []ledger.Record, answers []Answer) {
	t.Helper()
	byPosition := map[ledger.Position]*ledger.Record{}
	newest := map[ledger.Key]ledger.Found{}
	for i := range all {
		r := &all[i]
		byPosition[r.Position] = r
		if r.Header.Type != ledger.EventAccepted {
			continue
		}
		before := newest[r.Header.Key()]
		if r.Header.Generation != before.Generation+1 || before.Known() && (before.BoundUntil == 0 || r.Header.RecordedAt < before.BoundUntil) {
			t.Fatalf("position %d: generation %d of %s at %d, after generation %d bound until %d", r.Position, r.Header.Generation, r.Header.Key(), r.Header.RecordedAt, before.Generation, before.BoundUntil)
		}
		newest[r.Header.Key()] = ledger.FoundIn(r)
	}
	told := map[ledger.Position]bool{}
	for _, a := range answers {
		o := &a.Outcome
		r := byPosition[o.Position]
		switch {
		case r == nil || r.Header.Key() != a.Entry.Key():
			t.Fatalf("the answer about %s names position %d, which is not its", a.Entry.Key(), o.Position)
		case o.Verdict == ledger.Conflict && r.Body.PayloadHash.Equal(a.Entry.Body.PayloadHash):
			t.Fatalf("%s: a conflict with the same payload", a.Entry.Key())
		case o.Verdict != ledger.Conflict && !r.Body.PayloadHash.Equal(a.Entry.Body.PayloadHash):
			t.Fatalf("%s: verdict %d refers to another payload", a.Entry.Key(), o.Verdict)
		case o.Verdict == ledger.Accepted && (told[o.Position] || o.Revision != r.Header.Revision || o.Generation != r.Header.Generation || o.Leaf != r.Leaf):
			t.Fatalf("%s: told %+v, and position %d has revision %d, generation %d, leaf %s, told before: %v", a.Entry.Key(), o, r.Position, r.Header.Revision, r.Header.Generation, r.Leaf, told[o.Position])
		}
		if o.Verdict == ledger.Accepted {
			told[o.Position] = true
		}
	}
}

func slicesOf[T any](parts [][]T) (all []T) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/talenttrust/auditledger/ledger/canonical"

	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

func open(t testing.TB, change ...func(*Config)) *Outbox {
	t.Helper()
	cfg := Config{Path: filepath.Join(t.TempDir(), "outbox.db"), Reserve: -1}
	for _, c := range change {
		c(&cfg)
	}
	o, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}

func event(contract, id string, sequence int, payload string) Event {
	body := fmt.Sprintf(`{"contractId":%q,"eventId":%q,"sequence":%d,"timestamp":1767225600000,"payload":%s}`, contract, id, sequence, payload)
	return Event{Form: FormEvent, Type: "lease_contract", ContractID: contract, EventID: id, Sequence: fmt.Sprint(sequence),
		PayloadHash: canonical.Sum([]byte(payload)), Body: []byte(body), Origin: "test"}
}

func envelope(chat, id, payload string) Event {
	return Event{Form: FormEnvelope, Type: "messages.upsert", ContractID: chat, EventID: id, Sequence: "0",
		PayloadHash: canonical.Sum([]byte(payload)), Body: appendEnvelope("messages.upsert", chat, []byte(payload))}
}

func enqueue(t testing.TB, o *Outbox, events ...Event) []Outcome {
	t.Helper()
	outcomes, err := o.Enqueue(t.Context(), events...)
	if err != nil {
		t.Fatal(err)
	}
	return outcomes
}

func stats(t testing.TB, o *Outbox) Stats {
	t.Helper()
	s, err := o.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func wantCounts(t *testing.T, o *Outbox, pending, parked, dead int) {
	t.Helper()
	s := stats(t, o)
	if s.Pending != pending || s.Parked != parked || s.Dead != dead {
		t.Errorf("got %d pending, %d parked, %d dead; want %d, %d, %d", s.Pending, s.Parked, s.Dead, pending, parked, dead)
	}
}

func pending(t testing.TB, o *Outbox) []Pending {
	t.Helper()
	list, err := o.Next(t.Context(), 0, false, 1000, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func letters(t testing.TB, o *Outbox, pick Selection) []DeadLetter {
	t.Helper()
	var list []DeadLetter
	for d, err := range o.DeadLetters(t.Context(), pick) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, d)
	}
	return list
}

func TestEnqueueIdentity(t *testing.T) {
	o := open(t)
	for _, c := range []struct {
		name  string
		event Event
		want  Outcome
	}{
		{"new", event("c", "e", 1, `{}`), Queued},
		{"the same again", event("c", "e", 1, `{}`), Known},
		{"another payload: the ledger must see the conflict", event("c", "e", 1, `{"a":1}`), Queued},
		{"another sequence", event("c", "e", 2, `{}`), Queued},
		{"another contract", event("d", "e", 1, `{}`), Queued},
		{"parts that join to the same text", event("c:e", "1", 2, `{}`), Queued},
		{"envelope", envelope("777001@g.us", "u1", `{}`), Queued},
		{"the same envelope again", envelope("777001@g.us", "u1", `{}`), Known},
		{"its id with another payload", envelope("777001@g.us", "u1", `{"a":1}`), Buried},
		{"another chat", envelope("777002@g.us", "u1", `{"a":1}`), Queued},
	} {
		if got := enqueue(t, o, c.event)[0]; got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
	wantCounts(t, o, 7, 0, 1)
	if d := letters(t, o, Selection{}); len(d) != 1 || d[0].Reason.Code != "id_conflict" {
		t.Errorf("dead letters: got %+v", d)
	}
}

// What was enqueued comes back byte for byte after the file was closed and opened again.
func TestEnqueueSurvivesReopening(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Path: filepath.Join(dir, "out box?#%.db"), Reserve: -1}
	o, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	want := []Event{event("c", "e", 1, `{"a":"ü"}`), event("c", "e", 2, `{}`)}
	want[1].Body = []byte("{\"a\":\"\xff\x00\"}")
	enqueue(t, o, want...)
	mark := Mark{Name: "1:2", Path: "/a", Position: 7, Head: []byte{1}, Tail: []byte{2}}
	if _, err := o.EnqueueFrom(t.Context(), &mark, nil); err != nil {
		t.Fatal(err)
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Enqueue(t.Context(), want[0]); err == nil {
		t.Error("Enqueue into a closed outbox: got no error")
	}

	if o, err = Open(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	got := pending(t, o)
	if len(got) != len(want) {
		t.Fatalf("got %d events, want %d", len(got), len(want))
	}
	for i := range want {
		if fmt.Sprintf("%+v", got[i].Event) != fmt.Sprintf("%+v", want[i]) {
			t.Errorf("got %+v, want %+v", got[i].Event, want[i])
		}
	}
	if m, err := o.Mark(t.Context(), "1:2"); err != nil || m == nil || fmt.Sprint(*m) != fmt.Sprint(mark) {
		t.Errorf("mark: got %v, %v, want %v", m, err, mark)
	}
	if m, err := o.Mark(t.Context(), "other"); err != nil || m != nil {
		t.Errorf("unknown mark: got %v, %v", m, err)
	}
	if info, err := os.Stat(cfg.Path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file: got %v, %v, want mode 0600", info.Mode(), err)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	text, other, later := filepath.Join(dir, "text"), filepath.Join(dir, "other"), filepath.Join(dir, "later")
	if err := os.WriteFile(text, []byte(strings.Repeat("not a database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	execute(t, other, `CREATE TABLE a (b)`)
	o, err := Open(t.Context(), Config{Path: later})
	if err != nil {
		t.Fatal(err)
	}
	o.Close()
	execute(t, later, `PRAGMA user_version = 2`)

	for path, want := range map[string]string{text: "not a database", other: "not an outbox", later: "schema version 2", filepath.Join(dir, "no", "folder"): "no such file"} {
		o, err := Open(t.Context(), Config{Path: path})
		if err == nil {
			o.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("Open(%s): got %v, want it to say %q and the path", path, err, want)
		}
	}
}

// execute does to a file what a person with sqlite3 could do.
func execute(t testing.TB, path, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", databaseURL(path))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

func TestSettle(t *testing.T) {
	o := open(t)
	enqueue(t, o, event("c", "e", 1, `{}`), event("c", "e", 2, `{}`), event("c", "e", 3, `{}`), event("c", "e", 4, `{}`))
	p := pending(t, o)
	refused := Reason{Status: 422, Code: "invalid_payload", Text: "the schema is not met"}
	err := o.Settle(t.Context(), []Settlement{{Pending: p[0], Fate: Sent}, {Pending: p[1], Fate: Dead, Reason: refused}, {Pending: p[2], Fate: Parked, Reason: Reason{Code: "contract_type_not_allowed"}}})
	if err != nil {
		t.Fatal(err)
	}
	wantCounts(t, o, 2, 1, 1)
	if left := pending(t, o); len(left) != 1 || left[0].Sequence != "4" {
		t.Errorf("pending: got %+v", left)
	}
	if parked, err := o.Next(t.Context(), 0, true, 10, 1000); err != nil || len(parked) != 1 || parked[0].Parked != "contract_type_not_allowed" {
		t.Errorf("parked: got %+v, %v", parked, err)
	}
	d := letters(t, o, Selection{})
	if len(d) != 1 || d[0].Reason != refused || d[0].Sequence != "2" || string(d[0].Body) != string(p[1].Body) {
		t.Errorf("dead: got %+v", d)
	}
	// A dead letter stays one: the source may send it as often as it likes.
	if got := enqueue(t, o, event("c", "e", 2, `{}`))[0]; got != KnownBuried {
		t.Errorf("a dead event again: got %d, want %d", got, KnownBuried)
	}
	// The same key with the fault mended is another event.
	mended := event("c", "e", 2, `{}`)
	mended.Body = []byte(strings.Replace(string(mended.Body), "1767225600000", "1767225600001", 1))
	if got := enqueue(t, o, mended)[0]; got != Queued {
		t.Errorf("a mended event: got %d, want %d", got, Queued)
	}
}

func TestDeadLetters(t *testing.T) {
	o := open(t)
	line := Event{Form: FormLine, Body: []byte("\x00nonsense"), PayloadHash: canonical.Sum([]byte("\x00nonsense")), Refused: "not an event"}
	var all []Event
	for i := range deadPage + 50 {
		e := event("c", "e", i, `{}`)
		e.Refused = "for the test"
		all = append(all, e)
	}
	enqueue(t, o, append(all, line)...)
	if got := enqueue(t, o, line)[0]; got != Buried {
		t.Errorf("a bad line again: got %d, want %d", got, Buried)
	}
	wantCounts(t, o, 0, 0, deadPage+51)
	list := letters(t, o, Selection{})
	if len(list) != deadPage+51 || list[len(list)-1].Times != 2 {
		t.Fatalf("got %d dead letters", len(list))
	}
	if got := letters(t, o, Selection{IDs: []int64{list[3].ID, list[5].ID}, Code: "refused"}); len(got) != 2 || got[1].Sequence != "5" {
		t.Errorf("selection: got %+v", got)
	}
	if got := letters(t, o, Selection{Code: "other"}); len(got) != 0 {
		t.Errorf("selection by another code: got %+v", got)
	}

	if ok, err := o.Requeue(t.Context(), list[0].ID); !ok || err != nil {
		t.Errorf("Requeue: got %v, %v", ok, err)
	}
	if ok, err := o.Requeue(t.Context(), list[0].ID); ok || err != nil {
		t.Errorf("Requeue of one that is gone: got %v, %v", ok, err)
	}
	if ok, err := o.Requeue(t.Context(), list[len(list)-1].ID); ok || err == nil {
		t.Errorf("Requeue of a line that is no event: got %v, %v", ok, err)
	}
	if ok, err := o.Remove(t.Context(), list[1].ID); !ok || err != nil {
		t.Errorf("Remove: got %v, %v", ok, err)
	}
	wantCounts(t, o, 1, 0, deadPage+49)
	if p := pending(t, o); len(p) != 1 || string(p[0].Body) != string(all[0].Body) {
		t.Errorf("requeued: got %+v", p)
	}
}

// Many at once: nothing is lost, nothing is kept twice, and the totals say so.
func TestEnqueueConcurrently(t *testing.T) {
	o := open(t)
	const writers, each = 8, 50
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				// Two neighbours write the same events.
				if _, err := o.Enqueue(t.Context(), event(fmt.Sprint(w/2), "e", i, `{}`)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	wantCounts(t, o, writers/2*each, 0, 0)
	if got := len(pending(t, o)); got != writers/2*each {
		t.Errorf("got %d rows, want %d", got, writers/2*each)
	}
}

// One caller's failure is not another's: their changes share a transaction only while it works.
func TestCommitIsolatesFailures(t *testing.T) {
	o := open(t)
	bad := errors.New("for the test")
	// Hold the turn so that both changes wait for it together.
	o.turn.Lock()
	var wg sync.WaitGroup
	var goodErr, badErr error
	wg.Go(func() {
		goodErr = o.commit(t.Context(), func(tx txn) error { _, err := tx.enqueue(event("c", "e", 1, `{}`), false); return err })
	})
	wg.Go(func() { badErr = o.commit(t.Context(), func(txn) error { return bad }) })
	ledgertest.Until(t, "both changes wait", func() bool { o.mu.Lock(); defer o.mu.Unlock(); return len(o.waiting) == 2 })
	o.turn.Unlock()
	wg.Wait()
	if goodErr != nil || !errors.Is(badErr, bad) {
		t.Errorf("got %v and %v, want nil and %v", goodErr, badErr, bad)
	}
	wantCounts(t, o, 1, 0, 0)
}

// A full file refuses new events and keeps, delivers and forgets what it has.
func TestFull(t *testing.T) {
	o := open(t, func(c *Config) { c.MaxBytes = 400 << 10 })
	large := `{"a":"` + strings.Repeat("x", 10000) + `"}`
	var err error
	stored := 0
	for ; err == nil && stored < 1000; stored++ {
		_, err = o.Enqueue(t.Context(), event("c", "e", stored, large))
	}
	if !errors.Is(err, ErrFull) {
		t.Fatalf("after %d events: got %v, want ErrFull", stored, err)
	}
	stored--
	wantCounts(t, o, stored, 0, 0)
	for _, p := range pending(t, o)[:20] {
		if err := o.Settle(t.Context(), []Settlement{{Pending: p, Fate: Dead, Reason: Reason{Code: "x"}}}); err != nil {
			t.Fatalf("dead letter in a full file: %v", err)
		}
	}
	for _, p := range pending(t, o) {
		if err := o.Settle(t.Context(), []Settlement{{Pending: p, Fate: Sent}}); err != nil {
			t.Fatal(err)
		}
	}
	wantCounts(t, o, 0, 0, 20)
	enqueue(t, o, event("c", "e", 1001, large))
}

// When SQLite itself finds no room, nothing of the transaction is stored and the cause is ErrFull.
func TestNoRoom(t *testing.T) {
	o := open(t)
	if _, err := o.conn.ExecContext(t.Context(), "PRAGMA max_page_count = 30"); err != nil {
		t.Fatal(err)
	}
	small, large := event("c", "e", 1, `{}`), event("c", "e", 2, `{"a":"`+strings.Repeat("x", 200000)+`"}`)
	if _, err := o.Enqueue(t.Context(), small, large); !errors.Is(err, ErrFull) {
		t.Fatalf("got %v, want ErrFull", err)
	}
	wantCounts(t, o, 0, 0, 0)
	enqueue(t, o, small)
	wantCounts(t, o, 1, 0, 0)
}

func TestReserve(t *testing.T) {
	o := open(t, func(c *Config) { c.Reserve = 1 << 62 })
	if _, err := o.Enqueue(t.Context(), event("c", "e", 1, `{}`)); !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "reserve") {
		t.Errorf("got %v, want ErrFull that names the reserve", err)
	}
	wantCounts(t, o, 0, 0, 0)
}

func TestTooLarge(t *testing.T) {
	o := open(t, func(c *Config) { c.MaxEventBytes = 200 })
	outcomes := enqueue(t, o, event("c", "e", 1, `{"a":"`+strings.Repeat("x", 200)+`"}`), event("c", "e", 2, `{}`))
	if outcomes[0] != Buried || outcomes[1] != Queued {
		t.Errorf("got %v, want it buried and its neighbour queued", outcomes)
	}
	if d := letters(t, o, Selection{}); len(d) != 1 || !strings.Contains(d[0].Reason.Text, "the limit is 200") {
		t.Errorf("got %+v", d)
	}
}

func TestNextIsBounded(t *testing.T) {
	o := open(t)
	for i := range 10 {
		enqueue(t, o, event("c", "e", i, `{"a":"`+strings.Repeat("x", 1000)+`"}`))
	}
	for _, c := range []struct{ limit, bytes, want int }{{3, 1 << 30, 3}, {100, 2500, 3}, {100, 1, 1}, {100, 1 << 30, 10}} {
		list, err := o.Next(t.Context(), 0, false, c.limit, c.bytes)
		if err != nil || len(list) != c.want {
			t.Errorf("Next(limit %d, bytes %d): got %d events, %v; want %d", c.limit, c.bytes, len(list), err, c.want)
		}
	}
}

// Sequence numbers are never used again, or a sender that reads on from one would pass new events over.
func TestSeqIsNeverReused(t *testing.T) {
	o := open(t)
	enqueue(t, o, event("c", "e", 1, `{}`))
	first := pending(t, o)[0]
	if err := o.Settle(t.Context(), []Settlement{{Pending: first, Fate: Sent}}); err != nil {
		t.Fatal(err)
	}
	enqueue(t, o, event("c", "e", 2, `{}`))
	if next := pending(t, o)[0]; next.Seq <= first.Seq {
		t.Errorf("got seq %d after %d", next.Seq, first.Seq)
	}
}

func TestLease(t *testing.T) {
	o := open(t)
	other, err := Open(t.Context(), o.cfg) // as another process has it
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	lease, err := o.Lease(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, second := range []*Outbox{o, other} {
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := second.Lease(ctx, cancel); !errors.Is(err, context.Canceled) {
			t.Errorf("a second lease: got %v, want it to wait", err)
		}
		cancel()
	}
	got := make(chan error, 1)
	stood := make(chan struct{})
	go func() {
		l, err := other.Lease(t.Context(), func() { close(stood) })
		if err == nil {
			err = l.Release()
		}
		got <- err
	}()
	<-stood
	enqueue(t, other, event("c", "e", 1, `{}`)) // who stands by can still enqueue
	if err := lease.Release(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("the next lease: got %v", err)
	}
}

// People edit the file with sqlite3; the totals stay right.
func TestTotalsSurviveEdits(t *testing.T) {
	o := open(t)
	enqueue(t, o, event("c", "e", 1, `{}`), event("c", "e", 2, `{}`), event("c", "e", 3, `{}`))
	execute(t, o.cfg.Path, `DELETE FROM outbox WHERE sequence = '2'`)
	execute(t, o.cfg.Path, `UPDATE outbox SET parked = 'by hand' WHERE sequence = '3'`)
	wantCounts(t, o, 2, 1, 0)
	if s := stats(t, o); s.Bytes != int64(2*len(event("c", "e", 1, `{}`).Body)) || s.Oldest.IsZero() || s.FreeBytes == 0 {
		t.Errorf("got %+v", s)
	}
}

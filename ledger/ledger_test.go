package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/canonical"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// bench is a ledger in memory at a moment that the test sets.
type bench struct {
	*ledger.Ledger
	store *ledgertest.Memory
	now   time.Time
	log   bytes.Buffer
	src   *ledger.Source
}

func newBench(t *testing.T, change func(*ledger.Config)) *bench {
	t.Helper()
	b := &bench{store: ledgertest.OpenMemory(ledgertest.NewBackend(), ledgertest.Faults{}, 1), now: ledgertest.Epoch, src: &ledger.Source{Name: "unit", Window: 24 * time.Hour}}
	c := ledger.Config{Store: b.store, Now: func() time.Time { return b.now }, Elapsed: func() time.Duration { return b.now.Sub(ledgertest.Epoch) }}
	c.Logger = slog.New(slog.NewTextHandler(&b.log, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: ledger.Redact}))
	if change != nil {
		change(&c)
	}
	var err error
	if b.Ledger, err = ledger.New(c); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) send(t *testing.T, contractType string, events ...string) []ledger.Result {
	t.Helper()
	results, err := b.Ingest(t.Context(), ledger.Request{Source: b.src, CorrelationID: "req-1"}, contractType, raws(events))
	if err != nil {
		t.Fatalf("ingest: %v", err)
	}
	return results
}

func raws(events []string) [][]byte {
	var raw [][]byte
	for _, e := range events {
		raw = append(raw, []byte(e))
	}
	return raw
}

// event writes an event sent now; members given replace the usual ones, "" leaves one out.
func (b *bench) event(members ...string) string {
	m := map[string]string{"contractId": `"led-9"`, "eventId": `"ev-4"`, "sequence": "7", "payload": `{"a":1}`, "timestamp": fmt.Sprint(b.now.UnixMilli())}
	for i := 0; i < len(members); i += 2 {
		m[members[i]] = members[i+1]
	}
	var parts []string
	for _, name := range []string{"contractId", "eventId", "sequence", "timestamp", "payload", "signature", "more"} {
		if v := m[name]; v != "" {
			parts = append(parts, fmt.Sprintf("%q:%s", name, v))
		}
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// say puts a result in one line: status, code, paths of the errors.
func say(r ledger.Result) string {
	s := string(r.Status)
	if r.Rejection != nil {
		s += " " + r.Rejection.Code
		for _, e := range r.Rejection.Errors {
			s += " " + e.Path
		}
	}
	return s
}

func TestFields(t *testing.T) {
	long := strings.Repeat("x", 255)
	for _, c := range []struct {
		members []string
		want    string
	}{
		{nil, "accepted"},
		{[]string{"contractId", `"  "`}, "rejected invalid_event /contractId"},
		{[]string{"eventId", ""}, "rejected invalid_event /eventId"},
		{[]string{"sequence", "-4"}, "rejected invalid_event /sequence"},
		{[]string{"sequence", "2.5"}, "rejected invalid_event /sequence"},
		{[]string{"sequence", `"3"`}, "rejected invalid_event /sequence"},
		{[]string{"sequence", "null"}, "rejected invalid_event /sequence"},
		{[]string{"sequence", ""}, "rejected invalid_event /sequence"},
		{[]string{"sequence", "0"}, "accepted"},
		{[]string{"sequence", "-0"}, "accepted"},
		{[]string{"sequence", "3.0"}, "accepted"},
		{[]string{"sequence", "30e-1"}, "accepted"},
		{[]string{"sequence", "9007199254740991"}, "accepted"},
		{[]string{"sequence", "9007199254740992"}, "rejected invalid_event /sequence"},
		{[]string{"sequence", "1e999999999"}, "rejected invalid_event /sequence"},
		{[]string{"timestamp", `"soon"`}, "rejected invalid_event /timestamp"},
		{[]string{"timestamp", "true"}, "rejected invalid_event /timestamp"},
		{[]string{"timestamp", `""`}, "rejected invalid_event /timestamp"},
		{[]string{"payload", `"txt"`}, "rejected invalid_event /payload"},
		{[]string{"payload", "null"}, "rejected invalid_event /payload"},
		{[]string{"payload", "[1]"}, "rejected invalid_event /payload"},
		{[]string{"payload", ""}, "rejected invalid_event /payload"},
		{[]string{"signature", "7"}, "rejected invalid_event /signature"},
		{[]string{"more", "7"}, "rejected invalid_event /more"},
		{[]string{"contractId", `"led ger"`}, "rejected invalid_event /contractId"},
		{[]string{"contractId", `"led\u00001"`}, "rejected invalid_event /contractId"},
		{[]string{"eventId", `"\u0000"`, "payload", `{"a":"\u0000"}`}, "rejected invalid_event /eventId"},
		{[]string{"contractId", `"led:1"`}, "rejected invalid_event /contractId"},
		{[]string{"contractId", `"` + long + `x"`}, "rejected invalid_event /contractId"},
		{[]string{"contractId", `"` + long + `"`, "eventId", `"` + long + `"`}, "accepted"},
		{[]string{"contractId", `"led-ger_1"`}, "accepted"},
		{[]string{"contractId", `"777001@g.us"`}, "accepted"},
		{[]string{"contractId", `""`, "eventId", "1", "sequence", "-1", "timestamp", "{}", "payload", "3"}, "rejected invalid_event /contractId /eventId /payload /sequence /timestamp"},
		{[]string{"payload", `{"amount":1,"amount":2}`}, "rejected duplicate_member /payload/amount"},
		{[]string{"payload", `{"amount":1,"Amount":2}`}, "accepted"},
		{[]string{"payload", `{"a":{"x":1,"\u0078":2}}`}, "rejected duplicate_member /payload/a/x"},
		{[]string{"payload", `{"a\u0000":1,"a":2}`}, "rejected duplicate_member /payload/a"},
		{[]string{"payload", `{"a":1e-999999999}`}, "accepted"},
		{[]string{"payload", `{"a":` + strings.Repeat("1", 1101) + `}`}, "rejected invalid_event /payload"},
		{[]string{"payload", `{"a":` + strings.Repeat("[", 63) + strings.Repeat("]", 63) + `}`}, "accepted"},
		{[]string{"payload", `{"a":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`}, "rejected invalid_event /payload"},
		{[]string{"payload", `{"a":"` + strings.Repeat("x", 256<<10-8) + `"}`}, "accepted"},
		{[]string{"payload", `{"a":"` + strings.Repeat("x", 256<<10-7) + `"}`}, "rejected payload_too_large"},
		{[]string{"payload", `{"a":"` + strings.Repeat("\xff", 100<<10) + `"}`}, "rejected payload_too_large"}, // three times as long once cleaned
	} {
		b := newBench(t, nil)
		if got := say(b.send(t, "test_contract", b.event(c.members...))[0]); got != c.want {
			t.Errorf("%.100v: %s, want %s", c.members, got, c.want)
		}
	}
	b := newBench(t, nil)
	for raw, want := range map[string]string{
		`7`: "rejected invalid_event ", `[]`: "rejected invalid_event ", `{"eventId":1,"eventId":2}`: "rejected duplicate_member /eventId",
		`{} {}`: "rejected invalid_event ", `{`: "rejected invalid_event ", ``: "rejected invalid_event ",
	} {
		if got := say(b.send(t, "test_contract", raw)[0]); got != want {
			t.Errorf("event %q: %q, want %q", raw, got, want)
		}
	}
}

func TestLax(t *testing.T) {
	b := newBench(t, func(c *ledger.Config) { c.Lax = true })
	for _, c := range []struct{ typ, event, want string }{
		{"talent_contract", b.event("payload", "{}", "more", "1"), "accepted"},
		{"lease_contract", b.event("contractId", `""`), "rejected invalid_event /contractId"},
	} {
		if got := say(b.send(t, c.typ, c.event)[0]); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.typ, c.event, got, c.want)
		}
	}
}

func TestSchemas(t *testing.T) {
	b := newBench(t, nil)
	for i, c := range []struct{ typ, payload, want string }{
		{"talent_contract", `{"action":"created"}`, "rejected invalid_payload /payload/talentId"},
		{"talent_contract", `{"talentId":"t","action":"promoted"}`, "rejected invalid_payload /payload/action"},
		{"talent_contract", `{"talentId":"t","action":"verified","extra":[]}`, "accepted"},
		{"payment_contract", `{"paymentId":"p-1","amount":12.5,"currency":"USDC","status":"pending","timestamp":1}`, "accepted"},
		{"payment_contract", `{"paymentId":"p-1","amount":"12.5","status":"refunded"}`, "rejected invalid_payload /payload/amount /payload/currency /payload/status /payload/timestamp"},
		{"review_contract", `{"reviewId":"r","rating":6,"createdAt":1}`, "rejected invalid_payload /payload/rating /payload/reviewerId"},
		{"lease_contract", `{}`, "accepted"},
	} {
		if got := say(b.send(t, c.typ, b.event("sequence", fmt.Sprint(i), "payload", c.payload))[0]); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.typ, c.payload, got, c.want)
		}
	}
}

func TestAge(t *testing.T) {
	const hour, min = 3600 * 1000, 60 * 1000
	for _, c := range []struct {
		maxAge time.Duration
		ago    int64
		want   string
	}{
		{0, 49 * hour, "rejected event_too_old"}, {0, 24 * hour, "accepted"}, {0, 24*hour + 1, "rejected event_too_old"},
		{time.Hour, 59 * min, "accepted"}, {time.Hour, 61 * min, "rejected event_too_old"},
		{0, -10 * min, "rejected event_in_future"}, {0, -4 * min, "accepted"}, {0, -5 * min, "accepted"}, {0, -5*min - 1, "rejected event_in_future"},
	} {
		b := newBench(t, func(cfg *ledger.Config) { cfg.MaxAge = c.maxAge })
		r := b.send(t, "x", b.event("timestamp", fmt.Sprint(b.now.UnixMilli()-c.ago)))[0]
		if got := say(r); got != c.want {
			t.Errorf("%d ms old, limit %s: %s, want %s", c.ago, c.maxAge, got, c.want)
		}
	}
	b := newBench(t, nil)
	reason := b.send(t, "x", b.event("timestamp", "1767225600"))[0].Rejection.Reason
	for _, part := range []string{"1970-01-21T10:53:45.600Z", "2026-01-01T00:00:00.000Z", "24h", "looks like seconds"} {
		if !strings.Contains(reason, part) {
			t.Errorf("the reason %q does not hold %q", reason, part)
		}
	}
	b.src.AcceptLate = true
	if got := say(b.send(t, "x", b.event("timestamp", "5"))[0]); got != "accepted" {
		t.Errorf("late event of a source that accepts them: %s", got)
	}
	all := ledgertest.ReadAll(t, b.store)
	if last := all[len(all)-1]; !last.Body.Late {
		t.Error("the late event is not marked so")
	}
}

func TestIdentity(t *testing.T) {
	b := newBench(t, nil)
	first := b.send(t, "x", b.event("payload", `{"a":{"x":1,"y":[1,2]},"n":100}`))[0]
	if got := first.Key.String(); got != "led-9:ev-4:7" {
		t.Errorf("key %s", got)
	}
	b.now = b.now.Add(time.Minute)
	for _, c := range []struct{ payload, want string }{
		{`{"n":1e2,"a":{"y":[1,2],"x":1.0}}`, "duplicate"},
		{`{"a":{"x":1,"y":[2,1]},"n":100}`, "rejected IDEMPOTENCY_PAYLOAD_CONFLICT"},
		{`{"a":{"x":1,"y":[1,2]},"n":"100"}`, "rejected IDEMPOTENCY_PAYLOAD_CONFLICT"},
		{`{"a":{"X":1,"y":[1,2]},"n":100}`, "rejected IDEMPOTENCY_PAYLOAD_CONFLICT"},
		{`{"a":{"x":1,"y":[1,2]},"n":100,"__proto__":{}}`, "rejected IDEMPOTENCY_PAYLOAD_CONFLICT"},
	} {
		r := b.send(t, "x", b.event("payload", c.payload))[0]
		if got := say(r); got != c.want {
			t.Errorf("%s: %s, want %s", c.payload, got, c.want)
		}
		if r.Status == ledger.StatusDuplicate && (r.Position != first.Position || r.ProcessedAt != first.ProcessedAt || !r.EnvelopeChanged) {
			t.Errorf("%s: %+v, want position and time of the first, and a changed envelope", c.payload, r)
		}
	}
	exact := newBench(t, nil)
	hashes := map[string]string{}
	for _, n := range []string{"9007199254740993", "9007199254740992", "0.1", "0.1000000000000000055", "1152921504606846976", "1152921504606847000", "1152921504606846977", "1e400", "1e401", "1", "0"} {
		h := exact.send(t, "x", exact.event("payload", `{"n":`+n+`}`))[0].PayloadHash.String()
		if other, ok := hashes[h]; ok {
			t.Errorf("%s and %s have one hash", n, other)
		}
		hashes[h] = n
	}
	// Events of one batch see one another; keys that differ in one part are different.
	batch := newBench(t, nil)
	var got []string
	for _, r := range batch.send(t, "x", batch.event(), batch.event(), batch.event("payload", `{"b":1}`), batch.event("sequence", "8"), batch.event("contractId", `"led-8"`)) {
		got = append(got, say(r))
	}
	if d := cmp.Diff([]string{"accepted", "duplicate", "rejected IDEMPOTENCY_PAYLOAD_CONFLICT", "accepted", "accepted"}, got); d != "" {
		t.Errorf("one batch (-want +got):\n%s", d)
	}
}

func TestIdentityBeforeAge(t *testing.T) {
	b := newBench(t, nil)
	b.src.Window = 0
	e := b.event()
	b.send(t, "x", e)
	b.now = b.now.Add(30 * time.Hour)
	if got := say(b.send(t, "x", e)[0]); got != "duplicate" {
		t.Errorf("a known event, 30 h later: %s", got)
	}
	b.now = b.now.Add(10000 * time.Hour)
	if got := say(b.send(t, "x", e)[0]); got != "duplicate" {
		t.Errorf("window 0, 10,030 h later: %s", got)
	}
}

func TestWindowOver(t *testing.T) {
	b := newBench(t, nil)
	e := b.event()
	b.send(t, "x", e)
	b.now = ledgertest.Epoch.Add(24*time.Hour - time.Millisecond)
	if got := say(b.send(t, "x", e)[0]); got != "duplicate" {
		t.Errorf("1 ms before the end: %s", got)
	}
	b.now = ledgertest.Epoch.Add(24 * time.Hour)
	if r := b.send(t, "x", e)[0]; say(r) != "accepted" || r.Generation != 2 || r.Revision != 1 {
		t.Errorf("at the end: %+v", r)
	}
}

func TestConflictLeavesNoPayload(t *testing.T) {
	b := newBench(t, nil)
	b.send(t, "x", b.event("payload", `{"card":"planted-4711"}`))
	r := b.send(t, "x", b.event("payload", `{"card":"planted-4712"}`))[0]
	all := ledgertest.ReadAll(t, b.store)
	last := all[len(all)-1]
	if last.Header.Type != ledger.EventRejected || last.Body.Payload != nil || last.Position != r.Position || last.Header.Code != ledger.CodePayloadConflict {
		t.Errorf("the trail ends with %+v", last)
	}
	if want := canonical.Sum([]byte(`{"card":"planted-4712"}`)); !last.Body.PayloadHash.Equal(want) || last.Body.RawHash.IsZero() {
		t.Errorf("the rejection does not hold the hashes")
	}
	if string(all[1].Body.Payload) != `{"card":"planted-4711"}` {
		t.Errorf("the stored payload is %s", all[1].Body.Payload)
	}
	if said := b.log.String() + r.Rejection.Reason; strings.Contains(said, "planted") || !strings.Contains(said, "[REDACTED_PAYLOAD]") {
		t.Errorf("log and reason: %s", said)
	}
	plain := newBench(t, func(c *ledger.Config) { c.PlainConflict = true })
	if got := say(plain.send(t, "x", plain.event(), plain.event("payload", "{}"))[1]); got != "rejected conflict" {
		t.Errorf("without the integrity check: %s", got)
	}
}

func TestCleaning(t *testing.T) {
	b := newBench(t, nil)
	for i, c := range []struct{ payload, stored string }{
		{`{"a":"x\u0000y"}`, `{"a":"xy"}`}, {"{\"a\":\"l\xffr\"}", `{"a":"l` + "\ufffd" + `r"}`}, {`{"a":"\ud800"}`, `{"a":"` + "\ufffd" + `"}`}, {`{"a":"fine"}`, `{"a":"fine"}`},
	} {
		raw := b.event("sequence", fmt.Sprint(i), "payload", c.payload)
		r := b.send(t, "x", raw)[0]
		recs, err := b.store.Read(t.Context(), []ledger.Position{r.Position})
		if err != nil || r.Status != ledger.StatusAccepted {
			t.Fatalf("%q: %+v, %v", c.payload, r, err)
		}
		y := recs[0].Body
		if string(y.Payload) != c.stored || y.Sanitized != (i < 3) || !y.RawHash.Equal(canonical.Sum([]byte(raw))) {
			t.Errorf("%q is stored as %q, sanitized %v", c.payload, y.Payload, y.Sanitized)
		}
	}
}

func TestNeighbours(t *testing.T) {
	b := newBench(t, nil)
	events := []string{b.event("payload", "\xff\xfe{")}
	for i := range 99 {
		events = append(events, b.event("sequence", fmt.Sprint(i)))
	}
	for i, r := range b.send(t, "x", events...) {
		if (r.Status == ledger.StatusAccepted) != (i > 0) || i > 0 && r.Key.Sequence != int64(i-1) {
			t.Errorf("event %d: %s %s", i, r.Key, say(r))
		}
	}
}

func TestPermission(t *testing.T) {
	b := newBench(t, nil)
	b.src.Allows = func(typ, contract string) bool { return typ == "x" && (contract == "" || contract == "led-9") }
	for _, c := range []struct{ typ, event, want string }{
		{"x", b.event(), "accepted"},
		{"y", b.event("eventId", "3"), "rejected contract_type_not_allowed"},
		{"x", b.event("contractId", `"other"`), "rejected contract_type_not_allowed"},
		{"x", b.event("contractId", `7`), "rejected invalid_event /contractId"},
	} {
		if got := say(b.send(t, c.typ, c.event)[0]); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.typ, c.event, got, c.want)
		}
	}
}

func TestRepeatedRejections(t *testing.T) {
	b := newBench(t, nil)
	bad := b.event("sequence", "-1")
	first := b.send(t, "x", bad)[0]
	b.now = b.now.Add(59 * time.Second)
	if again := b.send(t, "x", bad, b.event("sequence", "-2")); again[0].Position != first.Position || again[0].ProcessedAt != first.ProcessedAt || again[1].Position == first.Position {
		t.Errorf("within a minute: %+v, want position %d; another: %+v", again[0], first.Position, again[1])
	}
	b.now = b.now.Add(time.Second)
	if again := b.send(t, "x", bad)[0]; again.Position == first.Position {
		t.Error("after a minute the rejection is not stored anew")
	}
	if n := b.Pending(); n != 1 {
		t.Errorf("%d repeats are pending, want 1", n)
	}
}

func TestRunStoresCounts(t *testing.T) {
	b := newBench(t, nil)
	e, bad := b.event(), b.event("sequence", "-1")
	b.send(t, "x", e, e, e, bad, bad)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	b.send(t, "x", e)
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := b.Pending(); n != 0 {
		t.Errorf("%d are still pending", n)
	}
	got := map[string]int64{}
	for _, r := range ledgertest.ReadAll(t, b.store) {
		for _, c := range r.Body.Counts {
			got[fmt.Sprint(c.Stream, " ", c.Revision)] += c.Count
		}
	}
	if d := cmp.Diff(map[string]int64{"contract-led-9 0": 3, "rejections-local 0": 1}, got); d != "" {
		t.Errorf("counts (-want +got):\n%s", d)
	}
}

func TestPreviewLeavesNoTrace(t *testing.T) {
	b := newBench(t, nil)
	b.send(t, "x", b.event("sequence", "1"))
	events := raws([]string{b.event("sequence", "1"), b.event("sequence", "1", "payload", "{}"), b.event(), b.event(), b.event("payload", `{"a":2}`), b.event("eventId", "1")})
	previews, err := b.Preview(t.Context(), ledger.Request{Source: b.src}, "x", events)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range previews {
		got = append(got, say(p.Result))
	}
	if d := cmp.Diff([]string{"duplicate", "rejected IDEMPOTENCY_PAYLOAD_CONFLICT", "accepted", "duplicate", "rejected IDEMPOTENCY_PAYLOAD_CONFLICT", "rejected invalid_event /eventId"}, got); d != "" {
		t.Errorf("previews (-want +got):\n%s", d)
	}
	if string(previews[2].CanonicalPayload) != `{"a":1}` {
		t.Errorf("canonical payload %s", previews[2].CanonicalPayload)
	}
	if n := len(ledgertest.ReadAll(t, b.store)); n != 2 || b.Pending() != 0 {
		t.Errorf("%d records, %d pending, want 2 and none", n, b.Pending())
	}
}

func TestClockThatJumps(t *testing.T) {
	wall, counted := ledgertest.Epoch, time.Duration(0)
	b := newBench(t, func(c *ledger.Config) {
		c.Now, c.Elapsed = func() time.Time { return wall }, func() time.Duration { return counted }
	})
	try := func(ahead, elapsed time.Duration) error {
		wall, counted = ledgertest.Epoch.Add(ahead), elapsed
		b.now = wall
		_, err := b.Ingest(t.Context(), ledger.Request{Source: b.src}, "x", raws([]string{b.event("eventId", fmt.Sprintf("%q", fmt.Sprint("e", ahead)))}))
		return err
	}
	for _, c := range []struct {
		ahead, elapsed time.Duration
		stops          bool
	}{
		{time.Hour, time.Hour, false}, {time.Hour + 5*time.Minute, time.Hour, false}, {2 * time.Hour, time.Hour + time.Minute, true},
		{3 * time.Hour, time.Hour + 2*time.Minute, true}, {70 * time.Minute, time.Hour + 3*time.Minute, false}, {time.Minute, time.Hour + 4*time.Minute, false},
	} {
		if err := try(c.ahead, c.elapsed); errors.Is(err, ledger.ErrUnavailable) != c.stops {
			t.Errorf("wall clock %s, counted %s: %v", c.ahead, c.elapsed, err)
		}
	}
}

// Where another instance's clock runs ahead, a key may have come back before its first window ends by
// ours. A window that still names the first generation then must not make its repeat a conflict.
func TestStaleHint(t *testing.T) {
	w := &liar{}
	b := newBench(t, func(c *ledger.Config) { c.Window = w })
	first := b.send(t, "x", b.event())[0]
	ahead := newBench(t, func(c *ledger.Config) { c.Store = b.store })
	ahead.now = b.now.Add(24 * time.Hour)
	again := b.event("payload", "{}")
	second := ahead.send(t, "x", again)[0]
	if second.Generation != 2 {
		t.Fatalf("got %+v, want the second generation", second)
	}
	w.hints = []ledger.Hint{{Hit: true, Revision: first.Revision}}
	if r := b.send(t, "x", again)[0]; r.Status != ledger.StatusDuplicate || r.Position != second.Position {
		t.Errorf("got %s at %s, want a duplicate of %s", say(r), r.Position, second.Position)
	}
}

// liar is a Window that says what the test wants.
type liar struct {
	hints []ledger.Hint
	err   error
	bound []ledger.Binding
}

func (l *liar) Look(_ context.Context, keys []ledger.Key) ([]ledger.Hint, error) {
	return append(l.hints, make([]ledger.Hint, len(keys))...)[:len(keys)], l.err
}

func (l *liar) Bind(_ context.Context, b []ledger.Binding) error {
	l.bound = append(l.bound, b...)
	return l.err
}

func TestWindowIsNeverBelieved(t *testing.T) {
	other := canonical.Sum([]byte("lie"))
	for name, h := range map[string]ledger.Hint{
		"miss": {}, "right": {Hit: true, Revision: 0}, "wrong hash": {Hit: true, Revision: 0, PayloadHash: other},
		"another record": {Hit: true, Revision: 1}, "no record": {Hit: true, Revision: 99}, "nonsense": {Hit: true, Revision: -5},
	} {
		w := &liar{}
		b := newBench(t, func(c *ledger.Config) { c.Window = w })
		first := b.send(t, "x", b.event())[0]
		b.send(t, "x", b.event("sequence", "8"))
		if len(w.bound) != 2 || w.bound[0].Key != first.Key || w.bound[0].BoundUntil != first.ProcessedAt+24*3600*1000 {
			t.Errorf("%s: bound %+v", name, w.bound)
		}
		w.hints = []ledger.Hint{h}
		if r := b.send(t, "x", b.event())[0]; r.Status != ledger.StatusDuplicate || r.Position != first.Position {
			t.Errorf("%s: a repeat is %s at %d", name, say(r), r.Position)
		}
		if r := b.send(t, "x", b.event("payload", "{}"))[0]; say(r) != "rejected IDEMPOTENCY_PAYLOAD_CONFLICT" {
			t.Errorf("%s: another payload is %s", name, say(r))
		}
		if r := b.send(t, "x", b.event("sequence", "9"))[0]; r.Status != ledger.StatusAccepted {
			t.Errorf("%s: a new event is %s", name, say(r))
		}
		w.err = errors.New("down")
		if r := b.send(t, "x", b.event(), b.event("sequence", "10")); r[0].Status != ledger.StatusDuplicate || r[1].Status != ledger.StatusAccepted {
			t.Errorf("%s, then down: %s, %s", name, say(r[0]), say(r[1]))
		}
		b.now = b.now.Add(24 * time.Hour)
		if r := b.send(t, "x", b.event())[0]; r.Generation != 2 {
			t.Errorf("%s: after the window %+v", name, r)
		}
	}
}

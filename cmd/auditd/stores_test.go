package main

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestStores is what a user may expect of the service, whatever it stands on.
func TestStores(t *testing.T) {
	nodeBin := buildNode(t)
	for _, kind := range siteKinds {
		t.Run(kind.name, func(t *testing.T) {
			for _, test := range []struct {
				name string
				run  func(*testing.T, *site)
			}{
				{"verdicts", testVerdicts},
				{"one event", testOneEvent},
				{"rejections", testRejections},
				{"generations", testGenerations},
				{"envelopes", testEnvelopes},
				{"reads", testReads},
				{"reads under load", testReadsUnderLoad},
				{"restart", testRestart},
				{"stream", testStream},
			} {
				t.Run(test.name, func(t *testing.T) { test.run(t, newSite(t, nodeBin, kind.node, kind.redis)) })
			}
		})
	}
}

// stop ends a service and wants it to have had no trouble.
func (p *instance) stopWell(t *testing.T) {
	t.Helper()
	if err := p.end(t); err != nil {
		t.Errorf("stop: %v\n%s", err, p.log)
	}
	if strings.Contains(p.log.String(), "level=ERROR") {
		t.Errorf("the log has errors:\n%s", p.log)
	}
}

const payment = `{"paymentId":"p-1","amount":12.5,"currency":"EUR","status":"completed","timestamp":1767225600000}`

// The example of the requirements, and what belongs to it: accepted, duplicate and conflict in one batch, and
// the same again, before and after the numbers show it.
func testVerdicts(t *testing.T, s *site) {
	p := s.start(t)
	other := strings.Replace(payment, "12.5", "12.6", 1)
	reordered := `{"timestamp":1767225600000.0,"status":"completed","currency":"EUR","amount":1.25e1,"paymentId":"p-1"}`
	body := batch("payment_contract",
		eventOf("contract_123", "event_456", 1, payment), eventOf("contract_123", "event_456", 1, reordered), eventOf("contract_123", "event_456", 1, other),
		eventOf("contract_123", "event_456", 2, payment), eventOf("777001@g.us", "event_456", 1, payment))
	first := send200(t, p.url, body)
	want := []string{"accepted", "duplicate", "rejected IDEMPOTENCY_PAYLOAD_CONFLICT", "accepted", "accepted"}
	if got := first.verdicts(); !slices.Equal(got, want) || first.Processed != 5 || first.Summary.Accepted != 3 || first.Summary.Rejected != 1 || first.Summary.Duplicates != 1 {
		t.Fatalf("got %v %+v, want %v", got, first.Summary, want)
	}
	r := first.Results
	if r[0].DeduplicationKey != "contract_123:event_456:1" || r[0].Generation != 1 || r[3].Revision != r[0].Revision+1 || r[4].Revision != 0 {
		t.Errorf("got %+v", r)
	}
	if r[1].Position != r[0].Position || r[1].ProcessedAt != r[0].ProcessedAt || r[1].PayloadHash != r[0].PayloadHash {
		t.Errorf("duplicate %+v of %+v", r[1], r[0])
	}
	if r[2].HTTPStatus != 409 || !strings.Contains(r[2].Reason, r[0].PayloadHash) || strings.Contains(r[2].Reason, "12.5") || r[2].Position == "" || r[2].Position == r[0].Position {
		t.Errorf("conflict %+v", r[2])
	}
	again := send200(t, p.url, body)
	if got, want := again.verdicts(), []string{"duplicate", "duplicate", want[2], "duplicate", "duplicate"}; !slices.Equal(got, want) {
		t.Errorf("again: got %v, want %v", got, want)
	}
	for i := range r {
		if again.Results[i].Position != r[i].Position || again.Results[i].ProcessedAt != r[i].ProcessedAt {
			t.Errorf("again: got %+v, first %+v", again.Results[i], r[i])
		}
	}
	numbers := settled(t, p.url, func(s *stats) bool { return s.Duplicates == 5 && s.Rejected == 2 })
	if numbers.Accepted != 3 || numbers.Conflicts != 2 || numbers.Total != 5 || numbers.Contracts != 2 || numbers.ByContractType["payment_contract"] != 3 {
		t.Errorf("got %+v", *numbers)
	}
	history := entriesOf(t, p.url, "contract_123", true)
	if len(history) != 3 || history[0].Duplicates != 3 || string(history[0].Payload) == "null" || history[1].Duplicates != 1 || history[2].Code != "IDEMPOTENCY_PAYLOAD_CONFLICT" || string(history[2].Payload) != "null" {
		t.Errorf("history: got %+v", history)
	}
	p.wantMetrics(t, "event_idempotency_active_keys 3", "event_idempotency_evictions_total 0")
	if s.node != nil { // what this instance stored it knows without Redis, whose hint would cost a call to the server
		p.wantMetrics(t, `window_requests_total{result="hit"} 0`)
	}
	p.stopWell(t)
}

// wantMetrics waits until the metrics have the lines.
func (p *instance) wantMetrics(t *testing.T, lines ...string) {
	t.Helper()
	for _, line := range lines {
		p.until(t, "GET", "/metrics", "\n"+line+"\n")
	}
}

// The status of a request with one event is the event's.
func testOneEvent(t *testing.T, s *site) {
	p := s.start(t)
	now := time.Now().UnixMilli()
	for _, test := range []struct {
		members string
		status  int
	}{
		{`"eventId":"e","sequence":0,"payload":{"a":1}`, 201},
		{`"eventId":"e","sequence":0,"payload":{"a":1.0}`, 200},
		{`"eventId":"e","sequence":0,"payload":{"a":2}`, 409},
		{`"eventId":"e","sequence":-1,"payload":{"a":2}`, 422},
		{`"eventId":"e","sequence":1,"payload":{"a":2}`, 201},
	} {
		body := fmt.Sprintf(`{"contractType":"lease_contract","timestamp":%d,%s}`, now, test.members)
		if status, text := p.do(t, "POST", "/api/v1/contracts/con-1/events", body); status != test.status {
			t.Errorf("%s: got %d %s, want %d", test.members, status, text, test.status)
		}
	}
	status, text := p.do(t, "POST", "/api/v1/events/validate", batch("lease_contract", eventOf("con-1", "e", 0, `{"a":1}`), eventOf("con-1", "e", 0, `{"a":3}`), eventOf("con-1", "e", 2, `{"a":1}`)))
	for _, want := range []string{`"wouldBe":"duplicate"`, `"wouldBe":"rejected"`, `"wouldBe":"accepted"`} {
		if status != 200 || !strings.Contains(text, want) {
			t.Errorf("dry run: got %d %s, want %s", status, text, want)
		}
	}
	settled(t, p.url, func(s *stats) bool {
		return s.Accepted == 2 && s.Duplicates == 1 && s.Rejected == 2 && s.Conflicts == 1
	})
	p.stopWell(t)
}

// One bad event never sinks its neighbours, each is in the history with its reason, and the same again
// is counted.
func testRejections(t *testing.T, s *site) {
	p := s.start(t, "--max-payload-bytes=1000")
	old := time.Now().Add(-49 * time.Hour)
	bad := []struct{ event, code string }{
		{eventOf("con-1", "no-currency", 1, `{"paymentId":"p","amount":1,"status":"pending","timestamp":1}`), "invalid_payload"},
		{eventOf("con-1", "led:1", 1, payment), "invalid_event"},
		{eventAt("con-1", "old", 1, old, payment), "event_too_old"},
		{eventAt("con-1", "ahead", 1, time.Now().Add(10*time.Minute), payment), "event_in_future"},
		{eventOf("con-1", "twice", 1, `{"amount":1,"amount":2}`), "duplicate_member"},
		{eventOf("con-1", "large", 1, strings.Replace(payment, "p-1", strings.Repeat("p", 1000), 1)), "payload_too_large"},
		{`{"contractId":"  ","sequence":2.5,"timestamp":"soon","payload":[1]}`, "invalid_event"},
	}
	var events, want []string
	for i, b := range bad {
		events = append(events, b.event, eventOf("con-1", "good", int64(i), payment))
		want = append(want, "rejected "+b.code, "accepted")
	}
	first := send200(t, p.url, batch("payment_contract", events...))
	if got := first.verdicts(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if worst := first.Results[12]; len(worst.Errors) != 5 || worst.DeduplicationKey != "" {
		t.Errorf("all wrong at once: got %+v, want five errors", worst)
	}
	again := send200(t, p.url, batch("payment_contract", events...))
	for i := 0; i < len(events); i += 2 {
		if again.Results[i].Position != first.Results[i].Position {
			t.Errorf("again: got %+v, first %+v", again.Results[i], first.Results[i])
		}
	}
	numbers := settled(t, p.url, func(s *stats) bool { return s.Rejected == 14 && s.Duplicates == 7 })
	if numbers.Accepted != 7 || numbers.Conflicts != 0 || numbers.ByCode["invalid_event"] != 4 || numbers.ByCode["event_too_old"] != 2 {
		t.Errorf("got %+v", *numbers)
	}
	codes := map[string]int{}
	for _, e := range entriesOf(t, p.url, "con-1", false) {
		codes[e.Code]++
	}
	if want := map[string]int{"": 7, "invalid_payload": 1, "invalid_event": 1, "event_too_old": 1, "event_in_future": 1, "duplicate_member": 1, "payload_too_large": 1}; !reflect.DeepEqual(codes, want) {
		t.Errorf("history: got %v, want %v", codes, want)
	}
	p.stopWell(t)
}

// sources writes a sources file and returns its name. Tokens are the sources' names.
func sources(t *testing.T) string {
	t.Helper()
	hash := func(token string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(token))) }
	text := "sources:\n" +
		"  - {name: boss, role: admin, keys: [{id: k, sha256: " + hash("boss") + "}]}\n" +
		"  - {name: short, role: collector, window: 1s, keys: [{id: k, sha256: " + hash("short") + "}]}\n" +
		"  - {name: forever, role: collector, window: \"0\", keys: [{id: k, sha256: " + hash("forever") + "}]}\n" +
		"  - {name: lake, role: collector, sequence: free, keys: [{id: lake-key, legacySecret: unit-secret}]}\n"
	file := filepath.Join(t.TempDir(), "sources.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// A key that comes back after its window is the next generation; a window of 0 has no end.
func testGenerations(t *testing.T, s *site) {
	const window = time.Second
	p := s.start(t, "--sources-file="+sources(t))
	bearer := func(name string) []string { return []string{"Authorization", "Bearer " + name} }
	kept := batch("lease_contract", eventOf("con-1", "kept", 1, `{"a":1}`))
	keptFirst := send200(t, p.url, kept, bearer("forever")...)
	at := func(r result) time.Time {
		when, err := time.Parse(time.RFC3339, r.ProcessedAt)
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	var all []result
	for generation, payload := range []string{`{"a":1}`, `{"a":1}`, `{"a":2}`} {
		body := batch("lease_contract", eventOf("con-1", "back", 2, payload))
		until(t, func() bool {
			r := send200(t, p.url, body, bearer("short")...).Results[0]
			if r.Status == "accepted" {
				all = append(all, r)
				return true
			}
			last := all[len(all)-1]
			if same := r.PayloadHash == last.PayloadHash; same != (r.Status == "duplicate") || same && r.Position != last.Position || !same && r.HTTPStatus != 409 {
				t.Fatalf("generation %d: got %+v while %+v is bound", generation+1, r, last)
			}
			return false
		})
		r := all[generation]
		if r.Generation != int64(generation+1) || generation > 0 && at(r).Sub(at(all[generation-1])) < window {
			t.Errorf("got %+v as generation %d after %+v", r, generation+1, all)
		}
	}
	if again := send200(t, p.url, kept, bearer("forever")...).Results[0]; again.Status != "duplicate" || again.Position != keptFirst.Results[0].Position {
		t.Errorf("a key bound for ever: got %+v", again)
	}
	var event struct{ Entries []entry }
	_, text, err := ask(http.DefaultClient, "GET", p.url+"/api/v1/contracts/con-1/events/back/2?atLeast="+all[2].Position, "", bearer("boss")...)
	if err == nil {
		err = json.Unmarshal([]byte(text), &event)
	}
	if err != nil || len(event.Entries) != 3 {
		t.Fatalf("got %s %v, want three generations", text, err)
	}
	for i, e := range event.Entries {
		if *e.Generation != int64(i+1) || e.Position != all[i].Position || e.PayloadChanged != (i == 2) || i > 0 && *e.Supersedes != all[i-1].Revision {
			t.Errorf("generation %d: got %+v", i+1, e)
		}
	}
	for _, line := range []string{"event_idempotency_active_keys 1", "event_idempotency_evictions_total 2"} { // what comes back for good has run out soon
		until(t, func() bool {
			_, text, err := ask(http.DefaultClient, "GET", p.url+"/metrics", "", bearer("boss")...)
			return err == nil && strings.Contains(text, "\n"+line+"\n")
		})
	}
	p.stopWell(t)
}

// Envelopes are known for ever, on a folder that knows nothing too.
func testEnvelopes(t *testing.T, s *site) {
	const id, body = "1e6e0c10-8204-53b6-9664-9b4d6f510160", `{"type":"messages.upsert","chat_jid":"777001@g.us","payload":{"t":1}}`
	sign := func(id, body string) []string {
		mac := hmac.New(sha256.New, []byte("unit-secret"))
		mac.Write([]byte(id + "." + body))
		return []string{"X-Event-Id", id, "X-Signature", hex.EncodeToString(mac.Sum(nil))}
	}
	if got := sign(id, body)[3]; got != "5447a3b025727c099423614739e92270dc32f067c881c4c621d1c266785f2b0c" {
		t.Fatalf("the test signs wrongly: %s", got)
	}
	other := strings.Replace(body, `"t":1`, `"t":2`, 1)
	array := `{"type":"x","chat_jid":"a","payload":[1,{"a":[]}]}`
	file := sources(t)
	post := func(p *instance, name, body string, headers []string, want int) {
		t.Helper()
		if status, text, err := ask(http.DefaultClient, "POST", p.url+"/api/v1/envelopes", body, headers...); err != nil || status != want {
			t.Errorf("%s: got %d %s %v, want %d", name, status, text, err, want)
		}
	}
	p := s.start(t, "--sources-file="+file)
	post(p, "new", body, sign(id, body), 201)
	post(p, "known", body, sign(id, body), 200)
	post(p, "other payload", other, sign(id, other), 409)
	post(p, "array", array, sign(id, array), 201)
	post(p, "no UUID", body, sign("event-1", body), 400)
	post(p, "signature of another body", body, sign(id, other), 401)
	post(p, "no signature", body, nil, 401)
	post(p, "no type", `{"chat_jid":"d","payload":{}}`, sign(id, `{"chat_jid":"d","payload":{}}`), 422)
	p.stopWell(t)
	s.forget(t)
	p = s.start(t, "--sources-file="+file)
	post(p, "known after a start", body, sign(id, body), 200)
	post(p, "other payload after a start", other, sign(id, other), 409)
	post(p, "array after a start", array, sign(id, array), 200)
	p.stopWell(t)
}

// What was answered can be read, at once where the reader says how far the answers must be.
func testReads(t *testing.T, s *site) {
	p := s.start(t)
	for i, sequence := range []int64{1, 2, 5, 4} {
		send200(t, p.url, batch("lease_contract", eventOf("lease.1@x", fmt.Sprint("e-", i), sequence, fmt.Sprintf(`{"i":%d}`, i))))
	}
	last := send200(t, p.url, batch("lease_contract", eventOf("lease.1@x", "e-9", 5, `{"i":9}`), eventOf("lease.1@x", "e-0", 1, `{"i":1}`)))
	const contract = "/api/v1/contracts/lease.1@x"
	status, text := p.do(t, "GET", contract+"/history?payload=true&atLeast="+last.Position, "")
	for _, want := range []string{`"SEQUENCE_GAP"`, `"SEQUENCE_REGRESSION"`, `"SEQUENCE_REUSED"`, `"CONFLICT"`, `"payload":{"i":9}`, `"fromSequence":3`} {
		if status != 200 || !strings.Contains(text, want) {
			t.Errorf("history: got %d %s, want %s", status, text, want)
		}
	}
	last = send200(t, p.url, batch("lease_contract", eventOf("lease.1@x", "e-5", 3, `{"i":5}`)))
	if _, text := p.do(t, "GET", contract+"/history?atLeast="+last.Position, ""); strings.Contains(text, `"SEQUENCE_GAP"`) {
		t.Errorf("a gap that was filled: got %s", text)
	}
	for path, want := range map[string]string{
		contract + "/events/e-0/1":               `"entries":[{"position"`,
		contract + "/history?status=rejected":    `"code":"IDEMPOTENCY_PAYLOAD_CONFLICT"`,
		"/api/v1/stats?bucket=hour":              `"series":[{`,
		"/api/v1/contracts?search=lease.1":       `"contractId":"lease.1@x"`,
		"/api/v1/projections":                    `"state":"live"`,
		"/api/v1/contracts/none/history?limit=1": `"entries":[]`,
	} {
		sep := map[bool]string{true: "&", false: "?"}[strings.Contains(path, "?")]
		if status, text := p.do(t, "GET", path+sep+"atLeast="+last.Position, ""); status != 200 || !strings.Contains(text, want) {
			t.Errorf("%s: got %d %s, want %s", path, status, text, want)
		}
	}
	for path, want := range map[string]int{
		contract + "/events/e-0/2":                        404,
		"/api/v1/stats?atLeast=999999999999999":           400,
		contract + "/history?limit=0":                     400,
		contract + "/history?cursor=abc":                  400,
		contract + "/history?atLeast=" + last.Position:    200,
		contract + "/history?order=asc&limit=1&from=oops": 400,
	} {
		if status, text := p.do(t, "GET", path, ""); status != want {
			t.Errorf("%s: got %d %s, want %d", path, status, text, want)
		}
	}
	seen, cursor := 0, ""
	for page := 0; page == 0 || cursor != ""; page++ {
		var h struct {
			Entries    []entry
			NextCursor string
		}
		get(t, p.url+contract+"/history?limit=2&cursor="+cursor, &h)
		seen, cursor = seen+len(h.Entries), h.NextCursor
	}
	if seen != 7 {
		t.Errorf("page by page: got %d entries, want 7", seen)
	}
	const query = `{"query":"{contract(id:\"lease.1@x\"){accepted conflicts findings{kind} history(first:3,order:DESC){edges{node{position payload previous{position}}}}} stats{accepted} event(contractId:\"lease.1@x\",eventId:\"e-5\",sequence:3){position}}"}`
	status, text = p.do(t, "POST", "/graphql", query)
	for _, want := range []string{`"accepted":6`, `"conflicts":1`, `"position":"` + last.Position + `"`, `"payload":{"i":5}`, `"previous":{`} {
		if status != 200 || !strings.Contains(text, want) || strings.Contains(text, `"errors"`) {
			t.Errorf("graphql: got %d %s, want %s", status, text, want)
		}
	}
	p.stopWell(t)
}

// What was just answered can be read while much else comes in, and the numbers go on meanwhile.
func testReadsUnderLoad(t *testing.T, s *site) {
	p, l := s.start(t), newLoad()
	l.start(p.url, 8)
	before := int64(0)
	for i := range int64(10) {
		l.more(t, 5)
		one := send200(t, p.url, batch("lease_contract", eventOf("con-1", "e", i, `{}`)))
		for late := time.Now().Add(20 * time.Second); ; {
			status, text := p.do(t, "GET", "/api/v1/contracts/con-1/history?atLeast="+one.Position, "")
			if status == 200 && strings.Count(text, `"deduplicationKey"`) == int(i)+1 {
				break
			}
			if status != 503 || time.Now().After(late) { // it may take more than the two seconds that a read waits
				t.Fatalf("event %d: got %d %.300s", i, status, text)
			}
		}
		var now stats
		if get(t, p.url+"/api/v1/stats", &now); now.Accepted <= before {
			t.Errorf("event %d: %d accepted, %d before", i, now.Accepted, before)
		}
		before = now.Accepted
	}
	if err := l.stop(); err != nil {
		t.Error(err)
	}
	p.stopWell(t)
}

// A service that is started again knows all that was answered, where its folder is lost too.
func testRestart(t *testing.T, s *site) {
	p := s.start(t)
	var events, changed []string
	for i := range 150 {
		events = append(events, eventOf(fmt.Sprint("con-", i%3), "e", int64(i), fmt.Sprintf(`{"i":%d}`, i)))
		changed = append(changed, eventOf(fmt.Sprint("con-", i%3), "e", int64(i), `{"i":"changed"}`))
	}
	first := send200(t, p.url, batch("lease_contract", events...))
	if first.Summary.Accepted != 150 {
		t.Fatalf("got %+v, want all accepted", first.Summary)
	}
	numbers := settled(t, p.url, func(s *stats) bool { return s.Accepted == 150 })
	p.stopWell(t)
	for try := range int64(2) {
		s.forget(t)
		if s.redis != nil && try > 0 { // first with hints, then without
			s.redis.Do(t, "FLUSHALL")
		}
		p = s.start(t)
		again := send200(t, p.url, batch("lease_contract", events...))
		for i := range events {
			if a, f := again.Results[i], first.Results[i]; a.Status != "duplicate" || a.Position != f.Position || a.ProcessedAt != f.ProcessedAt {
				t.Errorf("start %d: got %+v, first %+v", try, a, f)
			}
		}
		if conflicts := send200(t, p.url, batch("lease_contract", changed...)); conflicts.Summary.Rejected != 150 {
			t.Errorf("start %d: got %+v, want all in conflict", try, conflicts.Summary)
		}
		now := settled(t, p.url, func(s *stats) bool { return s.Duplicates == 150*(try+1) && s.Conflicts == 150*(try+1) })
		if now.Accepted != numbers.Accepted || now.Contracts != 3 {
			t.Errorf("start %d: got %+v, before %+v", try, *now, *numbers)
		}
		p.wantMetrics(t, "event_idempotency_active_keys 150", "event_idempotency_evictions_total 0")
		p.stopWell(t)
	}
}

// activity is an open stream of server-sent events.
type activity struct {
	resp *http.Response
	ids  chan [2]string // the id of each event and its data
}

func (p *instance) subscribe(t *testing.T, lastID string) *activity {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "POST", p.url+"/graphql", strings.NewReader(`{"query":"subscription{activity{position eventId status}}"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("subscribe: %v %v", resp, err)
	}
	a := &activity{resp, make(chan [2]string, 1000)}
	go func() {
		defer resp.Body.Close()
		defer close(a.ids)
		var item [2]string
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			line := lines.Text()
			if id, ok := strings.CutPrefix(line, "id: "); ok {
				item[0] = id
			}
			if data, ok := strings.CutPrefix(line, "data: "); ok && item[0] != "" {
				item[1] = data
				a.ids <- item
				item = [2]string{}
			}
		}
	}()
	return a
}

// next wants an event of the name to be next, and returns its id.
func (a *activity) next(t *testing.T, name string) string {
	t.Helper()
	select {
	case item, ok := <-a.ids:
		if !ok || !strings.Contains(item[1], `"eventId":"`+name+`"`) {
			t.Fatalf("got %v, want %s", item, name)
		}
		return item[0]
	case <-time.After(40 * time.Second):
		t.Fatalf("%s does not come", name)
		return ""
	}
}

// An event stream shows each event once, in order, over outages of what the service stands on and, from
// the last id on, over its restarts.
func testStream(t *testing.T, s *site) {
	p := s.start(t)
	n := 0
	stored := func(count int) { // stores so many, whatever it takes
		t.Helper()
		for range count {
			body := batch("lease_contract", eventOf("con-1", fmt.Sprint("e-", n), int64(n), `{}`))
			until(t, func() bool {
				status, text := p.do(t, "POST", "/api/v1/events", body)
				return status == 200 && strings.Contains(text, `"rejected":0`)
			})
			n++
		}
	}
	a, shown, last := p.subscribe(t, ""), 0, ""
	showed := func() {
		t.Helper()
		for ; shown < n; shown++ {
			last = a.next(t, fmt.Sprint("e-", shown))
		}
	}
	stored(3)
	showed()
	if s.node != nil {
		s.node.kill()
		if status, text := p.do(t, "GET", "/readyz", ""); status != 503 || !strings.Contains(text, `"store":"failing"`) {
			t.Errorf("without the node: got %d %s", status, text)
		}
		s.node.start(t)
		p.until(t, "GET", "/readyz", `"store":"ok"`)
	}
	if s.redis != nil {
		s.redis.Stop()
		if status, text := p.do(t, "GET", "/readyz", ""); status != 200 || !strings.Contains(text, `"window":"away"`) {
			t.Errorf("without Redis: got %d %s", status, text)
		}
		stored(2)
		s.redis.Start(t)
		p.until(t, "GET", "/readyz", `"window":"ok"`)
	}
	stored(2)
	showed()
	if err := p.end(t); err != nil {
		t.Errorf("stop: %v\n%s", err, p.log)
	}
	s.forget(t)
	p = s.start(t)
	stored(1)
	until(t, func() bool { // the position of the id must be known again
		var at stats
		get(t, p.url+"/api/v1/stats", &at)
		return at.Accepted == int64(n)
	})
	a = p.subscribe(t, last)
	stored(2)
	showed()
	if err := p.end(t); err != nil {
		t.Errorf("stop: %v\n%s", err, p.log)
	}
	if item, open := <-a.ids; open {
		t.Errorf("the stream went on with %v", item)
	}
}

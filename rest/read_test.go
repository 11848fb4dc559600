package rest_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

type statsAnswer struct {
	Total, Accepted, Rejected, Duplicates, Conflicts, Contracts int64
	ByContractType, ByCode                                      map[string]int64
	AsOf                                                        struct{ Position string }
	Lag                                                         struct{ Records, Milliseconds int64 }
	Series                                                      []struct {
		Start           string
		Total, Accepted int64
	}
}

type entry struct {
	Position         string
	Revision         int64
	DeduplicationKey *string
	EventID          *string
	Sequence         *int64
	Generation       *int64
	Supersedes       *int64
	PayloadChanged   bool
	ContractType     string
	Status           string
	Code             *string
	Timestamp        *int64
	ProcessedAt      string
	PayloadHash      *string
	Source           string
	CorrelationID    string
	Duplicates       int64
	LastDuplicateAt  *string
	Sanitized        bool
	Payload          any
}

type historyAnswer struct {
	ContractID    string
	Entries       []entry
	Findings      []struct{ Kind, Message string }
	FindingsTotal int64
	NextCursor    *string
}

// get reads what must be answered 200.
func get[T any](s *service, path string) T {
	s.t.Helper()
	r := s.do("GET", path, "")
	if r.status != http.StatusOK {
		s.t.Fatalf("GET %s: got %d %s", path, r.status, r.body)
	}
	return into[T](s.t, r)
}

// until asks again and again, for a while, until f says yes.
func (s *service) until(what string, f func() bool) {
	s.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(10 * time.Second)
	for !f() {
		select {
		case <-tick.C:
		case <-late:
			s.t.Fatalf("it never happened that %s", what)
		}
	}
}

// settled is the stats when everything is in them.
func (s *service) settled() (st statsAnswer) {
	s.t.Helper()
	s.until("nothing is behind", func() bool {
		st = get[statsAnswer](s, "/api/v1/stats")
		return st.Lag.Records == 0
	})
	return st
}

func TestStatsAndRebuild(t *testing.T) {
	s := newService(t, options{})
	good := event("c-1", "e-1", 1, `{}`)
	s.post("lease_contract", good)
	s.post("lease_contract", good)
	s.post("lease_contract", `{}`)
	want := statsAnswer{Total: 2, Accepted: 1, Rejected: 1, Duplicates: 1, Contracts: 1}
	check := func(when string) {
		t.Helper()
		st := s.settled()
		got := statsAnswer{Total: st.Total, Accepted: st.Accepted, Rejected: st.Rejected, Duplicates: st.Duplicates, Conflicts: st.Conflicts, Contracts: st.Contracts}
		if fmt.Sprint(got) != fmt.Sprint(want) || st.ByContractType["lease_contract"] != 1 || st.ByCode["invalid_event"] != 1 {
			t.Errorf("%s: got %+v, want %+v", when, st, want)
		}
	}
	check("live")
	type states struct {
		Projections []struct {
			Name, State, Position, Head string
			Lag                         int64
		}
	}
	for _, p := range get[states](s, "/api/v1/projections").Projections {
		if r := s.do("POST", "/api/v1/projections/"+p.Name+"/rebuild", ""); r.status != http.StatusAccepted {
			t.Errorf("rebuild %s: got %d %s", p.Name, r.status, r.body)
		}
	}
	s.until("all are live again", func() bool {
		return !slices.ContainsFunc(get[states](s, "/api/v1/projections").Projections, func(p struct {
			Name, State, Position, Head string
			Lag                         int64
		}) bool {
			return p.State != "live"
		})
	})
	check("rebuilt")
	if r := s.do("POST", "/api/v1/projections/none/rebuild", ""); r.status != http.StatusNotFound {
		t.Errorf("unknown projection: got %d", r.status)
	}
}

func TestStatsSeries(t *testing.T) {
	s := newService(t, options{})
	s.post("lease_contract", event("c-1", "e-1", 1, `{}`))
	s.clock.set(noon.Add(90 * time.Minute))
	s.post("lease_contract", event("c-1", "e-2", 2, `{}`))
	s.settled()
	st := get[statsAnswer](s, "/api/v1/stats?bucket=hour&from=2026-03-01T12:00:00Z&to=2026-03-01T14:00:00Z")
	if len(st.Series) != 2 || st.Series[1].Start != "2026-03-01T13:00:00.000Z" || st.Series[1].Accepted != 1 {
		t.Errorf("got %+v", st.Series)
	}
	if st := get[statsAnswer](s, fmt.Sprintf("/api/v1/stats?from=%d", noon.Add(time.Hour).UnixMilli())); st.Accepted != 1 || st.Series != nil {
		t.Errorf("got %+v, want one accepted and no series", st)
	}
}

func TestParameters(t *testing.T) {
	s := newService(t, options{})
	s.post("lease_contract", event("c-1", "e-1", 1, `{}`))
	for _, test := range []struct{ path, names string }{
		{"stats?bucket=week", "bucket must be hour or day"},
		{"stats?bucket=", "bucket"},
		{"stats?from=yesterday", "from must be a time"},
		{"stats?from=2026-03-01T12:30:00Z", "from"},
		{"stats?from=2026-03-01T12:00:00Z&bucket=day", "from"},
		{"stats?from=2026-03-01T12:00:00Z&to=2026-03-01T12:00:00Z", "from must be before to"},
		{"stats?limit=3", "limit is not a parameter here"},
		{"stats?atLeast=x", "atLeast"},
		{"stats?atLeast=01", "atLeast"},
		{"stats?atLeast=99999", "beyond the head"},
		{"contracts?limit=0", "limit must be a whole number from 1 to 1000"},
		{"contracts?limit=1001", "limit"},
		{"contracts?limit=07", "limit"},
		{"contracts?limit=", "limit"},
		{"contracts?limit=1&limit=2", "limit is there twice"},
		{"contracts?cursor=abc", "cursor"},
		{"contracts?a;b", "query"},
		{"contracts/c-1/history?order=up", "order must be desc or asc"},
		{"contracts/c-1/history?status=duplicate", "status must be accepted or rejected"},
		{"contracts/c-1/history?code=nope", "code must be one of invalid_event"},
		{"contracts/c-1/history?payload=1", "payload"},
		{"contracts/c-1/history?from=2026-03-01T12:00:00.0001Z", "from"},
		{"contracts/c-1/history?to=-5", "to"},
		{"contracts/c-1/history?Limit=5", "Limit is not a parameter here"},
		{"contracts/c:1/history", "contractId must be 1 to 255 characters"},
		{"contracts/c%001/history", "contractId"},
		{"contracts/c-1/events/e-1/x", "sequence"},
		{"contracts/c-1/events/e-1/-1", "sequence"},
		{"contracts/c-1/events/e%201/1", "eventId"},
		{"projections?x=1", "x is not a parameter here"},
	} {
		r := s.do("GET", "/api/v1/"+test.path, "")
		if p := into[problem](t, r); r.status != 400 || p.Code != "invalid_parameter" || !strings.Contains(p.Detail, test.names) {
			t.Errorf("%s: got %d %+v, want 400 with %q", test.path, r.status, p, test.names)
		}
	}
}

// The pages hold every event once, while others are stored.
func TestPages(t *testing.T) {
	s := newService(t, options{})
	var events []string
	for i := range 100 {
		events = append(events, event("c-1", fmt.Sprint("e-", i), i, `{}`))
	}
	head := s.post("lease_contract", events...).Position
	for _, order := range []string{"desc", "asc"} {
		var got []int64
		path := "/api/v1/contracts/c-1/history?limit=7&order=" + order + "&atLeast=" + head
		for n := 0; path != ""; n++ {
			page := get[historyAnswer](s, path)
			for _, e := range page.Entries {
				got = append(got, *e.Sequence)
			}
			s.post("lease_contract", event("c-1", "late-"+order, 1000+n, `{}`))
			path = ""
			if page.NextCursor != nil {
				path = "/api/v1/contracts/c-1/history?limit=7&order=" + order + "&cursor=" + *page.NextCursor
				if n == 0 {
					s.checkEditedCursors(path, *page.NextCursor)
				}
			}
		}
		if order == "desc" {
			slices.Reverse(got)
		}
		if len(got) < 100 || !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
			t.Errorf("%s: got %d entries %v, want each once in order", order, len(got), got)
		}
	}
}

func (s *service) checkEditedCursors(path, cursor string) {
	s.t.Helper()
	other := "A"
	if cursor[5] == 'A' {
		other = "B"
	}
	for _, bad := range []string{
		strings.Replace(path, cursor, cursor[:5]+other+cursor[6:], 1),
		strings.Replace(path, cursor, cursor[:len(cursor)-1], 1),
		path + "&status=accepted",
		strings.Replace(path, "/c-1/", "/c-2/", 1),
	} {
		r := s.do("GET", bad, "")
		if p := into[problem](s.t, r); r.status != 400 || !strings.HasPrefix(p.Detail, "cursor") {
			s.t.Errorf("%s: got %d %+v, want 400 naming the cursor", bad, r.status, p)
		}
	}
}

func TestHistory(t *testing.T) {
	s := newService(t, options{})
	const contract = "777001@g.us_a-b"
	s.post("lease_contract", event(contract, "e-1", 1, `{"rent":1152921504606846977,"z":"\u0000x"}`))
	s.post("lease_contract", event(contract, "e-1", 1, `{"rent":1152921504606846977,"z":"x"}`))
	s.post("lease_contract", event(contract, "e-1", 1, `{"rent":2}`))
	s.post("lease_contract", event(contract, "e-5", 5, `{}`))
	s.settled()
	h := get[historyAnswer](s, "/api/v1/contracts/"+url.PathEscape(contract)+"/history?payload=true&order=asc")
	if h.ContractID != contract || len(h.Entries) != 3 {
		t.Fatalf("got %+v, want three entries", h)
	}
	first, conflict := h.Entries[0], h.Entries[1]
	if first.Duplicates != 1 || first.LastDuplicateAt == nil || !first.Sanitized || *first.Generation != 1 || first.Code != nil || first.Source != "local" || first.CorrelationID == "" || *first.Timestamp != noon.UnixMilli() {
		t.Errorf("got %+v", first)
	}
	if conflict.Status != "rejected" || *conflict.Code != "IDEMPOTENCY_PAYLOAD_CONFLICT" || conflict.Payload != nil || conflict.PayloadHash == nil || conflict.Generation != nil {
		t.Errorf("got %+v, want a conflict without payload", conflict)
	}
	if kinds := fmt.Sprint(h.Findings); h.FindingsTotal != 3 || !strings.Contains(kinds, "SEQUENCE_GAP") || !strings.Contains(kinds, "CONFLICT") || !strings.Contains(kinds, "SANITIZED") {
		t.Errorf("got findings %v", h.Findings)
	}
	r := s.do("GET", "/api/v1/contracts/777001%40g%2Eus_a-b/history?payload=true&status=accepted&order=asc&limit=1", "")
	if !strings.Contains(string(r.body), `"payload":{"rent":1.152921504606846977e+18,"z":"x"}`) {
		t.Errorf("got %s, want the canonical payload with every digit", r.body)
	}
	if h := get[historyAnswer](s, "/api/v1/contracts/"+contract+"/history?code=IDEMPOTENCY_PAYLOAD_CONFLICT"); len(h.Entries) != 1 {
		t.Errorf("by code: got %+v", h.Entries)
	}
	if h := get[historyAnswer](s, "/api/v1/contracts/"+contract+"/history?to=2026-03-01T12:00:00Z"); len(h.Entries) != 0 {
		t.Errorf("before noon: got %+v", h.Entries)
	}
	if r := s.do("GET", "/api/v1/contracts/never-seen/history", ""); r.status != 200 || !strings.Contains(string(r.body), `"entries":[],"findings":[]`) {
		t.Errorf("unknown contract: got %d %s", r.status, r.body)
	}
	list := get[struct{ Contracts []map[string]any }](s, "/api/v1/contracts?search=G.US")
	if len(list.Contracts) != 1 || list.Contracts[0]["contractId"] != contract || list.Contracts[0]["lastSequence"] != 5.0 {
		t.Errorf("contracts: got %v", list)
	}
}

// A page with payloads is bounded in bytes, and the next one goes on where it ends.
func TestLargePayloadPages(t *testing.T) {
	s := newService(t, options{})
	var head string
	const events, payload = 45, 250_000
	for from := 0; from < events; from += 15 {
		var batch []string
		for i := from; i < from+15; i++ {
			batch = append(batch, event("c-1", fmt.Sprint("e-", i), i, `{"a":"`+strings.Repeat("x", payload)+`"}`))
		}
		head = s.post("lease_contract", batch...).Position
	}
	path, seen := "/api/v1/contracts/c-1/history?payload=true&limit=100&atLeast="+head, 0
	for pages := 0; path != ""; pages++ {
		r := s.do("GET", path, "")
		if len(r.body) > 9<<20 || pages > 3 {
			t.Fatalf("page %d has %d bytes", pages, len(r.body))
		}
		page := into[historyAnswer](t, r)
		seen += len(page.Entries)
		path = ""
		if page.NextCursor != nil {
			path = "/api/v1/contracts/c-1/history?payload=true&limit=100&cursor=" + *page.NextCursor
		}
	}
	if seen != events {
		t.Errorf("got %d entries, want %d", seen, events)
	}
}

func TestGenerations(t *testing.T) {
	s := newService(t, options{})
	at := func(payload string) string {
		return fmt.Sprintf(`{"contractId":"c-1","eventId":"e-1","sequence":3,"timestamp":%d,"payload":%s}`, s.clock.now().UnixMilli(), payload)
	}
	s.post("lease_contract", at(`{"a":1}`))
	s.clock.set(noon.Add(24*time.Hour - time.Millisecond))
	if r := s.post("lease_contract", at(`{"a":1}`)).Results[0]; r.Status != "duplicate" || !r.EnvelopeChanged {
		t.Errorf("at the end of the window: got %+v, want a duplicate with another timestamp", r)
	}
	s.clock.set(noon.Add(24 * time.Hour))
	if r := s.post("lease_contract", at(`{"a":2}`)).Results[0]; r.Status != "accepted" || *r.Generation != 2 {
		t.Errorf("after the window: got %+v, want generation 2", r)
	}
	s.settled()
	e := get[struct{ Entries []entry }](s, "/api/v1/contracts/c-1/events/e-1/3?payload=true").Entries
	if len(e) != 2 || *e[1].Generation != 2 || *e[1].Supersedes != e[0].Revision || !e[1].PayloadChanged || fmt.Sprint(e[1].Payload) != "map[a:2]" {
		t.Errorf("got %+v", e)
	}
	if r := s.do("GET", "/api/v1/contracts/c-1/events/e-1/4", ""); r.status != 404 {
		t.Errorf("unknown key: got %d", r.status)
	}
	metrics := string(s.do("GET", "/metrics", "").body)
	for _, line := range []string{
		"event_idempotency_active_keys 1", "event_idempotency_evictions_total 1",
		`ledger_events_total{code="",status="accepted"} 2`, `ledger_events_total{code="",status="duplicate"} 1`,
		`projection_lag_records{projection="history"} 0`, "projection_lag_seconds 0",
		`http_request_duration_seconds_count{route="/api/v1/events",status="200"} 3`,
	} {
		if !strings.Contains(metrics, "\n"+line+"\n") {
			t.Errorf("metrics: no line %s", line)
		}
	}
}

// What was just answered is seen by a read that says so.
func TestReadYourWrites(t *testing.T) {
	s := newService(t, options{})
	for i := range 100 {
		at := s.post("lease_contract", event("c-1", fmt.Sprint("e-", i), i, `{}`)).Position
		h := get[historyAnswer](s, "/api/v1/contracts/c-1/history?limit=1&atLeast="+at)
		if len(h.Entries) != 1 || h.Entries[0].Position != at {
			t.Fatalf("run %d: got %+v, want position %s", i, h.Entries, at)
		}
	}
}

func TestDryRunLeavesNoTrace(t *testing.T) {
	s := newService(t, options{})
	s.post("lease_contract", event("c-1", "e-1", 1, `{}`))
	before := s.settled()
	body := batch("lease_contract", event("c-1", "e-1", 1, `{}`), event("c-1", "e-2", 2, `{}`), `{}`)
	for range 3 {
		if r := s.do("POST", "/api/v1/events/validate", body); r.status != 200 {
			t.Fatalf("got %d %s", r.status, r.body)
		}
	}
	if after := s.settled(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("got %+v, want %+v", after, before)
	}
	if metrics := string(s.do("GET", "/metrics", "").body); !strings.Contains(metrics, `ledger_events_total{code="",status="accepted"} 1`) || strings.Contains(metrics, `status="rejected"`) {
		t.Error("the dry run is in the metrics")
	}
}

func TestRestartKeepsPositions(t *testing.T) {
	o := options{dir: t.TempDir()}
	s := newService(t, o)
	first := s.post("lease_contract", event("c-1", "e-1", 1, `{}`)).Results[0]
	for i := range 20 {
		var others []string
		for j := range 100 {
			others = append(others, event(fmt.Sprint("d-", j), "e", i, `{}`))
		}
		s.post("lease_contract", others...)
	}
	before := s.settled()
	s.stop()
	s = newService(t, o)
	if r := s.post("lease_contract", event("c-1", "e-1", 1, `{}`)).Results[0]; r.Status != "duplicate" || r.Position != first.Position || r.ProcessedAt != first.ProcessedAt {
		t.Errorf("got %+v, want a duplicate of %+v", r, first)
	}
	if st := s.settled(); st.Accepted != before.Accepted || st.Duplicates != 1 {
		t.Errorf("got %+v, want %d accepted and one duplicate", st, before.Accepted)
	}
}

func TestReadiness(t *testing.T) {
	s := newService(t, options{})
	if r := s.do("GET", "/readyz", ""); r.status != 200 || !strings.Contains(string(r.body), `"projections":"ok"`) {
		t.Errorf("got %d %s", r.status, r.body)
	}
}

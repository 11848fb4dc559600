package rest_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestBatch(t *testing.T) {
	s := newService(t, options{})
	first := s.post("lease_contract", event("led-9", "ev-4", 7, `{"rent":100,"keys":[1,2]}`))
	if got, want := *first.Results[0].Key, "led-9:ev-4:7"; got != want {
		t.Errorf("key: got %s, want %s", got, want)
	}
	a := s.post("lease_contract",
		event("led-9", "ev-4", 7, `{"keys":[1,2],"rent":1e2}`),
		event("led-9", "ev-4", 7, `{"keys":[2,1],"rent":100}`),
		`{"contractId":"  ","sequence":-4,"timestamp":"soon","payload":"txt"}`,
		event("led-9", "ev-5", 8, `{}`))
	var got []string
	for _, r := range a.Results {
		got = append(got, r.Status+" "+r.Code)
	}
	want := []string{"duplicate ", "rejected IDEMPOTENCY_PAYLOAD_CONFLICT", "rejected invalid_event", "accepted "}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if r := a.Results[0]; r.Position != first.Results[0].Position || r.ProcessedAt != first.Results[0].ProcessedAt {
		t.Errorf("duplicate: got position %s at %s, want the first's: %+v", r.Position, r.ProcessedAt, first.Results[0])
	}
	if r := a.Results[2]; len(r.Errors) != 5 || r.HTTPStatus != 422 || r.Key != nil || r.Position == "" {
		t.Errorf("unusable event: got %+v, want five errors, 422, no key and a position", r)
	}
	if a.Processed != 4 || a.Summary.Accepted != 1 || a.Summary.Rejected != 2 || a.Summary.Duplicates != 1 {
		t.Errorf("got %+v", a)
	}
}

func TestBadRequests(t *testing.T) {
	s := newService(t, options{})
	good := event("c-1", "e-1", 1, `{}`)
	for _, test := range []struct {
		name, body string
		status     int
		code       string
		names      string // what the detail must name
	}{
		{"empty", ``, 400, "invalid_json", ""},
		{"null", `null`, 400, "invalid_request", "object"},
		{"array", `[]`, 400, "invalid_request", "object"},
		{"number", `12`, 400, "invalid_request", "object"},
		{"truncated", `{"contractType":"x_contract","events":[` + good, 400, "invalid_json", ""},
		{"trailing", batch("x", good) + `{}`, 400, "invalid_json", ""},
		{"trailing bracket", batch("x", good) + `]`, 400, "invalid_json", ""},
		{"not JSON", `{"contractType":"x","events":[{"a":}]}`, 400, "invalid_json", "byte"},
		{"no events", `{"contractType":"x"}`, 400, "invalid_request", "events is required"},
		{"events null", `{"contractType":"x","events":null}`, 400, "invalid_request", "events must be an array"},
		{"events empty", `{"contractType":"x","events":[]}`, 400, "empty_batch", ""},
		{"no type", `{"events":[` + good + `]}`, 400, "invalid_request", "contractType is required"},
		{"type a number", `{"contractType":3,"events":[` + good + `]}`, 400, "invalid_request", "contractType"},
		{"type empty", batch("", good), 400, "invalid_request", "contractType"},
		{"type with a colon", batch("a:b", good), 400, "invalid_request", "contractType"},
		{"type too long", batch(strings.Repeat("a", 101), good), 400, "invalid_request", "contractType"},
		{"unknown member", `{"contractType":"x","source":1,"events":[` + good + `]}`, 400, "invalid_request", "source"},
		{"member twice", `{"contractType":"x","contractType":"x","events":[` + good + `]}`, 400, "invalid_request", "contractType"},
		{"events twice", `{"contractType":"x","events":[],"events":[` + good + `]}`, 400, "invalid_request", "events"},
		{"too many", batch("x", strings.Split(strings.Repeat(good+"\n", 1000)+good, "\n")...), 400, "too_many_events", "1000"},
		{"too many, then not JSON", `{"contractType":"x","events":[` + strings.Repeat(good+",", 1001) + `!`, 400, "too_many_events", "1000"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := s.do("POST", "/api/v1/events", test.body, header("Content-Type", "application/json; charset=utf-8"))
			p := into[problem](t, r)
			if r.status != test.status || p.Code != test.code || p.Status != test.status || !strings.Contains(p.Detail, test.names) {
				t.Errorf("got %d %+v, want %d %s naming %q", r.status, p, test.status, test.code, test.names)
			}
			if got := r.header.Get("Content-Type"); got != "application/problem+json" {
				t.Errorf("content type: got %s", got)
			}
			if p.RequestID == "" || p.RequestID != r.header.Get("X-Request-Id") || p.Type == "" || p.Title == "" {
				t.Errorf("got %+v with X-Request-Id %s, want all members and the same id", p, r.header.Get("X-Request-Id"))
			}
		})
	}
	if head, _ := s.store.Head(t.Context()); head != 1 {
		t.Errorf("head: got %d, want nothing stored behind the first record", head)
	}
}

func TestTypeAfterEventsAndEscapedNames(t *testing.T) {
	s := newService(t, options{})
	r := s.do("POST", "/api/v1/events", `{"\u0065vents":[`+event("c-1", "e-1", 1, `{}`)+`],"contractType":"lease_contract"}`)
	if a := into[answer](t, r); r.status != 200 || a.Summary.Accepted != 1 {
		t.Errorf("got %d %s, want one accepted", r.status, r.body)
	}
}

// A poison event is rejected on its own, wherever it stands.
func TestPoisonSinksNobody(t *testing.T) {
	deep := func(n int) string {
		return `{"a":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}`
	}
	for name, poison := range map[string]string{
		"null": `null`, "number": `1`, "string": `"\"}"`, "array": `[1,[2]]`, "empty": `{}`,
		"member twice":   event("c", "e", 1, `{"a":1,"a":2}`),
		"deep":           event("c", "e", 1, deep(70)),
		"very deep":      event("c", "e", 1, deep(9_999)),
		"over the limit": event("c", "e", 1, deep(100_000)),
		"deep array":     strings.Repeat("[", 20_000) + `"]\"["` + strings.Repeat("]", 20_000),
		"huge number":    event("c", "e", 1, `{"n":`+strings.Repeat("9", 5000)+`}`),
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, options{})
			a := s.post("lease_contract", poison, event("c-1", "e-1", 1, `{"s":"a\"]}"}`), poison, event("c-1", "e-2", 2, "{\"b\":\"\xff\"}"))
			if a.Summary.Accepted != 2 || a.Summary.Rejected != 2 || a.Results[1].Status != "accepted" || a.Results[3].Status != "accepted" {
				t.Errorf("got %+v, want the poison rejected and its neighbours accepted", a)
			}
		})
	}
}

func TestSingleEvent(t *testing.T) {
	s := newService(t, options{})
	body := func(member string) string {
		return fmt.Sprintf(`{"eventId":"e-1","contractType":"lease_contract","sequence":1,"timestamp":%d%s}`, noon.UnixMilli(), member)
	}
	for _, test := range []struct {
		name, path, body string
		status           int
		says             string
	}{
		{"accepted", "777001@g.us", body(`,"payload":{"a":1}`), 201, `"deduplicationKey":"777001@g.us:e-1:1","status":"accepted"`},
		{"duplicate", "777001%40g.us", body(`,"payload":{"a":1.0}`), 200, `"status":"duplicate"`},
		{"conflict", "777001@g%2Eus", body(`,"payload":{"a":2}`), 409, `"IDEMPOTENCY_PAYLOAD_CONFLICT"`},
		{"same id given", "777001@g.us", body(`,"payload":{"a":1},"contractId":"777001@g.us"`), 200, `"status":"duplicate"`},
		{"other id given", "777001@g.us", body(`,"payload":{"a":1},"contractId":"c-2"`), 400, `"invalid_request"`},
		{"id twice", "c-2", body(`,"payload":{},"contractId":"c-2","contractId":"c-2"`), 400, `"invalid_request"`},
		{"no payload", "c-2", body(``), 422, `"path":"/payload","message":"is required"`},
		{"bad id", "led%3A1", body(`,"payload":{}`), 422, `"path":"/contractId"`},
		{"quotes in the id", `a%22%2C%22b`, body(`,"payload":{}`), 422, `"path":"/contractId"`},
		{"not UTF-8 in the id", `a%FF`, body(`,"payload":{}`), 422, `"path":"/contractId"`},
		{"member twice", "c-2", body(`,"payload":{},"payload":{}`), 422, `"duplicate_member"`},
		{"unknown member", "c-2", body(`,"payload":{},"x":1`), 422, `"path":"/x"`},
		{"no type", "c-2", `{"eventId":"e-1"}`, 400, `contractType is required`},
		{"type twice", "c-2", body(`,"contractType":"lease_contract"`), 400, `contractType is there twice`},
		{"not an object", "c-2", `[]`, 400, `"invalid_request"`},
		{"not JSON", "c-2", `{"eventId"}`, 400, `"invalid_json"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := s.do("POST", "/api/v1/contracts/"+test.path+"/events", test.body)
			if r.status != test.status || !strings.Contains(string(r.body), test.says) {
				t.Errorf("got %d %s, want %d with %s", r.status, r.body, test.status, test.says)
			}
		})
	}
}

func TestValidateChangesNothing(t *testing.T) {
	s := newService(t, options{})
	s.post("lease_contract", event("c-1", "e-1", 1, `{"a":1}`))
	head, _ := s.store.Head(t.Context())
	r := s.do("POST", "/api/v1/events/validate", batch("lease_contract",
		event("c-1", "e-1", 1, `{"a":1.0}`), event("c-1", "e-1", 1, `{"a":2}`), event("c-1", "e-2", 2, `{"b":2, "a":[]}`), `{}`))
	v := into[struct {
		Valid   bool
		Results []struct {
			DeduplicationKey, Code, Reason, CanonicalPayload, PayloadHash *string
			Valid                                                         bool
			WouldBe                                                       string
			Errors                                                        []any
		}
	}](t, r)
	if r.status != http.StatusOK || v.Valid || len(v.Results) != 4 {
		t.Fatalf("got %d %s", r.status, r.body)
	}
	for i, want := range []string{"duplicate", "rejected", "accepted", "rejected"} {
		if got := v.Results[i]; got.WouldBe != want || got.Valid != (want != "rejected") {
			t.Errorf("event %d: got %+v, want %s", i, got, want)
		}
	}
	if got := v.Results[2].CanonicalPayload; got == nil || *got != `{"a":[],"b":2}` {
		t.Errorf("canonical payload: got %v", got)
	}
	if v.Results[3].DeduplicationKey != nil || len(v.Results[3].Errors) != 5 {
		t.Errorf("got %+v, want no key and five errors", v.Results[3])
	}
	if now, _ := s.store.Head(t.Context()); now != head {
		t.Errorf("head: got %d, want %d as before", now, head)
	}
}

package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/talenttrust/auditledger/ledger"
)

var seeds = []string{
	``, `null`, `{}`, `{"contractType":"a","events":[]}`, `{"events":[{},null,1,"x"],"contractType":"a-1"}`,
	`{"contractType":"a","events":[{"payload":{"a":1,"a":2}}]}`, "{\"contractType\":\"a\",\"events\":[{\"p\":\"\xff\"}]}",
	`{"\u0065vents":[1],"contractType":"\u0061"}`, `{"contractType":"a","events":[1]} x`, `{"eventId":"e","contractType":"a","contractId":"c"}`,
	`{"contractType":"a","events":[{"a":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `},{"b":"]\"}"}]}`,
	strings.Repeat(`{"a":[`, 9000), `{"contractType":"a","events":[` + strings.Repeat("[", 9999),
}

// isProblem reports whether err is one that the service answers with 400.
func isProblem(err error) bool {
	var p *Problem
	return errors.As(err, &p) && problems[p.Code].status == 400
}

// A batch that is read has the events that any JSON reader finds in it, each as it was sent.
func FuzzParseBatch(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		sent := bytes.Clone(body)
		b, err := parseBatch(body, 100)
		if !bytes.Equal(body, sent) {
			t.Fatal("the body was changed")
		}
		if err != nil {
			if !isProblem(err) {
				t.Fatalf("got %v, want a problem", err)
			}
			return
		}
		if len(b.events) == 0 || len(b.events) > 100 || !ledger.ValidID(b.contractType, ledger.MaxTypeLen) {
			t.Fatalf("got %d events of type %q", len(b.events), b.contractType)
		}
		for i, e := range b.events {
			if !bytes.Contains(body, e) {
				t.Fatalf("event %d is not in the body: %q", i, e)
			}
		}
		var want struct {
			ContractType string            `json:"contractType"`
			Events       []json.RawMessage `json:"events"`
		}
		if json.Unmarshal(body, &want) != nil {
			return // it nests deeper than that reader goes
		}
		if want.ContractType != b.contractType || len(want.Events) != len(b.events) {
			t.Fatalf("got %d events of type %q, want %d of %q", len(b.events), b.contractType, len(want.Events), want.ContractType)
		}
		for i := range want.Events {
			if !bytes.Equal(want.Events[i], b.events[i]) {
				t.Fatalf("event %d: got %q, want %q", i, b.events[i], want.Events[i])
			}
		}
	})
}

// A single event that is read is a JSON object with the contract's id and without the type.
func FuzzParseSingle(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s), "c-1")
	}
	f.Add([]byte(`{"contractType":"a","contractId":"a\"b"}`), `a"b`)
	f.Fuzz(func(t *testing.T, body []byte, id string) {
		contractType, event, err := parseSingle(body, id)
		if err != nil {
			if !isProblem(err) {
				t.Fatalf("got %v, want a problem", err)
			}
			return
		}
		if !ledger.ValidID(contractType, ledger.MaxTypeLen) || !jsontext.Value(event).IsValid(lenient...) {
			t.Fatalf("got type %q, event %q", contractType, event)
		}
		var m map[string]json.RawMessage
		if err := json.Unmarshal(event, &m); err != nil {
			t.Fatalf("%v: %q", err, event)
		}
		var got string
		if err := json.Unmarshal(m["contractId"], &got); err != nil || got != strings.ToValidUTF8(got, "\uFFFD") || m["contractType"] != nil {
			t.Fatalf("got contractId %s and contractType %s", m["contractId"], m["contractType"])
		}
	})
}

// Whatever a sources file holds, it gives sources with a name, a role and keys, or an error.
func FuzzParseSources(f *testing.F) {
	f.Add([]byte("sources:\n  - name: a\n    role: admin\n    keys: [{id: k, sha256: " + strings.Repeat("0", 64) + ", expires: 2026-03-01T12:00:00Z}]\n    window: 24h\n"))
	f.Add([]byte("sources: [{name: a}]"))
	f.Add([]byte("- &a [*a]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parseSources(text, sourceRules{window: time.Hour})
		if (err == nil) != (s != nil) || err == nil && len(s.tokens)+len(s.signing) == 0 {
			t.Fatalf("got %+v and %v", s, err)
		}
		if err != nil {
			return
		}
		for _, k := range s.tokens {
			if !ledger.ValidID(k.of.source.Name, 64) || k.of.source.Window < 0 || !k.of.role.may(k.of.role) {
				t.Fatalf("got %+v", k)
			}
		}
	})
}

// Whatever stands in the headers, only who knows a secret is let in.
func FuzzCredentials(f *testing.F) {
	s, err := parseSources([]byte("sources: [{name: a, role: admin, keys: [{id: k, webhookSecret: "+testWebhookSecret+"}, {id: l, legacySecret: 0f1e2d3c}, {id: t, sha256: "+strings.Repeat("0a", 32)+"}]}]"), sourceRules{})
	if err != nil {
		f.Fatal(err)
	}
	a := &Auth{now: func() time.Time { return time.Unix(1767225600, 0) }}
	a.current.Store(s)
	f.Add("Bearer x", "msg", "1767225600", "v1,AAAA", "", "", "k", []byte("{}"))
	f.Add("", "", "", "", "1e6e0c10-8204-53b6-9664-9b4d6f510160", strings.Repeat("0", 64), "l", []byte("{}"))
	f.Fuzz(func(t *testing.T, authorization, id, stamp, signature, eventID, legacy, key string, body []byte) {
		r := &http.Request{Header: http.Header{}}
		for name, v := range map[string]string{"Authorization": authorization, HeaderWebhookID: id, HeaderWebhookTimestamp: stamp,
			HeaderWebhookSignature: signature, HeaderEventID: eventID, HeaderSignature: legacy, HeaderKeyID: key} {
			if v != "" {
				r.Header.Set(name, v)
			}
		}
		if _, err := a.identify(r); err == nil {
			t.Error("a token was guessed")
		}
		if _, err := a.verify(r.Header, body); err == nil {
			t.Error("a signature was guessed")
		}
	})
}

func TestPatterns(t *testing.T) {
	for _, test := range []struct {
		pattern, s string
		want       bool
	}{
		{"abc", "abc", true}, {"abc", "abcd", false}, {"abc", "ab", false},
		{"*", "", true}, {"*", "anything", true}, {"**", "x", true},
		{"ab*", "ab", true}, {"ab*", "abc", true}, {"ab*", "xab", false},
		{"*ab", "ab", true}, {"*ab", "cab", true}, {"*ab", "abc", false},
		{"a*a", "a", false}, {"a*a", "aa", true}, {"a*a", "aba", true},
		{"a*b*c", "a-b-c", true}, {"a*b*c", "abbc", true}, {"a*b*c", "acb", false}, {"a*bc*bc", "abc", false},
		{"a.c", "abc", false}, {"A*", "a1", false},
	} {
		if got := fits(test.pattern, test.s); got != test.want {
			t.Errorf("%q on %q: got %v, want %v", test.pattern, test.s, got, test.want)
		}
	}
}

// Every code that an event can be rejected with has a status, and every problem one of its kind.
func TestCodesHaveStatuses(t *testing.T) {
	for code, status := range itemStatus {
		if status < 400 || status > 499 {
			t.Errorf("%s: got %d", code, status)
		}
	}
	for code, p := range problems {
		if p.status < 400 || p.title == "" {
			t.Errorf("%s: got %+v", code, p)
		}
	}
}

func BenchmarkParseBatch(b *testing.B) {
	event := `{"contractId":"contract_123","eventId":"event_456","sequence":1,"timestamp":1767225600000,"payload":{"paymentId":"p-1","amount":12.5,"currency":"EUR","status":"completed","timestamp":1767225600000}}`
	body := []byte(`{"contractType":"payment_contract","events":[` + strings.Repeat(event+",", 99) + event + `]}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := parseBatch(body, 1000); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendBatch(b *testing.B) {
	results := make([]ledger.Result, 100)
	for i := range results {
		results[i] = ledger.Result{
			Key: ledger.Key{ContractID: "contract_123", EventID: "event_456", Sequence: int64(i)}, HasKey: true, Status: ledger.StatusAccepted,
			Position: 42, Generation: 1, ProcessedAt: 1767225600000, PayloadHash: ledger.Hash{1}, Leaf: ledger.Hash{2},
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		appendBatch(make([]byte, 0, 256+384*len(results)), results)
	}
}

package rest_test

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/rest"
)

func (s *service) envelope(t *testing.T, id, body string) reply {
	t.Helper()
	return s.do("POST", "/api/v1/envelopes", body, legacyBy(t, legacyText, id, body))
}

func TestEnvelopes(t *testing.T) {
	s := withSigners(t)
	long := strings.Repeat("j", 256)
	odd := "chat of ü"
	sum := sha256.Sum256([]byte(odd))
	oddID := "jid." + hex.EncodeToString(sum[:])
	const good = `{"type":"messages.upsert","chat_jid":"777001@g.us","payload":{"t":1}}`
	for i, test := range []struct {
		name, id, body string
		status         int
		key, code      string
	}{
		{"golden", messageID, good, 201, "777001@g.us:" + messageID + ":0", ""},
		{"again", messageID, good, 200, "777001@g.us:" + messageID + ":0", ""},
		{"again, members in another order", messageID, `{"payload":{"t":1.0},"chat_jid":"777001@g.us","type":"messages.upsert"}`, 200, "777001@g.us:" + messageID + ":0", ""},
		{"again, id in capitals", strings.ToUpper(messageID), good, 200, "777001@g.us:" + messageID + ":0", ""},
		{"another payload", messageID, strings.Replace(good, `"t":1`, `"t":2`, 1), 409, "777001@g.us:" + messageID + ":0", "IDEMPOTENCY_PAYLOAD_CONFLICT"},
		{"another chat", messageID, strings.Replace(good, "777001", "777002", 1), 201, "777002@g.us:" + messageID + ":0", ""},
		{"an array", messageID, `{"type":"x","chat_jid":"a","payload":[1,{"a":[]}]}`, 201, "a:" + messageID + ":0", ""},
		{"no chat", messageID, `{"type":"x","payload":{}}`, 201, "-:" + messageID + ":0", ""},
		{"null chat", messageID, `{"type":"x","chat_jid":null,"payload":{}}`, 200, "-:" + messageID + ":0", ""},
		{"empty chat", messageID, `{"type":"x","chat_jid":"","payload":{}}`, 200, "-:" + messageID + ":0", ""},
		{"chat that is no id", messageID, `{"type":"x","chat_jid":"` + odd + `","payload":{}}`, 201, oddID + ":" + messageID + ":0", ""},
		{"type of any characters", messageID, `{"type":"Typ ü:\n","chat_jid":"b","payload":{}}`, 201, "b:" + messageID + ":0", ""},
		{"type of 100", messageID, `{"type":"` + strings.Repeat("ü", 100) + `","chat_jid":"c","payload":{}}`, 201, "c:" + messageID + ":0", ""},
		{"type of 101", messageID, `{"type":"` + strings.Repeat("ü", 101) + `","chat_jid":"c","payload":{}}`, 422, "c:" + messageID + ":0", "invalid_event"},
		{"no type", messageID, `{"chat_jid":"d","payload":{}}`, 422, "d:" + messageID + ":0", "invalid_event"},
		{"empty type", messageID, `{"type":"","chat_jid":"d","payload":{}}`, 422, "d:" + messageID + ":0", "invalid_event"},
		{"type of a number", messageID, `{"type":1,"chat_jid":"d","payload":{}}`, 422, "d:" + messageID + ":0", "invalid_event"},
		{"chat of 256", messageID, `{"type":"x","chat_jid":"` + long + `","payload":{}}`, 422, "", "invalid_event"},
		{"chat of a number", messageID, `{"type":"x","chat_jid":7,"payload":{}}`, 422, "", "invalid_event"},
		{"no payload", messageID, `{"type":"x","chat_jid":"e"}`, 422, "e:" + messageID + ":0", "invalid_event"},
		{"payload of text", messageID, `{"type":"x","chat_jid":"e","payload":"t"}`, 422, "e:" + messageID + ":0", "invalid_event"},
		{"unknown member", messageID, `{"type":"x","chat_jid":"e","payload":{},"more":1}`, 422, "e:" + messageID + ":0", "invalid_event"},
		{"member twice", messageID, `{"type":"x","chat_jid":"e","payload":{"a":1,"a":2}}`, 422, "e:" + messageID + ":0", "duplicate_member"},
		{"type with a schema that is not met", messageID, `{"type":"talent_contract","chat_jid":"e","payload":{}}`, 422, "e:" + messageID + ":0", "invalid_payload"},
		{"not JSON", messageID, `{"type":"x",`, 400, "", "invalid_json"},
		{"an array around", messageID, `[]`, 400, "", "invalid_request"},
		{"no UUID", "event-1", good, 400, "", "invalid_request"},
		{"UUID in braces", "{" + messageID + "}", good, 400, "", "invalid_request"},
		{"UUID without dashes", strings.ReplaceAll(messageID, "-", ""), good, 400, "", "invalid_request"},
		{"no UUID and no JSON", "event-1", "{", 400, "", "invalid_request"},
	} {
		r := s.envelope(t, test.id, test.body)
		var got result
		if r.status == 400 {
			got.Code = into[problem](t, r).Code
		} else {
			got = into[result](t, r)
		}
		if r.status != test.status || got.Code != test.code {
			t.Errorf("%d %s: got %d %s, want %d %s", i, test.name, r.status, r.body, test.status, test.code)
		}
		if test.key != "" && (got.Key == nil || *got.Key != test.key) {
			t.Errorf("%d %s: got %s, want the key %s", i, test.name, r.body, test.key)
		}
	}
	head, err := s.store.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for at := ledger.Position(2); at <= head; at++ {
		recs, err := s.store.Read(t.Context(), []ledger.Position{at})
		if err != nil {
			t.Fatal(err)
		}
		h, y := &recs[0].Header, &recs[0].Body
		if h.Type != ledger.EventAccepted {
			continue
		}
		found++
		if h.Sequence != 0 || h.Timestamp != ledger.Absent || y.BoundUntil != 0 || y.SequencePolicy != ledger.SequenceFree || h.Source != "phones" {
			t.Errorf("record %d: got %+v %+v", at, h, y)
		}
		if h.ContractID == oddID && y.ChatJID != odd || h.ContractID == "777001@g.us" && y.ChatJID != h.ContractID || h.ContractID == "-" && y.ChatJID != "" {
			t.Errorf("record of %s: got the chat %q", h.ContractID, y.ChatJID)
		}
	}
	if found != 7 {
		t.Errorf("got %d accepted records, want 7", found)
	}
	token := s.do("GET", "/api/v1/contracts/777001@g.us/history?payload=true&atLeast="+head.String(), "", bearer("reader"))
	if token.status != 200 || !strings.Contains(string(token.body), `"payload":{"t":1}`) || !strings.Contains(string(token.body), `"timestamp":null`) {
		t.Errorf("history: got %d %s", token.status, token.body)
	}
	if r := s.do("GET", "/api/v1/stats", "", bearer("reader")); r.status != 200 || !strings.Contains(string(r.body), `"Typ ü:\n":1`) {
		t.Errorf("stats: got %d %s", r.status, r.body)
	}
}

// The signature comes first, whatever else is wrong; nothing is stored without one.
func TestEnvelopeSignatures(t *testing.T) {
	s := withSigners(t)
	const body = `{"type":"x","chat_jid":"777001@g.us","payload":{}}`
	webhook := func(id string, at time.Time) func(*http.Request) {
		return func(r *http.Request) { rest.SetWebhook(r.Header, secretOf(t, hookOld), id, at, []byte(body)) }
	}
	for name, test := range map[string]struct {
		body   string
		edit   func(*http.Request)
		status int
	}{
		"none":                      {body, header("X-Event-Id", messageID), 401},
		"a token":                   {body, bearer("reader"), 401},
		"wrong, and the id no UUID": {body, legacyBy(t, "x", "event-1", body), 401},
		"wrong, and the body":       {"{", legacyBy(t, legacyText, messageID, body), 401},
		"no event id":               {body, func(r *http.Request) { legacyBy(t, legacyText, messageID, body)(r); r.Header.Del("X-Event-Id") }, 401},
		"webhook, id no UUID":       {body, webhook("msg_1", noon), 400},
		"webhook, 301 s old":        {body, webhook(messageID, noon.Add(-301*time.Second)), 401},
		"an auditor, id no UUID":    {body, signedBy(t, "whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u", "reader", noon, body), 403},
		"a chat of another":         {strings.Replace(body, "777001", "888001", 1), signedBy(t, hookOld, "old", noon, strings.Replace(body, "777001", "888001", 1)), 403},
		"signed, of another type": {body, func(r *http.Request) {
			legacyBy(t, legacyText, messageID, body)(r)
			r.Header.Set("Content-Type", "text/plain")
		}, 415},
	} {
		if r := s.do("POST", "/api/v1/envelopes", test.body, test.edit); r.status != test.status {
			t.Errorf("%s: got %d %s, want %d", name, r.status, r.body, test.status)
		}
	}
	if r := s.do("POST", "/api/v1/envelopes", body, webhook(messageID, noon)); r.status != 201 {
		t.Errorf("webhook: got %d %s, want 201", r.status, r.body)
	}
	if r := s.do("POST", "/api/v1/envelopes", body, legacyBy(t, legacyText, messageID, body), bearer("x")); r.status != 200 {
		t.Errorf("signed, with a token that is not looked at: got %d %s, want 200", r.status, r.body)
	}
	if head, _ := s.store.Head(t.Context()); head > 4 { // the first, a refused chat, the envelope, a count
		t.Errorf("head: got %d, want at most 4", head)
	}
}

// The key of an envelope is bound for ever, whatever the window of its source.
func TestEnvelopeIsKnownForEver(t *testing.T) {
	s := withSigners(t)
	const body = `{"type":"x","chat_jid":"a","payload":{}}`
	for i, want := range []int{201, 200} {
		if r := s.envelope(t, messageID, body); r.status != want {
			t.Errorf("try %d: got %d %s, want %d", i, r.status, r.body, want)
		}
		s.clock.set(noon.Add(100_000 * time.Hour))
	}
}

// A service whose sources do not sign takes no envelopes, signed or not.
func TestEnvelopesWithoutSigners(t *testing.T) {
	const body = `{"type":"x","chat_jid":"a","payload":{}}`
	for name, s := range map[string]*service{"no file": newService(t, options{}), "tokens only": withSources(t)} {
		for _, edit := range []func(*http.Request){header("X-Event-Id", messageID), legacyBy(t, legacyText, messageID, body), bearer("b")} {
			r := s.do("POST", "/api/v1/envelopes", body, edit)
			if r.status != 503 || into[problem](t, r).Code != "no_signing_source" || r.header.Get("Retry-After") == "" {
				t.Errorf("%s: got %d %s, want 503", name, r.status, r.body)
			}
		}
		if head, _ := s.store.Head(t.Context()); head != 1 {
			t.Errorf("%s: something was stored: head %d", name, head)
		}
	}
}

package rest_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/talenttrust/auditledger/rest"
)

// Secrets of the sources of signers.
const (
	hookOld    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	hookNew    = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
	hookPast   = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX"
	hookOther  = "whsec_GBkaGxwdHh8gISIjJCUmJygpKissLS4v"
	legacyText = "unit-secret"
	messageID  = "1e6e0c10-8204-53b6-9664-9b4d6f510160"
)

// withSigners has sources that sign their requests, one of each kind, in the time of the test's clock.
func withSigners(t *testing.T) *service {
	t.Helper()
	t.Setenv("TEST_LEGACY_SECRET", legacyText)
	var s *service
	auth, err := sourcesAt(t, func() time.Time { return s.clock.now() }, `
sources:
  - name: hooks
    role: collector
    scheme: standard-webhooks
    contracts: ["led-*", "777*"]
    keys:
      - {id: old, webhookSecret: `+hookOld+`}
      - {id: new, webhookSecret: `+hookNew+`}
      - {id: past, webhookSecret: `+hookPast+`, expires: 2026-03-01T12:00:00Z}
  - name: other
    role: collector
    scheme: standard-webhooks
    keys: [{id: other, webhookSecret: `+hookOther+`}]
  - name: phones
    role: collector
    scheme: legacy-hmac
    keys: [{id: legacy, legacySecret: "env:TEST_LEGACY_SECRET"}]
  - name: reader
    role: auditor
    keys:
      - {id: reader, webhookSecret: whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u}
      - {id: token, sha256: `+hashOf("token-reader")+`}
`)
	if err != nil {
		t.Fatal(err)
	}
	s = newService(t, options{rest: rest.Config{Auth: auth}})
	return s
}

func secretOf(t *testing.T, text string) rest.Secret {
	t.Helper()
	secret, err := rest.ParseSecret(text)
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// signedBy signs a request as Standard Webhooks do, at a time, with a key that is named keyID.
func signedBy(t *testing.T, secret, keyID string, at time.Time, body string) func(*http.Request) {
	return func(r *http.Request) {
		rest.SetWebhook(r.Header, secretOf(t, secret), messageID, at, []byte(body))
		if keyID != "" {
			r.Header.Set(rest.HeaderKeyID, keyID)
		}
	}
}

// legacyBy signs a request in the legacy scheme.
func legacyBy(t *testing.T, text, id, body string) func(*http.Request) {
	t.Helper()
	secret, err := rest.RawSecret(text)
	if err != nil {
		t.Fatal(err)
	}
	return func(r *http.Request) { rest.SetLegacy(r.Header, secret, id, []byte(body)) }
}

func TestSignedRequests(t *testing.T) {
	s := withSigners(t)
	body := batch("lease_contract", event("led-1", "e-1", 1, `{}`))
	set := func(name, value string) func(*http.Request) { return header(name, value) }
	good := signedBy(t, hookOld, "old", noon, body)
	legacy := legacyBy(t, legacyText, messageID, body)
	stamp := func(d time.Duration) string { return strconv.FormatInt(noon.Add(d).Unix(), 10) }
	for _, test := range []struct {
		name   string
		body   string
		edit   []func(*http.Request)
		status int
	}{
		{"old secret", body, []func(*http.Request){good}, 200},
		{"new secret", body, []func(*http.Request){signedBy(t, hookNew, "new", noon, body)}, 200},
		{"no key id", body, []func(*http.Request){signedBy(t, hookNew, "", noon, body)}, 200},
		{"300 s old", body, []func(*http.Request){signedBy(t, hookOld, "old", noon.Add(-300*time.Second), body)}, 200},
		{"300 s ahead", body, []func(*http.Request){signedBy(t, hookOld, "old", noon.Add(300*time.Second), body)}, 200},
		{"legacy", body, []func(*http.Request){legacy}, 200},
		{"legacy with its key id", body, []func(*http.Request){legacy, set(rest.HeaderKeyID, "legacy")}, 200},

		{"301 s old", body, []func(*http.Request){signedBy(t, hookOld, "old", noon.Add(-301*time.Second), body)}, 401},
		{"301 s ahead", body, []func(*http.Request){signedBy(t, hookOld, "old", noon.Add(301*time.Second), body)}, 401},
		{"old body under a fresh header", body, []func(*http.Request){signedBy(t, hookOld, "old", noon.Add(-time.Hour), body), set(rest.HeaderWebhookTimestamp, stamp(0))}, 401},
		{"expired", body, []func(*http.Request){signedBy(t, hookPast, "past", noon, body)}, 401},
		{"body changed by one space", body + " ", []func(*http.Request){good}, 401},
		{"id changed", body, []func(*http.Request){good, set(rest.HeaderWebhookID, "another")}, 401},
		{"no id", body, []func(*http.Request){good, set(rest.HeaderWebhookID, "")}, 401},
		{"key id of another source", body, []func(*http.Request){signedBy(t, hookOld, "other", noon, body)}, 401},
		{"key id of another scheme", body, []func(*http.Request){signedBy(t, hookOld, "legacy", noon, body)}, 401},
		{"unknown key id", body, []func(*http.Request){signedBy(t, hookOld, "nobody", noon, body)}, 401},
		{"two key ids", body, []func(*http.Request){good, func(r *http.Request) { r.Header.Add(rest.HeaderKeyID, "old") }}, 401},
		{"unknown secret", body, []func(*http.Request){signedBy(t, "whsec_"+base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("x"), 24)), "", noon, body)}, 401},
		{"good signature, bad token", body, []func(*http.Request){good, set("Authorization", "Bearer token-x")}, 401},
		{"an auditor signs", body, []func(*http.Request){signedBy(t, "whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u", "reader", noon, body)}, 403},
		{"legacy of the body alone", body, []func(*http.Request){legacyBy(t, legacyText, "", body), set(rest.HeaderEventID, messageID)}, 401},
		{"legacy, id changed", body, []func(*http.Request){legacy, set(rest.HeaderEventID, "2e6e0c10-8204-53b6-9664-9b4d6f510160")}, 401},
		{"legacy, wrong secret", body, []func(*http.Request){legacyBy(t, "unit-secreT", messageID, body)}, 401},
		{"legacy, 63 digits", body, []func(*http.Request){legacy, func(r *http.Request) { r.Header.Set(rest.HeaderSignature, r.Header.Get(rest.HeaderSignature)[1:]) }}, 401},
		{"legacy, 65 digits", body, []func(*http.Request){legacy, func(r *http.Request) { r.Header.Set(rest.HeaderSignature, r.Header.Get(rest.HeaderSignature)+"0") }}, 401},
		{"legacy, not hex", body, []func(*http.Request){legacy, set(rest.HeaderSignature, strings.Repeat("g", 64))}, 401},
		{"nothing of a bad body is read", "{", []func(*http.Request){good}, 401},
		{"nor its type", body + " ", []func(*http.Request){good, set("Content-Type", "text/plain")}, 401},
		{"signed, but not JSON", "{", []func(*http.Request){signedBy(t, hookOld, "old", noon, "{")}, 400},
	} {
		before, _ := s.store.Head(t.Context())
		r := s.do("POST", "/api/v1/events", test.body, test.edit...)
		after, _ := s.store.Head(t.Context())
		if r.status != test.status || r.status == 401 && into[problem](t, r).Code != "unauthenticated" {
			t.Errorf("%s: got %d %s, want %d", test.name, r.status, r.body, test.status)
		}
		if r.status != 200 && after != before {
			t.Errorf("%s: something was stored", test.name)
		}
	}
	// A signature says who sends, nothing more: the source's rights are those of its tokens.
	body = batch("lease_contract", event("not-its-own", "e-1", 1, `{}`))
	r := s.do("POST", "/api/v1/events", body, signedBy(t, hookOld, "old", noon, body))
	if got := into[answer](t, r).Results[0]; got.Code != "contract_type_not_allowed" {
		t.Errorf("a contract of another source: got %+v", got)
	}
	if r := s.do("GET", "/api/v1/stats", "", signedBy(t, hookOld, "old", noon, "")); r.status != 401 {
		t.Errorf("a signed read: got %d, want 401", r.status)
	}
	for _, secret := range []string{hookOld[6:], hookNew[6:], legacyText} {
		if strings.Contains(s.log.String(), secret) {
			t.Errorf("a secret is in the log")
		}
	}
	if !strings.Contains(s.log.String(), "more than 300 s old") {
		t.Error("the log does not say why a signature was refused")
	}
}

// The body is signed as it is sent; a compressed one is decompressed after that, and its limit holds.
func TestSignedCompressedBody(t *testing.T) {
	s := withSigners(t)
	body := batch("lease_contract", event("led-1", "e-1", 1, `{}`))
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	io.WriteString(z, body)
	z.Close()
	encoding := header("Content-Encoding", "gzip")
	if r := s.do("POST", "/api/v1/events", packed.String(), encoding, signedBy(t, hookOld, "old", noon, packed.String())); r.status != 200 {
		t.Errorf("signed as sent: got %d %s", r.status, r.body)
	}
	if r := s.do("POST", "/api/v1/events", packed.String(), encoding, signedBy(t, hookOld, "old", noon, body)); r.status != 401 {
		t.Errorf("signed before it was compressed: got %d, want 401", r.status)
	}
}

// What the library of Standard Webhooks signs is accepted. Its clock is the system's.
func TestStandardLibrarySigns(t *testing.T) {
	auth, err := sourcesAt(t, time.Now, "sources:\n  - {name: hooks, role: collector, keys: [{id: k, webhookSecret: "+hookOld+"}]}\n")
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, options{rest: rest.Config{Auth: auth}})
	body := batch("lease_contract", event("led-1", "e-1", 1, `{}`))
	hook, err := standardwebhooks.NewWebhook(hookOld)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	signature, err := hook.Sign("msg_1", now, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	r := s.do("POST", "/api/v1/events", body, header("webhook-id", "msg_1"), header("webhook-timestamp", strconv.FormatInt(now.Unix(), 10)), header("webhook-signature", signature))
	if r.status != 200 {
		t.Errorf("got %d %s, want 200", r.status, r.body)
	}
}

// A retry that is signed with the next key is a duplicate.
func TestRotationBetweenTries(t *testing.T) {
	s := withSigners(t)
	body := batch("lease_contract", event("led-1", "e-1", 1, `{}`))
	for i, want := range []string{"accepted", "duplicate"} {
		key := []string{"old", "new"}[i]
		r := s.do("POST", "/api/v1/events", body, signedBy(t, []string{hookOld, hookNew}[i], key, noon, body))
		if got := into[answer](t, r).Results[0].Status; got != want {
			t.Errorf("with the key %s: got %s, want %s", key, got, want)
		}
	}
}

// Keys in the sources file check what events carry; the body of one that is refused is not even looked up.
func TestSignedEvents(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	auth, err := sources(t, `
sources:
  - name: leases
    role: collector
    keys: [{id: k, sha256: `+hashOf("token-k")+`}]
    sign:
      required: true
      keys:
        - {id: ed, ed25519: "`+base64.StdEncoding.EncodeToString(public)+`"}
        - {id: mac, hmac: "`+hookOld+`"}
`)
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, options{rest: rest.Config{Auth: auth}})
	form := fmt.Sprintf(`{"contractId":"led-1","contractType":"lease_contract","eventId":"e-1","payload":{},"sequence":1,"timestamp":%d}`, noon.UnixMilli())
	signature := base64.StdEncoding.EncodeToString(ed25519.Sign(private, []byte(form)))
	body := func(signature string) string {
		return fmt.Sprintf(`{"contractType":"lease_contract","eventId":"e-1","sequence":1,"timestamp":%d,"payload":{},"signature":%q}`, noon.UnixMilli(), signature)
	}
	for _, test := range []struct {
		signature string
		status    int
	}{{"AAAA", 401}, {signature, 201}, {signature, 200}} {
		r := s.do("POST", "/api/v1/contracts/led-1/events", body(test.signature), bearer("k"))
		if r.status != test.status || test.status == 401 && into[result](t, r).Code != "invalid_signature" {
			t.Errorf("got %d %s, want %d", r.status, r.body, test.status)
		}
	}
}

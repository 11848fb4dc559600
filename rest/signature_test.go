package rest

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const (
	testWebhookSecret  = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	otherWebhookSecret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
)

func webhookSecret(t testing.TB, text string) Secret {
	t.Helper()
	s, err := ParseSecret(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSignLegacyGolden(t *testing.T) {
	secret, err := RawSecret("unit-secret")
	if err != nil {
		t.Fatal(err)
	}
	body := []byte(`{"type":"messages.upsert","chat_jid":"777001@g.us","payload":{"t":1}}`)
	want := "5447a3b025727c099423614739e92270dc32f067c881c4c621d1c266785f2b0c"
	if got := SignLegacy(secret, "1e6e0c10-8204-53b6-9664-9b4d6f510160", body); got != want {
		t.Errorf("SignLegacy: got %s, want %s", got, want)
	}
}

func TestVerifyWebhook(t *testing.T) {
	secret, other := webhookSecret(t, testWebhookSecret), webhookSecret(t, otherWebhookSecret)
	at := time.Unix(1767225600, 0)
	body := []byte(`{"a": 1}`)
	good := SignWebhook(secret, "msg_1", at, body)
	for _, c := range []struct {
		name    string
		secrets []Secret
		change  func(http.Header)
		body    string
		now     time.Time
		want    string // part of the refusal; "" is accepted
	}{
		{name: "as signed"},
		{name: "two secrets, the new one", secrets: []Secret{other, secret}},
		{name: "two secrets, the old one", secrets: []Secret{secret, other}},
		{name: "several signatures", change: func(h http.Header) { h.Set(HeaderWebhookSignature, "v1,AAAA v1a,xx "+good) }},
		{name: "300 s old", now: at.Add(300 * time.Second)},
		{name: "300 s ahead", now: at.Add(-300 * time.Second)},
		{name: "301 s old", now: at.Add(301 * time.Second), want: "old"},
		{name: "301 s ahead", now: at.Add(-301 * time.Second), want: "ahead"},
		{name: "other secret", secrets: []Secret{other}, want: "matches"},
		{name: "no secret", secrets: []Secret{}, want: "matches"},
		{name: "zero secret", secrets: []Secret{{}}, want: "matches"},
		{name: "body changed by a space", body: `{"a":  1}`, want: "matches"},
		{name: "id changed", change: func(h http.Header) { h.Set(HeaderWebhookID, "msg_2") }, want: "matches"},
		{name: "fresh header over an old body", now: at.Add(time.Hour), change: func(h http.Header) { h.Set(HeaderWebhookTimestamp, strconv.FormatInt(at.Unix()+3600, 10)) }, want: "matches"},
		{name: "full stop in the id", change: func(h http.Header) { h.Set(HeaderWebhookID, "msg.1") }, want: "full stop"},
		{name: "no id", change: func(h http.Header) { h.Del(HeaderWebhookID) }, want: "webhook-id is missing"},
		{name: "no timestamp", change: func(h http.Header) { h.Del(HeaderWebhookTimestamp) }, want: "webhook-timestamp is missing"},
		{name: "no signature", change: func(h http.Header) { h.Del(HeaderWebhookSignature) }, want: "webhook-signature is missing"},
		{name: "two ids", change: func(h http.Header) { h.Add(HeaderWebhookID, "msg_1") }, want: "more than once"},
		{name: "timestamp in words", change: func(h http.Header) { h.Set(HeaderWebhookTimestamp, "soon") }, want: "whole number"},
		{name: "timestamp with a sign", change: func(h http.Header) { h.Set(HeaderWebhookTimestamp, "+1767225600") }, want: "whole number"},
		{name: "timestamp at the edge of int64", change: func(h http.Header) { h.Set(HeaderWebhookTimestamp, "-9223372036854775808") }, want: "old"},
		{name: "signature cut", change: func(h http.Header) { h.Set(HeaderWebhookSignature, good[:len(good)-4]) }, want: "matches"},
		{name: "another version", change: func(h http.Header) { h.Set(HeaderWebhookSignature, "v2"+good[2:]) }, want: "matches"},
		{name: "not base64", change: func(h http.Header) { h.Set(HeaderWebhookSignature, "v1,???") }, want: "matches"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := http.Header{}
			SetWebhook(h, secret, "msg_1", at, body)
			if c.change != nil {
				c.change(h)
			}
			secrets, sent, now := []Secret{secret}, body, at
			if c.secrets != nil {
				secrets = c.secrets
			}
			if c.body != "" {
				sent = []byte(c.body)
			}
			if !c.now.IsZero() {
				now = c.now
			}
			checkRefusal(t, VerifyWebhook(secrets, h, sent, now), c.want)
		})
	}
}

func TestVerifyLegacy(t *testing.T) {
	secret, _ := RawSecret("unit-secret")
	other, _ := RawSecret("other-secret")
	body := []byte(`{"t":1}`)
	good := SignLegacy(secret, "id-1", body)
	alone := SignLegacy(secret, "", body)
	for _, c := range []struct {
		name          string
		id, signature string
		secrets       []Secret
		want          string
	}{
		{"as signed", "id-1", good, []Secret{secret}, ""},
		{"rotation", "id-1", good, []Secret{other, secret}, ""},
		{"other secret", "id-1", good, []Secret{other}, "does not match"},
		{"id changed", "id-2", good, []Secret{secret}, "does not match"},
		{"over the body alone", "id-1", alone, []Secret{secret}, "does not match"},
		{"63 digits", "id-1", good[:63], []Secret{secret}, "64 lower hex"},
		{"65 digits", "id-1", good + "0", []Secret{secret}, "64 lower hex"},
		{"62 digits", "id-1", good[:62], []Secret{secret}, "64 lower hex"},
		{"upper case", "id-1", strings.ToUpper(good), []Secret{secret}, "64 lower hex"},
		{"not hex", "id-1", strings.Repeat("z", 64), []Secret{secret}, "64 lower hex"},
		{"no signature", "id-1", "", []Secret{secret}, "x-signature is missing"},
		{"no id", "", good, []Secret{secret}, "x-event-id is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := http.Header{}
			h.Set(HeaderEventID, c.id)
			h.Set(HeaderSignature, c.signature)
			checkRefusal(t, VerifyLegacy(c.secrets, h, body), c.want)
		})
	}
}

func checkRefusal(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("got %v, want accepted", err)
	case want != "" && !errors.Is(err, ErrSignature):
		t.Errorf("got %v, want ErrSignature", err)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("got %q, want it to say %q", err, want)
	}
}

func TestParseSecret(t *testing.T) {
	for _, text := range []string{"", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_###", "whsec_c2hvcnQ=", "whsec_" + strings.Repeat("AAAA", 22)} {
		if _, err := ParseSecret(text); err == nil {
			t.Errorf("ParseSecret(%q): got no error", text)
		}
	}
	if _, err := RawSecret(""); err == nil {
		t.Error("RawSecret of nothing: got no error")
	}
}

func TestSecretNeverPrints(t *testing.T) {
	secret, _ := RawSecret("planted-secret")
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("signed", "secret", secret)
	texts := []string{log.String(), fmt.Sprintf("%v %+v %#v %s", secret, secret, secret, secret), fmt.Sprintf("%v", []Secret{secret})}
	for _, text := range texts {
		if strings.Contains(text, "planted") || strings.Contains(text, "112 108") {
			t.Errorf("the secret shows in %q", text)
		}
	}
}

// The official Standard Webhooks library checks what we sign and signs what we check.
func TestStandardWebhooksLibrary(t *testing.T) {
	theirs, err := standardwebhooks.NewWebhook(testWebhookSecret)
	if err != nil {
		t.Fatal(err)
	}
	secret, now, body := webhookSecret(t, testWebhookSecret), time.Now(), []byte(`{"n":1,"s":"ü"}`)

	h := http.Header{}
	SetWebhook(h, secret, "msg_ours", now, body)
	if err := theirs.Verify(body, h); err != nil {
		t.Errorf("the library on our signature: %v", err)
	}

	signature, err := theirs.Sign("msg_theirs", now, body)
	if err != nil {
		t.Fatal(err)
	}
	h = http.Header{}
	h.Set(standardwebhooks.HeaderWebhookID, "msg_theirs")
	h.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	h.Set(standardwebhooks.HeaderWebhookSignature, signature)
	if err := VerifyWebhook([]Secret{secret}, h, body, now); err != nil {
		t.Errorf("we on the library's signature: %v", err)
	}
}

// No header makes Verify panic, and none is accepted without the secret.
func FuzzVerify(f *testing.F) {
	secret := webhookSecret(f, testWebhookSecret)
	at := time.Unix(1767225600, 0)
	f.Add("msg_1", "1767225600", SignWebhook(webhookSecret(f, otherWebhookSecret), "msg_1", at, []byte("b")), []byte("b"))
	f.Add("", "+1", "v1, v1,=", []byte{0xff})
	f.Fuzz(func(t *testing.T, id, stamp, signature string, body []byte) {
		h := http.Header{HeaderWebhookID: {id}, HeaderWebhookTimestamp: {stamp}, HeaderWebhookSignature: {signature},
			HeaderEventID: {id}, HeaderSignature: {signature}}
		if err := VerifyWebhook([]Secret{secret}, h, body, at); !errors.Is(err, ErrSignature) {
			t.Errorf("VerifyWebhook: got %v, want ErrSignature", err)
		}
		if err := VerifyLegacy([]Secret{secret}, h, body); !errors.Is(err, ErrSignature) {
			t.Errorf("VerifyLegacy: got %v, want ErrSignature", err)
		}
	})
}

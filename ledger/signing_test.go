package ledger_test

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/talenttrust/auditledger/ledger"
)

// signers are the two kinds of keys of a source, and what signs with them.
func signers() (*ledger.Signing, map[string]func(text string) string) {
	private := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	secret := []byte("unit-secret")
	signing := &ledger.Signing{Required: true, Keys: []ledger.SigningKey{
		{ID: "ed", Ed25519: private.Public().(ed25519.PublicKey)}, {ID: "mac", HMAC: secret},
	}}
	return signing, map[string]func(string) string{
		"ed": func(text string) string {
			return base64.StdEncoding.EncodeToString(ed25519.Sign(private, []byte(text)))
		},
		"mac": func(text string) string {
			mac := hmac.New(sha256.New, secret)
			mac.Write([]byte(text))
			return base64.StdEncoding.EncodeToString(mac.Sum(nil))
		},
	}
}

const (
	unsigned   = `{"contractId":"led-9","eventId":"ev-4","sequence":7,"timestamp":%d,"payload":{"b":1.0,"a":"x"}}`
	signedForm = `{"contractId":"led-9","contractType":"lease_contract","eventId":"ev-4","payload":{"a":"x","b":1},"sequence":7,"timestamp":%d}`
)

func TestEventSignatures(t *testing.T) {
	for _, key := range []string{"ed", "mac"} {
		t.Run(key, func(t *testing.T) {
			b := newBench(t, nil)
			signing, sign := signers()
			b.src.Signing = signing
			at := b.now.UnixMilli()
			event := fmt.Sprintf(unsigned, at)
			good := sign[key](fmt.Sprintf(signedForm, at))
			with := func(event, signature string) string {
				return strings.TrimSuffix(event, "}") + `,"signature":"` + signature + `"}`
			}
			raw, _ := base64.StdEncoding.DecodeString(good)
			for _, test := range []struct{ name, event string }{
				{"none", event},
				{"another payload", with(strings.Replace(event, `"x"`, `"y"`, 1), good)},
				{"another sequence", with(strings.Replace(event, `:7`, `:8`, 1), good)},
				{"another contract", with(strings.Replace(event, `led-9`, `led-8`, 1), good)},
				{"another time", with(strings.Replace(event, fmt.Sprint(at), fmt.Sprint(at+1), 1), good)},
				{"of another type", with(event, sign[key](strings.Replace(fmt.Sprintf(signedForm, at), "lease_", "sale_", 1)))},
				{"of the bytes as sent", with(event, sign[key](event))},
				{"truncated", with(event, base64.StdEncoding.EncodeToString(raw[:len(raw)-1]))},
				{"too long", with(event, base64.StdEncoding.EncodeToString(append(raw, 0)))},
				{"not base64", with(event, "!"+good)},
				{"needed cleaning", with(strings.Replace(event, `"x"`, `"x\u0000"`, 1), good)},
			} {
				results, err := b.Ingest(t.Context(), ledger.Request{Source: b.src}, "lease_contract", [][]byte{[]byte(test.event)})
				if err != nil {
					t.Fatal(err)
				}
				if r := results[0]; r.Status != ledger.StatusRejected || r.Rejection.Code != ledger.CodeInvalidSignature {
					t.Errorf("%s: got %s %+v, want invalid_signature", test.name, r.Status, r.Rejection)
				}
			}
			results, err := b.Ingest(t.Context(), ledger.Request{Source: b.src}, "lease_contract", [][]byte{[]byte(with(event, good))})
			if err != nil {
				t.Fatal(err)
			}
			if results[0].Status != ledger.StatusAccepted {
				t.Fatalf("got %+v, want accepted", results[0])
			}
			recs, err := b.store.Read(t.Context(), []ledger.Position{results[0].Position})
			if err != nil {
				t.Fatal(err)
			}
			if y := recs[0].Body; y.Verdict != ledger.VerdictVerified || y.KeyID != key || y.Signature != good {
				t.Errorf("got verdict %q with key %q, want verified with %s", y.Verdict, y.KeyID, key)
			}
			// Once the key is bound, a copy without a signature still learns nothing of it.
			results, err = b.Ingest(t.Context(), ledger.Request{Source: b.src}, "lease_contract", [][]byte{[]byte(event)})
			if err != nil || results[0].Status != ledger.StatusRejected {
				t.Errorf("an unsigned copy: got %+v, %v, want rejected", results, err)
			}
		})
	}
}

// A source that may sign, and one that has no keys.
func TestOptionalSignatures(t *testing.T) {
	b := newBench(t, nil)
	signing, _ := signers()
	signing.Required = false
	at := b.now.UnixMilli()
	event := fmt.Sprintf(unsigned, at)
	bad := strings.TrimSuffix(event, "}") + `,"signature":"AAAA"}`
	for _, test := range []struct {
		name    string
		signing *ledger.Signing
		event   string
		want    ledger.Status
	}{
		{"wrong, may sign", signing, bad, ledger.StatusRejected},
		{"none, may sign", signing, event, ledger.StatusAccepted},
		{"unchecked", nil, strings.Replace(bad, "ev-4", "ev-5", 1), ledger.StatusAccepted},
	} {
		b.src.Signing = test.signing
		results, err := b.Ingest(t.Context(), ledger.Request{Source: b.src}, "lease_contract", [][]byte{[]byte(test.event)})
		if err != nil {
			t.Fatal(err)
		}
		if results[0].Status != test.want {
			t.Errorf("%s: got %+v, want %s", test.name, results[0], test.want)
			continue
		}
		recs, err := b.store.Read(t.Context(), []ledger.Position{results[0].Position})
		if err != nil {
			t.Fatal(err)
		}
		if y := recs[0].Body; y.Verdict != "" || y.KeyID != "" {
			t.Errorf("%s: got a verdict: %q", test.name, y.Verdict)
		}
	}
}

// Any text is an envelope or refused, and what is accepted has its rules met.
func FuzzEnvelope(f *testing.F) {
	for _, s := range []string{
		`{"type":"x","chat_jid":"a@g.us","payload":{}}`, `{"type":"x","chat_jid":null,"payload":[1,"\ud800"]}`, `{"type":"\u0000","payload":{}}`,
		"{\"type\":\"\xff\",\"chat_jid\":\"\xff\",\"payload\":{}}", `{"type":"x","type":"y","payload":{}}`, `[]`, `{`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, envelope []byte) {
		b := newBench(t, nil)
		r, err := b.IngestEnvelope(t.Context(), ledger.Request{Source: b.src}, "1e6e0c10-8204-53b6-9664-9b4d6f510160", envelope)
		if err != nil {
			t.Fatal(err)
		}
		if r.Status != ledger.StatusAccepted {
			if r.Rejection == nil || r.Rejection.Reason == "" {
				t.Fatalf("got %+v", r)
			}
			return
		}
		var v map[string]any
		if !ledger.ValidID(r.Key.ContractID, 255) || r.Key.Sequence != 0 || r.Generation != 1 || json.Unmarshal(envelope, &v) == nil && v["payload"] == nil {
			t.Errorf("got %+v", r)
		}
	})
}

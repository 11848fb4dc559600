package ledger_test

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/canonical"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// golden is an entry with every member of a header and most of a body's.
func golden() *ledger.Entry {
	e := ledgertest.Event(ledger.Key{ContractID: "contract_123", EventID: "event_456", Sequence: 1}, `{"amount":12.5}`, 0)
	e.Header.Code = "" // of rejections only
	e.Body.Signature, e.Body.Sanitized, e.Body.Late, e.Body.Traceparent = "sig", true, true, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	e.Seal()
	return e
}

// TestHashedForms holds the exact bytes that are hashed. They never change: a new rule is a new v.
func TestHashedForms(t *testing.T) {
	e := golden()
	d := ledger.Decide(e, ledger.EmptyStream, ledger.Found{})
	r, changed := e.Record(d, ledger.EmptyStream, 1)
	if changed {
		t.Error("the record of a key never seen is not the one expected")
	}
	zeros := strings.Repeat("0", 64)
	header := `{"commitment":"` + r.Header.Commitment.String() + `","contractId":"contract_123","contractType":"test_contract","eventId":"event_456","generation":1,"prev":"` + zeros +
		`","recordedAt":1767225600000,"revision":0,"sequence":1,"source":"suite","stream":"contract-contract_123","timestamp":1767225600000,"type":"EventAccepted","v":1}`
	if got := string(r.Header.AppendCanonical(nil)); got != header {
		t.Errorf("header\n got %s\nwant %s", got, header)
	}
	payloadHash := sha("{\"amount\":12.5}")
	event := `{"contractId":"contract_123","contractType":"test_contract","eventId":"event_456","payload":{"amount":12.5},"sequence":1,"signature":"sig","timestamp":1767225600000}`
	eventHash := sha(strings.Replace(event, `"payload":{"amount":12.5}`, `"payloadHash":"`+payloadHash+`"`, 1))
	body := `{"boundUntil":1767229200000,"correlationId":"suite-1","event":` + event + `,"eventHash":"` + eventHash + `","late":true,"payloadHash":"` + payloadHash +
		`","rawHash":"` + sha(`raw{"amount":12.5}`) + `","sanitized":true,"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}`
	if got := string(r.Body.AppendCanonical(nil, &r.Header)); got != body {
		t.Errorf("body\n got %s\nwant %s", got, body)
	}
	bodyHash := sha256.Sum256([]byte(body))
	if want := sha(string(r.Body.Salt[:]) + string(bodyHash[:])); r.Header.Commitment.String() != want {
		t.Errorf("commitment %s, want %s", r.Header.Commitment, want)
	}
	if want := sha("\x00" + header); r.Leaf.String() != want {
		t.Errorf("leaf %s, want %s", r.Leaf, want)
	}
	for _, text := range []string{header, body} { // the writers above are no second canonicalizer
		form, err := canonical.Append(nil, []byte(text))
		if err != nil || string(form) != text {
			t.Errorf("%s\nis canonically %s, %v", text, form, err)
		}
	}
	if got := r.Header.Key().ID(1).String() + " " + r.Header.Key().ID(2).String(); got != "a06bd562-1459-5392-89bd-5dc612908c57 a10efea5-fa74-52c5-8433-32ec65d468c0" {
		t.Errorf("event IDs %s", got)
	}
}

func sha(text string) string {
	h := sha256.Sum256([]byte(text))
	return hex.EncodeToString(h[:])
}

// TestCheck changes a record in every way that a check must see.
func TestCheck(t *testing.T) {
	made := func() ledger.Record {
		e := golden()
		r, _ := e.Record(ledger.Decide(e, ledger.EmptyStream, ledger.Found{}), ledger.EmptyStream, 1)
		return r
	}
	r := made()
	if err := r.Check(ledger.Hash{}); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*ledger.Record){
		"version": func(r *ledger.Record) { r.Header.V = 2 }, "prev": func(r *ledger.Record) { r.Header.Prev[0]++ }, "leaf": func(r *ledger.Record) { r.Leaf[31]++ },
		"contract": func(r *ledger.Record) { r.Header.ContractID = "x" }, "sequence": func(r *ledger.Record) { r.Header.Sequence++ },
		"recordedAt": func(r *ledger.Record) { r.Header.RecordedAt++ }, "source": func(r *ledger.Record) { r.Header.Source = "" },
		"payload": func(r *ledger.Record) { r.Body.Payload = []byte(`{"amount":99}`) },
		"both": func(r *ledger.Record) {
			r.Body.Payload = []byte(`{"amount":99}`)
			r.Body.PayloadHash = canonical.Sum(r.Body.Payload)
		},
		"signature": func(r *ledger.Record) { r.Body.Signature = "other" }, "salt": func(r *ledger.Record) { r.Body.Salt[5]++ },
		"window": func(r *ledger.Record) { r.Body.BoundUntil++ }, "flag": func(r *ledger.Record) { r.Body.Late = false }, "raw": func(r *ledger.Record) { r.Body.RawHash[0]++ },
	} {
		r := made()
		change(&r)
		if r.Check(ledger.Hash{}) == nil {
			t.Errorf("%s changed: nothing is wrong", name)
		}
	}
}

func TestPosition(t *testing.T) {
	for text, ok := range map[string]bool{"0": true, "42": true, "9223372036854775807": true, "9223372036854775808": false, "": false, "-1": false, "+1": false, "01": false, "1.0": false, " 1": false, "0x1": false} {
		p, err := ledger.ParsePosition(text)
		if (err == nil) != ok || ok && p.String() != text {
			t.Errorf("position %q: %d, %v", text, p, err)
		}
	}
}

func TestSecretNames(t *testing.T) {
	for name, secret := range map[string]bool{
		"password": true, "apiKey": true, "API_KEY": true, "x-auth-token": true, "clientSecret": true, "private_key": true, "Authorization": true, "sessionId": true,
		"key": false, "payloadHash": false, "tokenize": false, "author": false, "contractId": false, "secretary": false, "": false,
	} {
		if got := ledger.SecretName(name); got != secret {
			t.Errorf("%q looks like a secret: %v, want %v", name, got, secret)
		}
	}
}

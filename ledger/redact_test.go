package ledger_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/talenttrust/auditledger/ledger"
)

func TestRedactPayload(t *testing.T) {
	for _, test := range []struct {
		payload, want string
		withheld      []string
	}{
		{`{}`, `{}`, nil},
		{`[1,"a",null]`, `[1,"a",null]`, nil},
		{`{"amount":9007199254740993,"n":1e401,"token":"t"}`, `{"amount":9007199254740993,"n":1e401,"token":"[REDACTED]"}`, []string{"/token"}},
		{`{"apiKey":{"a":[1]},"b":{"c":[{"client_secret":null,"d":"x"}]}}`, `{"apiKey":"[REDACTED]","b":{"c":[{"client_secret":"[REDACTED]","d":"x"}]}}`, []string{"/apiKey", "/b/c/0/client_secret"}},
		{`[[{"X-Api-Key":[]}]]`, `[[{"X-Api-Key":"[REDACTED]"}]]`, []string{"/0/0/X-Api-Key"}},
		{`{"a/b":{"pin":1},"spinning":"token","tokenize":1}`, `{"a/b":{"pin":"[REDACTED]"},"spinning":"token","tokenize":1}`, []string{"/a~1b/pin"}},
	} {
		got, withheld, err := ledger.RedactPayload([]byte(test.payload))
		if err != nil || string(got) != test.want || !cmp.Equal(withheld, test.withheld) {
			t.Errorf("%s: got %s %v %v, want %s %v", test.payload, got, withheld, err, test.want, test.withheld)
		}
	}
}

// No value under a secret's name is left, and the result is JSON.
func FuzzRedactPayload(f *testing.F) {
	f.Add(`{"a":[{"password":"zebra"}]}`, "token")
	f.Fuzz(func(t *testing.T, payload, name string) {
		if !json.Valid([]byte(payload)) || strings.Contains(payload, "zebra-5528") {
			return
		}
		member, _ := json.Marshal(name + "_token")
		got, withheld, err := ledger.RedactPayload([]byte(`{"x":` + payload + `,` + string(member) + `:["zebra-5528"]}`))
		if err == nil && (strings.Contains(string(got), "zebra-5528") || len(withheld) == 0 || !json.Valid(got)) {
			t.Errorf("got %s, withheld %v", got, withheld)
		}
	})
}

package rest_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/rest"
)

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// sources writes a sources file and loads it.
func sources(t *testing.T, text string) (*rest.Auth, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sources.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return rest.LoadAuth(file, 24*time.Hour, func() time.Time { return noon })
}

// some are a few sources; the tokens are the names of the keys with "token-" in front.
func some() string {
	return `
sources:
  - name: leases
    role: collector
    keys:
      - {id: k1, sha256: ` + hashOf("token-k1") + `}
      - {id: k2, sha256: ` + hashOf("token-k2") + `, expires: 2026-03-01T12:00:01Z}
      - {id: k3, sha256: ` + hashOf("token-k3") + `, expires: 2026-03-01T12:00:00Z}
    contracts: ["led-*", "exact.1", "*@g.us"]
    contractTypes: [lease_contract, "pay*_contract"]
    window: 0
    late: accept
    sequence: free
  - name: eyes
    role: auditor
    keys: [{id: a, sha256: ` + hashOf("token-a") + `}]
  - name: boss
    role: admin
    window: 1h30m
    keys: [{id: b, sha256: ` + hashOf("token-b") + `}]
`
}

func bearer(key string) func(*http.Request) {
	return header("Authorization", "Bearer token-"+key)
}

func withSources(t *testing.T) *service {
	t.Helper()
	auth, err := sources(t, some())
	if err != nil {
		t.Fatal(err)
	}
	return newService(t, options{rest: rest.Config{Auth: auth}})
}

func TestRoles(t *testing.T) {
	s := withSources(t)
	good := batch("lease_contract", event("led-1", "e-1", 1, `{}`))
	routes := []struct{ method, path, body, may string }{
		{"POST", "/api/v1/events", good, "k1 b"},
		{"POST", "/api/v1/events/validate", good, "k1 b"},
		{"POST", "/api/v1/contracts/led-1/events", `{"contractType":"lease_contract"}`, "k1 b"},
		{"GET", "/api/v1/stats", "", "a b"},
		{"GET", "/api/v1/contracts", "", "a b"},
		{"GET", "/api/v1/contracts/led-1/history", "", "a b"},
		{"GET", "/api/v1/contracts/led-1/events/e-1/1", "", "a b"},
		{"GET", "/api/v1/projections", "", "a b"},
		{"GET", "/metrics", "", "a b"},
		{"POST", "/api/v1/projections/stats/rebuild", "", "b"},
		{"GET", "/healthz", "", "k1 a b nobody"},
		{"GET", "/readyz", "", "k1 a b nobody"},
		{"GET", "/api/v1/openapi.yaml", "", "k1 a b nobody"},
	}
	s.settled0(t)
	for _, route := range routes {
		for _, who := range []string{"k1", "a", "b", "nobody"} {
			r := s.do(route.method, route.path, route.body, bearer(who))
			may := strings.Contains(route.may, who)
			switch {
			case may && (r.status == 401 || r.status == 403):
				t.Errorf("%s %s as %s: got %d, want to be let in", route.method, route.path, who, r.status)
			case !may && who == "nobody" && (r.status != 401 || r.header.Get("WWW-Authenticate") != "Bearer"):
				t.Errorf("%s %s as nobody: got %d, want 401", route.method, route.path, r.status)
			case !may && who != "nobody" && r.status != 403:
				t.Errorf("%s %s as %s: got %d, want 403", route.method, route.path, who, r.status)
			}
		}
	}
}

// settled0 makes sure that a refused write has stored nothing.
func (s *service) settled0(t *testing.T) {
	t.Helper()
	s.do("POST", "/api/v1/events", batch("lease_contract", `{}`))
	if head, _ := s.store.Head(t.Context()); head != 1 {
		t.Errorf("an unauthenticated request has stored something: head %d", head)
	}
}

func TestCredentials(t *testing.T) {
	s := withSources(t)
	for name, test := range map[string]struct {
		authorization string
		status        int
	}{
		"none":               {"", 401},
		"good":               {"Bearer token-k1", 200},
		"second key":         {"Bearer token-k2", 200},
		"scheme in capitals": {"BEARER token-k1", 200},
		"expired just now":   {"Bearer token-k3", 401},
		"wrong":              {"Bearer token-k4", 401},
		"the hash itself":    {"Bearer " + hashOf("token-k1"), 401},
		"empty":              {"Bearer ", 401},
		"no scheme":          {"token-k1", 401},
		"basic":              {"Basic token-k1", 401},
	} {
		r := s.do("POST", "/api/v1/events", batch("lease_contract", event("led-1", "e-1", 1, `{}`)), header("Authorization", test.authorization))
		if r.status != test.status {
			t.Errorf("%s: got %d %s, want %d", name, r.status, r.body, test.status)
		}
	}
	two := s.do("POST", "/api/v1/events", batch("lease_contract", event("led-1", "e-1", 1, `{}`)), bearer("k1"), func(r *http.Request) { r.Header.Add("Authorization", "Bearer x") })
	if two.status != 401 {
		t.Errorf("two headers: got %d, want 401", two.status)
	}
	if strings.Contains(s.log.String(), "token-k") {
		t.Error("a token is in the log")
	}
}

// Without sources a service answers to names of its own machine only.
func TestLoopbackNames(t *testing.T) {
	s := newService(t, options{})
	for host, want := range map[string]int{
		"localhost": 200, "LOCALHOST:8080": 200, "127.0.0.1:80": 200, "127.9.9.9": 200, "[::1]:8080": 200, "[::1]": 200,
		"example.org": 403, "example.org:8080": 403, "localhost.example.org": 403, "192.0.2.1": 403, "127.0.0.1.example.org": 403,
	} {
		if r := s.do("GET", "/api/v1/stats", "", func(r *http.Request) { r.Host = host }); r.status != want {
			t.Errorf("%s: got %d, want %d", host, r.status, want)
		}
	}
	if r := s.do("GET", "/healthz", "", func(r *http.Request) { r.Host = "example.org" }); r.status != 200 {
		t.Errorf("healthz: got %d", r.status)
	}
}

func TestPolicy(t *testing.T) {
	s := withSources(t)
	send := func(key, contractType, contract string) result {
		t.Helper()
		r := s.do("POST", "/api/v1/events", batch(contractType, event(contract, "e-1", 1, `{}`)), bearer(key))
		return into[answer](t, r).Results[0]
	}
	for _, test := range []struct{ contractType, contract, want string }{
		{"lease_contract", "led-1", "accepted"},
		{"lease_contract", "led-", "accepted"},
		{"lease_contract", "exact.1", "accepted"},
		{"lease_contract", "exact.12", "rejected"},
		{"lease_contract", "777@g.us", "accepted"},
		{"lease_contract", "777@g.us.x", "rejected"},
		{"lease_contract", "Led-1", "rejected"},
		{"pay_contract", "led-2", "accepted"},
		{"pay-x_contract", "led-3", "accepted"},
		{"talent_contract", "led-4", "rejected"},
	} {
		r := send("k1", test.contractType, test.contract)
		if r.Status != test.want || r.Status == "rejected" && (r.Code != "contract_type_not_allowed" || r.HTTPStatus != 403) {
			t.Errorf("%s %s: got %+v, want %s", test.contractType, test.contract, r, test.want)
		}
	}
	old := fmt.Sprintf(`{"contractId":"led-9","eventId":"e-1","sequence":1,"timestamp":%d,"payload":{}}`, noon.Add(-49*time.Hour).UnixMilli())
	for key, want := range map[string]string{"k1": "accepted", "b": "duplicate"} {
		if key == "b" {
			old = strings.Replace(old, "led-9", "led-10", 1)
			want = "rejected"
		}
		a := into[answer](t, s.do("POST", "/api/v1/events", batch("lease_contract", old), bearer(key)))
		if a.Results[0].Status != want {
			t.Errorf("late event as %s: got %+v, want %s", key, a.Results[0], want)
		}
	}
	send("b", "lease_contract", "boss-1")
	s.clock.set(noon.Add(90 * time.Minute))
	if r := send("b", "lease_contract", "boss-1"); r.Status != "accepted" || *r.Generation != 2 {
		t.Errorf("after a window of 1h30m: got %+v, want generation 2", r)
	}
	s.clock.set(noon.Add(1000 * time.Hour))
	if r := send("k1", "lease_contract", "led-1"); r.Status != "duplicate" {
		t.Errorf("with window 0: got %+v, want a duplicate", r)
	}
}

func TestBadSourcesFiles(t *testing.T) {
	key := "keys: [{id: k, sha256: " + hashOf("x") + "}]"
	for name, test := range map[string]struct{ text, says string }{
		"empty":             {"", "sources: at least one"},
		"no sources":        {"sources: []", "sources: at least one"},
		"not YAML":          {"sources: [", "sources file"},
		"unknown at top":    {"source: []", `[1:1] unknown field "source"`},
		"unknown in source": {"sources:\n  - name: a\n    rolle: admin", `[3:5] unknown field "rolle"`},
		"unknown in key":    {"sources:\n  - name: a\n    role: admin\n    keys: [{id: k, sha: x}]", "unknown field"},
		"member twice":      {"sources:\n  - name: a\n    name: b", "[3:5]"},
		"no name":           {"sources: [{role: admin, " + key + "}]", "sources[0].name"},
		"bad name":          {"sources: [{name: 'a b', role: admin, " + key + "}]", "sources[0].name"},
		"name twice":        {"sources: [{name: a, role: admin, " + key + "}, {name: a, role: admin, keys: [{id: k, sha256: " + hashOf("y") + "}]}]", "source a: is there twice"},
		"no role":           {"sources: [{name: a, " + key + "}]", "source a: role"},
		"bad role":          {"sources: [{name: a, role: root, " + key + "}]", "source a: role"},
		"no keys":           {"sources: [{name: a, role: admin}]", "source a: keys"},
		"key without id":    {"sources: [{name: a, role: admin, keys: [{sha256: " + hashOf("x") + "}]}]", "keys[0].id"},
		"short hash":        {"sources: [{name: a, role: admin, keys: [{id: k, sha256: abcd}]}]", "keys[0].sha256"},
		"long hash":         {"sources: [{name: a, role: admin, keys: [{id: k, sha256: " + hashOf("x") + "00}]}]", "keys[0].sha256"},
		"not hex":           {"sources: [{name: a, role: admin, keys: [{id: k, sha256: " + strings.Repeat("x", 64) + "}]}]", "keys[0].sha256"},
		"shared key":        {"sources: [{name: a, role: admin, " + key + "}, {name: b, role: admin, " + key + "}]", "source b: has a key that a has too"},
		"id twice":          {"sources: [{name: a, role: admin, keys: [{id: k, sha256: " + hashOf("x") + "}, {id: k, sha256: " + hashOf("y") + "}]}]", "keys[1].id"},
		"bad expiry":        {"sources: [{name: a, role: admin, keys: [{id: k, sha256: " + hashOf("x") + ", expires: soon}]}]", "keys[0].expires"},
		"bad window":        {"sources: [{name: a, role: admin, window: 24, " + key + "}]", "source a: window"},
		"negative window":   {"sources: [{name: a, role: admin, window: -1h, " + key + "}]", "source a: window"},
		"bad late":          {"sources: [{name: a, role: admin, late: maybe, " + key + "}]", "source a: late"},
		"bad sequence":      {"sources: [{name: a, role: admin, sequence: no, " + key + "}]", "source a: sequence"},
		"bad pattern":       {"sources: [{name: a, role: admin, contracts: ['a?'], " + key + "}]", "source a: contracts[0]"},
		"empty pattern":     {"sources: [{name: a, role: admin, contractTypes: [''], " + key + "}]", "source a: contractTypes[0]"},
		"no patterns":       {"sources: [{name: a, role: admin, contracts: [], " + key + "}]", "source a: contracts: is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := sources(t, test.text)
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want an error with %q", err, test.says)
			}
		})
	}
	if _, err := rest.LoadAuth(filepath.Join(t.TempDir(), "none.yaml"), 0, time.Now); err == nil {
		t.Error("a file that is not there: got no error")
	}
}

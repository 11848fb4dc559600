package rest_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/rest"
)

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// sources writes a sources file and loads it.
func sources(t *testing.T, text string) (*rest.Auth, error) {
	t.Helper()
	return sourcesAt(t, func() time.Time { return noon }, text)
}

func sourcesAt(t *testing.T, now func() time.Time, text string) (*rest.Auth, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sources.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return rest.LoadAuth(file, 24*time.Hour, now)
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
		"empty":                        {"", "sources: at least one"},
		"no sources":                   {"sources: []", "sources: at least one"},
		"not YAML":                     {"sources: [", "sources file"},
		"unknown at top":               {"source: []", `[1:1] unknown field "source"`},
		"unknown in source":            {"sources:\n  - name: a\n    rolle: admin", `[3:5] unknown field "rolle"`},
		"unknown in key":               {"sources:\n  - name: a\n    role: admin\n    keys: [{id: k, sha: x}]", "unknown field"},
		"member twice":                 {"sources:\n  - name: a\n    name: b", "[3:5]"},
		"no name":                      {"sources: [{role: admin, " + key + "}]", "sources[0].name"},
		"bad name":                     {"sources: [{name: 'a b', role: admin, " + key + "}]", "sources[0].name"},
		"name twice":                   {"sources: [{name: a, role: admin, " + key + "}, {name: a, role: admin, keys: [{id: k, sha256: " + hashOf("y") + "}]}]", "source a: is there twice"},
		"no role":                      {"sources: [{name: a, " + key + "}]", "source a: role"},
		"bad role":                     {"sources: [{name: a, role: root, " + key + "}]", "source a: role"},
		"no keys":                      {"sources: [{name: a, role: admin}]", "source a: keys"},
		"key without id":               {"sources: [{name: a, role: admin, keys: [{sha256: " + hashOf("x") + "}]}]", "keys[0].id"},
		"short hash":                   {"sources: [{name: a, role: admin, keys: [{id: k, sha256: abcd}]}]", "keys[0].sha256"},
		"long hash":                    {"sources: [{name: a, role: admin, keys: [{id: k, sha256: " + hashOf("x") + "00}]}]", "keys[0].sha256"},
		"not hex":                      {"sources: [{name: a, role: admin, keys: [{id: k, sha256: " + strings.Repeat("x", 64) + "}]}]", "keys[0].sha256"},
		"shared key":                   {"sources: [{name: a, role: admin, " + key + "}, {name: b, role: admin, " + key + "}]", "source b: keys[0].sha256: is one that a has too"},
		"id twice":                     {"sources: [{name: a, role: admin, keys: [{id: k, sha256: " + hashOf("x") + "}, {id: k, sha256: " + hashOf("y") + "}]}]", "keys[1].id"},
		"bad expiry":                   {"sources: [{name: a, role: admin, keys: [{id: k, sha256: " + hashOf("x") + ", expires: soon}]}]", "keys[0].expires"},
		"bad window":                   {"sources: [{name: a, role: admin, window: 24, " + key + "}]", "source a: window"},
		"negative window":              {"sources: [{name: a, role: admin, window: -1h, " + key + "}]", "source a: window"},
		"bad late":                     {"sources: [{name: a, role: admin, late: maybe, " + key + "}]", "source a: late"},
		"bad sequence":                 {"sources: [{name: a, role: admin, sequence: no, " + key + "}]", "source a: sequence"},
		"bad pattern":                  {"sources: [{name: a, role: admin, contracts: ['a?'], " + key + "}]", "source a: contracts[0]"},
		"empty pattern":                {"sources: [{name: a, role: admin, contractTypes: [''], " + key + "}]", "source a: contractTypes[0]"},
		"unknown scheme":               {"sources: [{name: a, role: admin, scheme: basic, " + key + "}]", "source a: scheme"},
		"key without secret":           {"sources: [{name: a, role: admin, keys: [{id: k}]}]", "keys[0]: sha256, webhookSecret or legacySecret"},
		"key of another scheme":        {"sources: [{name: a, role: admin, scheme: standard-webhooks, " + key + "}]", "keys[0]: the source's scheme is standard-webhooks"},
		"short secret":                 {"sources: [{name: a, role: admin, keys: [{id: k, webhookSecret: whsec_c2hvcnQ=}]}]", "keys[0].webhookSecret: secret: 5 bytes"},
		"secret of no form":            {"sources: [{name: a, role: admin, keys: [{id: k, webhookSecret: hunter2}]}]", "keys[0].webhookSecret: secret: want whsec_"},
		"env not set":                  {"sources: [{name: a, role: admin, keys: [{id: k, webhookSecret: 'env:NO_SUCH_SECRET'}]}]", "the environment has no NO_SUCH_SECRET"},
		"file not there":               {"sources: [{name: a, role: admin, keys: [{id: k, legacySecret: 'file:none.txt'}]}]", "none.txt"},
		"shared secret":                {"sources: [{name: a, role: admin, keys: [{id: k, legacySecret: same}]}, {name: b, role: admin, keys: [{id: l, legacySecret: same}]}]", "source b: keys[0].legacySecret: secret: is one that a has too"},
		"shared signing id":            {"sources: [{name: a, role: admin, keys: [{id: k, legacySecret: s1}]}, {name: b, role: admin, keys: [{id: k, legacySecret: s2}]}]", "source b: keys[0].id: is one that a has too"},
		"two rates":                    {"sources: [{name: a, role: admin, rate: {events: 1, requests: 1}, " + key + "}]", "source a: rate"},
		"no rate":                      {"sources: [{name: a, role: admin, rate: {burst: 1}, " + key + "}]", "source a: rate"},
		"negative rate":                {"sources: [{name: a, role: admin, rate: {events: -1}, " + key + "}]", "source a: rate"},
		"not a rate":                   {"sources: [{name: a, role: admin, rate: {events: .nan}, " + key + "}]", "source a: rate"},
		"negative burst":               {"sources: [{name: a, role: admin, rate: {events: 1, burst: -1}, " + key + "}]", "source a: rate.burst"},
		"payload right of a collector": {"sources: [{name: a, role: collector, payload: true, " + key + "}]", "source a: payload"},
		"payload right of no kind":     {"sources: [{name: a, role: auditor, payload: maybe, " + key + "}]", "source a: payload"},
		"sign without keys":            {"sources: [{name: a, role: admin, sign: {required: true}, " + key + "}]", "source a: sign.keys"},
		"signing key of no kind":       {"sources: [{name: a, role: admin, sign: {keys: [{id: k}]}, " + key + "}]", "source a: sign.keys[0]: needs ed25519 or hmac"},
		"short public key":             {"sources: [{name: a, role: admin, sign: {keys: [{id: k, ed25519: AAAA}]}, " + key + "}]", "source a: sign.keys[0].ed25519"},
		"signing id twice":             {"sources: [{name: a, role: admin, sign: {keys: [{id: k, hmac: x}, {id: k, hmac: y}]}, " + key + "}]", "source a: sign.keys[1].id"},
		"no patterns":                  {"sources: [{name: a, role: admin, contracts: [], " + key + "}]", "source a: contracts: is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := sources(t, test.text)
			if err == nil || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want an error with %q", err, test.says)
			}
		})
	}
	if _, err := rest.LoadAuth(filepath.Join(t.TempDir(), "none.yaml"), 0, time.Now); err == nil {
		t.Error("a file that is not there: got no error")
	}
}

// A source that sends more than its rate is told when to come again.
func TestRates(t *testing.T) {
	auth, err := sources(t, `
sources:
  - {name: few, role: collector, rate: {events: 10, burst: 20}, keys: [{id: k, sha256: `+hashOf("token-few")+`}]}
  - {name: calm, role: auditor, rate: {requests: 0.5, burst: 2}, keys: [{id: k, sha256: `+hashOf("token-calm")+`}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, options{rest: rest.Config{Auth: auth}})
	send := func(n, want int) {
		t.Helper()
		events := make([]string, n)
		for i := range events {
			events[i] = event("c-1", "e-1", 1, `{}`)
		}
		if r := s.do("POST", "/api/v1/events", batch("lease_contract", events...), bearer("few")); r.status != want {
			t.Errorf("%d events: got %d %s, want %d", n, r.status, r.body, want)
		}
	}
	send(15, 200)
	send(6, 429)
	send(5, 200)
	s.clock.set(noon.Add(time.Second))
	send(11, 429)
	send(10, 200)
	s.clock.set(noon.Add(time.Minute))
	send(100, 200) // more than fits at once takes all there is, once it is there
	send(1, 429)
	for i, want := range []int{200, 200, 429} {
		r := s.do("GET", "/api/v1/stats", "", bearer("calm"))
		if r.status != want || want == 429 && (r.header.Get("Retry-After") != "2" || into[problem](t, r).Code != "rate_limited") {
			t.Errorf("read %d: got %d, Retry-After %s, want %d", i, r.status, r.header.Get("Retry-After"), want)
		}
	}
}

// A faulty file leaves the sources as they were and says so; a good one takes effect at once.
func TestReload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sources.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	of := func(tokens ...string) string {
		text := "sources:\n  - name: eyes\n    role: admin\n    rate: {requests: 1, burst: 1000}\n    keys:\n"
		for i, token := range tokens {
			text += fmt.Sprintf("      - {id: k%d, sha256: %s}\n", i, hashOf(token))
		}
		return text
	}
	write(of("token-1"))
	auth, err := rest.LoadAuth(file, time.Hour, func() time.Time { return noon })
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, options{rest: rest.Config{Auth: auth}})
	check := func(token string, want int) {
		t.Helper()
		if r := s.do("GET", "/api/v1/stats", "", bearer(token)); r.status != want {
			t.Errorf("token-%s: got %d, want %d", token, r.status, want)
		}
	}
	says := func(path, text string) {
		t.Helper()
		if r := s.do("GET", path, "", bearer("2")); r.status != 200 || !strings.Contains(string(r.body), text) {
			t.Errorf("%s: got %d %s, want %s", path, r.status, r.body, text)
		}
	}
	check("2", 401)
	write(of("token-1", "token-2"))
	if err := auth.Reload(); err != nil {
		t.Fatal(err)
	}
	check("1", 200)
	check("2", 200)
	says("/readyz", `"sources":"ok"`)
	write("sources: [")
	if err := auth.Reload(); err == nil {
		t.Error("a faulty file: got no error")
	}
	check("1", 200)
	says("/readyz", `"sources":"stale"`)
	says("/metrics", "sources_stale 1")
	says("/metrics", `sources_reloads_total{result="failed"} 1`)
	write(of("token-2"))
	if err := auth.Reload(); err != nil {
		t.Fatal(err)
	}
	check("1", 401)
	says("/readyz", `"sources":"ok"`)
	says("/metrics", `auth_uses_total{key="2",scheme="bearer",source="eyes"}`)
	says("/metrics", `auth_refusals_total{reason="unknown"} 2`)
	for _, secret := range []string{"k0", hashOf("token-1"), "token-"} {
		if r := s.do("GET", "/metrics", "", bearer("2")); strings.Contains(string(r.body), secret) {
			t.Errorf("the metrics name %s", secret)
		}
	}
}

// Keys are exchanged and the file is broken again and again while requests go on: none is refused.
func TestRotationUnderLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sources.yaml")
	write := func(tokens ...int) {
		text := "sources:\n  - name: eyes\n    role: admin\n    keys:\n"
		for _, n := range tokens {
			text += fmt.Sprintf("      - {id: k%d, sha256: %s}\n", n, hashOf(fmt.Sprint("token-", n)))
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}
	write(0, 1)
	auth, err := rest.LoadAuth(file, time.Hour, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, options{rest: rest.Config{Auth: auth}})
	const rotations = 20
	for n := range rotations {
		done := make(chan struct{})
		var senders sync.WaitGroup
		for range 4 {
			senders.Go(func() { // with the key that is in the old file and in the new one
				for sent := 0; ; sent++ {
					select {
					case <-done:
						if sent > 0 {
							return
						}
					default:
					}
					body := batch("lease_contract", event("c-1", fmt.Sprint("e-", n), sent, `{}`))
					if r := s.do("POST", "/api/v1/events", body, bearer(fmt.Sprint(n+1))); r.status != 200 {
						t.Errorf("rotation %d: got %d %s", n, r.status, r.body)
					}
				}
			})
		}
		if err := os.WriteFile(file, []byte("sources: ["), 0o600); err != nil {
			t.Error(err)
		}
		if err := auth.Reload(); err == nil {
			t.Error("a faulty file: got no error")
		}
		write(n+1, n+2)
		if err := auth.Reload(); err != nil {
			t.Error(err)
		}
		close(done)
		senders.Wait()
	}
}

// A token in a URL is refused on every route, by name and without its value.
func TestSecretsInURLs(t *testing.T) {
	s := withSources(t)
	for _, test := range []struct {
		path   string
		status int
	}{
		{"/api/v1/stats?access_token=token-a", 400},
		{"/api/v1/stats?token=token-a", 400},
		{"/api/v1/stats?apiKey=token-a", 400},
		{"/api/v1/contracts?search=token-a", 200},
		{"/api/v1/contracts?Authorization=Bearer%20token-a", 400},
	} {
		r := s.do("GET", test.path, "", bearer("a"))
		if r.status != test.status || test.status == 400 && (into[problem](t, r).Code != "invalid_parameter" || !strings.Contains(string(r.body), "secret")) {
			t.Errorf("%s: got %d %s, want %d", test.path, r.status, r.body, test.status)
		}
		if test.status == 400 && strings.Contains(string(r.body), "token-a") {
			t.Errorf("%s: the answer holds the secret", test.path)
		}
	}
	if strings.Contains(s.log.String(), "token-a") {
		t.Error("the log holds the secret")
	}
}

// Only a proxy that is trusted may say who the client is.
func TestClientAddress(t *testing.T) {
	for _, test := range []struct {
		proxies []string
		want    string
	}{
		{nil, `"client":"127.0.0.1"`},
		{[]string{"10.0.0.0/8"}, `"client":"127.0.0.1"`},
		{[]string{"127.0.0.0/8", "10.0.0.0/8"}, `"client":"198.51.100.7"`},
	} {
		s := newService(t, options{rest: rest.Config{TrustedProxies: test.proxies}})
		s.do("GET", "/api/v1/stats", "", header("X-Forwarded-For", "203.0.113.9, 198.51.100.7, 10.1.2.3"), header("X-Real-IP", "203.0.113.9"), header("True-Client-IP", "203.0.113.9"))
		if !waitFor(func() bool { return strings.Contains(s.log.String(), test.want) }) {
			t.Errorf("proxies %v: the log lacks %s: %s", test.proxies, test.want, s.log)
		}
	}
}

// waitFor asks until it is so, at most a few seconds.
func waitFor(so func() bool) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range 1000 {
		if so() {
			return true
		}
		<-tick.C
	}
	return false
}

// What an auditor sees of payloads, and what the answer says of the rest.
func TestPayloadRights(t *testing.T) {
	text := "sources:\n  - {name: boss, role: admin, keys: [{id: k, sha256: " + hashOf("token-boss") + "}]}\n"
	for name, right := range map[string]string{"all": "payload: true, ", "usual": "", "redacted": "payload: redacted, ", "none": "payload: false, "} {
		text += "  - {name: " + name + ", role: auditor, " + right + "keys: [{id: k, sha256: " + hashOf("token-"+name) + "}]}\n"
	}
	auth, err := sources(t, text)
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, options{rest: rest.Config{Auth: auth}})
	const whole = `{"amount":1,"card":[{"pin":1234}],"token":"zebra"}`
	posted := into[answer](t, s.do("POST", "/api/v1/events", batch("lease_contract", event("c-1", "e-1", 1, whole)), bearer("boss")))
	const redacted = `"payload":{"amount":1,"card":[{"pin":"[REDACTED]"}],"token":"[REDACTED]"},"withheld":["/card/0/pin","/token"]`
	for name, want := range map[string]string{"boss": `"payload":` + whole + `}`, "all": `"payload":` + whole + `}`, "usual": `"payload":` + whole + `}`,
		"redacted": redacted, "none": `"payload":null,"withheld":[""]`} {
		for _, path := range []string{"/api/v1/contracts/c-1/history", "/api/v1/contracts/c-1/events/e-1/1"} {
			r := s.do("GET", path+"?payload=true&atLeast="+posted.Position, "", bearer(name))
			if r.status != 200 || !strings.Contains(string(r.body), want) {
				t.Errorf("%s as %s: got %d %s, want %s", path, name, r.status, r.body, want)
			}
			if r := s.do("GET", path, "", bearer(name)); strings.Contains(string(r.body), "withheld") {
				t.Errorf("%s as %s: something is withheld that was not asked for: %s", path, name, r.body)
			}
		}
	}
}

// events is how many accepted and rejected events are stored.
func (s *service) events(t *testing.T) (n int) {
	t.Helper()
	head, err := s.store.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for at := ledger.Position(1); at <= head; at++ {
		recs, err := s.store.Read(t.Context(), []ledger.Position{at})
		if err != nil {
			t.Fatal(err)
		}
		if kind := recs[0].Header.Type; kind == ledger.EventAccepted || kind == ledger.EventRejected {
			n++
		}
	}
	return n
}

// Every route for every kind of asker. A refusal leaves nothing behind but itself in the metrics.
func TestEveryRoute(t *testing.T) {
	auth, err := sources(t, some()+`  - name: signer
    role: collector
    contracts: ["777*"]
    keys:
      - {id: sig, webhookSecret: `+hookOld+`}
      - {id: sig-past, webhookSecret: `+hookPast+`, expires: 2026-03-01T12:00:00Z}
  - name: past
    role: admin
    keys: [{id: p, sha256: `+hashOf("token-past")+`, expires: 2026-03-01T12:00:00Z}]
`)
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, options{rest: rest.Config{Auth: auth, Extra: func(r chi.Router) {
		r.Get("/graphql", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("{}")) })
	}}})
	const envelope, foreign = `{"type":"x","chat_jid":"777001","payload":{}}`, `{"type":"x","chat_jid":"888001","payload":{}}`
	good, other := batch("lease_contract", event("led-1", "e-1", 1, `{}`)), batch("lease_contract", event("other", "e-1", 1, `{}`))
	single := fmt.Sprintf(`{"contractType":"lease_contract","eventId":"e-2","sequence":2,"timestamp":%d,"payload":{}}`, noon.UnixMilli())
	nobody := func(*http.Request) {}
	sign := func(secret, id, body string) func(*http.Request) { return signedBy(t, secret, id, noon, body) }
	type ask struct {
		who        string
		path, body string
		as         func(*http.Request)
		status     int
		says       string
	}
	write := func(path, body, otherPath, otherBody string, right int, otherStatus int) []ask {
		return []ask{
			{"nobody", path, body, nobody, 401, "unauthenticated"}, {"expired", path, body, bearer("k3"), 401, "unauthenticated"},
			{"wrong role", path, body, bearer("a"), 403, "forbidden"}, {"wrong contract", otherPath, otherBody, bearer("k1"), otherStatus, "contract_type_not_allowed"},
			{"right", path, body, bearer("k1"), right, ""}, {"admin", path, body, bearer("b"), 200, ""},
		}
	}
	routes := map[string][]ask{
		"POST batch":    write("/api/v1/events", good, "/api/v1/events", other, 200, 200),
		"POST validate": write("/api/v1/events/validate", good, "/api/v1/events/validate", other, 200, 200),
		"POST single":   write("/api/v1/contracts/led-1/events", single, "/api/v1/contracts/other/events", single, 201, 403),
		"POST envelopes": {
			{"nobody", "/api/v1/envelopes", envelope, nobody, 401, "unauthenticated"}, {"a token", "/api/v1/envelopes", envelope, bearer("k1"), 401, "unauthenticated"},
			{"expired", "/api/v1/envelopes", envelope, sign(hookPast, "sig-past", envelope), 401, "unauthenticated"},
			{"wrong contract", "/api/v1/envelopes", foreign, sign(hookOld, "sig", foreign), 403, "contract_type_not_allowed"},
			{"right", "/api/v1/envelopes", envelope, sign(hookOld, "sig", envelope), 201, ""},
		},
		"POST rebuild": {
			{"nobody", "/api/v1/projections/stats/rebuild", "", nobody, 401, ""}, {"expired", "/api/v1/projections/stats/rebuild", "", bearer("past"), 401, ""},
			{"collector", "/api/v1/projections/stats/rebuild", "", bearer("k1"), 403, ""}, {"auditor", "/api/v1/projections/stats/rebuild", "", bearer("a"), 403, ""},
			{"right", "/api/v1/projections/stats/rebuild", "", bearer("b"), 202, ""},
		},
	}
	for _, path := range []string{"/api/v1/stats", "/api/v1/contracts", "/api/v1/contracts/led-1/history?payload=true", "/api/v1/contracts/led-1/events/e-1/1", "/api/v1/projections", "/metrics", "/graphql"} {
		routes["GET "+path] = []ask{
			{"nobody", path, "", nobody, 401, ""}, {"expired", path, "", bearer("past"), 401, ""}, {"wrong role", path, "", bearer("k1"), 403, ""},
			{"signed", path, "", sign(hookOld, "sig", ""), 401, ""}, {"right", path, "", bearer("a"), 200, ""},
		}
	}
	for _, name := range slices.Sorted(maps.Keys(routes)) { // reads before writes: none of them has found anything yet
		method, _, _ := strings.Cut(name, " ")
		for _, test := range routes[name] {
			before := s.events(t)
			r := s.do(method, test.path, test.body, test.as)
			ok := r.status == test.status || test.who == "right" && method == "GET" && r.status == 404
			if !ok || !strings.Contains(string(r.body), test.says) {
				t.Errorf("%s as %s: got %d %s, want %d %s", name, test.who, r.status, r.body, test.status, test.says)
			}
			if r.status >= 400 && test.says != "contract_type_not_allowed" && s.events(t) != before {
				t.Errorf("%s as %s: something was stored", name, test.who)
			}
		}
	}
	metrics := string(s.do("GET", "/metrics", "", bearer("a")).body)
	for _, want := range []string{`auth_refusals_total{reason="expired"}`, `auth_refusals_total{reason="no_credentials"}`, `auth_refusals_total{reason="role"}`, `code="contract_type_not_allowed"`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	for _, secret := range []string{"token-", hookOld[6:], hookPast[6:], hashOf("token-k1")} {
		if strings.Contains(s.log.String(), secret) || strings.Contains(metrics, secret) {
			t.Error("a secret is in the log or in the metrics")
		}
	}
}

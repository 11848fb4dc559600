package rest_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/coreos/go-oidc/v3/oidc/oidctest"

	"github.com/talenttrust/auditledger/rest"
)

// newIssuer is an OpenID Connect issuer of this machine, and what signs with its key.
func newIssuer(t *testing.T) (url string, sign func(claims string) string, down func()) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s := &oidctest.Server{PublicKeys: []oidctest.PublicKey{{PublicKey: key.Public(), KeyID: "k", Algorithm: oidc.ES256}}, Algorithms: []string{oidc.ES256}}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	s.SetIssuer(srv.URL)
	return srv.URL, func(claims string) string { return oidctest.SignIDToken(key, "k", oidc.ES256, claims) }, srv.Close
}

func oidcSources(issuer string) string {
	return `
sources:
  - {name: boss, role: admin, keys: [{id: k, sha256: ` + hashOf("token-boss") + `}]}
oidc: {issuer: "` + issuer + `", audience: ledger, claim: roles, values: [ledger-auditor], payload: redacted}
`
}

func TestOIDC(t *testing.T) {
	issuer, sign, _ := newIssuer(t)
	_, foreign, _ := newIssuer(t)
	auth, err := sources(t, oidcSources(issuer))
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, options{rest: rest.Config{Auth: auth}})
	claims := func(change func(map[string]string)) string {
		m := map[string]string{"iss": `"` + issuer + `"`, "aud": `"ledger"`, "sub": `"ada"`, "roles": `["staff","ledger-auditor"]`,
			"iat": fmt.Sprint(noon.Unix()), "exp": fmt.Sprint(noon.Add(time.Minute).Unix())}
		if change != nil {
			change(m)
		}
		var parts []string
		for name, v := range m {
			parts = append(parts, fmt.Sprintf("%q:%s", name, v))
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	with := func(name, v string) string { return claims(func(m map[string]string) { m[name] = v }) }
	good := sign(claims(nil))
	for name, test := range map[string]struct {
		token  string
		status int
	}{
		"good":              {good, 200},
		"a role of text":    {sign(with("roles", `"ledger-auditor"`)), 200},
		"other roles":       {sign(with("roles", `["staff"]`)), 403},
		"a role of number":  {sign(with("roles", `7`)), 403},
		"no roles":          {sign(claims(func(m map[string]string) { delete(m, "roles") })), 403},
		"other audience":    {sign(with("aud", `"shop"`)), 401},
		"other issuer":      {sign(with("iss", `"https://example.org"`)), 401},
		"no subject":        {sign(claims(func(m map[string]string) { delete(m, "sub") })), 401},
		"expired":           {sign(with("exp", fmt.Sprint(noon.Add(-time.Second).Unix()))), 401},
		"foreign key":       {foreign(claims(nil)), 401},
		"no signature":      {good[:strings.LastIndex(good, ".")+1], 401},
		"changed":           {strings.Replace(good, ".", ".e", 1), 401},
		"three dots":        {"a.b.c", 401},
		"none as algorithm": {"eyJhbGciOiJub25lIn0." + strings.Split(good, ".")[1] + ".", 401},
	} {
		r := s.do("GET", "/api/v1/stats", "", header("Authorization", "Bearer "+test.token))
		if r.status != test.status {
			t.Errorf("%s: got %d %s, want %d", name, r.status, r.body, test.status)
		}
	}
	bearerOf := header("Authorization", "Bearer "+good)
	if r := s.do("POST", "/api/v1/events", batch("lease_contract", event("c-1", "e-1", 1, `{}`)), bearerOf); r.status != 403 {
		t.Errorf("an auditor writes: got %d", r.status)
	}
	posted := into[answer](t, s.do("POST", "/api/v1/events", batch("lease_contract", event("c-1", "e-1", 1, `{"pin":1}`)), bearer("boss")))
	if r := s.do("GET", "/api/v1/contracts/c-1/history?payload=true&atLeast="+posted.Position, "", bearerOf); !strings.Contains(string(r.body), `"withheld":["/pin"]`) {
		t.Errorf("payload: got %s, want it redacted", r.body)
	}
	if !waitFor(func() bool { return s.accesses(t)["oidc:ada 0"] == 1 }) {
		t.Errorf("the read is not recorded: %v", s.accesses(t))
	}
	if metrics := string(s.do("GET", "/metrics", "", bearer("boss")).body); strings.Contains(metrics, "ada") || !strings.Contains(metrics, `scheme="oidc",source="oidc"`) {
		t.Error("metrics: want uses of oidc and no names")
	}
	if strings.Contains(s.log.String(), good) {
		t.Error("a token is in the log")
	}
}

// An issuer that is away is no reason to say that a token is wrong, and none for the other sources.
func TestIssuerAway(t *testing.T) {
	issuer, sign, down := newIssuer(t)
	down()
	auth, err := sources(t, oidcSources(issuer))
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, options{rest: rest.Config{Auth: auth}})
	if r := s.do("GET", "/api/v1/stats", "", header("Authorization", "Bearer "+sign(`{}`))); r.status != http.StatusServiceUnavailable || r.header.Get("Retry-After") == "" {
		t.Errorf("got %d %s, want 503", r.status, r.body)
	}
	if r := s.do("GET", "/api/v1/stats", "", bearer("boss")); r.status != 200 {
		t.Errorf("another source: got %d", r.status)
	}
}

// TestIssuerIsSpared: whatever tokens come, the issuer is asked for its keys only now and then, and one that does not give
// them is away.
func TestIssuerIsSpared(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s := &oidctest.Server{Algorithms: []string{oidc.ES256}}
	var asked, broken atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/keys") {
			asked.Add(1)
			if broken.Load() > 0 {
				http.Error(w, "not now", http.StatusBadGateway)
				return
			}
		}
		s.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	s.SetIssuer(srv.URL)
	var clock atomic.Int64
	clock.Store(noon.UnixNano())
	auth, err := sourcesAt(t, func() time.Time { return time.Unix(0, clock.Load()) }, oidcSources(srv.URL))
	if err != nil {
		t.Fatal(err)
	}
	service := newService(t, options{rest: rest.Config{Auth: auth}})
	claims := fmt.Sprintf(`{"iss":%q,"aud":"ledger","sub":"ada","roles":"ledger-auditor","exp":%d}`, srv.URL, noon.Add(time.Hour).Unix())
	token := oidctest.SignIDToken(key, "new", oidc.ES256, claims)
	expect := func(status int, questions int64) {
		t.Helper()
		asked.Store(0)
		for range 20 {
			if r := service.do("GET", "/api/v1/stats", "", header("Authorization", "Bearer "+token)); r.status != status {
				t.Fatalf("got %d %s, want %d", r.status, r.body, status)
			}
		}
		if n := asked.Load(); n != questions {
			t.Errorf("the issuer was asked for its keys %d times, want %d", n, questions)
		}
	}
	later := func() { clock.Add(int64(11 * time.Second)) }
	broken.Store(1)
	expect(http.StatusServiceUnavailable, 1)
	broken.Store(0)
	later()
	expect(http.StatusUnauthorized, 1)
	s.PublicKeys = []oidctest.PublicKey{{PublicKey: key.Public(), KeyID: "new", Algorithm: oidc.ES256}}
	expect(http.StatusUnauthorized, 0)
	later()
	expect(http.StatusOK, 1)
	broken.Store(1)
	later()
	expect(http.StatusOK, 0)
}

func TestBadIssuers(t *testing.T) {
	for entry, says := range map[string]string{
		`{issuer: "http://example.org", audience: a, claim: c, values: [v]}`:                "oidc.issuer",
		`{issuer: "example.org", audience: a, claim: c, values: [v]}`:                       "oidc.issuer",
		`{issuer: "https://example.org", claim: c, values: [v]}`:                            "oidc.audience",
		`{issuer: "https://example.org", audience: a, values: [v]}`:                         "oidc.claim",
		`{issuer: "https://example.org", audience: a, claim: c}`:                            "oidc.values",
		`{issuer: "https://example.org", audience: a, claim: c, values: [v], payload: any}`: "oidc.payload",
	} {
		_, err := sources(t, "sources:\n  - {name: a, role: admin, keys: [{id: k, sha256: "+hashOf("x")+"}]}\noidc: "+entry+"\n")
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want an error with %s", entry, err, says)
		}
	}
}

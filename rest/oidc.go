package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/talenttrust/auditledger/ledger"
)

// SchemeOIDC is a bearer token that an OpenID Connect issuer signed.
const SchemeOIDC Scheme = "oidc"

// issuerTimeout bounds a question to the issuer.
const issuerTimeout = 5 * time.Second

// OIDCEntry lets people read with tokens of an issuer: those whose claim has one of the values are
// auditors, under the name "oidc:" and their subject.
type OIDCEntry struct {
	Issuer   string   `yaml:"issuer"`            // https, or http on loopback; exactly as in the tokens
	Audience string   `yaml:"audience"`          // that the tokens must be for
	Claim    string   `yaml:"claim"`             // a text or a list of texts
	Values   []string `yaml:"values"`            // of the claim that make an auditor
	Payload  string   `yaml:"payload,omitempty"` // as of a source
}

// issuer checks tokens. Its keys are asked for when they are first needed.
type issuer struct {
	entry OIDCEntry
	now   func() time.Time
	http  onceInAWhile

	mu       sync.Mutex // guards verifier, and is held while the issuer is asked who it is
	verifier *oidc.IDTokenVerifier
}

func (e *OIDCEntry) issuer(now func() time.Time) (*issuer, error) {
	u, err := url.Parse(e.Issuer)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || checkLoopback(u.Host) != nil):
		return nil, errors.New("issuer: must be an https URL, or http on loopback")
	case e.Audience == "":
		return nil, errors.New("audience: is required")
	case e.Claim == "":
		return nil, errors.New("claim: is required")
	case len(e.Values) == 0 || slices.Contains(e.Values, ""):
		return nil, errors.New("values: at least one is needed, and none may be empty")
	case !slices.Contains([]string{"", payloadAll, payloadRedacted, payloadNone}, e.Payload):
		return nil, errors.New("payload: must be true, redacted or false")
	}
	return &issuer{entry: *e, now: now, http: onceInAWhile{now: now, answers: map[string]issuerAnswer{}}}, nil
}

// looksSigned reports whether a token has the form of a JWT: three parts.
func looksSigned(token string) bool { return strings.Count(token, ".") == 2 }

// identify says who a token is of.
func (i *issuer) identify(ctx context.Context, token string) (identity, error) {
	ctx, cancel := context.WithTimeout(ctx, issuerTimeout)
	defer cancel()
	v, err := i.check()
	if err != nil {
		return identity{}, issuerAway(err)
	}
	t, err := v.Verify(ctx, token)
	var expired *oidc.TokenExpiredError
	switch {
	case errors.As(err, &expired):
		return identity{}, unauthenticated("expired")
	case err != nil && i.http.away(): // with its keys, the token might be right
		return identity{}, issuerAway(err)
	case err != nil || t.Subject == "":
		return identity{}, unauthenticated("unknown")
	}
	claims := map[string]any{}
	if err := t.Claims(&claims); err != nil {
		return identity{}, unauthenticated("unknown")
	}
	who := identity{source: &ledger.Source{Name: "oidc:" + t.Subject}, scheme: SchemeOIDC, payloads: or(i.entry.Payload, payloadAll)}
	if i.entry.matches(claims[i.entry.Claim]) {
		who.role = RoleAuditor
	}
	return who, nil
}

func issuerAway(err error) error {
	return retry("busy", "the issuer of tokens cannot be reached; send the request again", err)
}

// matches reports whether a claim, a text or a list of them, has one of the values.
func (e *OIDCEntry) matches(claim any) bool {
	switch c := claim.(type) {
	case string:
		return slices.Contains(e.Values, c)
	case []any:
		return slices.ContainsFunc(c, func(one any) bool { s, ok := one.(string); return ok && slices.Contains(e.Values, s) })
	}
	return false
}

// check returns what checks tokens, and asks the issuer who it is until it has once answered.
func (i *issuer) check() (*oidc.IDTokenVerifier, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.verifier == nil {
		// The keys are fetched later in this context: it outlives the request.
		ctx := oidc.ClientContext(context.Background(), &http.Client{Transport: &i.http, Timeout: issuerTimeout})
		p, err := oidc.NewProvider(ctx, i.entry.Issuer)
		if err != nil {
			return nil, fmt.Errorf("ask %s: %w", i.entry.Issuer, err)
		}
		i.verifier = p.VerifierContext(ctx, &oidc.Config{ClientID: i.entry.Audience, Now: i.now})
	}
	return i.verifier, nil
}

package rest

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/talenttrust/auditledger/ledger"
)

// Role is what a source may do. An admin may do all.
type Role string

const (
	RoleCollector Role = "collector" // ingest and validate
	RoleAuditor   Role = "auditor"   // read
	RoleAdmin     Role = "admin"
)

func (have Role) may(need Role) bool { return have == need || have == RoleAdmin }

// LocalSource is the name of the one source of a service that has no sources file.
const LocalSource = "local"

// Auth knows the sources and their keys. It is safe for concurrent use.
type Auth struct {
	file    string
	window  time.Duration
	now     func() time.Time
	current atomic.Pointer[snapshot] // nil: everybody is the local source
	local   identity

	reloading       sync.Mutex // held while the file is read and its snapshot put in place
	stale           atomic.Bool
	reloaded, stays atomic.Int64 // readings of the file that took effect, and that did not
}

// identity is who sends a request, and what with.
type identity struct {
	source           *ledger.Source // nil: nobody yet
	role             Role
	payloads         string        // what it sees of them: payloadAll, payloadRedacted or payloadNone
	requests, events *rate.Limiter // nil: no limit
	scheme           Scheme
	key              int // its place among the keys of the source, from 1
}

func (i identity) name() string {
	if i.source == nil {
		return ""
	}
	return i.source.Name
}

// label is the name in a metric. People are not told apart there: they may be many.
func (i identity) label() string {
	if i.scheme == SchemeOIDC {
		return string(SchemeOIDC)
	}
	return i.name()
}

// LocalAuth takes every request as one of the source "local", which may do all. It is for a service
// that only the own machine can reach. Keys are bound for window; 0 is for ever.
func LocalAuth(window time.Duration) *Auth {
	return &Auth{local: identity{source: &ledger.Source{Name: LocalSource, Window: window}, role: RoleAdmin, payloads: payloadAll}}
}

// LoadAuth reads a sources file. window holds for sources that name none. Errors name the line or
// the source, and the rule.
func LoadAuth(file string, window time.Duration, now func() time.Time) (*Auth, error) {
	a := &Auth{file: file, window: window, now: now}
	return a, a.Reload()
}

// Reload reads the sources file again. A request is judged by the file as it was when it began or by
// the new one, never by a mixture. With an error the sources stay as they were. What a source has used
// of its rate counts on while the rate is the same.
func (a *Auth) Reload() error {
	a.reloading.Lock()
	defer a.reloading.Unlock()
	next, err := a.read()
	a.stale.Store(err != nil)
	if err != nil {
		a.stays.Add(1)
		return err
	}
	a.current.Store(next)
	a.reloaded.Add(1)
	return nil
}

func (a *Auth) read() (*snapshot, error) {
	text, err := os.ReadFile(a.file)
	if err != nil {
		return nil, fmt.Errorf("sources file: %w", err)
	}
	rules := sourceRules{now: a.now, window: a.window, secret: followSecret(filepath.Dir(a.file))}
	if old := a.current.Load(); old != nil {
		rules.before = old.names
	}
	next, err := parseSources(text, rules)
	if err != nil {
		return nil, fmt.Errorf("sources file %s: %w", a.file, err)
	}
	return next, nil
}

// state is what /readyz says of the sources.
func (a *Auth) state() string {
	switch {
	case a.current.Load() == nil:
		return "loopback_only"
	case a.stale.Load():
		return "stale"
	}
	return "ok"
}

// unauthenticated does not say what was wrong: only the owner of a key should know. reason is for the
// metrics alone.
func unauthenticated(reason string) *Problem {
	return &Problem{Code: "unauthenticated", Detail: "a valid bearer token or signature is needed", refusal: reason}
}

// identify says who sends a request that has a bearer token.
func (a *Auth) identify(r *http.Request) (identity, error) {
	known := a.current.Load()
	if known == nil {
		return a.local, checkLoopback(r.Host)
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" || len(r.Header.Values("Authorization")) > 1 {
		return identity{}, unauthenticated("no_credentials")
	}
	hash, now := sha256.Sum256([]byte(token)), a.now()
	var found *tokenKey
	for i := range known.tokens { // all of them, so that the time taken tells nothing
		if k := &known.tokens[i]; subtle.ConstantTimeCompare(hash[:], k.hash[:]) == 1 {
			found = k
		}
	}
	switch {
	case found == nil && known.issuer != nil && looksSigned(token):
		return known.issuer.identify(r.Context(), token)
	case found == nil:
		return identity{}, unauthenticated("unknown")
	case !found.live(now):
		return identity{}, unauthenticated("expired")
	}
	return found.of, nil
}

// schemeOf is the scheme of the signature that a request has; "" when it has none. One that has an
// Authorization header is judged by that alone.
func schemeOf(h http.Header) Scheme {
	switch {
	case h.Get(HeaderWebhookSignature) != "":
		return SchemeWebhook
	case h.Get(HeaderSignature) != "":
		return SchemeLegacy
	}
	return ""
}

// canSign reports whether there is a source that may send signed requests now.
func (a *Auth) canSign() bool {
	known := a.current.Load()
	if known == nil {
		return false
	}
	now := a.now()
	for i := range known.signing {
		if k := &known.signing[i]; k.live(now) && k.of.role.may(RoleCollector) {
			return true
		}
	}
	return false
}

// verify says who signed a body, as it was sent. X-Key-Id, where it is given, names the one key that is
// asked; without it every key of the scheme is.
func (a *Auth) verify(h http.Header, body []byte) (identity, error) {
	known, scheme, now := a.current.Load(), schemeOf(h), a.now()
	if known == nil || len(h.Values(HeaderKeyID)) > 1 {
		return identity{}, unauthenticated("signature")
	}
	id, why := h.Get(HeaderKeyID), errors.New("no key of this scheme")
	if id != "" {
		why = errors.New("no such key of this scheme")
	}
	for i := range known.signing {
		k := &known.signing[i]
		if k.scheme != scheme || id != "" && k.id != id {
			continue
		}
		if why = k.verify(h, body, now); why != nil {
			continue
		}
		if !k.live(now) {
			return identity{}, unauthenticated("expired")
		}
		return k.of, nil
	}
	p := unauthenticated("signature")
	p.cause = why
	return identity{}, p
}

func (k *signingKey) verify(h http.Header, body []byte, now time.Time) error {
	if k.scheme == SchemeWebhook {
		return VerifyWebhook([]Secret{k.secret}, h, body, now)
	}
	return VerifyLegacy([]Secret{k.secret}, h, body)
}

// checkLoopback refuses what was not addressed to this machine by a name of its own: without it, a page
// in a browser here could read all through a name that its owner points at 127.0.0.1.
func checkLoopback(host string) error {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if ip := net.ParseIP(strings.Trim(host, "[]")); ip.IsLoopback() || strings.EqualFold(host, "localhost") {
		return nil
	}
	return problem("forbidden", "without a sources file this service answers only to localhost and loopback addresses")
}

// require lets requests of a role pass, and notes who sends them.
func (s *server) require(role Role) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			who, err := s.Auth.identify(r)
			if err == nil {
				err = s.admit(exchangeOf(r.Context()), who, role)
			}
			if err != nil {
				s.fail(w, r, err)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// admit notes who sends a request, and refuses what the source may not do or does too often.
func (s *server) admit(x *exchange, who identity, role Role) error {
	x.caller = who
	if !who.role.may(role) {
		return &Problem{Code: "forbidden", Detail: fmt.Sprintf("this needs the role %s, the source has the role %s", role, who.role), refusal: "role"}
	}
	if who.scheme != "" {
		s.metrics.uses.WithLabelValues(who.label(), string(who.scheme), fmt.Sprint(who.key)).Inc()
	}
	return s.spend(who.requests, 1, "requests")
}

// spend takes n from a limit, and refuses when it does not have so much now. More than it can ever
// have at once is taken as all of it.
func (s *server) spend(limit *rate.Limiter, n int, what string) error {
	if limit == nil {
		return nil
	}
	now := s.Now()
	r := limit.ReserveN(now, min(n, limit.Burst()))
	wait := r.DelayFrom(now)
	if wait == 0 {
		return nil
	}
	r.CancelAt(now)
	return &Problem{
		Code: "rate_limited", Detail: fmt.Sprintf("the source sends more than %g %s per second", limit.Limit(), what),
		RetryAfter: int(min(math.Ceil(wait.Seconds()), 3600)), refusal: "rate",
	}
}

// whyRefused logs why a signature was refused, which its sender is not told.
func (s *server) whyRefused(c *call, err error) {
	var p *Problem
	if errors.As(err, &p) && p.cause != nil {
		s.Logger.LogAttrs(c.Context(), slog.LevelInfo, "signature refused", slog.Any("error", p.cause), slog.String("requestId", c.id))
	}
}

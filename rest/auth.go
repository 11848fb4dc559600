package rest

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/goccy/go-yaml"

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
	now     func() time.Time
	current atomic.Pointer[[]sourceKey] // nil: everybody is the local source
	local   identity
}

// identity is who sends a request.
type identity struct {
	source *ledger.Source // nil: nobody yet
	role   Role
}

func (i identity) name() string {
	if i.source == nil {
		return ""
	}
	return i.source.Name
}

// sourceKey is one bearer token of a source.
type sourceKey struct {
	hash    [sha256.Size]byte // of the token
	expires time.Time         // zero: never
	of      identity
}

// LocalAuth takes every request as one of the source "local", which may do all. It is for a service
// that only the own machine can reach. Keys are bound for window; 0 is for ever.
func LocalAuth(window time.Duration) *Auth {
	return &Auth{local: identity{&ledger.Source{Name: LocalSource, Window: window}, RoleAdmin}}
}

// LoadAuth reads a sources file. window holds for sources that name none. Errors name the line or
// the source, and the rule.
func LoadAuth(file string, window time.Duration, now func() time.Time) (*Auth, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("sources file: %w", err)
	}
	keys, err := parseSources(text, window)
	if err != nil {
		return nil, fmt.Errorf("sources file %s: %w", file, err)
	}
	a := &Auth{now: now}
	a.current.Store(&keys)
	return a, nil
}

// errUnauthenticated does not say what was wrong: only the owner of a key should know.
var errUnauthenticated = problem("unauthenticated", "a valid bearer token is needed")

// identify says who sends the request.
func (a *Auth) identify(r *http.Request) (identity, error) {
	keys := a.current.Load()
	if keys == nil {
		return a.local, nil
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" || len(r.Header.Values("Authorization")) > 1 {
		return identity{}, errUnauthenticated
	}
	hash, now := sha256.Sum256([]byte(token)), a.now()
	var who identity
	for i := range *keys { // all of them, so that the time taken tells nothing
		k := &(*keys)[i]
		if subtle.ConstantTimeCompare(hash[:], k.hash[:]) == 1 && (k.expires.IsZero() || now.Before(k.expires)) {
			who = k.of
		}
	}
	if who.source == nil {
		return identity{}, errUnauthenticated
	}
	return who, nil
}

// require lets requests of a role pass, and notes who sends them.
func (s *server) require(role Role) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			who, err := s.Auth.identify(r)
			if err != nil {
				s.fail(w, r, err)
				return
			}
			exchangeOf(r.Context()).caller = who
			if !who.role.may(role) {
				s.fail(w, r, problem("forbidden", fmt.Sprintf("this needs the role %s, the source has the role %s", role, who.role)))
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// sourcesFile is the form of a sources file.
type sourcesFile struct {
	Sources []sourceEntry `yaml:"sources"`
}

type sourceEntry struct {
	Name          string     `yaml:"name"`          // 1 to 64 characters of the id alphabet
	Role          Role       `yaml:"role"`          // collector, auditor or admin
	Keys          []keyEntry `yaml:"keys"`          // at least one
	Contracts     []string   `yaml:"contracts"`     // patterns of contractIds it may send; none: all
	ContractTypes []string   `yaml:"contractTypes"` // patterns of types it may send; none: all
	Window        *string    `yaml:"window"`        // how long a key is bound: 24h; 0 is for ever; IDEMPOTENCY_TTL when absent
	Late          string     `yaml:"late"`          // reject (when absent) or accept events over the age limit
	Sequence      string     `yaml:"sequence"`      // finding (when absent) or free: no findings of its sequences
}

type keyEntry struct {
	ID      string     `yaml:"id"`      // 1 to 64 characters of the id alphabet, one of its source
	SHA256  string     `yaml:"sha256"`  // of the bearer token, 64 lower hex digits
	Expires *time.Time `yaml:"expires"` // RFC 3339; absent: never
}

// parseSources reads the text of a sources file.
func parseSources(text []byte, window time.Duration) ([]sourceKey, error) {
	var file sourcesFile
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&file); err != nil {
		return nil, errors.New(yaml.FormatError(err, false, false)) // without the lines around it
	}
	if len(file.Sources) == 0 {
		return nil, errors.New("sources: at least one is needed")
	}
	var keys []sourceKey
	names, owners := map[string]bool{}, map[[sha256.Size]byte]string{}
	for i, entry := range file.Sources {
		if !ledger.ValidID(entry.Name, 64) {
			return nil, fmt.Errorf("sources[%d].name: must be 1 to 64 characters of A-Z a-z 0-9 _ - . @", i)
		}
		if names[entry.Name] {
			return nil, fmt.Errorf("source %s: is there twice", entry.Name)
		}
		names[entry.Name] = true
		own, err := entry.keys(window)
		if err != nil {
			return nil, fmt.Errorf("source %s: %w", entry.Name, err)
		}
		for _, k := range own {
			if other, taken := owners[k.hash]; taken {
				return nil, fmt.Errorf("source %s: has a key that %s has too", entry.Name, other)
			}
			owners[k.hash] = entry.Name
		}
		keys = append(keys, own...)
	}
	return keys, nil
}

// keys checks an entry and returns its keys.
func (e *sourceEntry) keys(window time.Duration) ([]sourceKey, error) {
	who, err := e.identity(window)
	if err != nil {
		return nil, err
	}
	if len(e.Keys) == 0 {
		return nil, errors.New("keys: at least one is needed")
	}
	var keys []sourceKey
	ids := map[string]bool{}
	for i, k := range e.Keys {
		if !ledger.ValidID(k.ID, 64) {
			return nil, fmt.Errorf("keys[%d].id: must be 1 to 64 characters of A-Z a-z 0-9 _ - . @", i)
		}
		if ids[k.ID] {
			return nil, fmt.Errorf("keys[%d].id: %s is there twice", i, k.ID)
		}
		ids[k.ID] = true
		key := sourceKey{of: who}
		if n, err := hex.Decode(key.hash[:], []byte(k.SHA256)[:min(len(k.SHA256), 2*sha256.Size)]); err != nil || n != sha256.Size || len(k.SHA256) != 2*sha256.Size {
			return nil, fmt.Errorf("keys[%d].sha256: must be the 64 hex digits of the SHA-256 of the bearer token", i)
		}
		if k.Expires != nil {
			key.expires = *k.Expires
		}
		keys = append(keys, key)
	}
	return keys, nil
}

func (e *sourceEntry) identity(window time.Duration) (identity, error) {
	if e.Role != RoleCollector && e.Role != RoleAuditor && e.Role != RoleAdmin {
		return identity{}, errors.New("role: must be collector, auditor or admin")
	}
	src := &ledger.Source{Name: e.Name, Window: window}
	if e.Window != nil {
		d, err := time.ParseDuration(*e.Window)
		if err != nil || d < 0 || d != d.Truncate(time.Millisecond) {
			return identity{}, errors.New("window: must be a duration of whole milliseconds such as 24h, or 0 for ever")
		}
		src.Window = d
	}
	switch e.Late {
	case "", "reject":
	case "accept":
		src.AcceptLate = true
	default:
		return identity{}, errors.New("late: must be reject or accept")
	}
	switch e.Sequence {
	case "", "finding":
	case "free":
		src.SequenceFree = true
	default:
		return identity{}, errors.New("sequence: must be finding or free")
	}
	for name, patterns := range map[string][]string{"contracts": e.Contracts, "contractTypes": e.ContractTypes} {
		if patterns != nil && len(patterns) == 0 {
			return identity{}, fmt.Errorf("%s: is empty; leave it out to allow all", name)
		}
		for i, p := range patterns {
			if !ledger.ValidID(strings.ReplaceAll(p, "*", "-"), ledger.MaxIDLen) {
				return identity{}, fmt.Errorf("%s[%d]: must be 1 to 255 characters of A-Z a-z 0-9 _ - . @ and *", name, i)
			}
		}
	}
	if len(e.Contracts) > 0 || len(e.ContractTypes) > 0 {
		src.Allows = e.allows
	}
	return identity{src, e.Role}, nil
}

// allows reports whether the patterns allow events of the type for the contract. Where the id could
// not be read, the type alone decides.
func (e *sourceEntry) allows(contractType, contractID string) bool {
	return fitsAny(e.ContractTypes, contractType) && (contractID == "" || fitsAny(e.Contracts, contractID))
}

// fitsAny reports whether one of the patterns matches s; no patterns at all match everything.
func fitsAny(patterns []string, s string) bool {
	for _, p := range patterns {
		if fits(p, s) {
			return true
		}
	}
	return len(patterns) == 0
}

// fits reports whether s is the pattern, in which every * stands for any number of characters.
func fits(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	if last == 0 {
		return pattern == s
	}
	s, ok := strings.CutPrefix(s, parts[0])
	if !ok {
		return false
	}
	for _, part := range parts[1:last] {
		if _, s, ok = strings.Cut(s, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(s, parts[last])
}

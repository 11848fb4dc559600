package rest

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"golang.org/x/time/rate"

	"github.com/talenttrust/auditledger/ledger"
)

// Scheme is how a request shows who sends it.
type Scheme string

const (
	SchemeBearer  Scheme = "bearer"            // a token in Authorization
	SchemeWebhook Scheme = "standard-webhooks" // Webhook-Id, Webhook-Timestamp, Webhook-Signature
	SchemeLegacy  Scheme = "legacy-hmac"       // X-Event-Id and X-Signature
)

// SourcesFile is the form of a sources file, in YAML.
type SourcesFile struct {
	Sources []SourceEntry `yaml:"sources"`
	OIDC    *OIDCEntry    `yaml:"oidc,omitempty"` // absent: no tokens of an issuer are taken
}

// SourceEntry is one source: a name for the record, what it may do, and what its events are held to.
type SourceEntry struct {
	Name          string     `yaml:"name"`                    // 1 to 64 characters of the id alphabet
	Role          Role       `yaml:"role"`                    // collector, auditor or admin
	Scheme        Scheme     `yaml:"scheme,omitempty"`        // the only one taken, and every key has it; absent: each that a key has
	Keys          []KeyEntry `yaml:"keys"`                    // at least one; two while one takes the place of another
	Contracts     []string   `yaml:"contracts,omitempty"`     // patterns of contractIds it may send; none: all
	ContractTypes []string   `yaml:"contractTypes,omitempty"` // patterns of types it may send; none: all
	Window        *string    `yaml:"window,omitempty"`        // how long a key is bound: 24h; 0 is for ever; IDEMPOTENCY_TTL when absent
	Late          string     `yaml:"late,omitempty"`          // reject (when absent) or accept events over the age limit
	Sequence      string     `yaml:"sequence,omitempty"`      // finding (when absent) or free: no findings of its sequences
	Rate          *RateEntry `yaml:"rate,omitempty"`          // absent: no limit
	Payload       string     `yaml:"payload,omitempty"`       // what an auditor sees of payloads: true (when absent) all, redacted nothing that looks like a secret, false nothing
	Sign          *SignEntry `yaml:"sign,omitempty"`          // signatures of single events; absent: they are stored unchecked
}

// KeyEntry is what a source shows that it is itself with. A secret is given as env:NAME, as file:PATH
// (from the sources file's folder) or as the text itself.
type KeyEntry struct {
	ID            string  `yaml:"id"`                      // 1 to 64 characters of the id alphabet, one of its source; one of the file where it signs
	SHA256        string  `yaml:"sha256,omitempty"`        // of the bearer token, 64 hex digits
	WebhookSecret string  `yaml:"webhookSecret,omitempty"` // whsec_ and 24 to 64 bytes in base64
	LegacySecret  string  `yaml:"legacySecret,omitempty"`  // its bytes are the HMAC key
	Expires       *string `yaml:"expires,omitempty"`       // RFC 3339; absent: never
}

// RateEntry is how much a source may send: events or requests per second.
type RateEntry struct {
	Events   float64 `yaml:"events,omitempty"`
	Requests float64 `yaml:"requests,omitempty"`
	Burst    int     `yaml:"burst,omitempty"` // at once; a second's worth when absent
}

// SignEntry is how a source signs its events.
type SignEntry struct {
	Required bool            `yaml:"required,omitempty"` // an event without a signature is refused
	Keys     []EventKeyEntry `yaml:"keys"`
}

// EventKeyEntry is a key for signatures of events: one of the two kinds.
type EventKeyEntry struct {
	ID      string `yaml:"id"`                // stored with what it verified
	Ed25519 string `yaml:"ed25519,omitempty"` // public key, 32 bytes in base64
	HMAC    string `yaml:"hmac,omitempty"`    // secret, as in KeyEntry; of whsec_ the bytes behind it
}

// CheckSources says what is wrong with the text of a sources file: the line or the source, and the
// rule. What env: and file: name is not looked at.
func CheckSources(text []byte) error {
	_, err := parseSources(text, sourceRules{})
	return err
}

// DecodeSources reads the YAML of a sources file and checks nothing else. Members that are not known
// are errors, with their line. The options are those of the YAML library.
func DecodeSources(text []byte, opts ...yaml.DecodeOption) (file SourcesFile, err error) {
	defer func() {
		if recover() != nil { // the decoder gives up on some tags in this way
			err = errors.New("is not YAML of plain mappings, lists and scalars")
		}
	}()
	err = yaml.NewDecoder(bytes.NewReader(text), append(opts, yaml.Strict())...).Decode(&file)
	if err != nil && err != io.EOF { // EOF: it is empty
		return file, errors.New(yaml.FormatError(err, false, false)) // without the lines around it
	}
	return file, nil
}

// sourceRules are what a sources file is read with.
type sourceRules struct {
	window time.Duration                    // of sources that name none
	secret func(ref string) (string, error) // what env: or file: names; nil: they are not looked at
	before map[string]identity              // the sources as they were, by name
	now    func() time.Time
}

// snapshot is what one reading of a sources file says.
type snapshot struct {
	tokens  []tokenKey
	signing []signingKey
	names   map[string]identity
	issuer  *issuer // nil: none
}

// keyOf is whose a key is, and until when.
type keyOf struct {
	id      string
	expires time.Time // zero: never
	of      identity
}

func (k *keyOf) live(now time.Time) bool { return k.expires.IsZero() || now.Before(k.expires) }

// tokenKey is one bearer token of a source.
type tokenKey struct {
	keyOf
	hash [sha256.Size]byte // of the token
}

// signingKey is one secret that a source signs requests with.
type signingKey struct {
	keyOf
	scheme Scheme
	secret Secret
}

// parseSources reads the text of a sources file.
func parseSources(text []byte, rules sourceRules) (*snapshot, error) {
	file, err := DecodeSources(text)
	if err != nil {
		return nil, err
	}
	if len(file.Sources) == 0 {
		return nil, errors.New("sources: at least one is needed")
	}
	s := &snapshot{names: map[string]identity{}}
	owners := map[string]string{}
	for i := range file.Sources {
		e := &file.Sources[i]
		if !ledger.ValidID(e.Name, 64) {
			return nil, fmt.Errorf("sources[%d].name: must be 1 to 64 characters of A-Z a-z 0-9 _ - . @", i)
		}
		if _, there := s.names[e.Name]; there {
			return nil, fmt.Errorf("source %s: is there twice", e.Name)
		}
		who, err := e.identity(rules)
		if err == nil {
			who.keepLimits(rules.before[e.Name])
			s.names[e.Name] = who
			err = s.addKeys(e, who, rules, owners)
		}
		if err != nil {
			return nil, fmt.Errorf("source %s: %w", e.Name, err)
		}
	}
	if file.OIDC != nil {
		if s.issuer, err = file.OIDC.issuer(rules.now); err != nil {
			return nil, fmt.Errorf("oidc.%w", err)
		}
	}
	return s, nil
}

// addKeys checks the keys of a source. owners says whose the hashes, the secrets and the ids of
// signing keys are so far: none may have two owners, for they say who sends.
func (s *snapshot) addKeys(e *SourceEntry, who identity, rules sourceRules, owners map[string]string) error {
	if len(e.Keys) == 0 {
		return errors.New("keys: at least one is needed")
	}
	ids := map[string]bool{}
	for i := range e.Keys {
		k := &e.Keys[i]
		if !ledger.ValidID(k.ID, 64) {
			return fmt.Errorf("keys[%d].id: must be 1 to 64 characters of A-Z a-z 0-9 _ - . @", i)
		}
		if ids[k.ID] {
			return fmt.Errorf("keys[%d].id: %s is there twice", i, k.ID)
		}
		ids[k.ID] = true
		if err := k.checkScheme(e.Scheme); err != nil {
			return fmt.Errorf("keys[%d]: %w", i, err)
		}
		who.key = i + 1
		if err := s.addKey(k, who, rules, owners); err != nil {
			return fmt.Errorf("keys[%d].%w", i, err)
		}
	}
	return nil
}

// checkScheme wants a key to have what the source's scheme needs, and nothing that it does not use.
func (k *KeyEntry) checkScheme(only Scheme) error {
	has := map[Scheme]bool{SchemeBearer: k.SHA256 != "", SchemeWebhook: k.WebhookSecret != "", SchemeLegacy: k.LegacySecret != ""}
	if only != "" {
		for scheme, there := range has {
			if there != (scheme == only) {
				return fmt.Errorf("the source's scheme is %s: the key needs %s and no other secret", only, schemeMember[only])
			}
		}
	}
	if !has[SchemeBearer] && !has[SchemeWebhook] && !has[SchemeLegacy] {
		return errors.New("sha256, webhookSecret or legacySecret is needed")
	}
	return nil
}

var schemeMember = map[Scheme]string{SchemeBearer: "sha256", SchemeWebhook: "webhookSecret", SchemeLegacy: "legacySecret"}

func (s *snapshot) addKey(k *KeyEntry, who identity, rules sourceRules, owners map[string]string) error {
	base := keyOf{id: k.ID, of: who}
	if k.Expires != nil {
		var err error
		if base.expires, err = time.Parse(time.RFC3339, *k.Expires); err != nil {
			return errors.New("expires: must be a time such as 2026-12-31T00:00:00Z")
		}
	}
	own := func(member, what string) error {
		if other, taken := owners[what]; taken {
			return fmt.Errorf("%s: is one that %s has too", member, other)
		}
		owners[what] = who.name()
		return nil
	}
	if k.SHA256 != "" {
		hash, err := hex.DecodeString(k.SHA256)
		if err != nil || len(hash) != sha256.Size {
			return errors.New("sha256: must be the 64 hex digits of the SHA-256 of the bearer token")
		}
		if err := own("sha256", "hash "+string(hash)); err != nil {
			return err
		}
		base.of.scheme = SchemeBearer
		s.tokens = append(s.tokens, tokenKey{base, [sha256.Size]byte(hash)})
	}
	if k.WebhookSecret == "" && k.LegacySecret == "" {
		return nil
	}
	if err := own("id", "id "+k.ID); err != nil {
		return fmt.Errorf("%w; X-Key-Id names it", err)
	}
	for _, c := range []struct {
		scheme Scheme
		ref    string
		read   func(string) (Secret, error)
	}{{SchemeWebhook, k.WebhookSecret, ParseSecret}, {SchemeLegacy, k.LegacySecret, RawSecret}} {
		if c.ref == "" {
			continue
		}
		secret, err := rules.resolve(c.ref, c.read)
		if err == nil && !secret.IsZero() {
			err = own("secret", "secret "+string(secret.key))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", schemeMember[c.scheme], err)
		}
		base.of.scheme = c.scheme
		s.signing = append(s.signing, signingKey{base, c.scheme, secret})
	}
	return nil
}

// resolve reads what a secret's reference stands for. It is zero where references are not followed.
func (r sourceRules) resolve(ref string, read func(string) (Secret, error)) (Secret, error) {
	if strings.HasPrefix(ref, "env:") || strings.HasPrefix(ref, "file:") {
		if r.secret == nil {
			return Secret{}, nil
		}
		var err error
		if ref, err = r.secret(ref); err != nil {
			return Secret{}, err
		}
	}
	return read(ref)
}

// followSecret reads env:NAME and file:PATH, a path being one from dir. Errors name what is named,
// and nothing of what is there.
func followSecret(dir string) func(ref string) (string, error) {
	return func(ref string) (string, error) {
		if name, ok := strings.CutPrefix(ref, "env:"); ok {
			text := os.Getenv(name)
			if text == "" {
				return "", fmt.Errorf("the environment has no %s", name)
			}
			return text, nil
		}
		name := strings.TrimPrefix(ref, "file:")
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		return strings.TrimRight(string(text), "\r\n"), nil
	}
}

// identity checks all of an entry but its keys.
func (e *SourceEntry) identity(rules sourceRules) (identity, error) {
	if e.Role != RoleCollector && e.Role != RoleAuditor && e.Role != RoleAdmin {
		return identity{}, errors.New("role: must be collector, auditor or admin")
	}
	if e.Scheme != "" && schemeMember[e.Scheme] == "" {
		return identity{}, errors.New("scheme: must be bearer, standard-webhooks or legacy-hmac")
	}
	src, err := e.source(rules)
	if err != nil {
		return identity{}, err
	}
	who := identity{source: src, role: e.Role, payloads: or(e.Payload, payloadAll)}
	switch {
	case e.Payload != "" && e.Role != RoleAuditor:
		return identity{}, errors.New("payload: is a right of auditors; a collector reads nothing, an admin all")
	case !slices.Contains([]string{payloadAll, payloadRedacted, payloadNone}, who.payloads):
		return identity{}, errors.New("payload: must be true, redacted or false")
	}
	if e.Rate != nil {
		who.requests, who.events, err = e.Rate.limiters()
	}
	return who, err
}

// source checks what the events of a source are held to.
func (e *SourceEntry) source(rules sourceRules) (*ledger.Source, error) {
	src := &ledger.Source{Name: e.Name, Window: rules.window}
	if e.Window != nil {
		d, err := time.ParseDuration(*e.Window)
		if err != nil || d < 0 || d != d.Truncate(time.Millisecond) {
			return nil, errors.New("window: must be a duration of whole milliseconds such as 24h, or 0 for ever")
		}
		src.Window = d
	}
	switch e.Late {
	case "", "reject":
	case "accept":
		src.AcceptLate = true
	default:
		return nil, errors.New("late: must be reject or accept")
	}
	switch e.Sequence {
	case "", "finding":
	case "free":
		src.SequenceFree = true
	default:
		return nil, errors.New("sequence: must be finding or free")
	}
	for name, patterns := range map[string][]string{"contracts": e.Contracts, "contractTypes": e.ContractTypes} {
		if patterns != nil && len(patterns) == 0 {
			return nil, fmt.Errorf("%s: is empty; leave it out to allow all", name)
		}
		for i, p := range patterns {
			if !ledger.ValidID(strings.ReplaceAll(p, "*", "-"), ledger.MaxIDLen) {
				return nil, fmt.Errorf("%s[%d]: must be 1 to 255 characters of A-Z a-z 0-9 _ - . @ and *", name, i)
			}
		}
	}
	if len(e.Contracts) > 0 || len(e.ContractTypes) > 0 {
		src.Allows = e.allows
	}
	var err error
	if e.Sign != nil {
		src.Signing, err = e.Sign.signing(rules)
	}
	return src, err
}

// limiters are nil but for the one that the entry is about.
func (e *RateEntry) limiters() (requests, events *rate.Limiter, err error) {
	perSecond := max(e.Events, e.Requests)
	switch {
	case min(e.Events, e.Requests) != 0 || !(perSecond > 0) || perSecond > 1e9:
		return nil, nil, errors.New("rate: needs events or requests, one of them, more than 0 per second")
	case e.Burst < 0 || e.Burst > 1e9:
		return nil, nil, errors.New("rate.burst: must be from 1 to 1000000000")
	}
	limiter := rate.NewLimiter(rate.Limit(perSecond), or(e.Burst, max(int(perSecond), 1)))
	if e.Events != 0 {
		return nil, limiter, nil
	}
	return limiter, nil, nil
}

// keepLimits takes over the limits of the source as it was before, where they are the same: a new
// reading of the file is no new allowance.
func (i *identity) keepLimits(before identity) {
	same := func(a, b *rate.Limiter) bool {
		return a != nil && b != nil && a.Limit() == b.Limit() && a.Burst() == b.Burst()
	}
	if same(i.requests, before.requests) {
		i.requests = before.requests
	}
	if same(i.events, before.events) {
		i.events = before.events
	}
}

// signing checks the keys that events are signed with.
func (e *SignEntry) signing(rules sourceRules) (*ledger.Signing, error) {
	if len(e.Keys) == 0 {
		return nil, errors.New("sign.keys: at least one is needed")
	}
	s := &ledger.Signing{Required: e.Required}
	for i, k := range e.Keys {
		if !ledger.ValidID(k.ID, 64) {
			return nil, fmt.Errorf("sign.keys[%d].id: must be 1 to 64 characters of A-Z a-z 0-9 _ - . @", i)
		}
		if slices.ContainsFunc(s.Keys, func(other ledger.SigningKey) bool { return other.ID == k.ID }) {
			return nil, fmt.Errorf("sign.keys[%d].id: %s is there twice", i, k.ID)
		}
		key, err := k.key(rules)
		if err != nil {
			return nil, fmt.Errorf("sign.keys[%d]%w", i, err)
		}
		s.Keys = append(s.Keys, key)
	}
	return s, nil
}

func (e *EventKeyEntry) key(rules sourceRules) (ledger.SigningKey, error) {
	key := ledger.SigningKey{ID: e.ID}
	switch {
	case (e.Ed25519 == "") == (e.HMAC == ""):
		return key, errors.New(": needs ed25519 or hmac, one of them")
	case e.Ed25519 != "":
		public, err := base64.StdEncoding.DecodeString(e.Ed25519)
		if err != nil || len(public) != ed25519.PublicKeySize {
			return key, errors.New(".ed25519: must be a public key, 32 bytes in base64")
		}
		key.Ed25519 = public
		return key, nil
	}
	secret, err := rules.resolve(e.HMAC, func(text string) (Secret, error) {
		if strings.HasPrefix(text, "whsec_") {
			return ParseSecret(text)
		}
		return RawSecret(text)
	})
	if err != nil {
		return key, fmt.Errorf(".hmac: %w", err)
	}
	key.HMAC = secret.key
	return key, nil
}

// allows reports whether the patterns allow events of the type for the contract. Where the id could
// not be read, the type alone decides.
func (e *SourceEntry) allows(contractType, contractID string) bool {
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

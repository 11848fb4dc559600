package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/renameio/v2"

	"github.com/talenttrust/auditledger/rest"
)

// sourceCmd edits a sources file. The file is replaced whole by one that has been checked, or not at
// all; comments stay. A running auditd takes it in at its next SIGHUP.
type sourceCmd struct {
	Add    sourceAddCmd    `cmd:"" help:"Add a source and print its secret, once."`
	Rotate sourceRotateCmd `cmd:"" help:"Give a source another key and print its secret, once; the keys before it expire."`
	Revoke sourceRevokeCmd `cmd:"" help:"End a key of a source, or all of them, now."`
	List   sourceListCmd   `cmd:"" help:"Print the sources and their keys, without secrets."`
}

// sourcesFlag names the file.
type sourcesFlag struct {
	File string `env:"SOURCES_FILE" required:"" help:"The sources file." placeholder:"FILE"`
}

type sourceAddCmd struct {
	sourcesFlag
	Name          string        `arg:"" help:"Name of the source; it is stored with each of its events."`
	Role          rest.Role     `required:"" enum:"collector,auditor,admin" help:"collector, auditor or admin."`
	Scheme        rest.Scheme   `default:"bearer" enum:"bearer,standard-webhooks,legacy-hmac" help:"How it shows who it is: bearer, standard-webhooks or legacy-hmac."`
	Contracts     []string      `help:"Patterns of contracts it may send events of; all when left out." placeholder:"PATTERN"`
	ContractTypes []string      `help:"Patterns of types it may send; all when left out." placeholder:"PATTERN"`
	Expires       time.Duration `help:"How long its key is good; for ever when left out." placeholder:"DURATION"`
	Window        *string       `help:"How long a key of its events is bound to its payload, as 24h; 0 is for ever. IDEMPOTENCY_TTL when left out." placeholder:"DURATION"`
	Late          string        `default:"" enum:",reject,accept" help:"What becomes of events over the age limit: reject (when left out) or accept, marked as late."`
	Payload       string        `default:"" enum:",true,redacted,false" help:"What an auditor sees of payloads: true (when left out), redacted or false."`
}

// Run adds a source.
func (c *sourceAddCmd) Run(_ context.Context, out *streams) error {
	if c.Role == rest.RoleAuditor && c.Scheme != rest.SchemeBearer {
		return errors.New("--scheme must be bearer for an auditor: only requests that send events are signed")
	}
	file, err := openSources(c.File, true)
	if err != nil {
		return err
	}
	if file.find(c.Name) != nil {
		return fmt.Errorf("source %s: is there already; rotate gives it another key", c.Name)
	}
	key, secret := newKey(c.Scheme)
	if c.Expires > 0 {
		key.Expires = until(time.Now().Add(c.Expires))
	}
	file.Sources = append(file.Sources, rest.SourceEntry{
		Name: c.Name, Role: c.Role, Scheme: c.Scheme, Keys: []rest.KeyEntry{key}, Contracts: c.Contracts, ContractTypes: c.ContractTypes,
		Window: c.Window, Late: c.Late, Payload: c.Payload,
	})
	if err := file.save(); err != nil {
		return err
	}
	return out.sayKey(c.Name, c.File, &key, secret)
}

type sourceRotateCmd struct {
	sourcesFlag
	Name string        `arg:"" help:"Name of the source."`
	Keep time.Duration `default:"24h" help:"How long the keys before the new one are still good."`
}

// Run gives a source another key of the kind that its last one has.
func (c *sourceRotateCmd) Run(_ context.Context, out *streams) error {
	if c.Keep < 0 {
		return errors.New("--keep must not be negative")
	}
	file, source, err := openSource(c.File, c.Name)
	if err != nil {
		return err
	}
	key, secret := newKey(schemeOf(source))
	for i := range source.Keys {
		expireAt(&source.Keys[i], time.Now().Add(c.Keep))
	}
	source.Keys = append(source.Keys, key)
	if err := file.save(); err != nil {
		return err
	}
	return out.sayKey(c.Name, c.File, &key, secret)
}

type sourceRevokeCmd struct {
	sourcesFlag
	Name string `arg:"" help:"Name of the source."`
	Key  string `xor:"which" required:"" help:"Id of the key." placeholder:"ID"`
	All  bool   `xor:"which" required:"" help:"All keys: the source is shut out."`
}

// Run ends keys now. They stay in the file, so that their ids are never given to others.
func (c *sourceRevokeCmd) Run(_ context.Context, out *streams) error {
	file, source, err := openSource(c.File, c.Name)
	if err != nil {
		return err
	}
	ended := 0
	for i := range source.Keys {
		if k := &source.Keys[i]; c.All || k.ID == c.Key {
			expireAt(k, time.Now())
			ended++
		}
	}
	if ended == 0 {
		return fmt.Errorf("source %s: has no key %s", c.Name, c.Key)
	}
	if err := file.save(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out.err, "%d keys of %s have ended; send auditd a SIGHUP\n", ended, c.Name)
	return err
}

type sourceListCmd struct{ sourcesFlag }

// Run prints one line for each key.
func (c *sourceListCmd) Run(_ context.Context, out *streams) error {
	file, err := openSources(c.File, false)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SOURCE\tROLE\tKEY\tSCHEME\tSTATE")
	for _, s := range file.Sources {
		for _, k := range s.Keys {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Name, s.Role, k.ID, strings.Join(schemes(&k), ","), stateOf(&k, time.Now()))
		}
	}
	return w.Flush()
}

// sayKey prints a new secret. Of a token only the hash is kept; signatures cannot be checked without the secret itself.
func (s *streams) sayKey(source, file string, key *rest.KeyEntry, secret string) error {
	fmt.Fprintf(s.err, "This secret of %s is shown once. Send auditd a SIGHUP to take it in.\n", source)
	if key.SHA256 == "" {
		fmt.Fprintf(s.err, "It also stands in %s, as signatures need it: keep that file secret, or write file:PATH or env:NAME there instead.\n", file)
	}
	_, err := fmt.Fprintf(s.out, "key: %s\nsecret: %s\n", key.ID, secret)
	return err
}

// newKey makes a key. Of a token only the hash is kept; a secret that signs has to be known to both.
func newKey(scheme rest.Scheme) (key rest.KeyEntry, secret string) {
	key.ID = "k" + time.Now().UTC().Format("20060102") + "-" + strings.ToLower(rand.Text()[:8])
	random := make([]byte, 32)
	rand.Read(random) // never fails: crypto/rand ends the program where the system has no randomness
	switch scheme {
	case rest.SchemeWebhook:
		secret = "whsec_" + base64.StdEncoding.EncodeToString(random)
		key.WebhookSecret = secret
	case rest.SchemeLegacy:
		secret = hex.EncodeToString(random)
		key.LegacySecret = secret
	default:
		secret = hex.EncodeToString(random) // never a - in front, which a flag would be taken for
		hash := sha256.Sum256([]byte(secret))
		key.SHA256 = hex.EncodeToString(hash[:])
	}
	return key, secret
}

// schemeOf is the scheme of a source's next key.
func schemeOf(s *rest.SourceEntry) rest.Scheme {
	if s.Scheme != "" {
		return s.Scheme
	}
	return rest.Scheme(schemes(&s.Keys[len(s.Keys)-1])[0])
}

// schemes are those that a key is good for.
func schemes(k *rest.KeyEntry) (names []string) {
	for _, has := range []struct {
		secret string
		scheme rest.Scheme
	}{{k.SHA256, rest.SchemeBearer}, {k.WebhookSecret, rest.SchemeWebhook}, {k.LegacySecret, rest.SchemeLegacy}} {
		if has.secret != "" {
			names = append(names, string(has.scheme))
		}
	}
	return names
}

func stateOf(k *rest.KeyEntry, now time.Time) string {
	if k.Expires == nil {
		return "live"
	}
	if at, err := time.Parse(time.RFC3339, *k.Expires); err != nil || !now.Before(at) {
		return "expired " + *k.Expires
	}
	return "live until " + *k.Expires
}

// expireAt ends a key at a time, unless it ends before.
func expireAt(k *rest.KeyEntry, at time.Time) {
	if k.Expires != nil {
		if before, err := time.Parse(time.RFC3339, *k.Expires); err == nil && before.Before(at) {
			return
		}
	}
	k.Expires = until(at)
}

func until(at time.Time) *string {
	text := at.UTC().Format(time.RFC3339)
	return &text
}

// sources is a sources file while it is edited.
type sources struct {
	rest.SourcesFile
	name     string
	comments yaml.CommentMap
}

// openSources reads a file that must be valid; with create it need not be there.
func openSources(name string, create bool) (*sources, error) {
	f := &sources{name: name, comments: yaml.CommentMap{}}
	text, err := os.ReadFile(name)
	if create && errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return nil, fmt.Errorf("sources file: %w", err)
	}
	if err = rest.CheckSources(text); err == nil {
		f.SourcesFile, err = rest.DecodeSources(text, yaml.CommentToMap(f.comments))
	}
	if err != nil {
		return nil, fmt.Errorf("sources file %s: %w", name, err)
	}
	return f, nil
}

func openSource(name, source string) (*sources, *rest.SourceEntry, error) {
	f, err := openSources(name, false)
	if err != nil {
		return nil, nil, err
	}
	s := f.find(source)
	if s == nil {
		return nil, nil, fmt.Errorf("source %s: is not in %s", source, name)
	}
	return f, s, nil
}

func (f *sources) find(name string) *rest.SourceEntry {
	for i := range f.Sources {
		if f.Sources[i].Name == name {
			return &f.Sources[i]
		}
	}
	return nil
}

// save puts the file in the place of the one before: durable and whole, or not at all. Only its owner
// may read a new one; another keeps its mode.
func (f *sources) save() error {
	text, err := yaml.MarshalWithOptions(f.SourcesFile, yaml.WithComment(f.comments), yaml.IndentSequence(true))
	if err == nil {
		err = rest.CheckSources(text)
	}
	if err != nil {
		return fmt.Errorf("the sources would not be right: %w", err)
	}
	if err := renameio.WriteFile(f.name, text, 0o600, renameio.WithExistingPermissions()); err != nil {
		return fmt.Errorf("write %s: %w", f.name, err)
	}
	return syncFolder(filepath.Dir(f.name))
}

// syncFolder makes a rename in a folder durable.
func syncFolder(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

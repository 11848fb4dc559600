package outbox

import (
	_ "embed"
	"errors"
	"fmt"
	pathpkg "path"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/google/uuid"
)

// Rules say which events a source sends, how one input becomes several events, and what their ids
// are made of. They are read from YAML; see ChatRules for the built-in set and the collector's
// README for the reference.
type Rules struct {
	// Namespace is the UUID in which the event ids are made (version 5); "" is that of the built-in
	// rules.
	Namespace string `yaml:"namespace"`
	// Envelopes are the rules for raw envelopes, keyed by their type.
	Envelopes Section `yaml:"envelopes"`
	// Events are the rules for ledger events, keyed by contract type. An event that brings its
	// own eventId keeps it.
	Events Section `yaml:"events"`

	// ContractType is what an event without a contract type gets; "" makes it a dead letter.
	ContractType string `yaml:"-"`

	namespace uuid.UUID
}

// Section holds the rules of one form of events.
type Section struct {
	// Deny and DenyIDs are patterns of types and of contract (chat) ids that are left out; Only are
	// patterns of contract ids of which one must fit, unless it is empty. "*" stands for any text.
	Deny    []string `yaml:"deny"`
	DenyIDs []string `yaml:"deny_ids"`
	Only    []string `yaml:"only"`
	// Version names where a payload says its version: a type's rule "messages.upsert@2" goes
	// before "messages.upsert" when the first of these paths that is present says 2.
	Version paths `yaml:"version"`
	// Default is the rule for a type that has none. Its members also stand in for those that a
	// type's rule leaves out.
	Default Rule             `yaml:"default"`
	Types   map[string]*Rule `yaml:"types"`
}

// Rule is how the events of one type are told apart. Paths start at the payload: member names and
// array indexes with dots between them, or a JSON Pointer. A list of paths means the first one
// that is present and not null.
type Rule struct {
	// Each names an array of the payload whose elements are one event each; "$payload" is the
	// payload itself. Where there is no array, the payload is one event.
	Each paths `yaml:"each"`
	// Contract is where the contract (chat) id is.
	Contract paths `yaml:"contract"`
	// ID is what the event id is made of, part by part: paths, or $type, $contract, $sequence,
	// $timestamp, $content (hash of the normalized payload), or =text. If one part is absent, the
	// id is made of $type, $contract and $content instead. A part that is "" is a part.
	ID []paths `yaml:"id"`
	// Occurrence is a further part if it is present: a time or number the source gives to each
	// occurrence, so that A, B, A again are three events.
	Occurrence paths `yaml:"occurrence"`
	// Drop are paths that change without meaning; they are not sent. "*" is every element.
	Drop []path `yaml:"drop"`
	// Sets maps paths of arrays whose order means nothing to the member they are sorted by.
	Sets map[string]string `yaml:"sets"`

	sets []set
}

type set struct {
	path path
	by   string
}

// path is one parsed path; its text starting with "$" or "=" is kept as one step.
type path []string

func (p *path) UnmarshalYAML(unmarshal func(any) error) error {
	var text string
	if err := unmarshal(&text); err != nil {
		return err
	}
	parsed, err := parsePath(text)
	*p = parsed
	return err
}

func parsePath(text string) (path, error) {
	switch {
	case text == "":
		return nil, errors.New("a path is empty")
	case text[0] == '$' || text[0] == '=':
		return path{text}, nil
	case text[0] == '/':
		steps := strings.Split(text[1:], "/")
		for i, s := range steps {
			steps[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(s)
		}
		return steps, nil
	}
	return strings.Split(text, "."), nil
}

// paths is one path or a list of them.
type paths []path

func (p *paths) UnmarshalYAML(unmarshal func(any) error) error {
	var list []path
	if err := unmarshal(&list); err == nil {
		*p = list
		return nil
	}
	var one path
	err := unmarshal(&one)
	*p = paths{one}
	return err
}

//go:embed chat.yaml
var chatRules []byte

// ChatRules returns the built-in rules, which are for chat messages and leave ledger events as
// they are.
func ChatRules() (*Rules, error) { return ParseRules(chatRules) }

// chatNamespace is the namespace of the built-in rules' event ids.
var chatNamespace = uuid.UUID{0xb5, 0xf8, 0xc1, 0xe2, 0x3a, 0x4d, 0x4f, 0x6b, 0x9c, 0x7e, 0x1d, 0x2a, 0x3b, 0x4c, 0x5d, 0x6e}

// ParseRules reads rules and checks them. The error names the section, the type and the member.
func ParseRules(text []byte) (*Rules, error) {
	var r Rules
	if err := yaml.UnmarshalWithOptions(text, &r, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("rules: %s", yaml.FormatError(err, false, false))
	}
	r.namespace = chatNamespace
	if r.Namespace != "" {
		id, err := uuid.Parse(r.Namespace)
		if err != nil {
			return nil, errors.New("rules: namespace is not a UUID")
		}
		r.namespace = id
	}
	for _, s := range []struct {
		name    string
		section *Section
	}{{"envelopes", &r.Envelopes}, {"events", &r.Events}} {
		if err := s.section.finish(); err != nil {
			return nil, fmt.Errorf("rules: %s: %w", s.name, err)
		}
	}
	return &r, nil
}

var wholeContent = []paths{{{"$type"}}, {{"$contract"}}, {{"$content"}}}

func (s *Section) finish() error {
	for member, patterns := range map[string][]string{"deny": s.Deny, "deny_ids": s.DenyIDs, "only": s.Only} {
		for _, p := range patterns {
			if _, err := pathpkg.Match(p, ""); err != nil {
				return fmt.Errorf("%s: %q is not a pattern", member, p)
			}
		}
	}
	if len(s.Default.ID) == 0 {
		s.Default.ID = wholeContent
	}
	if err := s.Default.finish(); err != nil {
		return fmt.Errorf("default: %w", err)
	}
	for name, rule := range s.Types {
		if rule == nil {
			return fmt.Errorf("types: %s: has no members", name)
		}
		if rule.Each == nil {
			rule.Each = s.Default.Each
		}
		if rule.Contract == nil {
			rule.Contract = s.Default.Contract
		}
		if rule.ID == nil {
			rule.ID = s.Default.ID
		}
		if err := rule.finish(); err != nil {
			return fmt.Errorf("types: %s: %w", name, err)
		}
	}
	return nil
}

func (r *Rule) finish() error {
	for _, list := range []struct {
		member string
		paths  []paths
		words  string
	}{
		{"each", []paths{r.Each}, "$payload"},
		{"contract", []paths{r.Contract}, ""},
		{"id", r.ID, "$type $contract $sequence $timestamp $content"},
		{"occurrence", []paths{r.Occurrence}, "$sequence $timestamp"},
		{"drop", []paths{r.Drop}, ""},
	} {
		for _, alternatives := range list.paths {
			if err := alternatives.check(list.words, list.member == "id"); err != nil {
				return fmt.Errorf("%s: %w", list.member, err)
			}
		}
	}
	for text, by := range r.Sets {
		p, err := parsePath(text)
		if err != nil {
			return fmt.Errorf("sets: %w", err)
		}
		r.sets = append(r.sets, set{p, by})
	}
	return nil
}

// check allows only the named words among paths that start with "$", and literals where literal.
func (p paths) check(words string, literal bool) error {
	for _, one := range p {
		word := one[0]
		switch {
		case strings.HasPrefix(word, "$") && !slices.Contains(strings.Fields(words), word):
			return fmt.Errorf("%q is not known here", word)
		case strings.HasPrefix(word, "=") && !literal:
			return fmt.Errorf("%q: a literal makes sense in id only", word)
		}
	}
	return nil
}

// rule returns the rule for a payload of this type.
func (s *Section) rule(typ string, payload []byte) *Rule {
	if version, ok := s.Version.text(payload); ok {
		if rule, ok := s.Types[typ+"@"+version]; ok {
			return rule
		}
	}
	if rule, ok := s.Types[typ]; ok {
		return rule
	}
	return &s.Default
}

// find returns the value at the first of the paths that is present in the payload.
func (p paths) find(payload []byte) ([]byte, bool) {
	for _, one := range p {
		if value, ok := lookup(payload, one); ok {
			return value, true
		}
	}
	return nil, false
}

func (p paths) text(payload []byte) (string, bool) {
	value, ok := p.find(payload)
	if !ok {
		return "", false
	}
	return text(value)
}

// denied reports whether events of this type are left out.
func (s *Section) denied(typ string) bool { return fits(s.Deny, typ) }

// wanted reports whether events of this contract are taken.
func (s *Section) wanted(contractID string) bool {
	return !fits(s.DenyIDs, contractID) && (len(s.Only) == 0 || fits(s.Only, contractID))
}

func fits(patterns []string, s string) bool {
	for _, p := range patterns {
		if ok, _ := pathpkg.Match(p, s); ok {
			return true
		}
	}
	return false
}

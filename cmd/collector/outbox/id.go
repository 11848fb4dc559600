package outbox

import (
	"strings"

	"github.com/google/uuid"
	"github.com/talenttrust/auditledger/ledger/canonical"
)

// EventID returns the UUIDv5 (RFC 9562, section 5.5) of the parts, joined by "|". In a part "%" is
// written %25 and "|" %7C, so that no two lists of parts have one name.
func EventID(namespace uuid.UUID, parts ...string) uuid.UUID {
	escaped := make([]string, len(parts))
	for i, part := range parts {
		escaped[i] = partEscaper.Replace(part)
	}
	return uuid.NewSHA1(namespace, []byte(strings.Join(escaped, "|")))
}

var partEscaper = strings.NewReplacer("%", "%25", "|", "%7C")

// subject is what an event id is made from.
type subject struct {
	typ, contractID, sequence, timestamp string // JSON text for the last two, "" where absent
	payload                              []byte // clean, normalized where the rule says so
	content                              canonical.Hash
}

// eventID applies a rule. A missing part never becomes an empty one: the whole content takes its place.
func (r *Rules) eventID(rule *Rule, s subject) uuid.UUID {
	parts, ok := s.parts(rule.ID)
	if !ok {
		parts, _ = s.parts(wholeContent)
	}
	if occurrence, ok := s.part(rule.Occurrence); ok {
		parts = append(parts, occurrence)
	}
	return EventID(r.namespace, parts...)
}

func (s subject) parts(of []paths) ([]string, bool) {
	parts := make([]string, 0, len(of)+1)
	for _, alternatives := range of {
		part, ok := s.part(alternatives)
		if !ok {
			return nil, false
		}
		parts = append(parts, part)
	}
	return parts, true
}

func (s subject) part(alternatives paths) (string, bool) {
	for _, p := range alternatives {
		if part, ok := s.one(p); ok {
			return part, true
		}
	}
	return "", false
}

func (s subject) one(p path) (string, bool) {
	switch word := p[0]; {
	case word == "$type":
		return s.typ, true
	case word == "$contract":
		return s.contractID, true
	case word == "$content":
		return s.content.String(), true
	case word == "$sequence":
		return text([]byte(s.sequence))
	case word == "$timestamp":
		return text([]byte(s.timestamp))
	case strings.HasPrefix(word, "="):
		return word[1:], true
	}
	value, ok := lookup(s.payload, p)
	if !ok {
		return "", false
	}
	return text(value)
}

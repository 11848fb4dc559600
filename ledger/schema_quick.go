package ledger

import (
	"bytes"
	"math"
	"math/big"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/talenttrust/auditledger/ledger/canonical"
)

// A quickSchema recognises payloads that meet a plain schema without building their values: an
// object of named members, each of one type and within simple bounds. It is sure when it says yes.
// Whatever it cannot tell at a glance it leaves to the validator, which also finds the errors.
type quickSchema struct {
	members  map[string]quickMember // by name, with its quotes
	required uint64                 // the bits of all required members
}

type quickMember struct {
	bit    uint64 // of a required member, else 0
	accept func(raw jsontext.Value) bool
}

// annotationKeywords are the keywords that judge nothing.
var annotationKeywords = []string{"DraftVersion", "Location", "Title", "Description", "Comment", "Examples", "Default", "Deprecated"}

// newQuickSchema returns nil when the schema is not a plain one.
func newQuickSchema(schema *jsonschema.Schema) *quickSchema {
	if !onlyUses(schema, "Types", "Required", "Properties") || soleType(schema) != "object" || len(schema.Required) > 64 {
		return nil
	}
	q := &quickSchema{members: make(map[string]quickMember)}
	for name, member := range schema.Properties {
		accept := newQuickValue(member)
		if accept == nil {
			return nil
		}
		q.members[quoteName(name)] = quickMember{accept: accept}
	}
	for i, name := range schema.Required {
		member, declared := q.members[quoteName(name)]
		if !declared {
			return nil
		}
		member.bit = 1 << i
		q.required |= member.bit
		q.members[quoteName(name)] = member
	}
	return q
}

// newQuickValue returns the check of one member, nil when its schema is not a plain one.
func newQuickValue(schema *jsonschema.Schema) func(jsontext.Value) bool {
	switch t := soleType(schema); {
	case t == "string" && onlyUses(schema, "Types", "Enum", "MinLength", "Pattern"):
		return newQuickString(schema)
	case t == "integer" && onlyUses(schema, "Types"):
		return func(raw jsontext.Value) bool { return raw.Kind() == '0' && !bytes.ContainsAny(raw, ".eE") }
	case t == "number" && onlyUses(schema, "Types", "Minimum", "Maximum"):
		return newQuickNumber(schema)
	case t == "object" && onlyUses(schema, "Types"):
		return func(raw jsontext.Value) bool { return raw.Kind() == '{' }
	}
	return nil
}

func newQuickString(schema *jsonschema.Schema) func(jsontext.Value) bool {
	var allowed []string
	if schema.Enum != nil {
		for _, v := range schema.Enum.Values {
			if s, ok := v.(string); ok {
				allowed = append(allowed, s)
			}
		}
	}
	pattern, ok := schema.Pattern.(*regexp.Regexp)
	if schema.Pattern != nil && !ok || schema.MinLength != nil && *schema.MinLength > 1 {
		return nil
	}
	matches := matcher(pattern)
	return func(raw jsontext.Value) bool {
		if raw.Kind() != '"' || bytes.IndexByte(raw, '\\') >= 0 {
			return false
		}
		text := raw[1 : len(raw)-1]
		return (schema.MinLength == nil || len(text) >= *schema.MinLength) &&
			(schema.Enum == nil || slices.Contains(allowed, string(text))) &&
			(pattern == nil || matches(text))
	}
}

// shortText is how long a text may be to be remembered by a matcher.
const shortText = 8

// matcher matches a pattern, and remembers the last short text that did: a field with a pattern most often
// holds one of few values, such as a currency.
func matcher(pattern *regexp.Regexp) func(text []byte) bool {
	var last atomic.Pointer[string]
	return func(text []byte) bool {
		if known := last.Load(); known != nil && *known == string(text) {
			return true
		}
		ok := pattern.Match(text)
		if ok && len(text) <= shortText {
			known := string(text)
			last.Store(&known)
		}
		return ok
	}
}

// newQuickNumber compares doubles, which is exact here: bounds are whole numbers below 1e15, and no
// two decimals of up to 15 digits have the same double.
func newQuickNumber(schema *jsonschema.Schema) func(jsontext.Value) bool {
	if schema.Minimum == nil && schema.Maximum == nil {
		return func(raw jsontext.Value) bool { return raw.Kind() == '0' }
	}
	least, ok1 := quickBound(schema.Minimum, math.Inf(-1))
	most, ok2 := quickBound(schema.Maximum, math.Inf(1))
	if !ok1 || !ok2 {
		return nil
	}
	return func(raw jsontext.Value) bool {
		if raw.Kind() != '0' || len(raw) > 15 || bytes.ContainsAny(raw, "eE") {
			return false
		}
		n, err := strconv.ParseFloat(string(raw), 64)
		return err == nil && least <= n && n <= most
	}
}

func quickBound(bound *big.Rat, none float64) (float64, bool) {
	if bound == nil {
		return none, true
	}
	f, exact := bound.Float64()
	return f, exact && bound.IsInt() && math.Abs(f) < 1e15
}

// meets reports whether the payload, in canonical form, surely meets the schema.
func (q *quickSchema) meets(payload []byte) bool {
	if len(payload) == 0 || payload[0] != '{' {
		return false
	}
	missing := q.required
	return canonical.Fields(payload, func(quoted, value []byte) bool {
		member, known := q.members[string(quoted)]
		missing &^= member.bit
		return bytes.IndexByte(quoted, '\\') < 0 && (!known || member.accept(value))
	}) && missing == 0
}

// onlyUses reports whether no keyword of the schema is set but those named.
func onlyUses(schema *jsonschema.Schema, keywords ...string) bool {
	v := reflect.ValueOf(*schema)
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if field.IsExported() && !v.Field(i).IsZero() && !slices.Contains(annotationKeywords, field.Name) && !slices.Contains(keywords, field.Name) {
			return false
		}
	}
	return true
}

// soleType returns the one type that the schema allows, "" when there is not exactly one.
func soleType(schema *jsonschema.Schema) string {
	if schema.Types == nil {
		return ""
	}
	if types := schema.Types.ToStrings(); len(types) == 1 {
		return types[0]
	}
	return ""
}

func quoteName(name string) string {
	quoted, _ := jsontext.AppendQuote(nil, name) // a name of a decoded schema is valid UTF-8
	return string(quoted)
}

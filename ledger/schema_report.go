package ledger

import (
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

const (
	// maxFieldErrors bounds what one rejection says: a rejection is stored, and a payload of
	// bad array items would otherwise become a record many times its size.
	maxFieldErrors = 100

	// maxPathLen bounds a path, in bytes, because member names are as long as a sender likes.
	maxPathLen = 512
)

// schemaReport turns the validator's tree of errors into the list that a sender reads.
type schemaReport struct {
	root   any
	errors []FieldError
}

// sorted returns what was found, by path, each once, bounded.
func (r *schemaReport) sorted() []FieldError {
	slices.SortFunc(r.errors, func(a, b FieldError) int {
		if c := strings.Compare(a.Path, b.Path); c != 0 {
			return c
		}
		return strings.Compare(a.Message, b.Message)
	})
	list := slices.Compact(r.errors)
	if more := len(list) - maxFieldErrors; more > 0 {
		list = append(list[:maxFieldErrors:maxFieldErrors],
			FieldError{Path: "/payload", Message: fmt.Sprintf("has %d more errors", more)})
	}
	return list
}

func (r *schemaReport) add(path []string, message string) {
	r.errors = append(r.errors, FieldError{Path: payloadPointer(path), Message: message})
}

func (r *schemaReport) addMembers(path, names []string, message string) {
	for _, name := range names {
		r.add(append(path[:len(path):len(path)], name), message)
	}
}

func (r *schemaReport) walk(e *jsonschema.ValidationError) {
	at := e.InstanceLocation
	switch k := e.ErrorKind.(type) {
	case *kind.Schema, *kind.Group, *kind.Reference, *kind.AllOf:
		for _, cause := range e.Causes {
			r.walk(cause)
		}
	case *kind.Required:
		r.addMembers(at, k.Missing, "is required")
	case *kind.DependentRequired:
		r.addMembers(at, k.Missing, "is required beside "+k.Prop)
	case *kind.Dependency:
		r.addMembers(at, k.Missing, "is required beside "+k.Prop)
	case *kind.AdditionalProperties:
		r.addMembers(at, k.Properties, "is not allowed")
	case *kind.PropertyNames:
		r.walkPropertyNames(at, k.Property)
	default:
		r.add(at, ruleText(k))
	}
}

// walkPropertyNames reports a member whose name is not allowed. The validator's location of this one
// error may have been overwritten by that of a neighbour, so it is used only if the member is there.
func (r *schemaReport) walkPropertyNames(at []string, name string) {
	if object, ok := memberAt(r.root, at).(map[string]any); ok {
		if _, ok := object[name]; ok {
			r.addMembers(at, []string{name}, "has a name that is not allowed")
			return
		}
	}
	r.add(nil, "holds a member whose name is not allowed")
}

// memberAt returns the value at path, nil when there is none.
func memberAt(value any, path []string) any {
	for _, step := range path {
		switch v := value.(type) {
		case map[string]any:
			value = v[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(v) {
				return nil
			}
			value = v[i]
		default:
			return nil
		}
	}
	return value
}

// payloadPointer returns the JSON Pointer of a member of the payload, from the event.
func payloadPointer(path []string) string {
	pointer := jsontext.Pointer("/payload")
	for _, step := range path {
		pointer = pointer.AppendToken(step)
		if len(pointer) > maxPathLen {
			cut := maxPathLen
			for !utf8.RuneStart(pointer[cut]) {
				cut--
			}
			return string(pointer[:cut]) + "…"
		}
	}
	return string(pointer)
}

// ruleText says in plain words which rule is not met. All it prints comes from the schema.
func ruleText(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Type:
		return "must be " + typeText(k.Want)
	case *kind.Enum:
		return "must be one of " + valuesText(k.Want)
	case *kind.Const:
		return "must be " + valuesText([]any{k.Want})
	case *kind.Format:
		return "must be a valid " + k.Want
	case *kind.Pattern:
		return "must match the pattern " + k.Want
	case *kind.MinLength:
		return atLeastText(k.Want, "character")
	case *kind.MaxLength:
		return atMostText(k.Want, "character")
	case *kind.MinItems:
		return atLeastText(k.Want, "item")
	case *kind.MaxItems:
		return atMostText(k.Want, "item")
	case *kind.MinProperties:
		return atLeastText(k.Want, "member")
	case *kind.MaxProperties:
		return atMostText(k.Want, "member")
	case *kind.Minimum:
		return "must be at least " + numberText(k.Want)
	case *kind.Maximum:
		return "must be at most " + numberText(k.Want)
	case *kind.ExclusiveMinimum:
		return "must be greater than " + numberText(k.Want)
	case *kind.ExclusiveMaximum:
		return "must be less than " + numberText(k.Want)
	case *kind.MultipleOf:
		return "must be a multiple of " + numberText(k.Want)
	case *kind.UniqueItems:
		return "must not hold two equal items"
	case *kind.FalseSchema:
		return "is not allowed"
	case *kind.AnyOf:
		return "must have one of the allowed forms"
	case *kind.OneOf:
		return "must have exactly one of the allowed forms"
	case *kind.Not:
		return "must not have the excluded form"
	}
	return "must meet " + strings.Join(append([]string{"the schema's"}, k.KeywordPath()...), " ")
}

func typeText(types []string) string {
	words := make([]string, len(types))
	for i, t := range types {
		switch t {
		case "null":
			words[i] = t
		case "array", "integer", "object":
			words[i] = "an " + t
		default:
			words[i] = "a " + t
		}
	}
	return strings.Join(words, " or ")
}

// valuesText lists values of a schema: strings bare, all else as JSON.
func valuesText(values []any) string {
	words := make([]string, len(values))
	for i, v := range values {
		if s, ok := v.(string); ok && s != "" {
			words[i] = s
			continue
		}
		text, err := json.Marshal(v)
		if err != nil { // not reached: the schema was decoded from JSON
			text = []byte("a value of the schema")
		}
		words[i] = string(text)
	}
	return strings.Join(words, ", ")
}

func atLeastText(n int, unit string) string {
	if n == 1 {
		return "must not be empty"
	}
	return fmt.Sprintf("must have at least %d %ss", n, unit)
}

func atMostText(n int, unit string) string {
	if n == 1 {
		return "must have at most 1 " + unit
	}
	return fmt.Sprintf("must have at most %d %ss", n, unit)
}

// numberText writes a bound of a schema, exactly when it has a short decimal form.
func numberText(n *big.Rat) string {
	if n.IsInt() && n.Num().BitLen() <= 64 {
		return n.Num().String()
	}
	f, _ := n.Float64()
	return strconv.FormatFloat(f, 'g', -1, 64)
}

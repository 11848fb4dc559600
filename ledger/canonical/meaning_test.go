package canonical

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"
)

// names are few, so that they share prefixes and lie on both sides of the surrogates.
var names = []string{"", "a", "ab", "A", "é", "e\u0301", "\"", "\\", "\n", "\x7f", "퟿", "\ue000", "\uffff", "😀", "😁", "\U0010ffff", "a😀", "a\ufb33"}

// spell draws one of the ways to write s as a JSON string.
func spell(t *rapid.T, s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r < ' ' || r == '"' || r == '\\' || rapid.IntRange(0, 3).Draw(t, "escape") == 0:
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, rapid.SampledFrom([]string{`\u%04x`, `\u%04X`}).Draw(t, "hex"), unit)
			}
		default:
			b.WriteRune(r)
		}
	}
	return `"` + b.String() + `"`
}

// tree is a JSON value that can be written in many ways.
type tree struct {
	open    byte // '{', '[' or 0 for a scalar
	names   []string
	members []tree
	text    string // a scalar's; of a string, what it says
	quoted  bool
}

func trees(depth int) *rapid.Generator[tree] {
	return rapid.Custom(func(t *rapid.T) tree {
		kind := rapid.IntRange(0, 4).Draw(t, "kind")
		switch {
		case kind >= 3 && depth > 0:
			v := tree{open: "[{"[kind-3]}
			v.names = rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID).Draw(t, "names")
			for range v.names {
				v.members = append(v.members, trees(depth-1).Draw(t, "member"))
			}
			return v
		case kind == 2:
			return tree{text: rapid.SampledFrom([]string{"true", "false", "null"}).Draw(t, "literal")}
		case kind == 1:
			return tree{text: literals().Draw(t, "number")}
		}
		return tree{text: rapid.SampledFrom(names).Draw(t, "string"), quoted: true}
	})
}

// write draws one of the texts of v.
func (v tree) write(t *rapid.T) string {
	space := rapid.SampledFrom([]string{"", "", " ", "\r\n\t"}).Draw(t, "space")
	switch {
	case v.quoted:
		return space + spell(t, v.text) + space
	case v.open == 0 && strings.ContainsAny(v.text[:1], "-0123456789"):
		return space + respell(t, v.text) + space
	case v.open == 0:
		return space + v.text + space
	}
	order := make([]int, len(v.members))
	for i := range order {
		order[i] = i
	}
	if v.open == '{' {
		order = rapid.Permutation(order).Draw(t, "order")
	}
	var parts []string
	for _, i := range order {
		part := v.members[i].write(t)
		if v.open == '{' {
			part = space + spell(t, v.names[i]) + space + ":" + part
		}
		parts = append(parts, part)
	}
	return string(v.open) + space + strings.Join(parts, ",") + space + string(v.open+2) + space
}

func TestTextsOfOneMeaningHaveOneForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := trees(3).Draw(t, "value")
		a, b := v.write(t), v.write(t)
		formA, errA := Append(nil, []byte(a))
		formB, errB := Append(nil, []byte(b))
		if errA != nil || errB != nil || string(formA) != string(formB) {
			t.Fatalf("%q is %q, %v\n%q is %q, %v", a, formA, errA, b, formB, errB)
		}
		want, err := jsontext.AppendFormat(nil, a, jsontext.ReorderRawObjects(true))
		if err != nil {
			t.Fatal(err)
		}
		compareTokens(t, formA, want)
	})
}

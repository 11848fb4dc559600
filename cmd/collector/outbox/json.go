package outbox

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/talenttrust/auditledger/ledger/canonical"
)

// member is one member of a JSON object; value is a part of the source text.
type member struct {
	name  string
	value []byte
}

var (
	errNotObject = errors.New("not a JSON object")
	errNotArray  = errors.New("not a JSON array")
	errTrailing  = errors.New("something follows the JSON value")
)

func newDecoder(src []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(src), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// readValue returns the next value as a part of src.
func readValue(dec *jsontext.Decoder, src []byte) ([]byte, error) {
	value, err := dec.ReadValue()
	if err != nil {
		return nil, err
	}
	end := int(dec.InputOffset())
	return src[end-len(value) : end : end], nil
}

// members returns the members of the one JSON object in src in their order. Names that stand
// twice are returned twice.
func members(src []byte) ([]member, error) {
	dec := newDecoder(src)
	if dec.PeekKind() != jsontext.KindBeginObject {
		return nil, notKind(dec, errNotObject)
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	list := make([]member, 0, 8)
	for dec.PeekKind() == jsontext.KindString {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, err
		}
		m := member{name: name.String()}
		if m.value, err = readValue(dec, src); err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, finish(dec)
}

// elements returns the elements of the one JSON array in src.
func elements(src []byte) ([][]byte, error) {
	dec := newDecoder(src)
	if dec.PeekKind() != jsontext.KindBeginArray {
		return nil, notKind(dec, errNotArray)
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	var list [][]byte
	for kind := dec.PeekKind(); kind != jsontext.KindEndArray && kind != jsontext.KindInvalid; kind = dec.PeekKind() {
		value, err := readValue(dec, src)
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	return list, finish(dec)
}

// finish reads the closing bracket and makes sure that nothing follows.
func finish(dec *jsontext.Decoder) error {
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		return errTrailing
	}
	return nil
}

// notKind tells a value of another kind from a text that is not JSON at all.
func notKind(dec *jsontext.Decoder, otherwise error) error {
	if _, err := dec.ReadValue(); err != nil {
		return err
	}
	return otherwise
}

// lookup follows a path of member names and array indexes; null counts as absent.
func lookup(src []byte, path []string) ([]byte, bool) {
	for _, step := range path {
		next, ok := child(src, step)
		if !ok {
			return nil, false
		}
		src = next
	}
	return src, len(src) > 0 && src[0] != 'n'
}

func child(src []byte, step string) ([]byte, bool) {
	if len(src) > 0 && src[0] == '[' {
		list, _ := elements(src)
		i, err := strconv.Atoi(step)
		if err != nil || i < 0 || i >= len(list) {
			return nil, false
		}
		return list[i], true
	}
	list, _ := members(src)
	for _, m := range list {
		if m.name == step {
			return m.value, true
		}
	}
	return nil, false
}

// text is a value as a part of an event id: a string's characters, anything else in canonical
// form. It reports false for null and for what has no canonical form.
func text(value []byte) (string, bool) {
	if len(value) == 0 || value[0] == 'n' {
		return "", false
	}
	if value[0] == '"' {
		s, err := jsontext.AppendUnquote(nil, value)
		return string(s), err == nil
	}
	c, err := canonical.Append(nil, value)
	return string(c), err == nil
}

// normalize returns the canonical form of a payload without the dropped paths and with every
// set-like array in one order. In a path "*" stands for every element or member.
func normalize(payload []byte, drop []path, sets []set) ([]byte, error) {
	canon, err := canonical.Append(nil, payload)
	if err != nil || len(drop) == 0 && len(sets) == 0 {
		return canon, err
	}
	dec := json.NewDecoder(bytes.NewReader(canon))
	dec.UseNumber() // keeps every digit
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return nil, err
	}
	for _, p := range drop {
		dropPath(tree, p)
	}
	for _, s := range sets {
		if err := sortSet(tree, s.path, s.by); err != nil {
			return nil, err
		}
	}
	return encodeTree(tree)
}

func encodeTree(tree any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(tree); err != nil {
		return nil, err
	}
	return canonical.Append(nil, buf.Bytes())
}

func dropPath(tree any, p path) {
	if len(p) == 1 {
		if node, ok := tree.(map[string]any); ok {
			if p[0] == "*" {
				clear(node)
			}
			delete(node, p[0])
		}
		return
	}
	for _, next := range children(tree, p[0]) {
		dropPath(next, p[1:])
	}
}

func children(tree any, step string) []any {
	switch node := tree.(type) {
	case map[string]any:
		if step != "*" {
			if next, ok := node[step]; ok {
				return []any{next}
			}
			return nil
		}
		all := make([]any, 0, len(node))
		for _, next := range node {
			all = append(all, next)
		}
		return all
	case []any:
		if step == "*" {
			return node
		}
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(node) {
			return []any{node[i]}
		}
	}
	return nil
}

// sortSet sorts the array at p in place: by the member named by, then by the whole element, both
// as canonical text.
func sortSet(tree any, p path, by string) error {
	if len(p) > 0 {
		for _, next := range children(tree, p[0]) {
			if err := sortSet(next, p[1:], by); err != nil {
				return err
			}
		}
		return nil
	}
	array, ok := tree.([]any)
	if !ok {
		return nil
	}
	type element struct {
		first, whole string
		value        any
	}
	list := make([]element, len(array))
	for i, value := range array {
		whole, err := encodeTree(value)
		if err != nil {
			return err
		}
		list[i] = element{whole: string(whole), value: value}
		if m, ok := value.(map[string]any); ok && m[by] != nil {
			first, err := encodeTree(m[by])
			if err != nil {
				return err
			}
			list[i].first = string(first)
		}
	}
	slices.SortFunc(list, func(a, b element) int {
		return cmp.Or(strings.Compare(a.first, b.first), strings.Compare(a.whole, b.whole))
	})
	for i := range list {
		array[i] = list[i].value
	}
	return nil
}

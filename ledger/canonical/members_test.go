package canonical

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
)

// readMembers shows each member on a line of its own: name, text, form, and what kind of error.
func readMembers(src string) (lines []string, err error) {
	for m, err := range Members([]byte(src)) {
		if err != nil {
			return lines, err
		}
		line := string(m.Name) + " " + string(m.Text) + " " + string(m.Form)
		if m.Err != nil {
			line += "! " + m.Err.Error()
		}
		lines = append(lines, line)
	}
	return lines, nil
}

func TestMembers(t *testing.T) {
	deep := string(bytes.Repeat([]byte("["), MaxDepth)) + string(bytes.Repeat([]byte("]"), MaxDepth))
	for src, want := range map[string][]string{
		`{}`:                               nil,
		" {\n} ":                           nil,
		`{"b": 1.0 ,"a":{"z":1,"y":[ ]} }`: {`b 1.0 1`, `a {"z":1,"y":[ ]} {"y":[],"z":1}`},
		`{"a":1,"a":2}`:                    {`a 1 1`, `a 2 2`},
		`{"\u0061\/":"\u0062"}`:            {`a/ "\u0062" "b"`},
		`{"a":{"b":1,"b":2},"c":3}`:        {`a {"b":1,"b":2} ! duplicate member "/b"`, `c 3 3`},
		`{"a":[` + deep + `],"c":3}`:       {`a [` + deep + `] ! value at "/` + nested(MaxDepth) + `": nested more than 64 levels deep`, `c 3 3`},
		`{"a":"\ud800","\ud800":"x"}`:      {`a "\ud800" ! invalid JSON at byte 6: lone surrogate`, "\ufffd \"x\" \"x\""},
	} {
		got, err := readMembers(src)
		if err != nil {
			t.Errorf("%s: %v", src, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", src, diff)
		}
	}
	for _, src := range []string{"", "{", `{"a"}`, `{"a":}`, `{"a":1`, `{"a":1,}`, `{,}`, `{"a":1}}`, `{"a":1} x`, `{a:1}`, `{"a":1 "b":2}`, `x`, `{"a":[1,]}`, `{"a":01}`} {
		var syntax *SyntaxError
		if got, err := readMembers(src); !errors.As(err, &syntax) {
			t.Errorf("%s: got %q, %v, want a syntax error", src, got, err)
		}
	}
	for _, src := range []string{`[]`, `"{}"`, ` 1`, `null`, `[{"a":1,"a":1}]`} {
		if got, err := readMembers(src); !errors.Is(err, ErrNotObject) {
			t.Errorf("%s: got %q, %v, want %v", src, got, err, ErrNotObject)
		}
	}
}

func nested(n int) string {
	return string(bytes.TrimSuffix(bytes.Repeat([]byte("0/"), n), []byte("/")))
}

// FuzzMembers holds that Members takes exactly the objects that jsontext takes, with the same names and values, that a
// form is what Append makes of the value, and that Fields finds the members of a canonical object.
func FuzzMembers(f *testing.F) {
	for _, src := range []string{`{}`, `{"b":1.0,"a":{"z":1,"y":[]}}`, `{"a":{"b":1,"b":2},"c":"\ud800"}`, `[1]`, `{"a":1e999,"\\\"":"}],:\\"}`, "{\"\xff\":\"\xff\"}"} {
		f.Add([]byte(src))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		want, ok := oracleMembers(src)
		var members []Member
		var got [][2]string
		for m, err := range Members(src) {
			if err != nil && ok {
				t.Fatalf("%q: got %v, want an object", src, err)
			}
			if err != nil {
				return
			}
			members, got = append(members, m), append(got, [2]string{string(m.Name), string(m.Text)})
		}
		if diff := cmp.Diff(want, got); diff != "" || !ok {
			t.Errorf("%q: want an object: %v; -want +got\n%s", src, ok, diff)
		}
		for _, m := range members {
			form, err := Append(nil, m.Text)
			if utf8.Valid(m.Text) && (!bytes.Equal(form, m.Form) || (err == nil) != (m.Err == nil)) {
				t.Errorf("%q: got %q, %v, want %q, %v", m.Text, m.Form, m.Err, form, err)
			}
		}
		if form, err := Append(nil, src); err == nil && form[0] == '{' {
			checkFields(t, form)
		}
	})
}

// oracleMembers reads an object with jsontext.
func oracleMembers(src []byte) (members [][2]string, ok bool) {
	d := jsontext.NewDecoder(bytes.NewBuffer(src), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	if d.PeekKind() != '{' {
		return nil, false
	}
	d.ReadToken()
	for d.PeekKind() == '"' {
		quoted, err := d.ReadValue()
		if err != nil {
			return nil, false
		}
		name, _ := jsontext.AppendUnquote(nil, quoted)
		if bytes.IndexByte(quoted, '\\') < 0 { // as it stands, valid UTF-8 or not
			name = bytes.Clone(quoted[1 : len(quoted)-1])
		}
		value, err := d.ReadValue()
		if err != nil {
			return nil, false
		}
		members = append(members, [2]string{string(name), string(value)})
	}
	if token, err := d.ReadToken(); err != nil || token.Kind() != '}' {
		return nil, false
	}
	_, err := d.ReadToken()
	return members, err == io.EOF
}

func checkFields(t *testing.T, form []byte) {
	t.Helper()
	var fields, members [][2]string
	Fields(form, func(quoted, value []byte) bool {
		name, _ := jsontext.AppendUnquote(nil, quoted)
		fields = append(fields, [2]string{string(name), string(value)})
		return true
	})
	for m := range Members(form) {
		members = append(members, [2]string{string(m.Name), string(m.Text)})
	}
	if diff := cmp.Diff(members, fields); diff != "" {
		t.Errorf("%s: -Members +Fields\n%s", form, diff)
	}
}

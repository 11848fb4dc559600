package canonical

import (
	"bytes"
	"errors"
	"iter"

	"github.com/go-json-experiment/json/jsontext"
)

// ErrNotObject says that a text is JSON, but no object.
var ErrNotObject = errors.New("not a JSON object")

// Member is one member of an object.
type Member struct {
	Name []byte // decoded
	Text []byte // the value as it stands in the text
	Form []byte // the value's canonical form, as [Append] makes it
	Err  error  // why there is no Form, an error of [Append]; the text is JSON all the same
}

// Members yields the members of the one JSON object in src, in the order of the text and however often a name is there. What
// it yields stays valid as long as src. A value that only has no canonical form does not end it; a yielded error does: a
// [*SyntaxError], or [ErrNotObject].
//
// src should be clean (see [Clean]). Where it is not, only the values and names that are not have errors or U+FFFD.
func Members(src []byte) iter.Seq2[Member, error] {
	return func(yield func(Member, error) bool) {
		p := parser{src: src}
		if err := p.members(yield); err != nil {
			yield(Member{}, err)
		}
	}
}

func (p *parser) members(yield func(Member, error) bool) error {
	forms := make([]byte, 0, len(p.src))
	if p.next() != '{' {
		var m Member
		if _, err := p.tolerant(forms, &m); err != nil {
			return err
		}
		return ErrNotObject
	}
	p.pos++
	for c := p.next(); c != '}'; {
		var m Member
		var err error
		if forms, err = p.member(forms, &m); err != nil {
			return err
		}
		if !yield(m, nil) {
			return nil
		}
		if c = p.next(); c != ',' && c != '}' {
			return p.syntax("expected ',' or '}'")
		}
		if c == ',' {
			p.pos++
		}
	}
	p.pos++
	if p.next(); p.pos < len(p.src) {
		return p.syntax("expected the end of the text")
	}
	return nil
}

// member reads one member; its canonical form goes behind forms.
func (p *parser) member(forms []byte, m *Member) (_ []byte, err error) {
	if p.next() != '"' {
		return forms, p.syntax("expected a member name")
	}
	var quoted Member
	if _, err = p.tolerant(forms, &quoted); err != nil {
		return forms, err
	}
	if p.next() != ':' {
		return forms, p.syntax("expected ':'")
	}
	p.pos++
	forms, err = p.tolerant(forms, m)
	m.Name = quoted.Text[1 : len(quoted.Text)-1]
	if quoted.Err != nil || bytes.IndexByte(m.Name, '\\') >= 0 {
		m.Name, _ = jsontext.AppendUnquote(nil, quoted.Text) // what it cannot read it replaces by U+FFFD
	}
	return forms, err
}

// tolerant reads one value. When it has no canonical form, m.Err says why, and only its end is looked for.
func (p *parser) tolerant(forms []byte, m *Member) ([]byte, error) {
	p.next()
	start, end := p.pos, len(forms)
	out, err := p.value(forms, 0)
	if err == nil {
		m.Text, m.Form = p.src[start:p.pos], out[end:len(out):len(out)]
		return out, nil
	}
	rest := jsontext.NewDecoder(bytes.NewBuffer(p.src[start:]), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	if _, broken := rest.ReadValue(); broken != nil {
		return forms, p.syntax("not a JSON value")
	}
	p.pos = start + int(rest.InputOffset())
	m.Text, m.Err = p.src[start:p.pos], err
	return forms, nil
}

// Fields calls f with each member of the canonical object in form until f returns false: the name with its quotes and the
// value, both as they stand there. It reports whether f always returned true. It does not check that form is canonical; of
// a text that is not, what f gets is of no use.
func Fields(form []byte, f func(quoted, value []byte) bool) bool {
	for rest := form[min(1, len(form)):]; len(rest) > 1; { // the last of it is the closing brace
		colon := lengthOf(rest)
		value := rest[min(colon+1, len(rest)):]
		end := lengthOf(value)
		if !f(rest[:colon], value[:end]) {
			return false
		}
		rest = value[min(end+1, len(value)):]
	}
	return true
}

// lengthOf is the length of the canonical value at the start of form.
func lengthOf(form []byte) int {
	depth := 0
	for i := 0; i < len(form); i++ {
		switch form[i] {
		case '"':
			if i += stringLength(form[i:]) - 1; depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
			if depth < 0 {
				return i
			}
		case ',', ':':
			if depth == 0 {
				return i
			}
		}
	}
	return len(form)
}

// stringLength is the length of the string at the start of form, with its quotes.
func stringLength(form []byte) int {
	for i := 1; i < len(form); i++ {
		switch form[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(form)
}

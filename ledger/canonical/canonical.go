package canonical

import (
	"bytes"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxDepth is how deep arrays and objects may nest; a scalar alone has depth 0, [] has depth 1.
const MaxDepth = 64

// Append appends to dst the canonical form of the one JSON value in src and returns the extended slice. White space may
// surround the value, nothing else may. src must be valid UTF-8 without lone surrogate escapes (see [Clean]) and must not
// overlap dst.
//
// Errors: a [*SyntaxError] when src is not such a text, a [*DuplicateNameError] when an object names a member twice, and
// a [*LimitError] wrapping [ErrDepth] or [ErrNumber]. On an error dst is returned as it came.
func Append(dst, src []byte) ([]byte, error) {
	if !utf8.Valid(src) {
		return dst, &SyntaxError{Offset: int64(validPrefix(src)), Reason: "invalid UTF-8"}
	}
	p := parser{src: src}
	out, err := p.value(dst, 0)
	if err != nil {
		return dst, err
	}
	if p.next(); p.pos < len(src) {
		return dst, p.syntax("expected the end of the text")
	}
	return out, nil
}

// parser reads one JSON text and writes its canonical form as it goes. Its methods take and return the output, like append.
type parser struct {
	src []byte
	pos int // of the next byte in src
}

// member is one member of an object, already written in canonical form.
type member struct {
	name       []byte // decoded
	start, end int    // of `"name":value` in the output
}

// next skips white space and returns the next byte without consuming it, 0 at the end of the text.
func (p *parser) next() byte {
	for ; p.pos < len(p.src); p.pos++ {
		switch c := p.src[p.pos]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// syntax returns an error at the next byte.
func (p *parser) syntax(reason string) error {
	return &SyntaxError{Offset: int64(p.pos), Reason: reason}
}

// value reads one value inside depth arrays and objects.
func (p *parser) value(dst []byte, depth int) ([]byte, error) {
	switch c := p.next(); c {
	case '"':
		return p.string(dst)
	case '{', '[':
		if depth == MaxDepth {
			return dst, &LimitError{Err: ErrDepth}
		}
		if c == '{' {
			return p.object(dst, depth+1)
		}
		return p.array(dst, depth+1)
	case 't':
		return p.word(dst, "true")
	case 'f':
		return p.word(dst, "false")
	case 'n':
		return p.word(dst, "null")
	}
	return p.number(dst)
}

// word reads true, false or null.
func (p *parser) word(dst []byte, want string) ([]byte, error) {
	end := p.pos + len(want)
	if end > len(p.src) || string(p.src[p.pos:end]) != want {
		return dst, p.syntax("expected a value")
	}
	p.pos = end
	return append(dst, want...), nil
}

// array reads an array; its elements are inside depth arrays and objects.
func (p *parser) array(dst []byte, depth int) ([]byte, error) {
	p.pos++
	dst = append(dst, '[')
	if p.next() == ']' {
		p.pos++
		return append(dst, ']'), nil
	}
	for i := 0; ; i++ {
		var err error
		if dst, err = p.value(dst, depth); err != nil {
			return dst, atIndex(err, i)
		}
		c := p.next()
		if c != ',' && c != ']' {
			return dst, p.syntax("expected ',' or ']'")
		}
		p.pos++
		dst = append(dst, c)
		if c == ']' {
			return dst, nil
		}
	}
}

// object writes the members in the order of the text and puts them in canonical order at the end, when they are not yet.
func (p *parser) object(dst []byte, depth int) ([]byte, error) {
	p.pos++
	dst = append(dst, '{')
	if p.next() == '}' {
		p.pos++
		return append(dst, '}'), nil
	}
	var room [16]member // saves most objects an allocation
	members, body, ordered := room[:0], len(dst), true
	for {
		m := member{start: len(dst)}
		var err error
		if dst, m.name, err = p.name(dst); err != nil {
			return dst, err
		}
		if dst, err = p.value(dst, depth); err != nil {
			return dst, atName(err, m.name)
		}
		m.end = len(dst)
		if n := len(members); n > 0 && compareNames(members[n-1].name, m.name) >= 0 {
			ordered = false
		}
		members = append(members, m)

		c := p.next()
		if c != ',' && c != '}' {
			return dst, p.syntax("expected ',' or '}'")
		}
		p.pos++
		if c == '}' {
			break
		}
		dst = append(dst, ',')
	}
	if ordered {
		return append(dst, '}'), nil
	}
	return reorder(dst, body, members)
}

// name reads a member name and the colon after it, and returns the decoded name as well.
func (p *parser) name(dst []byte) (_, name []byte, err error) {
	if p.next() != '"' {
		return dst, nil, p.syntax("expected a member name")
	}
	from, start := p.pos, len(dst)
	if dst, err = p.string(dst); err != nil {
		return dst, nil, err
	}
	name = p.src[from+1 : p.pos-1]
	if bytes.IndexByte(name, '\\') >= 0 {
		name, _ = jsontext.AppendUnquote(nil, dst[start:])
	}
	if p.next() != ':' {
		return dst, nil, p.syntax("expected ':'")
	}
	p.pos++
	return append(dst, ':'), name, nil
}

// unordered holds the copies from which members are moved to their places.
var unordered = sync.Pool{New: func() any { return new([]byte) }}

// reorder puts the members that dst holds from body on, separated by commas, in canonical order and closes the object.
func reorder(dst []byte, body int, members []member) ([]byte, error) {
	var room [16]int
	order := room[:0]
	for i := range members {
		order = append(order, i)
	}
	duplicate := -1
	slices.SortFunc(order, func(a, b int) int {
		c := compareNames(members[a].name, members[b].name)
		if c == 0 && a != b {
			duplicate = a // equal names cannot be sorted without comparing two of them
		}
		return c
	})
	if duplicate >= 0 {
		return dst, atName(&DuplicateNameError{}, members[duplicate].name)
	}
	scratch := unordered.Get().(*[]byte)
	defer unordered.Put(scratch)
	*scratch = append((*scratch)[:0], dst[body:]...) // to move the members from
	out := dst[:body]
	for _, i := range order {
		out = append(out, (*scratch)[members[i].start-body:members[i].end-body]...)
		out = append(out, ',')
	}
	out[len(out)-1] = '}' // in place of the last comma, which the body did not have
	return out, nil
}

// compareNames orders names by their UTF-16 code units (RFC 8785, section 3.2.3). The order of UTF-8 bytes is the same
// but for one thing: in UTF-16 the surrogates of U+10000 and above (UTF-8 lead byte F0 and up) come before U+E000 to
// U+FFFF (lead bytes EE and EF).
func compareNames(a, b []byte) int {
	n := min(len(a), len(b))
	for i, x := range a[:n] {
		y := b[i]
		if x == y {
			continue
		}
		if x >= 0xEE && y >= 0xEE && (x >= 0xF0) != (y >= 0xF0) {
			x, y = y, x
		}
		return int(x) - int(y)
	}
	return len(a) - len(b)
}

// validPrefix returns the length of the longest prefix of b that is valid UTF-8.
func validPrefix(b []byte) int {
	n := 0
	for n < len(b) {
		r, size := utf8.DecodeRune(b[n:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		n += size
	}
	return n
}

package canonical

import (
	"unicode/utf16"
	"unicode/utf8"
)

// AppendString appends s as a canonical JSON string, with its quotes. s must be valid UTF-8.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	run := 0 // start of what is not yet copied
	for i := range len(s) {
		if isPlain(s[i]) {
			continue
		}
		dst = append(dst, s[run:i]...)
		dst = appendRune(dst, rune(s[i]))
		run = i + 1
	}
	dst = append(dst, s[run:]...)
	return append(dst, '"')
}

// string reads a JSON string. Its bytes are known to be valid UTF-8.
func (p *parser) string(dst []byte) ([]byte, error) {
	run := p.pos // start of what is not yet copied
	for i := run + 1; i < len(p.src); i++ {
		c := p.src[i]
		if isPlain(c) {
			continue
		}
		if c == '"' {
			p.pos = i + 1
			return append(dst, p.src[run:p.pos]...), nil
		}
		p.pos = i
		if c != '\\' {
			return dst, p.syntax("control character in a string")
		}
		r, n := decodeEscape(p.src[i:])
		if n == 0 {
			return dst, p.syntax("invalid escape sequence")
		}
		if utf16.IsSurrogate(r) {
			return dst, p.syntax("lone surrogate")
		}
		dst = appendRune(append(dst, p.src[run:i]...), r)
		run = i + n
		i = run - 1
	}
	p.pos = len(p.src)
	return dst, p.syntax("unterminated string")
}

// isPlain reports whether the byte stands for itself inside a JSON string.
func isPlain(c byte) bool { return c >= ' ' && c != '"' && c != '\\' }

// appendRune appends r as it is written inside a canonical string (RFC 8785, section 3.2.2.2).
func appendRune(dst []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	switch r {
	case '"', '\\':
		return append(dst, '\\', byte(r))
	case '\b':
		return append(dst, `\b`...)
	case '\t':
		return append(dst, `\t`...)
	case '\n':
		return append(dst, `\n`...)
	case '\f':
		return append(dst, `\f`...)
	case '\r':
		return append(dst, `\r`...)
	}
	if r < ' ' {
		return append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&0xf])
	}
	return utf8.AppendRune(dst, r)
}

// decodeEscape decodes the escape sequence at the start of src, a surrogate pair as one character, and returns its length;
// 0 when it is malformed. A lone surrogate is returned as itself.
func decodeEscape(src []byte) (r rune, n int) {
	if len(src) < 2 {
		return 0, 0
	}
	switch src[1] {
	case '"', '\\', '/':
		return rune(src[1]), 2
	case 'b':
		return '\b', 2
	case 't':
		return '\t', 2
	case 'n':
		return '\n', 2
	case 'f':
		return '\f', 2
	case 'r':
		return '\r', 2
	}
	r, ok := decodeUnit(src)
	if !ok {
		return 0, 0
	}
	if utf16.IsSurrogate(r) {
		low, _ := decodeUnit(src[6:])
		if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
			return pair, 12
		}
	}
	return r, 6
}

// decodeUnit decodes one escape of a UTF-16 unit: \u and four hex digits.
func decodeUnit(src []byte) (r rune, ok bool) {
	if len(src) < 6 || src[0] != '\\' || src[1] != 'u' {
		return 0, false
	}
	for _, c := range src[2:6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

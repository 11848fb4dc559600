package canonical

import (
	"unicode/utf16"
	"unicode/utf8"
)

// AppendString appends s as a canonical JSON string, with its quotes. s must be valid UTF-8.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for {
		n := plain(s)
		dst = append(dst, s[:n]...)
		if n == len(s) {
			return append(dst, '"')
		}
		dst = appendRune(dst, rune(s[n]))
		s = s[n+1:]
	}
}

// string reads a JSON string. Its bytes are known to be valid UTF-8.
func (p *parser) string(dst []byte) ([]byte, error) {
	run := p.pos // start of what is not yet copied
	for i := run + 1; ; i++ {
		if i += plain(p.src[i:]); i == len(p.src) {
			break
		}
		c := p.src[i]
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

// plain returns how many bytes at the beginning of s stand for themselves inside a JSON string.
func plain[T string | []byte](s T) int {
	i := 0
	for ; i+8 <= len(s); i += 8 { // eight at once, as long as there is nothing else among them
		if anySpecial(uint64(s[i]) | uint64(s[i+1])<<8 | uint64(s[i+2])<<16 | uint64(s[i+3])<<24 |
			uint64(s[i+4])<<32 | uint64(s[i+5])<<40 | uint64(s[i+6])<<48 | uint64(s[i+7])<<56) {
			break
		}
	}
	for i < len(s) && s[i] >= ' ' && s[i] != '"' && s[i] != '\\' {
		i++
	}
	return i
}

// anySpecial reports whether one of the eight bytes is a control character, a quote or a backslash. For x^n each byte
// that is n becomes 0, and only what is below a byte without its top bit carries into that bit.
func anySpecial(x uint64) bool {
	const each, top = 0x0101010101010101, 0x8080808080808080
	quote, backslash := x^each*'"', x^each*'\\'
	return ((x-each*' ')&^x|(quote-each)&^quote|(backslash-each)&^backslash)&top != 0
}

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

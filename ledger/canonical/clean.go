package canonical

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// Clean returns src with each invalid UTF-8 byte and each lone surrogate escape replaced by U+FFFD and U+0000 removed, in
// strings and member names. When nothing needs it, it returns src itself and false, at the cost of one scan; src itself is
// never changed.
//
// It never fails: text that is not JSON is cleaned the same way as far as its strings can be told, that is up to the first
// malformed escape sequence, and is refused later by [Append].
func Clean(src []byte) (clean []byte, changed bool) {
	if utf8.Valid(src) && bytes.IndexByte(src, 0) < 0 && !bytes.Contains(src, []byte(`\u`)) {
		return src, false
	}
	kept := 0 // start of what is not yet copied
	replace := func(from, n int, with string) {
		clean = append(append(clean, src[kept:from]...), with...)
		kept, changed = from+n, true
	}
	inString := false
scan:
	for i := 0; i < len(src); {
		c, n := src[i], 1
		switch {
		case c == '"':
			inString = !inString
		case !inString:
		case c == 0:
			replace(i, n, "")
		case c == '\\':
			var r rune
			r, n = decodeEscape(src[i:])
			switch {
			case n == 0:
				break scan // removing anything behind it could complete it
			case r == 0:
				replace(i, n, "")
			case utf16.IsSurrogate(r):
				replace(i, n, "\ufffd")
			}
		case c >= utf8.RuneSelf:
			var r rune
			if r, n = utf8.DecodeRune(src[i:]); r == utf8.RuneError && n == 1 {
				replace(i, n, "\ufffd")
			}
		}
		i += n
	}
	if !changed {
		return src, false
	}
	return append(clean, src[kept:]...), true
}

package canonical

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"slices"
)

// Hash is a SHA-256. Its text form is 64 lower-case hex digits.
type Hash [sha256.Size]byte

const hexLen = 2 * sha256.Size

// Sum returns the SHA-256 of b.
func Sum(b []byte) Hash { return sha256.Sum256(b) }

// String returns the 64 lower-case hex digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Equal compares in constant time.
func (h Hash) Equal(o Hash) bool { return subtle.ConstantTimeCompare(h[:], o[:]) == 1 }

// IsZero reports whether every byte is 0, which no known text hashes to.
func (h Hash) IsZero() bool { return h == Hash{} }

// ParseHash reads exactly 64 lower-case hex digits.
func ParseHash(s string) (Hash, error) {
	var h Hash
	err := h.UnmarshalText([]byte(s))
	return h, err
}

// AppendText implements [encoding.TextAppender].
func (h Hash) AppendText(b []byte) ([]byte, error) {
	const digits = "0123456789abcdef" // package hex takes several times as long, ten times for each event
	n := len(b)
	b = slices.Grow(b, hexLen)[:n+hexLen]
	text := (*[hexLen]byte)(b[n:])
	for i, c := range h {
		text[2*i], text[2*i+1] = digits[c>>4], digits[c&15]
	}
	return b, nil
}

// MarshalText implements [encoding.TextMarshaler].
func (h Hash) MarshalText() ([]byte, error) { return h.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler]. It accepts what ParseHash accepts and leaves h alone on an error.
func (h *Hash) UnmarshalText(b []byte) error {
	if len(b) != hexLen {
		return fmt.Errorf("hash: want %d lower-case hex digits, got %d bytes", hexLen, len(b))
	}
	for i, c := range b {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return fmt.Errorf("hash: byte %d is not a lower-case hex digit", i)
		}
	}
	_, err := hex.Decode(h[:], b)
	return err
}

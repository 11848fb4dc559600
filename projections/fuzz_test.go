package projections

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/talenttrust/auditledger/ledger"
)

// FuzzRows reads any bytes as a row of any kind: they are refused, or written again as they were
// where there is one way to write them.
func FuzzRows(f *testing.F) {
	b := newBook()
	scribble(b, rand.New(rand.NewPCG(1, 1)), 20)
	for _, r := range b.all() {
		var val row
		if r.Header.HasKey() {
			appendEntry(&val, &r, 7)
		}
		f.Add([]byte(val))
	}
	var val row
	newContract("c").append(&val)
	f.Add([]byte(val))
	f.Add([]byte{0, 2, 4, 6})
	f.Fuzz(func(t *testing.T, val []byte) {
		if e, _, err := decodeEntry(val); err == nil && e.Status == "" {
			t.Error("an entry without a status")
		}
		if c := newContract("c"); c.decode(val) == nil {
			again(t, val, c.append)
		}
		if s := newSequences("c"); s.decode(val) == nil {
			again(t, val, s.append)
		}
		if c, err := decodeCursor(val); err == nil {
			again(t, val, c.append)
		}
		s := second{}
		_ = s.decode(val)
		_, _ = decodeRepeat(val)
		_, _ = decodePositions(val)
		for _, key := range [][]byte{val, append([]byte{kindGap}, make([]byte, 16)...), append([]byte{kindReused}, make([]byte, 16)...)} {
			if found, err := decodeFinding(key, val); err == nil && found.Message == "" {
				t.Error("a finding without a message")
			}
		}
	})
}

// again expects that what was read is written in no more bytes.
func again(t *testing.T, val []byte, write func(*row)) {
	t.Helper()
	var out row
	if write(&out); len(out) > len(val) {
		t.Errorf("%x is written again as %x", val, out)
	}
}

// FuzzCursor opens any text as a cursor: only what was sealed for the query opens, to the same.
func FuzzCursor(f *testing.F) {
	s, other := newSealer("ledger", "query"), newSealer("ledger", "another")
	f.Add(s.seal(7, []byte("key")), uint64(7), []byte("key"))
	f.Add("", uint64(1<<63), []byte{})
	f.Fuzz(func(t *testing.T, text string, asOf uint64, key []byte) {
		at, k, ok := s.open(text)
		if ok && s.seal(at, k) != text {
			t.Errorf("%q opens as %d, %x, which is sealed as %q", text, at, k, s.seal(at, k))
		}
		sealed := s.seal(ledger.Position(asOf), key)
		if at, k, ok := s.open(sealed); !ok || at != ledger.Position(asOf) || !bytes.Equal(k, key) {
			t.Errorf("position %d, key %x: opens as %d, %x, %v", asOf, key, at, k, ok)
		}
		if _, _, ok := other.open(sealed); ok {
			t.Error("it opens for another query")
		}
	})
}

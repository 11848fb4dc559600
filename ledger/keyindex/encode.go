package keyindex

import (
	"cmp"
	"encoding/binary"
	"errors"
	"strings"

	"github.com/talenttrust/auditledger/ledger"
)

var cursorKey = []byte("c")

func headKey(stream string) []byte { return append([]byte("h"), stream...) }

func positionKey(stream string, revision int64) []byte {
	k := make([]byte, 0, len(stream)+10)
	k = append(append(append(k, 's'), stream...), 0)
	return binary.BigEndian.AppendUint64(k, uint64(revision))
}

func keyOf(key ledger.Key) []byte {
	k := make([]byte, 0, len(key.ContractID)+len(key.EventID)+10)
	k = append(append(append(k, 'k'), key.ContractID...), 0)
	k = binary.BigEndian.AppendUint64(k, uint64(key.Sequence))
	return append(k, key.EventID...)
}

// compareKeys sorts two keys of one contract as keyOf does.
func compareKeys(a, b *ledger.Key) int {
	if c := cmp.Compare(a.Sequence, b.Sequence); c != 0 {
		return c
	}
	return strings.Compare(a.EventID, b.EventID)
}

var errShort = errors.New("key index: an entry is too short or too long")

// appendHead writes revision+1, recordedAt, highest sequence+1 as varints, then the leaf hash.
func appendHead(b []byte, h ledger.StreamHead) []byte {
	b = binary.AppendUvarint(b, uint64(h.Revision+1))
	b = binary.AppendVarint(b, h.RecordedAt)
	b = binary.AppendUvarint(b, uint64(h.HighestSequence+1))
	return append(b, h.Leaf[:]...)
}

func decodeHead(b []byte) (h ledger.StreamHead, err error) {
	r := reader{b}
	h.Revision = int64(r.uvarint()) - 1
	h.RecordedAt = r.varint()
	h.HighestSequence = int64(r.uvarint()) - 1
	r.hash(&h.Leaf)
	return h, r.end()
}

// appendFound writes generation, position, revision, recordedAt, boundUntil as varints, then both hashes.
func appendFound(b []byte, f *ledger.Found) []byte {
	b = binary.AppendUvarint(b, uint64(f.Generation))
	b = binary.AppendUvarint(b, uint64(f.Position))
	b = binary.AppendUvarint(b, uint64(f.Revision))
	b = binary.AppendVarint(b, f.RecordedAt)
	b = binary.AppendVarint(b, f.BoundUntil)
	b = append(b, f.PayloadHash[:]...)
	return append(b, f.EventHash[:]...)
}

func decodeFound(b []byte) (f ledger.Found, err error) {
	r := reader{b}
	f.Generation = int64(r.uvarint())
	f.Position = ledger.Position(r.uvarint())
	f.Revision = int64(r.uvarint())
	f.RecordedAt = r.varint()
	f.BoundUntil = r.varint()
	r.hash(&f.PayloadHash)
	r.hash(&f.EventHash)
	return f, r.end()
}

// maxPositions is how many positions a row holds at most: a look-up reads half of them.
const maxPositions = 128

// appendPositions writes increasing positions as varints: the first, then the steps.
func appendPositions(b []byte, positions []ledger.Position) []byte {
	var before ledger.Position
	for _, p := range positions {
		b = binary.AppendUvarint(b, uint64(p-before))
		before = p
	}
	return b
}

// decodePosition reads the n-th position, from 0; ok is false when there are not so many.
func decodePosition(b []byte, n uint64) (at ledger.Position, ok bool, err error) {
	r := reader{b}
	for ; len(r.b) > 0; n-- {
		at += ledger.Position(r.uvarint())
		if r.b == nil {
			return 0, false, errShort
		}
		if n == 0 {
			return at, true, nil
		}
	}
	return 0, false, nil
}

// reader takes values off the front of b; b is nil after a value that was not there.
type reader struct{ b []byte }

func (r *reader) take(n int) {
	if n <= 0 || n > len(r.b) {
		r.b = nil
		return
	}
	r.b = r.b[n:]
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	r.take(n)
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	r.take(n)
	return v
}

func (r *reader) hash(h *ledger.Hash) {
	copy(h[:], r.b)
	r.take(len(h))
}

// end reports whether exactly all was taken.
func (r *reader) end() error {
	if r.b == nil || len(r.b) != 0 {
		return errShort
	}
	return nil
}

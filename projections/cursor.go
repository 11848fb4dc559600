package projections

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/talenttrust/auditledger/ledger"
)

// A page's cursor is base64url of
//
//	0x01 · as-of position (uvarint) · key of the item in its list · first 16 bytes of the MAC
//
// The MAC is HMAC-SHA256 under a key that follows from the ledger's id, over the query's hash and
// what stands before it. So a cursor is good for one query on one ledger, on any instance, and holds
// positions only, never times.
const (
	cursorVersion = 1
	macSize       = 16
)

// sealer makes and opens the cursors of one query.
type sealer struct {
	key   []byte
	query [sha256.Size]byte
}

// newSealer makes the sealer of a query: its kind and all that decides which items are in which order.
func newSealer(ledgerID string, query ...any) sealer {
	key := sha256.Sum256([]byte("auditledger cursor 1 " + ledgerID))
	text, err := json.Marshal(query)
	if err != nil {
		panic(err) // strings, numbers and structs of them
	}
	return sealer{key[:], sha256.Sum256(text)}
}

func (s sealer) mac(b []byte) []byte {
	m := hmac.New(sha256.New, s.key)
	m.Write(s.query[:])
	m.Write(b)
	return m.Sum(nil)[:macSize]
}

func (s sealer) seal(asOf ledger.Position, key []byte) string {
	b := row{cursorVersion}
	b.pos(asOf)
	b = append(b, key...)
	return base64.RawURLEncoding.EncodeToString(append(b, s.mac(b)...))
}

// open is the inverse of seal. It is false for anything that seal did not make for this query.
func (s sealer) open(text string) (asOf ledger.Position, key []byte, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) < 1+macSize || strings.ContainsAny(text, "\r\n") { // which the decoder passes over
		return 0, nil, false
	}
	b, mac := b[:len(b)-macSize], b[len(b)-macSize:]
	if !hmac.Equal(mac, s.mac(b)) || b[0] != cursorVersion {
		return 0, nil, false
	}
	f := fields{b: b[1:]}
	asOf = f.pos()
	return asOf, f.b, !f.bad
}

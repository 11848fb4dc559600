package eventstore

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"github.com/talenttrust/auditledger/ledger"
)

// Bounds of one append to the server, which refuses 1 MiB and more before version 25.1.
const (
	maxEvents = 100
	maxBytes  = 900 << 10
)

// MaxPayload is the largest payload whose record fits, whatever else an event holds that is of an
// ordinary size.
const MaxPayload = 800 << 10

// metadata is an event's, beside its data and outside of every hash.
type metadata struct {
	AppendToken string `json:"appendToken"` // random, of the append that wrote the event: who finds it there knows whose it is
}

func newToken() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// encode makes the event of a record.
func encode(r *ledger.Record, token string) event {
	e := event{id: uuid.New(), typ: string(r.Header.Type), data: r.AppendJSON(nil), meta: []byte(`{"appendToken":"` + token + `"}`)}
	if r.Header.Type == ledger.EventAccepted {
		e.id = r.Header.Key().ID(r.Header.Generation)
	}
	return e
}

// decode reads what encode made. An error says why the event is none of ours; it quotes nothing of it.
func decode(ev *recorded) (r ledger.Record, token string, err error) {
	if r, err = ledger.ParseRecord(ev.data); err != nil {
		return r, "", err
	}
	r.Position = ledger.Position(ev.position)
	var m metadata
	if err := json.Unmarshal(ev.meta, &m); err != nil || m.AppendToken == "" {
		return r, "", errors.New("its metadata has no append token")
	}
	h := &r.Header
	switch {
	case string(h.Type) != ev.typ:
		return r, "", errors.New("its type is not that of its record")
	case h.Stream != ev.stream:
		return r, "", errors.New("its record belongs to another stream")
	case h.Type == ledger.EventAccepted && (h.Stream != h.Key().Stream() || ev.id != h.Key().ID(h.Generation)):
		return r, "", errors.New("its ID is not that of its record's key")
	case h.Revision < 0 || h.Revision > ev.number:
		return r, "", fmt.Errorf("its record has revision %d and it stands at %d", h.Revision, ev.number)
	}
	return r, m.AppendToken, nil
}

package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/talenttrust/auditledger/ledger/canonical"
)

// ErrUnfinished: an import into the ledger has begun and not finished. What is there is no whole ledger.
var ErrUnfinished = errors.New("an import into this ledger has not finished; run auditctl import again with the same file")

// Importer is a Store that was opened to take over the records of another one as they are.
type Importer interface {
	Store

	// Import stores records behind everything stored so far, in their order and unchanged, and returns how
	// many of them are stored: all, or the first ones and an error that says why the next is not. What it
	// stored survives a power cut. With ErrUnknown, more may be stored. From its first call on the
	// ledger is marked as unfinished: Open refuses it, but for further importing. The positions in the records are
	// not looked at. Not for concurrent use, and nobody else may write to the ledger.
	Import(ctx context.Context, records []Record) (int, error)

	// Finish takes the mark away: the ledger is whole.
	Finish(ctx context.Context) error
}

// ParseForeign reads a record that comes from outside: what ParseRecord accepts, if a ledger could have
// written it. No error quotes a payload.
func ParseForeign(line []byte) (Record, error) {
	r, err := ParseRecord(line)
	if err == nil {
		err = r.wellFormed()
	}
	return r, err
}

// wellFormed says what no ledger writes into one record.
func (r *Record) wellFormed() error {
	h := &r.Header
	instance, own := strings.CutPrefix(h.Stream, instancePrefixes[h.Type])
	switch {
	case h.Revision < 0 || h.RecordedAt < 0:
		return errors.New("revision and recordedAt must be there and not negative")
	case h.Type == LedgerCreated:
		if h.Stream != LedgerStream || h.Revision != 0 {
			return fmt.Errorf("a record of type %s belongs at revision 0 of stream %s", h.Type, LedgerStream)
		}
	case h.Type == EventAccepted:
		return r.wellFormedEvent()
	case instancePrefixes[h.Type] == "":
		return errors.New("its type is not known")
	case !own || !ValidID(instance, instanceMaxLength):
		return fmt.Errorf("a record of type %s belongs in a stream %s<instance>", h.Type, instancePrefixes[h.Type])
	}
	if r.Body.Payload != nil {
		return fmt.Errorf("a record of type %s has no event in it", h.Type)
	}
	return nil
}

// instancePrefixes begin the names of the streams that instances write for themselves.
var instancePrefixes = map[Type]string{EventRejected: rejectionsPrefix, DuplicatesCounted: duplicatesPrefix, AccessRecorded: accessPrefix}

func (r *Record) wellFormedEvent() error {
	h := &r.Header
	switch {
	case !ValidID(h.ContractID, MaxIDLen) || !ValidID(h.EventID, MaxIDLen) || h.Sequence < 0 || h.Sequence > MaxInteger:
		return errors.New("an accepted event needs contractId, eventId and sequence by the rules for them")
	case h.Stream != h.Key().Stream():
		return errors.New("an accepted event belongs in its contract's stream")
	case h.Generation < 1:
		return errors.New("an accepted event's generation must be at least 1")
	case r.Body.Payload == nil:
		return errors.New("an accepted event must be in its record")
	}
	form, err := canonical.Append(make([]byte, 0, len(r.Body.Payload)), r.Body.Payload)
	if err != nil || !bytes.Equal(form, r.Body.Payload) {
		return errors.New("its payload is not in canonical form")
	}
	return nil
}

// Continue says why the record cannot come next, behind the head of its stream and the newest generation
// of its key.
func (r *Record) Continue(head StreamHead, found Found) error {
	h := &r.Header
	switch {
	case h.Revision != head.Revision+1:
		return fmt.Errorf("it has revision %d of stream %s, where revision %d comes next", h.Revision, h.Stream, head.Revision+1)
	case !h.Prev.Equal(head.Leaf):
		return fmt.Errorf("prev does not name the record before in stream %s", h.Stream)
	case h.RecordedAt < head.RecordedAt:
		return fmt.Errorf("its clock is behind that of the record before in stream %s", h.Stream)
	case h.Type == EventAccepted && h.Generation != found.Generation+1:
		return fmt.Errorf("it has generation %d of its key, where %d comes next", h.Generation, found.Generation+1)
	}
	return nil
}

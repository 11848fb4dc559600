package disk

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/talenttrust/auditledger/ledger"
)

// Field numbers of the stored header and body. A number keeps its meaning for ever; a field that is
// not there is absent. Optional integers are stored one higher, so that absent is 0.
const (
	hVersion protowire.Number = iota + 1
	hType
	hStream // left out where it follows from contractId
	hRevision
	hPrev
	hContractID
	hEventID
	hSequence
	hContractType
	hTimestamp
	hGeneration
	hRecordedAt
	hSource
	hCode
	hCommitment
	hLeaf // of this header, so that reading needs no hashing; verification does not rely on it
)

const (
	bPayload protowire.Number = iota + 1
	bSignature
	bPayloadHash
	bEventHash
	bRawHash
	bBoundUntil
	bSupersedes
	bFlags
	bSequencePolicy
	bVerdict
	bKeyID
	bChatJID
	bCorrelationID
	bTraceparent
	bReason
	bError
	bCount
	bSalt
)

// Bits of bFlags.
const (
	flagPayloadChanged = 1 << iota
	flagSanitized
	flagLate
)

const plainBody = 0 // the encoding byte in front of a body

var typeNumbers = map[ledger.Type]uint64{
	ledger.LedgerCreated: 1, ledger.EventAccepted: 2, ledger.EventRejected: 3, ledger.DuplicatesCounted: 4, ledger.AccessRecorded: 5,
}

var typeNames = [...]ledger.Type{1: ledger.LedgerCreated, 2: ledger.EventAccepted, 3: ledger.EventRejected, 4: ledger.DuplicatesCounted, 5: ledger.AccessRecorded}

func appendHeader(b []byte, h *ledger.Header, leaf *ledger.Hash) []byte {
	w := fields{b}
	w.number(hVersion, uint64(h.V))
	w.number(hType, typeNumbers[h.Type])
	if h.Stream != impliedStream(h) {
		w.text(hStream, h.Stream)
	}
	w.number(hRevision, uint64(h.Revision))
	w.hash(hPrev, &h.Prev)
	w.text(hContractID, h.ContractID)
	w.text(hEventID, h.EventID)
	w.number(hSequence, uint64(h.Sequence+1))
	w.text(hContractType, h.ContractType)
	w.number(hTimestamp, uint64(h.Timestamp+1))
	w.number(hGeneration, uint64(h.Generation+1))
	w.number(hRecordedAt, uint64(h.RecordedAt))
	w.text(hSource, h.Source)
	w.text(hCode, h.Code)
	w.hash(hCommitment, &h.Commitment)
	w.hash(hLeaf, leaf)
	return w.b
}

func impliedStream(h *ledger.Header) string {
	if h.Type != ledger.EventAccepted {
		return ""
	}
	return ledger.ContractStream(h.ContractID)
}

// decodeHeader reads what appendHeader wrote; the strings are its own.
func decodeHeader(b []byte, h *ledger.Header, leaf *ledger.Hash) error {
	*h = ledger.Header{Sequence: ledger.Absent, Timestamp: ledger.Absent, Generation: ledger.Absent}
	all := string(b) // one copy that all strings share
	err := eachField(b, func(n protowire.Number, v uint64, data []byte, at int) error {
		text := all[at : at+len(data)]
		switch n {
		case hVersion:
			h.V = int(v)
		case hType:
			if v == 0 || v >= uint64(len(typeNames)) {
				return fmt.Errorf("record type %d is not known", v)
			}
			h.Type = typeNames[v]
		case hStream:
			h.Stream = text
		case hRevision:
			h.Revision = int64(v)
		case hPrev:
			copy(h.Prev[:], data)
		case hContractID:
			h.ContractID = text
		case hEventID:
			h.EventID = text
		case hSequence:
			h.Sequence = int64(v) - 1
		case hContractType:
			h.ContractType = text
		case hTimestamp:
			h.Timestamp = int64(v) - 1
		case hGeneration:
			h.Generation = int64(v) - 1
		case hRecordedAt:
			h.RecordedAt = int64(v)
		case hSource:
			h.Source = text
		case hCode:
			h.Code = text
		case hCommitment:
			copy(h.Commitment[:], data)
		case hLeaf:
			copy(leaf[:], data)
		default:
			return fmt.Errorf("header field %d is not known", n)
		}
		return nil
	})
	if h.Stream == "" {
		h.Stream = impliedStream(h)
	}
	return err
}

func appendBody(b []byte, y *ledger.Body) []byte {
	w := fields{append(b, plainBody)}
	if y.Payload != nil {
		w.bytes(bPayload, y.Payload)
	}
	w.text(bSignature, y.Signature)
	w.hash(bPayloadHash, &y.PayloadHash)
	w.hash(bEventHash, &y.EventHash)
	w.hash(bRawHash, &y.RawHash)
	w.number(bBoundUntil, uint64(y.BoundUntil))
	w.number(bSupersedes, uint64(y.Supersedes+1))
	w.number(bFlags, flags(y))
	w.text(bSequencePolicy, y.SequencePolicy)
	w.text(bVerdict, y.Verdict)
	w.text(bKeyID, y.KeyID)
	w.text(bChatJID, y.ChatJID)
	w.text(bCorrelationID, y.CorrelationID)
	w.text(bTraceparent, y.Traceparent)
	w.text(bReason, y.Reason)
	for _, e := range y.Errors {
		sub := fields{}
		sub.text(1, e.Path)
		sub.text(2, e.Message)
		w.bytes(bError, sub.b)
	}
	for _, c := range y.Counts {
		sub := fields{}
		sub.text(1, c.Stream)
		sub.number(2, uint64(c.Revision))
		sub.number(3, uint64(c.Count))
		sub.number(4, uint64(c.LastSeen))
		w.bytes(bCount, sub.b)
	}
	w.bytes(bSalt, y.Salt[:])
	return w.b
}

func flags(y *ledger.Body) (f uint64) {
	if y.PayloadChanged {
		f |= flagPayloadChanged
	}
	if y.Sanitized {
		f |= flagSanitized
	}
	if y.Late {
		f |= flagLate
	}
	return f
}

// decodeBody reads what appendBody wrote. The payload is a slice of b.
func decodeBody(b []byte, y *ledger.Body) error {
	*y = ledger.Body{Supersedes: ledger.Absent}
	if len(b) == 0 || b[0] != plainBody {
		return fmt.Errorf("the body's encoding is not known")
	}
	return eachField(b[1:], func(n protowire.Number, v uint64, data []byte, _ int) error {
		switch n {
		case bPayload:
			y.Payload = data
		case bSignature:
			y.Signature = string(data)
		case bPayloadHash:
			copy(y.PayloadHash[:], data)
		case bEventHash:
			copy(y.EventHash[:], data)
		case bRawHash:
			copy(y.RawHash[:], data)
		case bBoundUntil:
			y.BoundUntil = int64(v)
		case bSupersedes:
			y.Supersedes = int64(v) - 1
		case bFlags:
			y.PayloadChanged, y.Sanitized, y.Late = v&flagPayloadChanged != 0, v&flagSanitized != 0, v&flagLate != 0
		case bSequencePolicy:
			y.SequencePolicy = string(data)
		case bVerdict:
			y.Verdict = string(data)
		case bKeyID:
			y.KeyID = string(data)
		case bChatJID:
			y.ChatJID = string(data)
		case bCorrelationID:
			y.CorrelationID = string(data)
		case bTraceparent:
			y.Traceparent = string(data)
		case bReason:
			y.Reason = string(data)
		case bError:
			return decodeError(data, y)
		case bCount:
			return decodeCount(data, y)
		case bSalt:
			copy(y.Salt[:], data)
		default:
			return fmt.Errorf("body field %d is not known", n)
		}
		return nil
	})
}

func decodeError(b []byte, y *ledger.Body) error {
	var e ledger.FieldError
	err := eachField(b, func(n protowire.Number, _ uint64, data []byte, _ int) error {
		if n == 1 {
			e.Path = string(data)
		} else {
			e.Message = string(data)
		}
		return nil
	})
	y.Errors = append(y.Errors, e)
	return err
}

func decodeCount(b []byte, y *ledger.Body) error {
	var c ledger.Count
	err := eachField(b, func(n protowire.Number, v uint64, data []byte, _ int) error {
		switch n {
		case 1:
			c.Stream = string(data)
		case 2:
			c.Revision = int64(v)
		case 3:
			c.Count = int64(v)
		case 4:
			c.LastSeen = int64(v)
		}
		return nil
	})
	y.Counts = append(y.Counts, c)
	return err
}

// fields writes protobuf fields; zero values are left out.
type fields struct{ b []byte }

func (w *fields) number(n protowire.Number, v uint64) {
	if v != 0 {
		w.b = protowire.AppendVarint(protowire.AppendTag(w.b, n, protowire.VarintType), v)
	}
}

func (w *fields) bytes(n protowire.Number, v []byte) {
	w.b = protowire.AppendBytes(protowire.AppendTag(w.b, n, protowire.BytesType), v)
}

func (w *fields) text(n protowire.Number, v string) {
	if v != "" {
		w.b = protowire.AppendString(protowire.AppendTag(w.b, n, protowire.BytesType), v)
	}
}

func (w *fields) hash(n protowire.Number, h *ledger.Hash) {
	if !h.IsZero() {
		w.bytes(n, h[:])
	}
}

// eachField calls f for each field of a message: with v for a number, with data, which starts at
// byte at of b, for bytes.
func eachField(b []byte, f func(n protowire.Number, v uint64, data []byte, at int) error) error {
	for off := 0; off < len(b); {
		n, typ, used := protowire.ConsumeTag(b[off:])
		if used < 0 {
			return protowire.ParseError(used)
		}
		off += used
		var v uint64
		var data []byte
		at := off
		switch typ {
		case protowire.VarintType:
			v, used = protowire.ConsumeVarint(b[off:])
		case protowire.BytesType:
			data, used = protowire.ConsumeBytes(b[off:])
			at = off + used - len(data)
		default:
			return fmt.Errorf("field %d has the wire type %d", n, typ)
		}
		if used < 0 {
			return protowire.ParseError(used)
		}
		off += used
		if err := f(n, v, data, at); err != nil {
			return err
		}
	}
	return nil
}

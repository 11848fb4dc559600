package ledger

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// AppendJSON appends the record as one canonical JSON object, {"body":…,"header":…}: both in their
// hashed forms, the body with its salt, 64 lower hex digits, as a further member. It is how a
// record is kept by a server and carried in an export. The position is not part of it.
func (r *Record) AppendJSON(b []byte) []byte {
	b = append(b, `{"body":`...)
	b = r.Body.appendTo(b, &r.Header, true)
	b = append(b, `,"header":`...)
	b = r.Header.AppendCanonical(b)
	return append(b, '}')
}

// ParseRecord reads what AppendJSON wrote, and nothing else: a text that is not byte for byte what
// AppendJSON makes of the record, or whose hashes are not those of its contents, is an error. That the
// record stands behind the one that its prev names is for the caller to check. No error quotes the text.
func ParseRecord(data []byte) (r Record, err error) {
	var w wireRecord
	if err := json.Unmarshal(data, &w, json.RejectUnknownMembers(true)); err != nil {
		return r, fmt.Errorf("not a record: %w", withoutText(err))
	}
	w.Header.fill(&r.Header)
	w.Body.fill(&r.Body)
	if again := r.AppendJSON(make([]byte, 0, len(data))); !bytes.Equal(again, data) {
		return Record{}, errors.New("not a record: its members are not the ones, or not in the form, that are written")
	}
	r.Leaf = r.Header.LeafHash()
	if err := r.Check(r.Header.Prev); err != nil {
		return Record{}, fmt.Errorf("not a record: %w", err)
	}
	return r, nil
}

// withoutText says where a text is wrong without quoting it.
func withoutText(err error) error {
	var syntax *jsontext.SyntacticError
	if errors.As(err, &syntax) {
		return fmt.Errorf("it is not JSON at byte %d", syntax.ByteOffset)
	}
	var semantic *json.SemanticError
	if errors.As(err, &semantic) {
		return fmt.Errorf("the member at byte %d is not one of a record, or not of its kind", semantic.ByteOffset)
	}
	return errors.New("it cannot be read")
}

type wireRecord struct {
	Body   wireBody   `json:"body"`
	Header wireHeader `json:"header"`
}

type wireHeader struct {
	V            int    `json:"v"`
	Type         Type   `json:"type"`
	Stream       string `json:"stream"`
	Revision     *int64 `json:"revision"`
	Prev         Hash   `json:"prev"`
	ContractID   string `json:"contractId"`
	EventID      string `json:"eventId"`
	Sequence     *int64 `json:"sequence"`
	ContractType string `json:"contractType"`
	Timestamp    *int64 `json:"timestamp"`
	Generation   *int64 `json:"generation"`
	RecordedAt   *int64 `json:"recordedAt"`
	Source       string `json:"source"`
	Code         string `json:"code"`
	Commitment   Hash   `json:"commitment"`
}

func (w *wireHeader) fill(h *Header) {
	*h = Header{
		V: w.V, Type: w.Type, Stream: w.Stream, Revision: given(w.Revision), Prev: w.Prev, ContractID: w.ContractID, EventID: w.EventID,
		Sequence: given(w.Sequence), ContractType: w.ContractType, Timestamp: given(w.Timestamp), Generation: given(w.Generation),
		RecordedAt: given(w.RecordedAt), Source: w.Source, Code: w.Code, Commitment: w.Commitment,
	}
}

type wireBody struct {
	BoundUntil     int64       `json:"boundUntil"`
	ChatJID        string      `json:"chatJid"`
	CorrelationID  string      `json:"correlationId"`
	Counts         []wireCount `json:"entries"`
	Errors         []wireError `json:"errors"`
	Event          *wireEvent  `json:"event"`
	EventHash      Hash        `json:"eventHash"`
	KeyID          string      `json:"keyId"`
	Late           bool        `json:"late"`
	PayloadChanged bool        `json:"payloadChanged"`
	PayloadHash    Hash        `json:"payloadHash"`
	RawHash        Hash        `json:"rawHash"`
	Reason         string      `json:"reason"`
	Salt           Hash        `json:"salt"`
	Sanitized      bool        `json:"sanitized"`
	SequencePolicy string      `json:"sequencePolicy"`
	Supersedes     *int64      `json:"supersedes"`
	Traceparent    string      `json:"traceparent"`
	Verdict        string      `json:"verdict"`
}

// wireEvent is the event inside a body. What the header has too must be the same there.
type wireEvent struct {
	ContractID   string         `json:"contractId"`
	ContractType string         `json:"contractType"`
	EventID      string         `json:"eventId"`
	Payload      jsontext.Value `json:"payload"`
	Sequence     int64          `json:"sequence"`
	Signature    string         `json:"signature"`
	Timestamp    int64          `json:"timestamp"`
}

type wireError struct {
	Message string `json:"message"`
	Path    string `json:"path"`
}

type wireCount struct {
	Count    int64  `json:"count"`
	LastSeen int64  `json:"lastSeen"`
	Revision int64  `json:"revision"`
	Stream   string `json:"stream"`
}

func (w *wireBody) fill(y *Body) {
	*y = Body{
		BoundUntil: w.BoundUntil, ChatJID: w.ChatJID, CorrelationID: w.CorrelationID, EventHash: w.EventHash, KeyID: w.KeyID, Late: w.Late,
		PayloadChanged: w.PayloadChanged, PayloadHash: w.PayloadHash, RawHash: w.RawHash, Reason: w.Reason, Salt: w.Salt, Sanitized: w.Sanitized,
		SequencePolicy: w.SequencePolicy, Supersedes: given(w.Supersedes), Traceparent: w.Traceparent, Verdict: w.Verdict,
	}
	if w.Event != nil {
		y.Payload, y.Signature = w.Event.Payload, w.Event.Signature
	}
	for _, e := range w.Errors {
		y.Errors = append(y.Errors, FieldError{Path: e.Path, Message: e.Message})
	}
	for _, c := range w.Counts {
		y.Counts = append(y.Counts, Count{Stream: c.Stream, Revision: c.Revision, Count: c.Count, LastSeen: c.LastSeen})
	}
}

func given(v *int64) int64 {
	if v == nil {
		return Absent
	}
	return *v
}

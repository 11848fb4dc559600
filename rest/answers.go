package rest

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/projections"
)

// The answers as they are on the wire (openapi.yaml). Members of reads that may be missing are null.

// appendBatch writes the answer to a batch. It is written by hand because it is written for every
// event that comes in.
func appendBatch(b []byte, results []ledger.Result) []byte {
	b = append(b, `{"processed":`...)
	b = strconv.AppendInt(b, int64(len(results)), 10)
	b = append(b, `,"results":[`...)
	var accepted, rejected, duplicates int64
	var highest ledger.Position
	var now moment
	for i := range results {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendResult(b, &results[i], &now)
		highest = max(highest, results[i].Position)
		switch results[i].Status {
		case ledger.StatusAccepted:
			accepted++
		case ledger.StatusRejected:
			rejected++
		case ledger.StatusDuplicate:
			duplicates++
		}
	}
	b = append(b, `],"summary":{"accepted":`...)
	b = strconv.AppendInt(b, accepted, 10)
	b = append(b, `,"rejected":`...)
	b = strconv.AppendInt(b, rejected, 10)
	b = append(b, `,"duplicates":`...)
	b = strconv.AppendInt(b, duplicates, 10)
	b = append(b, '}')
	b = appendPosition(b, highest)
	return append(b, '}')
}

// moment is a time and its text. Most events of a batch are processed at the same.
type moment struct {
	at   millis
	text []byte
}

func (m *moment) append(b []byte, at millis) []byte {
	if m.text == nil || m.at != at {
		m.at = at
		m.text, _ = at.AppendText(m.text[:0])
	}
	return append(b, m.text...)
}

// appendResult writes the answer to one event.
func appendResult(b []byte, r *ledger.Result, now *moment) []byte {
	b = appendKey(append(b, '{'), r)
	b = append(b, `,"status":"`...)
	b = append(b, r.Status...)
	b = append(b, '"')
	if r.Rejection != nil {
		b = appendRejection(b, r.Rejection)
	}
	b = append(b, `,"processedAt":"`...)
	b = append(now.append(b, millis(r.ProcessedAt)), '"')
	b = appendPosition(b, r.Position)
	if r.Status == ledger.StatusAccepted {
		b = append(b, `,"revision":`...)
		b = strconv.AppendInt(b, r.Revision, 10)
		b = append(b, `,"generation":`...)
		b = strconv.AppendInt(b, r.Generation, 10)
	}
	b = appendHash(b, `,"payloadHash":"`, r.PayloadHash)
	b = appendHash(b, `,"leafHash":"`, r.Leaf)
	if r.EnvelopeChanged {
		b = append(b, `,"envelopeChanged":true`...)
	}
	return append(b, '}')
}

// appendKey writes the deduplication key; ids hold nothing that JSON would escape.
func appendKey(b []byte, r *ledger.Result) []byte {
	if !r.HasKey {
		return append(b, `"deduplicationKey":null`...)
	}
	b = append(b, `"deduplicationKey":"`...)
	b = append(b, r.Key.ContractID...)
	b = append(b, ':')
	b = append(b, r.Key.EventID...)
	b = append(b, ':')
	b = strconv.AppendInt(b, r.Key.Sequence, 10)
	return append(b, '"')
}

func appendRejection(b []byte, r *ledger.Rejection) []byte {
	b = append(b, `,"code":"`...)
	b = append(b, r.Code...)
	b = append(b, `","httpStatus":`...)
	b = strconv.AppendInt(b, int64(itemStatus[r.Code]), 10)
	b = append(b, `,"reason":`...)
	b = appendString(b, r.Reason)
	b = append(b, `,"errors":[`...)
	for i, e := range r.Errors {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"path":`...)
		b = appendString(b, e.Path)
		b = append(b, `,"message":`...)
		b = appendString(b, e.Message)
		b = append(b, '}')
	}
	return append(b, ']')
}

func appendPosition(b []byte, p ledger.Position) []byte {
	b = append(b, `,"position":"`...)
	b = strconv.AppendUint(b, uint64(p), 10)
	return append(b, '"')
}

func appendHash(b []byte, name string, h ledger.Hash) []byte {
	if h.IsZero() {
		return b
	}
	b = append(b, name...)
	b, _ = h.AppendText(b)
	return append(b, '"')
}

// appendString quotes s; what is not UTF-8 in it becomes U+FFFD.
func appendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

// validation is the answer to a dry run.
type validation struct {
	Valid   bool        `json:"valid"`
	Results []validated `json:"results"`
}

type validated struct {
	Key              *string             `json:"deduplicationKey"`
	Valid            bool                `json:"valid"`
	Code             *string             `json:"code"`
	HTTPStatus       int                 `json:"httpStatus,omitzero"`
	Reason           *string             `json:"reason"`
	Errors           []ledger.FieldError `json:"errors"`
	CanonicalPayload *string             `json:"canonicalPayload"` // text: a reader of JSON would not keep its bytes
	PayloadHash      *ledger.Hash        `json:"payloadHash"`
	WouldBe          ledger.Status       `json:"wouldBe"`
}

func newValidation(previews []ledger.Preview) validation {
	v := validation{Valid: true, Results: make([]validated, len(previews))}
	for i := range previews {
		v.Results[i] = newValidated(&previews[i])
		v.Valid = v.Valid && v.Results[i].Valid
	}
	return v
}

func newValidated(p *ledger.Preview) validated {
	v := validated{Valid: p.Status != ledger.StatusRejected, WouldBe: p.Status, PayloadHash: optional(p.PayloadHash, ledger.Hash{})}
	if p.HasKey {
		v.Key = optional(p.Key.String(), "")
	}
	if r := p.Rejection; r != nil {
		v.Code, v.HTTPStatus, v.Reason, v.Errors = &r.Code, itemStatus[r.Code], &r.Reason, r.Errors
	}
	if p.CanonicalPayload != nil {
		v.CanonicalPayload = optional(string(p.CanonicalPayload), "")
	}
	return v
}

type tally struct {
	Total      int64 `json:"total"`
	Accepted   int64 `json:"accepted"`
	Rejected   int64 `json:"rejected"`
	Duplicates int64 `json:"duplicates"`
	Conflicts  int64 `json:"conflicts"`
	Contracts  int64 `json:"contracts"`
}

func newTally(t *projections.Tally) tally {
	return tally{t.Total(), t.Accepted, t.Rejected, t.Duplicates, t.Conflicts, t.Contracts}
}

type stats struct {
	tally
	ByContractType map[string]int64 `json:"byContractType"`
	ByCode         map[string]int64 `json:"byCode"`
	Findings       map[string]int64 `json:"findings"`
	AsOf           asOf             `json:"asOf"`
	Lag            lag              `json:"lag"`
	Series         *[]point         `json:"series,omitzero"`
}

type asOf struct {
	Position string  `json:"position"`
	Time     *millis `json:"time"`
}

type lag struct {
	Records      int64 `json:"records"`
	Milliseconds int64 `json:"milliseconds"`
}

type point struct {
	Start millis `json:"start"`
	tally
}

func newStats(st *projections.Stats, series bool) stats {
	s := stats{tally: newTally(&st.Tally), ByContractType: named(st.ByContractType), ByCode: named(st.ByCode), Findings: named(st.Findings)}
	s.AsOf.Position = st.AsOf.Position.String()
	if t := st.AsOf.Time; !t.IsZero() {
		s.AsOf.Time = optional(millis(t.UnixMilli()), -1)
	}
	s.Lag = lag{st.Lag.Records, st.Lag.Milliseconds}
	if series {
		points := make([]point, len(st.Series))
		for i := range st.Series {
			points[i] = point{millis(st.Series[i].At.UnixMilli()), newTally(&st.Series[i].Tally)}
		}
		s.Series = &points
	}
	return s
}

func named(counts []projections.Named) map[string]int64 {
	m := make(map[string]int64, len(counts))
	for _, c := range counts {
		m[c.Name] += c.Count
	}
	return m
}

type contractList struct {
	Contracts  []contractLine `json:"contracts"`
	AsOf       string         `json:"asOf"`
	NextCursor *string        `json:"nextCursor"`
}

type contractLine struct {
	ContractID       string  `json:"contractId"`
	ContractType     *string `json:"contractType"`
	Accepted         int64   `json:"accepted"`
	Rejected         int64   `json:"rejected"`
	Duplicates       int64   `json:"duplicates"`
	Conflicts        int64   `json:"conflicts"`
	FirstProcessedAt millis  `json:"firstProcessedAt"`
	LastProcessedAt  millis  `json:"lastProcessedAt"`
	LastPosition     string  `json:"lastPosition"`
	LastSequence     *int64  `json:"lastSequence"`
}

func newContractLine(c *projections.Contract) contractLine {
	return contractLine{
		c.ContractID, optional(c.Type, ""), c.Accepted, c.Rejected, c.Duplicates, c.Conflicts,
		millis(c.FirstProcessedAt), millis(c.LastProcessedAt), c.LastPosition.String(), optional(c.LastSequence, ledger.Absent),
	}
}

type history struct {
	ContractID    string    `json:"contractId"`
	Entries       []entry   `json:"entries"`
	Findings      []finding `json:"findings"`
	FindingsTotal int64     `json:"findingsTotal"`
	AsOf          string    `json:"asOf"`
	NextCursor    *string   `json:"nextCursor"`
}

type event struct {
	DeduplicationKey string  `json:"deduplicationKey"`
	Entries          []entry `json:"entries"` // every generation, oldest first
}

type entry struct {
	Position         string         `json:"position"`
	Revision         int64          `json:"revision"`
	DeduplicationKey *string        `json:"deduplicationKey"`
	EventID          *string        `json:"eventId"`
	Sequence         *int64         `json:"sequence"`
	Generation       *int64         `json:"generation"`
	Supersedes       *int64         `json:"supersedes"`
	PayloadChanged   bool           `json:"payloadChanged"`
	ContractType     string         `json:"contractType"`
	Status           ledger.Status  `json:"status"`
	Code             *string        `json:"code"`
	Reason           *string        `json:"reason"`
	Timestamp        *int64         `json:"timestamp"` // as it was sent, and that may be any year
	ProcessedAt      millis         `json:"processedAt"`
	PayloadHash      *ledger.Hash   `json:"payloadHash"`
	LeafHash         ledger.Hash    `json:"leafHash"`
	Source           string         `json:"source"`
	CorrelationID    string         `json:"correlationId"`
	Duplicates       int64          `json:"duplicates"`
	LastDuplicateAt  *millis        `json:"lastDuplicateAt"`
	Sanitized        bool           `json:"sanitized"`
	Late             bool           `json:"late"`
	Payload          jsontext.Value `json:"payload,omitzero"`
	Withheld         []string       `json:"withheld,omitzero"` // JSON pointers; "" is the whole payload
}

func newEntry(e *projections.Entry) entry {
	line := entry{
		Position: e.Position.String(), Revision: e.Revision,
		EventID: optional(e.EventID, ""), Sequence: optional(e.Sequence, ledger.Absent),
		Generation: optional(e.Generation, ledger.Absent), Supersedes: optional(e.Supersedes, ledger.Absent), PayloadChanged: e.PayloadChanged,
		ContractType: e.ContractType, Status: e.Status, Code: optional(e.Code, ""), Reason: optional(e.Reason, ""),
		Timestamp: optional(e.Timestamp, ledger.Absent), ProcessedAt: millis(e.ProcessedAt),
		PayloadHash: optional(e.PayloadHash, ledger.Hash{}), LeafHash: e.LeafHash,
		Source: e.Source, CorrelationID: e.CorrelationID,
		Duplicates: e.Duplicates, LastDuplicateAt: optional(millis(e.LastDuplicateAt), 0), Sanitized: e.Sanitized, Late: e.Late,
	}
	if key, ok := e.Key(); ok {
		line.DeduplicationKey = optional(key.String(), "")
	}
	return line
}

type finding struct {
	Kind         projections.FindingKind `json:"kind"`
	FromSequence *int64                  `json:"fromSequence"`
	ToSequence   *int64                  `json:"toSequence"`
	Positions    []string                `json:"positions"`
	Message      string                  `json:"message"`
}

func newFinding(f *projections.Finding) finding {
	positions := make([]string, len(f.Positions))
	for i, at := range f.Positions {
		positions[i] = at.String()
	}
	return finding{f.Kind, optional(f.FromSequence, ledger.Absent), optional(f.ToSequence, ledger.Absent), positions, f.Message}
}

type projectionList struct {
	Projections []projectionState `json:"projections"`
}

type projectionState struct {
	Name     string                `json:"name"`
	Position string                `json:"position"`
	Head     string                `json:"head"`
	Lag      int64                 `json:"lag"`
	State    projections.Condition `json:"state"`
	Progress float64               `json:"progress"`
	Failure  *failure              `json:"failure"`
}

type failure struct {
	Position string `json:"position"`
	Reason   string `json:"reason"`
}

func newProjectionState(st *projections.State) projectionState {
	line := projectionState{st.Name, st.Position.String(), st.Head.String(), st.Lag, st.State, st.Progress, nil}
	if f := st.Failure; f != nil {
		line.Failure = &failure{f.Position.String(), f.Reason}
	}
	return line
}

package rest

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/projections"
)

const (
	shownFindings = 100     // of a contract, in its history; GraphQL has all
	maxPayloads   = 8 << 20 // bytes of payloads in one page, after which it ends early
	payloadChunk  = 50      // entries whose payloads are read at once
)

// reading answers a query whose parameters are all right.
type reading func(ctx context.Context) (any, error)

// get makes a handler of a query. The query is asked when all parameters are known to be right and
// the projections are as far as the parameter atLeast wants.
func (s *server) get(prepare func(c *call, p *params) reading) http.HandlerFunc {
	return s.handle(func(c *call) (int, any, error) {
		p := newParams(c.Request)
		read, atLeast := prepare(c, p), p.position("atLeast")
		if err := p.done(); err != nil {
			return 0, nil, err
		}
		ctx, cancel := context.WithTimeout(c.Context(), s.Timeout)
		defer cancel()
		if atLeast > 0 {
			if err := s.query.Wait(ctx, atLeast); err != nil {
				return 0, nil, err
			}
		}
		answer, err := read(ctx)
		return http.StatusOK, answer, err
	})
}

func (s *server) stats(_ *call, p *params) reading {
	from, to := p.span()
	bucket := p.choice("bucket", "", string(projections.Hour), string(projections.Day))
	return func(ctx context.Context) (any, error) {
		st, err := s.query.Stats(ctx, projections.StatsRequest{From: from, To: to, Bucket: projections.Bucket(bucket)})
		if err != nil {
			return nil, err
		}
		return newStats(&st, bucket != ""), nil
	}
}

func (s *server) contracts(_ *call, p *params) reading {
	req := projections.ContractsRequest{Search: p.text("search"), Page: p.page()}
	return func(ctx context.Context) (any, error) {
		page, err := s.query.Contracts(ctx, req)
		if err != nil {
			return nil, err
		}
		answer := contractList{Contracts: make([]contractLine, len(page.Contracts)), AsOf: page.AsOf.String(), NextCursor: next(page.Info)}
		for i := range page.Contracts {
			answer.Contracts[i] = newContractLine(&page.Contracts[i])
		}
		return answer, nil
	}
}

func (s *server) history(c *call, p *params) reading {
	req := projections.HistoryRequest{ContractID: p.id(c, "contractId"), Page: p.page()}
	if p.choice("order", "desc", "asc") == "asc" {
		req.Order = projections.Asc
	}
	req.Status = ledger.Status(p.choice("status", "", string(ledger.StatusAccepted), string(ledger.StatusRejected)))
	req.Code = p.text("code")
	req.From, req.To = p.spanMillis()
	withPayload := p.flag("payload")
	return func(ctx context.Context) (any, error) {
		page, err := s.query.History(ctx, req)
		if err != nil {
			return nil, err
		}
		answer := history{ContractID: req.ContractID, AsOf: page.AsOf.String(), NextCursor: next(page.Info)}
		if answer.Entries, err = s.entries(ctx, page.Entries, withPayload, maxPayloads); err != nil {
			return nil, err
		}
		if n := len(answer.Entries); n < len(page.Entries) {
			answer.NextCursor = optional(page.Cursor(n-1), "")
		}
		return answer, s.addFindings(ctx, &answer)
	}
}

func (s *server) addFindings(ctx context.Context, h *history) error {
	page, err := s.query.Findings(ctx, h.ContractID, projections.Page{First: shownFindings})
	if err != nil {
		return err
	}
	h.Findings, h.FindingsTotal = make([]finding, len(page.Findings)), page.Total
	for i := range page.Findings {
		h.Findings[i] = newFinding(&page.Findings[i])
	}
	return nil
}

func (s *server) event(c *call, p *params) reading {
	key := ledger.Key{ContractID: p.id(c, "contractId"), EventID: p.id(c, "eventId")}
	key.Sequence = p.integer("sequence", c.param("sequence"), 0, ledger.MaxInteger)
	withPayload := p.flag("payload")
	return func(ctx context.Context) (any, error) {
		found, err := s.query.Event(ctx, key)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, problem("not_found", "no event was accepted under this key")
		}
		lines, err := s.entries(ctx, found, withPayload, math.MaxInt)
		return event{DeduplicationKey: key.String(), Entries: lines}, err
	}
}

// entries makes the lines of a history. They end early where their payloads have more than most bytes.
func (s *server) entries(ctx context.Context, entries []projections.Entry, withPayload bool, most int) ([]entry, error) {
	lines, size := make([]entry, 0, len(entries)), 0
	for part := range slices.Chunk(entries, payloadChunk) {
		var payloads [][]byte
		if withPayload {
			var err error
			if payloads, err = s.query.Payloads(ctx, part); err != nil {
				return nil, err
			}
		}
		for i := range part {
			line := newEntry(&part[i])
			if withPayload {
				line.Payload = payloadOf(payloads[i])
				size += len(payloads[i])
			}
			if size > most && len(lines) > 0 {
				return lines, nil
			}
			lines = append(lines, line)
		}
	}
	return lines, nil
}

func payloadOf(canonical []byte) jsontext.Value {
	if canonical == nil {
		return jsontext.Value("null")
	}
	return canonical
}

func (s *server) projectionStates(_ *call, _ *params) reading {
	return func(ctx context.Context) (any, error) {
		states, err := s.query.States(ctx)
		answer := projectionList{make([]projectionState, len(states))}
		for i := range states {
			answer.Projections[i] = newProjectionState(&states[i])
		}
		return answer, err
	}
}

// rebuild starts to build a projection anew.
func (s *server) rebuild(c *call) (int, any, error) {
	name := c.param("name")
	err := s.Projections.Rebuild(c.Context(), name)
	var unknown *projections.ParameterError
	if errors.As(err, &unknown) {
		return 0, nil, problem("not_found", "no such projection: the "+unknown.Error())
	}
	if err != nil {
		return 0, nil, err
	}
	return http.StatusAccepted, map[string]string{"name": name, "state": string(projections.Rebuilding)}, nil
}

// page is the part of a list that limit and cursor ask for.
func (p *params) page() projections.Page {
	return projections.Page{First: p.limit(projections.DefaultPage, projections.MaxPage), After: p.text("cursor")}
}

// spanMillis is span in epoch milliseconds, 0 where open.
func (p *params) spanMillis() (from, to int64) {
	ms := func(t time.Time) int64 {
		if t.IsZero() {
			return 0
		}
		return t.UnixMilli()
	}
	f, t := p.span()
	return ms(f), ms(t)
}

func next(info projections.PageInfo) *string {
	if !info.HasNextPage {
		return nil
	}
	return &info.EndCursor
}

// The answers of the read endpoints, as they are on the wire. Members that may be missing are null.

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
	s := stats{tally: newTally(&st.Tally), ByContractType: named(st.ByContractType), ByCode: named(st.ByCode)}
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

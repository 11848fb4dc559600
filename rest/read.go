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
				shown, withheld, err := s.show(ctx, &part[i], payloads[i])
				if err != nil {
					return nil, err
				}
				line.Payload, line.Withheld = payloadOf(shown), withheld
				size += len(shown)
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

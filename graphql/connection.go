package graphql

import (
	"context"

	"github.com/graphql-go/graphql"

	"github.com/talenttrust/auditledger/projections"
)

// connection is a page as the Relay cursor connections specification shows it.
type connection interface {
	Cursor(i int) string
	Total(ctx context.Context) (*int64, error)
	node(i int) any
	len() int
	info() projections.PageInfo
	asOf() string
}

func (p *historyPage) node(i int) any             { return p.nodes[i] }
func (p *historyPage) len() int                   { return len(p.nodes) }
func (p *historyPage) info() projections.PageInfo { return p.Info }
func (p *historyPage) asOf() string               { return p.AsOf.String() }

// contractPage is a page of contracts.
type contractPage struct{ projections.ContractPage }

func (p *contractPage) node(i int) any             { return &p.Contracts[i] }
func (p *contractPage) len() int                   { return len(p.Contracts) }
func (p *contractPage) info() projections.PageInfo { return p.Info }
func (p *contractPage) asOf() string               { return p.AsOf.String() }

func (r *resolver) contracts(run *run, a args) (any, error) {
	page, err := pageOf(a)
	if err != nil {
		return nil, err
	}
	req := projections.ContractsRequest{Search: a.text("search"), Type: a.text("type"), Page: page}
	if a["orderBy"] == "LAST_ACTIVITY" {
		req.OrderBy = projections.ByLastActivity
	}
	got, err := r.q.Contracts(run.ctx, req)
	if err != nil {
		return nil, err
	}
	return &contractPage{got}, nil
}

// findingPage is a page of a contract's findings.
type findingPage struct{ page projections.FindingPage }

func (p *findingPage) Cursor(i int) string                   { return p.page.Cursor(i) }
func (p *findingPage) Total(context.Context) (*int64, error) { return &p.page.Total, nil }
func (p *findingPage) node(i int) any                        { return p.page.Findings[i] }
func (p *findingPage) len() int                              { return len(p.page.Findings) }
func (p *findingPage) info() projections.PageInfo            { return p.page.Info }
func (p *findingPage) asOf() string                          { return p.page.AsOf.String() }

func (r *resolver) findings(run *run, contractID string, a args) (any, error) {
	page, err := pageOf(a)
	if err != nil {
		return nil, err
	}
	got, err := r.q.Findings(run.ctx, contractID, page)
	if err != nil {
		return nil, err
	}
	return &findingPage{got}, nil
}

// edge is an element of a page with its cursor.
type edge struct {
	page connection
	i    int
}

// connection makes the connection and edge types of a node type.
func (t *types) connection(name string, node *graphql.Object) *graphql.Object {
	edges := graphql.NewObject(graphql.ObjectConfig{Name: name + "Edge", Fields: graphql.Fields{
		"cursor": field(t.r, required(graphql.String), "", nil, func(_ *run, e edge, _ args) (any, error) { return e.page.Cursor(e.i), nil }),
		"node":   field(t.r, required(node), "", nil, func(_ *run, e edge, _ args) (any, error) { return e.page.node(e.i), nil }),
	}})
	return graphql.NewObject(graphql.ObjectConfig{Name: name + "Connection", Fields: graphql.Fields{
		"edges": field(t.r, listOf(edges), "", nil, func(_ *run, p connection, _ args) (any, error) {
			all := make([]edge, p.len())
			for i := range all {
				all[i] = edge{p, i}
			}
			return all, nil
		}),
		"pageInfo": field(t.r, required(t.pageInfo), "", nil, func(_ *run, p connection, _ args) (any, error) { return p.info(), nil }),
		"asOf":     field(t.r, required(graphql.String), "The position as of which all pages are read.", nil, func(_ *run, p connection, _ args) (any, error) { return p.asOf(), nil }),
		"totalCount": field(t.r, long, "Null when filtered and above 10,000.", nil, func(run *run, p connection, _ args) (any, error) {
			n, err := p.Total(run.ctx)
			if n == nil || err != nil {
				return nil, err
			}
			return *n, nil
		}),
	}})
}

package graphql

import (
	"time"

	"github.com/graphql-go/graphql"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/projections"
)

func enum(name, description string, values map[string]any) *graphql.Enum {
	config := graphql.EnumValueConfigMap{}
	for n, v := range values {
		config[n] = &graphql.EnumValueConfig{Value: v}
	}
	return graphql.NewEnum(graphql.EnumConfig{Name: name, Description: description, Values: config})
}

func enumOfKinds() *graphql.Enum {
	config := graphql.EnumValueConfigMap{}
	for kind, description := range findingKinds {
		config[string(kind)] = &graphql.EnumValueConfig{Value: string(kind), Description: description}
	}
	return graphql.NewEnum(graphql.EnumConfig{Name: "FindingKind", Description: "What an auditor should look at.", Values: config})
}

// findingKinds are the kinds of findings, and what they say.
var findingKinds = map[projections.FindingKind]string{
	projections.SequenceGap:        "Between two accepted events, sequences are missing. It goes away when they come.",
	projections.SequenceReused:     "A sequence was accepted again, under another event id.",
	projections.SequenceRegression: "A sequence arrived after a higher one.",
	projections.Conflict:           "An event was refused: its key is bound to another payload.",
	projections.Reingested:         "A key came back after its window and was accepted anew.",
	projections.Sanitized:          "An event held bytes that were replaced or removed.",
	projections.Late:               "An event was over the age limit, and its source may be late.",
}

func required(t graphql.Type) *graphql.NonNull { return graphql.NewNonNull(t) }
func listOf(t graphql.Type) *graphql.NonNull   { return required(graphql.NewList(required(t))) }
func arg(t graphql.Input, description string) *graphql.ArgumentConfig {
	return &graphql.ArgumentConfig{Type: t, Description: description}
}

// types are the schema's own types, tied together as they name one another.
type types struct {
	r *resolver

	node, pageInfo                       graphql.Output
	status, order, bucket, byOrder, kind *graphql.Enum
	filter                               *graphql.InputObject
	contract, entry, finding             *graphql.Object
	history, contracts, findings         *graphql.Object
	stats, projection                    *graphql.Object
}

// newSchema builds the schema. Every field says where its value comes from.
func newSchema(r *resolver) (graphql.Schema, error) {
	t := &types{r: r}
	t.status = enum("Status", "What became of an event.", map[string]any{"ACCEPTED": string(ledger.StatusAccepted), "REJECTED": string(ledger.StatusRejected)})
	t.order = enum("Order", "By ledger position.", map[string]any{"DESC": "DESC", "ASC": "ASC"})
	t.bucket = enum("Bucket", "Width of a series.", map[string]any{"HOUR": string(projections.Hour), "DAY": string(projections.Day)})
	t.byOrder = enum("ContractOrder", "How contracts are sorted.", map[string]any{"CONTRACT_ID": "CONTRACT_ID", "LAST_ACTIVITY": "LAST_ACTIVITY"})
	t.kind = enumOfKinds()
	t.makeNode()
	t.makeFilter()
	t.makeEntry()
	t.history = t.connection("History", t.entry)
	t.makeFinding()
	t.findings = t.connection("Finding", t.finding)
	t.makeContract()
	t.contracts = t.connection("Contract", t.contract)
	t.makeStats()
	return graphql.NewSchema(graphql.SchemaConfig{Query: t.query(), Subscription: t.subscription(), Types: []graphql.Type{t.contract, t.entry}})
}

func (t *types) makeNode() {
	t.node = graphql.NewInterface(graphql.InterfaceConfig{
		Name: "Node", Fields: graphql.Fields{"id": &graphql.Field{Type: required(graphql.ID)}},
		ResolveType: func(p graphql.ResolveTypeParams) *graphql.Object {
			if _, ok := p.Value.(*entry); ok {
				return t.entry
			}
			return t.contract
		},
	})
	t.pageInfo = graphql.NewObject(graphql.ObjectConfig{Name: "PageInfo", Fields: graphql.Fields{
		"hasNextPage":     field(t.r, required(graphql.Boolean), "", nil, func(_ *run, p projections.PageInfo, _ args) (any, error) { return p.HasNextPage, nil }),
		"hasPreviousPage": field(t.r, required(graphql.Boolean), "", nil, func(_ *run, p projections.PageInfo, _ args) (any, error) { return p.HasPreviousPage, nil }),
		"startCursor":     field(t.r, graphql.String, "", nil, func(_ *run, p projections.PageInfo, _ args) (any, error) { return optional(p.StartCursor), nil }),
		"endCursor":       field(t.r, graphql.String, "", nil, func(_ *run, p projections.PageInfo, _ args) (any, error) { return optional(p.EndCursor), nil }),
	}})
}

// optional is null for "".
func optional(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func hashText(h ledger.Hash) any {
	if h.IsZero() {
		return nil
	}
	return h.String()
}

func (t *types) makeFilter() {
	in := func(typ graphql.Input, description string) *graphql.InputObjectFieldConfig {
		return &graphql.InputObjectFieldConfig{Type: typ, Description: description}
	}
	t.filter = graphql.NewInputObject(graphql.InputObjectConfig{Name: "HistoryFilter", Description: "Keeps the entries that meet all of it.", Fields: graphql.InputObjectConfigFieldMap{
		"status": in(t.status, ""), "code": in(graphql.String, "of a rejection"), "contractType": in(graphql.String, ""),
		"source": in(graphql.String, ""), "eventId": in(graphql.ID, ""),
		"from": in(dateTime, "processedAt, inclusive"), "to": in(dateTime, "processedAt, exclusive"),
		"sentFrom": in(dateTime, "the source's timestamp, inclusive"), "sentTo": in(dateTime, "the source's timestamp, exclusive"),
		"fromSequence": in(long, "inclusive"), "toSequence": in(long, "inclusive"),
	}})
}

// of makes a field of a history entry.
func (t *types) of(typ graphql.Output, description string, f func(*projections.Entry) any) *graphql.Field {
	return field(t.r, typ, description, nil, func(_ *run, e *entry, _ args) (any, error) { return f(&e.Entry), nil })
}

func (t *types) makeEntry() {
	r := t.r
	t.entry = graphql.NewObject(graphql.ObjectConfig{
		Name: "HistoryEntry", Description: "An accepted or a rejected event.", Interfaces: []*graphql.Interface{t.node.(*graphql.Interface)},
		Fields: graphql.FieldsThunk(func() graphql.Fields {
			return graphql.Fields{
				"id":       t.of(required(graphql.ID), "", func(e *projections.Entry) any { return entryID(e) }),
				"position": t.of(required(graphql.String), "Place in the whole ledger; opaque, increasing.", func(e *projections.Entry) any { return e.Position.String() }),
				"revision": t.of(required(long), "Place in its stream, from 0.", func(e *projections.Entry) any { return e.Revision }),
				"deduplicationKey": t.of(graphql.String, "Null when a rejected event had no usable ids.", func(e *projections.Entry) any {
					if key, ok := e.Key(); ok {
						return key.String()
					}
					return nil
				}),
				"contractId":      t.of(graphql.ID, "", func(e *projections.Entry) any { return optional(e.ContractID) }),
				"eventId":         t.of(graphql.ID, "", func(e *projections.Entry) any { return optional(e.EventID) }),
				"sequence":        t.of(long, "", func(e *projections.Entry) any { return e.Sequence }),
				"generation":      t.of(long, "From 1; one more each time the key came back after its window.", func(e *projections.Entry) any { return e.Generation }),
				"supersedes":      t.of(long, "Revision of the generation before.", func(e *projections.Entry) any { return e.Supersedes }),
				"payloadChanged":  t.of(required(graphql.Boolean), "Against the generation before.", func(e *projections.Entry) any { return e.PayloadChanged }),
				"contractType":    t.of(graphql.String, "", func(e *projections.Entry) any { return optional(e.ContractType) }),
				"status":          t.of(required(t.status), "", func(e *projections.Entry) any { return string(e.Status) }),
				"code":            t.of(graphql.String, "Of a rejection.", func(e *projections.Entry) any { return optional(e.Code) }),
				"reason":          t.of(graphql.String, "Of a rejection.", func(e *projections.Entry) any { return optional(e.Reason) }),
				"timestamp":       t.of(long, "The source's, epoch milliseconds.", func(e *projections.Entry) any { return e.Timestamp }),
				"processedAt":     t.of(required(dateTime), "", func(e *projections.Entry) any { return e.ProcessedAt }),
				"payloadHash":     t.of(graphql.String, "SHA-256 of the canonical payload.", func(e *projections.Entry) any { return hashText(e.PayloadHash) }),
				"leafHash":        t.of(required(graphql.String), "RFC 6962 leaf hash of the record's header.", func(e *projections.Entry) any { return e.LeafHash.String() }),
				"source":          t.of(graphql.String, "", func(e *projections.Entry) any { return optional(e.Source) }),
				"correlationId":   t.of(graphql.String, "", func(e *projections.Entry) any { return optional(e.CorrelationID) }),
				"duplicates":      t.of(required(long), "How often it was met again.", func(e *projections.Entry) any { return e.Duplicates }),
				"lastDuplicateAt": t.of(dateTime, "", func(e *projections.Entry) any { return e.LastDuplicateAt }),
				"sanitized":       t.of(required(graphql.Boolean), "Bytes that are no valid text were replaced.", func(e *projections.Entry) any { return e.Sanitized }),
				"late":            t.of(required(graphql.Boolean), "Older than the age limit when it came.", func(e *projections.Entry) any { return e.Late }),
				"payload":         field(r, jsonValue, "Null for a rejected event.", nil, func(run *run, e *entry, _ args) (any, error) { return r.payload(run, e) }),
				"withheld":        field(r, required(graphql.NewList(required(graphql.String))), "JSON Pointers of what you have no right to see of the payload; an empty one is all of it.", nil, func(run *run, e *entry, _ args) (any, error) { return r.withheld(run, e) }),
				"previous": field(r, t.entry, "The entry before in the contract's history, whatever the filter.", nil, func(run *run, e *entry, _ args) (any, error) {
					previous, _, err := r.q.Neighbours(run.ctx, &e.Entry)
					return alone(previous), err
				}),
				"next": field(r, t.entry, "The entry after in the contract's history, whatever the filter.", nil, func(run *run, e *entry, _ args) (any, error) {
					_, next, err := r.q.Neighbours(run.ctx, &e.Entry)
					return alone(next), err
				}),
			}
		}),
	})
}

func (t *types) makeFinding() {
	r := t.r
	t.finding = graphql.NewObject(graphql.ObjectConfig{Name: "Finding", Description: "Something an auditor should look at.", Fields: graphql.Fields{
		"kind":         field(r, required(t.kind), "", nil, func(_ *run, f projections.Finding, _ args) (any, error) { return string(f.Kind), nil }),
		"fromSequence": field(r, long, "", nil, func(_ *run, f projections.Finding, _ args) (any, error) { return f.FromSequence, nil }),
		"toSequence":   field(r, long, "Inclusive.", nil, func(_ *run, f projections.Finding, _ args) (any, error) { return f.ToSequence, nil }),
		"message":      field(r, required(graphql.String), "", nil, func(_ *run, f projections.Finding, _ args) (any, error) { return f.Message, nil }),
		"entries": field(r, listOf(t.entry), "Entries it is about, at most two.", nil, func(run *run, f projections.Finding, _ args) (any, error) {
			all, err := r.q.Entries(run.ctx, f.Positions)
			return onPage(all), err
		}),
	}})
}

// count makes a field of a contract.
func (t *types) count(typ graphql.Output, description string, f func(*projections.Contract) any) *graphql.Field {
	return field(t.r, typ, description, nil, func(_ *run, c *projections.Contract, _ args) (any, error) { return f(c), nil })
}

func (t *types) makeContract() {
	r := t.r
	t.contract = graphql.NewObject(graphql.ObjectConfig{
		Name: "Contract", Description: "The thing whose history is kept.", Interfaces: []*graphql.Interface{t.node.(*graphql.Interface)},
		Fields: graphql.Fields{
			"id":               t.count(required(graphql.ID), "", func(c *projections.Contract) any { return nodeID("contract", c.ContractID) }),
			"contractId":       t.count(required(graphql.String), "", func(c *projections.Contract) any { return c.ContractID }),
			"type":             t.count(graphql.String, "Of its last accepted event.", func(c *projections.Contract) any { return optional(c.Type) }),
			"accepted":         t.count(required(long), "", func(c *projections.Contract) any { return c.Accepted }),
			"rejected":         t.count(required(long), "", func(c *projections.Contract) any { return c.Rejected }),
			"duplicates":       t.count(required(long), "", func(c *projections.Contract) any { return c.Duplicates }),
			"conflicts":        t.count(required(long), "", func(c *projections.Contract) any { return c.Conflicts }),
			"firstProcessedAt": t.count(dateTime, "", func(c *projections.Contract) any { return c.FirstProcessedAt }),
			"lastProcessedAt":  t.count(dateTime, "", func(c *projections.Contract) any { return c.LastProcessedAt }),
			"lastSequence":     t.count(long, "Of the last accepted event.", func(c *projections.Contract) any { return c.LastSequence }),
			"findings": field(r, listOf(t.finding), "The first ones, by kind and sequence; findingsConnection has all.", graphql.FieldConfigArgument{"first": arg(graphql.Int, "100 when absent")},
				func(run *run, c *projections.Contract, a args) (any, error) {
					page, err := pageOf(a)
					if err != nil {
						return nil, err
					}
					got, err := r.q.Findings(run.ctx, c.ContractID, page)
					return got.Findings, err
				}),
			"findingsConnection": field(r, required(t.findings), "All of them, by kind and sequence: always the latest, filling a gap takes its finding away from later pages.", pageArgs(),
				func(run *run, c *projections.Contract, a args) (any, error) { return r.findings(run, c.ContractID, a) }),
			"findingsTotal": field(r, required(long), "", nil, func(run *run, c *projections.Contract, _ args) (any, error) {
				got, err := r.q.Findings(run.ctx, c.ContractID, projections.Page{First: 1})
				return got.Total, err
			}),
			"history": field(r, required(t.history), "Its accepted and rejected events.", t.historyArgs(),
				func(run *run, c *projections.Contract, a args) (any, error) { return r.history(run, c.ContractID, a) }),
		},
	})
}

// pageArgs are the arguments of a connection.
func pageArgs() graphql.FieldConfigArgument {
	return graphql.FieldConfigArgument{
		"first": arg(graphql.Int, "1 to 1000, 100 when neither first nor last is given"), "after": arg(graphql.String, "a cursor"),
		"last": arg(graphql.Int, "1 to 1000"), "before": arg(graphql.String, "a cursor"),
	}
}

func (t *types) historyArgs() graphql.FieldConfigArgument {
	a := pageArgs()
	a["filter"], a["order"] = arg(t.filter, ""), arg(t.order, "DESC when absent")
	a["asOf"] = arg(graphql.String, "a position: what came after it is not there")
	return a
}

func (t *types) contractsArgs() graphql.FieldConfigArgument {
	a := pageArgs()
	a["search"], a["type"] = arg(graphql.String, "part of the contractId, in upper or lower case"), arg(graphql.String, "")
	a["orderBy"], a["asOf"] = arg(t.byOrder, "CONTRACT_ID when absent"), arg(graphql.String, "a position")
	return a
}

func (t *types) query() *graphql.Object {
	r := t.r
	return graphql.NewObject(graphql.ObjectConfig{Name: "Query", Fields: graphql.Fields{
		"contract": field(r, t.contract, "Null when it is not known.", graphql.FieldConfigArgument{"id": arg(required(graphql.ID), "the contractId")},
			func(run *run, _ any, a args) (any, error) { return r.contract(run, a.text("id")) }),
		"contracts": field(r, required(t.contracts), "", t.contractsArgs(), func(run *run, _ any, a args) (any, error) { return r.contracts(run, a) }),
		"event": field(r, listOf(t.entry), "Every generation of one key, oldest first.", graphql.FieldConfigArgument{
			"contractId": arg(required(graphql.ID), ""), "eventId": arg(required(graphql.ID), ""), "sequence": arg(required(long), ""),
		}, func(run *run, _ any, a args) (any, error) {
			all, err := r.q.Event(run.ctx, ledger.Key{ContractID: a.text("contractId"), EventID: a.text("eventId"), Sequence: a.millis("sequence")})
			return onPage(all), err
		}),
		"activity": field(r, required(t.history), "The whole ledger's accepted and rejected events.", t.historyArgs(),
			func(run *run, _ any, a args) (any, error) { return r.history(run, "", a) }),
		"stats": field(r, required(t.stats), "Numbers of the ledger, or of a time range on bucket edges.", graphql.FieldConfigArgument{
			"from": arg(dateTime, "inclusive"), "to": arg(dateTime, "exclusive"), "bucket": arg(t.bucket, "asks for a series"),
		}, func(run *run, _ any, a args) (any, error) {
			return r.q.Stats(run.ctx, projections.StatsRequest{From: moment(a, "from"), To: moment(a, "to"), Bucket: projections.Bucket(a.text("bucket"))})
		}),
		"projections": field(r, listOf(t.projection), "", nil, func(run *run, _ any, _ args) (any, error) { return r.q.States(run.ctx) }),
		"node": field(r, t.node, "", graphql.FieldConfigArgument{"id": arg(required(graphql.ID), "")},
			func(run *run, _ any, a args) (any, error) { return r.node(run, a.text("id")) }),
	}})
}

func moment(a args, name string) time.Time {
	if a.integer(name) == nil {
		return time.Time{}
	}
	return time.UnixMilli(a.millis(name)).UTC()
}

package graphql

import (
	"time"

	"github.com/graphql-go/graphql"

	"github.com/talenttrust/auditledger/projections"
)

// value makes a field that is read from a source of type S.
func value[S any](t *types, typ graphql.Output, f func(S) any) *graphql.Field {
	return field(t.r, typ, "", nil, func(_ *run, s S, _ args) (any, error) { return f(s), nil })
}

func object(name string, fields graphql.Fields) *graphql.Object {
	return graphql.NewObject(graphql.ObjectConfig{Name: name, Fields: fields})
}

// tally are the fields that Stats and the points of its series share.
func tally[S any](t *types, of func(S) *projections.Tally) graphql.Fields {
	n := func(f func(*projections.Tally) int64) *graphql.Field {
		return value(t, required(long), func(s S) any { return f(of(s)) })
	}
	return graphql.Fields{
		"total":      n((*projections.Tally).Total),
		"accepted":   n(func(y *projections.Tally) int64 { return y.Accepted }),
		"rejected":   n(func(y *projections.Tally) int64 { return y.Rejected }),
		"duplicates": n(func(y *projections.Tally) int64 { return y.Duplicates }),
		"conflicts":  n(func(y *projections.Tally) int64 { return y.Conflicts }),
		"contracts":  n(func(y *projections.Tally) int64 { return y.Contracts }),
	}
}

func (t *types) makeStats() {
	named := object("NamedCount", graphql.Fields{
		"name":  value(t, required(graphql.String), func(n projections.Named) any { return n.Name }),
		"count": value(t, required(long), func(n projections.Named) any { return n.Count }),
	})
	point := tally(t, func(p projections.Point) *projections.Tally { return &p.Tally })
	point["at"] = value(t, required(dateTime), func(p projections.Point) any { return p.At.UnixMilli() })
	fields := tally(t, func(s projections.Stats) *projections.Tally { return &s.Tally })
	fields["byContractType"] = value(t, listOf(named), func(s projections.Stats) any { return s.ByContractType })
	fields["byCode"] = value(t, listOf(named), func(s projections.Stats) any { return s.ByCode })
	fields["series"] = value(t, graphql.NewList(required(object("StatsPoint", point))), func(s projections.Stats) any { return s.Series })
	fields["asOf"] = value(t, required(object("AsOf", graphql.Fields{
		"position": value(t, required(graphql.String), func(s projections.Stats) any { return s.AsOf.Position.String() }),
		"time":     value(t, dateTime, func(s projections.Stats) any { return epochMillis(s.AsOf.Time) }),
	})), func(s projections.Stats) any { return s })
	fields["lag"] = value(t, required(object("Lag", graphql.Fields{
		"records":      value(t, required(long), func(s projections.Stats) any { return s.Lag.Records }),
		"milliseconds": value(t, required(long), func(s projections.Stats) any { return s.Lag.Milliseconds }),
	})), func(s projections.Stats) any { return s })
	t.stats = object("Stats", fields)
	t.makeProjection()
}

func epochMillis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func (t *types) makeProjection() {
	failure := object("ProjectionFailure", graphql.Fields{
		"position": value(t, required(graphql.String), func(f projections.Failure) any { return f.Position.String() }),
		"reason":   value(t, required(graphql.String), func(f projections.Failure) any { return f.Reason }),
	})
	t.projection = object("Projection", graphql.Fields{
		"name":     value(t, required(graphql.String), func(s projections.State) any { return s.Name }),
		"position": value(t, required(graphql.String), func(s projections.State) any { return s.Position.String() }),
		"head":     value(t, required(graphql.String), func(s projections.State) any { return s.Head.String() }),
		"lag":      value(t, required(long), func(s projections.State) any { return s.Lag }),
		"state":    value(t, required(graphql.String), func(s projections.State) any { return string(s.State) }),
		"progress": value(t, required(graphql.Float), func(s projections.State) any { return s.Progress }),
		"failure": value(t, failure, func(s projections.State) any {
			if s.Failure == nil {
				return nil
			}
			return *s.Failure
		}),
	})
}

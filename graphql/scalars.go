package graphql

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/graphql-go/graphql"
	"github.com/graphql-go/graphql/language/ast"

	"github.com/talenttrust/auditledger/ledger"
)

// long is an integer up to 2^53: GraphQL's Int has 32 bits only. Absent integers are null.
var long = graphql.NewScalar(graphql.ScalarConfig{
	Name: "Long", Description: "An integer from -(2^53-1) to 2^53-1.",
	Serialize: func(v any) any {
		if n, ok := v.(int64); ok && n != ledger.Absent {
			return n
		}
		return nil
	},
	ParseValue:   func(v any) any { return parseLong(v) },
	ParseLiteral: func(v ast.Value) any { return parseLong(v.GetValue()) },
})

func parseLong(v any) any {
	var text string
	switch v := v.(type) {
	case json.Number:
		text = v.String()
	case string:
		text = v
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > ledger.MaxInteger || n < -ledger.MaxInteger {
		return nil
	}
	return n
}

const dateTimeForm = "2006-01-02T15:04:05.000Z"

// dateTime holds epoch milliseconds inside and is RFC 3339 outside.
var dateTime = graphql.NewScalar(graphql.ScalarConfig{
	Name: "DateTime", Description: "A moment in RFC 3339 form, answered in UTC with milliseconds: 2026-01-01T00:00:00.000Z.",
	Serialize: func(v any) any {
		if ms, ok := v.(int64); ok && ms > 0 {
			return time.UnixMilli(ms).UTC().Format(dateTimeForm)
		}
		return nil
	},
	ParseValue:   func(v any) any { return parseDateTime(v) },
	ParseLiteral: func(v ast.Value) any { return parseDateTime(v.GetValue()) },
})

func parseDateTime(v any) any {
	text, _ := v.(string)
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return nil
	}
	return t.UnixMilli()
}

// jsonValue is a payload, answered digit by digit as it is stored.
var jsonValue = graphql.NewScalar(graphql.ScalarConfig{
	Name: "JSON", Description: "Any JSON value, in the canonical form in which it is stored.",
	Serialize:    func(v any) any { return v },
	ParseValue:   func(any) any { return nil },
	ParseLiteral: func(ast.Value) any { return nil },
})

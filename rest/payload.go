package rest

import (
	"context"

	"github.com/talenttrust/auditledger/ledger"
)

// What a source sees of payloads.
const (
	payloadAll      = "true"
	payloadRedacted = "redacted"
	payloadNone     = "false"
)

// ShowPayload returns what the sender of the request in ctx may see of a payload, nil where it is not
// to see it at all, and the JSON pointers of what is withheld: "" is the whole payload. A context that is
// not of a request of this service sees nothing.
func ShowPayload(ctx context.Context, payload []byte) (shown []byte, withheld []string) {
	if payload == nil {
		return nil, nil
	}
	right := payloadNone
	if x := exchangeOf(ctx); x != nil && x.caller.source != nil {
		right = x.caller.payloads
	}
	switch right {
	case payloadAll:
		return payload, nil
	case payloadRedacted:
		if shown, withheld, err := ledger.RedactPayload(payload); err == nil {
			return shown, withheld
		}
	}
	return nil, []string{""}
}

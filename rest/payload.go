package rest

import (
	"context"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/projections"
)

// What a source sees of payloads.
const (
	payloadAll      = "true"
	payloadRedacted = "redacted"
	payloadNone     = "false"
)

// ShowPayload makes a function that returns what the sender of the request in ctx may see of an entry's
// payload, nil where it is not to see it at all, and the JSON pointers of what is withheld: "" is the
// whole payload. What a source of the sources file is shown is recorded in l; with an error it is not
// shown. A context that is not of a request of this service sees nothing.
func ShowPayload(l *ledger.Ledger) func(ctx context.Context, e *projections.Entry, payload []byte) (shown []byte, withheld []string, err error) {
	return func(ctx context.Context, e *projections.Entry, payload []byte) ([]byte, []string, error) {
		if payload == nil {
			return nil, nil, nil
		}
		var who identity
		if x := exchangeOf(ctx); x != nil {
			who = x.caller
		}
		shown, withheld := who.view(payload)
		if shown == nil || who.scheme == "" { // nothing to record, or nobody by name
			return shown, withheld, nil
		}
		if err := l.RecordAccess(who.name(), e.ContractID, e.Revision); err != nil {
			return nil, nil, err
		}
		return shown, withheld, nil
	}
}

// view is what may be seen of a payload, and what may not.
func (i *identity) view(payload []byte) (shown []byte, withheld []string) {
	switch i.payloads {
	case payloadAll:
		return payload, nil
	case payloadRedacted:
		if shown, withheld, err := ledger.RedactPayload(payload); err == nil {
			return shown, withheld
		}
	}
	return nil, []string{""}
}

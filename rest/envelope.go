package rest

import (
	"context"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
)

// uuidLength is that of the only form of a UUID that is taken: 8-4-4-4-12 hex digits.
const uuidLength = 36

// postEnvelope makes the handler of raw envelopes. They are taken from sources that sign and from no
// other: a token is not looked at. The order of checks is the signature, the role, the id, the body.
func (s *server) postEnvelope() http.HandlerFunc {
	return s.handle(func(c *call) (int, any, error) {
		if !s.Auth.canSign() {
			return 0, nil, &Problem{Code: "no_signing_source", Detail: "no source of this service signs its requests, and envelopes are not taken unsigned", RetryAfter: 60}
		}
		if schemeOf(c.Header) == "" {
			return 0, nil, unauthenticated("no_credentials")
		}
		return s.withBody(c, true, s.envelope)
	})
}

// envelope stores one envelope under the id that its signature covers. The status is that of the event.
func (s *server) envelope(ctx context.Context, c *call, body []byte) (int, any, error) {
	id, err := envelopeID(c)
	if err == nil {
		err = checkObject(body)
	}
	if err == nil {
		err = s.spend(c.caller.events, 1, "events")
	}
	if err != nil {
		return 0, nil, err
	}
	result, err := s.Ledger.IngestEnvelope(ctx, c.request(), id, body)
	if err != nil {
		return 0, nil, err
	}
	return s.single(result)
}

// envelopeID is the event id of a signed request, in lower case: a UUID is the same in both.
func envelopeID(c *call) (string, error) {
	name := HeaderEventID
	if c.caller.scheme == SchemeWebhook {
		name = HeaderWebhookID
	}
	text := c.Header.Get(name)
	id, err := uuid.Parse(text)
	if err != nil || len(text) != uuidLength {
		return "", problem("invalid_request", name+" must be a UUID such as 1e6e0c10-8204-53b6-9664-9b4d6f510160")
	}
	return id.String(), nil
}

// checkObject wants a body to be one JSON object; what is in it the ledger judges.
func checkObject(body []byte) error {
	err := readObject(body, func(d *jsontext.Decoder, _ []byte, _ string) error { return d.SkipValue() })
	if err != nil {
		return jsonProblem(err)
	}
	return nil
}

package outbox

import (
	"net/http"
	"time"

	"github.com/talenttrust/auditledger/rest"
)

// Auth puts credentials on a request. It is called anew for each attempt: id names the message
// (an envelope's event id, else a new UUID), at is now, body is what is sent.
type Auth func(h http.Header, id string, at time.Time, body []byte)

// NoAuth sends without credentials, which a ledger without sources takes from its own machine only.
func NoAuth(http.Header, string, time.Time, []byte) {}

// Bearer sends a bearer token.
func Bearer(token string) Auth {
	return func(h http.Header, _ string, _ time.Time, _ []byte) { h.Set("Authorization", "Bearer "+token) }
}

// Webhook signs as Standard Webhooks do. keyID says which key of the source it is; it may be "".
func Webhook(keyID string, secret rest.Secret) Auth {
	return func(h http.Header, id string, at time.Time, body []byte) {
		setKeyID(h, keyID)
		rest.SetWebhook(h, secret, id, at, body)
	}
}

// Legacy signs with HMAC-SHA256 over id.body in X-Event-Id and X-Signature.
func Legacy(keyID string, secret rest.Secret) Auth {
	return func(h http.Header, id string, _ time.Time, body []byte) {
		setKeyID(h, keyID)
		rest.SetLegacy(h, secret, id, body)
	}
}

func setKeyID(h http.Header, keyID string) {
	if keyID != "" {
		h.Set(rest.HeaderKeyID, keyID)
	}
}

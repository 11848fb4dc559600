package ledger

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
)

// Signing says how a source signs its events: in the event's member signature, the base64 (RFC 4648
// section 4, with padding) of an Ed25519 signature or of an HMAC-SHA256 over the event's signed form.
type Signing struct {
	Required bool // an event without a signature is refused
	Keys     []SigningKey
}

// SigningKey has one of the two kinds of keys.
type SigningKey struct {
	ID      string // stored with what it verified
	Ed25519 ed25519.PublicKey
	HMAC    []byte
}

// VerdictVerified is what a record says of its event's own signature when a key of the source
// verified it. A signature without a verdict was not checked: its source had no keys.
const VerdictVerified = "verified"

// SignedForm appends what the signature of an event is made over: the canonical JSON of the event
// {contractId, contractType, eventId, payload, sequence, timestamp}, the payload in canonical form.
func SignedForm(b []byte, ev *Event) []byte {
	h := Header{ContractID: ev.ContractID, ContractType: ev.ContractType, EventID: ev.EventID, Sequence: ev.Sequence, Timestamp: ev.Timestamp}
	return appendEvent(b, &h, `"payload":`, ev.Payload, "")
}

// check says which key verified the event's signature; "" where there is none to be verified. An event
// that needed cleaning is not what was signed.
func (s *Signing) check(ev *Event) (keyID string, refused *Rejection) {
	switch {
	case s == nil || ev.Signature == "" && !s.Required:
		return "", nil
	case ev.Signature == "":
		return "", reject(CodeInvalidSignature, "the source must sign its events, and this one has no signature", nil)
	case ev.Sanitized:
		return "", reject(CodeInvalidSignature, "the event holds characters that are not stored, so its signature cannot be verified", nil)
	}
	signature, err := base64.StdEncoding.Strict().DecodeString(ev.Signature)
	if err == nil {
		text := SignedForm(make([]byte, 0, len(ev.Payload)+512), ev)
		for i := range s.Keys {
			if s.Keys[i].verifies(text, signature) {
				return s.Keys[i].ID, nil
			}
		}
	}
	return "", reject(CodeInvalidSignature, "the event's signature is not one of the source's keys over this event", nil)
}

func (k *SigningKey) verifies(text, signature []byte) bool {
	if k.Ed25519 != nil {
		return ed25519.Verify(k.Ed25519, text, signature)
	}
	if len(k.HMAC) == 0 {
		return false
	}
	mac := hmac.New(sha256.New, k.HMAC)
	mac.Write(text)
	return hmac.Equal(signature, mac.Sum(nil))
}

package rest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Headers of a signed request. The first three are those of Standard Webhooks, the next two
// those of the legacy scheme; X-Key-Id names the key of a source that has several.
const (
	HeaderWebhookID        = "Webhook-Id"
	HeaderWebhookTimestamp = "Webhook-Timestamp"
	HeaderWebhookSignature = "Webhook-Signature"
	HeaderEventID          = "X-Event-Id"
	HeaderSignature        = "X-Signature"
	HeaderKeyID            = "X-Key-Id"
)

// SignatureTolerance is how far a Standard Webhooks timestamp may lie from our clock, both ways.
const SignatureTolerance = 300 * time.Second

// ErrSignature is what every refused signature wraps; the text around it says what was wrong and
// never holds a secret, the expected signature or a part of the body.
var ErrSignature = errors.New("signature refused")

// Secret is a shared HMAC key. It prints as [REDACTED], in a log as well as through fmt.
type Secret struct{ key []byte }

const redactedSecret = "[REDACTED]"

func (s Secret) String() string       { return redactedSecret }
func (s Secret) GoString() string     { return redactedSecret }
func (s Secret) LogValue() slog.Value { return slog.StringValue(redactedSecret) }

// IsZero reports whether the secret was never set.
func (s Secret) IsZero() bool { return len(s.key) == 0 }

// ParseSecret reads a Standard Webhooks secret: "whsec_" and 24 to 64 bytes in base64.
func ParseSecret(text string) (Secret, error) {
	encoded, ok := strings.CutPrefix(text, "whsec_")
	if !ok {
		return Secret{}, errors.New("secret: want whsec_ and base64")
	}
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return Secret{}, errors.New("secret: what follows whsec_ is not base64")
	}
	if len(key) < 24 || len(key) > 64 {
		return Secret{}, fmt.Errorf("secret: %d bytes, want 24 to 64", len(key))
	}
	return Secret{key}, nil
}

// RawSecret takes the bytes of text as they are, as the legacy scheme does.
func RawSecret(text string) (Secret, error) {
	if text == "" {
		return Secret{}, errors.New("secret: is empty")
	}
	return Secret{[]byte(text)}, nil
}

// SignWebhook returns the value of webhook-signature for a message: "v1," and the base64
// HMAC-SHA256 over id.timestamp.body (Standard Webhooks 1.0.0). The timestamp is at in seconds and
// goes into webhook-timestamp; id goes into webhook-id and holds no full stop.
func SignWebhook(secret Secret, id string, at time.Time, body []byte) string {
	sum := sumWebhook(secret, id, strconv.FormatInt(at.Unix(), 10), body)
	return "v1," + base64.StdEncoding.EncodeToString(sum)
}

// SetWebhook signs body and sets the three headers of Standard Webhooks.
func SetWebhook(h http.Header, secret Secret, id string, at time.Time, body []byte) {
	h.Set(HeaderWebhookID, id)
	h.Set(HeaderWebhookTimestamp, strconv.FormatInt(at.Unix(), 10))
	h.Set(HeaderWebhookSignature, SignWebhook(secret, id, at, body))
}

// VerifyWebhook returns nil when one of the v1 signatures in h was made over body with one of
// secrets, at most SignatureTolerance away from now; else an error that wraps ErrSignature. An id
// with a full stop is refused: it would let one signature stand for two messages.
func VerifyWebhook(secrets []Secret, h http.Header, body []byte, now time.Time) error {
	id, err := oneHeader(h, HeaderWebhookID)
	if err != nil {
		return err
	}
	if strings.Contains(id, ".") {
		return refuse("webhook-id holds a full stop")
	}
	stamp, err := oneHeader(h, HeaderWebhookTimestamp)
	if err != nil {
		return err
	}
	signatures, err := oneHeader(h, HeaderWebhookSignature)
	if err != nil {
		return err
	}
	if err := checkStamp(stamp, now); err != nil {
		return err
	}
	for _, signature := range strings.Fields(signatures) {
		encoded, ok := strings.CutPrefix(signature, "v1,")
		if !ok {
			continue
		}
		got, err := base64.StdEncoding.Strict().DecodeString(encoded)
		if err == nil && matches(secrets, got, func(s Secret) []byte { return sumWebhook(s, id, stamp, body) }) {
			return nil
		}
	}
	return refuse("no v1 signature in webhook-signature matches")
}

// SignLegacy returns the value of X-Signature: lower hex HMAC-SHA256 over eventID.body, where
// eventID goes into X-Event-Id.
func SignLegacy(secret Secret, eventID string, body []byte) string {
	return hex.EncodeToString(sumLegacy(secret, eventID, body))
}

// SetLegacy signs body and sets the two headers of the legacy scheme.
func SetLegacy(h http.Header, secret Secret, eventID string, body []byte) {
	h.Set(HeaderEventID, eventID)
	h.Set(HeaderSignature, SignLegacy(secret, eventID, body))
}

// VerifyLegacy returns nil when X-Signature in h is exactly 64 lower hex digits and was made over
// X-Event-Id and body with one of secrets; else an error that wraps ErrSignature. Whether the id
// is a UUID is the caller's to check, afterwards.
func VerifyLegacy(secrets []Secret, h http.Header, body []byte) error {
	id, err := oneHeader(h, HeaderEventID)
	if err != nil {
		return err
	}
	signature, err := oneHeader(h, HeaderSignature)
	if err != nil {
		return err
	}
	got, err := hex.DecodeString(signature)
	if err != nil || len(got) != sha256.Size || signature != strings.ToLower(signature) {
		return refuse("X-Signature is not 64 lower hex digits")
	}
	if !matches(secrets, got, func(s Secret) []byte { return sumLegacy(s, id, body) }) {
		return refuse("X-Signature does not match")
	}
	return nil
}

func sumWebhook(secret Secret, id, stamp string, body []byte) []byte {
	return sum(secret, []byte(id), []byte("."), []byte(stamp), []byte("."), body)
}

func sumLegacy(secret Secret, eventID string, body []byte) []byte {
	return sum(secret, []byte(eventID), []byte("."), body)
}

func sum(secret Secret, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, secret.key)
	for _, part := range parts {
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// matches tries every secret, also after a hit, so that its time does not tell which one it was.
func matches(secrets []Secret, got []byte, want func(Secret) []byte) bool {
	hit := false
	for _, s := range secrets {
		if !s.IsZero() && hmac.Equal(got, want(s)) {
			hit = true
		}
	}
	return hit
}

func checkStamp(stamp string, now time.Time) error {
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || strconv.FormatInt(seconds, 10) != stamp {
		return refuse("webhook-timestamp is not a whole number of seconds")
	}
	limit := int64(SignatureTolerance / time.Second)
	switch at := now.Unix(); {
	case seconds < at-limit:
		return refuse("webhook-timestamp is more than 300 s old")
	case seconds > at+limit:
		return refuse("webhook-timestamp is more than 300 s ahead")
	}
	return nil
}

// oneHeader returns the only value of a header. Several values are refused: another reader of the
// request might have looked at another one.
func oneHeader(h http.Header, name string) (string, error) {
	switch values := h.Values(name); {
	case len(values) == 0 || len(values) == 1 && values[0] == "":
		return "", refuse(strings.ToLower(name) + " is missing")
	case len(values) > 1:
		return "", refuse(strings.ToLower(name) + " is given more than once")
	default:
		return values[0], nil
	}
}

func refuse(why string) error { return fmt.Errorf("%w: %s", ErrSignature, why) }

package ledger

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/talenttrust/auditledger/ledger/canonical"
)

// Codes of rejected events. They are part of the public contract.
const (
	CodeInvalidEvent     = "invalid_event"
	CodeInvalidPayload   = "invalid_payload"
	CodeDuplicateMember  = "duplicate_member"
	CodePayloadTooLarge  = "payload_too_large"
	CodeTooOld           = "event_too_old"
	CodeInFuture         = "event_in_future"
	CodeTypeNotAllowed   = "contract_type_not_allowed"
	CodeInvalidSignature = "invalid_signature"
	CodePayloadConflict  = "IDEMPOTENCY_PAYLOAD_CONFLICT"
	CodeConflict         = "conflict" // the same without the payload integrity check
	CodeContractClosed   = "contract_closed"
)

// Codes are all of them.
var Codes = []string{CodeInvalidEvent, CodeInvalidPayload, CodeDuplicateMember, CodePayloadTooLarge, CodeTooOld, CodeInFuture,
	CodeTypeNotAllowed, CodeInvalidSignature, CodePayloadConflict, CodeConflict, CodeContractClosed}

// Rejection says why an event is not accepted: a code for programs, a sentence for people, and all
// that is wrong, by path. None of it holds a value of the payload.
type Rejection struct {
	Code   string
	Reason string
	Errors []FieldError
}

// maxErrors bounds what one rejection says, so that a hostile event cannot make its record large.
const maxErrors = 100

func reject(code, reason string, errs []FieldError) *Rejection {
	if n := len(errs); n > maxErrors {
		errs = append(errs[:maxErrors:maxErrors], FieldError{Message: fmt.Sprintf("and %d more", n-maxErrors)})
	}
	for i := range errs {
		errs[i].Path = shorten(errs[i].Path)
	}
	return &Rejection{code, reason, errs}
}

// sentence says the first few errors in one line.
func sentence(errs []FieldError) string {
	const most = 5
	var parts []string
	for _, e := range errs[:min(len(errs), most)] {
		parts = append(parts, strings.TrimPrefix(shorten(e.Path), "/")+" "+e.Message)
	}
	if n := len(errs) - most; n > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", n))
	}
	return strings.Join(parts, "; ")
}

// maxPath is the longest path shown; the names in it are the sender's and may be of any length.
const maxPath = 300

func shorten(path string) string {
	if len(path) <= maxPath {
		return path
	}
	return string([]rune(path[:maxPath])) + "…"
}

// rejectText says why a text is not a canonical event.
func rejectText(err error) *Rejection {
	var dup *canonical.DuplicateNameError
	one := func(path, message string) []FieldError { return []FieldError{{Path: path, Message: message}} }
	switch {
	case errors.As(err, &dup):
		return reject(CodeDuplicateMember, "an object in the event names a member twice", one(dup.Pointer, "is there twice"))
	case errors.Is(err, canonical.ErrDepth):
		return reject(CodeInvalidEvent, fmt.Sprintf("the payload nests deeper than %d levels", canonical.MaxDepth), one("/payload", "nests too deeply"))
	case errors.Is(err, canonical.ErrNumber):
		return reject(CodeInvalidEvent, fmt.Sprintf("a number in the payload is longer than %d characters", canonical.MaxNumberLen), one("/payload", "holds a number that is too long"))
	case errors.Is(err, canonical.ErrNotObject):
		return reject(CodeInvalidEvent, "the event is not a JSON object", one("", "must be an object"))
	}
	return reject(CodeInvalidEvent, "the event is not valid JSON", one("", "must be valid JSON"))
}

// outOfTime is the age rule: not older than maxAge, exactly that old is fine; not more than maxSkew ahead.
func outOfTime(timestamp, now int64, maxAge, maxSkew time.Duration) *Rejection {
	switch {
	case now-timestamp > maxAge.Milliseconds():
		return reject(CodeTooOld, fmt.Sprintf("the event's time %s is more than %s before ours, %s%s",
			showTime(timestamp), maxAge, showTime(now), secondsHint(timestamp, now)), nil)
	case timestamp-now > maxSkew.Milliseconds():
		return reject(CodeInFuture, fmt.Sprintf("the event's time %s is more than %s ahead of ours, %s",
			showTime(timestamp), maxSkew, showTime(now)), nil)
	}
	return nil
}

// secondsHint speaks up when the timestamp makes sense as seconds: between 2001 and a day from now.
func secondsHint(timestamp, now int64) string {
	if timestamp > 1e9 && timestamp < now/1000+24*60*60 {
		return "; it looks like seconds, milliseconds are expected"
	}
	return ""
}

func showTime(ms int64) string {
	if t := time.UnixMilli(ms).UTC(); t.Year() < 10000 {
		return t.Format("2006-01-02T15:04:05.000Z")
	}
	return fmt.Sprintf("%d", ms)
}

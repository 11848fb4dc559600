package outbox

import (
	"fmt"
	"strings"
)

// verdict is what an HTTP status means for the event it is about.
type verdict int

const (
	retry      verdict = iota // later, with backoff
	retryAlert                // later, and a person has to do something: events stay queued
	done                      // the ledger has it on disk
	bury                      // the ledger will never take it as it is
	park                      // the ledger will not take it from us now; others go on
)

// verdicts is the one table from status to verdict, for a whole request and for one item of a
// batch answer. What it does not name is retried with an alert, so that an answer nobody foresaw
// loses nothing. A 2xx other than 200 and 201 does not mean "on disk".
var verdicts = []struct {
	from, to      int
	request, item verdict
}{
	{200, 201, done, done},
	{300, 399, retryAlert, retryAlert}, // redirects are not followed: a signed event goes to no other place
	{400, 400, bury, bury},
	{401, 401, retryAlert, bury}, // request: our credentials; item: the event's own signature
	{403, 403, retryAlert, park}, // request: our rights; item: this contract type or contract
	{404, 405, retryAlert, retryAlert},
	{408, 408, retry, retry},
	{409, 410, bury, bury},
	{413, 413, bury, bury},
	{415, 415, bury, bury},
	{422, 422, bury, bury},
	{425, 425, retry, retry},
	{429, 429, retry, retry},
	{500, 599, retry, retry},
}

func classify(status int) (request, item verdict) {
	for _, row := range verdicts {
		if row.from <= status && status <= row.to {
			return row.request, row.item
		}
	}
	return retryAlert, retryAlert
}

// result is one event's outcome in the ledger's answer.
type result struct {
	DeduplicationKey *string `json:"deduplicationKey"`
	Status           string  `json:"status"`
	Code             string  `json:"code"`
	HTTPStatus       int     `json:"httpStatus"`
	Reason           string  `json:"reason"`
	Errors           []struct {
		Path    string `json:"path"`
		Message string `json:"message"`
	} `json:"errors"`
}

// verdict judges one item. A rejection without a status is one all the same.
func (r result) verdict() verdict {
	switch {
	case r.Status == "accepted" || r.Status == "duplicate":
		return done
	case r.Status != "rejected":
		return retryAlert
	case r.HTTPStatus == 0:
		return bury
	}
	_, item := classify(r.HTTPStatus)
	if item == done {
		return retryAlert // rejected with 200: not an answer of a ledger
	}
	return item
}

// maxReason bounds what is kept of the ledger's explanation.
const maxReason = 2000

func (r result) reason() Reason {
	text := r.Reason
	for _, e := range r.Errors {
		if !strings.Contains(text, e.Message) { // the reason often says it already
			text += fmt.Sprintf("; %s %s", e.Path, e.Message)
		}
	}
	if len(text) > maxReason {
		text = text[:maxReason]
	}
	return Reason{Status: r.HTTPStatus, Code: r.Code, Text: text}
}

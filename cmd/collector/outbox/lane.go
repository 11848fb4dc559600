package outbox

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/talenttrust/auditledger/ledger/canonical"
	"github.com/talenttrust/auditledger/rest"
)

// lane sends what comes in, one request after the other, until in is closed and empty or ctx ends.
func (s *Sender) lane(ctx context.Context, in <-chan Pending) {
	var queue []Pending
	for {
		if queue = s.fill(ctx, in, queue); len(queue) == 0 || ctx.Err() != nil {
			return
		}
		var batch []Pending
		batch, queue = take(queue, s.cfg.BatchEvents, s.cfg.BatchBytes)
		s.deliver(ctx, batch)
	}
}

// fill waits for an event when the queue is empty, and then a little for more. It returns an empty
// queue when there will be no more.
func (s *Sender) fill(ctx context.Context, in <-chan Pending, queue []Pending) []Pending {
	if len(queue) == 0 {
		select {
		case p, ok := <-in:
			if !ok {
				return nil
			}
			queue = append(queue, p)
		case <-ctx.Done():
			return nil
		}
	}
	if queue[0].Form == FormEnvelope {
		return queue // goes alone
	}
	linger := time.NewTimer(s.cfg.Linger)
	defer linger.Stop()
	for len(queue) < s.cfg.BatchEvents {
		select {
		case p, ok := <-in:
			if !ok {
				return queue
			}
			queue = append(queue, p)
		case <-linger.C:
			return queue
		case <-ctx.Done():
			return queue
		}
	}
	return queue
}

// take splits the next request off the queue: the first event and all that can go with it, which
// is those of its contract type, or nothing for an envelope. Once an event of a contract stays
// behind, all later ones of that contract do, so that its order is kept.
func take(queue []Pending, maxEvents, maxBytes int) (batch, left []Pending) {
	first := queue[0]
	if first.Form == FormEnvelope {
		return queue[:1], queue[1:]
	}
	var behind map[string]bool
	size := 0
	for _, p := range queue {
		fits := p.Form == first.Form && p.Type == first.Type && len(batch) < maxEvents && (len(batch) == 0 || size+len(p.Body) <= maxBytes)
		if fits && !behind[p.ContractID] {
			batch, size = append(batch, p), size+len(p.Body)+1
			continue
		}
		if behind == nil {
			behind = map[string]bool{}
		}
		behind[p.ContractID] = true
		left = append(left, p)
	}
	return batch, left
}

// deliver sends a batch until every event of it is settled or ctx ends.
func (s *Sender) deliver(ctx context.Context, batch []Pending) {
	for n := 0; len(batch) > 0 && ctx.Err() == nil; n++ {
		a := s.attempt(ctx, batch)
		s.note(a)
		if a.verdict == bury && len(batch) > 1 {
			// One of them is to blame, or all of them together are too large: halve it.
			half := len(batch) / 2
			s.deliver(ctx, batch[:half])
			s.deliver(ctx, batch[half:])
			return
		}
		settled, again := a.settle(batch)
		if len(settled) > 0 {
			s.results <- settled
		}
		if batch = again; len(batch) == 0 {
			return
		}
		if len(settled) > 0 {
			n = 0
		}
		pause(ctx, max(backoff(s.cfg.BackoffBase, s.cfg.BackoffMax, n), a.retryAfter))
	}
}

// answer is what the ledger said to one request, or that it said nothing.
type answer struct {
	verdict    verdict
	items      []result // of a batch that is done
	reason     Reason   // of a request that is not
	alert      string   // kind to raise
	retryAfter time.Duration
}

// settle splits a batch into what the answer settles and what is to be sent again.
func (a answer) settle(batch []Pending) (settled []Settlement, again []Pending) {
	for i, p := range batch {
		verdict, reason := a.verdict, a.reason
		if a.verdict == done {
			verdict, reason = a.items[i].verdict(), a.items[i].reason()
		}
		switch verdict {
		case done:
			settled = append(settled, Settlement{p, Sent, Reason{Code: a.items[i].Status}})
		case bury:
			settled = append(settled, Settlement{p, Dead, reason})
		case park:
			settled = append(settled, Settlement{p, Parked, reason})
		default:
			again = append(again, p)
		}
	}
	return settled, again
}

// note turns an answer into metrics and alerts, and into a line in the log when it is another one
// than before.
func (s *Sender) note(a answer) {
	name := map[verdict]string{done: "done", retry: "retry", retryAlert: "refused", bury: "rejected", park: "rejected"}[a.verdict]
	s.metrics.requests.WithLabelValues(name).Inc()
	switch a.verdict {
	case retryAlert:
		s.cfg.Alerts.Raise(a.alert, 1, fmt.Sprintf("%d %s %s", a.reason.Status, a.reason.Code, a.reason.Text))
	case done, bury, park: // the ledger has let us in and has looked at it
		s.cfg.Alerts.Clear(AlertRefused)
		s.cfg.Alerts.Clear(AlertAnswer)
	}
	trouble := ""
	if a.verdict == retry || a.verdict == retryAlert {
		trouble = fmt.Sprint(a.reason.Status, " ", a.reason.Code)
	}
	s.mu.Lock()
	changed := trouble != s.trouble
	s.trouble = trouble
	s.mu.Unlock()
	level := slog.LevelDebug
	if changed {
		level = slog.LevelInfo
	}
	if trouble == "" {
		s.cfg.Log.Log(context.Background(), level, "the ledger takes events")
		return
	}
	s.cfg.Log.Log(context.Background(), level, "the ledger does not take events now; sending again", "status", a.reason.Status, "code", a.reason.Code, "reason", a.reason.Text, "retry_after", a.retryAfter)
}

// maxAnswer bounds what is read of an answer.
const maxAnswer = 16 << 20

// attempt sends a batch once. It goes on for StopGrace when ctx ends meanwhile: the answer is worth
// waiting for a little.
func (s *Sender) attempt(ctx context.Context, batch []Pending) answer {
	attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.AttemptTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(s.cfg.StopGrace, cancel) })
	defer stop()

	start := time.Now()
	defer func() { s.metrics.seconds.Observe(time.Since(start).Seconds()) }()
	req, err := s.request(attempt, batch)
	if err != nil {
		return answer{verdict: retryAlert, alert: AlertRefused, reason: Reason{Text: err.Error()}}
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return answer{verdict: retry, reason: Reason{Text: err.Error()}}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return answer{verdict: retry, reason: Reason{Status: resp.StatusCode, Text: "the answer broke off: " + err.Error()}}
	}
	a := judge(resp.StatusCode, body, batch)
	a.retryAfter = retryAfter(resp.Header, time.Now())
	return a
}

// request builds one attempt: every one is signed anew.
func (s *Sender) request(ctx context.Context, batch []Pending) (*http.Request, error) {
	first := batch[0]
	path, id, body := "/api/v1/events", uuid.NewString(), []byte(nil)
	if first.Form == FormEnvelope {
		path, id, body = "/api/v1/envelopes", first.EventID, first.Body
	} else {
		body = batchBody(batch)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.cfg.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, application/problem+json")
	req.Header.Set("User-Agent", "auditledger-collector")
	if first.Form == FormEnvelope {
		req.Header.Set(rest.HeaderEventID, id)
	}
	s.cfg.Auth(req.Header, id, time.Now(), body)
	return req, nil
}

func batchBody(batch []Pending) []byte {
	size := 64 + len(batch[0].Type)
	for _, p := range batch {
		size += len(p.Body) + 1
	}
	body := append(make([]byte, 0, size), `{"contractType":`...)
	body = append(canonical.AppendString(body, batch[0].Type), `,"events":[`...)
	for i, p := range batch {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, p.Body...)
	}
	return append(body, "]}"...)
}

// judge reads an answer. What is not an answer of a ledger settles nothing.
func judge(status int, body []byte, batch []Pending) answer {
	request, _ := classify(status)
	if request != done {
		return refusal(status, request, body)
	}
	if batch[0].Form == FormEnvelope {
		return judgeEnvelope(status, body)
	}
	var got struct {
		Results []result `json:"results"`
	}
	if err := json.Unmarshal(body, &got); err != nil {
		return strange(status, "the answer is not JSON")
	}
	if len(got.Results) != len(batch) {
		return strange(status, fmt.Sprintf("the answer has %d results for %d events", len(got.Results), len(batch)))
	}
	for i, r := range got.Results {
		switch key := r.DeduplicationKey; {
		case r.Status != "accepted" && r.Status != "duplicate" && r.Status != "rejected":
			return strange(status, "a result is neither accepted nor duplicate nor rejected")
		case r.Status != "rejected" && key != nil && *key != batch[i].Key():
			return strange(status, "the results are not in the order of the events")
		}
	}
	return answer{verdict: done, items: got.Results}
}

func judgeEnvelope(status int, body []byte) answer {
	outcome := result{Status: "accepted"}
	if status == http.StatusOK {
		outcome.Status = "duplicate"
	}
	if len(bytes.TrimSpace(body)) > 0 {
		if err := json.Unmarshal(body, &outcome); err != nil || outcome.verdict() != done {
			return strange(status, "the answer does not say that the envelope is stored")
		}
	}
	return answer{verdict: done, items: []result{outcome}}
}

func strange(status int, why string) answer {
	return answer{verdict: retryAlert, alert: AlertAnswer, reason: Reason{Status: status, Text: why}}
}

// refusal reads the code and the explanation of a problem+json or of a single result.
func refusal(status int, v verdict, body []byte) answer {
	var p struct {
		result
		Title  string `json:"title"`
		Detail string `json:"detail"`
		Status any    `json:"status"` // a number in a problem, a word in a result
	}
	if json.Unmarshal(body, &p) != nil {
		p.result = result{Reason: http.StatusText(status)}
	}
	for _, text := range []string{p.Detail, p.Title} {
		if p.Reason == "" {
			p.Reason = text
		}
	}
	p.HTTPStatus = status
	if status == http.StatusForbidden && p.Code == "contract_type_not_allowed" {
		v = park // of a single event: it is about this event, not about our credentials
	}
	return answer{verdict: v, alert: AlertRefused, reason: p.reason()}
}

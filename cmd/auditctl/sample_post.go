package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

const (
	postTries    = 12
	postTimeout  = time.Minute
	firstBackoff = 250 * time.Millisecond
	maxBackoff   = 30 * time.Second
	maxPause     = 5 * time.Minute // whatever Retry-After says
)

// poster sends batches one after the other and adds up what the service answers.
type poster struct {
	url, token string
	total      int // events to be sent, for the progress line
	log        io.Writer
	client     *http.Client
	wait       func(ctx context.Context, d time.Duration) error

	started, shown time.Time
	sent           int // events answered
	resent         int // batches sent again although the service may have stored some of their events
	accepted       int
	duplicates     int
	rejected       int
	byCode         map[string]int
}

func newPoster(base, token string, total int, log io.Writer) *poster {
	return &poster{
		url: strings.TrimSuffix(base, "/") + "/api/v1/events", token: token, total: total, log: log,
		client: &http.Client{Timeout: postTimeout}, wait: wait, byCode: make(map[string]int),
	}
}

// batchAnswer is what is read of the answer to a batch.
type batchAnswer struct {
	Results []struct {
		Status string `json:"status"`
		Code   string `json:"code"`
	} `json:"results"`
	Summary struct {
		Accepted   int `json:"accepted"`
		Rejected   int `json:"rejected"`
		Duplicates int `json:"duplicates"`
	} `json:"summary"`
}

// refusal is an answer other than 200.
type refusal struct {
	status     int
	retryAfter string
	detail     string // the beginning of the body
}

func (e *refusal) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.detail) }

// temporary reports whether the same batch may be taken later.
func (e *refusal) temporary() bool {
	return e.status == http.StatusTooManyRequests || e.status == http.StatusRequestTimeout || e.status >= 500
}

// send posts one batch until the service has answered it, and books the answer. A busy service (429,
// 503) and a lost connection are tried again, after Retry-After or a delay that doubles.
func (p *poster) send(ctx context.Context, batch []byte, events int) error {
	if p.started.IsZero() {
		p.started = time.Now()
		p.shown = p.started
	}
	delay := firstBackoff
	for try := 1; ; try++ {
		answer, err := p.post(ctx, batch)
		if err == nil {
			return p.book(answer, events)
		}
		var refused *refusal
		isRefusal := errors.As(err, &refused)
		if ctx.Err() != nil || try == postTries || isRefusal && !refused.temporary() {
			return err
		}
		pause := delay
		if isRefusal {
			pause = refused.pause(delay)
		}
		if !isRefusal || refused.status != http.StatusTooManyRequests {
			p.resent++
		}
		fmt.Fprintf(p.log, "%v; trying again in %v\n", err, pause.Round(time.Millisecond))
		if err := p.wait(ctx, pause); err != nil {
			return err
		}
		delay = min(2*delay, maxBackoff)
	}
}

func (p *poster) post(ctx context.Context, batch []byte) (*batchAnswer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(batch))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if p.token != "" {
		req.Header.Set("Authorization", "Bearer "+p.token)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		detail, _ := io.ReadAll(io.LimitReader(resp.Body, 300)) // what is there helps, an error does not
		return nil, &refusal{resp.StatusCode, resp.Header.Get("Retry-After"), strings.TrimSpace(string(detail))}
	}
	answer := new(batchAnswer)
	if err := json.UnmarshalRead(resp.Body, answer); err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	return answer, nil
}

// pause returns how long Retry-After (RFC 9110, section 10.2.3: seconds or a date) asks to wait,
// otherwise when it does not say.
func (e *refusal) pause(otherwise time.Duration) time.Duration {
	if seconds, err := strconv.Atoi(e.retryAfter); err == nil && seconds >= 0 {
		return time.Duration(min(seconds, int(maxPause/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(e.retryAfter); err == nil {
		return min(max(0, time.Until(at)), maxPause)
	}
	return otherwise
}

// book adds an answer to the totals.
func (p *poster) book(answer *batchAnswer, events int) error {
	if len(answer.Results) != events {
		return fmt.Errorf("the service answered %d of %d events", len(answer.Results), events)
	}
	for _, result := range answer.Results {
		if result.Status == "rejected" {
			p.byCode[result.Code]++
		}
	}
	p.accepted += answer.Summary.Accepted
	p.duplicates += answer.Summary.Duplicates
	p.rejected += answer.Summary.Rejected
	p.sent += events
	p.progress(false)
	return nil
}

// progress writes a line at most once a second, or at the end.
func (p *poster) progress(end bool) {
	now := time.Now()
	if !end && now.Sub(p.shown) < time.Second {
		return
	}
	p.shown = now
	elapsed := now.Sub(p.started)
	rate := float64(p.sent) / max(elapsed.Seconds(), 1e-9)
	left := time.Duration(float64(p.total-p.sent) / rate * float64(time.Second))
	fmt.Fprintf(p.log, "%d of %d events, %.0f per second, %v left\n", p.sent, p.total, rate, left.Round(time.Second))
}

// differences lists where the answers do not add up to the summary.
func (p *poster) differences(want *sampleSummary) []string {
	var list []string
	compare := func(name string, got, want int) {
		if got != want {
			list = append(list, fmt.Sprintf("%s %d, expected %d", name, got, want))
		}
	}
	compare("accepted", p.accepted, want.Accepted)
	compare("duplicates", p.duplicates, want.Duplicates)
	compare("rejected", p.rejected, want.Rejected)
	codes := maps.Clone(want.ByCode)
	maps.Copy(codes, p.byCode)
	for _, code := range sortedKeys(codes) {
		compare(code, p.byCode[code], want.ByCode[code])
	}
	return list
}

// wait returns after d, or earlier with an error when ctx is done.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

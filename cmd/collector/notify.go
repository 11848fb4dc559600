package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/talenttrust/auditledger/cmd/collector/outbox"
)

// notifier posts alerts to a webhook. It never holds anything up: when the webhook does not keep
// up, the oldest alerts are in the log only.
type notifier struct {
	url    string
	queue  chan outbox.Alert
	client http.Client
	log    *slog.Logger
}

func newNotifier(target string, log *slog.Logger) (*notifier, error) {
	if target != "" {
		if u, err := url.Parse(target); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, errors.New("--alert-webhook: want http:// or https:// and a host")
		}
	}
	return &notifier{url: target, queue: make(chan outbox.Alert, 64), client: http.Client{Timeout: 10 * time.Second}, log: log}, nil
}

func (n *notifier) send(a outbox.Alert) {
	if n.url == "" {
		return
	}
	select {
	case n.queue <- a:
	default:
		n.log.Warn("the alert webhook does not keep up; this alert is not sent", "alert", a.Kind)
	}
}

// Run posts alerts until ctx ends.
func (n *notifier) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case a := <-n.queue:
			if err := n.post(ctx, a); err != nil && ctx.Err() == nil {
				n.log.Warn("the alert webhook failed", "alert", a.Kind, "error", err)
			}
		}
	}
}

// post tries three times.
func (n *notifier) post(ctx context.Context, a outbox.Alert) error {
	host, _ := os.Hostname()
	body, err := json.Marshal(struct {
		outbox.Alert
		Host string `json:"host"`
	}{a, host})
	if err != nil {
		return err
	}
	for try := 0; ; try++ {
		err := n.once(ctx, body)
		if err == nil || try == 2 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second << try):
		}
	}
}

func (n *notifier) once(ctx context.Context, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := n.client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the URL, which may hold a token
		}
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("it answered %d", resp.StatusCode)
	}
	return nil
}

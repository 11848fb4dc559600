package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/ledger/ledgertest/esnode/node"
)

// The whole program in front of a server: two instances share one ledger, each reads what the other
// stored, and one that lost its folder answers as before.
func TestOnServer(t *testing.T) {
	n, err := node.Open(node.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	dir := filepath.Join(t.TempDir(), "a")
	arg := "--ledger-store=" + n.URL()
	a, b := start(t, dir, arg), start(t, filepath.Join(t.TempDir(), "b"), arg)
	events := batchOf(25)
	if status, body := a.do(t, "POST", "/api/v1/events", events); status != 200 || !strings.Contains(body, `"accepted":25`) {
		t.Errorf("first instance: got %d %s", status, body)
	}
	if status, body := b.do(t, "POST", "/api/v1/events", events); status != 200 || !strings.Contains(body, `"duplicates":25`) {
		t.Errorf("second instance: got %d %s", status, body)
	}
	if err := a.end(t); err != nil {
		t.Errorf("stop: %v\n%s", err, a.log)
	}
	c := start(t, filepath.Join(t.TempDir(), "c"), arg)
	if status, body := c.do(t, "POST", "/api/v1/events", events); status != 200 || !strings.Contains(body, `"duplicates":25`) {
		t.Errorf("an instance with an empty folder: got %d %s", status, body)
	}
	for name, p := range map[string]*instance{"second": b, "third": c} {
		p.until(t, "GET", "/api/v1/stats", `"accepted":25,"rejected":0,"duplicates":50`)
		p.until(t, "GET", "/readyz", `"store":"ok"`)
		if err := p.end(t); err != nil {
			t.Errorf("%s instance: %v\n%s", name, err, p.log)
		}
		if strings.Contains(p.log.String(), "level=ERROR") {
			t.Errorf("%s instance: the log has errors:\n%s", name, p.log)
		}
	}
}

// until asks again and again until the answer contains a text.
func (p *instance) until(t *testing.T, method, path, text string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	last := ""
	for deadline := time.After(20 * time.Second); ; {
		status, body := p.do(t, method, path, "")
		if last = fmt.Sprint(status, " ", body); strings.Contains(body, text) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: got %s, want %s\n%s", path, last, text, p.log)
		}
	}
}

// The server goes away and comes back while the program runs: writes are answered 503 meanwhile, reads go
// on, and nothing needs a restart.
func TestServerAway(t *testing.T) {
	n, err := node.Open(node.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	p := start(t, filepath.Join(t.TempDir(), "a"), "--ledger-store="+n.URL())
	if status, body := p.do(t, "POST", "/api/v1/events", batchOf(5)); status != 200 || !strings.Contains(body, `"accepted":5`) {
		t.Fatalf("got %d %s", status, body)
	}
	p.until(t, "GET", "/api/v1/stats", `"accepted":5`)
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	if status, body := p.do(t, "POST", "/api/v1/events", batchOf(6)); status != 503 || !strings.Contains(body, "ledger_unavailable") {
		t.Errorf("a write while the server is away: got %d %s", status, body)
	}
	if status, body := p.do(t, "GET", "/readyz", ""); status != 503 || !strings.Contains(body, `"store":"failing"`) {
		t.Errorf("readyz while the server is away: got %d %s", status, body)
	}
	began := time.Now()
	if status, body := p.do(t, "GET", "/api/v1/stats", ""); status != 200 || !strings.Contains(body, `"accepted":5`) || time.Since(began) > 2*time.Second {
		t.Errorf("a read while the server is away: got %d %s after %s", status, body, time.Since(began))
	}
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	p.until(t, "GET", "/readyz", `"store":"ok"`)
	if status, body := p.do(t, "POST", "/api/v1/events", batchOf(6)); status != 200 || strings.Contains(body, `"rejected":1`) {
		t.Errorf("a write when the server is back: got %d %s", status, body)
	}
	p.until(t, "GET", "/api/v1/stats", `"accepted":6`)
	p.until(t, "GET", "/api/v1/stats", `"lag":{"records":0`)
	if err := p.end(t); err != nil {
		t.Errorf("stop: %v\n%s", err, p.log)
	}
}

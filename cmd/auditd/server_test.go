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

// An instance with an empty folder answers by what is on the server before its own projections know of
// it, and says how far they are.
func TestFreshInstance(t *testing.T) {
	n, err := node.Open(node.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	bin, arg := buildProgram(t), "--ledger-store="+n.URL()
	const contracts, each = 11, 1000 // more records than make up for no progress
	events := func(contract int, payload string) string {
		all := make([]string, each)
		for i := range all {
			all[i] = eventOf(fmt.Sprint("fresh-", contract), "e", int64(i), payload)
		}
		return batch("lease_contract", all...)
	}
	old := startProgram(t, bin, filepath.Join(t.TempDir(), "old"), arg)
	var first [contracts]*answer
	for c := range first {
		if first[c] = send200(t, old.url, events(c, `{"v":1}`)); first[c].Summary.Accepted != each {
			t.Fatalf("got %+v, want all accepted", first[c].Summary)
		}
	}
	old.end(t)
	n.Faults.OnSubscribe(func(string) node.SubscriptionFault { return node.SubscriptionFault{After: each / 2, Silent: true} })
	p := startProgram(t, bin, filepath.Join(t.TempDir(), "new"), arg)
	defer p.end(t)
	for _, c := range []int{contracts - 1, 3} {
		again := send200(t, p.url, events(c, `{"v":1.0}`))
		for i, r := range again.Results {
			if f := first[c].Results[i]; r.Status != "duplicate" || r.Position != f.Position || r.ProcessedAt != f.ProcessedAt {
				t.Fatalf("got %+v, first %+v", r, f)
			}
		}
		if conflicts := send200(t, p.url, events(c, `{"v":2}`)); conflicts.Summary.Rejected != each {
			t.Errorf("got %+v, want all in conflict", conflicts.Summary)
		}
	}
	var ready struct {
		Status      string
		Projections map[string]struct{ Progress float64 }
	}
	get(t, p.url+"/readyz", &ready)
	if at := ready.Projections["history"].Progress; len(ready.Projections) != 4 || at >= 0.2 {
		t.Errorf("got %+v while the projections are behind", ready)
	}
	var behind stats
	if get(t, p.url+"/api/v1/stats", &behind); behind.Accepted > each || behind.Lag.Records == 0 {
		t.Errorf("got %+v while the projections are behind", behind)
	}
	n.Faults.Clear()
	n.Cut()
	numbers := settled(t, p.url, func(s *stats) bool { return s.Duplicates == 2*each && s.Conflicts == 2*each })
	if numbers.Accepted != contracts*each || numbers.Contracts != contracts {
		t.Errorf("got %+v", *numbers)
	}
	get(t, p.url+"/readyz", &ready)
	if ready.Status != "ready" || ready.Projections["history"].Progress != 1 {
		t.Errorf("got %+v at the end", ready)
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

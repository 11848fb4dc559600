package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/disk"
	"github.com/talenttrust/auditledger/ledger/eventstore"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
	"github.com/talenttrust/auditledger/ledger/ledgertest/esnode/node"
)

// The service does not open a ledger while an import into it has not finished; afterwards it knows what
// it knew in the old house.
func TestImported(t *testing.T) {
	n, err := node.Open(node.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	folder := t.TempDir()
	past := ledgertest.Past(t)
	for name, c := range map[string]struct {
		dir  string
		args []string
		open func() (ledger.Importer, error)
	}{
		"disk": {folder, nil, func() (ledger.Importer, error) { return disk.Open(disk.Config{Dir: folder, Import: true}) }},
		"server": {t.TempDir(), []string{"--ledger-store=" + n.URL()}, func() (ledger.Importer, error) {
			return eventstore.Open(t.Context(), eventstore.Config{URL: n.URL(), Dir: t.TempDir(), Import: true})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			importing := func(records []ledger.Record, finish bool) {
				t.Helper()
				s, err := c.open()
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				if _, err := s.Import(t.Context(), records); err != nil {
					t.Fatal(err)
				}
				if finish {
					err = s.Finish(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			importing(past[:100], false)
			args := append([]string{"--listen=127.0.0.1:0", "--data-dir=" + c.dir}, c.args...)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if err := run(ctx, args, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "an import into this ledger has not finished; run auditctl import again") {
				t.Fatalf("half a ledger: got %v", err)
			}
			importing(past[100:], true)
			p := start(t, c.dir, c.args...)
			again := `{"contractType":"test_contract","events":[{"contractId":"lamp-2","eventId":"e5","sequence":5,"timestamp":1767225600005,"payload":{"i":5}}]}`
			if status, body := p.do(t, "POST", "/api/v1/events", again); status != 200 || !strings.Contains(body, `"revision":20,"generation":2`) {
				t.Errorf("an old event, after its window: got %d %s", status, body)
			}
			p.until(t, "GET", "/api/v1/stats", `"accepted":216,`)
			if err := p.end(t); err != nil {
				t.Errorf("stop: %v", err)
			}
		})
	}
}

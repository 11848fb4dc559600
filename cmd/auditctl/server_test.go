package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"
	"github.com/google/uuid"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/eventstore"
	"github.com/talenttrust/auditledger/ledger/ledgertest/esnode/node"
)

// A ledger on a server is verified as one in a folder; what somebody else wrote into it is told.
func TestVerifyServer(t *testing.T) {
	n, err := node.Open(node.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	dir := t.TempDir()
	store, err := eventstore.Open(t.Context(), eventstore.Config{URL: n.URL(), Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	l, err := ledger.New(ledger.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	raw := [][]byte{fmt.Appendf(nil, `{"contractId":"c","eventId":"e","sequence":1,"timestamp":%d,"payload":{}}`, time.Now().UnixMilli())}
	if _, err := l.Ingest(t.Context(), ledger.Request{Source: &ledger.Source{Name: "t"}}, "x", raw); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := ask(t, "verify", "--data-dir", dir, "--ledger-store", n.URL())
	if err != nil || !strings.Contains(out, "2 records in 2 streams, 1 accepted events") || strings.Count(out, "as built anew") != 4 {
		t.Errorf("an honest server: %v\n%s", err, out)
	}
	c, err := esdb.ParseConnectionString(n.URL())
	if err != nil {
		t.Fatal(err)
	}
	es, err := esdb.NewClient(c)
	if err != nil {
		t.Fatal(err)
	}
	defer es.Close()
	forged := esdb.EventData{EventID: uuid.New(), EventType: "EventAccepted", ContentType: esdb.ContentTypeJson, Data: []byte(`{}`), Metadata: []byte(`{}`)}
	if _, err := es.AppendToStream(t.Context(), "contract-c", esdb.AppendToStreamOptions{ExpectedRevision: esdb.Any{}}, forged); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, "verify", "--data-dir", dir, "--ledger-store", n.URL()); err == nil || !strings.Contains(err.Error(), "1 events in the ledger's streams") {
		t.Errorf("a server with an event of somebody else: got %v", err)
	}
	if _, err := ask(t, "verify", "--data-dir", dir, "--ledger-store", "hunter2"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a bad store: got %v", err)
	}
}

// Positions on a server are far apart; how far a verification is does not depend on that.
func TestVerifyProgress(t *testing.T) {
	var out strings.Builder
	progress(&meter{w: &out, start: time.Now().Add(-time.Hour), unit: "records"})(ledger.Verified{Records: 3000, At: 75_000_000, Head: 100_000_000})
	for _, want := range []string{" 75 %", "3,000 records", "20m0s left"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got %q, want it to have %q", out.String(), want)
		}
	}
}

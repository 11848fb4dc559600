package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/cmd/collector/internal/testledger"
	"github.com/talenttrust/auditledger/cmd/collector/outbox"

	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// TestMain lets a test start this very program, and a ledger, as processes of their own.
func TestMain(m *testing.M) {
	switch os.Getenv("TEST_PROCESS") {
	case "collector":
		main()
		os.Exit(0)
	case "ledger":
		if err := ledgerProcess(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// collector runs the program in this process and returns what it printed.
func collector(t testing.TB, stdin io.Reader, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, errs ledgertest.Log
	err = run(ctx, args, stdin, &out, &errs)
	return out.String(), errs.String(), err
}

// serve runs a ledger.
func serve(t testing.TB, change ...func(*testledger.Ledger)) (*testledger.Ledger, string) {
	t.Helper()
	l := testledger.New()
	for _, c := range change {
		c(l)
	}
	srv := httptest.NewServer(l)
	t.Cleanup(srv.Close)
	t.Cleanup(l.Close)
	return l, srv.URL
}

// eventLine is one ledger event as a source writes it.
func eventLine(contract string, n int) string {
	return fmt.Sprintf(`{"contractType":"lease_contract","contractId":%q,"eventId":"e-%d","sequence":%d,"timestamp":1767225600000,"payload":{"n":%d}}`+"\n", contract, n, n, n)
}

func eventLines(contract string, from, to int) string {
	var b strings.Builder
	for n := from; n < to; n++ {
		b.WriteString(eventLine(contract, n))
	}
	return b.String()
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func appendFile(t testing.TB, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// testIntake is an intake with an outbox of its own.
func testIntake(t testing.TB, change ...func(*outbox.Config)) *intake {
	t.Helper()
	cfg := outbox.Config{Path: filepath.Join(t.TempDir(), "outbox.db"), Reserve: -1}
	for _, c := range change {
		c(&cfg)
	}
	box, err := outbox.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := box.Close(); err != nil {
			t.Error(err)
		}
	})
	rules, err := outbox.ChatRules()
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	in, err := newIntake(box, rules, outbox.NewAlerts(log, nil), log, nil)
	if err != nil {
		t.Fatal(err)
	}
	in.retry = 5 * time.Millisecond
	return in
}

// pendingIDs returns the event ids that wait, in order.
func pendingIDs(t testing.TB, box *outbox.Outbox) []string {
	t.Helper()
	list, err := box.Next(t.Context(), 0, false, 1<<20, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]string, len(list))
	for i, p := range list {
		ids[i] = p.EventID
	}
	return ids
}

// eventIDs are the ids of eventLines.
func eventIDs(from, to int) []string {
	var ids []string
	for n := from; n < to; n++ {
		ids = append(ids, fmt.Sprintf("e-%d", n))
	}
	return ids
}

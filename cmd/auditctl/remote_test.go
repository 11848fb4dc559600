package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/disk"
)

// ask runs auditctl and returns what it prints.
// ask runs a command. None shows a line that is written over where there is no terminal.
func ask(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out, talk bytes.Buffer
	err := run(t.Context(), args, strings.NewReader(""), &out, &talk)
	if strings.Contains(talk.String(), "\r") {
		t.Errorf("%s wrote a meter into a file: %q", args, talk.String())
	}
	return out.String(), err
}

// fill makes a ledger of n events in a folder.
func fill(t *testing.T, dir string, n int) {
	t.Helper()
	store, err := disk.Open(disk.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	l, err := ledger.New(ledger.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	var raw [][]byte
	for i := range n {
		raw = append(raw, fmt.Appendf(nil, `{"contractId":"c","eventId":"e","sequence":%d,"timestamp":%d,"payload":{"n":%d}}`, i, time.Now().UnixMilli(), i))
	}
	if _, err := l.Ingest(t.Context(), ledger.Request{Source: &ledger.Source{Name: "t"}}, "x", raw); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestVerifyFolder(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, 50)
	out, err := ask(t, "verify", "--data-dir", dir, "--at-least", "51")
	if err != nil || !strings.Contains(out, "51 records in 2 streams, 50 accepted events") || strings.Count(out, "as built anew") != 4 {
		t.Errorf("an honest folder: %v\n%s", err, out)
	}
	if _, err := ask(t, "verify", "--data-dir", dir, "--at-least", "52"); err == nil || !strings.Contains(err.Error(), "cut") {
		t.Errorf("a position that is gone: %v", err)
	}
	// Someone edits a payload and makes the checksum right again.
	segment := filepath.Join(dir, "log", fmt.Sprintf("%020d.seg", 1))
	b, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	forged := bytes.Replace(b, []byte(`{"n":7}`), []byte(`{"n":8}`), 1)
	if err := os.WriteFile(segment, forged, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, "verify", "--data-dir", dir); err == nil {
		t.Error("an edited folder passes")
	}
}

func TestTail(t *testing.T) {
	var connections atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		event := `{"data":{"activity":{"position":"%d","processedAt":"2026-01-01T00:00:00.000Z","status":"ACCEPTED","code":null,"contractId":"c","eventId":"e","sequence":3}}}`
		n := connections.Add(1)
		if want := map[int32]string{1: "", 2: "L-1"}[n]; r.Header.Get("Last-Event-ID") != want {
			t.Errorf("connection %d resumes at %q, want %q", n, r.Header.Get("Last-Event-ID"), want)
		}
		fmt.Fprintf(w, ":\n\nid: L-%d\nevent: next\ndata: "+event+"\n\n", n, n)
		if n == 2 {
			w.(http.Flusher).Flush()
			cancel()
		}
	}))
	defer srv.Close()
	var out, talk bytes.Buffer
	if err := run(ctx, []string{"tail", "--url", srv.URL}, strings.NewReader(""), &out, &talk); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(out.String(), "accepted  c  e #3"); lines < 1 || connections.Load() != 2 {
		t.Errorf("%d connections, printed:\n%s", connections.Load(), out.String())
	}
}

func TestQueryAndRebuild(t *testing.T) {
	states := []string{"rebuilding", "live"}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/graphql" && r.Header.Get("Authorization") == "Bearer sesame":
			fmt.Fprint(w, `{"data":{"stats":{"total":3},"contracts":{"edges":[{"node":{"contractId":"c-1","accepted":2}},{"node":{"contractId":"c-2","accepted":1}}]}}}`)
		case r.Method == "POST" && strings.HasSuffix(r.URL.Path, "/stats/rebuild"):
			w.WriteHeader(http.StatusAccepted)
		case strings.HasSuffix(r.URL.Path, "/projections"):
			fmt.Fprintf(w, `{"projections":[{"name":"stats","state":%q,"position":"7","head":"14","progress":0.5}]}`, states[0])
			states = states[len(states)-1:]
		default:
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"title":"Unauthorized","detail":"a token is needed"}`)
		}
	}))
	defer srv.Close()
	file := filepath.Join(t.TempDir(), "q.graphql")
	if err := os.WriteFile(file, []byte("{stats{total}}"), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := ask(t, "query", file, "--url", srv.URL, "--token", "sesame", "--var", "n=3")
	if want := "contracts.edges\n  accepted  contractId\n  2         c-1\n  1         c-2\nstats.total\t3\n"; err != nil || out != want {
		t.Errorf("query: %v\n got %q\nwant %q", err, out, want)
	}
	if _, err := ask(t, "query", file, "--url", srv.URL); err == nil || !strings.Contains(err.Error(), "a token is needed") {
		t.Errorf("query without a token: %v", err)
	}
	if out, err := ask(t, "rebuild", "stats", "--url", srv.URL); err != nil || !strings.Contains(out, "stats is live at position 7") {
		t.Errorf("rebuild: %q, %v", out, err)
	}
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// instance is a running auditd.
type instance struct {
	url   string
	line  string // what it said at its start
	log   *ledgertest.Log
	stop  context.CancelFunc
	ended chan error
}

var address = regexp.MustCompile(`https?://[0-9.]+:[0-9]+`)

// start runs the program in a data folder until the test ends, and waits until it listens.
func start(t *testing.T, dir string, args ...string) *instance {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &instance{log: new(ledgertest.Log), stop: cancel, ended: make(chan error, 1)}
	r, w := io.Pipe()
	go func() {
		err := run(ctx, append([]string{"--listen=127.0.0.1:0", "--data-dir=" + dir, "--disk-reserve-bytes=1"}, args...), w, p.log)
		w.CloseWithError(errors.Join(err, io.EOF))
		p.ended <- err
	}()
	t.Cleanup(func() { cancel() })
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatalf("the program did not start: %v", err)
	}
	p.line, p.url = line, address.FindString(line)
	return p
}

// end stops the program and says how it ended.
func (p *instance) end(t *testing.T) error {
	t.Helper()
	p.stop()
	select {
	case err := <-p.ended:
		return err
	case <-time.After(stopLimit + time.Second):
		t.Fatal("the program did not end")
		return nil
	}
}

func (p *instance) do(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, p.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func batchOf(n int) string {
	events := make([]string, n)
	for i := range events {
		events[i] = fmt.Sprintf(`{"contractId":"c-1","eventId":"e-%d","sequence":%d,"timestamp":%d,"payload":{"n":%d}}`, i, i, time.Now().UnixMilli(), i)
	}
	return `{"contractType":"lease_contract","events":[` + strings.Join(events, ",") + `]}`
}

// The whole program: it starts in an empty folder, stores, answers, stops, and goes on where it was.
func TestProgram(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	p := start(t, dir, "--event-batch-size=2")
	if want := fmt.Sprintf("auditd listening on %s (data in %s, no sources file: loopback only)\n", p.url, dir); p.line != want {
		t.Errorf("got %q, want %q", p.line, want)
	}
	if status, body := p.do(t, "POST", "/api/v1/events", batchOf(5)); status != 200 || !strings.Contains(body, `"accepted":5`) {
		t.Errorf("got %d %s", status, body)
	}
	for range 3 {
		p.do(t, "POST", "/api/v1/events", batchOf(5))
	}
	if status, body := p.do(t, "GET", "/readyz", ""); status != 200 || !strings.Contains(body, `"store":"ok"`) {
		t.Errorf("readyz: got %d %s", status, body)
	}
	status, metrics := p.do(t, "GET", "/metrics", "")
	for _, name := range []string{
		`ledger_events_total{code="",status="duplicate"} 15`, "ledger_append_seconds_count", `window_requests_total{result="hit"} 0`, "ledger_append_batch_events_sum", "http_request_duration_seconds_count",
		"event_idempotency_active_keys", "event_idempotency_evictions_total", "projection_lag_records", "projection_lag_seconds", "go_goroutines", "process_open_fds",
	} {
		if status != 200 || !strings.Contains(metrics, "\n"+name) {
			t.Errorf("metrics: no %s", name)
		}
	}
	if err := p.end(t); err != nil {
		t.Errorf("stop: %v\n%s", err, p.log)
	}
	if !strings.Contains(p.log.String(), "level=INFO msg=started") {
		t.Errorf("the log does not say that it started: %s", p.log)
	}
	name, err := os.ReadFile(filepath.Join(dir, "instance"))
	if err != nil {
		t.Fatal(err)
	}

	p = start(t, dir, "--log-format=json")
	for late := time.Now().Add(10 * time.Second); ; { // the projections may need a moment to show the last records
		_, body := p.do(t, "GET", "/api/v1/stats", "")
		if time.Now().After(late) {
			t.Fatalf("the projections stay behind: %s", body)
		}
		if strings.Contains(body, `"lag":{"records":0`) {
			if !strings.Contains(body, `"total":5,"accepted":5,"rejected":0,"duplicates":15`) {
				t.Errorf("after a restart: got %s", body)
			}
			break
		}
	}
	if again, _ := os.ReadFile(filepath.Join(dir, "instance")); !bytes.Equal(again, name) {
		t.Errorf("instance: got %s, want %s as before", again, name)
	}
	if err := p.end(t); err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestRequestsAreAnsweredAtAStop(t *testing.T) {
	p := start(t, t.TempDir())
	reading, answered := make(chan struct{}), make(chan string, 1)
	r, w := io.Pipe()
	go func() {
		trace := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { close(reading) }})
		req, _ := http.NewRequestWithContext(trace, "POST", p.url+"/api/v1/events", r)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Expect", "100-continue")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			answered <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		answered <- string(b)
	}()
	<-reading // the service waits for the body
	p.stop()
	io.WriteString(w, batchOf(3))
	w.Close()
	if got := <-answered; !strings.Contains(got, `"accepted":3`) {
		t.Errorf("got %s, want three accepted", got)
	}
	if err := p.end(t); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// What may be turned off is off: schemas and unknown members, and the name of a conflict, not its refusal.
func TestLaxSettings(t *testing.T) {
	p := start(t, t.TempDir(), "--no-enable-strict-validation", "--enable-payload-integrity-check=false")
	send := func(members string) string {
		t.Helper()
		event := fmt.Sprintf(`{"contractId":"c-1","eventId":"e-1","sequence":1,"timestamp":%d,%s}`, time.Now().UnixMilli(), members)
		status, body := p.do(t, "POST", "/api/v1/events", `{"contractType":"talent_contract","events":[`+event+`]}`)
		if status != 200 {
			t.Errorf("got %d %s", status, body)
		}
		return body
	}
	if body := send(`"payload":{},"extra":1`); !strings.Contains(body, `"accepted":1`) {
		t.Errorf("got %s, want it accepted", body)
	}
	if body := send(`"payload":{"a":1}`); !strings.Contains(body, `"code":"conflict","httpStatus":409`) {
		t.Errorf("got %s, want a conflict", body)
	}
	if body := send(`"payload":[]`); !strings.Contains(body, `"invalid_event"`) {
		t.Errorf("got %s, want base fields to be checked", body)
	}
	if status, body := p.do(t, "POST", "/graphql", `{"query":"{stats{accepted}}"}`); status != 200 || !strings.Contains(body, `"accepted"`) {
		t.Errorf("graphql: got %d %s", status, body)
	}
	if err := p.end(t); err != nil {
		t.Error(err)
	}
}

// An open event stream does not hold up a stop.
func TestStreamsEndAtAStop(t *testing.T) {
	p := start(t, t.TempDir())
	req, err := http.NewRequest("POST", p.url+"/graphql", strings.NewReader(`{"query":"subscription{activity{position}}"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if kind := resp.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		t.Fatalf("got %d %s", resp.StatusCode, kind)
	}
	began := time.Now()
	if err := p.end(t); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > drainLimit/2 {
		t.Errorf("the stop took %s", took)
	}
}

func TestFolderInUse(t *testing.T) {
	dir := t.TempDir()
	p := start(t, dir)
	err := run(t.Context(), []string{"--listen=127.0.0.1:0", "--data-dir=" + dir}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v, want an error naming the folder", err)
	}
	if err := p.end(t); err != nil {
		t.Error(err)
	}
}

func TestPortInUse(t *testing.T) {
	p := start(t, t.TempDir())
	dir := t.TempDir()
	err := run(t.Context(), []string{"--listen=" + strings.TrimPrefix(p.url, "http://"), "--data-dir=" + dir}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "listen") {
		t.Errorf("got %v, want an error about listening", err)
	}
	if err := p.end(t); err != nil {
		t.Error(err)
	}
	again := start(t, dir) // everything that was opened has been closed
	if err := again.end(t); err != nil {
		t.Error(err)
	}
}

// A SIGHUP takes in a changed sources file while requests go on, and a faulty one drops nobody.
func TestHangup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sources.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	good := "sources:\n  - {name: boss, role: admin, keys: [{id: k, sha256: %x}]}\n"
	write(fmt.Sprintf(good, sha256.Sum256([]byte("one"))))
	p := start(t, filepath.Join(t.TempDir(), "data"), "--sources-file="+file)
	ask := func(path, token string) (int, string) {
		req, err := http.NewRequest("GET", p.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	hangup := func(until string) {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		for late := time.Now().Add(10 * time.Second); ; {
			if status, _ := ask("/api/v1/stats", "one"); status != 200 {
				t.Fatalf("got %d while the file is read", status)
			}
			if _, body := ask("/readyz", "one"); strings.Contains(body, until) {
				return
			}
			if time.Now().After(late) {
				t.Fatalf("readyz never said %s", until)
			}
		}
	}
	write("sources: [")
	hangup(`"sources":"stale"`)
	if !strings.Contains(p.log.String(), "a part stays as it was") {
		t.Errorf("the log does not say that the file is faulty: %s", p.log)
	}
	write(fmt.Sprintf(good, sha256.Sum256([]byte("one"))) + fmt.Sprintf("  - {name: eyes, role: auditor, keys: [{id: k, sha256: %x}]}\n", sha256.Sum256([]byte("two"))))
	hangup(`"sources":"ok"`)
	if status, _ := ask("/api/v1/stats", "two"); status != 200 {
		t.Errorf("the new source: got %d", status)
	}
	if err := p.end(t); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// The rights of an auditor hold for GraphQL as well.
func TestRightsInGraphQL(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sources.yaml")
	text := fmt.Sprintf("sources:\n  - {name: boss, role: admin, keys: [{id: k, sha256: %x}]}\n  - {name: eyes, role: auditor, payload: redacted, keys: [{id: k, sha256: %x}]}\n",
		sha256.Sum256([]byte("boss")), sha256.Sum256([]byte("eyes")))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, filepath.Join(t.TempDir(), "data"), "--sources-file="+file)
	ask := func(token, path, body string) string {
		t.Helper()
		req, err := http.NewRequest("POST", p.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return string(b)
	}
	ask("boss", "/api/v1/events", strings.ReplaceAll(batchOf(1), `{"n":0}`, `{"n":0,"api_key":"zebra-5528"}`))
	const query = `{"query":"{event(contractId:\"c-1\",eventId:\"e-0\",sequence:0){payload withheld}}"}`
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(10 * time.Second); !strings.Contains(ask("boss", "/graphql", query), "zebra-5528"); <-tick.C {
		if time.Now().After(late) {
			t.Fatalf("the event does not show: %s", ask("boss", "/graphql", query))
		}
	}
	if got := ask("eyes", "/graphql", query); !strings.Contains(got, `"/api_key"`) || strings.Contains(got, "zebra-5528") || !strings.Contains(got, "[REDACTED]") {
		t.Errorf("got %s, want the key withheld", got)
	}
	if err := p.end(t); err != nil {
		t.Errorf("stop: %v", err)
	}
	if strings.Contains(p.log.String(), "zebra-5528") {
		t.Error("a payload value is in the log")
	}
}

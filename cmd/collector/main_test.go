package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/cmd/collector/internal/testledger"
	"github.com/talenttrust/auditledger/cmd/collector/outbox"

	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// quickly are flags that make waits short.
var quickly = []string{"--backoff-base", "2ms", "--backoff-max", "20ms", "--linger", "1ms", "--timeout", "2s"}

func args(db, url, command string, more ...string) []string {
	list := append([]string{command, "--db", db, "--url", url, "--secret", "t0ken"}, quickly...)
	return append(list, more...)
}

func wantCount(t *testing.T, l *testledger.Ledger, want int) {
	t.Helper()
	seen := map[string]bool{}
	for _, rec := range l.Records() {
		if seen[rec.Key] {
			t.Errorf("%s is in the ledger twice", rec.Key)
		}
		seen[rec.Key] = true
	}
	if len(seen) != want {
		t.Errorf("the ledger has %d events, want %d", len(seen), want)
	}
}

func TestSend(t *testing.T) {
	l, url := serve(t, func(l *testledger.Ledger) {
		l.Auth = func(h http.Header, _ []byte) error {
			if h.Get("Authorization") != "Bearer t0ken" {
				return fmt.Errorf("no token")
			}
			return nil
		}
	})
	dir := t.TempDir()
	file, db := filepath.Join(dir, "events.ndjson"), filepath.Join(dir, "outbox.db")
	writeFile(t, file, "\ufeff"+eventLines("c", 0, 1000)+"\r\n"+strings.TrimSpace(eventLine("d", 1))) // the last line has no end
	out, errs, err := collector(t, nil, args(db, url, "send", file)...)
	if err != nil {
		t.Fatalf("send: %v\n%s", err, errs)
	}
	if want := "read: 1,001 queued, 0 known, 0 filtered, 0 dead\nledger: 1,001 accepted, 0 duplicates, 0 dead\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	wantCount(t, l, 1001)
	// A second time everything is a duplicate: nothing is stored twice.
	out, _, err = collector(t, strings.NewReader(eventLines("c", 0, 10)), args(db, url, "send", "-")...)
	if err != nil || !strings.Contains(out, "0 accepted, 10 duplicates") {
		t.Errorf("again: got %q, %v", out, err)
	}
	wantCount(t, l, 1001)
}

// What is no event is kept, told, and makes the exit status 1; its neighbours are delivered.
func TestSendBadInput(t *testing.T) {
	l, url := serve(t)
	dir := t.TempDir()
	file, db := filepath.Join(dir, "events.ndjson"), filepath.Join(dir, "outbox.db")
	writeFile(t, file, eventLine("c", 0)+
		"{\"contractType\":\"t\",\"contractId\":\"c\",\"eventId\":\"odd\",\"sequence\":1,\"payload\":{\"a\":\"x\xff\\u0000y\"}}\n"+
		"{\"contractType\":\"t\",\"contractId\":\"c\",\"eventId\":\"nul\",\"sequence\":1,\"payload\":{\"a\":\"x\x00y\"}}\n"+
		"\n   \nplanted-value not JSON\n"+
		`{"contractType":"t","contractId":"c","eventId":"big","sequence":1,"payload":{"a":"`+strings.Repeat("x", 50<<20)+"\"}}\n"+
		`{"contractType":"t","contractId":"c","eventId":"twice","sequence":1,"payload":{"a":1,"a":2}}`+"\n"+
		eventLine("c", 1)+`{"contractType":"t","contr`)
	out, errs, err := collector(t, nil, args(db, url, "send", file)...)
	if err == nil || !strings.Contains(err.Error(), "dead list") {
		t.Errorf("got %v, want it to name dead list", err)
	}
	if want := "read: 5 queued, 0 known, 0 filtered, 3 dead\nledger: 4 accepted, 0 duplicates, 1 dead\n4 dead letters wait for a person: collector dead list\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	if strings.Contains(out+errs, "planted") {
		t.Errorf("a payload value was printed: %s%s", out, errs)
	}
	wantCount(t, l, 4)

	out, _, err = collector(t, nil, "dead", "list", "--db", db)
	for _, want := range []string{"the event has 52428", "JSON syntax error at byte 0", "JSON is cut short", "duplicate_member"} {
		if !strings.Contains(out, want) {
			t.Errorf("dead list: got %s %v, want it to say %q", out, err, want)
		}
	}
	if strings.Contains(out, "planted") || strings.Contains(out, "::") {
		t.Errorf("dead list shows a payload value, or a key without ids: %s", out)
	}
	again := `{"contractType":"t","contractId":"c","eventId":"twice","sequence":1,"payload":{"a":1,"a":2}}` + "\n"
	out, _, err = collector(t, strings.NewReader(again), args(db, url, "send", "-")...)
	if err == nil || !strings.Contains(out, "1 known") {
		t.Errorf("what is a dead letter already: %q, %v, want an error", out, err)
	}
}

func TestSendRefusesBinary(t *testing.T) {
	_, url := serve(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "x.db")
	writeFile(t, file, "SQLite format 3\x00"+strings.Repeat("\n", 1000))
	_, _, err := collector(t, nil, args(filepath.Join(dir, "outbox.db"), url, "send", file)...)
	if err == nil || !strings.Contains(err.Error(), "binary") || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v, want it to say that the file is binary", err)
	}
}

func TestRefusesToStart(t *testing.T) {
	dir := t.TempDir()
	db, rules := filepath.Join(dir, "outbox.db"), filepath.Join(dir, "rules.yaml")
	writeFile(t, rules, "envelopes: {nonsense: 1}")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "--secret", "x"}, "--url (COLLECTOR_URL) is missing"},
		{[]string{"run", "--url", "http://x"}, "--secret (COLLECTOR_SECRET) or --secret-file is missing"},
		{[]string{"send", "--url", "http://x", rules}, "--secret"},
		{[]string{"run", "--url", "http://x", "--auth", "none", "--secret", "planted"}, "there is a secret all the same"},
		{[]string{"run", "--url", "http://x?token=planted", "--secret", "x"}, "query"},
		{[]string{"run", "--url", "nonsense", "--secret", "x"}, "url: want http"},
		{[]string{"run", "--url", "http://x", "--secret", "whsec_planted"}, "secret:"},
		{[]string{"run", "--url", "http://x", "--auth", "webhook", "--secret", "planted"}, "whsec_"},
		{[]string{"run", "--url", "http://x", "--secret", "plan ted"}, "bearer token"},
		{[]string{"run", "--url", "http://x", "--secret", "x", "--connections", "0"}, "--connections"},
		{[]string{"run", "--url", "http://x", "--secret", "x", "--timeout", "-1s"}, "--timeout"},
		{[]string{"run", "--url", "http://x", "--secret", "x", "--timeout", "soon"}, "--timeout"},
		{[]string{"run", "--url", "http://x", "--secret", "x", "--max-event-bytes", "0"}, "--max-event-bytes"},
		{[]string{"run", "--url", "http://x", "--secret", "x", "--stop-timeout", "0s"}, "--stop-timeout"},
		{[]string{"run", "--url", "http://x", "--secret", "x", "--rules", rules}, "nonsense"},
		{[]string{"run", "--url", "http://x", "--secret", "x", "--rules", rules + "x"}, "--rules"},
		{[]string{"run", "--url", "http://x", "--secret", "x", "--listen", ":1"}, "loopback"},
		{[]string{"run", "--url", "http://x", "--secret", "x", "--follow", "[" + dir}, "--follow"},
		{[]string{"run", "--url", "http://x", "--secret", "x", "--metrics", "nonsense"}, "--metrics"},
		{[]string{"run", "--url", "http://x", "--secret", "x", "--alert-webhook", "nonsense"}, "--alert-webhook"},
		{[]string{"run", "--url", "http://x", "--secret", "x", "--db", rules}, "not a database"},
		{[]string{"send", "--url", "http://x", "--secret", "x", db + ".no"}, "no such file"},
		{[]string{"send", "--url", "http://x", "--secret", "x"}, "<files>"},
		{[]string{"status"}, "there is no outbox"},
		{[]string{"dead", "requeue"}, "which ones"},
		{[]string{"dead", "export", "--all", "--remove"}, "--out"},
		{[]string{"nonsense"}, "nonsense"},
	} {
		_, _, err := collector(t, nil, append([]string{c.args[0], "--db", db}, c.args[1:]...)...)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "planted") {
			t.Errorf("collector %v: got %v, want it to say %q and no secret", c.args, err, c.want)
		}
		os.Remove(db)
	}
}

// Standard input is the only source and ends: everything is delivered, the exit status is 0.
func TestRunStdin(t *testing.T) {
	l, url := serve(t, func(l *testledger.Ledger) {
		l.Fault = func(request int, _ *http.Request) testledger.Fault {
			if request <= 2 {
				return testledger.Fault{Status: 503}
			}
			return testledger.Fault{}
		}
	})
	db := filepath.Join(t.TempDir(), "outbox.db")
	_, errs, err := collector(t, strings.NewReader(eventLines("c", 0, 500)), args(db, url, "run", "--stdin")...)
	if err != nil {
		t.Fatalf("%v\n%s", err, errs)
	}
	wantCount(t, l, 500)
}

func TestChatExport(t *testing.T) {
	l, url := serve(t)
	db := filepath.Join(t.TempDir(), "outbox.db")
	out, errs, err := collector(t, nil, args(db, url, "send", filepath.Join("testdata", "chat.ndjson"))...)
	if err != nil {
		t.Fatalf("%v\n%s", err, errs)
	}
	if want := "read: 11 queued, 5 known, 6 filtered, 0 dead\nledger: 11 accepted, 0 duplicates, 0 dead\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	wantCount(t, l, 11)
}

func TestDeadLetterCommands(t *testing.T) {
	strict := true
	l, url := serve(t, func(l *testledger.Ledger) {
		l.Judge = func(contractType string, e testledger.Event) *testledger.Result {
			if strict && e.EventID == "e-3" {
				return &testledger.Result{HTTPStatus: 422, Code: "invalid_payload"}
			}
			return nil
		}
	})
	dir := t.TempDir()
	db, file, export := filepath.Join(dir, "outbox.db"), filepath.Join(dir, "in"), filepath.Join(dir, "out")
	writeFile(t, file, eventLines("c", 0, 5)+"no event\n")
	if _, _, err := collector(t, nil, args(db, url, "send", file)...); err == nil {
		t.Error("send: got no error")
	}
	out, _, err := collector(t, nil, "status", "--db", db)
	if err != nil || !strings.Contains(out, "1  invalid_payload") || !strings.Contains(out, "1  refused") {
		t.Errorf("status: got %s, %v", out, err)
	}
	out, _, err = collector(t, nil, "status", "--json", "--db", db)
	var s state
	if json.Unmarshal([]byte(out), &s) != nil || err != nil || s.Dead != 2 || s.Pending != 0 {
		t.Errorf("status --json: got %s, %v", out, err)
	}
	out, _, err = collector(t, nil, "dead", "list", "--json", "--code", "invalid_payload", "--db", db)
	var d letter
	if json.Unmarshal([]byte(out), &d) != nil || err != nil || d.EventID != "e-3" || d.Event != nil {
		t.Fatalf("dead list --json: got %s, %v", out, err)
	}
	out, _, err = collector(t, nil, "dead", "show", fmt.Sprint(d.ID), "--db", db)
	if err != nil || !strings.Contains(out, `"n": 3`) {
		t.Errorf("dead show: got %s, %v", out, err)
	}

	out, _, err = collector(t, nil, "dead", "requeue", "--all", "--db", db)
	if err == nil || !strings.Contains(out, "1 requeued") || !strings.Contains(err.Error(), "1 are not events") {
		t.Errorf("dead requeue: got %q, %v", out, err)
	}
	out, errs, err := collector(t, nil, "outbox", "export", "--db", db)
	if err != nil || out != eventLine("c", 3) && !strings.Contains(out, `"eventId":"e-3"`) {
		t.Errorf("outbox export: got %q %q, %v", out, errs, err)
	}
	strict = false
	writeFile(t, file, "")
	if out, _, err := collector(t, nil, args(db, url, "send", file)...); err != nil || !strings.Contains(out, "1 accepted") {
		t.Errorf("send after requeue: got %q, %v", out, err)
	}
	wantCount(t, l, 5)

	if _, _, err = collector(t, nil, "dead", "export", "--all", "--out", export, "--remove", "--db", db); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(export)
	if json.Unmarshal(text, &d) != nil || err != nil || d.Input != "bm8gZXZlbnQ=" {
		t.Errorf("exported: %s, %v", text, err)
	}
	if _, _, err = collector(t, nil, "dead", "export", "--all", "--out", export, "--db", db); err == nil {
		t.Error("dead export overwrote a file")
	}
	if out, _, _ = collector(t, nil, "status", "--json", "--db", db); !strings.Contains(out, `"dead":0`) {
		t.Errorf("after the export: got %s", out)
	}
}

// process is a program of this test binary that runs by itself.
type process struct {
	cmd    *exec.Cmd
	stderr ledgertest.Log
	done   chan error
}

func startProcess(t testing.TB, kind string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0], args...), done: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), "TEST_PROCESS="+kind)
	p.cmd.Stderr = &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(func() { p.cmd.Process.Kill() })
	return p
}

// wait returns the exit status.
func (p *process) wait(t testing.TB) int {
	t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(30 * time.Second):
		t.Fatalf("the process does not end:\n%s", p.stderr.String())
		return 0
	}
}

func TestSIGTERM(t *testing.T) {
	l, url := serve(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "app.log")
	writeFile(t, file, eventLines("c", 0, 10))
	p := startProcess(t, "collector", args(filepath.Join(dir, "outbox.db"), url, "run", "--follow", file, "--listen", "unix:"+filepath.Join(dir, "s"))...)
	ledgertest.Until(t, "delivery", func() bool { return len(l.Records()) == 10 })
	p.cmd.Process.Signal(syscall.SIGTERM)
	p.cmd.Process.Signal(syscall.SIGTERM) // once more changes nothing
	if code := p.wait(t); code != 0 {
		t.Errorf("got exit status %d, want 0:\n%s", code, p.stderr.String())
	}
	if n := strings.Count(p.stderr.String(), "msg=stopping"); n != 1 {
		t.Errorf("stopped %d times, want once:\n%s", n, p.stderr.String())
	}
}

func TestHungStop(t *testing.T) {
	asked := make(chan struct{}, 10)
	_, url := serve(t, func(l *testledger.Ledger) {
		l.Fault = func(int, *http.Request) testledger.Fault { asked <- struct{}{}; return testledger.Fault{Hang: true} }
	})
	dir := t.TempDir()
	file, db := filepath.Join(dir, "app.log"), filepath.Join(dir, "outbox.db")
	writeFile(t, file, eventLines("c", 0, 10))
	p := startProcess(t, "collector", args(db, url, "run", "--follow", file, "--timeout", "10m", "--stop-grace", "10m", "--stop-timeout", "300ms")...)
	<-asked
	p.cmd.Process.Signal(syscall.SIGTERM)
	if code := p.wait(t); code != 1 || !strings.Contains(p.stderr.String(), "did not stop within 300ms") {
		t.Errorf("got exit status %d, want 1:\n%s", code, p.stderr.String())
	}
	if out, _, err := collector(t, nil, "status", "--json", "--db", db); err != nil || !strings.Contains(out, `"pending":10`) {
		t.Errorf("what was pending: got %s, %v", out, err)
	}
}

// Alerts reach the webhook on changes of state, the metrics show them, and the heartbeat is in the log.
func TestAlertsAndMetrics(t *testing.T) {
	var refuse sync.Map
	refuse.Store("on", true)
	_, url := serve(t, func(l *testledger.Ledger) {
		l.Fault = func(int, *http.Request) testledger.Fault {
			if _, on := refuse.Load("on"); on {
				return testledger.Fault{Status: 401}
			}
			return testledger.Fault{}
		}
	})
	var hooked ledgertest.Log
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(&hooked, "%s\n", body)
	}))
	defer hook.Close()
	dir := t.TempDir()
	file := filepath.Join(dir, "app.log")
	writeFile(t, file, eventLines("c", 0, 10))
	p := startProcess(t, "collector", args(filepath.Join(dir, "outbox.db"), url, "run", "--follow", file, "--metrics", "127.0.0.1:0",
		"--alert-webhook", hook.URL, "--alert-backlog", "5", "--alert-age", "1ms", "--heartbeat", "100ms")...)
	ledgertest.Until(t, "the alerts", func() bool {
		text := hooked.String()
		return strings.Contains(text, `"alert":"ledger_refuses","raised":true`) && strings.Contains(text, `"alert":"backlog","raised":true,"count":10`) && strings.Contains(text, `"alert":"age","raised":true`)
	})
	ledgertest.Until(t, "the heartbeat", func() bool { return strings.Contains(p.stderr.String(), "msg=heartbeat pending=10 parked=0 dead=0") })
	address := regexp.MustCompile(`serving metrics" address=(\S+)`).FindStringSubmatch(p.stderr.String())
	metrics := func() string {
		resp, err := http.Get("http://" + address[1] + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return string(body)
	}
	ledgertest.Until(t, "the metrics", func() bool { return strings.Contains(metrics(), "collector_pending 10\n") })
	if text := metrics(); !strings.Contains(text, `collector_events_total{outcome="queued"} 10`) || strings.Contains(text, `collector_alert{alert="ledger_refuses"} 0`) {
		t.Errorf("metrics: got %s", text)
	}
	refuse.Delete("on")
	ledgertest.Until(t, "all clear", func() bool {
		text := hooked.String()
		return strings.Contains(text, `"alert":"ledger_refuses","raised":false`) && strings.Contains(text, `"alert":"backlog","raised":false`)
	})
	ledgertest.Until(t, "the metrics", func() bool {
		return strings.Contains(metrics(), "collector_pending 0\n") && strings.Contains(metrics(), `collector_alert{alert="ledger_refuses"} 0`) && strings.Contains(metrics(), `collector_settled_total{outcome="accepted"} 10`)
	})
	p.cmd.Process.Signal(syscall.SIGTERM)
	p.wait(t)
	for _, kind := range []string{"ledger_refuses", "backlog", "age"} {
		if n := strings.Count(hooked.String(), `"alert":"`+kind+`","raised":true`); n != 1 {
			t.Errorf("%s was announced %d times, want once", kind, n)
		}
	}
	if _, err := net.Dial("tcp", address[1]); err == nil {
		t.Error("it still listens")
	}
}

func TestHelp(t *testing.T) {
	for _, list := range [][]string{{"--help"}, {"run", "--help"}, {"dead", "export", "--help"}} {
		out, _, err := collector(t, nil, list...)
		if err != nil || !strings.Contains(out, "Usage: collector") {
			t.Errorf("%v: got %q, %v", list, out, err)
		}
	}
}

// The progress line, with and without a known total.
func TestProgressLine(t *testing.T) {
	p := &progress{start: time.Unix(0, 0), total: 1000}
	p.counted(tally{Queued: 100}, 500)
	p.settled(make([]outbox.Settlement, 50))
	if got, want := p.line(time.Unix(10, 0)), "[#######.......................]  25%  50 delivered, 5/s, 50 waiting, 30s left"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	p.total = 0
	if got, want := p.line(time.Unix(10, 0)), "50 delivered, 5/s, 50 waiting"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	var out bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.out = &out
	if err := p.Run(ctx); err != nil || out.Len() != 0 {
		t.Errorf("not on a terminal: got %q, %v", out.String(), err)
	}
}

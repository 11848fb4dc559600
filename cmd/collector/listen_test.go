package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/talenttrust/auditledger/cmd/collector/outbox"
)

// endpointURL serves an intake's endpoint on a real port.
func endpointURL(t *testing.T, in *intake) string {
	t.Helper()
	l, err := listenLocal("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveUntilEnd(t, l, in)
	return "http://" + l.Addr().String() + "/events"
}

func serveUntilEnd(t *testing.T, l net.Listener, in *intake) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serveHTTP(ctx, l, newEndpoint(in), in.log) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestEndpoint(t *testing.T) {
	in := testIntake(t)
	url := endpointURL(t, in)
	const js, nd = "application/json", "application/x-ndjson; charset=utf-8"
	for _, c := range []struct {
		name, kind, body string
		status           int
		want             string
	}{
		{"one event", js, eventLine("c", 1), 200, `{"queued":1,"known":0,"filtered":0,"dead":0}`},
		{"again", js, eventLine("c", 1), 200, `{"queued":0,"known":1,"filtered":0,"dead":0}`},
		{"over several lines", js, strings.ReplaceAll(eventLine("c", 2), ",", ",\n"), 200, `{"queued":1,"known":0,"filtered":0,"dead":0}`},
		{"lines", nd, eventLines("c", 3, 6) + "\n" + `{"type":"presence.update","payload":{}}`, 200, `{"queued":3,"known":0,"filtered":1,"dead":0}`},
		{"a bad line among good ones", nd, eventLine("c", 6) + "planted\n" + eventLine("c", 7), 422, `{"queued":2,"known":0,"filtered":0,"dead":1,"refused":[{"at":"http:`},
		{"nothing", nd, "", 200, `{"queued":0,"known":0,"filtered":0,"dead":0}`},
		{"an empty document", js, "", 400, "empty"},
		{"binary", nd, "\x7fELF\x00\x00", 400, "binary"},
		{"another type", "text/plain", eventLine("c", 1), 415, "content type"},
		{"no type", "", eventLine("c", 1), 415, "content type"},
		{"too large", nd, strings.Repeat(" ", maxPost+1), 413, "more than"},
	} {
		resp, err := http.Post(url, c.kind, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.status || !strings.Contains(string(body), c.want) || strings.Contains(string(body), "planted") {
			t.Errorf("%s: got %d %s %v, want %d and %s", c.name, resp.StatusCode, body, err, c.status, c.want)
		}
	}
	if got := len(pendingIDs(t, in.box)); got != 7 {
		t.Errorf("got %d pending, want 7", got)
	}
	if resp, err := http.Get(url); err != nil || resp.StatusCode != 405 {
		t.Errorf("GET: got %v, %v, want 405", resp.StatusCode, err)
	}
}

func TestEndpointFull(t *testing.T) {
	in := testIntake(t, func(c *outbox.Config) { c.Reserve = 1 << 62 })
	resp, err := http.Post(endpointURL(t, in), "application/json", strings.NewReader(eventLine("c", 1)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer posted
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != 507 || resp.Header.Get("Retry-After") == "" || !strings.Contains(answer.Error, "full") {
		t.Errorf("got %d %+v %v, want 507 with Retry-After", resp.StatusCode, answer, err)
	}
	if !in.alerts.State(outbox.AlertFull).Raised {
		t.Error("no alert")
	}
}

func TestEndpointUnixSocket(t *testing.T) {
	in := testIntake(t)
	path := filepath.Join(t.TempDir(), "c.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close() // leaves its file, as a killed program does
	l, err := listenLocal("unix:" + path)
	if err != nil {
		t.Fatal(err)
	}
	serveUntilEnd(t, l, in)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: got %v, %v, want mode 0600", info.Mode(), err)
	}
	if _, err := listenLocal("unix:" + path); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("a second listener: got %v", err)
	}
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}}
	resp, err := client.Post("http://unix/events", "application/x-ndjson", bytes.NewBufferString(eventLines("c", 0, 3)))
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("got %v, %v, want 200", resp, err)
	}
	resp.Body.Close()
	client.CloseIdleConnections()
	if got := len(pendingIDs(t, in.box)); got != 3 {
		t.Errorf("got %d pending, want 3", got)
	}
}

func TestListenRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	writeFile(t, file, "x")
	for address, want := range map[string]string{"0.0.0.0:0": "loopback", ":0": "loopback", "192.0.2.1:80": "loopback", "example.com:80": "loopback", "nonsense": "--listen", "unix:" + file: "not a socket"} {
		l, err := listenLocal(address)
		if err == nil {
			l.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("listenLocal(%s): got %v, want it to say %s", address, err, want)
		}
	}
}

package main

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// TestHangupUnderLoad rotates a source's key and breaks the sources file, each time with a SIGHUP, while
// events are sent with every key that is live. No request fails, the broken file changes nothing, and
// no token and no payload value is in the log, which says all there is to say.
func TestHangupUnderLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sources.yaml")
	write := func(tokens ...string) {
		var b strings.Builder
		b.WriteString("sources:\n  - name: busy\n    role: admin\n    keys:\n")
		for i, token := range tokens {
			fmt.Fprintf(&b, "      - {id: k%d, sha256: \"%x\"}\n", i, sha256.Sum256([]byte(token)))
		}
		replace(t, file, b.String())
	}
	token := func(n int64) string { return fmt.Sprintf("planted-token-%d", n) }
	write(token(0), token(1))
	var log ledgertest.Log
	p := startProgramLogging(t, buildProgram(t), t.TempDir(), &log, "--sources-file="+file, "--log-level=debug")
	hup := func(said string) {
		t.Helper()
		n := strings.Count(log.String(), said)
		if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		until(t, func() bool { return strings.Count(log.String(), said) > n })
	}
	var live atomic.Int64 // the keys live and live+1 are in the file
	var stop atomic.Bool
	var sent atomic.Int64
	var wg sync.WaitGroup
	for w := range int64(4) {
		wg.Go(func() {
			for n := w; !stop.Load(); n += 4 {
				key := live.Load() + 1 // stays for one more rotation
				body := fmt.Sprintf(`{"contractType":"x","events":[{"contractId":"c%d","eventId":"e","sequence":%d,"timestamp":%d,"payload":{"card":"planted-value"}}]}`, w, n, time.Now().UnixMilli())
				if status := postWith(t, p.url, token(key), body); status != 200 {
					t.Errorf("status %d with a live key", status)
					return
				}
				sent.Add(1)
			}
		})
	}
	for n := range int64(8) {
		before := sent.Load()
		until(t, func() bool { return sent.Load() > before+20 })
		replace(t, file, "sources: [{name: planted-token-broken")
		hup("sources")
		write(token(n+1), token(n+2))
		hup("sources")
		live.Store(n + 1)
	}
	stop.Store(true)
	wg.Wait()
	if status := postWith(t, p.url, token(0), `{}`); status != http.StatusUnauthorized {
		t.Errorf("status %d with the first key, which is gone", status)
	}
	p.cmd.Process.Signal(os.Interrupt)
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("an orderly stop: %v", err)
	}
	if text := log.String(); strings.Contains(text, "planted") {
		t.Errorf("the log holds a token or a payload value: %s", text[max(0, strings.Index(text, "planted")-200):])
	}
}

func replace(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

func postWith(t *testing.T, url, token, body string) int {
	t.Helper()
	req, err := http.NewRequest("POST", url+"/api/v1/events", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// program is the built service as a process of its own.
type program struct {
	cmd *exec.Cmd
	url string
}

func buildProgram(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "auditd")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return bin
}

func startProgram(t *testing.T, bin, dir string, args ...string) *program {
	t.Helper()
	return startProgramLogging(t, bin, dir, os.Stderr, append([]string{"--log-level=warn"}, args...)...)
}

// startProgramLogging starts the program with its log in a place of the test's.
func startProgramLogging(t *testing.T, bin, dir string, log io.Writer, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.Command(bin, append([]string{"--listen=127.0.0.1:0", "--data-dir=" + dir}, args...)...)}
	p.cmd.Dir = t.TempDir()
	p.cmd.Stderr = log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the program said nothing: %v", err)
	}
	if p.url = regexp.MustCompile(`http://[0-9.:]+`).FindString(line); p.url == "" {
		t.Fatalf("no address in %q", line)
	}
	return p
}

// TestKill kills the service under load, again and again. Whatever was answered with 2xx is there
// once, and the numbers are those of the history.
func TestKill(t *testing.T) {
	bin, dir := buildProgram(t), t.TempDir()
	var next atomic.Int64
	var mu sync.Mutex
	acked := map[string]bool{}
	for range 4 {
		p := startProgram(t, bin, dir)
		var answered atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for {
					keys, err := postBatch(p.url, next.Add(1))
					if err != nil {
						return // killed
					}
					mu.Lock()
					for _, k := range keys {
						acked[k] = true
					}
					mu.Unlock()
					answered.Add(1)
				}
			})
		}
		until(t, func() bool { return answered.Load() > 60 })
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		p.cmd.Wait()
	}
	p := startProgram(t, bin, dir)
	defer func() {
		p.cmd.Process.Signal(os.Interrupt)
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("an orderly stop: %v", err)
		}
	}()
	var stats struct {
		Accepted, Rejected, Total, Contracts int64
		Lag                                  struct{ Records int64 }
	}
	until(t, func() bool {
		get(t, p.url+"/api/v1/stats", &stats)
		return stats.Lag.Records == 0
	})
	stored := map[string]int{}
	for c := range killContracts {
		for _, k := range history(t, p.url, fmt.Sprint("kill-", c)) {
			stored[k]++
		}
	}
	for k := range acked {
		if stored[k] != 1 {
			t.Errorf("%s was answered with 2xx and is stored %d times", k, stored[k])
		}
	}
	if stats.Accepted != int64(len(stored)) || stats.Total != stats.Accepted || stats.Contracts != killContracts || len(acked) < 240*killBatch {
		t.Errorf("stats %+v; %d keys are stored, %d were answered", stats, len(stored), len(acked))
	}
}

const (
	killContracts = 5
	killBatch     = 20
)

// postBatch sends batch n and returns the keys that were answered as accepted.
func postBatch(url string, n int64) ([]string, error) {
	var b bytes.Buffer
	b.WriteString(`{"contractType":"kill_contract","events":[`)
	for i := range int64(killBatch) {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"contractId":"kill-%d","eventId":"e%d-%d","sequence":%d,"timestamp":%d,"payload":{"n":%d}}`, i%killContracts, n, i, n, time.Now().UnixMilli(), n)
	}
	b.WriteString("]}")
	resp, err := http.Post(url+"/api/v1/events", "application/json", &b)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Results []struct{ DeduplicationKey, Status string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != 200 {
		return nil, fmt.Errorf("status %d, %w", resp.StatusCode, err)
	}
	var keys []string
	for _, r := range answer.Results {
		if r.Status == "accepted" {
			keys = append(keys, r.DeduplicationKey)
		}
	}
	return keys, nil
}

// history returns the keys in a contract's history, page by page.
func history(t *testing.T, url, contract string) (keys []string) {
	t.Helper()
	for cursor := ""; ; {
		var page struct {
			Entries    []struct{ DeduplicationKey string }
			NextCursor string
		}
		get(t, url+"/api/v1/contracts/"+contract+"/history?limit=1000&cursor="+cursor, &page)
		for _, e := range page.Entries {
			keys = append(keys, e.DeduplicationKey)
		}
		if cursor = page.NextCursor; cursor == "" {
			return keys
		}
	}
}

func get(t *testing.T, url string, to any) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s: %d %s %v", url, resp.StatusCode, b, err)
	}
	if err := json.Unmarshal(b, to); err != nil {
		t.Fatalf("%s: %v in %s", url, err, b)
	}
}

// until waits for a condition, half a minute at most.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("it did not come to pass within 30 s")
		}
	}
}

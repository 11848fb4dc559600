package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
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

// end stops the program in an orderly way.
func (p *program) end(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Errorf("stop: %v", err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("an orderly stop: %v", err)
	}
}

// TestKill kills the service under load, again and again, and the server it stands on if there is one.
// Whatever was answered with 2xx is there once, and the numbers are those of the history.
func TestKill(t *testing.T) {
	bin, nodeBin := buildProgram(t), buildNode(t)
	for _, kind := range siteKinds {
		t.Run(kind.name, func(t *testing.T) { killUnderLoad(t, bin, newSite(t, nodeBin, kind.node, kind.redis)) })
	}
}

func killUnderLoad(t *testing.T, bin string, s *site) {
	l := newLoad()
	for round := range 4 {
		p := startProgram(t, bin, s.dir, s.args()...)
		l.start(p.url, 8)
		l.more(t, 30)
		if s.node != nil {
			s.node.kill()
			s.node.start(t)
		}
		l.more(t, 30)
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		l.stop()
		p.cmd.Wait()
		if round%2 == 1 {
			s.forget(t)
		}
	}
	p := startProgram(t, bin, s.dir, s.args()...)
	defer p.end(t)
	l.check(t, p.url)
	if len(l.acked) < 240*killBatch {
		t.Errorf("%d keys were answered, want %d at least", len(l.acked), 240*killBatch)
	}
}

const (
	killContracts = 5
	killBatch     = 20
)

// load is clients that send batches never sent before, each again and again until it is answered.
type load struct {
	client   *http.Client
	next     atomic.Int64
	answered atomic.Int64 // batches
	done     atomic.Bool
	clients  sync.WaitGroup

	mu    sync.Mutex
	acked map[string]bool // keys that were answered with 2xx
	err   error           // that ended a client
}

func newLoad() *load {
	return &load{acked: map[string]bool{}, client: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
}

// start starts clients, which go on until stop or an error other than 503.
func (l *load) start(url string, clients int) {
	l.done.Store(false)
	for range clients {
		l.clients.Go(func() {
			for !l.done.Load() {
				if err := l.deliver(url, killEvents(l.next.Add(1))); err != nil {
					l.mu.Lock()
					l.err = err
					l.mu.Unlock()
					return
				}
			}
		})
	}
}

// deliver sends a batch until it is answered, or the load is stopped.
func (l *load) deliver(url, body string) error {
	for !l.done.Load() {
		status, text, err := ask(l.client, "POST", url+"/api/v1/events", body)
		if err != nil {
			return err
		}
		if status == http.StatusServiceUnavailable {
			continue
		}
		var a answer
		if err := json.Unmarshal([]byte(text), &a); err != nil || status != http.StatusOK || a.Summary.Rejected > 0 {
			return fmt.Errorf("status %d, %w: %.300s", status, err, text)
		}
		l.mu.Lock()
		for _, r := range a.Results {
			l.acked[r.DeduplicationKey] = true
		}
		l.mu.Unlock()
		l.answered.Add(1)
		return nil
	}
	return nil
}

// more waits until so many more batches are answered.
func (l *load) more(t *testing.T, n int64) {
	t.Helper()
	from := l.answered.Load()
	until(t, func() bool { return l.answered.Load() >= from+n })
}

// stop returns when every client has its last answer. It says what ended one before.
func (l *load) stop() error {
	l.done.Store(true)
	l.clients.Wait()
	l.client.CloseIdleConnections()
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.err
	l.err = nil
	return err
}

// check wants what was answered to be stored once, and the numbers to be those of the history.
func (l *load) check(t *testing.T, url string) {
	t.Helper()
	numbers := settled(t, url, func(*stats) bool { return true })
	stored := map[string]int{}
	for c := range killContracts {
		for _, k := range history(t, url, fmt.Sprint("kill-", c)) {
			stored[k]++
		}
	}
	for k := range l.acked {
		if stored[k] != 1 {
			t.Errorf("%s was answered with 2xx and is stored %d times", k, stored[k])
		}
	}
	if numbers.Accepted != int64(len(stored)) || numbers.Total != numbers.Accepted || numbers.Contracts != killContracts {
		t.Errorf("stats %+v; %d keys are stored, %d were answered", *numbers, len(stored), len(l.acked))
	}
}

// killEvents is batch n.
func killEvents(n int64) string {
	events := make([]string, killBatch)
	for i := range events {
		events[i] = eventOf(fmt.Sprint("kill-", i%killContracts), fmt.Sprintf("e%d-%d", n, i), n, fmt.Sprintf(`{"n":%d}`, n))
	}
	return batch("kill_contract", events...)
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

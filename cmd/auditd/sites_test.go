package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// programs are the service and the server's test double, built when a test first needs one.
var programs struct {
	sync.Once
	dir string
	err error
}

// TestMain removes what was built.
func TestMain(m *testing.M) {
	code := m.Run()
	if programs.dir != "" {
		os.RemoveAll(programs.dir)
	}
	os.Exit(code)
}

func buildProgram(t *testing.T) string { return built(t, "auditd") }
func buildNode(t *testing.T) string    { return built(t, "esnode") }

func built(t *testing.T, name string) string {
	t.Helper()
	programs.Do(func() {
		if programs.dir, programs.err = os.MkdirTemp("", "auditd-test-"); programs.err != nil {
			return
		}
		out, err := exec.Command("go", "build", "-o", programs.dir+"/", ".", "../../ledger/ledgertest/esnode").CombinedOutput()
		if err != nil {
			programs.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if programs.err != nil {
		t.Fatalf("build: %v", programs.err)
	}
	return filepath.Join(programs.dir, name)
}

// nodeProgram is the server's test double as a process of its own. Its address and what it stores stay
// the same when it is killed and started again.
type nodeProgram struct {
	bin, dir, addr string
	cmd            *exec.Cmd // nil while there is no process
}

// startNode starts the program on a free port with an empty folder; it ends with the test.
func startNode(t *testing.T, bin string) *nodeProgram {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &nodeProgram{bin: bin, dir: t.TempDir(), addr: listener.Addr().String()}
	listener.Close()
	t.Cleanup(n.kill)
	n.start(t)
	return n
}

func (n *nodeProgram) url() string { return "esdb://" + n.addr + "?tls=false" }

// start returns when the node serves.
func (n *nodeProgram) start(t *testing.T) {
	t.Helper()
	until(t, func() bool { // another process may hold the port for a moment
		cmd := exec.Command(n.bin, "-listen", n.addr, "-dir", n.dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			_ = cmd.Wait()
			return false
		}
		n.cmd = cmd
		return true
	})
}

// kill ends the process without a chance to do anything.
func (n *nodeProgram) kill() {
	if n.cmd != nil {
		_ = n.cmd.Process.Kill()
		_ = n.cmd.Wait()
		n.cmd = nil
	}
}

// freeze makes the process do nothing, with its connections open; thaw lets it go on.
func (n *nodeProgram) freeze(t *testing.T) { n.signal(t, syscall.SIGSTOP) }
func (n *nodeProgram) thaw(t *testing.T)   { n.signal(t, syscall.SIGCONT) }

func (n *nodeProgram) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := n.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// site is what a service stands on: where its ledger is, and where its window.
type site struct {
	dir   string            // data folder
	node  *nodeProgram      // that holds the ledger; nil: the data folder does
	redis *ledgertest.Redis // that holds the window; nil: there is none
}

// siteKinds are the ways to run the service.
var siteKinds = []struct {
	name        string
	node, redis bool
}{
	{"disk", false, false},
	{"disk and redis", false, true},
	{"node and redis", true, true},
}

func newSite(t *testing.T, nodeBin string, node, redis bool) *site {
	t.Helper()
	s := &site{dir: filepath.Join(t.TempDir(), "data")}
	if node {
		s.node = startNode(t, nodeBin)
	}
	if redis {
		s.redis = ledgertest.StartRedis(t)
	}
	return s
}

// args are the program's arguments for the site, but for its folder.
func (s *site) args(more ...string) []string {
	if s.node != nil {
		more = append(more, "--ledger-store="+s.node.url())
	}
	if s.redis != nil {
		more = append(more, "--redis-url="+s.redis.URL())
	}
	return more
}

// forget loses the folder where it is only a cache. No service may be running on it.
func (s *site) forget(t *testing.T) {
	t.Helper()
	if s.node != nil {
		s.dir = filepath.Join(t.TempDir(), "data")
	}
}

// start runs the service on the site.
func (s *site) start(t *testing.T, more ...string) *instance {
	t.Helper()
	return start(t, s.dir, s.args(more...)...)
}

// result is what one event was answered.
type result struct {
	DeduplicationKey      string
	Status, Code, Reason  string
	HTTPStatus            int
	Position, ProcessedAt string
	Revision, Generation  int64
	PayloadHash, LeafHash string
	EnvelopeChanged       bool
	Errors                []struct{ Path, Message string }
}

// answer is what a batch was answered.
type answer struct {
	Processed int
	Results   []result
	Summary   struct{ Accepted, Rejected, Duplicates int64 }
	Position  string
}

// verdicts are the statuses of an answer in order, a rejection's with its code.
func (a *answer) verdicts() (v []string) {
	for _, r := range a.Results {
		v = append(v, strings.TrimSpace(r.Status+" "+r.Code))
	}
	return v
}

// eventOf is an event of now, with the payload's JSON.
func eventOf(contract, event string, sequence int64, payload string) string {
	return eventAt(contract, event, sequence, time.Now(), payload)
}

func eventAt(contract, event string, sequence int64, at time.Time, payload string) string {
	return fmt.Sprintf(`{"contractId":%q,"eventId":%q,"sequence":%d,"timestamp":%d,"payload":%s}`, contract, event, sequence, at.UnixMilli(), payload)
}

func batch(contractType string, events ...string) string {
	return fmt.Sprintf(`{"contractType":%q,"events":[%s]}`, contractType, strings.Join(events, ","))
}

// ask sends a request, with headers as names and values in turn, and returns the answer's status and body.
func ask(client *http.Client, method, url, body string, headers ...string) (int, string, error) {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// send200 sends a batch that must be answered.
func send200(t *testing.T, url, body string, headers ...string) *answer {
	t.Helper()
	status, text, err := ask(http.DefaultClient, "POST", url+"/api/v1/events", body, headers...)
	a := new(answer)
	if err == nil && status == 200 {
		err = json.Unmarshal([]byte(text), a)
	}
	if err != nil || status != 200 {
		t.Fatalf("got %d %s %v, want an answer to a batch", status, text, err)
	}
	return a
}

// stats are the numbers of /api/v1/stats.
type stats struct {
	Total, Accepted, Rejected, Duplicates, Conflicts, Contracts int64
	ByContractType, ByCode, Findings                            map[string]int64
	AsOf                                                        struct{ Position string }
	Lag                                                         struct{ Records int64 }
}

// settled waits until all is in the numbers, repeats that were counted too, and returns them.
func settled(t *testing.T, url string, ok func(*stats) bool) *stats {
	t.Helper()
	s := new(stats)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(time.Minute); ; <-tick.C {
		*s = stats{}
		get(t, url+"/api/v1/stats", s)
		if s.Lag.Records == 0 && ok(s) {
			return s
		}
		if time.Now().After(late) {
			t.Fatalf("the numbers stay at %+v", *s)
		}
	}
}

// entry is a line of a history.
type entry struct {
	Position, DeduplicationKey, EventID string
	Revision                            int64
	Sequence, Generation, Supersedes    *int64
	Status, Code, ProcessedAt           string
	PayloadHash, LeafHash, Source       string
	PayloadChanged                      bool
	Duplicates                          int64
	Payload                             json.RawMessage
}

// entriesOf reads a contract's whole history, oldest first, page by page, with payloads or without.
func entriesOf(t *testing.T, url, contract string, payload bool) (all []entry) {
	t.Helper()
	for cursor := ""; ; {
		var page struct {
			Entries    []entry
			NextCursor string
		}
		get(t, url+"/api/v1/contracts/"+contract+fmt.Sprintf("/history?order=asc&payload=%t&limit=1000&cursor=%s", payload, cursor), &page)
		all = append(all, page.Entries...)
		if cursor = page.NextCursor; cursor == "" {
			return all
		}
	}
}

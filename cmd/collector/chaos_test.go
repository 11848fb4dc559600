package main

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/cmd/collector/internal/testledger"
	"github.com/talenttrust/auditledger/cmd/collector/outbox"
	"github.com/talenttrust/auditledger/ledger/canonical"

	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// ledgerProcess is the ledger that TestChaos kills: it keeps its records in a file, synced before
// each answer, and loses one answer in fifty.
func ledgerProcess(args []string) error {
	l, err := testledger.Open(args[1])
	if err != nil {
		return err
	}
	l.Fault = func(int, *http.Request) testledger.Fault {
		lost := rand.IntN(50) == 0
		return testledger.Fault{Store: lost, Reset: lost}
	}
	return http.ListenAndServe(args[0], l)
}

// TestChaos kills the ledger and the collector and cuts the network between them at random, while
// files are written and rotated. In the end every event is in the ledger exactly once, none is in
// two places, and the dead letters are exactly the bad ones that were planted.
//
// By default it is short and uses the small ledger of this package. The long form against the real
// service:
//
//	CHAOS_LEDGER=auditd CHAOS_DURATION=10m CHAOS_EVENTS=1000000 go test -run TestChaos -timeout 60m -v ./cmd/collector
func TestChaos(t *testing.T) {
	duration, err := time.ParseDuration(cmp.Or(os.Getenv("CHAOS_DURATION"), "8s"))
	if err != nil {
		t.Fatal(err)
	}
	events, err := strconv.Atoi(cmp.Or(os.Getenv("CHAOS_EVENTS"), "4000"))
	if err != nil {
		t.Fatal(err)
	}
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("CHAOS_SEED"), strconv.FormatInt(time.Now().UnixNano(), 10)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("CHAOS_SEED=%d, %d events in %v", seed, events, duration)

	c := &chaos{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), dir: t.TempDir(), good: map[string]string{}, bad: map[string]bool{}}
	c.chooseLedger(os.Getenv("CHAOS_LEDGER"))
	c.proxy = newProxy(t, c.ledgerAddr)
	c.startLedger()
	c.startCollector()
	var wg sync.WaitGroup
	wg.Go(func() { c.write(events, duration) })
	c.disturb(duration)
	wg.Wait()
	c.settle()
	c.check()
	t.Logf("disturbances: %v; requests cut: %d", c.done, c.proxy.cuts)
}

type chaos struct {
	t          testing.TB
	rnd        *rand.Rand // used by disturb only
	dir        string
	ledgerAddr string
	startIt    func() *process
	records    func() map[string][]string // what the ledger accepted: hashes by key
	ledger     *process
	collector  *process
	proxy      *proxy
	good       map[string]string // key to payload hash
	bad        map[string]bool   // bodies of planted dead letters, by key and hash
	done       [3]int
}

func (c *chaos) path(name string) string { return filepath.Join(c.dir, name) }

func freePort(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (c *chaos) chooseLedger(kind string) {
	c.ledgerAddr = freePort(c.t)
	switch kind {
	case "":
		c.startIt = func() *process { return startProcess(c.t, "ledger", c.ledgerAddr, c.path("ledger.ndjson")) }
		c.records = c.smallLedgerRecords
	case "auditd":
		binary := c.path("auditd")
		if out, err := exec.Command("go", "build", "-o", binary, "github.com/talenttrust/auditledger/cmd/auditd").CombinedOutput(); err != nil {
			c.t.Fatalf("CHAOS_LEDGER=auditd: the service does not build: %v\n%s", err, out)
		}
		c.startIt = func() *process { return startAuditd(c.t, binary, c.ledgerAddr, c.dir) }
		c.records = c.auditdRecords
	default:
		c.t.Fatalf("CHAOS_LEDGER=%s: want auditd or nothing", kind)
	}
}

// chaosToken is the bearer token of the one source that the service has in this test.
const chaosToken = "chaos-token"

// startAuditd starts the real service. Its source is as one fed by an outbox should be: keys are
// bound for ever, and events that come late are welcome.
func startAuditd(t testing.TB, binary, addr, dir string) *process {
	t.Helper()
	sources := filepath.Join(dir, "sources.yaml")
	writeFile(t, sources, fmt.Sprintf("sources:\n  - {name: chaos, role: admin, window: \"0\", late: accept, keys: [{id: k1, sha256: %x}]}\n", sha256.Sum256([]byte(chaosToken))))
	p := &process{cmd: exec.Command(binary), done: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), "LISTEN="+addr, "DATA_DIR="+filepath.Join(dir, "data"), "SOURCES_FILE="+sources)
	p.cmd.Stderr = &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(func() { p.cmd.Process.Kill() })
	return p
}

// ask reads a JSON answer of the service.
func (c *chaos) ask(path string, answer any) {
	c.t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+c.ledgerAddr+path, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+chaosToken)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(answer); err != nil || resp.StatusCode != http.StatusOK {
		c.t.Fatalf("%s: %d %v", path, resp.StatusCode, err)
	}
}

func (c *chaos) startLedger() {
	c.ledger = c.startIt()
	ledgertest.Until(c.t, "the ledger listens", func() bool {
		conn, err := net.Dial("tcp", c.ledgerAddr)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

func (c *chaos) startCollector() {
	c.collector = startProcess(c.t, "collector", "run", "--db", c.path("outbox.db"), "--url", "http://"+c.proxy.addr(), "--secret", chaosToken,
		"--follow", c.path("*.log*"), "--backoff-base", "20ms", "--backoff-max", "500ms", "--timeout", "5s", "--reserve", "0", "--log-level", "warn")
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// write spreads the events over the duration and rotates the file now and then.
func (c *chaos) write(events int, duration time.Duration) {
	rnd := rand.New(rand.NewPCG(c.rnd.Uint64(), 2))
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	perTick := max(events/int(duration/(20*time.Millisecond)), 1)
	f := c.newFile(0)
	for n, files := 0, 1; n < events; {
		for range perTick {
			c.writeOne(f, rnd, n)
			if n++; n == events {
				break
			}
		}
		if err := f.Flush(); err != nil {
			c.t.Error(err)
			return
		}
		if rnd.IntN(50) == 0 {
			c.rotate(files)
			f = c.newFile(files)
			files++
		}
		<-tick.C
	}
	if err := f.Flush(); err != nil {
		c.t.Error(err)
	}
}

func (c *chaos) newFile(int) *bufio.Writer {
	f, err := os.OpenFile(c.path("app.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Error(err)
	}
	c.t.Cleanup(func() { f.Close() })
	return bufio.NewWriterSize(f, 1000) // lines reach the file in pieces
}

func (c *chaos) rotate(n int) {
	if err := os.Rename(c.path("app.log"), c.path(fmt.Sprintf("app.log.%d", n))); err != nil {
		c.t.Error(err)
	}
}

func (c *chaos) writeOne(w io.Writer, rnd *rand.Rand, n int) {
	contract := fmt.Sprintf("c-%d", n%37)
	line := func(payload string) {
		fmt.Fprintf(w, `{"contractType":"lease_contract","contractId":%q,"eventId":"e-%d","sequence":%d,"timestamp":%d,"payload":%s}`+"\n", contract, n, n, time.Now().UnixMilli(), payload)
	}
	key := fmt.Sprintf("%s:e-%d:%d", contract, n, n)
	payload := fmt.Sprintf(`{"n":%d}`, n)
	switch rnd.IntN(200) {
	case 0: // the ledger refuses it
		line(`"text"`)
		c.bad[deadName(key, `"text"`)] = true
		return
	case 1: // no event at all
		fmt.Fprintf(w, "nonsense %d\n", n)
		c.bad[deadName("::", fmt.Sprintf("nonsense %d", n))] = true
		return
	case 2: // another payload under the same key: one of the two is refused, the second one
		line(payload)
		line(fmt.Sprintf(`{"n":%d,"other":true}`, n))
		c.bad[deadName(key, fmt.Sprintf(`{"n":%d,"other":true}`, n))] = true
	case 3: // the same twice
		line(payload)
		line(payload)
	default:
		line(payload)
	}
	c.good[key] = canonical.Sum([]byte(payload)).String()
}

func deadName(key, content string) string { return key + " " + canonical.Sum([]byte(content)).String() }

// disturb does one bad thing after the other until the time is over.
func (c *chaos) disturb(duration time.Duration) {
	end := time.Now().Add(duration)
	pause := min(duration/20, 5*time.Second)
	for time.Now().Before(end) {
		c.wait(pause/2 + rand.N(pause))
		what := c.rnd.IntN(len(c.done))
		c.done[what]++
		switch what {
		case 0:
			c.ledger.kill()
			c.wait(rand.N(pause))
			c.startLedger()
		case 1:
			c.proxy.cut(true)
			c.wait(rand.N(pause))
			c.proxy.cut(false)
		case 2:
			c.collector.kill()
			c.wait(rand.N(pause) / 4)
			c.startCollector()
		}
	}
}

func (c *chaos) wait(d time.Duration) { <-time.After(d) }

// settle waits until the collector has read and delivered everything, and stops it.
func (c *chaos) settle() {
	box, err := outbox.Open(c.t.Context(), outbox.Config{Path: c.path("outbox.db"), Reserve: -1})
	if err != nil {
		c.t.Fatal(err)
	}
	defer box.Close()
	deadline := time.Now().Add(max(2*time.Minute, 0))
	for quiet := 0; quiet < 20; {
		s, err := box.Stats(c.t.Context())
		if err != nil {
			c.t.Fatal(err)
		}
		if s.Pending == 0 && s.Dead == len(c.bad) && c.allRead(box) {
			quiet++
		} else {
			quiet = 0
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("after the disturbances: %d pending, %d dead (want %d), everything read: %v\n%s", s.Pending, s.Dead, len(c.bad), c.allRead(box), c.collector.stderr.String())
		}
		c.wait(50 * time.Millisecond)
	}
	c.collector.cmd.Process.Signal(os.Interrupt)
	if code := c.collector.wait(c.t); code != 0 {
		c.t.Errorf("the collector stopped with %d:\n%s", code, c.collector.stderr.String())
	}
}

// allRead reports whether every file is read to its end.
func (c *chaos) allRead(box *outbox.Outbox) bool {
	marks, err := box.Marks(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	read, size := int64(0), int64(0)
	for _, m := range marks {
		read += m.Position
	}
	files, _ := filepath.Glob(c.path("*.log*"))
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			c.t.Fatal(err)
		}
		size += info.Size()
	}
	return read == size
}

func (c *chaos) check() {
	got := c.records()
	for key, hash := range c.good {
		if hashes := got[key]; len(hashes) != 1 || hashes[0] != hash {
			c.t.Errorf("%s: the ledger has it %d times (%v), want once (%s)", key, len(hashes), hashes, hash)
		}
		delete(got, key)
	}
	if len(got) > 0 {
		c.t.Errorf("the ledger has %d events that nobody sent: %v", len(got), got)
	}
	box, err := outbox.Open(c.t.Context(), outbox.Config{Path: c.path("outbox.db"), Reserve: -1})
	if err != nil {
		c.t.Fatal(err)
	}
	defer box.Close()
	planted := len(c.bad)
	for d, err := range box.DeadLetters(c.t.Context(), outbox.Selection{}) {
		if err != nil {
			c.t.Fatal(err)
		}
		name := d.Key() + " " + d.PayloadHash.String()
		if !c.bad[name] {
			c.t.Errorf("a dead letter that was not planted: %s %s %s", name, d.Reason.Code, d.Reason.Text)
		}
		delete(c.bad, name)
	}
	if len(c.bad) > 0 {
		c.t.Errorf("%d planted bad events are no dead letters: %v", len(c.bad), c.bad)
	}
	c.t.Logf("%d events in the ledger once each, %d planted bad ones are the dead letters", len(c.good), planted)
}

func (c *chaos) smallLedgerRecords() map[string][]string {
	c.ledger.kill()
	l, err := testledger.Open(c.path("ledger.ndjson"))
	if err != nil {
		c.t.Fatal(err)
	}
	got := map[string][]string{}
	for _, rec := range l.Records() {
		got[rec.Key] = append(got[rec.Key], rec.Hash)
	}
	return got
}

// auditdRecords reads every contract's history over REST, once it shows all that is stored.
func (c *chaos) auditdRecords() map[string][]string {
	ledgertest.Until(c.t, "the projections catch up", func() bool {
		var stats struct{ Lag struct{ Records int } }
		c.ask("/api/v1/stats", &stats)
		return stats.Lag.Records == 0
	})
	got := map[string][]string{}
	for n := range 37 {
		for cursor, first := "", true; first || cursor != ""; first = false {
			var page struct {
				Entries []struct {
					DeduplicationKey string
					PayloadHash      string
				}
				NextCursor string
			}
			path := fmt.Sprintf("/api/v1/contracts/c-%d/history?limit=1000&status=accepted", n)
			if cursor != "" {
				path += "&cursor=" + url.QueryEscape(cursor)
			}
			c.ask(path, &page)
			for _, e := range page.Entries {
				got[e.DeduplicationKey] = append(got[e.DeduplicationKey], e.PayloadHash)
			}
			cursor = page.NextCursor
		}
	}
	return got
}

// proxy passes TCP connections on, until it is cut.
type proxy struct {
	listener net.Listener
	target   string
	mu       sync.Mutex // guards what follows
	isCut    bool
	conns    map[net.Conn]bool
	cuts     int
}

func newProxy(t testing.TB, target string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: target, conns: map[net.Conn]bool{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.pass(conn) })
		}
	})
	t.Cleanup(func() { l.Close(); p.cut(true); wg.Wait() })
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// cut drops every connection, and while it is on, every new one.
func (p *proxy) cut(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isCut = on
	for conn := range p.conns {
		conn.Close()
		p.cuts++
	}
	clear(p.conns)
}

// keep notes a connection and reports whether it may live.
func (p *proxy) keep(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isCut {
		conn.Close()
		return false
	}
	p.conns[conn] = true
	return true
}

func (p *proxy) pass(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer server.Close()
	if !p.keep(client) || !p.keep(server) {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { io.Copy(server, client); server.Close() })
	io.Copy(client, server)
	client.Close()
	wg.Wait()
}

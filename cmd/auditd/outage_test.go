package main

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// outages are what may happen to what the service stands on, for some time.
var outages = []struct {
	name  string
	begin func(*testing.T, *site, time.Duration)
	end   func(*testing.T, *site)
	ready string // what /readyz says meanwhile
}{
	{"node killed", func(_ *testing.T, s *site, _ time.Duration) { s.node.kill() }, func(t *testing.T, s *site) { s.node.start(t) }, `503 "store":"failing"`},
	{"node silent", func(t *testing.T, s *site, _ time.Duration) { s.node.freeze(t) }, func(t *testing.T, s *site) { s.node.thaw(t) }, `503 "store":"failing"`},
	{"redis killed", func(_ *testing.T, s *site, _ time.Duration) { s.redis.Stop() }, func(t *testing.T, s *site) { s.redis.Start(t) }, `200 "window":"away"`},
	{"redis silent", func(t *testing.T, s *site, length time.Duration) {
		s.redis.Do(t, "CLIENT", "PAUSE", strconv.FormatInt(length.Milliseconds(), 10), "ALL")
	}, func(*testing.T, *site) {}, `200 "window":"away"`},
}

func TestOutages(t *testing.T) { testOutages(t, 3*time.Second) }

// testOutages loads the service, as a process, while what it stands on is away for some time. Every request is
// answered, reads too; the service goes on by itself, nothing is lost or stored twice, and
// what it holds comes down to what it was.
func testOutages(t *testing.T, length time.Duration) {
	bin, nodeBin := buildProgram(t), buildNode(t)
	for _, o := range outages {
		t.Run(o.name, func(t *testing.T) {
			s, l := newSite(t, nodeBin, true, true), newLoad()
			p := startProgramLogging(t, bin, s.dir, io.Discard, s.args()...)
			defer p.end(t)
			l.start(p.url, 16)
			l.more(t, 50)
			if err := l.stop(); err != nil {
				t.Fatal(err)
			}
			idle := p.goroutines(t)
			l.start(p.url, 16)
			l.more(t, 20)
			o.begin(t, s, length)
			p.answersFor(t, length, o.ready)
			o.end(t, s)
			l.more(t, 50)
			if err := l.stop(); err != nil {
				t.Errorf("a request was not answered: %v", err)
			}
			until(t, func() bool {
				status, _, err := ask(http.DefaultClient, "GET", p.url+"/readyz", "")
				return err == nil && status == 200
			})
			l.check(t, p.url)
			http.DefaultClient.CloseIdleConnections()
			now := 0
			until(t, func() bool { // the client library leaves a few behind for each connection it gives up
				now = p.goroutines(t)
				return now <= idle+leftBehind
			})
			t.Logf("%d goroutines before and %d after, %d batches answered", idle, now, l.answered.Load())
		})
	}
}

// leftBehind is how many goroutines an outage may cost.
const leftBehind = 40

// answersFor reads while something is away. /readyz must be seen to say so; what is known is answered.
func (p *program) answersFor(t *testing.T, length time.Duration, ready string) {
	t.Helper()
	want, part, _ := strings.Cut(ready, " ")
	said := false
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for over := time.Now().Add(length); time.Now().Before(over); <-tick.C {
		var numbers stats
		get(t, p.url+"/api/v1/stats", &numbers)
		if numbers.Accepted == 0 {
			t.Errorf("got %+v while something is away", numbers)
		}
		status, text, err := ask(http.DefaultClient, "GET", p.url+"/readyz", "")
		if err != nil || status != 200 && status != 503 {
			t.Errorf("readyz: got %d %s %v", status, text, err)
		}
		said = said || strconv.Itoa(status) == want && strings.Contains(text, part)
	}
	if !said {
		t.Errorf("readyz did not say %s", ready)
	}
}

// goroutines is how many the process has.
func (p *program) goroutines(t *testing.T) int {
	t.Helper()
	_, text, err := ask(http.DefaultClient, "GET", p.url+"/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(text, "\ngo_goroutines ")
	value, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.Atoi(value)
	if err != nil {
		t.Fatalf("go_goroutines: %v", err)
	}
	return n
}

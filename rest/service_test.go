package rest_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/disk"
	"github.com/talenttrust/auditledger/rest"
)

func TestUnknownPathsAndMethods(t *testing.T) {
	s := newService(t, options{})
	for _, test := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"GET", "/", 404, ""},
		{"GET", "/api/v1/nothing", 404, ""},
		{"GET", "/api/v1/envelopes", 405, "POST"},
		{"GET", "/api/v1/events", 405, "POST"},
		{"DELETE", "/api/v1/stats", 405, "GET,HEAD"},
		{"PUT", "/api/v1/contracts/a@b.c/events", 405, "POST"},
		{"POST", "/healthz", 405, "GET,HEAD"},
	} {
		r := s.do(test.method, test.path, "")
		p := into[problem](t, r)
		if r.status != test.status || p.Status != test.status || strings.Join(r.header.Values("Allow"), ",") != test.allow {
			t.Errorf("%s %s: got %d %+v, Allow %v, want %d, %s", test.method, test.path, r.status, p, r.header.Values("Allow"), test.status, test.allow)
		}
	}
	if r := s.do("HEAD", "/healthz", ""); r.status != 200 || len(r.body) != 0 {
		t.Errorf("HEAD: got %d %s", r.status, r.body)
	}
}

func TestRequestIDs(t *testing.T) {
	s := newService(t, options{})
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	uuid := regexp.MustCompile(`^[0-9a-f-]{36}$`)
	for i, test := range []struct{ id, parent, wantParent string }{
		{"batch_7-A", parent, parent},
		{"", "", ""},
		{strings.Repeat("x", 65), "00-4bf9", ""},
		{"line\tbreak", strings.Replace(parent, "00-", "ff-", 1), ""},
		{"a:b", "00-" + strings.Repeat("0", 32) + parent[35:], ""},
	} {
		r := s.do("POST", "/api/v1/events", batch("lease_contract", event("c-1", "e-1", i, `{}`)), header("X-Request-Id", test.id), header("traceparent", test.parent))
		got := r.header.Get("X-Request-Id")
		if kept := test.id == "batch_7-A"; kept && got != test.id || !kept && !uuid.MatchString(got) {
			t.Errorf("%q: got id %s", test.id, got)
		}
		if r.header.Get("traceparent") != test.wantParent {
			t.Errorf("got traceparent %s, want %q", r.header.Get("traceparent"), test.wantParent)
		}
		recs, err := s.store.Read(t.Context(), []ledger.Position{ledger.Position(i + 2)})
		if err != nil {
			t.Fatal(err)
		}
		if y := recs[0].Body; y.CorrelationID != got || y.Traceparent != test.wantParent {
			t.Errorf("stored %s and %q, want %s and %q", y.CorrelationID, y.Traceparent, got, test.wantParent)
		}
		if !strings.Contains(s.log.String(), `"requestId":"`+got+`"`) {
			t.Errorf("id %s is not in the log", got)
		}
	}
}

// No payload value gets into a log line or an answer, whatever happens to the event.
func TestPayloadsStayOut(t *testing.T) {
	s := newService(t, options{rest: rest.Config{Extra: func(r chi.Router) {
		r.Get("/panic", func(http.ResponseWriter, *http.Request) { panic("zebra-5528") })
	}}})
	const canary = "zebra-5528"
	var answers bytes.Buffer
	for _, body := range []string{
		batch("payment_contract", event("c-1", "e-1", 1, `{"amount":"`+canary+`","`+`x":"`+canary+`"}`)),
		batch("lease_contract", event("c-1", "e-1", 1, `{"a":"`+canary+`"}`)),
		batch("lease_contract", event("c-1", "e-1", 1, `{"a":"`+canary+`!"}`)),
		batch("lease_contract", event("c-1", "e-1", 1, `{"a":1,"a":"`+canary+`"}`)),
		batch("lease_contract", `"`+canary+`"`),
		batch("lease_contract", event("c-1", "e-1", 1, `{"a":"`+canary+`"`)),
		batch("lease_contract", event("c-1", "e-1", 1, `{"a":`+canary+`}`)),
	} {
		answers.Write(s.do("POST", "/api/v1/events", body).body)
	}
	r := s.do("GET", "/panic?of="+canary, "")
	if p := into[problem](t, r); r.status != 500 || p.Code != "internal" {
		t.Errorf("panic: got %d %s", r.status, r.body)
	}
	answers.Write(r.body)
	for name, text := range map[string]string{"an answer": answers.String(), "the log": s.log.String()} {
		if strings.Contains(text, canary) {
			t.Errorf("%s holds a payload value: %s", name, text)
		}
	}
	if !strings.Contains(s.log.String(), `"route":"/panic"`) {
		t.Error("the panic's request is not in the log")
	}
}

func TestAbortedHandler(t *testing.T) {
	s := newService(t, options{rest: rest.Config{Extra: func(r chi.Router) {
		r.Get("/abort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	}}})
	if resp, err := s.Client().Get(s.URL + "/abort"); err == nil {
		resp.Body.Close()
		t.Errorf("got %d, want a cut connection", resp.StatusCode)
	}
}

func TestStoreUnavailable(t *testing.T) {
	var free atomic.Uint64
	free.Store(1 << 40)
	s := newService(t, options{disk: disk.Config{Reserve: 1 << 30, Free: func(string) (uint64, error) { return free.Load(), nil }}})
	body := batch("lease_contract", event("c-1", "e-1", 1, `{}`), `{}`)
	free.Store(1 << 20)
	r := s.do("POST", "/api/v1/events", body)
	p := into[problem](t, r)
	if r.status != 503 || p.Code != "ledger_unavailable" || r.header.Get("Retry-After") != "1" {
		t.Errorf("got %d %s, Retry-After %s", r.status, r.body, r.header.Get("Retry-After"))
	}
	for _, word := range []string{"reserve", "bytes", "disk", "accepted", "rejected", t.TempDir()} {
		if strings.Contains(string(r.body), word) {
			t.Errorf("the answer says %q: %s", word, r.body)
		}
	}
	if !strings.Contains(s.log.String(), "reserve") || !strings.Contains(s.log.String(), p.RequestID) {
		t.Error("the cause is not in the log with the request id")
	}
	free.Store(1 << 40)
	if r := s.do("POST", "/api/v1/events", body); r.status != 200 || into[answer](t, r).Summary.Accepted != 1 {
		t.Errorf("with room again: got %d %s", r.status, r.body)
	}
}

func TestFailedSync(t *testing.T) {
	var broken atomic.Bool
	s := newService(t, options{disk: disk.Config{Sync: func(*os.File) error {
		if broken.Load() {
			return errors.New("input/output error on /dev/secret-disk")
		}
		return nil
	}}})
	broken.Store(true)
	for range 2 {
		r := s.do("POST", "/api/v1/events", batch("lease_contract", event("c-1", "e-1", 1, `{}`)))
		if p := into[problem](t, r); r.status != 503 || p.Code != "ledger_unavailable" || strings.Contains(string(r.body), "secret-disk") {
			t.Errorf("got %d %s", r.status, r.body)
		}
	}
	if r := s.do("GET", "/healthz", ""); r.status != 200 {
		t.Errorf("healthz: got %d, want 200: the program is alive", r.status)
	}
}

// hanging is a disk whose syncs wait, once hang is set, until release is closed.
type hanging struct {
	hang             atomic.Bool
	syncing, release chan struct{}
}

func newHanging() *hanging {
	return &hanging{syncing: make(chan struct{}, 10), release: make(chan struct{})}
}

func (h *hanging) sync(*os.File) error {
	if h.hang.Load() {
		h.syncing <- struct{}{}
		<-h.release
	}
	return nil
}

func TestFullQueue(t *testing.T) {
	h := newHanging()
	s := newService(t, options{rest: rest.Config{MaxInflight: 1}, disk: disk.Config{Sync: h.sync}})
	body := batch("lease_contract", event("c-1", "e-1", 1, `{}`))
	h.hang.Store(true)
	first := make(chan reply)
	go func() { first <- s.do("POST", "/api/v1/events", body) }()
	<-h.syncing
	for _, path := range []string{"/api/v1/events", "/api/v1/events/validate", "/api/v1/contracts/c-1/events"} {
		r := s.do("POST", path, body)
		if p := into[problem](t, r); r.status != 503 || p.Code != "busy" || r.header.Get("Retry-After") == "" {
			t.Errorf("%s: got %d %s, want 503 busy", path, r.status, r.body)
		}
	}
	h.hang.Store(false)
	close(h.release)
	if r := <-first; r.status != 200 {
		t.Errorf("first: got %d %s", r.status, r.body)
	}
	for i := range 3 { // the place is free again, after successes and failures
		if r := s.do("POST", "/api/v1/events", `{`); r.status != 400 {
			t.Errorf("request %d: got %d, want 400", i, r.status)
		}
		if r := s.do("POST", "/api/v1/events", body); r.status != 200 {
			t.Errorf("request %d: got %d, want 200", i, r.status)
		}
	}
}

// While a sync hangs nothing is said of its events, not even that they are duplicates.
func TestHangingSync(t *testing.T) {
	h := newHanging()
	s := newService(t, options{rest: rest.Config{Timeout: 50 * time.Millisecond}, disk: disk.Config{Sync: h.sync}})
	body := batch("lease_contract", event("c-1", "e-1", 1, `{}`))
	h.hang.Store(true)
	for i := range 3 {
		if r := s.do("POST", "/api/v1/events", body); r.status != 503 {
			t.Errorf("request %d: got %d %s, want 503", i, r.status, r.body)
		}
	}
	h.hang.Store(false)
	close(h.release)
	r := s.do("POST", "/api/v1/events", body)
	if a := into[answer](t, r); r.status != 200 || a.Position != "2" {
		t.Errorf("got %d %s, want the one record behind the first", r.status, r.body)
	}
	if head, _ := s.store.Head(t.Context()); head != 2 && head != 3 { // a count of duplicates may follow
		t.Errorf("head: got %d", head)
	}
}

func TestCopiesAtOnce(t *testing.T) {
	s := newService(t, options{})
	replies := make(chan reply)
	const copies = 50
	for range copies {
		go func() {
			replies <- s.do("POST", "/api/v1/events", batch("lease_contract", event("c-1", "e-1", 1, `{"a":1}`)))
		}()
	}
	var accepted, duplicates int
	for range copies {
		a := into[answer](t, <-replies)
		accepted, duplicates = accepted+a.Summary.Accepted, duplicates+a.Summary.Duplicates
	}
	if accepted != 1 || duplicates != copies-1 {
		t.Errorf("got %d accepted, %d duplicates", accepted, duplicates)
	}
}

func TestSmallChunksKeepOrder(t *testing.T) {
	s := newService(t, options{ledger: ledger.Config{Chunk: 2}})
	a := s.post("lease_contract", event("c", "e", 5, `{}`), event("c", "e", 4, `{}`), event("c", "e", 5, `{}`), `{}`, event("d", "e", 1, `{}`))
	var got []string
	for _, r := range a.Results {
		if r.Key == nil {
			got = append(got, "none "+r.Status)
			continue
		}
		got = append(got, *r.Key+" "+r.Status)
	}
	if want := "c:e:5 accepted, c:e:4 accepted, c:e:5 duplicate, none rejected, d:e:1 accepted"; strings.Join(got, ", ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

// TestSlowSenders: however many requests are begun and not sent on, others are answered, and what is
// announced takes no memory.
func TestSlowSenders(t *testing.T) {
	s := newService(t, options{rest: rest.Config{MaxInflight: 2}})
	addr := strings.TrimPrefix(s.URL, "http://")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprintf(c, "POST /api/v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 8000000\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := http.Post(s.URL+"/api/v1/events", "application/json", strings.NewReader(`{"contractType":"x","events":[{}]}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("status %d while a hundred others are being sent slowly", resp.StatusCode)
	}
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 32<<20 {
		t.Errorf("a hundred announced bodies took %d bytes", grown)
	}
}

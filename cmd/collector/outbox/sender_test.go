package outbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/cmd/collector/internal/testledger"
	"github.com/talenttrust/auditledger/rest"

	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// serve runs a ledger with faults, if any.
func serve(t testing.TB, change ...func(*testledger.Ledger)) (*testledger.Ledger, string) {
	t.Helper()
	l := testledger.New()
	for _, c := range change {
		c(l)
	}
	srv := httptest.NewServer(l)
	t.Cleanup(srv.Close)
	t.Cleanup(l.Close)
	return l, srv.URL
}

// quick is a sender with waits of a few milliseconds.
func quick(t testing.TB, o *Outbox, url string, change ...func(*SenderConfig)) *Sender {
	t.Helper()
	cfg := SenderConfig{URL: url, Auth: NoAuth, BackoffBase: time.Millisecond, BackoffMax: 20 * time.Millisecond,
		Linger: time.Millisecond, ParkedRetry: 20 * time.Millisecond, StopGrace: 50 * time.Millisecond}
	for _, c := range change {
		c(&cfg)
	}
	s, err := NewSender(o, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func drain(t testing.TB, s *Sender) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := s.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Fatal("the outbox was not drained in time")
	}
}

// start runs a sender until the test ends, or until stop is called.
func start(t testing.TB, s *Sender) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// wantKeys checks that the ledger has exactly these keys, each once.
func wantKeys(t *testing.T, l *testledger.Ledger, want ...string) {
	t.Helper()
	got := map[string]int{}
	for _, rec := range l.Records() {
		got[rec.Key]++
	}
	for _, key := range want {
		if got[key] != 1 {
			t.Errorf("%s: got %d records, want 1", key, got[key])
		}
		delete(got, key)
	}
	if len(got) > 0 {
		t.Errorf("the ledger has more than wanted: %v", got)
	}
}

func TestDeliver(t *testing.T) {
	l, url := serve(t)
	o := open(t)
	var events []Event
	for i := range 2000 {
		e := event(fmt.Sprintf("c-%d", i%7), "e", i, `{"n":1}`)
		e.Type = []string{"lease_contract", "payment_x", "talent_x"}[i%3]
		events = append(events, e)
	}
	for i := range 20 {
		events = append(events, envelope("777001@g.us", fmt.Sprintf("1e6e0c10-8204-53b6-9664-0000000000%02d", i), `{"n":1}`))
	}
	enqueue(t, o, events...)
	var want []string
	for _, e := range events {
		want = append(want, e.Key())
	}
	// Small bounds: several batches, and more than memory may hold.
	drain(t, quick(t, o, url, func(c *SenderConfig) { c.BatchEvents = 100; c.BatchBytes = 8000; c.MemoryBytes = 100_000 }))
	wantKeys(t, l, want...)
	wantCounts(t, o, 0, 0, 0)

	last := map[string]int{}
	for _, rec := range l.Records() {
		parts := strings.Split(rec.Key, ":")
		var n int
		fmt.Sscan(parts[2], &n)
		if strings.HasPrefix(rec.Key, "c-") && n < last[parts[0]] {
			t.Errorf("%s came after number %d of its contract", rec.Key, last[parts[0]])
		}
		last[parts[0]] = n
	}
}

// Every answer, to one event, to an envelope, and inside a batch: what becomes of the event.
func TestClassification(t *testing.T) {
	const sent, dead, again, alert, parked = "sent", "dead", "again", "again and alert", "parked"
	for _, c := range []struct {
		status        int
		request, item string
	}{
		{200, sent, alert}, {201, sent, alert}, {202, alert, alert}, {204, alert, alert}, {302, alert, alert}, {307, alert, alert},
		{400, dead, dead}, {401, alert, dead}, {402, alert, alert}, {403, alert, parked}, {404, alert, alert}, {405, alert, alert},
		{408, again, again}, {409, dead, dead}, {410, dead, dead}, {411, alert, alert}, {413, dead, dead}, {415, dead, dead}, {418, alert, alert},
		{422, dead, dead}, {425, again, again}, {429, again, again}, {500, again, again}, {502, again, again}, {503, again, again}, {599, again, again},
	} {
		names := map[verdict]string{done: sent, bury: dead, retry: again, retryAlert: alert, park: parked}
		request, _ := classify(c.status)
		if names[request] != c.request {
			t.Errorf("a request with %d: got %s, want %s", c.status, names[request], c.request)
		}
		if got := names[(result{Status: "rejected", HTTPStatus: c.status}).verdict()]; got != c.item {
			t.Errorf("an item with %d: got %s, want %s", c.status, got, c.item)
		}
	}
	for status, want := range map[string]verdict{"accepted": done, "duplicate": done, "rejected": bury, "": retryAlert, "other": retryAlert} {
		if got := (result{Status: status}).verdict(); got != want {
			t.Errorf("an item that is %q: got %d, want %d", status, got, want)
		}
	}
}

// The same over HTTP, once per status and form: the event is where it belongs.
func TestAnswersOverHTTP(t *testing.T) {
	for _, status := range []int{400, 409, 410, 413, 415, 422} {
		for _, e := range []Event{event("c", "e", 1, `{}`), envelope("c", "1e6e0c10-8204-53b6-9664-9b4d6f510160", `{}`)} {
			l, url := serve(t, func(l *testledger.Ledger) {
				l.Fault = func(int, *http.Request) testledger.Fault {
					return testledger.Fault{Status: status, Body: `{"code":"for_the_test","detail":"no"}`}
				}
			})
			o := open(t)
			enqueue(t, o, e)
			alerts := NewAlerts(slog.New(slog.DiscardHandler), nil)
			drain(t, quick(t, o, url, func(c *SenderConfig) { c.Alerts = alerts }))
			wantCounts(t, o, 0, 0, 1)
			if d := letters(t, o, Selection{}); d[0].Reason.Status != status || d[0].Reason.Code != "for_the_test" || d[0].Reason.Text != "no" {
				t.Errorf("%d: got %+v", status, d[0].Reason)
			}
			if a := alerts.State(AlertDead); !a.Raised || a.Count != 1 {
				t.Errorf("%d: got alert %+v", status, a)
			}
			if l.Requests() != 1 {
				t.Errorf("%d: got %d requests, want 1", status, l.Requests())
			}
		}
	}
}

// refuse answers the first n requests with a fault and the others rightly.
func refuse(n int, fault testledger.Fault) func(*testledger.Ledger) {
	return func(l *testledger.Ledger) {
		l.Fault = func(request int, _ *http.Request) testledger.Fault {
			if request <= n {
				return fault
			}
			return testledger.Fault{}
		}
	}
}

func TestMisbehavingServer(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault testledger.Fault
		alert string
	}{
		{"503 twice", testledger.Fault{Status: 503, Header: map[string]string{"Retry-After": "0"}}, ""},
		{"429", testledger.Fault{Status: 429}, ""},
		{"never answers", testledger.Fault{Hang: true}, ""},
		{"stores and never answers", testledger.Fault{Hang: true, Store: true}, ""},
		{"resets", testledger.Fault{Reset: true}, ""},
		{"stores and resets", testledger.Fault{Reset: true, Store: true}, ""},
		{"answers half", testledger.Fault{Half: true}, ""},
		{"redirects", testledger.Fault{Status: 307, Header: map[string]string{"Location": "http://127.0.0.1:1/"}}, AlertRefused},
		{"HTML with 200", testledger.Fault{Status: 200, Body: "<html>welcome</html>"}, AlertAnswer},
		{"nothing with 200", testledger.Fault{Status: 200}, AlertAnswer},
		{"too few results", testledger.Fault{Status: 200, Body: `{"results":[]}`}, AlertAnswer},
		{"other results", testledger.Fault{Status: 200, Body: `{"results":[{"deduplicationKey":"x:y:1","status":"accepted"},{"deduplicationKey":"c:e:2","status":"accepted"}]}`}, AlertAnswer},
		{"results without a verdict", testledger.Fault{Status: 200, Body: `{"results":[{},{}]}`}, AlertAnswer},
		{"202", testledger.Fault{Status: 202, Body: `{}`}, AlertRefused},
		{"401", testledger.Fault{Status: 401}, AlertRefused},
		{"404", testledger.Fault{Status: 404}, AlertRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, url := serve(t, refuse(2, c.fault))
			o := open(t)
			enqueue(t, o, event("c", "e", 1, `{}`), event("c", "e", 2, `{}`))
			var mu sync.Mutex
			var seen []string
			alerts := NewAlerts(slog.New(slog.DiscardHandler), func(a Alert) {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, fmt.Sprint(a.Kind, " ", a.Raised))
			})
			drain(t, quick(t, o, url, func(c *SenderConfig) { c.AttemptTimeout = 100 * time.Millisecond; c.Connections = 1; c.Alerts = alerts }))
			wantKeys(t, l, "c:e:1", "c:e:2")
			wantCounts(t, o, 0, 0, 0)
			if l.Requests() != 3 {
				t.Errorf("got %d requests, want 3", l.Requests())
			}
			want := ""
			if c.alert != "" {
				want = fmt.Sprintf("%s true,%s false", c.alert, c.alert)
			}
			if got := strings.Join(seen, ","); got != want {
				t.Errorf("alerts: got %q, want %q", got, want)
			}
		})
	}
}

func TestEnvelopeAnswers(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault testledger.Fault
	}{
		{"HTML", testledger.Fault{Status: 201, Body: "<html>"}},
		{"says that it is not stored", testledger.Fault{Status: 200, Body: `{"status":"rejected","httpStatus":422}`}},
		{"nobody there", testledger.Fault{Reset: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, url := serve(t, refuse(1, c.fault))
			o := open(t)
			e := envelope("777001@g.us", "1e6e0c10-8204-53b6-9664-9b4d6f510160", `{"a":1}`)
			enqueue(t, o, e)
			drain(t, quick(t, o, url))
			wantKeys(t, l, e.Key())
		})
	}
}

// Three times 401: the alert counts 1, 2, 3 and is announced once; the event stays; then it goes.
func TestAuthAlertCounts(t *testing.T) {
	var counts []int
	var announced atomic.Int64
	alerts := NewAlerts(slog.New(slog.DiscardHandler), func(Alert) { announced.Add(1) })
	o := open(t)
	_, url := serve(t, func(l *testledger.Ledger) {
		l.Fault = func(request int, _ *http.Request) testledger.Fault {
			counts = append(counts, alerts.State(AlertRefused).Count)
			if s := stats(t, o); s.Pending != 1 {
				t.Errorf("at request %d: got %d pending, want 1", request, s.Pending)
			}
			if request <= 3 {
				return testledger.Fault{Status: 401}
			}
			return testledger.Fault{}
		}
	})
	enqueue(t, o, event("c", "e", 1, `{}`))
	drain(t, quick(t, o, url, func(c *SenderConfig) { c.Alerts = alerts }))
	if got, want := fmt.Sprint(counts), "[0 1 2 3]"; got != want {
		t.Errorf("counts before each request: got %s, want %s", got, want)
	}
	if a := alerts.State(AlertRefused); a.Raised || a.Count != 0 {
		t.Errorf("at the end: got %+v, want it cleared", a)
	}
	if n := announced.Load(); n != 2 {
		t.Errorf("got %d announcements, want 2: raised and over", n)
	}
}

// A whole-batch refusal is narrowed down to the event that causes it.
func TestGuiltyEvent(t *testing.T) {
	for _, status := range []int{400, 413, 415, 422} {
		l, url := serve(t, func(l *testledger.Ledger) {
			l.Fault = func(_ int, r *http.Request) testledger.Fault {
				body, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(body))
				if bytes.Contains(body, []byte("guilty")) {
					return testledger.Fault{Status: status}
				}
				return testledger.Fault{}
			}
		})
		o := open(t)
		var want []string
		for i := range 100 {
			e := event("c", "e", i, `{}`)
			if i == 37 || i == 38 {
				e = event("c", "guilty", i, `{}`)
			} else {
				want = append(want, e.Key())
			}
			enqueue(t, o, e)
		}
		drain(t, quick(t, o, url))
		wantKeys(t, l, want...)
		wantCounts(t, o, 0, 0, 2)
		for i, d := range letters(t, o, Selection{}) {
			if d.EventID != "guilty" || d.Reason.Status != status {
				t.Errorf("%d: dead letter %d is %+v", status, i, d)
			}
		}
	}
}

// Too large together, each fine alone.
func TestBatchTooLarge(t *testing.T) {
	l, url := serve(t, func(l *testledger.Ledger) { l.MaxBody = 500 })
	o := open(t)
	var want []string
	for i := range 20 {
		e := event("c", "e", i, `{}`)
		want = append(want, e.Key())
		enqueue(t, o, e)
	}
	drain(t, quick(t, o, url))
	wantKeys(t, l, want...)
	wantCounts(t, o, 0, 0, 0)
}

func TestItemVerdicts(t *testing.T) {
	var allowed atomic.Bool
	l, url := serve(t, func(l *testledger.Ledger) {
		l.Judge = func(contractType string, e testledger.Event) *testledger.Result {
			switch {
			case contractType == "forbidden" && !allowed.Load():
				return &testledger.Result{HTTPStatus: 403, Code: "contract_type_not_allowed"}
			case e.EventID == "badly-signed":
				return &testledger.Result{HTTPStatus: 401, Code: "invalid_signature"}
			case e.EventID == "bad":
				return &testledger.Result{HTTPStatus: 422, Code: "invalid_payload"}
			}
			return nil
		}
	})
	forbidden := event("c", "f", 3, `{}`)
	forbidden.Type = "forbidden"
	letter := envelope("777001@g.us", "1e6e0c10-8204-53b6-9664-9b4d6f510160", `{"a":1}`)
	letter.Type = "forbidden"
	letter.Body = appendEnvelope(letter.Type, letter.ContractID, []byte(`{"a":1}`))
	o := open(t)
	enqueue(t, o, event("c", "e", 1, `{}`), event("c", "e", 1, `{"conflict":1}`), event("c", "bad", 2, `{}`), forbidden, letter,
		event("c", "badly-signed", 4, `{}`), event("c", "e", 5, `{}`))
	alerts := NewAlerts(slog.New(slog.DiscardHandler), nil)
	s := quick(t, o, url, func(c *SenderConfig) { c.Alerts = alerts })
	stop := start(t, s)
	ledgertest.Until(t, "the others are settled", func() bool { s := stats(t, o); return s.Pending == 2 && s.Parked == 2 && s.Dead == 3 })
	wantKeys(t, l, "c:e:1", "c:e:5")
	if a := alerts.State(AlertParked); !a.Raised {
		t.Errorf("got alert %+v, want it raised", a)
	}
	codes := map[string]bool{}
	for _, d := range letters(t, o, Selection{}) {
		codes[d.Reason.Code] = true
	}
	for _, code := range []string{"IDEMPOTENCY_PAYLOAD_CONFLICT", "invalid_signature", "invalid_payload"} {
		if !codes[code] {
			t.Errorf("no dead letter has the code %s: %v", code, codes)
		}
	}
	allowed.Store(true)
	ledgertest.Until(t, "the parked ones are delivered", func() bool { return stats(t, o).Pending == 0 })
	stop()
	wantKeys(t, l, "c:e:1", "c:e:5", forbidden.Key(), letter.Key())
}

// A sender that is stopped in the middle of a request leaves the event where it was; the next one
// delivers it, and the ledger has it once.
func TestStopAndGoOn(t *testing.T) {
	asked := make(chan struct{}, 100)
	l, url := serve(t, func(l *testledger.Ledger) {
		l.Fault = func(request int, _ *http.Request) testledger.Fault {
			asked <- struct{}{}
			return testledger.Fault{Hang: request == 1, Store: true}
		}
	})
	o := open(t)
	enqueue(t, o, event("c", "e", 1, `{}`))
	stop := start(t, quick(t, o, url))
	<-asked
	stop()
	wantCounts(t, o, 1, 0, 0)
	drain(t, quick(t, o, url, func(c *SenderConfig) {}))
	wantKeys(t, l, "c:e:1")
	wantCounts(t, o, 0, 0, 0)
}

// An answer that comes while the sender is being stopped still counts.
func TestStopWaitsForTheAnswer(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	l, url := serve(t, func(l *testledger.Ledger) {
		l.Fault = func(int, *http.Request) testledger.Fault {
			close(asked)
			<-answer
			return testledger.Fault{}
		}
	})
	o := open(t)
	enqueue(t, o, event("c", "e", 1, `{}`))
	stop := start(t, quick(t, o, url, func(c *SenderConfig) { c.StopGrace = 20 * time.Second }))
	<-asked
	time.AfterFunc(20*time.Millisecond, func() { close(answer) }) // while stop waits
	stop()
	wantKeys(t, l, "c:e:1")
	wantCounts(t, o, 0, 0, 0)
}

// Two senders on one outbox: one delivers, the other takes over when it stops. No event is sent twice.
func TestTwoSenders(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	_, url := serve(t, func(l *testledger.Ledger) {
		l.Judge = func(_ string, e testledger.Event) *testledger.Result {
			mu.Lock()
			defer mu.Unlock()
			seen[string(e.Sequence)]++
			return nil
		}
	})
	o := open(t)
	other, err := Open(t.Context(), o.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	stopFirst := start(t, quick(t, o, url))
	stopSecond := start(t, quick(t, other, url))
	for i := range 300 {
		enqueue(t, []*Outbox{o, other}[i%2], event("c", "e", i, `{}`))
		if i == 150 {
			ledgertest.Until(t, "half is delivered", func() bool { return stats(t, o).Pending == 0 })
			stopFirst()
		}
	}
	ledgertest.Until(t, "all is delivered", func() bool { return stats(t, other).Pending == 0 })
	stopSecond()
	mu.Lock()
	defer mu.Unlock()
	for i := range 300 {
		if n := seen[fmt.Sprint(i)]; n != 1 {
			t.Errorf("event %d was sent %d times, want once", i, n)
		}
	}
}

func TestAuthSchemes(t *testing.T) {
	secret, err := rest.ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := rest.RawSecret("unit-secret")
	if err != nil {
		t.Fatal(err)
	}
	keyID := func(h http.Header) error {
		if h.Get("X-Key-Id") != "key-1" {
			return errors.New("no key id")
		}
		return nil
	}
	for name, c := range map[string]struct {
		auth   Auth
		verify func(h http.Header, body []byte) error
	}{
		"bearer": {Bearer("t0ken"), func(h http.Header, _ []byte) error {
			if h.Get("Authorization") != "Bearer t0ken" {
				return errors.New("no token")
			}
			return nil
		}},
		"webhook": {Webhook("key-1", secret), func(h http.Header, body []byte) error {
			return errors.Join(keyID(h), rest.VerifyWebhook([]rest.Secret{secret}, h, body, time.Now()))
		}},
		"legacy": {Legacy("key-1", raw), func(h http.Header, body []byte) error {
			return errors.Join(keyID(h), rest.VerifyLegacy([]rest.Secret{raw}, h, body))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			ids, tries := map[string]int{}, map[string]int{}
			l, url := serve(t, func(l *testledger.Ledger) {
				l.Auth = func(h http.Header, body []byte) error {
					mu.Lock()
					defer mu.Unlock()
					ids[h.Get("Webhook-Id")]++
					return c.verify(h, body)
				}
				l.Fault = func(_ int, r *http.Request) testledger.Fault {
					mu.Lock()
					defer mu.Unlock()
					if tries[r.URL.Path]++; tries[r.URL.Path] <= 2 { // judged, then lost: the next attempt is signed anew
						return testledger.Fault{Reset: true, Store: true}
					}
					return testledger.Fault{}
				}
			})
			o := open(t)
			one, two := event("c", "e", 1, `{}`), envelope("777001@g.us", "1e6e0c10-8204-53b6-9664-9b4d6f510160", `{"a":1}`)
			enqueue(t, o, one, two)
			drain(t, quick(t, o, url, func(cfg *SenderConfig) { cfg.Auth = c.auth }))
			wantKeys(t, l, one.Key(), two.Key())
			wantCounts(t, o, 0, 0, 0)
			// Three attempts each: an envelope is sent again under its own id, a batch under a new one.
			if name == "webhook" && (len(ids) != 4 || ids["1e6e0c10-8204-53b6-9664-9b4d6f510160"] != 3) {
				t.Errorf("got ids %v, want the envelope's three times and three of the batch once", ids)
			}
		})
	}
}

func TestNewSenderRefuses(t *testing.T) {
	o := open(t)
	for url, want := range map[string]string{"": "url: is missing", "ledger:8080": "want http", "ftp://x": "want http", "http://": "want http",
		"http://user:planted@x": "credentials", "http://x?token=planted": "query", "http://x#f": "fragment"} {
		_, err := NewSender(o, SenderConfig{URL: url, Auth: NoAuth})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "planted") {
			t.Errorf("NewSender(%q): got %v, want it to say %q and no secret", url, err, want)
		}
	}
	if _, err := NewSender(o, SenderConfig{URL: "http://x"}); err == nil || !strings.Contains(err.Error(), "auth") {
		t.Errorf("without Auth: got %v", err)
	}
}

// No payload value reaches the log, whatever goes wrong.
func TestLogHoldsNoPayload(t *testing.T) {
	var log ledgertest.Log
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	_, url := serve(t, func(l *testledger.Ledger) {
		l.Fault = func(request int, _ *http.Request) testledger.Fault {
			return []testledger.Fault{{Status: 503}, {Status: 401}, {Reset: true}, {Half: true}, {Status: 200, Body: "planted"}, {}}[min(request-1, 5)]
		}
		l.Judge = func(string, testledger.Event) *testledger.Result {
			return &testledger.Result{HTTPStatus: 422, Code: "invalid_payload"}
		}
	})
	o := open(t)
	enqueue(t, o, event("c", "e", 1, `{"secret":"planted"}`))
	drain(t, quick(t, o, url, func(c *SenderConfig) { c.Log = logger; c.Alerts = NewAlerts(logger, nil) }))
	if text := log.String(); strings.Contains(text, "planted") || !strings.Contains(text, "key=c:e:1") {
		t.Errorf("the log: %s", text)
	}
}

func TestBackoff(t *testing.T) {
	for n, ceiling := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		longest := time.Duration(0)
		for range 2000 {
			d := backoff(time.Second, 300*time.Second, n)
			if d < 0 || d > ceiling*time.Second {
				t.Fatalf("failure %d: got %v, want at most %v s", n, d, int(ceiling))
			}
			longest = max(longest, d)
		}
		if longest < ceiling*time.Second*9/10 {
			t.Errorf("failure %d: of 2000 the longest wait is %v, want close to %v s", n, longest, int(ceiling))
		}
	}
	for _, n := range []int{40, 62, 63, 64, 1000} {
		if d := backoff(time.Second, 300*time.Second, n); d < 0 || d > 300*time.Second {
			t.Errorf("failure %d: got %v", n, d)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "-7": 0, "soon": 0, "99999999": time.Hour, "99999999999999": 0,
		"Thu, 01 Jan 2026 00:00:30 GMT": 30 * time.Second, "Wed, 31 Dec 2025 00:00:00 GMT": 0, "Thu, 01 Jan 2099 00:00:00 GMT": time.Hour} {
		if got := retryAfter(http.Header{"Retry-After": {text}}, now); got != want {
			t.Errorf("Retry-After: %s: got %v, want %v", text, got, want)
		}
	}
}

func TestRetryAfterIsObeyed(t *testing.T) {
	var times []time.Time
	_, url := serve(t, func(l *testledger.Ledger) {
		l.Fault = func(request int, _ *http.Request) testledger.Fault {
			times = append(times, time.Now())
			if request == 1 {
				return testledger.Fault{Status: 503, Header: map[string]string{"Retry-After": "1"}}
			}
			return testledger.Fault{}
		}
	})
	o := open(t)
	enqueue(t, o, event("c", "e", 1, `{}`))
	drain(t, quick(t, o, url))
	if len(times) != 2 || times[1].Sub(times[0]) < time.Second {
		t.Errorf("got requests at %v, want a second between them", times)
	}
}

// The order of a contract is kept when its events cannot all go with the first batch.
func TestTake(t *testing.T) {
	p := func(typ, contract string, n int) Pending {
		e := event(contract, "e", n, `{}`)
		e.Type = typ
		return Pending{Seq: int64(n), Event: e}
	}
	queue := []Pending{p("a", "x", 1), p("b", "y", 2), p("a", "y", 3), p("a", "x", 4), p("a", "z", 5), p("a", "z", 6)}
	var got []string
	for len(queue) > 0 {
		var batch []Pending
		batch, queue = take(queue, 3, 1<<20)
		text := ""
		for _, one := range batch {
			text += fmt.Sprint(one.Seq)
		}
		got = append(got, text)
	}
	if want := "[145 2 36]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

// Whatever a server answers, an event counts as delivered only where the answer says so for it.
func FuzzJudge(f *testing.F) {
	f.Add(200, []byte(`{"results":[{"status":"accepted"},{"status":"rejected","httpStatus":409}]}`))
	f.Add(200, []byte(`{"results":[{"status":"accepted"}]}`))
	f.Add(403, []byte(`{"code":"contract_type_not_allowed","status":403}`))
	f.Add(500, []byte(`<html>`))
	batch := []Pending{{Seq: 1, Event: event("c", "e", 1, `{}`)}, {Seq: 2, Event: event("c", "e", 2, `{}`)}}
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		a := judge(status, body, batch)
		settled, again := a.settle(batch)
		if len(settled)+len(again) != len(batch) {
			t.Fatalf("%d %q: %d settled and %d again of %d", status, body, len(settled), len(again), len(batch))
		}
		for _, s := range settled {
			if s.Fate == Sent && (status != 200 && status != 201 || !bytes.Contains(body, []byte("c"))) {
				t.Errorf("%d %q: counts as delivered", status, body)
			}
		}
		judge(status, body, []Pending{{Seq: 1, Event: envelope("c", "u", `{}`)}})
	})
}

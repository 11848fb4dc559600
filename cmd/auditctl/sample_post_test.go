package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
)

// fakeService answers batches as the public contract says, from the naive ledger. Before that it
// plays its disturbances, one per request.
type fakeService struct {
	mu           sync.Mutex // guards all below
	ledger       *naiveLedger
	token        string
	disturbances []func(w http.ResponseWriter, batch []byte)
}

func (s *fakeService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	batch, err := io.ReadAll(r.Body)
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/api/v1/events" || r.Header.Get("Content-Type") != "application/json" {
		http.Error(w, "not a batch", http.StatusBadRequest)
		return
	}
	if s.token != "" && r.Header.Get("Authorization") != "Bearer "+s.token {
		http.Error(w, `{"code":"unauthenticated"}`, http.StatusUnauthorized)
		return
	}
	if len(s.disturbances) > 0 {
		disturb := s.disturbances[0]
		s.disturbances = s.disturbances[1:]
		disturb(w, batch)
		return
	}
	before := *s.ledger.summary
	results, err := s.ledger.take(batch)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	after := s.ledger.summary
	json.MarshalWrite(w, map[string]any{
		"processed": len(results),
		"results":   results,
		"summary": map[string]int{
			"accepted":   after.Accepted - before.Accepted,
			"duplicates": after.Duplicates - before.Duplicates,
			"rejected":   after.Rejected - before.Rejected,
		},
	})
}

func refuse(status int, retryAfter string) func(http.ResponseWriter, []byte) {
	return func(w http.ResponseWriter, _ []byte) {
		w.Header().Set("Retry-After", retryAfter)
		http.Error(w, `{"code":"busy"}`, status)
	}
}

func newFakeService(t *testing.T, disturbances ...func(http.ResponseWriter, []byte)) (*fakeService, string) {
	service := &fakeService{ledger: newNaiveLedger(t, false), disturbances: disturbances}
	server := httptest.NewServer(service)
	t.Cleanup(server.Close)
	return service, server.URL
}

// samplePost runs "auditctl sample --post" and returns what it says.
func samplePost(t *testing.T, url string, args ...string) (string, error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	args = append([]string{"sample", "--now", sampleNow, "--events", "1500", "--batch", "50", "--post", url}, args...)
	err := run(t.Context(), args, nil, &stdout, &stderr)
	if stdout.Len() > 0 {
		t.Errorf("wrote to stdout: %.100s", stdout.String())
	}
	return stderr.String(), err
}

func TestPostAgrees(t *testing.T) {
	service, url := newFakeService(t, refuse(http.StatusServiceUnavailable, "0"), refuse(http.StatusTooManyRequests, "0"))
	service.token = "secret-token"
	said, err := samplePost(t, url+"/", "--expect", "--token", "secret-token")
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	if service.ledger.summary.Events != 1500 || len(service.disturbances) != 0 {
		t.Errorf("got %d events, want 1500; %d disturbances are left", service.ledger.summary.Events, len(service.disturbances))
	}
	for _, want := range []string{"agree with the summary", "status 503", "status 429", "1500 of 1500 events"} {
		if !strings.Contains(said, want) {
			t.Errorf("got\n%s\nwant %q", said, want)
		}
	}
	if strings.Contains(said, "secret-token") {
		t.Errorf("says the token:\n%s", said)
	}
}

func TestPostTakesTokenFromEnvironment(t *testing.T) {
	service, url := newFakeService(t)
	service.token = "from-environment"
	t.Setenv("AUDITCTL_TOKEN", "from-environment")
	if said, err := samplePost(t, url, "--expect"); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
}

func TestPostToUsedLedgerDiffers(t *testing.T) {
	_, url := newFakeService(t)
	if said, err := samplePost(t, url, "--expect"); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	said, err := samplePost(t, url)
	if err != nil || !strings.Contains(said, "DIFFER from the summary: accepted 0, expected ") {
		t.Errorf("without --expect: got error %v and\n%s", err, said)
	}
	if _, err := samplePost(t, url, "--expect"); err == nil || !strings.Contains(err.Error(), "differ") {
		t.Errorf("with --expect: got error %v, want one", err)
	}
}

// TestPostSaysWhenAnswersWereLost has the service store a batch whose answer never arrives.
func TestPostSaysWhenAnswersWereLost(t *testing.T) {
	service, url := newFakeService(t)
	service.disturbances = append(service.disturbances, func(_ http.ResponseWriter, batch []byte) {
		if _, err := service.ledger.take(batch); err != nil {
			t.Error(err)
		}
		panic(http.ErrAbortHandler)
	})
	said, err := samplePost(t, url, "--expect")
	if err == nil || !strings.Contains(said, "1 batches were sent again") {
		t.Errorf("got error %v and\n%s", err, said)
	}
}

func TestPostGivesUpOnRefusal(t *testing.T) {
	service, url := newFakeService(t)
	service.token = "secret-token"
	if _, err := samplePost(t, url); err == nil || !strings.Contains(err.Error(), "status 401") || !strings.Contains(err.Error(), "unauthenticated") {
		t.Errorf("got %v, want the status and what the service says", err)
	}
	service.token = ""
	service.disturbances = append(service.disturbances, func(w http.ResponseWriter, _ []byte) { io.WriteString(w, `{"results":[],"summary":{}}`) })
	if _, err := samplePost(t, url); err == nil || !strings.Contains(err.Error(), "0 of 50 events") {
		t.Errorf("results missing: got %v", err)
	}
}

// TestPostBacksOff looks at the pauses between tries, without waiting for them.
func TestPostBacksOff(t *testing.T) {
	unreachable := httptest.NewServer(nil)
	unreachable.Close()
	_, busy := newFakeService(t, refuse(503, "7"), refuse(503, ""), refuse(503, "soon"), refuse(429, time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)), refuse(503, "86400"))
	for name, tc := range map[string]struct {
		url  string
		want []time.Duration
		err  bool
	}{
		"busy":        {busy, []time.Duration{7 * time.Second, 500 * time.Millisecond, time.Second, 0, maxPause}, false},
		"unreachable": {unreachable.URL, []time.Duration{250e6, 500e6, 1e9, 2e9, 4e9, 8e9, 16e9, 30e9, 30e9, 30e9, 30e9}, true},
	} {
		var pauses []time.Duration
		p := newPoster(tc.url, "", 1, io.Discard)
		p.wait = func(_ context.Context, d time.Duration) error { pauses = append(pauses, d); return nil }
		batch := `{"contractType":"x","events":[{}]}`
		if err := p.send(t.Context(), []byte(batch), 1); (err != nil) != tc.err {
			t.Errorf("%s: got error %v", name, err)
		}
		if diff := cmp.Diff(tc.want, pauses); diff != "" {
			t.Errorf("%s: -want +got pauses:\n%s", name, diff)
		}
	}
}

func TestPostStopsWhileWaiting(t *testing.T) {
	_, url := newFakeService(t, refuse(503, "60"))
	ctx, cancel := context.WithCancel(t.Context())
	said := writerFunc(func(b []byte) (int, error) {
		if bytes.Contains(b, []byte("trying again")) {
			cancel()
		}
		return len(b), nil
	})
	err := run(ctx, []string{"sample", "--post", url}, nil, io.Discard, said)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// contested is a key that several senders send with two payloads, and what the first answer made of it.
type contested struct {
	mu       sync.Mutex
	accepted string // the payload, "" before
	position string
}

// send sends the key with a payload and says what is wrong with the answer.
func (k *contested) send(t *testing.T, p *instance, n int, payload string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	status, body := p.do(t, "POST", "/api/v1/events", fmt.Sprintf(`{"contractType":"lease_contract","events":[{"contractId":"c-%d","eventId":"e","sequence":%d,"timestamp":%d,"payload":{"v":%q}}]}`,
		n%7, n, time.Now().UnixMilli(), payload))
	var answer struct {
		Results []struct{ Status, Code, Position string }
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || status != 200 || len(answer.Results) != 1 {
		return fmt.Errorf("key %d: status %d: %s", n, status, body)
	}
	r := answer.Results[0]
	got := r.Status + r.Code
	want := map[bool]string{true: "duplicate", false: "rejectedIDEMPOTENCY_PAYLOAD_CONFLICT"}[payload == k.accepted]
	if k.accepted == "" {
		want, k.accepted, k.position = "accepted", payload, r.Position
	}
	if got != want || got == "duplicate" && r.Position != k.position {
		return fmt.Errorf("key %d: got %s at %s, want %s (accepted at %s)", n, got, r.Position, want, k.position)
	}
	return nil
}

// Whatever becomes of Redis while events come in, every answer is the one the ledger gives.
func TestWindowIsNeverBelieved(t *testing.T) {
	server := ledgertest.StartRedis(t)
	p := start(t, t.TempDir(), "--redis-url="+server.URL(), "--log-level=error")
	keys := make([]contested, 300)
	var done atomic.Bool
	var sent atomic.Int64
	var senders sync.WaitGroup
	for seed := range uint64(6) {
		senders.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, 0))
			for !done.Load() && !t.Failed() {
				n := rnd.IntN(len(keys))
				if err := keys[n].send(t, p, n, []string{"one", "two"}[rnd.IntN(2)]); err != nil {
					t.Error(err)
				}
				sent.Add(1)
			}
		})
	}
	passed := func(n int64) { // waits until so many more are answered
		from := sent.Load()
		until(t, func() bool { return sent.Load() >= from+n || t.Failed() })
	}
	passed(200)
	prefix, _, _ := strings.Cut(server.Do(t, "RANDOMKEY"), "{")
	lie := func(n, revision int) {
		key := fmt.Sprintf("c-%d:e:%d", n%7, n)
		server.Do(t, "SET", fmt.Sprintf("%s{c-%d}:e:%d", prefix, n%7, n), fmt.Sprintf("1 %d %064x %s", revision, n, key))
	}
	for range 2 {
		server.Do(t, "FLUSHALL")
		passed(200)
		for n := range keys { // records of other keys, records that are not there, other payload hashes
			lie(n, n%11)
		}
		passed(400)
		for n := range keys {
			server.Do(t, "DEL", fmt.Sprintf("%s{c-%d}:e:%d", prefix, n%7, n))
			server.Do(t, "LPUSH", fmt.Sprintf("%s{c-%d}:e:%d", prefix, n%7, n), "x")
		}
		passed(200)
		server.Stop()
		passed(400)
		if status, body := p.do(t, "GET", "/readyz", ""); status != 200 || !strings.Contains(body, `"window":"away"`) {
			t.Errorf("ready without the window: got %d %s", status, body)
		}
		server.Start(t)
		passed(200)
	}
	done.Store(true)
	senders.Wait()
	accepted := 0
	for n := range keys {
		if keys[n].accepted != "" {
			accepted++
		}
	}
	until(t, func() bool {
		_, metrics := p.do(t, "GET", "/metrics", "")
		return strings.Contains(metrics, fmt.Sprintf("\nevent_idempotency_active_keys %d\n", accepted))
	})
	_, metrics := p.do(t, "GET", "/metrics", "")
	for _, want := range []string{"\nevent_idempotency_evictions_total 0\n", `window_requests_total{result="hit"}`, `window_requests_total{result="error"}`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics do not have %q", want)
		}
	}
	for _, never := range []string{`window_requests_total{result="hit"} 0`, `window_requests_total{result="error"} 0`} {
		if strings.Contains(metrics, never+"\n") {
			t.Errorf("the metrics have %q", never)
		}
	}
	if err := p.end(t); err != nil {
		t.Error(err)
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	twinKeys      = 20_000
	twinContracts = 40
	twinBatch     = 100
	twinClients   = 8 // of each instance
)

// twinKey is one key that both sides send.
type twinKey struct {
	contract string
	event    string
	sequence int64
	differs  bool // the sides send two payloads
}

func (k *twinKey) String() string { return fmt.Sprintf("%s:%s:%d", k.contract, k.event, k.sequence) }

func (k *twinKey) payload(side int) string {
	if !k.differs {
		side = 0
	}
	return fmt.Sprintf(`{"n":%d,"side":%d}`, k.sequence, side)
}

func newTwinKeys() []twinKey {
	keys := make([]twinKey, twinKeys)
	for i := range keys {
		keys[i] = twinKey{fmt.Sprint("twin-", i/10%twinContracts), fmt.Sprint("e-", i), int64(i), i%100 == 37}
	}
	return keys
}

// twinSide is one instance, what is sent to it, and what it answered.
type twinSide struct {
	url     string
	order   []int // of batches
	next    atomic.Int64
	results []result // of each key
}

// run sends all batches from several clients at once.
func (s *twinSide) run(t *testing.T, side int, keys []twinKey, sent *atomic.Int64) {
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: twinClients}}
	var wg sync.WaitGroup
	for range twinClients {
		wg.Go(func() {
			for n := s.next.Add(1) - 1; n < int64(len(s.order)) && !t.Failed(); n = s.next.Add(1) - 1 {
				from := s.order[n] * twinBatch
				if err := s.send(client, side, keys[from:from+twinBatch], s.results[from:from+twinBatch]); err != nil {
					t.Errorf("side %d, batch %d: %v", side, s.order[n], err)
				}
				sent.Add(1)
			}
		})
	}
	wg.Wait()
}

func (s *twinSide) send(client *http.Client, side int, keys []twinKey, into []result) error {
	events := make([]string, len(keys))
	for i := range keys {
		events[i] = eventOf(keys[i].contract, keys[i].event, keys[i].sequence, keys[i].payload(side))
	}
	status, body, err := ask(client, "POST", s.url+"/api/v1/events", batch("twin_contract", events...))
	if err != nil || status != 200 {
		return fmt.Errorf("status %d, %v: %.300s", status, err, body)
	}
	var a answer
	if err := json.Unmarshal([]byte(body), &a); err != nil || len(a.Results) != len(keys) {
		return fmt.Errorf("%d results, %v", len(a.Results), err)
	}
	copy(into, a.Results)
	return nil
}

// TestTwins: two instances in front of one server take the same keys from sixteen clients at once, some with two
// payloads, while Redis is flushed, lies, dies and comes back. Of each key exactly one is accepted, and
// afterwards both instances tell the same story.
func TestTwins(t *testing.T) {
	s := newSite(t, buildNode(t), true, true)
	bin, keys := buildProgram(t), newTwinKeys()
	var sides [2]*twinSide
	for i := range sides {
		p := startProgram(t, bin, filepath.Join(t.TempDir(), "data"), s.args()...)
		defer p.end(t)
		sides[i] = &twinSide{url: p.url, results: make([]result, twinKeys), order: rand.New(rand.NewPCG(7, uint64(i))).Perm(twinKeys / twinBatch)}
	}
	var sent atomic.Int64
	var running sync.WaitGroup
	for i, side := range sides {
		running.Go(func() { side.run(t, i, keys, &sent) })
	}
	s.troubleRedis(t, keys, &sent)
	running.Wait()
	if t.Failed() {
		return
	}
	accepted := acceptedOnce(t, keys, sides)
	compareTwins(t, keys, sides, accepted)
}

// troubleRedis goes on as batches are answered.
func (s *site) troubleRedis(t *testing.T, keys []twinKey, sent *atomic.Int64) {
	passed := func(percent int64) {
		until(t, func() bool { return sent.Load() >= percent*2*twinKeys/twinBatch/100 || t.Failed() })
	}
	passed(10)
	prefix, _, _ := strings.Cut(s.redis.Do(t, "RANDOMKEY"), "{")
	lie := func(from int) { // records of other keys, or none; other payload hashes; other types
		for i := from; i < len(keys); i += 40 {
			k := &keys[i]
			name := fmt.Sprintf("%s{%s}:%s:%d", prefix, k.contract, k.event, k.sequence)
			s.redis.Do(t, "SET", name, fmt.Sprintf("1 %d %064x %s", i%500, i, k))
			s.redis.Do(t, "LPUSH", name+"0", "x")
		}
	}
	s.redis.Do(t, "FLUSHALL")
	lie(3)
	passed(30)
	s.redis.Stop()
	passed(50)
	s.redis.Start(t)
	lie(7)
	passed(70)
	s.redis.Do(t, "FLUSHALL")
	lie(37)
}

// acceptedOnce wants every key to be accepted by one side, and the other to be told so. It returns the
// side of each.
func acceptedOnce(t *testing.T, keys []twinKey, sides [2]*twinSide) []int {
	t.Helper()
	winner, won := make([]int, len(keys)), [2]int{}
	for i := range keys {
		a, b := &sides[0].results[i], &sides[1].results[i]
		if b.Status == "accepted" {
			a, b, winner[i] = b, a, 1
		}
		won[winner[i]]++
		want := map[bool]string{false: "duplicate", true: "rejected"}[keys[i].differs]
		switch {
		case a.Status != "accepted" || b.Status != want || a.DeduplicationKey != keys[i].String():
			t.Errorf("%s: got %s and %s, want accepted and %s", &keys[i], a.Status, b.Status, want)
		case want == "duplicate" && (b.Position != a.Position || b.ProcessedAt != a.ProcessedAt || b.PayloadHash != a.PayloadHash):
			t.Errorf("%s: accepted %+v, duplicate %+v", &keys[i], *a, *b)
		case want == "rejected" && (b.Code != "IDEMPOTENCY_PAYLOAD_CONFLICT" || !strings.Contains(b.Reason, a.PayloadHash)):
			t.Errorf("%s: got %+v, want a conflict with %s", &keys[i], *b, a.PayloadHash)
		}
		if t.Failed() && i > 1000 {
			t.FailNow()
		}
	}
	t.Logf("accepted by the first %d, by the second %d", won[0], won[1])
	if won[0] == 0 || won[1] == 0 {
		t.Error("one instance accepted all: they did not meet")
	}
	return winner
}

// compareTwins wants both instances to show what was answered: the numbers, and each contract's history
// as a chain without holes.
func compareTwins(t *testing.T, keys []twinKey, sides [2]*twinSide, winner []int) {
	t.Helper()
	conflicts := int64(twinKeys / 100)
	whole := func(s *stats) bool { return s.Duplicates == twinKeys-conflicts && s.Rejected == conflicts }
	first, second := settled(t, sides[0].url, whole), settled(t, sides[1].url, whole)
	if first.Accepted != twinKeys || first.Conflicts != conflicts || first.Total != twinKeys+conflicts || first.Contracts != twinContracts {
		t.Errorf("got %+v, want %d accepted and %d conflicts in %d contracts", *first, twinKeys, conflicts, twinContracts)
	}
	if !reflect.DeepEqual(first, second) {
		t.Errorf("the instances differ: %+v and %+v", *first, *second)
	}
	of := map[string]int{}
	for i := range keys {
		of[keys[i].String()] = i
	}
	for c := range twinContracts {
		contract := fmt.Sprint("twin-", c)
		payloads := c%10 == 0 // each is a read of the ledger
		a, b := entriesOf(t, sides[0].url, contract, payloads), entriesOf(t, sides[1].url, contract, payloads)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s: the instances' histories differ: %d and %d entries", contract, len(a), len(b))
		}
		revision, position := int64(0), uint64(0)
		for _, e := range a {
			at, err := strconv.ParseUint(e.Position, 10, 64)
			if err != nil || at <= position {
				t.Errorf("%s: position %s after %d", contract, e.Position, position)
			}
			position = at
			if e.Status != "accepted" {
				continue
			}
			i := of[e.DeduplicationKey]
			r := &sides[winner[i]].results[i]
			if e.Revision != revision || r.Revision != revision || e.LeafHash != r.LeafHash || e.Position != r.Position || e.PayloadHash != r.PayloadHash || payloads && string(e.Payload) != keys[i].payload(winner[i]) {
				t.Errorf("%s: entry %+v at revision %d, answered %+v", contract, e, revision, *r)
			}
			revision++
		}
		if revision != twinKeys/twinContracts {
			t.Errorf("%s: %d accepted, want %d", contract, revision, twinKeys/twinContracts)
		}
	}
}

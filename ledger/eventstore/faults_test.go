package eventstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/esdb"
	"github.com/google/uuid"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/eventstore"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
	"github.com/talenttrust/auditledger/ledger/ledgertest/esnode/node"
)

func key(contract, event string, sequence int64) ledger.Key {
	return ledger.Key{ContractID: contract, EventID: event, Sequence: sequence}
}

// open opens an instance that is closed with the test.
func open(t *testing.T, c eventstore.Config) *eventstore.Store {
	t.Helper()
	s := mustOpen(t, c)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// appendOne appends an event of contract lamp-7 and returns what became of it.
func appendOne(ctx context.Context, s ledger.Store, e *ledger.Entry) (ledger.Outcome, error) {
	o, err := s.Append(ctx, []*ledger.Entry{e})
	if err != nil {
		return ledger.Outcome{}, err
	}
	return o[0], nil
}

func lamp(i int64) *ledger.Entry {
	return ledgertest.Event(key("lamp-7", fmt.Sprint("e", i), i), fmt.Sprintf(`{"i":%d}`, i), i)
}

func wantVerdict(t *testing.T, what string, o ledger.Outcome, err error, want ledger.Verdict) {
	t.Helper()
	if err != nil || o.Verdict != want {
		t.Errorf("%s: got verdict %d, %v, want %d", what, o.Verdict, err, want)
	}
}

// wantRecords checks every chain of the ledger and how many records it has beside the first.
func wantRecords(t *testing.T, s ledger.Reader, want int) []ledger.Record {
	t.Helper()
	all := ledgertest.ReadAll(t, s)[1:]
	if len(all) != want {
		t.Errorf("%d records, want %d", len(all), want)
	}
	return all
}

// TestRivals runs the suite while another instance appends the same events, and others, to the same
// streams, and while calls and answers get lost.
func TestRivals(t *testing.T) {
	ledgertest.TestRaces(t, func(t *testing.T) ledgertest.Opener {
		n := startNode(t)
		o := opener(t, n)
		rival := open(t, config(t, n))
		ctx, stop := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		t.Cleanup(func() { stop(); wg.Wait() })
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, 2))
			for ctx.Err() == nil {
				contract := []string{"c", "c0", "c1", "c2"}[rnd.IntN(4)]
				e := ledgertest.Event(key(contract, []string{"e", "e0", "e1", "other"}[rnd.IntN(4)], rnd.Int64N(20)), fmt.Sprintf(`{"v":%d}`, rnd.IntN(3)), rnd.Int64N(10_000))
				if _, err := appendOne(ctx, rival, e); err != nil && ctx.Err() == nil && !errors.Is(err, ledger.ErrUnknown) {
					t.Errorf("rival: %v", err)
				}
			}
		})
		var mu sync.Mutex
		rnd := rand.New(rand.NewPCG(3, 4))
		n.Faults.OnAppend(func(string) node.AppendFault {
			mu.Lock()
			defer mu.Unlock()
			switch rnd.IntN(60) {
			case 0:
				return node.AnswerLost()
			case 1:
				return node.RequestLost()
			case 2:
				return node.AppendFault{Err: node.TimedOut()}
			case 3:
				return node.AppendFault{Commit: true, Err: node.TimedOut()}
			}
			return node.AppendFault{}
		})
		return o
	})
}

// Rows of the conformance table that need a server that fails; the number is the row's.

func TestFaults(t *testing.T) {
	for name, test := range map[string]func(*testing.T, *node.Node, eventstore.Config){
		"17 two payloads at two instances":    testTwins,
		"103 the answer is cut":               testAnswerCut,
		"104 every answer is cut":             testAnswersCut,
		"105 aborted without commit":          testAborted,
		"106 the twin is not replicated yet":  testNotReady,
		"107 not the leader":                  testNotLeader,
		"108 denied before all is sent":       testDeniedEarly,
		"109 away":                            testAway,
		"110 no answer at all":                testBlackHole,
		"111 a stream is deleted":             testDeleted,
		"112 the winner is not to be seen":    testInvisible,
		"113 subscription trouble":            testSubscription,
		"114 the log is cut at a fail-over":   testFailOver,
		"115 events of others":                testForeign,
		"a silent subscription":               testSilent,
		"a slow reader":                       testSlowReader,
		"closing while the server is away":    testCloseAway,
		"ends of contexts while things queue": testQueue,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, err := node.Open(node.Config{CommitTimeout: 300 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = n.Close() })
			test(t, n, config(t, n))
		})
	}
}

func testTwins(t *testing.T, n *node.Node, c eventstore.Config) {
	stores := []ledger.Store{open(t, c), open(t, config(t, n))}
	for round := range int64(30) {
		outcomes := make([]ledger.Outcome, 2)
		var wg sync.WaitGroup
		for i, s := range stores {
			wg.Go(func() {
				var err error
				e := ledgertest.Event(key("lamp-7", "b", round), fmt.Sprintf(`{"payload":%d}`, i), round)
				if outcomes[i], err = appendOne(t.Context(), s, e); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		a, b := outcomes[0], outcomes[1]
		if a.Verdict == ledger.Conflict {
			a, b = b, a
		}
		if a.Verdict != ledger.Accepted || b.Verdict != ledger.Conflict || b.First.Position != a.Position {
			t.Fatalf("round %d: %+v and %+v, want one accepted and one in conflict with it", round, a, b)
		}
	}
	wantRecords(t, stores[0], 30)
}

func testAnswerCut(t *testing.T, n *node.Node, c eventstore.Config) {
	s := open(t, c)
	n.Faults.Appends(node.AnswerLost())
	o, err := appendOne(t.Context(), s, lamp(1))
	wantVerdict(t, "the answer was cut once", o, err, ledger.Accepted)
	wantRecords(t, s, 1)
}

func testAnswersCut(t *testing.T, n *node.Node, c eventstore.Config) {
	c.Budget = 700 * time.Millisecond
	s := open(t, c)
	n.Faults.OnAppend(func(string) node.AppendFault { return node.AnswerLost() })
	if _, err := appendOne(t.Context(), s, lamp(1)); !errors.Is(err, ledger.ErrUnknown) {
		t.Errorf("every answer was cut: got %v, want ErrUnknown", err)
	}
	n.Faults.Clear()
	o, err := appendOne(t.Context(), s, lamp(1))
	wantVerdict(t, "the same again", o, err, ledger.Duplicate)
	wantRecords(t, s, 1)
}

func testAborted(t *testing.T, n *node.Node, c eventstore.Config) {
	s := open(t, c)
	n.Faults.Appends(node.AppendFault{Err: node.TimedOut()}, node.AppendFault{Err: node.TimedOut()})
	o, err := appendOne(t.Context(), s, lamp(1))
	wantVerdict(t, "aborted twice", o, err, ledger.Accepted)
	wantRecords(t, s, 1)
}

func testNotReady(t *testing.T, n *node.Node, c eventstore.Config) {
	a, b := open(t, c), open(t, config(t, n))
	n.Faults.Appends(node.AppendFault{Lag: 200 * time.Millisecond})
	var first ledger.Outcome
	var wg sync.WaitGroup
	wg.Go(func() {
		var err error
		if first, err = appendOne(t.Context(), a, lamp(1)); err != nil {
			t.Error(err)
		}
	})
	ledgertest.Until(t, "the first append has arrived", func() bool { return n.Faults.Pending() == 0 })
	began := time.Now()
	second, err := appendOne(t.Context(), b, lamp(1))
	wg.Wait()
	if err != nil || first.Verdict+second.Verdict != ledger.Accepted+ledger.Duplicate {
		t.Errorf("got verdicts %d and %d, %v, want one accepted and one duplicate", first.Verdict, second.Verdict, err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the second took %s", took)
	}
	wantRecords(t, a, 1)
}

func testNotLeader(t *testing.T, n *node.Node, c eventstore.Config) {
	s := open(t, c)
	n.Faults.Appends(node.AppendFault{Err: node.NotLeader(n.Addr())})
	o, err := appendOne(t.Context(), s, lamp(1))
	wantVerdict(t, "not the leader once", o, err, ledger.Accepted)
	wantRecords(t, s, 1)
}

func testDeniedEarly(t *testing.T, n *node.Node, c eventstore.Config) {
	c.Budget = 2 * time.Second
	s := open(t, c)
	var batch []*ledger.Entry
	for i := range int64(60) {
		e := ledgertest.Event(key("lamp-7", fmt.Sprint("e", i), i), `{"x":"`+strings.Repeat("x", 10_000)+`"}`, i)
		batch = append(batch, e)
	}
	n.Faults.OnAppend(func(string) node.AppendFault { return node.AppendFault{Early: 1, Err: node.AccessDenied()} })
	if _, err := s.Append(t.Context(), batch); !errors.Is(err, ledger.ErrUnavailable) && !errors.Is(err, ledger.ErrUnknown) {
		t.Errorf("denied: got %v, want ErrUnavailable or ErrUnknown", err)
	}
	n.Faults.Clear()
	wantRecords(t, s, 0)
	o, err := s.Append(t.Context(), batch)
	if err != nil || o[59].Verdict != ledger.Accepted {
		t.Errorf("allowed again: got %v", err)
	}
}

// testAway stops the server under load, twice, once before an instance starts.
func testAway(t *testing.T, n *node.Node, c eventstore.Config) {
	other := config(t, n) // its server is away at the start
	c.Budget = 2 * time.Second
	s := open(t, c)
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	var accepted sync.Map
	for w := range 8 {
		wg.Go(func() {
			for i := int64(0); ctx.Err() == nil; i++ {
				e := ledgertest.Event(key(fmt.Sprint("w", w), fmt.Sprint("e", i), i), `{}`, i)
				rctx, cancel := context.WithTimeout(context.Background(), 1500*time.Millisecond)
				began := time.Now()
				o, err := appendOne(rctx, s, e)
				if took := time.Since(began); took > 2500*time.Millisecond {
					t.Errorf("a caller with 1.5 s waited for %s", took)
				}
				cancel()
				switch {
				case err == nil && o.Verdict == ledger.Accepted:
					accepted.Store(e.Key(), true)
				case err == nil:
					t.Errorf("%s: verdict %d", e.Key(), o.Verdict)
				case !errors.Is(err, ledger.ErrUnknown) && !errors.Is(err, ledger.ErrUnavailable):
					t.Errorf("%s: %v", e.Key(), err)
				}
			}
		})
	}
	for _, away := range []time.Duration{500 * time.Millisecond, 3 * time.Second} {
		stored := n.Len()
		ledgertest.Until(t, "events are stored", func() bool { return n.Len() > stored+50 })
		if err := n.Stop(); err != nil {
			t.Fatal(err)
		}
		opened := make(chan *eventstore.Store, 1)
		if away > time.Second {
			go func() {
				late, err := eventstore.Open(t.Context(), other)
				if err != nil {
					t.Errorf("away at the start: %v", err)
				}
				opened <- late
			}()
		}
		<-time.After(away)
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
		if away > time.Second {
			if late := <-opened; late != nil {
				defer late.Close()
			}
		}
	}
	stored := n.Len()
	ledgertest.Until(t, "events are stored again", func() bool { return n.Len() > stored+50 })
	stop()
	wg.Wait()
	has := map[ledger.Key]int{}
	for _, r := range ledgertest.ReadAll(t, s) {
		has[r.Header.Key()]++
	}
	accepted.Range(func(k, _ any) bool {
		if has[k.(ledger.Key)] != 1 {
			t.Errorf("%s was accepted and is there %d times", k, has[k.(ledger.Key)])
		}
		return true
	})
}

func testBlackHole(t *testing.T, n *node.Node, c eventstore.Config) {
	c.Budget = time.Second
	s := open(t, c)
	n.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := appendOne(ctx, s, lamp(1)); !errors.Is(err, ledger.ErrUnknown) && !errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("append: got %v, want ErrUnknown or ErrUnavailable", err)
	}
	if took := time.Since(began); took > 600*time.Millisecond {
		t.Errorf("a caller with 200 ms waited for %s", took)
	}
	if err := s.Healthy(ctx); err == nil {
		t.Error("the store says that it is well")
	}
	n.Resume()
	ledgertest.Until(t, "the store works again", func() bool {
		o, err := appendOne(t.Context(), s, lamp(1))
		return err == nil && (o.Verdict == ledger.Accepted || o.Verdict == ledger.Duplicate)
	})
	wantRecords(t, s, 1)
}

// raw is a client that is none of ours.
func raw(t *testing.T, n *node.Node) *esdb.Client {
	t.Helper()
	c, err := esdb.ParseConnectionString(n.URL())
	if err != nil {
		t.Fatal(err)
	}
	c.Logger = esdb.NoopLogging()
	es, err := esdb.NewClient(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = es.Close() })
	return es
}

func testDeleted(t *testing.T, n *node.Node, c eventstore.Config) {
	s := open(t, c)
	o, err := appendOne(t.Context(), s, lamp(1))
	wantVerdict(t, "before", o, err, ledger.Accepted)
	if _, err := raw(t, n).TombstoneStream(t.Context(), "contract-lamp-7", esdb.TombstoneStreamOptions{ExpectedRevision: esdb.Any{}}); err != nil {
		t.Fatal(err)
	}
	out, err := s.Append(t.Context(), []*ledger.Entry{lamp(1), lamp(2), ledgertest.Event(key("lamp-8", "e", 1), `{}`, 1)})
	if err != nil {
		t.Fatal(err)
	}
	if out[0].Verdict != ledger.Duplicate || out[1].Verdict != ledger.Refused || out[1].Rejection.Code != ledger.CodeContractClosed || out[2].Verdict != ledger.Accepted {
		t.Errorf("got %+v, want a duplicate, one refused, and the neighbour accepted", out)
	}
	found, err := s.Find(t.Context(), []ledger.Key{key("lamp-7", "e1", 1)})
	if err != nil || !found[0].Known() {
		t.Errorf("find in the deleted stream: %+v, %v", found, err)
	}
	for _, back := range []bool{false, true} {
		got := 0
		for r, err := range s.Stream(t.Context(), "contract-lamp-7", 0, back) {
			if got++; err != nil || r.Leaf != o.Leaf {
				t.Errorf("read the deleted stream, backwards %t: got %+v, %v", back, r.Header, err)
			}
		}
		if got != 1 {
			t.Errorf("read the deleted stream, backwards %t: got %d records, want 1", back, got)
		}
	}
	n.Faults.OnSubscribe(func(string) node.SubscriptionFault { return node.SubscriptionFault{Err: node.TooSlow()} })
	fresh := open(t, config(t, n)) // it never hears of the stream's records
	for r, err := range fresh.Stream(t.Context(), "contract-lamp-7", 0, false) {
		t.Errorf("a fresh folder reads of the deleted stream %+v, %v, want nothing", r.Header, err)
	}
	o, err = appendOne(t.Context(), fresh, lamp(1))
	if err != nil || o.Verdict != ledger.Refused || o.Rejection.Code != ledger.CodeContractClosed {
		t.Errorf("a fresh folder appends to the deleted stream: got %+v, %v, want it refused", o, err)
	}
}

func testInvisible(t *testing.T, n *node.Node, c eventstore.Config) {
	a, b := open(t, c), open(t, config(t, n))
	n.Faults.Appends(node.AppendFault{Lag: 4 * time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = appendOne(ctx, a, lamp(1)) })
	ledgertest.Until(t, "the first append has arrived", func() bool { return n.Faults.Pending() == 0 })
	_, err := appendOne(t.Context(), b, lamp(2))
	if !errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	cancel()
	wg.Wait()
}

func testSubscription(t *testing.T, n *node.Node, c eventstore.Config) {
	writer := open(t, config(t, n))
	for i := range int64(100) {
		o, err := appendOne(t.Context(), writer, lamp(i))
		wantVerdict(t, "append", o, err, ledger.Accepted)
	}
	n.Faults.OnSubscribe(func(string) node.SubscriptionFault {
		return node.SubscriptionFault{After: 30, Rewind: 3, Checkpoints: []node.Checkpoint{node.MaxCheckpoint(), {Commit: 1}, {Commit: 1 << 40, Prepare: 0}}, Err: node.TooSlow(), NeverCaughtUp: true}
	})
	s := open(t, c)
	wantRecords(t, s, 100)
	n.Faults.Clear()
}

func testFailOver(t *testing.T, n *node.Node, c eventstore.Config) {
	failed := make(chan error, 10)
	c.Fatal = func(err error) { failed <- err }
	c.Budget, c.Lag = 500*time.Millisecond, time.Second
	s, late := open(t, c), open(t, config(t, n))
	for i := range int64(5) {
		o, err := appendOne(t.Context(), s, lamp(i))
		wantVerdict(t, "append", o, err, ledger.Accepted)
	}
	// One that was never acknowledged vanishes before anybody saw it.
	n.Faults.OnAppend(func(string) node.AppendFault { return node.AppendFault{Lag: time.Hour, Silent: true} })
	if _, err := appendOne(t.Context(), s, lamp(5)); err == nil {
		t.Fatal("an append without an answer succeeded")
	}
	n.Faults.Clear()
	if err := errors.Join(n.Stop(), n.Truncate(1), n.Start()); err != nil {
		t.Fatal(err)
	}
	o, err := appendOne(t.Context(), late, lamp(6))
	wantVerdict(t, "another in its place", o, err, ledger.Accepted)
	ledgertest.Until(t, "the vanished one is stored", func() bool {
		o, err := appendOne(t.Context(), s, lamp(5))
		return err == nil && o.Verdict == ledger.Accepted
	})
	wantRecords(t, s, 7)
	select {
	case err := <-failed:
		t.Errorf("nothing was lost, and the store stopped: %v", err)
	default:
	}
	// What was seen vanishes: the follower notices.
	if err := errors.Join(n.Stop(), n.Truncate(2), n.Start()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-failed:
		if !errors.Is(err, ledger.ErrDamaged) && !errors.Is(err, ledger.ErrBeyondHead) {
			t.Errorf("records are gone: got %v, want ErrDamaged", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("records are gone and nobody noticed")
	}
}

func testForeign(t *testing.T, n *node.Node, c eventstore.Config) {
	var mu sync.Mutex
	foreign := 0
	c.Foreign = func() { mu.Lock(); foreign++; mu.Unlock() }
	s := mustOpen(t, c)
	stranger := raw(t, n)
	write := func(typ, data, meta string) {
		t.Helper()
		e := esdb.EventData{EventID: uuid.New(), EventType: typ, ContentType: esdb.ContentTypeJson, Data: []byte(data), Metadata: []byte(meta)}
		if _, err := stranger.AppendToStream(t.Context(), "contract-lamp-7", esdb.AppendToStreamOptions{ExpectedRevision: esdb.Any{}}, e); err != nil {
			t.Fatal(err)
		}
	}
	accept := func(i int64) {
		t.Helper()
		o, err := appendOne(t.Context(), s, lamp(i))
		wantVerdict(t, fmt.Sprint("event ", i), o, err, ledger.Accepted)
		if o.Revision != i {
			t.Errorf("event %d has revision %d", i, o.Revision)
		}
	}
	write("SomethingElse", `{"a":1}`, `{}`)
	accept(0)
	write("EventAccepted", `not JSON`, `{"appendToken":"x"}`)
	write("EventAccepted", `{}`, ``)
	accept(1)
	copied, err := stranger.ReadStream(t.Context(), "contract-lamp-7", esdb.ReadStreamOptions{From: esdb.Revision(1)}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	ev, err := copied.Recv()
	if err != nil {
		t.Fatal(err)
	}
	write("EventAccepted", string(ev.Event.Data), string(ev.Event.UserMetadata)) // another ID than its key's
	same := esdb.EventData{EventID: ev.Event.EventID, EventType: ev.Event.EventType, ContentType: esdb.ContentTypeJson, Data: ev.Event.Data, Metadata: ev.Event.UserMetadata}
	if _, err := stranger.AppendToStream(t.Context(), "contract-lamp-7", esdb.AppendToStreamOptions{ExpectedRevision: esdb.Revision(5)}, same); err != nil {
		t.Fatal(err) // a copy in every detail, at the stream's end
	}
	accept(2)
	accept(3)
	write("SomethingElse", ``, ``)
	for range 2 { // before and after a restart with an empty folder
		wantRecords(t, s, 4)
		for from, want := range map[int64]string{0: "0", 1: "1 0", 2: "2 1 0", 3: "3 2 1 0", 99: "3 2 1 0"} {
			var got []string
			for r, err := range s.Stream(t.Context(), "contract-lamp-7", from, true) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, fmt.Sprint(r.Header.Revision))
			}
			if text := strings.Join(got, " "); text != want {
				t.Errorf("backwards from %d: got %q, want %q", from, text, want)
			}
		}
		for r, err := range s.Stream(t.Context(), "contract-lamp-7", 2, false) {
			if err != nil || r.Header.Revision != 2 {
				t.Errorf("forwards from 2: got %d, %v", r.Header.Revision, err)
			}
			break
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		if foreign != 6 {
			t.Errorf("%d events of others were counted, want 6", foreign)
		}
		foreign = 0
		mu.Unlock()
		c.Dir = t.TempDir()
		s = mustOpen(t, c)
	}
	accept(4)
	o, err := appendOne(t.Context(), s, lamp(1))
	wantVerdict(t, "a known one", o, err, ledger.Duplicate)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func testSilent(t *testing.T, n *node.Node, c eventstore.Config) {
	c.Watchdog = 200 * time.Millisecond
	n.Faults.OnSubscribe(func(string) node.SubscriptionFault { return node.SubscriptionFault{After: 3, Silent: true} })
	s := open(t, c)
	for i := range int64(8) {
		o, err := appendOne(t.Context(), s, lamp(i))
		wantVerdict(t, "append", o, err, ledger.Accepted)
	}
	wantRecords(t, s, 8)
	n.Faults.Clear()
}

func testSlowReader(t *testing.T, n *node.Node, c eventstore.Config) {
	s := open(t, c)
	big := strings.Repeat("x", 200_000)
	for i := range int64(60) {
		o, err := appendOne(t.Context(), s, ledgertest.Event(key("lamp-7", fmt.Sprint("e", i), i), `{"x":"`+big+`"}`, i))
		wantVerdict(t, "append", o, err, ledger.Accepted)
	}
	seen, largest := 0, 0
	for batch, err := range s.Follow(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		bytes := 0
		for _, r := range batch.Records {
			bytes += len(r.Body.Payload)
		}
		largest = max(largest, bytes)
		if seen += len(batch.Records); seen == 61 {
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	if largest > 5<<20 {
		t.Errorf("a batch of %d bytes was held for a slow reader", largest)
	}
}

func testCloseAway(t *testing.T, n *node.Node, c eventstore.Config) {
	c.Budget = time.Second
	s := mustOpen(t, c)
	n.Pause()
	var wg sync.WaitGroup
	for i := range int64(10) {
		wg.Go(func() {
			if _, err := appendOne(t.Context(), s, lamp(i)); err == nil {
				t.Error("an append succeeded without a server")
			}
		})
	}
	for _, err := range s.Follow(t.Context(), 0) {
		if err == nil {
			t.Error("something came without a server")
		}
		break
	}
	began := time.Now()
	_ = s.Close() // says what it left behind
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("closing took %s", took)
	}
	wg.Wait()
	if _, err := appendOne(t.Context(), s, lamp(1)); !errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("append after the end: got %v, want ErrUnavailable", err)
	}
}

func testQueue(t *testing.T, n *node.Node, c eventstore.Config) {
	c.Queue, c.Budget = 5, 2*time.Second
	s := open(t, c)
	reached := make(chan struct{}, 100)
	n.Faults.OnAppend(func(string) node.AppendFault {
		reached <- struct{}{}
		return node.AppendFault{Wait: 600 * time.Millisecond}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	counts := map[string]int{}
	var mu sync.Mutex
	for i := range int64(40) {
		if i == 1 {
			<-reached // the first is on its way, the others queue
			time.AfterFunc(200*time.Millisecond, cancel)
		}
		wg.Go(func() {
			_, err := appendOne(ctx, s, lamp(i))
			mu.Lock()
			defer mu.Unlock()
			for name, class := range map[string]error{"busy": ledger.ErrBusy, "unavailable": ledger.ErrUnavailable, "unknown": ledger.ErrUnknown} {
				if errors.Is(err, class) {
					counts[name]++
				}
			}
		})
	}
	wg.Wait()
	if counts["unknown"] != 1 || counts["unavailable"] != 5 || counts["busy"] != 34 {
		t.Errorf("got %v of 40 callers", counts)
	}
	n.Faults.Clear()
	o, err := appendOne(t.Context(), s, lamp(100))
	wantVerdict(t, "afterwards", o, err, ledger.Accepted)
}

// TestCountsOutlastSilence: counts of repeats are handed over once, so the store goes on with them however
// long the server says nothing, although the caller has long been told that it is not known.
func TestCountsOutlastSilence(t *testing.T) {
	for name, fault := range map[string]node.AppendFault{"not stored": {Silent: true}, "stored": {Commit: true, Silent: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := startNode(t)
			c := config(t, n)
			c.Budget, c.Try = 200*time.Millisecond, 100*time.Millisecond
			s := open(t, c)
			n.Faults.OnAppend(func(string) node.AppendFault { return fault })
			counts := &ledger.Entry{Header: ledger.Header{V: ledger.Version, Type: ledger.DuplicatesCounted, Stream: "duplicates-one", Sequence: ledger.Absent,
				Timestamp: ledger.Absent, Generation: ledger.Absent, RecordedAt: ledgertest.Epoch.UnixMilli()}}
			counts.Body = ledger.Body{Counts: []ledger.Count{{Stream: "contract-c", Revision: 0, Count: 2, LastSeen: 5}}, Supersedes: ledger.Absent}
			counts.Seal()
			ctx, cancel := context.WithTimeout(t.Context(), c.Budget)
			defer cancel()
			if _, err := appendOne(ctx, s, counts); !errors.Is(err, ledger.ErrUnknown) {
				t.Fatalf("got %v, want ErrUnknown", err)
			}
			calls := n.Calls().Appends
			ledgertest.Until(t, "tries beyond the budget", func() bool { return n.Calls().Appends >= calls+5 })
			n.Faults.Clear()
			ledgertest.Until(t, "the counts", func() bool { return len(ledgertest.ReadAll(t, s)) > 1 })
			wantRecords(t, s, 1)
		})
	}
}

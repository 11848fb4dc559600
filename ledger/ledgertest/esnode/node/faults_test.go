package node_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/talenttrust/auditledger/ledger/ledgertest/esnode/node"
)

// onNode is a world whose server is a node whatever the environment says.
func onNode(t *testing.T, config node.Config) *world {
	t.Helper()
	t.Setenv("ESDB_URL", "")
	return newWorld(t, config)
}

func TestAppendFaults(t *testing.T) {
	for _, test := range []struct {
		name   string
		fault  node.AppendFault
		want   string
		stored string
		atMost time.Duration // for the caller, when it waits less long than 30 s
	}{
		{name: "none", want: "success 2", stored: "a0 b1 c2"},
		{name: "answer lost", fault: node.AnswerLost(), want: "Unavailable", stored: "a0 b1 c2"},
		{name: "request lost", fault: node.RequestLost(), want: "Unavailable"},
		{name: "timed out", fault: node.AppendFault{Err: node.TimedOut()}, want: "Aborted"},
		{name: "timed out but stored", fault: node.AppendFault{Commit: true, Err: node.TimedOut()}, want: "Aborted", stored: "a0 b1 c2"},
		{name: "not ready", fault: node.NotReady(20 * time.Millisecond), want: "Aborted"},
		{name: "not the leader", fault: node.AppendFault{Err: node.NotLeader("10.0.0.9:2113")}, want: "NotFound"},
		{name: "unavailable", fault: node.AppendFault{Err: node.Unavailable()}, want: "Unavailable"},
		{name: "refused at once", fault: node.AppendFault{Early: 1, Err: node.AccessDenied()}, want: "PermissionDenied"},
		{name: "refused after two events", fault: node.AppendFault{Early: 3, Err: node.AccessDenied()}, want: "PermissionDenied"},
		{name: "early without an error", fault: node.AppendFault{Early: 2}, want: "Unavailable"},
		{name: "cut early", fault: node.AppendFault{Early: 2, Cut: true}, want: "Unavailable"},
		{name: "silent", fault: node.AppendFault{Silent: true}, want: "DeadlineExceeded", atMost: 50 * time.Millisecond},
		{name: "silent but stored", fault: node.AppendFault{Commit: true, Silent: true}, want: "DeadlineExceeded", stored: "a0 b1 c2", atMost: 50 * time.Millisecond},
		{name: "late", fault: node.AppendFault{Wait: 20 * time.Millisecond}, want: "success 2", stored: "a0 b1 c2"},
		{name: "lagging", fault: node.AppendFault{Lag: 20 * time.Millisecond}, want: "success 2", stored: "a0 b1 c2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := onNode(t, node.Config{})
			w.node.Faults.Appends(test.fault)
			caller := *w
			if test.atMost > 0 {
				ctx, cancel := context.WithTimeout(w.ctx, test.atMost)
				defer cancel()
				caller.ctx = ctx
			}
			began := time.Now()
			got := caller.append(w.S, none, "abc")
			w.same("answer", got.text, test.want)
			w.same("stored", show(w.all(), nil), test.stored)
			if took, least := time.Since(began), test.fault.Wait+test.fault.Lag; took < least {
				t.Errorf("took %v, want at least %v", took, least)
			}
			if n := w.node.Faults.Pending(); n != 0 {
				t.Errorf("%d faults left, want 0", n)
			}
			w.same("again", w.append(w.S, none, "abc").text, "success 2")
		})
	}
}

// TestLag: what is not replicated is refused to others and yet not shown to them, and its twin is dropped.
func TestLag(t *testing.T) {
	w := onNode(t, node.Config{CommitTimeout: 50 * time.Millisecond})
	w.node.Faults.Appends(node.AppendFault{Lag: 300 * time.Millisecond})
	w.same("the first, which is late", w.append(w.S, none, "a").text, "Aborted")
	w.same("its twin", w.append(w.S, none, "a").text, "Aborted")
	w.same("another", w.append(w.S, none, "b").text, "wrong 0")
	w.same("read", show(w.read(w.S, 0, false, 10)), "not found")
	w.same("$all", show(w.all(), nil), "")
	w.eventually("read", func() string { return show(w.read(w.S, 0, false, 10)) }, "a0")
	w.expect(w.S, none, "a", repeated(0))
}

func TestNotLeaderNamesTheLeader(t *testing.T) {
	w := onNode(t, node.Config{})
	w.node.Faults.Reads(node.ReadFault{Err: node.NotLeader("10.0.0.9:2114")})
	call, err := w.streams.Read(w.ctx, complete(readOptions(w.S)))
	w.must(err)
	_, err = call.Recv()
	got := fmt.Sprint(status.Code(err), call.Trailer().Get("exception"), call.Trailer().Get("leader-endpoint-host"), call.Trailer().Get("leader-endpoint-port"))
	w.same("answer", got, "NotFound [not-leader] [10.0.0.9] [2114]")
}

func TestReadFaults(t *testing.T) {
	for _, test := range []struct {
		name   string
		stored string
		fault  node.ReadFault
		got    int
		want   codes.Code
	}{
		{"at once", "abc", node.ReadFault{Err: node.TimedOut()}, 0, codes.Aborted},
		{"after two", "abc", node.ReadFault{After: 2, Err: node.Unavailable()}, 2, codes.Unavailable},
		{"after more than there are", "abc", node.ReadFault{After: 9, Err: node.TimedOut()}, 3, codes.Aborted},
		{"cut", "abc", node.ReadFault{Cut: true}, 0, codes.Unavailable},
		{"of a missing stream", "", node.ReadFault{Err: node.TimedOut()}, 0, codes.Aborted},
		{"late", "abc", node.ReadFault{Wait: time.Millisecond}, 3, codes.OK},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := onNode(t, node.Config{})
			w.given(w.S, test.stored)
			w.node.Faults.Reads(test.fault)
			found, err := w.read(w.S, 0, false, 10)
			if len(found) != test.got || status.Code(err) != test.want {
				t.Errorf("got %d events and %v, want %d and %v", len(found), err, test.got, test.want)
			}
			if test.stored != "" {
				w.same("again", show(w.read(w.S, 0, false, 10)), "a0 b1 c2")
			}
		})
	}
}

func TestSilentRead(t *testing.T) {
	w := onNode(t, node.Config{})
	w.given(w.S, "abc")
	w.node.Faults.Reads(node.ReadFault{After: 1, Silent: true})
	ctx, cancel := context.WithTimeout(w.ctx, 50*time.Millisecond)
	defer cancel()
	caller := *w
	caller.ctx = ctx
	found, err := caller.read(w.S, 0, false, 10)
	w.same("answer", fmt.Sprint(len(found), status.Code(err)), "1 DeadlineExceeded")
}

func TestSubscriptionFaults(t *testing.T) {
	// what a follower of $all, filtered, meets after b's position when a to e are stored
	for _, test := range []struct {
		name  string
		fault node.SubscriptionFault
		want  string
	}{
		{"none", node.SubscriptionFault{}, "c2 checkpoint d3 checkpoint e4 checkpoint caught-up"},
		{"dropped", node.SubscriptionFault{After: 2, Err: node.TooSlow()}, "c2 checkpoint d3 Aborted"},
		{"dropped at once", node.SubscriptionFault{Err: node.StreamDeleted("s")}, "FailedPrecondition"},
		{"again", node.SubscriptionFault{Rewind: 2}, "a0 checkpoint b1 checkpoint c2 checkpoint d3 checkpoint e4 checkpoint caught-up"},
		{"again from before the start", node.SubscriptionFault{Rewind: 9, After: 1, Err: node.TooSlow()}, "a0 Aborted"},
		{"checkpoints", node.SubscriptionFault{After: 1, Checkpoints: []node.Checkpoint{node.MaxCheckpoint(), {Commit: 7, Prepare: 7}}},
			"c2 checkpoint-max checkpoint-behind checkpoint d3 checkpoint e4 checkpoint caught-up"},
		{"no prepare", node.SubscriptionFault{After: 1, PrepareZero: true, Err: nil}, "c2 checkpoint-zero d3 checkpoint-zero e4 checkpoint-zero caught-up"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := onNode(t, node.Config{})
			w.given(w.S, "abcde")
			w.node.Faults.Subscriptions(test.fault)
			var got []string
			for s := w.follow(w.all()[1].CommitPosition, w.prefix, 1); ; {
				m, err := s.call.Recv()
				if err != nil {
					got = append(got, status.Code(err).String())
					break
				}
				switch c := m.GetCheckpoint(); {
				case m.GetCaughtUp() != nil:
					got = append(got, "caught-up")
				case m.GetEvent() != nil:
					got = append(got, short(m.GetEvent().GetEvent()))
				case c.CommitPosition == atEnd && c.PreparePosition == atEnd:
					got = append(got, "checkpoint-max")
				case c.CommitPosition == 7:
					got = append(got, "checkpoint-behind")
				case c.PreparePosition == 0:
					got = append(got, "checkpoint-zero")
				default:
					got = append(got, "checkpoint")
				}
				if got[len(got)-1] == "caught-up" {
					break
				}
			}
			w.same("messages", strings.Join(got, " "), test.want)
		})
	}
}

func TestCutSubscription(t *testing.T) {
	w := onNode(t, node.Config{})
	w.given(w.S, "abc")
	w.node.Faults.Subscriptions(node.SubscriptionFault{After: 1, Cut: true})
	options := readOptions(w.S)
	options.CountOption = &streams.ReadReq_Options_Subscription{Subscription: &streams.ReadReq_Options_SubscriptionOptions{}}
	call, err := w.streams.Read(w.ctx, complete(options))
	w.must(err)
	got := 0
	for err == nil { // the confirmation and a, or less, then the end
		_, err = call.Recv()
		got++
	}
	if got > 3 || status.Code(err) != codes.Unavailable {
		t.Errorf("got %d messages and %v, want at most 2 and Unavailable", got-1, err)
	}
}

func TestNeverCaughtUp(t *testing.T) {
	for _, test := range []struct {
		version string
		fault   node.SubscriptionFault
	}{
		{"24.10.0", node.SubscriptionFault{NeverCaughtUp: true}},
		{"22.10.5", node.SubscriptionFault{}}, // it does not know the message
	} {
		w := onNode(t, node.Config{Version: test.version})
		w.given(w.S, "a")
		w.node.Faults.Subscriptions(test.fault)
		s := w.follow(0, w.prefix, 32)
		w.same("history", show(s.take(1), nil), "a0")
		w.expect(w.S, 0, "b", stored(1))
		m, err := s.call.Recv()
		w.must(err)
		w.same("next", short(m.GetEvent().GetEvent()), "b1")
	}
}

func TestRewindOfAStream(t *testing.T) {
	w := onNode(t, node.Config{})
	w.given(w.S, "abcde")
	w.node.Faults.Subscriptions(node.SubscriptionFault{Rewind: 2})
	w.same("after 3", show(w.followStream(w.S, 3).take(3), nil), "c2 d3 e4")
}

func TestDrop(t *testing.T) {
	w := onNode(t, node.Config{})
	w.given(w.S, "a")
	s := w.follow(0, w.prefix, 32)
	s.caughtUp()
	w.node.Drop(node.TooSlow())
	_, err := s.next()
	w.same("drop", status.Code(err).String(), "Aborted")
	w.same("the next one", show(w.follow(0, w.prefix, 32).take(1), nil), "a0")
}

func TestHooks(t *testing.T) {
	w := onNode(t, node.Config{})
	w.node.Faults.OnAppend(func(stream string) (fault node.AppendFault) {
		if stream == w.S {
			fault.Err = node.TimedOut()
		}
		return fault
	})
	w.node.Faults.OnRead(func(stream string) node.ReadFault {
		return map[string]node.ReadFault{w.T: {Err: node.Unavailable()}}[stream]
	})
	w.node.Faults.OnSubscribe(func(string) node.SubscriptionFault { return node.SubscriptionFault{Err: node.TooSlow()} })
	w.same("S", w.append(w.S, none, "a").text, "Aborted")
	w.same("T", w.append(w.T, none, "a").text, "success 0")
	w.same("read T", show(w.read(w.T, 0, false, 1)), "Unavailable")
	_, err := w.follow(0, "", 0).next()
	w.same("subscription", status.Code(err).String(), "Aborted")
	w.node.Faults.Clear()
	w.same("S", w.append(w.S, none, "a").text, "success 0")
	calls := w.node.Calls()
	w.same("calls", fmt.Sprint(calls.Appends, calls.Subscriptions, calls.Deletes), "3 1 0")
}

func TestDelay(t *testing.T) {
	w := onNode(t, node.Config{})
	w.node.Faults.Delay(30 * time.Millisecond)
	began := time.Now()
	w.given(w.S, "a")
	if took := time.Since(began); took < 30*time.Millisecond {
		t.Errorf("an append took %v, want at least 30ms", took)
	}
}

func TestPause(t *testing.T) {
	w := onNode(t, node.Config{})
	w.given(w.S, "a")
	w.node.Pause()
	conn, err := net.Dial("tcp", w.node.Addr())
	w.must(err) // accepted
	defer conn.Close()
	done := make(chan reply, 1)
	go func() { done <- w.append(w.S, 0, "b") }()
	select {
	case got := <-done:
		t.Fatalf("a paused node answered %v", got)
	case <-time.After(50 * time.Millisecond):
	}
	w.node.Resume()
	w.same("after the pause", (<-done).text, "success 1")
}

func TestStopWhilePaused(t *testing.T) {
	w := onNode(t, node.Config{})
	w.given(w.S, "a")
	w.node.Pause()
	w.restart(true)
	w.same("after the restart", w.append(w.S, 0, "b").text, "success 1")
}

func TestCut(t *testing.T) {
	w := onNode(t, node.Config{})
	s := w.follow(atEnd, "", 0)
	w.node.Cut()
	_, err := s.next()
	w.same("after the cut", status.Code(err).String(), "Unavailable")
	w.same("a new connection", w.append(w.S, none, "a").text, "success 0")
}

// TestWeakRule: at Any and StreamExists only IDs in memory count, and a restart forgets them. Servers
// differ in how long they remember, so nothing but the node is held to it.
func TestWeakRule(t *testing.T) {
	for _, test := range []struct {
		expected         rev
		text             string
		warm, afterwards string
	}{
		{expected: anyRev, text: "abc", warm: repeated(2), afterwards: stored(5)},
		{expected: anyRev, text: "c", warm: repeated(2), afterwards: stored(3)},
		{expected: anyRev, text: "ac", warm: repeated(2), afterwards: stored(4)},
		{expected: anyRev, text: "ba", warm: repeated(0), afterwards: stored(4)},
		{expected: anyRev, text: "abcd", warm: wrong(2), afterwards: stored(6)},
		{expected: anyRev, text: "bd", warm: wrong(2), afterwards: stored(4)},
		{expected: anyRev, text: "da", warm: stored(4), afterwards: stored(4)},
		{expected: anyRev, text: "ca", warm: "Unknown", afterwards: stored(4)},
		{expected: exists, text: "ad", warm: wrong(2), afterwards: stored(4)},
	} {
		w := onNode(t, node.Config{})
		w.given(w.S, "abc")
		w.expect(w.S, test.expected, test.text, test.warm)

		w = onNode(t, node.Config{})
		w.given(w.S, "abc")
		w.restart(true)
		w.expect(w.S, test.expected, test.text, test.afterwards)
	}
}

// TestIDsOfAnotherStream: the first stream to use an ID keeps it.
func TestIDsOfAnotherStream(t *testing.T) {
	w := onNode(t, node.Config{})
	w.given(w.S, "a")
	w.expect(w.T, anyRev, "a", stored(0))
	w.expect(w.T, anyRev, "a", stored(1))
	w.expect(w.S, anyRev, "a", repeated(0))
	w.node.ForgetIDs()
	w.expect(w.S, anyRev, "a", stored(1))
}

func TestSameIDTwiceInABatch(t *testing.T) {
	w := onNode(t, node.Config{})
	w.expect(w.S, none, "aa", stored(1))
	w.expect(w.S, none, "aa", repeated(1))
	w.expect(w.S, anyRev, "aa", repeated(0))
}

// TestSlowCatchUp: before a subscription is live it may be read as slowly as one likes.
func TestSlowCatchUp(t *testing.T) {
	w := onNode(t, node.Config{Version: "23.10.0"})
	w.same("append", w.send(w.S, none, unnamed(90, strings.Repeat("x", 10_000))...).text, "success 89")
	s := w.follow(0, w.S, 32)
	for began := time.Now(); time.Since(began) < 150*time.Millisecond; {
		w.must(w.append(w.T, anyRev, "a").err) // meanwhile nothing is read
	}
	w.complete(s.take(90), 90)
}

func TestTruncate(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		w := onNode(t, node.Config{Dir: dir})
		w.given(w.S, "abc")
		lost := w.all()[1].CommitPosition
		if w.node.Truncate(1) == nil {
			t.Error("a running node was truncated")
		}
		w.must(w.node.Stop())
		w.must(w.node.Truncate(2))
		w.must(w.node.Start())
		w.connect(w.node.URL())
		w.same("left", show(w.all(), nil), "a0")
		w.expect(w.S, 0, "x", stored(1))
		if got := w.all()[1].CommitPosition; got != lost {
			t.Errorf("x has position %d, want the reused %d", got, lost)
		}
	}
}

package node_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/talenttrust/auditledger/ledger/ledgertest/esnode/node"
)

type proposed = streams.AppendReq_ProposedMessage

func versions(texts ...string) (out []node.Config) {
	for _, text := range texts {
		out = append(out, node.Config{Version: text})
	}
	return out
}

// subscriptionRows are the rows about following.
func subscriptionRows() []row {
	return []row{
		{number: 83, run: func(w *world) {
			w.given(w.S, "abc")
			s := w.follow(0, w.prefix, 32)
			events, _ := s.caughtUp()
			w.same("history", show(events, nil), "a0 b1 c2")
			w.expect(w.S, 2, "d", stored(3))
			w.expect(w.T, none, "e", stored(0))
			w.same("live", show(s.take(2), nil), "d3 e0")
		}},
		{number: 84, run: func(w *world) {
			w.given(w.S, "abc")
			events, _ := w.follow(w.all()[1].CommitPosition, w.prefix, 32).caughtUp()
			w.same("after b", show(events, nil), "c2")
		}},
		{number: 85, run: func(w *world) {
			w.given(w.S, "abc")
			s := w.follow(atEnd, w.prefix, 32)
			s.caughtUp()
			w.expect(w.S, 2, "d", stored(3))
			w.same("live", show(s.take(1), nil), "d3")
		}},
		{number: 86, run: func(w *world) {
			w.given(w.S, "abc")
			s := w.followStream(w.S, 1)
			w.same("history", show(s.take(1), nil), "c2")
			w.expect(w.S, 2, "d", stored(3))
			w.same("live", show(s.take(1), nil), "d3")
		}},
		{number: 87, run: func(w *world) {
			s := w.followStream(w.S, -1)
			w.expect(w.S, none, "a", stored(0))
			w.same("live", show(s.take(1), nil), "a0")
		}},
		{number: 88, run: func(w *world) { w.checkpoints() }},
		{number: 89, run: func(w *world) {
			last := w.checkpoints()
			w.expect(w.S, none, "a", stored(0))
			w.same("after the checkpoint", show(w.follow(last, w.prefix, 32).take(1), nil), "a0")
		}},
		{number: 90, run: func(w *world) {
			writing := w.writes(50, 10)
			after, seen := w.origin, []*recorded{}
			for _, until := range []int{100, 250, 400, 500} { // three cuts
				s := w.follow(after, w.prefix, 32)
				for len(seen) < until {
					e := s.take(1)[0]
					if e.CommitPosition > after {
						seen, after = append(seen, e), e.CommitPosition
					}
				}
				s.cancel()
			}
			writing()
			w.complete(seen, 500)
		}},
		{number: 91, run: func(w *world) {
			w.writes(50, 10)()
			s := w.follow(0, w.prefix, 32)
			writing := w.writes(20, 10)
			seen := s.take(700)
			writing()
			w.complete(seen[:500], 500)
			w.same("$all", places(seen), places(w.all()))
		}},
		{number: 92, run: func(w *world) {
			s := w.follow(atEnd, "", 0)
			began := time.Now()
			s.cancel()
			_, err := s.next()
			w.same("after the cancel", status.Code(err).String(), codes.Canceled.String())
			if took := time.Since(began); took > time.Second {
				w.Errorf("the drop took %v", took)
			}
		}},
		{number: 93, nodeOnly: true, run: func(w *world) {
			w.given(w.S, "ab")
			s := w.follow(0, w.prefix, 32)
			cursor := s.take(2)[1].CommitPosition
			w.must(w.node.Stop())
			_, err := s.next()
			w.same("after the stop", status.Code(err).String(), codes.Unavailable.String())
			w.must(w.node.Start())
			s = w.follow(cursor, w.prefix, 32)
			w.expect(w.S, 1, "c", stored(2))
			w.same("resumed", show(s.take(1), nil), "c2")
		}},
		{number: 94, run: func(w *world) {
			w.given(w.S, "a")
			stream, all := w.followStream(w.S, -1), w.follow(0, w.prefix, 32)
			w.same("history", show(stream.take(1), nil)+" "+show(all.take(1), nil), "a0 a0")
			w.same("tombstone", w.tombstone(w.S, 0), "ok")
			_, err := stream.next()
			w.same("the stream", status.Code(err).String(), codes.FailedPrecondition.String())
			w.same("$all", strings.Trim(show(all.take(1), nil), "0123456789"), "$streamDeleted")
		}},
		slow("23.10.0"), slow("24.10.0"),
		{number: 96, nodeOnly: true, run: func(w *world) {
			// A start beyond the log is taken without a word: what is written below it never comes.
			w.given(w.S, "a")
			s := w.follow(w.all()[0].CommitPosition+1<<30, w.prefix, 1)
			s.caughtUp()
			w.expect(w.S, 0, "b", stored(1))
			m, err := s.call.Recv()
			w.must(err)
			if got, want := m.GetCheckpoint().GetCommitPosition(), w.all()[1].CommitPosition; got != want {
				w.Errorf("got %v, want b passed over and the checkpoint %d", m, want)
			}
		}},
	}
}

// slow is the consumer that does not read while 200 events and more are written.
func slow(version string) row {
	return row{number: 95, config: node.Config{Version: version}, run: func(w *world) {
		s := w.follow(atEnd, w.prefix, 32)
		s.caughtUp()
		data, written := `"`+strings.Repeat("x", 10_000)+`"`, 0
		for began := time.Now(); written < 200 || time.Since(began) < 150*time.Millisecond; written++ {
			w.same("append", w.send(w.S, rev(written-1), unnamed(1, data)...).text, fmt.Sprintf("success %d", written))
		}
		var seen []*recorded
		after, drops := w.origin, 0
		for len(seen) < written {
			e, err := s.next()
			if err != nil {
				w.same("drop", status.Code(err).String(), codes.Aborted.String())
				drops++
				s = w.follow(after, w.prefix, 32)
				continue
			}
			seen, after = append(seen, e), e.CommitPosition
		}
		w.complete(seen, written)
		if w.node != nil && (drops > 0) != (version == "23.10.0") {
			w.Errorf("version %s dropped the subscription %d times", version, drops)
		}
	}}
}

// checkpoints follows 1000 events that no filter wants, and returns the last checkpoint.
func (w *world) checkpoints() uint64 {
	w.Helper()
	for i := range 10 {
		w.same("append", w.send("other-"+w.S, rev(i*100-1), unnamed(100, `{}`)...).text, fmt.Sprintf("success %d", i*100+99))
	}
	head := w.messages(w.readAll(atEnd, true, 1))[0].CommitPosition
	_, checkpoints := w.follow(w.origin, w.prefix+"none", 32).caughtUp()
	last := w.origin
	for _, c := range checkpoints {
		if c.CommitPosition <= last || c.CommitPosition != c.PreparePosition || w.node != nil && c.CommitPosition > head {
			w.Errorf("checkpoint %v after %d, head %d", c, last, head)
		}
		last = c.CommitPosition
	}
	if w.node != nil && len(checkpoints) != 31 || len(checkpoints) == 0 {
		w.Errorf("%d checkpoints, want about 31", len(checkpoints))
	}
	return last
}

// writes appends n batches to S, each at the revision it then has, and returns what waits for the end.
func (w *world) writes(n, size int) (wait func()) {
	w.Helper()
	next := 0
	if found, err := w.read(w.S, atEnd, true, 1); err == nil {
		next = int(found[0].StreamRevision) + 1
	}
	done := make(chan string, 1)
	go func() {
		for range n {
			if got := w.send(w.S, rev(next-1), unnamed(size, `{}`)...); got.text != fmt.Sprintf("success %d", next+size-1) {
				done <- got.text
				return
			}
			next += size
		}
		done <- "ok"
	}()
	return func() {
		w.Helper()
		w.same("writes", <-done, "ok")
	}
}

// complete checks that seen is the revisions from 0 to n-1 of S.
func (w *world) complete(seen []*recorded, n int) {
	w.Helper()
	if len(seen) != n {
		w.Errorf("%d events, want %d", len(seen), n)
	}
	for i, e := range seen {
		if e.StreamRevision != uint64(i) {
			w.Fatalf("event %d is revision %d", i, e.StreamRevision)
		}
	}
}

func places(events []*recorded) string {
	var out []string
	for _, e := range events {
		out = append(out, fmt.Sprintf("%s at %d/%d", short(e), e.CommitPosition, e.PreparePosition))
	}
	return strings.Join(out, ", ")
}

package node_test

import (
	"strings"
	"sync"
	"time"

	"github.com/talenttrust/auditledger/ledger/ledgertest/esnode/node"
)

// try is one append to S, and what becomes of it; several are tried each on a server of its own.
type try struct {
	expected rev
	text     string
	want     string
}

// appendRows are the rows about new events.
func appendRows() []row {
	simple := func(number int, given string, tries ...try) row {
		return row{number: number, run: func(w *world) {
			w.given(w.S, given)
			for _, try := range tries {
				w.expect(w.S, try.expected, try.text, try.want)
			}
		}}
	}
	return []row{
		simple(1, "", try{none, "a", stored(0)}),
		simple(2, "", try{anyRev, "abc", stored(2)}),
		simple(3, "", try{0, "a", wrong(-1)}),
		simple(4, "", try{exists, "a", wrong(-1)}),
		simple(5, "a", try{none, "b", wrong(0)}),
		simple(6, "a", try{0, "b", stored(1)}),
		simple(7, "a", try{5, "b", wrong(0)}),
		simple(8, "abc", try{1, "d", wrong(2)}),
		simple(9, "a", try{exists, "bc", stored(2)}),
		simple(10, "a", try{anyRev, "b", stored(1)}),
		simple(11, "abc", try{2, "d", stored(3)}),
		{number: 12, run: func(w *world) {
			got := w.append(w.S, none, "abc")
			found := w.messages(w.read(w.S, 0, false, 10))
			w.same("read back", show(found, nil), "a0 b1 c2")
			if len(found) != 3 || found[0].CommitPosition >= found[1].CommitPosition || found[1].CommitPosition >= found[2].CommitPosition ||
				found[2].CommitPosition != got.position || found[2].PreparePosition != got.position {
				w.Errorf("positions %v, answer %d", found, got.position)
			}
		}},
		{number: 13, run: func(w *world) {
			w.given(w.S, "a")
			w.expect(w.T, none, "b", stored(0))
			w.same("$all", show(w.all(), nil), "a0 b0")
			w.same("S", show(w.read(w.S, 0, false, 10)), "a0")
		}},
		{number: 14, run: func(w *world) {
			texts := w.atOnce(16, func(int) reply { return w.send(w.S, none, unnamed(1, `{}`)...) })
			if got := strings.Count(strings.Join(texts, ","), "success 0"); got != 1 {
				w.Errorf("%d of 16 writers won, want 1: %v", got, texts)
			}
			if got := strings.Count(strings.Join(texts, ","), "wrong 0"); got != 15 {
				w.Errorf("%d of 16 writers were refused, want 15: %v", got, texts)
			}
			if got := len(w.all()); got != 1 {
				w.Errorf("%d events, want 1", got)
			}
		}},
		{number: 15, run: func(w *world) {
			w.given(w.S, "a")
			if w.node != nil { // the first is not replicated when the others come
				w.node.Faults.Appends(node.AppendFault{Lag: 300 * time.Millisecond})
			}
			w.atOnce(16, func(int) reply {
				got := w.append(w.S, 0, "b")
				if got.text == "Aborted" {
					got = w.append(w.S, 0, "b")
				}
				w.same("b", got.text, "success 1")
				return got
			})
			w.same("$all", show(w.all(), nil), "a0 b1")
		}},
		{number: 16, run: func(w *world) {
			w.given(w.S, "a")
			w.same("payload 1", w.send(w.S, 0, proposal(letters["b"], `{"payload":1}`)).text, "success 1")
			w.same("payload 2", w.send(w.S, 0, proposal(letters["b"], `{"payload":2}`)).text, "success 1")
			found := w.messages(w.read(w.S, 1, false, 10))
			w.same("read back", show(found, nil), "b1")
			w.same("data", string(found[0].Data), `{"payload":1}`)
		}},
	}
}

// atOnce calls do n times at once and returns the texts of the answers.
func (w *world) atOnce(n int, do func(i int) reply) []string {
	texts := make([]string, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { texts[i] = do(i).text })
	}
	all.Wait()
	return texts
}

// repeatRows are the rows about events that are stored already: each also after a restart.
func repeatRows() []row {
	var out []row
	repeats := func(number int, given string, tries ...try) {
		for _, try := range tries {
			for _, restart := range []bool{false, true} {
				out = append(out, row{number: number, nodeOnly: restart, run: func(w *world) {
					w.given(w.S, given)
					w.restart(restart)
					w.expect(w.S, try.expected, try.text, try.want)
				}})
			}
		}
	}
	repeats(18, "abc", try{none, "abc", repeated(2)})
	repeats(19, "abc", try{none, "ab", repeated(1)})
	repeats(20, "abc", try{none, "a", repeated(0)})
	repeats(21, "abc", try{0, "bc", repeated(2)})
	repeats(22, "abc", try{0, "b", repeated(1)})
	repeats(23, "abc", try{1, "c", repeated(2)})
	repeats(24, "abc", try{none, "abcd", wrong(2)})
	repeats(25, "abc", try{1, "cd", wrong(2)})
	repeats(26, "abc", try{none, "axc", wrong(2)})
	repeats(27, "abc", try{none, "xbc", wrong(2)})
	repeats(28, "abc", try{none, "b", wrong(2)})
	repeats(29, "abc", try{0, "c", wrong(2)})
	repeats(30, "abc", try{none, "cba", wrong(2)}, try{none, "acb", wrong(2)})
	repeats(31, "abc", try{2, "a", stored(3)})
	repeats(32, "abc", try{2, "abc", stored(5)})
	repeats(33, "abc", try{3, "a", wrong(2)})
	repeats(34, "abcde", try{none, "abc", repeated(2)})
	repeats(35, "abcde", try{2, "de", repeated(4)})
	for _, restart := range []bool{false, true} {
		out = append(out,
			row{number: 36, nodeOnly: restart, run: func(w *world) {
				w.given(w.S, "abc")
				w.restart(restart)
				w.same("another payload", w.send(w.S, none, proposal(letters["a"], `{"k":"other"}`)).text, "success 0")
				w.same("$all", show(w.all(), nil), "a0 b1 c2")
				w.same("data", string(w.messages(w.read(w.S, 0, false, 1))[0].Data), `{"k":"a"}`)
			}},
			row{number: 37, nodeOnly: restart, run: func(w *world) {
				w.given(w.S, "a")
				w.restart(restart)
				w.expect(w.T, none, "a", stored(0))
				w.restart(restart)
				w.expect(w.T, none, "a", repeated(0))
			}},
			row{number: 38, nodeOnly: restart, run: func(w *world) {
				w.given(w.S, "abc")
				w.restart(restart)
				for range 200 {
					w.same("abc again", w.append(w.S, none, "abc").text, "success 2")
				}
				w.same("$all", show(w.all(), nil), "a0 b1 c2")
			}},
		)
	}
	return out
}

// restart restarts the node, really or not at all, and connects anew.
func (w *world) restart(really bool) {
	w.Helper()
	if really {
		w.must(w.node.Restart())
		w.connect(w.node.URL())
	}
}

// lossRows are the rows about answers and requests that get lost.
func lossRows() []row {
	lost := func(number int, fault node.AppendFault, meanwhile, again try, want string) row {
		return row{number: number, nodeOnly: true, run: func(w *world) {
			w.given(w.S, "abc")
			w.node.Faults.Appends(fault)
			w.same("first try", w.append(w.S, 2, "d").text, "Unavailable")
			if meanwhile.text != "" {
				w.expect(w.S, meanwhile.expected, meanwhile.text, meanwhile.want)
			}
			w.expect(w.S, again.expected, again.text, again.want)
			w.same("$all", show(w.all(), nil), want)
		}}
	}
	return []row{
		lost(39, node.AnswerLost(), try{}, try{2, "d", repeated(3)}, "a0 b1 c2 d3"),
		lost(40, node.RequestLost(), try{}, try{2, "d", stored(3)}, "a0 b1 c2 d3"),
		lost(41, node.AnswerLost(), try{3, "e", stored(4)}, try{2, "d", repeated(3)}, "a0 b1 c2 d3 e4"),
		lost(42, node.RequestLost(), try{2, "e", stored(3)}, try{2, "d", wrong(3)}, "a0 b1 c2 e3"),
	}
}

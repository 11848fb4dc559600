package node_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/talenttrust/auditledger/ledger/ledgertest/esnode/node"
)

// The rows say what a server answers, by number. They run against a node of their own each, and all
// that need neither a fault nor a restart run against a real server when ESDB_URL names one
// (esdb://user:password@host:port?tlsCAFile=ca.pem).
//
// What differs between servers or after a restart is never asserted: repeats at Any, the number of
// checkpoints, whether and when a missing stream counts as caught up, error texts.

// row is one line of the table.
type row struct {
	number   int
	nodeOnly bool // it needs a fault or a restart
	config   node.Config
	run      func(w *world)
}

// rows numbers every row once; the rows from firstRow to lastRow are all there but for those not on the wire.
const firstRow, lastRow = 1, 99

// notOnTheWire are the rows that are about a store and its tokens, not about a server.
var notOnTheWire = []int{17}

func TestConformance(t *testing.T) {
	table := slices.Concat(appendRows(), repeatRows(), lossRows(), metadataRows(), readRows(), subscriptionRows(), limitRows())
	var mu sync.Mutex
	ran := map[int]bool{}
	t.Run("rows", func(t *testing.T) {
		for _, r := range table {
			if r.nodeOnly && os.Getenv("ESDB_URL") != "" {
				continue
			}
			t.Run(fmt.Sprint(r.number), func(t *testing.T) {
				t.Parallel()
				r.run(newWorld(t, r.config))
				mu.Lock()
				defer mu.Unlock()
				ran[r.number] = true
			})
		}
	})
	missing := slices.DeleteFunc(numbers(firstRow, lastRow), func(n int) bool {
		return ran[n] || slices.Contains(notOnTheWire, n) || os.Getenv("ESDB_URL") != "" && nodeOnly(table, n)
	})
	t.Logf("%d rows: %v", len(ran), slices.Sorted(maps.Keys(ran)))
	if len(missing) > 0 && !t.Failed() {
		t.Errorf("rows %v did not run", missing)
	}
}

func numbers(from, to int) (out []int) {
	for n := from; n <= to; n++ {
		out = append(out, n)
	}
	return out
}

func nodeOnly(table []row, number int) bool {
	return slices.ContainsFunc(table, func(r row) bool { return r.number == number && r.nodeOnly })
}

// stored, repeated and wrong are the results of an append.
func stored(revision int) string   { return fmt.Sprintf("stored %d", revision) }
func repeated(revision int) string { return fmt.Sprintf("repeat %d", revision) }
func wrong(revision int) string {
	return strings.Replace(fmt.Sprintf("wrong %d", revision), "-1", "none", 1)
}

// expect appends lettered events and checks the answer and what it left in $all.
func (w *world) expect(stream string, expected rev, text, want string) {
	w.Helper()
	before := w.all()
	got := w.append(stream, expected, text)
	after := w.all()
	added := after[len(before):]
	switch verdict, revision, _ := strings.Cut(want, " "); verdict {
	case "stored":
		w.wantText(expected, text, got.text, "success "+revision)
		if len(added) < len(text) {
			w.Fatalf("%v %s: $all grew by %d events, want %d", expected, text, len(added), len(text))
		}
		last := added[len(text)-1]
		if got.position != last.CommitPosition || fmt.Sprint(last.StreamRevision) != revision {
			w.Errorf("%v %s: the answer's position is %d, want %d of event %s", expected, text, got.position, last.CommitPosition, short(last))
		}
	case "repeat":
		w.wantText(expected, text, got.text, "success "+revision)
		w.wantNone(expected, text, added)
		original := before[slices.IndexFunc(before, func(e *recorded) bool {
			return string(e.StreamIdentifier.StreamName) == stream && fmt.Sprint(e.StreamRevision) == revision
		})]
		if got.position != original.CommitPosition {
			w.Errorf("%v %s: the answer's position is %d, want the original's %d", expected, text, got.position, original.CommitPosition)
		}
	case "hidden": // a repeat of an event that reads do not show
		w.wantText(expected, text, got.text, "success "+revision)
		w.wantNone(expected, text, added)
		if got.position != 0 {
			w.Errorf("%v %s: the answer's position is %d, want none", expected, text, got.position)
		}
	default:
		w.wantText(expected, text, got.text, want)
		w.wantNone(expected, text, added)
	}
}

func (w *world) wantText(expected rev, text, got, want string) {
	w.Helper()
	if got != want {
		w.Errorf("%v %s: got %s, want %s", expected, text, got, want)
	}
}

func (w *world) wantNone(expected rev, text string, added []*recorded) {
	w.Helper()
	if len(added) > 0 {
		w.Errorf("%v %s: $all grew by %s, want nothing", expected, text, show(added, nil))
	}
}

// given stores lettered events in a new stream by one append.
func (w *world) given(stream, text string) {
	w.Helper()
	if text == "" {
		return
	}
	if got, want := w.append(stream, none, text).text, fmt.Sprintf("success %d", len(text)-1); got != want {
		w.Fatalf("given %s: got %s, want %s", text, got, want)
	}
}

// same compares two short forms.
func (w *world) same(what, got, want string) {
	w.Helper()
	if got != want {
		w.Errorf("%s: got %s, want %s", what, got, want)
	}
}

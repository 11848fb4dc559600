package node_test

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// metadataRows are the rows about metadata, deletion and tombstones.
func metadataRows() []row {
	var out []row
	add := func(number int, run func(w *world)) { out = append(out, row{number: number, run: run}) }
	// given a stream, each of several things is tried on a server of its own.
	each := func(number int, given func(w *world), tries ...func(w *world)) {
		for _, try := range tries {
			add(number, func(w *world) {
				given(w)
				try(w)
			})
		}
	}
	appends := func(expected rev, text, want string) func(w *world) {
		return func(w *world) { w.expect(w.S, expected, text, want) }
	}
	deletes := func(expected rev, want string) func(w *world) {
		return func(w *world) { w.same(fmt.Sprintf("delete at %v", expected), w.delete(w.S, expected), want) }
	}
	tombstones := func(expected rev, want string) func(w *world) {
		return func(w *world) { w.same(fmt.Sprintf("tombstone at %v", expected), w.tombstone(w.S, expected), want) }
	}
	nothing := func(*world) {}

	add(43, func(w *world) {
		w.same("set metadata", w.setMetadata(w.S, none, `{"$maxCount":9}`).text, "success 0")
		w.expect(w.S, exists, "a", stored(0))
	})

	one := func(w *world) {
		w.given(w.S, "abc")
		w.same("set metadata", w.setMetadata(w.S, none, `{"$maxCount":1}`).text, "success 0")
	}
	each(44, one, func(w *world) { w.same("read", show(w.read(w.S, 0, false, 10)), "c2") })
	each(45, one, func(w *world) {
		w.expect(w.S, 2, "d", stored(3))
		w.same("read", show(w.read(w.S, 0, false, 10)), "d3")
	})
	each(46, one, appends(none, "abc", repeated(2)), appends(none, "a", "hidden 0"))
	each(47, one, func(w *world) { w.same("$all", show(w.all(), nil), "a0 b1 c2 $metadata0") })

	add(48, func(w *world) {
		w.given(w.S, "abc")
		w.same("set metadata", w.setMetadata(w.S, none, `{"$tb":2}`).text, "success 0")
		w.same("read", show(w.read(w.S, atEnd, true, 10)), "c2")
	})
	add(49, func(w *world) {
		w.same("first", w.setMetadata(w.S, none, `{"n":1}`).text, "success 0")
		w.same("second", w.setMetadata(w.S, 0, `{"n":2}`).text, "success 1")
		w.same("metadata", w.metadata(w.S), `{"n":2}`)
	})

	soft := func(w *world) {
		w.given(w.S, "ab")
		w.same("delete", w.delete(w.S, 1), "ok")
	}
	recreated := func(expected rev) func(w *world) {
		return func(w *world) {
			w.expect(w.S, expected, "x", stored(2))
			w.eventually("read", func() string { return show(w.read(w.S, 0, false, 10)) }, "x2")
			w.eventually("metadata", func() string { return fmt.Sprint(strings.Contains(w.metadata(w.S), `"$tb":2`)) }, "true")
		}
	}
	each(50, soft, func(w *world) { w.same("read", show(w.read(w.S, 0, false, 10)), "not found") })
	each(51, soft, recreated(none), recreated(1), recreated(anyRev))
	each(52, soft, appends(exists, "x", "deleted"))
	each(53, soft, appends(0, "x", wrong(1)), appends(5, "x", wrong(1)), appends(none, "ax", wrong(1)))
	hidden := func(expected rev, text string) func(w *world) {
		return func(w *world) {
			w.expect(w.S, expected, text, "hidden 1")
			w.same("read", show(w.read(w.S, 0, false, 10)), "not found")
		}
	}
	each(54, soft, hidden(none, "ab"), hidden(0, "b"))
	again := func(w *world) {
		soft(w)
		recreated(none)(w)
	}
	each(55, again, appends(none, "y", wrong(2)), appends(none, "x", wrong(2)), appends(1, "x", repeated(2)))
	each(56, nothing, deletes(anyRev, "wrong none"), deletes(none, "wrong none"), deletes(exists, "wrong none"))
	each(57, func(w *world) { w.given(w.S, "ab") }, deletes(0, "wrong 1"), deletes(1, "ok"))
	each(58, soft, func(w *world) {
		deletes(anyRev, "ok")(w)
		w.same("read", show(w.read(w.S, 0, false, 10)), "not found")
	}, deletes(exists, "deleted"))

	abc := func(w *world) { w.given(w.S, "abc") }
	each(59, abc, tombstones(1, "wrong 2"), func(w *world) {
		tombstones(2, "ok")(w)
		tombstones(anyRev, "deleted")(w)
	})
	gone := func(w *world) {
		abc(w)
		tombstones(2, "ok")(w)
	}
	each(60, gone, appends(anyRev, "d", "deleted"), appends(none, "d", "deleted"), appends(exists, "d", "deleted"),
		appends(2, "d", "deleted"), appends(none, "abc", "deleted"))
	each(61, gone, func(w *world) {
		w.same("read", show(w.read(w.S, 0, false, 10)), "deleted")
		w.same("metadata", w.metadata(w.S), "deleted")
		w.same("set metadata", w.setMetadata(w.S, anyRev, `{}`).text, "deleted")
	})
	each(62, nothing, func(w *world) {
		tombstones(none, "ok")(w)
		appends(none, "a", "deleted")(w)
	}, func(w *world) {
		tombstones(anyRev, "ok")(w)
		appends(none, "a", "deleted")(w)
	})
	each(63, nothing, tombstones(exists, "wrong none"))
	each(64, gone, func(w *world) {
		all := w.all()
		last := all[len(all)-1]
		w.same("$all", show(all[len(all)-1:], nil), fmt.Sprintf("$streamDeleted%d", uint64(math.MaxInt64)))
		w.same("stream", string(last.StreamIdentifier.StreamName), w.S)
	})
	return out
}

// eventually polls for what the server does by a record of its own.
func (w *world) eventually(what string, got func() string, want string) {
	w.Helper()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for end := time.Now().Add(5 * time.Second); got() != want && time.Now().Before(end); {
		<-poll.C
	}
	w.same(what, got(), want)
}

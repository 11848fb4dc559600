package node_test

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// readRows are the rows about counted reads.
func readRows() []row {
	reads := func(number int, given string, from uint64, backwards bool, count uint64, want string) row {
		return row{number: number, run: func(w *world) {
			w.given(w.S, given)
			w.same("read", show(w.read(w.S, from, backwards, count)), want)
		}}
	}
	// four events in two streams, and the position of the third
	four := func(number int, run func(w *world, c uint64)) row {
		return row{number: number, run: func(w *world) {
			w.given(w.S, "ab")
			w.given(w.T, "c")
			w.expect(w.S, 1, "d", stored(2))
			run(w, w.all()[2].CommitPosition)
		}}
	}
	return []row{
		reads(65, "", 0, false, 10, "not found"),
		reads(66, "abcde", 1, false, 2, "b1 c2"),
		reads(67, "abcde", 5, false, 10, ""),
		reads(68, "abcde", atEnd, true, 2, "e4 d3"),
		reads(69, "abcde", 3, true, 10, "d3 c2 b1 a0"),
		reads(70, "abcde", 99, true, 10, "e4 d3 c2 b1 a0"),
		reads(71, "abcde", 0, true, 10, "a0"),
		{number: 72, run: func(w *world) {
			w.same("append", w.send(w.S, none, unnamed(40, `{}`)...).text, "success 39")
			for _, count := range []uint64{40, 1000} {
				found := w.messages(w.read(w.S, 0, false, count))
				if len(found) != 40 {
					w.Errorf("a read of %d got %d events, want 40", count, len(found))
				}
				for i, e := range found {
					if e.StreamRevision != uint64(i) {
						w.Fatalf("event %d has revision %d", i, e.StreamRevision)
					}
				}
			}
		}},
		four(73, func(w *world, _ uint64) { w.same("$all", show(w.all(), nil), "a0 b1 c0 d2") }),
		four(74, func(w *world, c uint64) {
			w.same("forwards", show(w.own(w.messages(w.readAll(c, false, 100))), nil), "c0 d2")
		}),
		four(75, func(w *world, c uint64) {
			w.same("backwards", show(w.own(w.messages(w.readAll(c, true, 100))), nil), "b1 a0")
		}),
		four(76, func(w *world, _ uint64) {
			count := uint64(1)
			if w.node == nil { // others write there, too
				count = 100
			}
			found := w.own(w.messages(w.readAll(atEnd, true, count)))
			w.same("backwards", show(found[:1], nil), "d2")
		}),
		four(77, func(w *world, _ uint64) {
			w.same("forwards", show(w.own(w.messages(w.readAll(atEnd, false, 10))), nil), "")
		}),
		four(78, func(w *world, c uint64) {
			follower := w.follow(c, w.prefix, 32)
			w.same("after c", show(follower.take(1), nil), "d2")
			w.expect(w.S, 2, "e", stored(3))
			w.same("live", show(follower.take(1), nil), "e3")
		}),
		{number: 79, run: func(w *world) {
			w.same("append", w.send(w.S, none, proposal(letters["a"], "")).text, "success 0")
			got := w.messages(w.read(w.S, 0, false, 1))[0]
			if len(got.Data) > 0 || len(got.CustomMetadata) > 0 {
				w.Errorf("data %q, metadata %q, want both empty", got.Data, got.CustomMetadata)
			}
			w.same("type", got.Metadata["type"]+" "+got.Metadata["content-type"], "EventAccepted application/json")
		}},
		{number: 80, run: func(w *world) {
			json, binary := proposal(letters["a"], " { \"k\" : 1.0 }\n"), proposal(letters["b"], "\x00{")
			json.CustomMetadata = []byte(`{"m": 1}`)
			binary.Metadata["content-type"] = "application/octet-stream"
			w.same("append", w.send(w.S, none, json, binary).text, "success 1")
			got := w.messages(w.read(w.S, 0, false, 2))
			w.same("JSON", fmt.Sprintf("%s %q %q", got[0].Metadata["content-type"], got[0].Data, got[0].CustomMetadata),
				fmt.Sprintf("application/json %q %q", json.Data, json.CustomMetadata))
			w.same("binary", fmt.Sprintf("%s %q", got[1].Metadata["content-type"], got[1].Data), fmt.Sprintf("application/octet-stream %q", binary.Data))
		}},
		{number: 81, run: func(w *world) {
			var every []byte
			for b := range 256 {
				every = append(every, byte(b))
			}
			event := proposal(letters["a"], string(every))
			event.Metadata["content-type"] = "application/octet-stream"
			w.same("append", w.send(w.S, none, event).text, "success 0")
			if got := w.messages(w.read(w.S, 0, false, 1))[0].Data; !bytes.Equal(got, every) {
				w.Errorf("got %x, want %x", got, every)
			}
		}},
		{number: 82, run: func(w *world) {
			answer := w.append(w.S, none, "abc")
			places := func(events []*recorded) string {
				var out []string
				for _, e := range events {
					if e.CommitPosition != e.PreparePosition {
						w.Errorf("%s: commit %d, prepare %d", short(e), e.CommitPosition, e.PreparePosition)
					}
					out = append(out, fmt.Sprintf("%s at %d", short(e), e.CommitPosition))
				}
				return strings.Join(out, ", ")
			}
			stream := w.messages(w.read(w.S, 0, false, 10))
			w.same("$all", places(w.all()), places(stream))
			w.same("subscription", places(w.follow(w.origin, w.prefix, 32).take(3)), places(stream))
			w.same("answer", fmt.Sprint(answer.position), fmt.Sprint(stream[2].CommitPosition))
		}},
	}
}

// limitRows are the rows about sizes.
func limitRows() []row {
	const limit = 1 << 20
	// before 24.10 only data counts; from 25.1 on the limit is another
	fits := func(w *world) (room int, applies bool) {
		major, minor := w.version()
		switch {
		case major > 25 || major == 25 && minor > 0:
			w.Logf("version %d.%d has other limits", major, minor)
			return 0, false
		case major > 24 || major == 24 && minor >= 10:
			return limit - 2*len("EventAccepted"), true
		}
		return limit, true
	}
	refused := func(w *world, sizes ...int) {
		var events []string
		for _, size := range sizes {
			events = append(events, strings.Repeat("x", size))
		}
		call := w.send(w.S, none, many(events)...)
		w.same("append", call.text, "InvalidArgument")
		w.same("$all", show(w.all(), nil), "")
	}
	var out []row
	for _, config := range versions("23.10.0", "24.10.0") {
		out = append(out,
			row{number: 97, config: config, run: func(w *world) {
				if room, applies := fits(w); applies {
					w.same("append", w.send(w.S, none, many([]string{strings.Repeat("x", room)})...).text, "success 0")
				}
			}},
			row{number: 98, config: config, run: func(w *world) {
				if room, applies := fits(w); applies {
					refused(w, room+1)
				}
			}},
			row{number: 99, config: config, run: func(w *world) {
				if _, applies := fits(w); applies {
					refused(w, 600_000, 600_000)
				}
			}},
		)
	}
	return out
}

func many(data []string) (out []*proposed) {
	for _, d := range data {
		out = append(out, proposal(uuid.New(), d))
	}
	return out
}

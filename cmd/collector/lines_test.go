package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func texts(lines []line) string {
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%d-%d %q\n", l.start, l.end, l.text)
	}
	return b.String()
}

func TestSplit(t *testing.T) {
	for _, c := range []struct{ input, want string }{
		{"", ""},
		{"a\nb\n", "0-2 \"a\"\n2-4 \"b\"\n"},
		{"a\r\n\r\n  \n\nb", "0-3 \"a\"\n9-10 \"b\"\n"},
		{"\ufeff{}\n", "0-6 \"{}\"\n"},
		{" x \n\ufeffy\n", "0-4 \"x\"\n4-9 \"\\ufeffy\"\n"},
		{"{\"a\":\"\x00\"}\n\x00\n", "0-10 \"{\\\"a\\\":\\\"\\x00\\\"}\"\n10-12 \"\\x00\"\n"},
	} {
		for size := 1; size <= len(c.input)+1; size++ {
			var s splitter
			var got []line
			for rest := []byte(c.input); len(rest) > 0; {
				n := min(size, len(rest))
				lines, err := s.split(bytes.Clone(rest[:n]))
				if err != nil {
					t.Fatalf("split(%q): %v", c.input, err)
				}
				got, rest = append(got, lines...), rest[n:]
			}
			if s.read() != int64(len(c.input)) {
				t.Errorf("split(%q): got %d bytes read", c.input, s.read())
			}
			got = append(got, s.rest()...)
			if texts(got) != c.want {
				t.Errorf("split(%q) in chunks of %d: got\n%swant\n%s", c.input, size, texts(got), c.want)
			}
		}
	}
}

func TestSplitRefusesBinary(t *testing.T) {
	for _, input := range []string{"\x7fELF\x00\x00", "\x00\x00\x00", "SQLite format 3\x00"} {
		var s splitter
		if _, err := s.split([]byte(input)); !errors.Is(err, errBinary) {
			t.Errorf("split(%q): got %v, want errBinary", input, err)
		}
	}
}

// A line that is too long costs no memory, is told by its length and hash, and its neighbours are kept.
func TestSplitLongLine(t *testing.T) {
	long := strings.Repeat("x", keptLine*4)
	for _, size := range []int{1000, 65536, 1 << 20} {
		s := splitter{max: keptLine * 2}
		var got []line
		for rest := []byte("a\n" + long + "\nb\n"); len(rest) > 0; {
			n := min(size, len(rest))
			lines, err := s.split(rest[:n])
			if err != nil {
				t.Fatal(err)
			}
			if cap(s.partial) > keptLine*3 {
				t.Fatalf("the splitter holds %d bytes", cap(s.partial))
			}
			got, rest = append(got, lines...), rest[n:]
		}
		if len(got) != 3 || string(got[0].text) != "a" || string(got[2].text) != "b" {
			t.Fatalf("chunks of %d: got %d lines", size, len(got))
		}
		l := got[1]
		if l.length != int64(len(long)) || l.sum != sha256.Sum256([]byte(long)) || len(l.text) > keptLine {
			t.Errorf("chunks of %d: got length %d, %d bytes kept", size, l.length, len(l.text))
		}
		if e := l.event("x"); e.Refused == "" || e.PayloadHash != l.sum {
			t.Errorf("got %+v", e)
		}
	}
}

// However the input is cut, the lines are those between the line feeds.
func FuzzSplit(f *testing.F) {
	f.Add([]byte("{a}\n\n{b}"), uint8(3))
	f.Add([]byte("\r\n\xff\n"), uint8(1))
	f.Fuzz(func(t *testing.T, input []byte, size uint8) {
		s := splitter{max: 10}
		var got, want []string
		for rest := input; len(rest) > 0; {
			n := min(int(size)+1, len(rest))
			lines, err := s.split(bytes.Clone(rest[:n]))
			if err != nil {
				return
			}
			for _, l := range lines {
				got = append(got, string(l.text))
			}
			rest = rest[n:]
		}
		for _, l := range s.rest() {
			got = append(got, string(l.text))
		}
		for i, text := range bytes.Split(input, []byte("\n")) {
			if i == 0 {
				text = bytes.TrimPrefix(text, []byte("\ufeff"))
			}
			if len(text) > 10 {
				want = append(want, string(bytes.TrimSpace(text)))
			} else if text = bytes.TrimSpace(text); len(text) > 0 {
				want = append(want, string(text))
			}
		}
		if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
			t.Errorf("split(%q) in chunks of %d: got %q, want %q", input, size, got, want)
		}
	})
}

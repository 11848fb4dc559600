package canonical

import (
	"errors"
	"testing"
)

func TestClean(t *testing.T) {
	tests := []struct{ name, src, want string }{
		{"escaped NUL", `"x\u0000y"`, `"xy"`},
		{"several", `"\u0000\u0000x\u0000"`, `"x"`},
		{"raw NUL", "\"x\x00y\"", `"xy"`},
		{"NUL in a name", `{"a\u0000":1}`, `{"a":1}`},
		{"escaped backslash", `"\\u0000"`, `"\\u0000"`},
		{"escaped quote", `"\"\u0000"`, `"\""`},
		{"other escapes", `"\u0001\u00e9\n"`, `"\u0001\u00e9\n"`},
		{"invalid byte", "\"a\xffb\"", "\"a\ufffdb\""},
		{"each invalid byte", "\"\xe2\x82\"", "\"\ufffd\ufffd\""},
		{"overlong", "\"\xc0\x80\"", "\"\ufffd\ufffd\""},
		{"surrogate in UTF-8", "\"\xed\xa0\x80\"", "\"\ufffd\ufffd\ufffd\""},
		{"beyond Unicode", "\"\xf4\x90\x80\x80\"", "\"\ufffd\ufffd\ufffd\ufffd\""},
		{"character cut by NUL", "\"\xe2\x00\x82\xac\"", "\"\ufffd\ufffd\ufffd\""},
		{"neighbours", "[\"é\",\"\xff\",\"€\"]", "[\"é\",\"\ufffd\",\"€\"]"},
		{"pair", `"\ud83d\ude00"`, `"\ud83d\ude00"`},
		{"lone high", `"\ud800"`, "\"\ufffd\""},
		{"lone low", `"\uDC00x"`, "\"\ufffdx\""},
		{"reversed pair", `"\ude00\ud83d"`, "\"\ufffd\ufffd\""},
		{"high before a letter", `"\ud83dx"`, "\"\ufffdx\""},
		{"high before another escape", `"\ud83d\u0041\ud83d\n"`, "\"\ufffd\\u0041\ufffd\\n\""},
		{"high before a pair", `"\ud83d\ud83d\ude00"`, "\"\ufffd\\ud83d\\ude00\""},
		{"pair cut by NUL", `"\ud83d\u0000\ude00"`, "\"\ufffd\ufffd\""},
		{"U+FFFD was there", "\"\ufffd\\ufffd\"", "\"\ufffd\\ufffd\""},
		{"outside strings", "\x00\xff\\u0000[\"\x00\"]", "\x00\xff\\u0000[\"\"]"},
		{"unterminated", `["\u0000`, `["`},
		{"malformed escape", `"\u0000\x\u0000"`, `"\x\u0000"`},
		{"nothing completes an escape", "\"\\u00\x0000\"", "\"\\u00\x0000\""},
		{"backslash before NUL", "\"\\\x00u0000\"", "\"\\\x00u0000\""},
		{"cut escape", `"\ud83d\u`, "\"\ufffd\\u"},
		{"empty", "", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, changed := Clean([]byte(test.src))
			if string(got) != test.want || changed != (test.want != test.src) {
				t.Errorf("Clean(%q) = %q, %v, want %q", test.src, got, changed, test.want)
			}
		})
	}
}

func TestCleanReturnsItsSource(t *testing.T) {
	for _, text := range []string{`{"a":"é"}`, `{"a":"\u00e9\ud83d\ude00"}`, `"\\u0000"`, "\xff"} {
		src := []byte(text)
		got, changed := Clean(src)
		if changed || &got[0] != &src[0] || len(got) != len(src) {
			t.Errorf("Clean(%q) = %q, %v, want src itself", src, got, changed)
		}
		if n := testing.AllocsPerRun(10, func() { Clean(src) }); n != 0 {
			t.Errorf("Clean(%q) allocates %v times, want 0", src, n)
		}
	}
}

func TestCleaningCanMakeNamesEqual(t *testing.T) {
	for _, src := range []string{`{"a\u0000":1,"a":2}`, "{\"\xff\":1,\"\ufffd\":2}", "{\"\xff\":1,\"\\ud800\":2}"} {
		clean, _ := Clean([]byte(src))
		_, err := Append(nil, clean)
		var duplicate *DuplicateNameError
		if !errors.As(err, &duplicate) {
			t.Errorf("Append(Clean(%q)): %v, want a DuplicateNameError", src, err)
		}
	}
}

package canonical

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
)

// form returns the canonical form of a text that must have one.
func form(t *testing.T, src string) string {
	t.Helper()
	got, err := Append(nil, []byte(src))
	if err != nil {
		t.Fatalf("Append(%q): %v", src, err)
	}
	return string(got)
}

// table reads the lines of a file in testdata, split at tabs; lines that start with # are comments.
func table(t *testing.T, name string) [][]string {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "#") {
			rows = append(rows, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
		}
	}
	if len(rows) == 0 {
		t.Fatalf("%s has no rows", name)
	}
	return rows
}

func TestGolden(t *testing.T) {
	for _, row := range table(t, "golden.tsv") {
		src, want, wantHash := row[0], row[1], row[2]
		got := form(t, src)
		if got != want {
			t.Errorf("Append(%q) = %q, want %q", src, got, want)
		}
		if hash := Sum([]byte(got)).String(); hash != wantHash {
			t.Errorf("hash of %q = %s, want %s", got, hash, wantHash)
		}
		if again := form(t, got); again != got {
			t.Errorf("Append(%q) = %q, want it unchanged", got, again)
		}
	}
}

func TestForm(t *testing.T) {
	tests := []struct{ name, src, want string }{
		{"white space", " \t\r\n[ 1 , { \"a\" : [ ] , \"b\" : { } } ]\n", `[1,{"a":[],"b":{}}]`},
		{"literals", `[true,false,null]`, `[true,false,null]`},
		{"array order", `[3,1,2]`, `[3,1,2]`},
		{"nested order", `{"b":{"d":1,"c":{"f":2,"e":3}},"a":[{"z":1,"y":2}]}`, `{"a":[{"y":2,"z":1}],"b":{"c":{"e":3,"f":2},"d":1}}`},
		{"prefix first", `{"aa":1,"a":2,"":3}`, `{"":3,"a":2,"aa":1}`},
		{"case", `{"amount":1,"Amount":2}`, `{"Amount":2,"amount":1}`},
		{"no name is special", `{"constructor":1,"__proto__":{"a":1}}`, `{"__proto__":{"a":1},"constructor":1}`},
		{"order of decoded names", `{"#":1,"\u0022":2,"\u0021":3}`, `{"!":3,"\"":2,"#":1}`},
		{"no normalization", `{"\u00e9":1,"e\u0301":2}`, "{\"e\u0301\":2,\"\u00e9\":1}"},
		{"escapes", `"\u0008\u0009\u000A\u000c\u000d\u0022\u005C\u002f\/"`, `"\b\t\n\f\r\"\\//"`},
		{"control characters", `"\u0000\u001F\u007f\u0080"`, "\"\\u0000\\u001f\u007f\u0080\""},
		{"escaped letters", `"\u20ac\uD83D\uDE00\u2028\ufffd\uffff"`, "\"€😀\u2028\ufffd\uffff\""},
		{"long array", "[" + strings.Repeat("0,", 99) + "0]", "[" + strings.Repeat("0,", 99) + "0]"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := form(t, test.src); got != test.want {
				t.Errorf("Append(%q) = %q, want %q", test.src, got, test.want)
			}
		})
	}
}

// Many members, so that members of open objects outgrow the parser's own room.
func TestManyMembers(t *testing.T) {
	var src, want []string
	for _, c := range "zyxwvutsrqponmlkjihgfedcba" {
		src = append(src, `"`+string(c)+`": {"2":{},"1":[{"y":1, "x":2}]}`)
		want = append([]string{`"` + string(c) + `":{"1":[{"x":2,"y":1}],"2":{}}`}, want...)
	}
	got := form(t, "{"+strings.Join(src, ",")+"}")
	if want := "{" + strings.Join(want, ",") + "}"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestAppendKeepsPrefix(t *testing.T) {
	prefix := []byte("before:")
	got, err := Append(prefix, []byte(`{"b":1,"a":2}`))
	if err != nil || string(got) != `before:{"a":2,"b":1}` {
		t.Errorf("got %q, %v", got, err)
	}
	got, err = Append(prefix, []byte(`{"b":1,"a":2`))
	if err == nil || string(got) != "before:" {
		t.Errorf("got %q, %v, want the prefix and an error", got, err)
	}
}

func TestSyntaxError(t *testing.T) {
	tests := []struct {
		src    string
		offset int64
	}{
		{"", 0}, {" ", 1}, {"\ufeff1", 0}, {"\x00", 0}, {"1\x00", 1}, {"\v1", 0}, {"\u00a01", 0},
		{"nul", 0}, {"nulll", 4}, {"True", 0}, {"NaN", 0}, {"Infinity", 0}, {"-Infinity", 1}, {"undefined", 0}, {"a", 0}, {"'a'", 0},
		{"1 2", 2}, {"{}{}", 2}, {"[]]", 2}, {"1,", 1}, {"// c\n1", 0}, {"1 /* c */", 2}, {"1#", 1},
		{"01", 1}, {"-01", 2}, {"00", 1}, {"+1", 0}, {".5", 0}, {"-.5", 1}, {"-", 1}, {"1.", 2}, {"1.e1", 2}, {"1e", 2}, {"1e+", 3}, {"1e-x", 3},
		{"1e1.5", 3}, {"0x10", 1}, {"1_000", 1}, {"1f", 1}, {"--1", 1}, {"１", 0}, {"- 1", 1},
		{"[", 1}, {"[1", 2}, {"[1,", 3}, {"[1,]", 3}, {"[,1]", 1}, {"[1,,2]", 3}, {"[1 2]", 3}, {"[1:2]", 2}, {"[1}", 2}, {"[\"a\"", 4}, {"]", 0},
		{"{", 1}, {"{}}", 2}, {`{"a"`, 4}, {`{"a":`, 5}, {`{"a":1`, 6}, {`{"a":1,`, 7}, {`{"a":1,}`, 7}, {`{,}`, 1}, {`{"a" 1}`, 5}, {`{"a",1}`, 4},
		{`{1:2}`, 1}, {`{a:1}`, 1}, {`{'a':1}`, 1}, {`{"a":1 "b":2}`, 7}, {`{"a":1]`, 6}, {`{"a":}`, 5}, {`{"a"::1}`, 5}, {`{null:1}`, 1}, {`{"a":1,,}`, 7},
		{`"`, 1}, {`"a`, 2}, {`"\"`, 3}, {`"\`, 1}, {`"\x41"`, 1}, {`"\a"`, 1}, {`"\'"`, 1}, {`"\u"`, 1}, {`"\u12"`, 1}, {`"\u123"`, 1}, {`"\u123g"`, 1}, {`"\U0041"`, 1},
		{"\"\t\"", 1}, {"\"a\nb\"", 2}, {"\"\x00\"", 1}, {"\"\x1f\"", 1}, {"\"\\\n\"", 1}, {"{\"\n\":1}", 2},
		{`"\ud800"`, 1}, {`"\udc00"`, 1}, {`"\ude00\ud83d"`, 1}, {`"\ud83d\u0041"`, 1}, {`"\ud83d\ud83d\ude00"`, 1}, {`"\ud83dx"`, 1}, {`"\ud83d`, 1}, {`"\ud83d\`, 1},
		{"\"\xff\"", 1}, {"\"\x80\"", 1}, {"\"a\xc3\"", 2}, {"\"\xc0\x80\"", 1}, {"\"\xed\xa0\x80\"", 1}, {"\"\xf4\x90\x80\x80\"", 1}, {"\"é\xe2\x82\"", 3}, {"\xff", 0}, {"{\"\xff\":1}", 2},
	}
	for _, test := range tests {
		got, err := Append(nil, []byte(test.src))
		var syntax *SyntaxError
		if !errors.As(err, &syntax) {
			t.Errorf("Append(%q) = %q, %v, want a SyntaxError", test.src, got, err)
		} else if syntax.Offset != test.offset {
			t.Errorf("Append(%q): %v, want offset %d", test.src, err, test.offset)
		}
	}
}

func TestErrorsHoldNoValues(t *testing.T) {
	const secret = "s3cret"
	for _, src := range []string{`["s3cret"`, `"s3cret\x"`, `s3cret`, `{"a":"s3cret","a":"s3cret"}`, `{"a":"s3cret",}`, "\"s3cret\xff\""} {
		if _, err := Append(nil, []byte(src)); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("Append(%q): error %v, want one without the value", src, err)
		}
	}
}

func TestErrorTexts(t *testing.T) {
	tests := []struct{ src, want string }{
		{`{"a":[tru]}`, "invalid JSON at byte 6: expected a value"},
		{`{"a":{"b":1,"b":2}}`, `duplicate member "/a/b"`},
		{`{"a":[` + strings.Repeat("1", MaxNumberLen+1) + `]}`, `value at "/a/0": number longer than 1100 bytes`},
		{strings.Repeat("1", MaxNumberLen+1), "number longer than 1100 bytes"},
	}
	for _, test := range tests {
		if _, err := Append(nil, []byte(test.src)); err == nil || err.Error() != test.want {
			t.Errorf("got %v, want %s", err, test.want)
		}
	}
}

func TestDuplicateName(t *testing.T) {
	tests := []struct{ src, pointer string }{
		{`{"amount":1,"amount":2}`, "/amount"},
		{`{"payload":{"b":1,"amount":1,"a":0,"amount":1}}`, "/payload/amount"},
		{`{"a":[0,{"x":1,"y":2,"x":3}]}`, "/a/1/x"},
		{`{"":1,"":2}`, "/"},
		{`{"a/b~c":{"~/":1,"~/":2}}`, "/a~1b~0c/~0~1"},
		{`{"é":1,"\u00e9":2}`, "/é"},
		{`{"\ud83d\ude00":1,"😀":2}`, "/😀"},
		{`{"a":{"b":1,"b":2},"a":1}`, "/a/b"},
	}
	for _, test := range tests {
		_, err := Append(nil, []byte(test.src))
		var duplicate *DuplicateNameError
		if !errors.As(err, &duplicate) || duplicate.Pointer != test.pointer {
			t.Errorf("Append(%q): %v, want duplicate %s", test.src, err, test.pointer)
		}
	}
}

func TestDepth(t *testing.T) {
	arrays := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	objects := func(n int) string { return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) }
	tests := []struct {
		name, src, pointer string
		ok                 bool
	}{
		{"arrays", arrays(MaxDepth), "", true},
		{"objects", objects(MaxDepth), "", true},
		{"side by side", "[" + arrays(MaxDepth-1) + "," + arrays(MaxDepth-1) + "]", "", true},
		{"brackets in a string", `"` + arrays(MaxDepth+1) + `"`, "", true},
		{"arrays one deeper", arrays(MaxDepth + 1), strings.Repeat("/0", MaxDepth), false},
		{"objects one deeper", objects(MaxDepth + 1), strings.Repeat("/a", MaxDepth), false},
		{"endless", strings.Repeat("[", 1<<20), strings.Repeat("/0", MaxDepth), false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Append(nil, []byte(test.src))
			if test.ok {
				if err != nil || string(got) != test.src {
					t.Errorf("got %q, %v, want it unchanged", got, err)
				}
				return
			}
			var limit *LimitError
			if !errors.Is(err, ErrDepth) || !errors.As(err, &limit) || limit.Pointer != test.pointer {
				t.Errorf("got %v, want ErrDepth at %s", err, test.pointer)
			}
		})
	}
}

func TestAppendString(t *testing.T) {
	for _, test := range []struct{ s, want string }{
		{"", `""`}, {"ab", `"ab"`}, {"a\"b\\", `"a\"b\\"`}, {"\b\t\n\f\r\x00\x1f", `"\b\t\n\f\r\u0000\u001f"`},
		{"</é€😀\u2028\x7f", "\"</é€😀\u2028\x7f\""},
	} {
		if got := AppendString([]byte("x"), test.s); string(got) != "x"+test.want {
			t.Errorf("AppendString(%q) = %s, want %s", test.s, got, test.want)
		}
		if got, err := Append(nil, []byte(test.want)); err != nil || !bytes.Equal(got, []byte(test.want)) {
			t.Errorf("Append(%q) = %q, %v, want it unchanged", test.want, got, err)
		}
	}
}

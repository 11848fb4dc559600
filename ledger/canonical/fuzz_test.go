package canonical

import (
	"bytes"
	"errors"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

var scientific = regexp.MustCompile(`^-?[1-9](\.[0-9]*[1-9])?e(\+(0|[1-9][0-9]*)|-[1-9][0-9]*)$`)

// checkNumber holds a canonical number against the definition, in exact arithmetic. Exponents must be small.
func checkNumber(t tester, literal, got string) {
	t.Helper()
	exact := value(t, literal)
	if value(t, got).Cmp(exact) != 0 {
		t.Fatalf("%s became %s, another value", literal, got)
	}
	double, _ := exact.Float64()
	rfc := jsontext.Value(strconv.FormatFloat(double, 'e', -1, 64))
	if err := rfc.Canonicalize(); err == nil && value(t, rfc.String()).Cmp(exact) == 0 {
		if got != rfc.String() {
			t.Fatalf("%s became %s, want %s as in RFC 8785", literal, got, rfc)
		}
	} else if !scientific.MatchString(got) {
		t.Fatalf("%s became %s, want d.ddde±x", literal, got)
	}
}

// hasFarExponent reports whether exact arithmetic on the literal would be expensive.
func hasFarExponent(literal string) bool {
	_, exponent, _ := strings.Cut(strings.ToLower(literal), "e")
	x, err := strconv.Atoi(exponent)
	return exponent != "" && (err != nil || x < -2000 || x > 2000)
}

// FuzzAppend holds Append against jsontext, which is right about everything but numbers.
func FuzzAppend(f *testing.F) {
	for _, seed := range []string{
		`{"b":[1,-0.0,1e400],"a":{"d":"\u00e9\n","c":null}}`, `{"😀":2,"\ue000":1,"\u0022":3}`, `{"a":1,"\u0061":2}`, `"\ud800"`,
		`[1,]`, "\"\xff\"", ` [ true , false ] `, `[9007199254740993,0.1000000000000000055,12.50]`, `{"a":{"a":{}},"":[[]]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		before := bytes.Clone(src)
		got, err := Append(nil, src)
		if !bytes.Equal(src, before) {
			t.Fatalf("Append changed its source")
		}
		if errors.Is(err, ErrDepth) || errors.Is(err, ErrNumber) {
			return
		}
		want, wantErr := jsontext.AppendFormat(nil, src, jsontext.ReorderRawObjects(true))
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("Append(%q): %v, jsontext says %v", src, err, wantErr)
		}
		var duplicate *DuplicateNameError
		if errors.As(err, &duplicate) && !errors.Is(wantErr, jsontext.ErrDuplicateName) {
			t.Fatalf("Append(%q): %v, jsontext says %v", src, err, wantErr)
		}
		if err != nil {
			return
		}
		compareTokens(t, got, want)
		again, err := Append(nil, got)
		if err != nil || !bytes.Equal(again, got) {
			t.Fatalf("canonical form of %q is %q, %v", got, again, err)
		}
	})
}

// compareTokens checks that got is want, but for numbers, which want has as they were written.
func compareTokens(t tester, got, want []byte) {
	t.Helper()
	gotTokens, wantTokens := jsontext.NewDecoder(bytes.NewReader(got)), jsontext.NewDecoder(bytes.NewReader(want))
	var rebuilt bytes.Buffer
	rfc := true // all numbers are as RFC 8785 has them
	encoder := jsontext.NewEncoder(&rebuilt)
	for wantTokens.PeekKind() != 0 {
		literal, err := wantTokens.ReadToken()
		if err != nil {
			t.Fatalf("%v", err)
		}
		token, err := gotTokens.ReadToken()
		if err != nil {
			t.Fatalf("%q is not JSON: %v", got, err)
		}
		if token.Kind() != literal.Kind() || token.Kind() != '0' && token.String() != literal.String() {
			t.Fatalf("got %q, want %q", got, want)
		}
		if token.Kind() == '0' && !hasFarExponent(literal.String()) {
			checkNumber(t, literal.String(), token.String())
			double, _ := strconv.ParseFloat(token.String(), 64)
			rfc = rfc && new(big.Rat).SetFloat64(double) != nil && token.String() == string(jsontext.AppendFloat(nil, double, 64))
		} else if token.Kind() == '0' {
			rfc = false
		}
		if err := encoder.WriteToken(token); err != nil {
			t.Fatalf("%v", err)
		}
	}
	if shortest := bytes.TrimSuffix(rebuilt.Bytes(), []byte("\n")); !bytes.Equal(shortest, got) {
		t.Fatalf("got %q, want %q, the shortest text of the same tokens", got, shortest)
	}
	canonicalized := jsontext.Value(bytes.Clone(want))
	if err := canonicalized.Canonicalize(); err != nil {
		t.Fatalf("%v", err)
	}
	if rfc && !bytes.Equal(canonicalized, got) {
		t.Fatalf("got %q, RFC 8785 has %q", got, canonicalized)
	}
}

func FuzzAppendNumber(f *testing.F) {
	for _, seed := range []string{"0", "-0.0", "12.50", "1e400", "9007199254740993", "5e-324", "1e-999999999999999999999", "01", "1e"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, literal string) {
		got, err := AppendNumber(nil, []byte(literal))
		valid := jsontext.Value(literal).Kind() == '0' && jsontext.Value(literal).IsValid() && strings.Trim(literal, " \t\r\n") == literal
		if errors.Is(err, ErrNumber) && len(literal) > MaxNumberLen {
			return
		}
		if valid != (err == nil) {
			t.Fatalf("AppendNumber(%q): %v, jsontext says valid is %v", literal, err, valid)
		}
		if err != nil {
			return
		}
		if again := number(t, string(got)); again != string(got) {
			t.Fatalf("canonical form of %s is %s", got, again)
		}
		if !hasFarExponent(literal) {
			checkNumber(t, literal, string(got))
		}
	})
}

// FuzzClean holds Clean against its definition on JSON strings, and its promises on everything else.
func FuzzClean(f *testing.F) {
	for _, seed := range []string{
		`{"a\u0000":"x\u0000y\ud800"}`, "\"a\xffb\x00\"", `"\ud83d\ude00\ude00\ud83d"`, `"\ud83d\u0000\ude00"`, "\"\\\x00u0000\"", `\u0000"\u00`, "\xff\"\xe2\x82\"",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		before := bytes.Clone(src)
		got, changed := Clean(src)
		if !bytes.Equal(src, before) {
			t.Fatalf("Clean changed its source")
		}
		if changed == bytes.Equal(got, src) {
			t.Fatalf("Clean(%q) = %q, %v", src, got, changed)
		}
		if again, changed := Clean(got); changed {
			t.Fatalf("Clean(%q) = %q, cleaned again %q", src, got, again)
		}
		valid := jsontext.Value(src).IsValid(jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
		if valid && !jsontext.Value(got).IsValid(jsontext.AllowDuplicateNames(true)) {
			t.Fatalf("Clean(%q) = %q, no longer JSON", src, got)
		}
		if !valid || jsontext.Value(src).Kind() != '"' {
			return
		}
		decoded, _ := jsontext.AppendUnquote(nil, bytes.Trim(src, " \t\r\n"))
		want, _ := jsontext.AppendQuote(nil, bytes.ReplaceAll(decoded, []byte{0}, nil))
		if form, err := Append(nil, got); err != nil || !bytes.Equal(form, want) {
			t.Fatalf("canonical form of Clean(%q) = %q, %v, want %q", src, form, err, want)
		}
	})
}

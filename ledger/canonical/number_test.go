package canonical

import (
	"errors"
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// tester is a *testing.T or a *rapid.T.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
}

func number(t tester, literal string) string {
	t.Helper()
	got, err := AppendNumber(nil, []byte(literal))
	if err != nil {
		t.Fatalf("AppendNumber(%q): %v", literal, err)
	}
	return string(got)
}

func TestNumbers(t *testing.T) {
	for _, row := range table(t, "numbers.tsv") {
		if got := number(t, row[0]); got != row[1] {
			t.Errorf("AppendNumber(%q) = %s, want %s", row[0], got, row[1])
		}
		if got := form(t, "[ "+row[0]+" ]"); got != "["+row[1]+"]" {
			t.Errorf("Append([ %s ]) = %s, want [%s]", row[0], got, row[1])
		}
		if got := number(t, row[1]); got != row[1] {
			t.Errorf("AppendNumber(%q) = %s, want it unchanged", row[1], got)
		}
	}
}

func TestRFC8785Numbers(t *testing.T) {
	for _, row := range table(t, "rfc8785-numbers.tsv") {
		bits, err := strconv.ParseUint(row[0], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		double := math.Float64frombits(bits)
		if nearest, err := strconv.ParseFloat(row[1], 64); err != nil || nearest != double {
			t.Errorf("%s is read as %x, want %s", row[1], math.Float64bits(nearest), row[0])
		}
		for _, literal := range []string{row[1], strconv.FormatFloat(double, 'e', -1, 64), strconv.FormatFloat(double, 'f', -1, 64)} {
			if got := number(t, literal); got != row[1] {
				t.Errorf("AppendNumber(%q) = %s, want %s", literal, got, row[1])
			}
		}
	}
}

func TestNumberLength(t *testing.T) {
	digits := func(n int) string { return strings.Repeat("7", n) }
	tests := []struct {
		name, literal string
		ok            bool
	}{
		{"integer", digits(MaxNumberLen), true},
		{"integer too long", digits(MaxNumberLen + 1), false},
		{"negative", "-" + digits(MaxNumberLen-1), true},
		{"negative too long", "-" + digits(MaxNumberLen), false},
		{"fraction", "0." + digits(MaxNumberLen-2), true},
		{"fraction too long", "0." + digits(MaxNumberLen-1), false},
		{"exponent", "1e" + digits(MaxNumberLen-2), true},
		{"exponent that grows", digits(8) + "e" + strings.Repeat("9", MaxNumberLen-9), true},
		{"exponent too long", "1e" + digits(MaxNumberLen-1), false},
		{"zeros too long", "0." + strings.Repeat("0", MaxNumberLen-1), false},
		{"a canonical form", "7." + digits(MaxNumberLen-1) + "e+1099", true},
		{"not quite one", "7." + digits(MaxNumberLen-2) + "0e+1099", false},
		{"longer than any", "7." + digits(MaxNumberLen) + "e+1099", false},
		{"very long", digits(1 << 20), false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Append(nil, []byte(`{"n":[`+test.literal+`]}`))
			if !test.ok {
				var limit *LimitError
				if !errors.Is(err, ErrNumber) || !errors.As(err, &limit) || limit.Pointer != "/n/0" {
					t.Errorf("got %v, want ErrNumber at /n/0", err)
				}
				return
			}
			if err != nil {
				t.Fatalf("got %v, want it accepted", err)
			}
			if again := form(t, string(got)); again != string(got) {
				t.Errorf("canonical form of the canonical form is another")
			}
		})
	}
}

func TestAppendNumberRefuses(t *testing.T) {
	for _, literal := range []string{"", "-", "01", "1.", ".1", "1e", " 1", "1 ", "1,", "NaN", "+1", `"1"`, "[1]", "true"} {
		got, err := AppendNumber([]byte("x"), []byte(literal))
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || string(got) != "x" {
			t.Errorf("AppendNumber(%q) = %q, %v, want a SyntaxError", literal, got, err)
		}
	}
}

// literals draws number literals whose exponents are small enough for exact arithmetic.
func literals() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		integer := rapid.StringMatching(`-?(0|[1-9][09]{0,22}|[1-9][0-9]{0,22})`).Draw(t, "integer")
		fraction := rapid.StringMatching(`(\.(0|[0-9]{1,6}|[09]{1,25}))?`).Draw(t, "fraction")
		exponent := rapid.StringMatching(`([eE][+-]?0{0,2}([0-9]|[0-9]{2}|3[012][0-9]))?`).Draw(t, "exponent")
		return integer + fraction + exponent
	})
}

// respell draws another literal of the same value: the point is moved and the exponent makes up for it.
func respell(t *rapid.T, literal string) string {
	mantissa, exponent := strings.ToLower(literal), "0"
	if i := strings.IndexByte(mantissa, 'e'); i >= 0 {
		mantissa, exponent = mantissa[:i], mantissa[i+1:]
	}
	x, err := strconv.Atoi(exponent)
	if err != nil {
		t.Fatal(err)
	}
	zeros := rapid.IntRange(0, 30).Draw(t, "zeros")
	integer, fraction, _ := strings.Cut(mantissa, ".")
	x -= len(fraction)
	sign, digits := "", integer+fraction
	if digits[0] == '-' {
		sign, digits = "-", digits[1:]
	}
	if digits = strings.TrimLeft(digits, "0"); digits == "" {
		digits = "0"
	}
	if rapid.Bool().Draw(t, "as a fraction") {
		return sign + "0." + strings.Repeat("0", zeros) + digits + "E" + strconv.Itoa(x+zeros+len(digits))
	}
	return sign + digits + strings.TrimSuffix("."+strings.Repeat("0", zeros), ".") + "e" + strconv.Itoa(x)
}

// value returns the exact value of a literal.
func value(t tester, literal string) *big.Rat {
	t.Helper()
	r, ok := new(big.Rat).SetString(literal)
	if !ok {
		t.Fatalf("%q is no number", literal)
	}
	return r
}

func TestNumberFormIsItsValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := literals().Draw(t, "a")
		b := rapid.OneOf(literals(), rapid.Custom(func(t *rapid.T) string { return respell(t, a) })).Draw(t, "b")
		formA, formB := number(t, a), number(t, b)
		if got, want := formA == formB, value(t, a).Cmp(value(t, b)) == 0; got != want {
			t.Fatalf("%s is %s, %s is %s: equal forms %v, equal values %v", a, formA, b, formB, got, want)
		}
		checkNumber(t, a, formA)
	})
}

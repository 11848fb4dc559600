package canonical

import (
	"bytes"
	"math/big"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxNumberLen is how many bytes a number literal may have. The canonical form of a literal can be a few bytes longer than
// the literal itself; such a form is accepted as well, so that every canonical text is accepted again.
const MaxNumberLen = 1100

// maxGrowth is how much longer a canonical form can be than the shortest literal of its value: a literal of digits only
// gains a point and e+1099, one with an exponent gains a point, a sign and one more exponent digit.
const maxGrowth = len(".e+1099")

// AppendNumber appends the canonical form of one JSON number literal. Errors: a [*SyntaxError] when the literal is not one, a
// [*LimitError] wrapping [ErrNumber] when it is too long; then dst is returned as it came.
func AppendNumber(dst, literal []byte) ([]byte, error) {
	p := parser{src: literal}
	out, err := p.number(dst)
	if err == nil && p.pos < len(literal) {
		err = p.syntax("expected the end of the number")
	}
	if err != nil {
		return dst, err
	}
	return out, nil
}

// number reads a number. What follows it is looked at by the caller.
func (p *parser) number(dst []byte) ([]byte, error) {
	start := p.pos
	if digits := p.digits(); len(digits) > 0 && len(digits) <= 15 && digits[0] != '0' && !p.at(".eE") {
		return append(dst, digits...), nil // a short integer is its own canonical form
	}
	p.pos = start
	lit, err := p.scanNumber()
	if err != nil {
		return dst, err
	}
	text := p.src[start:p.pos]
	if len(text) > MaxNumberLen+maxGrowth {
		return dst, &LimitError{Err: ErrNumber}
	}
	out := lit.append(dst)
	if len(text) > MaxNumberLen && !bytes.Equal(out[len(dst):], text) {
		return dst, &LimitError{Err: ErrNumber}
	}
	return out, nil
}

// literal is a number of RFC 8259, section 6, in its parts. fraction and exponent (with its sign) are nil when absent.
type literal struct {
	negative                    bool
	integer, fraction, exponent []byte
}

// scanNumber consumes a number.
func (p *parser) scanNumber() (lit literal, err error) {
	lit.negative = p.skip("-")
	switch lit.integer = p.digits(); {
	case len(lit.integer) == 0 && lit.negative:
		return lit, p.syntax("expected a digit")
	case len(lit.integer) == 0:
		return lit, p.syntax("expected a value")
	case len(lit.integer) > 1 && lit.integer[0] == '0':
		p.pos -= len(lit.integer) - 1
		return lit, p.syntax("number with a leading zero")
	}
	if p.skip(".") {
		if lit.fraction = p.digits(); len(lit.fraction) == 0 {
			return lit, p.syntax("expected a digit")
		}
	}
	if p.skip("eE") {
		start := p.pos
		p.skip("+-")
		if len(p.digits()) == 0 {
			return lit, p.syntax("expected a digit")
		}
		lit.exponent = p.src[start:p.pos]
	}
	return lit, nil
}

// at reports whether the next byte is one of set.
func (p *parser) at(set string) bool {
	return p.pos < len(p.src) && strings.IndexByte(set, p.src[p.pos]) >= 0
}

// skip consumes the next byte when it is one of set.
func (p *parser) skip(set string) bool {
	ok := p.at(set)
	if ok {
		p.pos++
	}
	return ok
}

// digits consumes and returns decimal digits.
func (p *parser) digits() []byte {
	start := p.pos
	for p.pos < len(p.src) && '0' <= p.src[p.pos] && p.src[p.pos] <= '9' {
		p.pos++
	}
	return p.src[start:p.pos]
}

// append appends the canonical form. Digits and exponent are only ever moved as text, so the cost depends on the length of
// the literal and not on its value.
func (lit literal) append(dst []byte) []byte {
	var room [32]byte
	all := append(append(room[:0], lit.integer...), lit.fraction...)
	digits := bytes.TrimLeft(all, "0")
	if len(digits) == 0 {
		return append(dst, '0')
	}
	shift := int64(len(lit.integer) - (len(all) - len(digits)) - 1) // digits stands for d.ddd × 10^shift
	digits = bytes.TrimRight(digits, "0")
	if lit.negative {
		dst = append(dst, '-')
	}
	if lit.exponent == nil {
		return appendDecimal(dst, digits, shift)
	}
	exponent, err := strconv.ParseInt(string(lit.exponent), 10, 64)
	if err == nil && -1<<62 < exponent && exponent < 1<<62 {
		return appendDecimal(dst, digits, shift+exponent)
	}
	far, _ := new(big.Int).SetString(string(lit.exponent), 10)
	return appendScientific(dst, digits, far.Add(far, big.NewInt(shift)).Append(nil, 10))
}

// appendDecimal appends the canonical form of d.ddd × 10^exponent; digits has no zero at either end. RFC 8785 writes numbers
// from 1e-6 to just under 1e21 without an exponent, so only there its text and the exact decimal can differ.
func appendDecimal(dst, digits []byte, exponent int64) []byte {
	if -6 <= exponent && exponent <= 20 {
		out := appendPlain(dst, digits, int(exponent)+1)
		if isDouble(out[len(dst):], len(digits)) {
			return out
		}
	}
	var room [20]byte
	return appendScientific(dst, digits, strconv.AppendInt(room[:0], exponent, 10))
}

// isDouble reports whether text, which has so many significant digits, is what RFC 8785, section 3.2.2.3, writes for the
// double nearest to it. Every decimal of up to 15 digits is (IEEE 754's DBL_DIG), and none of more than 17.
func isDouble(text []byte, digits int) bool {
	if digits <= 15 || digits > 17 {
		return digits <= 15
	}
	var room [32]byte
	double, err := strconv.ParseFloat(string(text), 64)
	return err == nil && bytes.Equal(jsontext.AppendFloat(room[:0], double, 64), text)
}

// appendPlain appends 0.ddd × 10^point without an exponent.
func appendPlain(dst, digits []byte, point int) []byte {
	const zeros = "00000000000000000000"
	switch {
	case point <= 0:
		return append(append(append(dst, "0."...), zeros[:-point]...), digits...)
	case point < len(digits):
		return append(append(append(dst, digits[:point]...), '.'), digits[point:]...)
	default:
		return append(append(dst, digits...), zeros[:point-len(digits)]...)
	}
}

// appendScientific appends d.ddde±x, where exponent is the decimal text of x with a '-' when it is negative.
func appendScientific(dst, digits, exponent []byte) []byte {
	dst = append(dst, digits[0])
	if len(digits) > 1 {
		dst = append(append(dst, '.'), digits[1:]...)
	}
	dst = append(dst, 'e')
	if exponent[0] != '-' {
		dst = append(dst, '+')
	}
	return append(dst, exponent...)
}

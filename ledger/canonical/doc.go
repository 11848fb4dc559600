// Package canonical gives every JSON text of one meaning one byte form, and hashes it. Everything the ledger hashes is in
// this form, so these rules never change within a format version; this comment is their specification.
//
// # Text
//
// A text is one JSON value of RFC 8259 in UTF-8, without a byte order mark, with white space around it or not. Arrays and
// objects nest at most [MaxDepth] deep. An object that names a member twice is refused; names are compared after decoding,
// byte for byte, so "a" and "A" are two names, and so are "é" composed and decomposed (there is no Unicode normalization).
//
// # Form
//
// The form is that of RFC 8785 (JCS), but for numbers that a double cannot carry:
//
//   - No white space. true, false and null as they are, arrays in their order.
//   - Members in ascending order of the UTF-16 code units of their decoded names (RFC 8785, section 3.2.3).
//   - Strings in their shortest form (section 3.2.2.2): \" \\ \b \t \n \f \r, \u00xx in lower case for the other control
//     characters below U+0020, and every other character as itself.
//   - A number as RFC 8785 writes it (section 3.2.2.3, the text ECMAScript has for the nearest double) if and only if that
//     text denotes exactly the value of the literal: 12.50 is 12.5, 1e2 is 100, -0 is 0, 1e21 is 1e+21.
//   - Any other number as its exact decimal d.ddde±x: one digit that is not 0, a point and more digits only if there are
//     more, no zero at their end, e, the sign even when it is +, and the exponent without leading zeros. So
//     9007199254740993 is 9.007199254740993e+15, 2^60 is 1.152921504606846976e+18 and 1e400 is 1e+400. From 1e-6 to
//     just under 1e21 (in magnitude) an exponent thus marks a number that no double is written as; outside, both rules give one text.
//
// Therefore two number literals have the same form exactly when they denote the same value, whatever their size. Exponents
// are handled as text: 1e-999999999 costs no more than any other literal of its length. A literal of more than
// [MaxNumberLen] bytes is refused, unless it is itself the canonical form of its value, which may be up to 7 bytes longer.
//
// The canonical form of a canonical text is that text.
//
// # Cleaning
//
// Before that, [Clean] makes odd bytes in strings and names harmless. Each byte that is not part of valid UTF-8 becomes one
// U+FFFD, each \u escape of half a surrogate pair becomes one U+FFFD, and U+0000 is removed, escaped or raw. Two halves
// of a pair with an escaped U+0000 between them are each alone. Names that are equal only after cleaning are a duplicate.
// Other raw control characters in strings are a syntax error.
//
// # Hashes
//
// A [Hash] is SHA-256 over the bytes of the form. Its text is lower-case hex, and it is compared in constant time.
//
// # Errors
//
// An error names the offset or the JSON Pointer (RFC 6901) and the rule that was broken. It can hold member names, never a
// value of the text.
package canonical

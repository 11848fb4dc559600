package canonical

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// The limits of a text that [Append] refuses, found with errors.Is; from Append they come in a [*LimitError].
var (
	ErrDepth  = fmt.Errorf("nested more than %d levels deep", MaxDepth)
	ErrNumber = fmt.Errorf("number longer than %d bytes", MaxNumberLen)
)

// SyntaxError says that a text is not one JSON value of RFC 8259 in UTF-8. It never holds anything of the text.
type SyntaxError struct {
	Offset int64  // of the first byte that does not fit, from 0
	Reason string // the rule that was broken, without a value
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("invalid JSON at byte %d: %s", e.Offset, e.Reason)
}

// DuplicateNameError says that an object names a member twice.
type DuplicateNameError struct {
	Pointer string // JSON Pointer (RFC 6901) of the second member
}

func (e *DuplicateNameError) Error() string {
	return "duplicate member " + strconv.Quote(e.Pointer)
}

// LimitError says which value is beyond a limit.
type LimitError struct {
	Pointer string // JSON Pointer (RFC 6901) of the value, "" for the whole text
	Err     error  // ErrDepth or ErrNumber
}

func (e *LimitError) Error() string {
	if e.Pointer == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("value at %q: %v", e.Pointer, e.Err)
}

func (e *LimitError) Unwrap() error { return e.Err }

// atName puts the member name in front of the error's pointer, on its way out of an object.
func atName(err error, name []byte) error {
	return within(err, strings.NewReplacer("~", "~0", "/", "~1").Replace(string(name)))
}

// atIndex does the same for an array element.
func atIndex(err error, i int) error { return within(err, strconv.Itoa(i)) }

func within(err error, token string) error {
	var (
		duplicate *DuplicateNameError
		limit     *LimitError
	)
	switch {
	case errors.As(err, &duplicate):
		duplicate.Pointer = "/" + token + duplicate.Pointer
	case errors.As(err, &limit):
		limit.Pointer = "/" + token + limit.Pointer
	}
	return err
}

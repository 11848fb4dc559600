package rest

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/talenttrust/auditledger/ledger"
)

// params reads the parameters of one query. Each is known by being asked for; what was not asked for
// and what breaks a rule is an error at the end, the first one that is met.
type params struct {
	values url.Values
	known  map[string]bool
	err    error
}

func newParams(r *http.Request) *params {
	values, err := url.ParseQuery(r.URL.RawQuery)
	p := &params{values: values, known: map[string]bool{}}
	if err != nil {
		p.err = problem("invalid_parameter", "the query cannot be read: %, + and & must be escaped, ; is not a separator")
	}
	return p
}

// done says what was wrong.
func (p *params) done() error {
	for _, name := range slices.Sorted(maps.Keys(p.values)) {
		if !p.known[name] {
			p.wrong(shorten(name), "is not a parameter here")
		}
	}
	return p.err
}

func (p *params) wrong(name, rule string) {
	if p.err == nil {
		p.err = invalidParameter(name, rule)
	}
}

// text is the parameter's value, empty when it is not there.
func (p *params) text(name string) string {
	p.known[name] = true
	values := p.values[name]
	if len(values) > 1 {
		p.wrong(name, "is there twice")
	}
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// id is a part of the path that is an id.
func (p *params) id(c *call, name string) string {
	v := c.param(name)
	if !ledger.ValidID(v, ledger.MaxIDLen) {
		p.wrong(name, fmt.Sprintf("must be 1 to %d characters of A-Z a-z 0-9 _ - . @", ledger.MaxIDLen))
	}
	return v
}

// integer reads a decimal number as people write it: no sign, no leading zeros.
func (p *params) integer(name, text string, min, max int64) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < min || n > max || strconv.FormatInt(n, 10) != text {
		p.wrong(name, fmt.Sprintf("must be a whole number from %d to %d", min, max))
	}
	return n
}

// limit is the size of a page.
func (p *params) limit(byDefault, most int) int {
	text := p.text("limit")
	if !p.values.Has("limit") {
		return byDefault
	}
	return int(p.integer("limit", text, 1, int64(most)))
}

// choice is one of a few words; the first of them when it is not there.
func (p *params) choice(name string, words ...string) string {
	v := p.text(name)
	if !p.values.Has(name) {
		return words[0]
	}
	if v == "" || !slices.Contains(words, v) {
		p.wrong(name, "must be "+strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " or "))
	}
	return v
}

func (p *params) flag(name string) bool { return p.choice(name, "false", "true") == "true" }

// span is the time from the parameter from on and before the parameter to; zero where open.
func (p *params) span() (from, to time.Time) {
	from, to = p.time("from"), p.time("to")
	if !from.IsZero() && !to.IsZero() && !from.Before(to) {
		p.wrong("from", "must be before to")
	}
	return from, to
}

// time reads RFC 3339 with at most milliseconds, or epoch milliseconds; not before 1970.
func (p *params) time(name string) time.Time {
	text := p.text(name)
	if !p.values.Has(name) {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, text)
	if ms, isNumber := strconv.ParseInt(text, 10, 64); isNumber == nil {
		t, err = time.UnixMilli(ms), nil
	}
	if err != nil || !t.Equal(t.Truncate(time.Millisecond)) || t.UnixMilli() < 0 || t.UnixMilli() > ledger.MaxInteger {
		p.wrong(name, "must be a time such as 2026-01-31T08:30:00.000Z, or epoch milliseconds")
	}
	return t.UTC()
}

// position is where a read must have got to; 0 when it does not matter.
func (p *params) position(name string) ledger.Position {
	text := p.text(name)
	if !p.values.Has(name) {
		return 0
	}
	at, err := ledger.ParsePosition(text)
	if err != nil {
		p.wrong(name, "must be a position as answered by the service")
	}
	return at
}

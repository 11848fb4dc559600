package main

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// businessHorizon is how far back the dates inside payloads reach at least.
	businessHorizon = 180 * 24 * time.Hour

	// lateSpan is the span beyond which events must be meant for a source that accepts late ones:
	// the default of MAX_EVENT_AGE_MS, less an hour for the way.
	lateSpan = 23 * time.Hour

	// oversize is more bytes than a payload may have by default (MAX_PAYLOAD_BYTES, 256 KiB).
	oversize = 270_000

	// poisons is how many ways of broken text appendPoison knows.
	poisons = 4
)

// renderer writes events as JSON. The bytes of an event follow from the event and the settings alone.
type renderer struct {
	cfg           sampleCmd
	malformations []malformation

	// respell makes appendEvent write the members in reverse and the payload's numbers with an
	// exponent or a fraction, which changes neither the key nor the canonical payload.
	respell bool

	event, payload, nested []member // reused
}

// member is one name and value of a JSON object. Strings hold nothing that needs escaping.
type member struct {
	name  string
	kind  memberKind
	text  string // of kindText and kindRaw
	n     int64  // of kindNumber and kindID
	scale int    // of kindNumber: the value is n / 10^scale
}

type memberKind uint8

const (
	kindText    memberKind = iota
	kindID                 // text, then n in decimal
	kindNumber             //
	kindRaw                // text as it is
	kindNested             // the object in renderer.nested
	kindPayload            // the object in renderer.payload
)

func text(name, s string) member { return member{name: name, text: s} }
func id(name, prefix string, n int64) member {
	return member{name: name, kind: kindID, text: prefix, n: n}
}
func number(name string, n int64, sc int) member {
	return member{name: name, kind: kindNumber, n: n, scale: sc}
}
func raw(name, literal string) member             { return member{name: name, kind: kindRaw, text: literal} }
func (r *renderer) contractType(c int) string     { return r.cfg.Types[c%len(r.cfg.Types)] }
func pickText(rng *rand.Rand, s ...string) string { return s[rng.IntN(len(s))] }

func newRenderer(cfg sampleCmd) *renderer {
	return &renderer{cfg: cfg, malformations: malformations(cfg)}
}

// appendEvent appends the event to b.
func (r *renderer) appendEvent(b []byte, e sampleEvent) []byte {
	rng := rand.New(rand.NewPCG(r.cfg.Seed, e.number))
	r.makePayload(rng, e)
	r.event = append(r.event[:0],
		r.contractID(e.contract),
		id("eventId", "evt-", int64(e.number)),
		number("sequence", int64(e.sequence), 0),
		number("timestamp", e.timestamp, 0),
		member{name: "payload", kind: kindPayload})
	if e.poison > 0 {
		r.payload = append(r.payload, poison(e.poison))
	}
	if e.malformed > 0 {
		r.malformations[e.malformed-1].apply(r)
	}
	return r.appendObject(b, r.event, false)
}

// contractID names a contract; one in 50 has a name with every character that names may have.
func (r *renderer) contractID(contract int) member {
	if contract%50 == 49 {
		return id("contractId", "Client_7.legal@talent.example-", int64(contract))
	}
	prefix, _, _ := strings.Cut(r.contractType(contract), "_")
	return id("contractId", prefix+"-", int64(contract))
}

// businessTime spreads the dates inside payloads over months even where the events' own timestamps
// lie within a day.
func (r *renderer) businessTime(timestamp int64) int64 {
	age := float64(r.cfg.Now.UnixMilli() - timestamp)
	return r.cfg.Now.UnixMilli() - int64(age*max(1, float64(businessHorizon)/float64(r.cfg.Span)))
}

// makePayload makes the payload of the event. One number of it grows with the variant, so that
// every variant has another hash.
func (r *renderer) makePayload(rng *rand.Rand, e sampleEvent) {
	r.nested = r.nested[:0]
	when, contract, variant := r.businessTime(e.timestamp), int64(e.contract), int64(e.variant)
	switch r.contractType(e.contract) {
	case "talent_contract":
		action := pickText(rng, "updated", "updated", "updated", "verified", "terminated")
		if e.sequence <= 1 {
			action = "created"
		}
		r.nested = append(r.nested,
			text("role", pickText(rng, "Backend engineer", "Data analyst", "Illustrator", "Ingeniera de datos", "Übersetzerin", "プロダクトデザイナー")),
			number("level", 1+rng.Int64N(5)+10*variant, 0),
			text("location", pickText(rng, "Lisbon", "São Paulo", "Zürich", "Nairobi", "Kraków", "Bengaluru")),
			number("dayRate", 20_000+rng.Int64N(80_000), 2),
			raw("skills", pickText(rng, `["go","sql"]`, `["figma"]`, `["python","spark","sql"]`, `[]`)),
			raw("remote", pickText(rng, "true", "false")))
		r.payload = append(r.payload[:0],
			id("talentId", "talent-", contract),
			text("action", action),
			member{name: "metadata", kind: kindNested},
			number("createdAt", when, 0))
	case "payment_contract":
		r.nested = append(r.nested,
			number("platform", 50+rng.Int64N(5_000), 2),
			number("network", rng.Int64N(100), 2))
		r.payload = append(r.payload[:0],
			id("paymentId", "pay-", int64(e.number)),
			number("amount", 1_000+rng.Int64N(5_000_000)+variant, 2),
			text("currency", pickText(rng, "EUR", "EUR", "EUR", "USD", "USD", "GBP", "BRL", "USDC")),
			text("status", pickText(rng, "completed", "completed", "completed", "pending", "failed")),
			number("timestamp", when, 0),
			id("payee", "talent-", rng.Int64N(1+contract)),
			id("payer", "client-", contract/7),
			id("invoice", "INV-2026-", int64(e.number)),
			text("description", pickText(rng, "Milestone: onboarding flow", "Monthly retainer", "Translation, 12 pages", "Sprint 14, second half")),
			member{name: "fees", kind: kindNested})
	default: // review_contract
		r.payload = append(r.payload[:0],
			id("reviewId", "rev-", int64(e.number)),
			id("reviewerId", "client-", contract/7),
			number("rating", 10+5*rng.Int64N(9), 1),
			text("comment", pickText(rng, "On time and easy to work with.", "Great work, a little late.", "Muito bom!", "Would hire again.", "Clear communication; the second draft needed work.")),
			number("helpfulVotes", rng.Int64N(40)+100*variant, 0),
			number("createdAt", when, 0))
	}
}

// poison returns a member whose text has to be cleaned before it can be stored.
func poison(kind uint8) member {
	switch kind {
	case 1:
		return raw("note", `"signed\u0000 off"`)
	case 2:
		return raw("note", "\"caf\xe9 bill\"") // Latin-1
	case 3:
		return raw("note", `"half an emoji \ud83d here"`)
	}
	return raw(`no\u0000te`, `"a NUL in the name"`)
}

func (r *renderer) appendObject(b []byte, members []member, inPayload bool) []byte {
	b = append(b, '{')
	for i := range members {
		if i > 0 {
			b = append(b, ',')
		}
		m := members[i]
		if r.respell {
			m = members[len(members)-1-i]
			b = append(b, ' ')
		}
		b = append(append(append(b, '"'), m.name...), '"', ':')
		b = r.appendValue(b, m, inPayload)
	}
	return append(b, '}')
}

func (r *renderer) appendValue(b []byte, m member, inPayload bool) []byte {
	switch m.kind {
	case kindText:
		return append(append(append(b, '"'), m.text...), '"')
	case kindID:
		b = append(append(b, '"'), m.text...)
		return append(appendPadded(b, m.n), '"')
	case kindNumber:
		if r.respell && inPayload {
			return appendRespelled(b, m.n, m.scale)
		}
		return appendDecimal(b, m.n, m.scale)
	case kindNested:
		return r.appendObject(b, r.nested, true)
	case kindPayload:
		return r.appendObject(b, r.payload, true)
	}
	return append(b, m.text...)
}

// appendPadded appends n with at least six digits.
func appendPadded(b []byte, n int64) []byte {
	for limit := int64(100_000); limit > n && limit > 1; limit /= 10 {
		b = append(b, '0')
	}
	return strconv.AppendInt(b, n, 10)
}

// appendDecimal appends n / 10^scale without trailing zeros, for n ≥ 0.
func appendDecimal(b []byte, n int64, scale int) []byte {
	for scale > 0 && n%10 == 0 {
		n, scale = n/10, scale-1
	}
	start := len(b)
	b = strconv.AppendInt(b, n, 10)
	for len(b)-start <= scale {
		b = slices.Insert(b, start, '0')
	}
	if scale > 0 {
		b = slices.Insert(b, len(b)-scale, '.')
	}
	return b
}

// appendRespelled appends the same number as appendDecimal, spelled otherwise.
func appendRespelled(b []byte, n int64, scale int) []byte {
	b = strconv.AppendInt(b, n, 10)
	if scale == 0 {
		return append(b, ".0"...)
	}
	return strconv.AppendInt(append(b, "e-"...), int64(scale), 10)
}

// malformation is one way of being refused.
type malformation struct {
	code  string // of the item in the answer
	rare  bool   // because it is large
	apply func(r *renderer)
}

// malformations are the ways in which a plain client gets events refused. Each breaks one rule only,
// or base fields only, so that the code does not depend on the order in which rules are checked.
func malformations(cfg sampleCmd) []malformation {
	var list []malformation
	add := func(code string, apply func(r *renderer)) {
		list = append(list, malformation{code: code, apply: apply})
	}
	without := func(name string) func(r *renderer) {
		return func(r *renderer) {
			r.event = slices.DeleteFunc(r.event, func(m member) bool { return m.name == name })
		}
	}
	with := func(name, literal string) func(r *renderer) {
		return func(r *renderer) { set(&r.event, raw(name, literal)) }
	}
	base := func(apply func(r *renderer)) { add("invalid_event", apply) }
	for _, name := range []string{"contractId", "eventId", "sequence", "timestamp", "payload"} {
		base(without(name))
	}
	for _, literal := range []string{`"3"`, `2.5`, `-4`, `null`, `9007199254740992`} {
		base(with("sequence", literal))
	}
	for _, literal := range []string{`"soon"`, `true`, `""`} {
		base(with("timestamp", literal))
	}
	for _, literal := range []string{`"text"`, `[1]`, `null`} {
		base(with("payload", literal))
	}
	for _, literal := range []string{`""`, `"led ger"`, `"led:1"`, `"` + strings.Repeat("x", 256) + `"`} {
		base(with("contractId", literal))
		base(with("eventId", literal))
	}
	base(with("priority", `1`)) // an unknown member
	base(func(r *renderer) {    // everything at once
		r.event = append(r.event[:0], raw("contractId", `"  "`), raw("sequence", `"3"`), raw("timestamp", `"soon"`), raw("payload", `[]`))
	})

	add("invalid_payload", func(r *renderer) { r.payload = r.payload[1:] }) // the first member is required
	add("invalid_payload", func(r *renderer) { r.payload[0] = raw(r.payload[0].name, `17`) })
	add("invalid_payload", func(r *renderer) { r.payload[0] = raw(r.payload[0].name, `""`) })
	add("invalid_payload", breakRule)

	add("duplicate_member", func(r *renderer) { r.payload = append(r.payload, r.payload[0]) })
	add("duplicate_member", func(r *renderer) { // equal once the NUL is gone
		twin := r.payload[0]
		twin.name += `\u0000`
		r.payload = append(r.payload, twin)
	})

	const day = 24 * time.Hour
	at := func(age time.Duration) func(r *renderer) {
		return func(r *renderer) { set(&r.event, number("timestamp", cfg.Now.Add(-age).UnixMilli(), 0)) }
	}
	add("event_in_future", at(-30*day))
	add("event_in_future", at(-400*day))
	if cfg.Span <= lateSpan {
		add("event_too_old", at(3*day))
		add("event_too_old", func(r *renderer) { // seconds where milliseconds are asked for
			set(&r.event, number("timestamp", cfg.Now.Unix(), 0))
		})
	}
	long := `"` + strings.Repeat("lorem ipsum ", oversize/12) + `"`
	list = append(list, malformation{code: "payload_too_large", rare: true, apply: func(r *renderer) {
		r.payload = append(r.payload, raw("attachment", long))
	}})
	return list
}

// breakRule sets a member of the payload to a value that its schema excludes.
func breakRule(r *renderer) {
	switch r.payload[0].name {
	case "talentId":
		set(&r.payload, text("action", "promoted"))
	case "paymentId":
		set(&r.payload, text("currency", "euro"))
		set(&r.payload, raw("amount", `"12.5"`))
	default:
		set(&r.payload, raw("rating", `6`))
	}
}

// set replaces the member of that name, or appends one.
func set(members *[]member, m member) {
	for i := range *members {
		if (*members)[i].name == m.name {
			(*members)[i] = m
			return
		}
	}
	*members = append(*members, m)
}

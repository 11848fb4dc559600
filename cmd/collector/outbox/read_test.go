package outbox

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func chat(t testing.TB) *Rules {
	t.Helper()
	rules, err := ChatRules()
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func parse(t testing.TB, text string) *Rules {
	t.Helper()
	rules, err := ParseRules([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// one reads an input that must be exactly one event.
func one(t testing.TB, rules *Rules, input string) Event {
	t.Helper()
	events, filtered := rules.Read([]byte(input), "test")
	if len(events) != 1 || filtered != 0 || events[0].Refused != "" {
		t.Fatalf("Read(%s): got %d events, %d filtered, %+v; want one event", input, len(events), filtered, events)
	}
	return events[0]
}

func TestEventIDGolden(t *testing.T) {
	for _, c := range []struct{ input, want string }{
		{`{"type":"messages.upsert","chat_jid":"777001@g.us","payload":{"key":{"remoteJid":"777001@g.us","id":"KX-1"},"message":{"t":1}}}`, "1e6e0c10-8204-53b6-9664-9b4d6f510160"},
		{`{"type":"messages.upsert","payload":{"key":{"remoteJid":"777001@g.us","id":"KX-1"},"message":{"t":1}}}`, "1e6e0c10-8204-53b6-9664-9b4d6f510160"},
		{`{"type":"messages.upsert","payload":{"type":"append","messages":[{"key":{"remoteJid":"777001@g.us","id":"KX-1"},"message":{"t":1}}]}}`, "1e6e0c10-8204-53b6-9664-9b4d6f510160"},
		{`{"type":"messages.reaction","payload":{"key":{"remoteJid":"777001@g.us","id":"KX-1"},"reaction":{"key":{"participant":"r9@lid"},"text":"+1","senderTimestampMs":5}}}`, "15a9b617-692e-5b17-893e-a4bfde2ab77a"},
	} {
		e := one(t, chat(t), c.input)
		if e.EventID != c.want {
			t.Errorf("event id of %s: got %s, want %s", c.input, e.EventID, c.want)
		}
		if id := uuid.MustParse(e.EventID); id.Version() != 5 || id.Variant() != uuid.RFC4122 {
			t.Errorf("event id %s: got version %d, variant %v", id, id.Version(), id.Variant())
		}
	}
	if got, want := EventID(chatNamespace, "messages.upsert", "777001@g.us", "KX-1").String(), "1e6e0c10-8204-53b6-9664-9b4d6f510160"; got != want {
		t.Errorf("EventID: got %s, want %s", got, want)
	}
}

func TestEventIDPartsAreEscaped(t *testing.T) {
	ids := map[uuid.UUID][]string{}
	for _, parts := range [][]string{{"a", "b"}, {"a|b"}, {"a%7Cb"}, {"a%257Cb"}, {"a", "b", ""}, {"", "a", "b"}, {"ab"}} {
		id := EventID(chatNamespace, parts...)
		if other, ok := ids[id]; ok {
			t.Errorf("%q and %q have one id", parts, other)
		}
		ids[id] = parts
	}
}

// Which inputs are one event and which are two, under the built-in rules.
func TestSameOrNot(t *testing.T) {
	const (
		group    = `"777001@g.us"`
		message  = `{"type":"messages.upsert","payload":{"key":{"remoteJid":"777001@g.us","id":"KX-2"},"message":{"text":"x"}}}`
		reaction = `{"type":"messages.reaction","payload":{"key":{"remoteJid":"777001@g.us","id":"KX-1"},"reaction":{"key":{"participant":"r9@lid"},"text":%s,"senderTimestampMs":%d}}}`
		delta    = `{"type":"group-participants.update","payload":{"id":"777001@g.us","action":"add","participants":[%s]}}`
		snapshot = `{"type":"groups.metadata","payload":{"id":"777001@g.us","subject":"s","participants":[%s],"fetchedAt":%d}}`
	)
	for _, c := range []struct {
		name, a, b string
		same       bool
	}{
		{"live and from the offline buffer", message, `{"type":"messages.upsert","payload":{"type":"append","messages":[{"message":{"text":"x"},"key":{"id":"KX-2","remoteJid":"777001@g.us"}}]}}`, true},
		{"another message", message, strings.Replace(message, "KX-2", "KX-3", 1), false},
		{"a reaction delivered again later", fmt.Sprintf(reaction, `"+1"`, 1), fmt.Sprintf(reaction, `"+1"`, 2), true},
		{"a reaction removed", fmt.Sprintf(reaction, `"+1"`, 1), fmt.Sprintf(reaction, `""`, 1), false},
		{"a removal delivered again later", fmt.Sprintf(reaction, `""`, 1), fmt.Sprintf(reaction, `""`, 2), true},
		{"a reaction without a text is known by its content", fmt.Sprintf(reaction, `null`, 1), fmt.Sprintf(reaction, `""`, 1), false},
		{"and so differs with it", fmt.Sprintf(reaction, `null`, 1), fmt.Sprintf(reaction, `null`, 2), false},
		{"a delta repeated", fmt.Sprintf(delta, `"a@lid","b@lid"`), fmt.Sprintf(delta, `"a@lid","b@lid"`), true},
		{"another delta", fmt.Sprintf(delta, `"a@lid"`), fmt.Sprintf(delta, `"b@lid"`), false},
		{"a snapshot with reordered participants", fmt.Sprintf(snapshot, `{"id":"a","admin":null},{"id":"b","admin":"admin"}`, 1), fmt.Sprintf(snapshot, `{"admin":"admin","id":"b"},{"id":"a","admin":null}`, 2), true},
		{"a changed role", fmt.Sprintf(snapshot, `{"id":"a","admin":null}`, 1), fmt.Sprintf(snapshot, `{"id":"a","admin":"admin"}`, 1), false},
		{"an unknown type repeated", `{"type":"labels.edit","payload":{"id":` + group + `,"n":1.0}}`, `{"type":"labels.edit","payload":{"n":1,"id":` + group + `}}`, true},
		{"another content", `{"type":"labels.edit","payload":{"id":` + group + `,"n":1}}`, `{"type":"labels.edit","payload":{"id":` + group + `,"n":2}}`, false},
		{"two large numbers", `{"type":"labels.edit","payload":{"id":` + group + `,"n":9007199254740993}}`, `{"type":"labels.edit","payload":{"id":` + group + `,"n":9007199254740992}}`, false},
	} {
		a, b := one(t, chat(t), c.a), one(t, chat(t), c.b)
		if same := a.EventID == b.EventID; same != c.same {
			t.Errorf("%s: one id is %v, want %v\n%s\n%s", c.name, same, c.same, c.a, c.b)
		}
	}
	// One id means one payload: a repeated snapshot is a duplicate for the ledger, not a conflict.
	a := one(t, chat(t), fmt.Sprintf(snapshot, `{"id":"a"},{"id":"b"}`, 1))
	b := one(t, chat(t), fmt.Sprintf(snapshot, `{"id":"b"},{"id":"a"}`, 2))
	if string(a.Body) != string(b.Body) || a.PayloadHash != b.PayloadHash {
		t.Errorf("the same snapshot is sent as %s and as %s", a.Body, b.Body)
	}
}

func TestChatRulesFilter(t *testing.T) {
	for _, c := range []struct {
		input    string
		filtered int
	}{
		{`{"type":"creds.update","payload":{}}`, 1},
		{`{"type":"presence.update","payload":{"id":"777001@g.us"}}`, 1},
		{`{"type":"messaging-history.set","payload":{"chats":[]}}`, 1},
		{`{"type":"messages.upsert","payload":{"key":{"remoteJid":"5511@s.whatsapp.net","id":"A"}}}`, 1},
		{`{"type":"connection.update","payload":{"connection":"open"}}`, 1},
		{`{"type":"messages.upsert","payload":{"messages":[]}}`, 1},
		{`{"type":"messages.upsert","payload":{"messages":[{"key":{"remoteJid":"1@s.whatsapp.net","id":"A"}},{"key":{"remoteJid":"1@g.us","id":"A"}}]}}`, 1},
		{`{"type":"group.member-tag.update","payload":{"groupId":"777001@g.us"}}`, 0},
		{`{"type":"groups.upsert","payload":[{"id":"1@g.us"},{"id":"2@g.us"}]}`, 0},
		// The group is found although another id stands in the first place that is looked at.
		{`{"type":"labels.edit","chat_jid":"r9@lid","payload":{"id":"777001@g.us"}}`, 0},
		{`{"contractType":"lease_contract","contractId":"c","eventId":"e","sequence":1,"timestamp":1,"payload":{}}`, 0},
	} {
		if _, filtered := chat(t).Read([]byte(c.input), ""); filtered != c.filtered {
			t.Errorf("Read(%s): got %d filtered, want %d", c.input, filtered, c.filtered)
		}
	}
}

func TestReadEvents(t *testing.T) {
	e := one(t, chat(t), `{"contractType":"payment_contract", "contractId":"c-1","eventId":"e-1","sequence":7.0,"timestamp":1767225600000,"payload":{"b":1,"a":2}}`)
	want := Event{Form: FormEvent, Type: "payment_contract", ContractID: "c-1", EventID: "e-1", Sequence: "7", PayloadHash: e.PayloadHash, Origin: "test",
		Body: []byte(`{"contractId":"c-1","eventId":"e-1","sequence":7.0,"timestamp":1767225600000,"payload":{"b":1,"a":2}}`)}
	if fmt.Sprintf("%+v", e) != fmt.Sprintf("%+v", want) {
		t.Errorf("got %+v, want %+v", e, want)
	}

	events, _ := chat(t).Read([]byte(`{"contractType":"lease_contract","events":[{"contractId":"c","eventId":"a","sequence":1,"timestamp":1,"payload":{}},7,{"contractId":"c","sequence":2,"timestamp":1,"payload":{}}]}`), "")
	if len(events) != 3 || events[0].EventID != "a" || events[1].Refused == "" || uuid.Validate(events[2].EventID) != nil {
		t.Errorf("a batch: got %+v", events)
	}

	rules := chat(t)
	rules.ContractType = "lease_contract"
	if e := one(t, rules, `{"contractId":"c","eventId":null,"sequence":2,"payload":{}}`); e.Type != "lease_contract" || !strings.Contains(string(e.Body), `"eventId":"`+e.EventID) {
		t.Errorf("default contract type and derived id: got %+v", e)
	}
}

func TestReadRefuses(t *testing.T) {
	for _, c := range []struct{ input, want string }{
		{`{"contractType":"t","contractId":`, "cut short"},
		{"{\"contractId\":\"planted-value\", bad}", "JSON syntax error at byte"},
		{`[1]`, "not a JSON object"},
		{`"planted-value"`, "not a JSON object"},
		{`{} {}`, "follows"},
		{"\x00\x00\x7fELF", "JSON syntax error"},
		{`{}`, "neither"},
		{`{"contractId":"c"}`, "contractType"},
		{`{"contractType":5,"contractId":"c"}`, "contractType"},
		{`{"contractType":"a b","contractId":"c"}`, "contractType"},
		{`{"contractType":"t","events":{}}`, "events: not a JSON array"},
		{`{"contractType":"t","events":[],"extra":"planted-value"}`, `unknown member "extra"`},
		{`{"type":5,"payload":{}}`, "type"},
		{`{"type":"","payload":{}}`, "type"},
		{`{"type":"t"}`, "payload is missing"},
		{`{"type":"t","chat_jid":7,"payload":{}}`, "chat_jid"},
		{`{"type":"t","payload":{},"at":"planted-value"}`, `unknown member "at"`},
		{`{"type":"t","payload":{},"eventId":"planted-value"}`, "not a UUID"},
	} {
		events, _ := chat(t).Read([]byte(c.input), "")
		if len(events) != 1 || events[0].Form != FormLine || !strings.Contains(events[0].Refused, c.want) {
			t.Errorf("Read(%q): got %+v, want a refusal that says %q", c.input, events, c.want)
			continue
		}
		if string(events[0].Body) != c.input {
			t.Errorf("Read(%q) keeps %q", c.input, events[0].Body)
		}
		if strings.Contains(events[0].Refused, "planted") {
			t.Errorf("the refusal shows a value: %s", events[0].Refused)
		}
	}
}

func TestReadOddBytes(t *testing.T) {
	// Sent as they are, hashed clean: the ledger says what it cleaned.
	e := one(t, chat(t), "{\"contractType\":\"t\",\"contractId\":\"c\",\"eventId\":\"e\",\"sequence\":1,\"payload\":{\"a\":\"x\xff\"}}")
	if !strings.Contains(string(e.Body), "x\xff") {
		t.Errorf("got %q, want the byte 0xff in it", e.Body)
	}
	// A raw NUL breaks the JSON: cleaned here.
	e = one(t, chat(t), "{\"contractType\":\"t\",\"contractId\":\"c\",\"eventId\":\"e\",\"sequence\":1,\"payload\":{\"a\":\"x\x00y\"}}")
	if !strings.Contains(string(e.Body), `"xy"`) {
		t.Errorf("got %q, want xy in it", e.Body)
	}
}

func TestRulesOfOnesOwn(t *testing.T) {
	rules := parse(t, `
events:
  deny_ids: ["test-*"]
  version: [v]
  default: {contract: account, id: [$type, $contract, "/a~1b/0"], occurrence: [$timestamp]}
  types:
    order: {id: [=order, number]}
    order@2: {id: [=order2, [ref, number]], drop: ["lines.*.at"]}
`)
	a := one(t, rules, `{"contractType":"state","sequence":1,"timestamp":1,"payload":{"account":"c1","a/b":["x"]}}`)
	if a.ContractID != "c1" || a.EventID != EventID(rules.namespace, "state", "c1", "x", "1").String() {
		t.Errorf("got %+v", a)
	}
	if b := one(t, rules, `{"contractType":"state","sequence":1,"timestamp":2,"payload":{"account":"c1","a/b":["x"]}}`); a.EventID == b.EventID {
		t.Error("a recurrence at another time has the same id")
	}
	if e := one(t, rules, `{"contractType":"order","contractId":"c","payload":{"number":12.0}}`); e.EventID != EventID(rules.namespace, "order", "12").String() {
		t.Errorf("version 1: got %+v", e)
	}
	e := one(t, rules, `{"contractType":"order","contractId":"c","payload":{"v":2,"number":12,"lines":[{"at":1,"q":2}]}}`)
	if e.EventID != EventID(rules.namespace, "order2", "12").String() || strings.Contains(string(e.Body), "at\":1") {
		t.Errorf("version 2: got %+v", e)
	}
	if _, filtered := rules.Read([]byte(`{"contractType":"order","contractId":"test-1","payload":{}}`), ""); filtered != 1 {
		t.Errorf("deny_ids: got %d filtered, want 1", filtered)
	}
}

func TestParseRulesRefuses(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"envelopes: {denied: [x]}", "denied"},
		{"namespace: nonsense", "namespace"},
		{"events: {only: ['[']}", "only"},
		{"events: {types: {x: {id: [$nothing]}}}", "x: id: \"$nothing\""},
		{"events: {types: {x: {contract: [=a]}}}", "literal"},
		{"events: {types: {x: {drop: ['']}}}", "empty"},
		{"events: {types: {x: }}", "x: has no members"},
		{"[", "rules"},
	} {
		if _, err := ParseRules([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("ParseRules(%q): got %v, want it to name %s", c.text, err, c.want)
		}
	}
}

// Whatever comes in: no panic, no loss, and what Read made of it reads as the same event again.
func FuzzRead(f *testing.F) {
	rules, err := ChatRules()
	if err != nil {
		f.Fatal(err)
	}
	rules.ContractType = "t"
	for _, seed := range []string{
		`{"contractType":"t","contractId":"c","eventId":"e","sequence":1,"timestamp":1,"payload":{"a":[1,2.50,"x"]},"signature":"s"}`,
		`{"type":"messages.upsert","payload":{"messages":[{"key":{"remoteJid":"1@g.us","id":"A"}}]}}`,
		`{"type":"groups.metadata","chat_jid":null,"payload":{"id":"1@g.us","participants":[{"id":"b"},{"id":"a"},3]}}`,
		`{"contractType":"t","events":[{"payload":null},{}]}`, "{\"type\":\"\xff\",\"payload\":[\"\\ud800\"]}", `{`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		events, filtered := rules.Read(append([]byte(nil), input...), "")
		if len(events)+filtered == 0 && !strings.Contains(string(input), "events") {
			t.Fatalf("Read(%q) lost the input", input)
		}
		for _, e := range events {
			if e.Refused != "" {
				continue
			}
			if e.Form == FormEnvelope && !json.Valid(e.Body) {
				t.Fatalf("Read(%q): the body %q is not JSON", input, e.Body)
			}
			again, _ := rules.Read(e.Line(), "")
			if len(again) != 1 || again[0].Key() != e.Key() || again[0].PayloadHash != e.PayloadHash || again[0].Refused != "" {
				t.Fatalf("Read(%q): %+v reads again as %+v", input, e, again)
			}
		}
	})
}

// No rules file makes ParseRules panic, and rules that it takes can be used.
func FuzzParseRules(f *testing.F) {
	f.Add(chatRules)
	f.Add([]byte("events: {types: {x: {id: [$type, [a, b]], sets: {a: b}}}}"))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, text []byte) {
		rules, err := ParseRules(text)
		if err != nil {
			return
		}
		rules.Read([]byte(`{"contractType":"x","contractId":"c","payload":{"a":[1]}}`), "")
		rules.Read([]byte(`{"type":"x","payload":[{"id":"1@g.us"}]}`), "")
	})
}

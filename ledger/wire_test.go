package ledger_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/canonical"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// wireEntries are entries that, taken together, have every member of a header and a body.
func wireEntries() map[string]*ledger.Entry {
	full := golden()
	full.Body.KeyID, full.Body.Verdict, full.Body.ChatJID, full.Body.SequencePolicy = "k1", ledger.VerdictVerified, "чат@g.us", ledger.SequenceFree
	full.Body.PayloadChanged, full.Body.Supersedes = true, 0
	full.Seal()
	big := ledgertest.Event(ledger.Key{ContractID: "c", EventID: "e"}, `{"n":9.007199254740993e+15,"s":"\u001f \" <&>é"}`, 1)
	counts := &ledger.Entry{Header: ledger.Header{V: ledger.Version, Type: ledger.DuplicatesCounted, Stream: "duplicates-x", Sequence: ledger.Absent, Timestamp: ledger.Absent, Generation: ledger.Absent}}
	counts.Body = ledger.Body{Supersedes: ledger.Absent, Counts: []ledger.Count{{Stream: "contract-c", Revision: 0, Count: 3, LastSeen: 9}, {Stream: "rejections-x", Revision: 1, Count: 1}}}
	counts.Seal()
	return map[string]*ledger.Entry{"every member": full, "exact numbers": big, "counts": counts, "rejection": ledgertest.Rejected("\u2028 \"quoted\"", 2), "creation": ledger.Creation(ledgertest.Epoch)}
}

func recordOf(e *ledger.Entry) ledger.Record {
	r, _ := e.Record(ledger.Decide(e, ledger.EmptyStream, ledger.Found{}), ledger.EmptyStream, 0)
	return r
}

func TestWire(t *testing.T) {
	for name, e := range wireEntries() {
		t.Run(name, func(t *testing.T) {
			want := recordOf(e)
			data := want.AppendJSON(nil)
			if form, err := canonical.Append(nil, data); err != nil || string(form) != string(data) {
				t.Errorf("%s\nis canonically %s, %v", data, form, err)
			}
			got, err := ledger.ParseRecord(data)
			if err != nil {
				t.Fatalf("%s: %v", data, err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("the record read (-want +got):\n%s", d)
			}
		})
	}
}

// TestWireStrict: whatever is not exactly what was written is refused, and no error quotes it.
func TestWireStrict(t *testing.T) {
	r := recordOf(golden())
	data := string(r.AppendJSON(nil))
	cases := map[string]string{
		"empty": "", "no JSON": "secret", "null": "null", "an array": "[]", "no members": "{}", "cut": data[:len(data)-1], "more behind": data + "{}",
		"a space": strings.Replace(data, `{"body"`, `{ "body"`, 1), "unknown member": strings.Replace(data, `{"body"`, `{"a":"secret","body"`, 1),
		"unknown in the header": strings.Replace(data, `"v":1`, `"v":1,"w":"secret"`, 1), "twice": strings.Replace(data, `"v":1`, `"v":1,"v":1`, 1),
		"version": strings.Replace(data, `"v":1`, `"v":2`, 1), "kind": strings.Replace(data, `"late":true`, `"late":"secret"`, 1), "null member": strings.Replace(data, `"late":true`, `"late":null`, 1),
		"false": strings.Replace(data, `"late":true`, `"late":false`, 1), "other event": strings.Replace(data, `"contractId":"contract_123"`, `"contractId":"secret"`, 1),
		"other payload": strings.Replace(data, `12.5`, `12.6`, 1), "fraction": strings.Replace(data, `"revision":0`, `"revision":0.5`, 1), "no salt": strings.Replace(data, `"salt":"`, `"salz":"`, 1),
		"upper hex": strings.Replace(data, `"salt":"00`, `"salt":"0A`, 1), "float": strings.Replace(data, `"revision":0`, `"revision":0e0`, 1),
	}
	for name, text := range cases {
		if text == data {
			t.Errorf("%s: nothing was changed", name)
		}
		if _, err := ledger.ParseRecord([]byte(text)); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want an error that does not quote the text", name, err)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	for _, e := range wireEntries() {
		r := recordOf(e)
		f.Add(r.AppendJSON(nil))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ledger.ParseRecord(data)
		if err != nil {
			return
		}
		if again := r.AppendJSON(nil); string(again) != string(data) {
			t.Errorf("%s\nis written as %s", data, again)
		}
		if err := r.Check(r.Header.Prev); err != nil {
			t.Errorf("%s: %v", data, err)
		}
	})
}

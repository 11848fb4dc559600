package ledger_test

import (
	"strings"
	"testing"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/canonical"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// sealed is the record after a change, with every hash as it should be.
func sealed(r ledger.Record, change func(h *ledger.Header, y *ledger.Body)) ledger.Record {
	change(&r.Header, &r.Body)
	if r.Body.Payload != nil {
		r.Body.PayloadHash = canonical.Sum(r.Body.Payload)
		r.Body.EventHash = ledger.EventHashOf(&r.Header, r.Body.PayloadHash, r.Body.Signature)
	}
	r.Header.Commitment = r.Body.CommitmentTo(&r.Header)
	r.Leaf = r.Header.LeafHash()
	return r
}

// Records whose hashes all hold, and that no ledger writes.
func TestParseForeign(t *testing.T) {
	past := ledgertest.Past(t)
	byType := map[ledger.Type]ledger.Record{}
	for _, r := range past {
		byType[r.Header.Type] = r
		if _, err := ledger.ParseForeign(r.AppendJSON(nil)); err != nil {
			t.Errorf("revision %d of %s: %v", r.Header.Revision, r.Header.Stream, err)
		}
	}
	if len(byType) != 5 {
		t.Fatalf("the ledger has %d types of records, want 5", len(byType))
	}
	event := byType[ledger.EventAccepted]
	for _, c := range []struct {
		name   string
		of     ledger.Type
		change func(h *ledger.Header, y *ledger.Body)
		says   string
	}{
		{"version", ledger.EventAccepted, func(h *ledger.Header, y *ledger.Body) { h.V = 2 }, "version 2"},
		{"type", ledger.DuplicatesCounted, func(h *ledger.Header, y *ledger.Body) { h.Type = "Secret" }, "type is not known"},
		{"revision", ledger.EventRejected, func(h *ledger.Header, y *ledger.Body) { h.Revision = -2 }, "not negative"},
		{"no revision", ledger.EventRejected, func(h *ledger.Header, y *ledger.Body) { h.Revision = ledger.Absent }, "must be there"},
		{"clock", ledger.EventRejected, func(h *ledger.Header, y *ledger.Body) { h.RecordedAt = -7 }, "not negative"},
		{"second creation", ledger.LedgerCreated, func(h *ledger.Header, y *ledger.Body) { h.Revision = 1 }, "revision 0 of stream ledger"},
		{"creation elsewhere", ledger.LedgerCreated, func(h *ledger.Header, y *ledger.Body) { h.Stream = "ledger-2" }, "revision 0 of stream ledger"},
		{"rejection in a contract", ledger.EventRejected, func(h *ledger.Header, y *ledger.Body) { h.Stream = "contract-c" }, "rejections-<instance>"},
		{"instance", ledger.AccessRecorded, func(h *ledger.Header, y *ledger.Body) { h.Stream = "access-a b" }, "access-<instance>"},
		{"rejection with an event", ledger.EventRejected, func(h *ledger.Header, y *ledger.Body) {
			h.ContractID, h.EventID, h.Sequence, h.ContractType, h.Timestamp = "c", "e", 1, "t", 1
			y.Payload = []byte(`{"secret":1}`)
		}, "no event in it"},
		{"contract", ledger.EventAccepted, func(h *ledger.Header, y *ledger.Body) { h.ContractID = "a b" }, "rules for them"},
		{"sequence", ledger.EventAccepted, func(h *ledger.Header, y *ledger.Body) { h.Sequence = ledger.MaxInteger + 1 }, "rules for them"},
		{"stream", ledger.EventAccepted, func(h *ledger.Header, y *ledger.Body) { h.Stream = "contract-another" }, "contract's stream"},
		{"generation", ledger.EventAccepted, func(h *ledger.Header, y *ledger.Body) { h.Generation = 0 }, "generation"},
		{"no event", ledger.EventAccepted, func(h *ledger.Header, y *ledger.Body) { y.Payload = nil }, "must be in its record"},
		{"form", ledger.EventAccepted, func(h *ledger.Header, y *ledger.Body) { y.Payload = []byte(`{"secret":1.0}`) }, "canonical form"},
		{"order", ledger.EventAccepted, func(h *ledger.Header, y *ledger.Body) { y.Payload = []byte(`{"secret":1,"a":1}`) }, "canonical form"},
	} {
		r := sealed(byType[c.of], c.change)
		if _, err := ledger.ParseForeign(r.AppendJSON(nil)); err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(strings.ToLower(err.Error()), "secret") {
			t.Errorf("%s: got %v, want an error that says %q and quotes nothing", c.name, err, c.says)
		}
	}
	if _, err := ledger.ParseForeign(event.AppendJSON(nil)[1:]); err == nil {
		t.Error("a cut record passes")
	}
}

// FuzzParseForeign: what passes is of a known type, in a stream of its type.
func FuzzParseForeign(f *testing.F) {
	for _, e := range wireEntries() {
		r := recordOf(e)
		f.Add(r.AppendJSON(nil))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ledger.ParseForeign(data)
		if err != nil {
			return
		}
		if again := r.AppendJSON(nil); string(again) != string(data) {
			t.Errorf("%s\nis written as %s", data, again)
		}
		if r.Header.Revision < 0 || r.Header.Type == ledger.EventAccepted && r.Header.Stream != r.Header.Key().Stream() {
			t.Errorf("%s passes", data)
		}
	})
}

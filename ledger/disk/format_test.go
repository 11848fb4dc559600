package disk

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

var rewrite = flag.Bool("rewrite", false, "write testdata of the present format version anew; only before its first release")

// golden are records of every type, as they are in testdata.
func golden() []ledger.Record {
	first := ledger.Creation(ledgertest.Epoch)
	first.Body.CorrelationID, first.Body.Salt = "ledger", [32]byte{1}
	first.Seal()
	one := ledgertest.Event(ledger.Key{ContractID: "contract_123", EventID: "event_456", Sequence: 1}, `{"amount":12.5,"é":"\u0001"}`, 0)
	late := ledgertest.Event(ledger.Key{ContractID: "contract_123", EventID: "event_457", Sequence: ledger.MaxInteger}, `[]`, 1)
	late.Body.Late, late.Body.Sanitized, late.Body.Signature, late.Body.SequencePolicy = true, true, "sig", ledger.SequenceFree
	late.Body.Verdict, late.Body.KeyID, late.Body.ChatJID, late.Body.Traceparent = "verified", "k1", "777001@g.us", "00-a-b-01"
	late.Header.Timestamp, late.Window = ledger.Absent, 0
	late.Seal()
	counts := &ledger.Entry{Header: ledger.Header{V: 1, Type: ledger.DuplicatesCounted, Stream: "duplicates-a", Sequence: ledger.Absent, Timestamp: ledger.Absent, Generation: ledger.Absent, RecordedAt: 5}}
	counts.Body = ledger.Body{Supersedes: ledger.Absent, Counts: []ledger.Count{{Stream: "contract-contract_123", Revision: 0, Count: 2, LastSeen: 9}}}
	counts.Seal()
	var recs []ledger.Record
	heads := map[string]ledger.StreamHead{}
	found := map[ledger.Key]ledger.Found{}
	for _, e := range []*ledger.Entry{first, one, late, ledgertest.Rejected("a reason", 2), counts, ledgertest.Event(one.Key(), `{"amount":13}`, 3_600_000)} {
		head, ok := heads[e.Header.Stream]
		if !ok {
			head = ledger.EmptyStream
		}
		r, _ := e.Record(ledger.Decide(e, head, found[e.Key()]), head, ledger.Position(len(recs)+1))
		heads[e.Header.Stream], found[e.Key()] = head.After(&r), ledger.FoundIn(&r)
		recs = append(recs, r)
	}
	return recs
}

// TestStoredForm reads what version 1 wrote, and writes the same bytes.
func TestStoredForm(t *testing.T) {
	file := filepath.Join("testdata", "v1.seg")
	want := golden()
	b := appendHead(nil, 1)
	for i := range want {
		b = appendRecord(b, appendHeader(nil, &want[i].Header, &want[i].Leaf), appendBody(nil, &want[i].Body))
	}
	b = appendCommit(b, commit{records: uint32(len(want)), last: ledger.Position(len(want)), start: headSize})
	if *rewrite {
		if err := os.WriteFile(file, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	stored, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(stored, b) {
		t.Errorf("the records are written otherwise than %s holds them", file)
	}
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, logDir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, logDir, "00000000000000000001.seg"), stored, 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := Open(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if d := cmp.Diff(want, ledgertest.ReadAll(t, s)); d != "" {
		t.Errorf("records of version 1 (-want +got):\n%s", d)
	}
}

// FuzzFrame: bytes that are no frame give an error, and what is one is written again as it was read.
func FuzzFrame(f *testing.F) {
	for _, r := range golden() {
		f.Add(appendRecord(nil, appendHeader(nil, &r.Header, &r.Leaf), appendBody(nil, &r.Body)))
	}
	f.Add(appendCommit(nil, commit{1, 2, 3}))
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := decodeFrame(b)
		if err != nil || fr.kind != recordKind {
			return
		}
		var r, again ledger.Record
		if decodeRecord(fr, &r) == nil {
			second := appendRecord(nil, appendHeader(nil, &r.Header, &r.Leaf), appendBody(nil, &r.Body))
			fr, err := decodeFrame(second)
			if err == nil {
				err = decodeRecord(fr, &again)
			}
			if d := cmp.Diff(r, again); err != nil || d != "" {
				t.Errorf("%v\n%s", err, d)
			}
		}
	})
}

// FuzzRecord feeds headers and bodies to the codec without the checksums that usually keep them out.
func FuzzRecord(f *testing.F) {
	for _, r := range golden() {
		f.Add(appendHeader(nil, &r.Header, &r.Leaf), appendBody(nil, &r.Body))
	}
	f.Fuzz(func(t *testing.T, header, body []byte) {
		_ = decodeRecord(frame{kind: recordKind, header: header, body: body}, new(ledger.Record))
	})
}

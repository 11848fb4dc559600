package rest_test

import (
	"testing"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/rest"
)

// accesses sums what the ledger says of who read what, by source and revision in the stream of c-1.
func (s *service) accesses(t *testing.T) map[string]int64 {
	t.Helper()
	sums := map[string]int64{}
	for rec, err := range s.store.Stream(t.Context(), "access-local", 0, false) {
		if err != nil {
			t.Fatal(err)
		}
		if rec.Header.Type != ledger.AccessRecorded {
			t.Errorf("got a record of type %s", rec.Header.Type)
		}
		for _, c := range rec.Body.Counts {
			if c.Stream != "contract-c-1" || c.LastSeen != noon.UnixMilli() {
				t.Errorf("got %+v, want a record of c-1 at noon", c)
			}
			sums[rec.Header.Source+" "+string('0'+rune(c.Revision))] += c.Count
		}
	}
	return sums
}

// Who reads a payload is in the ledger: once for each entry that was shown, and for nothing else.
func TestReadsOfPayloadsAreRecorded(t *testing.T) {
	auth, err := sources(t, `
sources:
  - {name: boss, role: admin, keys: [{id: k, sha256: `+hashOf("token-boss")+`}]}
  - {name: eyes, role: auditor, keys: [{id: k, sha256: `+hashOf("token-eyes")+`}]}
  - {name: dim, role: auditor, payload: redacted, keys: [{id: k, sha256: `+hashOf("token-dim")+`}]}
  - {name: blind, role: auditor, payload: false, keys: [{id: k, sha256: `+hashOf("token-blind")+`}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, options{rest: rest.Config{Auth: auth}})
	posted := into[answer](t, s.do("POST", "/api/v1/events", batch("lease_contract", event("c-1", "e-1", 1, `{}`), event("c-1", "e-2", 2, `{}`), `{}`), bearer("boss")))
	for _, read := range []struct{ path, as string }{
		{"/api/v1/contracts/c-1/history?payload=true&", "eyes"}, {"/api/v1/contracts/c-1/events/e-2/2?payload=true&", "eyes"},
		{"/api/v1/contracts/c-1/history?payload=true&limit=1&order=asc&", "dim"},
		{"/api/v1/contracts/c-1/history?payload=true&", "blind"}, {"/api/v1/contracts/c-1/history?", "boss"}, {"/api/v1/contracts/c-1/events/e-1/1?", "boss"},
	} {
		if r := s.do("GET", read.path+"atLeast="+posted.Position, "", bearer(read.as)); r.status != 200 {
			t.Fatalf("%s: got %d %s", read.path, r.status, r.body)
		}
	}
	want := map[string]int64{"eyes 0": 1, "eyes 1": 2, "dim 0": 1}
	complete := func() bool {
		got := s.accesses(t)
		for who, n := range want {
			if got[who] < n {
				return false
			}
		}
		return true
	}
	if !waitFor(complete) {
		t.Errorf("got %v, want %v", s.accesses(t), want)
	}
	for who, n := range s.accesses(t) {
		if n != want[who] {
			t.Errorf("%s: got %d reads, want %d", who, n, want[who])
		}
	}
	if _, err := ledger.Verify(t.Context(), s.store, 0, func(ledger.Verified) {}); err != nil {
		t.Errorf("verify: %v", err)
	}
}

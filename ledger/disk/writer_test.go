package disk

import (
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// TestRollback: a call that is taken back leaves no trace in its group, which goes on as if it had not come.
func TestRollback(t *testing.T) {
	s, err := Open(Config{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	g := newGroup(s)
	g.reset(nil)
	stage := func(contract, event string, sequence int64) (o ledger.Outcome) {
		t.Helper()
		e := ledgertest.Event(ledger.Key{ContractID: contract, EventID: event, Sequence: sequence}, `{}`, 0)
		seen, err := s.look(&e.Header)
		if err != nil {
			t.Fatal(err)
		}
		seen.body = appendBody(nil, &e.Body)
		if o, err = g.stage(e, &seen); err != nil {
			t.Fatal(err)
		}
		return o
	}
	stage("c", "a", 2)
	mark, frames := g.mark(), len(g.frames)
	call := func() []ledger.Outcome {
		return []ledger.Outcome{stage("c", "b", 1), stage("c", "c", 3), stage("c", "b", 1), stage("c", "a", 2), stage("other", "a", 2)}
	}
	first := call()
	g.rollback(mark)
	if len(g.frames) != frames {
		t.Errorf("%d bytes are left, want %d", len(g.frames), frames)
	}
	again := call()
	if d := cmp.Diff(first, again); d != "" {
		t.Errorf("the same calls again (-first +again):\n%s", d)
	}
	if again[0].Verdict != ledger.Accepted || again[2].Verdict != ledger.Duplicate || again[3].Verdict != ledger.Duplicate {
		t.Errorf("got %+v", again)
	}
}

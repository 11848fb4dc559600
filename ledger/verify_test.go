package ledger_test

import (
	"context"
	"errors"
	"iter"
	"testing"

	"github.com/talenttrust/auditledger/ledger"
)

// spoiled is a store whose records a test has changed on their way out.
type spoiled struct {
	ledger.Store
	records []ledger.Record
	found   func(ledger.Found) ledger.Found
}

func (s *spoiled) Follow(context.Context, ledger.Position) iter.Seq2[ledger.Batch, error] {
	return func(yield func(ledger.Batch, error) bool) {
		yield(ledger.Batch{Records: s.records, Head: 1 << 40}, nil)
	}
}

func (s *spoiled) Find(ctx context.Context, keys []ledger.Key) ([]ledger.Found, error) {
	found, err := s.Store.Find(ctx, keys)
	for i := range found {
		if s.found != nil {
			found[i] = s.found(found[i])
		}
	}
	return found, err
}

func TestVerify(t *testing.T) {
	b := newBench(t, nil)
	b.send(t, "x", b.event(), b.event("sequence", "8"), b.event("sequence", "-1"), b.event("contractId", `"other"`), b.event("sequence", "9"), b.event("sequence", "10"))
	records := func() []ledger.Record {
		recs, err := b.store.Read(t.Context(), []ledger.Position{1, 2, 3, 4, 5, 6, 7})
		if err != nil {
			t.Fatal(err)
		}
		return recs
	}
	got, err := ledger.Verify(t.Context(), b.store, 7, nil)
	if want := (ledger.Verified{Records: 7, At: 7, Head: 7, Streams: 4, Keys: 5}); err != nil || got != want {
		t.Fatalf("an honest ledger: %+v, %v, want %+v", got, err, want)
	}
	for name, c := range map[string]struct {
		change func([]ledger.Record) []ledger.Record
		found  func(ledger.Found) ledger.Found
		kind   ledger.FaultKind
		at     ledger.Position
	}{
		"a payload": {func(r []ledger.Record) []ledger.Record { r[2].Body.Payload = []byte(`{"a":2}`); return r }, nil, ledger.Edited, 3},
		"a header":  {func(r []ledger.Record) []ledger.Record { r[3].Header.Source = "me"; return r }, nil, ledger.Edited, 4},
		"a reason":  {func(r []ledger.Record) []ledger.Record { r[6].Body.Reason = ""; return r }, nil, ledger.Edited, 7},
		"a header, healed": {func(r []ledger.Record) []ledger.Record {
			r[1].Header.Timestamp++
			r[1].Leaf = r[1].Header.LeafHash()
			return r
		}, nil, ledger.Edited, 2},
		"one gone":         {func(r []ledger.Record) []ledger.Record { return append(r[:2], r[3:]...) }, nil, ledger.Removed, 5},
		"one twice":        {func(r []ledger.Record) []ledger.Record { return append(r[:3], r[2:]...) }, nil, ledger.Reordered, 3},
		"two swapped":      {func(r []ledger.Record) []ledger.Record { r[1], r[2] = r[2], r[1]; return r }, nil, ledger.Removed, 3},
		"index, unknown":   {nil, func(ledger.Found) ledger.Found { return ledger.Found{} }, ledger.Misled, 2},
		"index, elsewhere": {nil, func(f ledger.Found) ledger.Found { f.Position++; return f }, ledger.Misled, 2},
	} {
		s := &spoiled{Store: b.store, records: records(), found: c.found}
		if c.change != nil {
			s.records = c.change(s.records)
		}
		_, err := ledger.Verify(t.Context(), s, 0, nil)
		var fault *ledger.Fault
		if !errors.As(err, &fault) || fault.Kind != c.kind || fault.Position != c.at {
			t.Errorf("%s: %v, want %s at %d", name, err, c.kind, c.at)
		}
	}
	if _, err := ledger.Verify(t.Context(), b.store, 8, nil); err == nil {
		t.Error("a position that was there once is not missed")
	}
}

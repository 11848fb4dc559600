package eventstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/eventstore"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
	"github.com/talenttrust/auditledger/ledger/ledgertest/esnode/node"
)

func TestImporter(t *testing.T) {
	ledgertest.TestImporter(t, func(t *testing.T) ledgertest.Reopener { return reopener(t, config(t, startNode(t))) })
}

// reopener opens an instance again and again, in the same folder.
func reopener(t *testing.T, c eventstore.Config) ledgertest.Reopener {
	last := ledgertest.NewLast(t)
	return func(t *testing.T, toImport bool) (ledger.Importer, error) {
		t.Helper()
		last.Close()
		c.Import = toImport
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		s, err := eventstore.Open(ctx, c)
		if err != nil {
			return nil, err
		}
		last.Keep(s)
		return s, nil
	}
}

// Whatever is lost on the way, each record is stored once, and the log has the order of the ledger.
func TestImportWithLosses(t *testing.T) {
	past, n := ledgertest.Past(t), startNode(t)
	s, err := reopener(t, config(t, n))(t, true)
	if err != nil {
		t.Fatal(err)
	}
	// The first appends are the mark and the first record.
	n.Faults.Appends(node.AnswerLost(), node.RequestLost(), node.AnswerLost(), node.RequestLost(), node.AppendFault{Commit: true, Err: node.TimedOut()}, node.AppendFault{Err: node.Unavailable()}, node.AnswerLost())
	if stored, err := s.Import(t.Context(), past); stored != len(past) || err != nil {
		t.Fatalf("%d are stored, %v; want %d", stored, err, len(past))
	}
	if left := n.Faults.Pending(); left != 0 {
		t.Errorf("%d losses did not happen", left)
	}
	got := ledgertest.ReadAll(t, s)
	for i := range past {
		if i >= len(got) || !got[i].Leaf.Equal(past[i].Leaf) {
			t.Fatalf("record %d of %d is not the one imported", i, len(got))
		}
	}
	if len(got) != len(past) {
		t.Errorf("%d records, want %d", len(got), len(past))
	}
	n.Faults.Appends(node.AnswerLost())
	if err := s.Finish(t.Context()); err != nil {
		t.Errorf("finish: %v", err)
	}
	mustOpen(t, config(t, n)).Close()
}

// While an import goes on, no instance opens the ledger, and none is created beside it; where an
// instance was faster, the ledger is its own, and stays so.
func TestImportBesideInstances(t *testing.T) {
	past, n := ledgertest.Past(t), startNode(t)
	importer, err := reopener(t, config(t, n))(t, true)
	if err != nil {
		t.Fatal(err)
	}
	instance, err := reopener(t, config(t, n))(t, false)
	if err != nil {
		t.Fatal(err)
	}
	if stored, err := importer.Import(t.Context(), past); stored != 0 || err == nil {
		t.Errorf("into an instance's ledger: %d are stored, %v", stored, err)
	}
	id, err := ledger.ID(t.Context(), instance)
	if err != nil {
		t.Fatal(err)
	}
	second, err := reopener(t, config(t, n))(t, false)
	if err != nil {
		t.Fatalf("another instance: %v", err)
	}
	if again, err := ledger.ID(t.Context(), second); again != id || err != nil {
		t.Errorf("the ledger is %s, %v; want %s", again, err, id)
	}
}

// An import that has begun keeps instances from creating a ledger of their own on an empty server.
func TestImportKeepsTheServer(t *testing.T) {
	past, n := ledgertest.Past(t), startNode(t)
	importer, err := reopener(t, config(t, n))(t, true)
	if err != nil {
		t.Fatal(err)
	}
	if stored, err := importer.Import(t.Context(), past[:1]); stored != 1 || err != nil {
		t.Fatalf("%d are stored, %v", stored, err)
	}
	if _, err := reopener(t, config(t, n))(t, false); !errors.Is(err, ledger.ErrUnfinished) {
		t.Errorf("an instance: got %v, want %v", err, ledger.ErrUnfinished)
	}
}

func TestExisting(t *testing.T) {
	n := startNode(t)
	c := config(t, n)
	c.Existing = true
	if _, err := eventstore.Open(t.Context(), c); err == nil {
		t.Error("an empty server is opened as a ledger that is there")
	}
	if n.Len() != 0 {
		t.Errorf("%d events were written", n.Len())
	}
}

package eventstore_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/eventstore"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
	"github.com/talenttrust/auditledger/ledger/ledgertest/esnode/node"
)

func TestStore(t *testing.T) {
	ledgertest.TestStore(t, func(t *testing.T) ledgertest.Opener { return opener(t, startNode(t)) })
}

// startNode starts a server that ends with the test.
func startNode(t *testing.T) *node.Node {
	t.Helper()
	n, err := node.Open(node.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close the node: %v", err)
		}
	})
	return n
}

// config is that of an instance with a folder of its own.
func config(t *testing.T, n *node.Node) eventstore.Config {
	return eventstore.Config{URL: n.URL(), Dir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
}

// opener opens an instance again and again, in the same folder.
func opener(t *testing.T, n *node.Node) ledgertest.Opener {
	c := config(t, n)
	last := ledgertest.NewLast(t)
	return func(t *testing.T) ledger.Store {
		t.Helper()
		last.Close()
		s := mustOpen(t, c)
		last.Keep(s)
		return s
	}
}

func mustOpen(t *testing.T, c eventstore.Config) *eventstore.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := eventstore.Open(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRows(t *testing.T) {
	ledgertest.TestRows(t, func(t *testing.T) ledgertest.Opener { return opener(t, startNode(t)) })
}

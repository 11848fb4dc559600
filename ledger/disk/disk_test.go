package disk_test

import (
	"testing"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/disk"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

func TestStore(t *testing.T) {
	for name, c := range map[string]disk.Config{"as shipped": {}, "tiny segments": {Segment: 2000, Group: 500}} {
		t.Run(name, func(t *testing.T) {
			ledgertest.TestStore(t, func(t *testing.T) ledgertest.Opener { return opener(t, c) })
		})
	}
}

func opener(t *testing.T, c disk.Config) ledgertest.Opener {
	c.Dir = t.TempDir()
	last := ledgertest.NewLast(t)
	return func(t *testing.T) ledger.Store {
		t.Helper()
		last.Close()
		s, err := disk.Open(c)
		if err != nil {
			t.Fatal(err)
		}
		last.Keep(s)
		return s
	}
}

func TestRows(t *testing.T) {
	ledgertest.TestRows(t, func(t *testing.T) ledgertest.Opener { return opener(t, disk.Config{}) })
}

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
	var open *disk.Store
	closeIt := func() {
		if open != nil {
			if err := open.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
	}
	t.Cleanup(closeIt)
	return func(t *testing.T) ledger.Store {
		t.Helper()
		closeIt()
		var err error
		open = nil
		if open, err = disk.Open(c); err != nil {
			t.Fatal(err)
		}
		return open
	}
}

func TestRows(t *testing.T) {
	ledgertest.TestRows(t, func(t *testing.T) ledgertest.Opener { return opener(t, disk.Config{}) })
}

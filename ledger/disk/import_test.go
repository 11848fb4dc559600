package disk_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/disk"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

func TestImporter(t *testing.T) {
	for name, c := range map[string]disk.Config{"as shipped": {}, "tiny segments": {Segment: 2000, Group: 500}} {
		t.Run(name, func(t *testing.T) {
			ledgertest.TestImporter(t, func(t *testing.T) ledgertest.Reopener { return reopener(t, c) })
		})
	}
}

func reopener(t *testing.T, c disk.Config) ledgertest.Reopener {
	c.Dir = t.TempDir()
	last := ledgertest.NewLast(t)
	return func(t *testing.T, toImport bool) (ledger.Importer, error) {
		t.Helper()
		last.Close()
		s, err := disk.Open(disk.Config{Dir: c.Dir, Segment: c.Segment, Group: c.Group, Import: toImport})
		if err != nil {
			return nil, err
		}
		last.Keep(s)
		return s, nil
	}
}

// A folder that holds no ledger is left as it is by those who only want to read one.
func TestExisting(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "typo")
	if _, err := disk.Open(disk.Config{Dir: dir, Existing: true}); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("no folder: got %v, want %v", err, ledger.ErrNotFound)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder was made: %v", err)
	}
	s, err := disk.Open(disk.Config{Dir: dir, Import: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := disk.Open(disk.Config{Dir: dir, Existing: true}); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("no record: got %v, want %v", err, ledger.ErrNotFound)
	}
}

// A lot that fails to be written is not stored, not even in part, and can be sent again.
func TestImportFailedWrite(t *testing.T) {
	past, fail := ledgertest.Past(t), true
	s, err := disk.Open(disk.Config{Dir: t.TempDir(), Import: true, Logger: slog.New(slog.DiscardHandler), Write: func(f *os.File, b []byte, at int64) (int, error) {
		if fail && at > 100 {
			n, _ := f.WriteAt(b[:len(b)/2], at)
			return n, errors.New("no space left")
		}
		return f.WriteAt(b, at)
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if n, err := s.Import(t.Context(), past[:1]); n != 1 || err != nil {
		t.Fatalf("the first record: %d stored, %v", n, err)
	}
	if n, err := s.Import(t.Context(), past[1:]); n != 0 || !errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("a failing write: %d stored, %v; want none, and %v", n, err, ledger.ErrUnavailable)
	}
	fail = false
	if n, err := s.Import(t.Context(), past[1:]); n != len(past)-1 || err != nil {
		t.Errorf("again: %d stored, %v; want %d", n, err, len(past)-1)
	}
	if got := ledgertest.ReadAll(t, s); len(got) != len(past) {
		t.Errorf("%d records, want %d", len(got), len(past))
	}
}

package disk

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func startSyncer(t *testing.T) (*syncer, *os.File) {
	t.Helper()
	s, err := newSyncer()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return s, f
}

// TestSyncer: files are synced, what cannot be is told as fdatasync tells it, and a syncer without a kernel
// behind it does as much.
func TestSyncer(t *testing.T) {
	s, f := startSyncer(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	check := func(when string) {
		t.Helper()
		for range 100 {
			if _, err := f.WriteString("some bytes"); err != nil {
				t.Fatal(err)
			}
			if err := s.sync(f); err != nil {
				t.Error(when, err)
			}
		}
		if err := s.sync(w); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s: a pipe was synced: %v", when, err)
		}
	}
	check("with the kernel")
	if err := s.destroy(); err != nil {
		t.Fatal(err)
	}
	check("without")
}

// TestSyncerLost: an order whose end was not heard of fails the sync, and no other store gets a syncer in which it
// may still end.
func TestSyncerLost(t *testing.T) {
	for len(spare) > 0 {
		if err := (<-spare).destroy(); err != nil {
			t.Fatal(err)
		}
	}
	s, f := startSyncer(t)
	if err := s.ended.SetDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := s.sync(f); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a sync whose end was not heard of: %v", err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
	if len(spare) > 0 {
		t.Error("another store would get it")
	}
}

package keyindex_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/talenttrust/auditledger/ledger/keyindex"
)

// TestTableFiles: what is written to a table in pieces of any size is in the file, whole and in order, after
// each way to wait for it.
func TestTableFiles(t *testing.T) {
	for name, wait := range map[string]func(vfs.File) error{
		"sync": vfs.File.Sync, "sync data": vfs.File.SyncData, "close": vfs.File.Close,
		"size":    func(f vfs.File) error { _, err := f.Stat(); return err },
		"sync to": func(f vfs.File) error { _, err := f.SyncTo(1); return err },
	} {
		path := filepath.Join(t.TempDir(), "1.sst")
		f, err := keyindex.Files.Create(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		var want []byte
		for i, n := range []int{1, 0, 4096, 256 << 10, 100, 256<<10 - 1, 256<<10 + 1, 3} {
			piece := bytes.Repeat([]byte{byte('a' + i)}, n)
			if got, err := f.Write(bytes.Clone(piece)); got != n || err != nil {
				t.Fatal(got, err)
			}
			want = append(want, piece...)
		}
		if err := wait(f); err != nil {
			t.Fatal(name, err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the file has %d bytes, %d were written; %v", name, len(got), len(want), err)
		}
		if name != "close" {
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestTableIsIngested: a table that was written apart is part of the database, also after it was opened again.
func TestTableIsIngested(t *testing.T) {
	dir := t.TempDir()
	for _, lasting := range []bool{false, true} {
		db, err := keyindex.OpenDB(keyindex.DBConfig{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "apart.sst")
		err = keyindex.WriteTable(keyindex.Files, path, lasting, func(w *sstable.Writer) error {
			for i := range 10_000 {
				if err := w.Set(fmt.Appendf(nil, "%v %05d", lasting, i), fmt.Append(nil, i)); err != nil {
					return err
				}
			}
			return nil
		})
		if err := errors.Join(err, db.Ingest(t.Context(), []string{path}), db.Close()); err != nil {
			t.Fatal(err)
		}
	}
	db, err := keyindex.OpenDB(keyindex.DBConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, key := range []string{"false 00000", "false 09999", "true 04321"} {
		_, closer, err := db.Get([]byte(key))
		if err != nil {
			t.Fatal(key, err)
		}
		closer.Close()
	}
	if _, _, err := db.Get([]byte("true 10000")); !errors.Is(err, pebble.ErrNotFound) {
		t.Error("a key that was never written:", err)
	}
}

// fullDisk fails to write.
type fullDisk struct{ vfs.FS }

func (fs fullDisk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	return fullFile{f}, err
}

type fullFile struct{ vfs.File }

var errFull = errors.New("no space left")

func (fullFile) Write([]byte) (int, error) { return 0, errFull }

// TestTableOnFullDisk: a table that could not be written is an error.
func TestTableOnFullDisk(t *testing.T) {
	err := keyindex.WriteTable(fullDisk{vfs.Default}, filepath.Join(t.TempDir(), "1.sst"), false, func(w *sstable.Writer) error {
		return w.Set([]byte("k"), []byte("v"))
	})
	if !errors.Is(err, errFull) {
		t.Error(err)
	}
}

package keyindex

import (
	"errors"
	"strings"

	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// WriteTable writes a table apart, for a database of OpenDB to ingest. write puts rows into it, with Set
// and Delete, in the order of their keys. lasting says that the table need not be written again: no
// others will have keys between its first and its last. The table is on disk when WriteTable returns.
func WriteTable(fs vfs.FS, path string, lasting bool, write func(*sstable.Writer) error) error {
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	opts := options()
	opts.EnsureDefaults()
	level := 0
	if lasting {
		level = len(opts.Levels) - 1
	}
	w := sstable.NewWriter(objstorageprovider.NewFileWritable(f), opts.MakeWriterOptions(level, opts.FormatMajorVersion.MaxTableFormat()))
	return errors.Join(write(w), w.Close())
}

// Files are those of the operating system, but tables, which the database writes in pieces of 4 KiB, are
// written in larger ones: that takes a third of the time.
var Files vfs.FS = tableFiles{vfs.Default}

type tableFiles struct{ vfs.FS }

func (fs tableFiles) Unwrap() vfs.FS { return fs.FS }

func (fs tableFiles) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, category)
	if err != nil || !strings.HasSuffix(name, ".sst") {
		return f, err
	}
	return &tableFile{File: f}, nil
}

// tableFile is a file that is only appended to. What is written is in the file after Sync and Close.
type tableFile struct {
	vfs.File
	pending []byte
}

const pieceBytes = 256 << 10

func (f *tableFile) Write(b []byte) (int, error) {
	if f.pending == nil {
		f.pending = make([]byte, 0, pieceBytes)
	}
	if len(f.pending)+len(b) > cap(f.pending) {
		if err := f.flush(); err != nil {
			return 0, err
		}
	}
	if len(b) > cap(f.pending) {
		return f.File.Write(b)
	}
	f.pending = append(f.pending, b...)
	return len(b), nil
}

func (f *tableFile) flush() error {
	if len(f.pending) == 0 {
		return nil
	}
	_, err := f.File.Write(f.pending)
	f.pending = f.pending[:0]
	return err
}

func (f *tableFile) Sync() error     { return errors.Join(f.flush(), f.File.Sync()) }
func (f *tableFile) SyncData() error { return errors.Join(f.flush(), f.File.SyncData()) }
func (f *tableFile) Close() error    { return errors.Join(f.flush(), f.File.Close()) }

func (f *tableFile) SyncTo(length int64) (bool, error) {
	if err := f.flush(); err != nil {
		return false, err
	}
	return f.File.SyncTo(length)
}

func (f *tableFile) Stat() (vfs.FileInfo, error) {
	if err := f.flush(); err != nil {
		return nil, err
	}
	return f.File.Stat()
}

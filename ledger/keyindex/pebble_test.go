package keyindex

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// TestFullDisk: a database that cannot write says so once, gives up when it is closed, and is whole the next time, as it
// was before.
func TestFullDisk(t *testing.T) {
	defer func(limit time.Duration) { flushLimit = limit }(flushLimit)
	var full atomic.Bool
	var tries atomic.Int64
	var log bytes.Buffer
	c := DBConfig{Dir: "db", Logger: slog.New(slog.NewTextHandler(&log, nil)), FS: errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") {
			tries.Add(1)
			return syscall.ENOSPC
		}
		return nil
	}))}
	open := func() *pebble.DB {
		db, err := OpenDB(c)
		if err != nil {
			t.Fatal(err)
		}
		return db
	}
	set := func(db *pebble.DB, key string) {
		if err := db.Set([]byte(key), []byte("value"), pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	db := open()
	set(db, "a")
	if err := Flush(db); err != nil {
		t.Fatal(err)
	}
	set(db, "b")
	full.Store(true)
	flushLimit = time.Second
	if err := Flush(db); err == nil || !strings.Contains(err.Error(), "derived again") {
		t.Errorf("flush: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	if n := tries.Load(); n < 1 || n > 10 {
		t.Errorf("it tried %d times in a second", n)
	}
	if n := strings.Count(log.String(), "cannot write"); n != 1 {
		t.Errorf("it was said %d times:\n%s", n, &log)
	}
	full.Store(false)
	db = open()
	defer db.Close()
	for key, want := range map[string]error{"a": nil, "b": pebble.ErrNotFound} {
		_, closer, err := db.Get([]byte(key))
		if err != want {
			t.Errorf("%s: %v, want %v", key, err, want)
		} else if err == nil {
			closer.Close()
		}
	}
}

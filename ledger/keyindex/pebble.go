package keyindex

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/time/rate"
)

// DBConfig is how a derived database is opened.
type DBConfig struct {
	Dir      string
	MemTable int    // bytes held before they go to disk; 32 MiB when 0
	Cache    int64  // bytes, memtables included: the database takes them out of it; 192 MiB when 0
	FS       vfs.FS // Files when nil
	Logger   *slog.Logger
	Fatal    func(error) // called once when the database cannot go on; the caller shuts down. It must not return to the database.
}

// OpenDB opens a Pebble database for derived data: without a log of its own, because everything in
// it can be derived again. What it holds after a crash is a prefix of what was written, batch by
// batch, so a cursor written in the same batch as its rows is always right.
func OpenDB(c DBConfig) (*pebble.DB, error) {
	if c.MemTable == 0 {
		c.MemTable = 32 << 20
	}
	if c.Cache == 0 {
		c.Cache = 192 << 20
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	cache := pebble.NewCache(c.Cache)
	defer cache.Unref()
	opts := options()
	opts.Cache = cache
	opts.MemTableSize = uint64(c.MemTable)
	opts.Logger = dbLogger{c.Logger, c.Fatal}
	if c.FS != nil {
		opts.FS = c.FS
	}
	files, say := newPatientFiles(opts.FS), rate.Sometimes{Interval: sayAgain}
	opts.FS = files
	opts.EventListener = &pebble.EventListener{
		// Damage found by a read is that read's error; the default would end the process in its middle.
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			c.Logger.Error("database damaged", "folder", c.Dir, "error", info.String())
			if c.Fatal != nil {
				c.Fatal(derived(c.Dir, errors.New("a file of it is damaged")))
			}
		},
		BackgroundError: func(err error) {
			files.failed.Store(true)
			say.Do(func() {
				c.Logger.Error("a database cannot write and tries again", "folder", c.Dir, "error", err.Error()) // not its stack
			})
		},
	}
	db, err := pebble.Open(c.Dir, opts)
	if err != nil {
		return nil, derived(c.Dir, err)
	}
	return db, nil
}

// What the database cannot write, to a full disk for example, it tries again at once and for ever: that would take a
// processor and fill the log.
const (
	retryPause = 200 * time.Millisecond
	sayAgain   = time.Minute
)

// patientFiles has a database that failed to write something wait a little before it begins its next table. It does that
// without its lock, so that reads go on.
type patientFiles struct {
	vfs.FS
	failed atomic.Bool
	retry  *rate.Limiter
}

func newPatientFiles(fs vfs.FS) *patientFiles {
	return &patientFiles{FS: fs, retry: rate.NewLimiter(rate.Every(retryPause), 1)}
}

func (p *patientFiles) Unwrap() vfs.FS { return p.FS }

func (p *patientFiles) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasSuffix(name, ".sst") && p.failed.Swap(false) {
		if err := p.retry.Wait(context.Background()); err != nil {
			return nil, err
		}
	}
	return p.FS.Create(name, category)
}

// flushLimit is how long Flush tries.
var flushLimit = 5 * time.Second

// Flush brings what a database of OpenDB has in memory to disk. Where that does not succeed in some seconds, it is an
// error, and nothing is lost but time: it is derived again.
func Flush(db *pebble.DB) error {
	done, err := db.AsyncFlush()
	if err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-time.After(flushLimit):
		return fmt.Errorf("what is in memory cannot be written to disk, and is derived again at the next start: not done within %s", flushLimit)
	}
}

func options() *pebble.Options {
	opts := &pebble.Options{
		FS:                    Files,
		DisableWAL:            true,
		FormatMajorVersion:    pebble.FormatNewest,
		L0CompactionThreshold: 20, // rows are written once and seldom read: few, large compactions
		L0StopWritesThreshold: 60,
		LBaseMaxBytes:         512 << 20,
	}
	opts.ApplyCompressionSettings(func() pebble.DBCompressionSettings {
		settings := pebble.DBCompressionFastest
		settings.Levels[0] = block.NoCompression // what is there is soon written again
		return settings
	})
	for i := range opts.Levels {
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	return opts
}

// derived says of an error what can be done about it.
func derived(dir string, err error) error {
	return fmt.Errorf("%s: %w; all in this folder is derived: delete it while the service is stopped, and it is built again", dir, err)
}

// dbLogger passes what a database says on, and ends the service in an orderly way where the
// database would end the process.
type dbLogger struct {
	log   *slog.Logger
	fatal func(error)
}

func (l dbLogger) Infof(format string, args ...any) {
	l.log.Debug("database", "message", fmt.Sprintf(format, args...))
}

func (l dbLogger) Errorf(format string, args ...any) {
	l.log.Error("database", "message", fmt.Sprintf(format, args...))
}

func (l dbLogger) Fatalf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	l.log.Error("database stopped", "error", err)
	if l.fatal == nil {
		panic(err)
	}
	l.fatal(err)
	select {} // the database counts on not coming back
}

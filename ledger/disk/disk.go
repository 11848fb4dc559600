// Package disk keeps a ledger in one folder of one machine: an append-only log of segment files,
// which is the truth, and a key index (package keyindex) that is derived from it.
//
// # Format, version 1
//
// The folder holds
//
//	LOCK                        locked by the process that has the folder open; says which
//	log/00000000000000000001.seg the records from position 1 on; the name is the first position
//	IMPORT                      there while records of another ledger are taken over: the ledger is not whole
//	log/*.torn                  what a crash left behind the last commit, kept for a person to look at
//	index/                      the key index; may be deleted while the program is stopped
//
// A segment is a 24-byte head and then frames, all integers little-endian:
//
//	head    "ALEDGER1" · version u16 · zero u16 · first position u64 · CRC32C of the 20 bytes before
//	record  0x01 · zero[3] · header length u32 · body length u32 · CRC32C of header u32 · of body u32 · of the 20 bytes before u32 · header · body
//	commit  0x02 · zero[3] · records u32 · last position u64 · start of the group u32 · CRC32C of the 20 bytes before u32
//	seal    where each record starts u32 · … · 0x03 · zero[3] · records u32 · last position u64 · end of the frames u32 · CRC32C of the starts u32 · of the 24 bytes before u32
//
// Header and body are protobuf messages in wire format (codec.go). The body is preceded by an
// encoding byte; 0 is plain.
//
// # Guarantees
//
// Records are appended in groups: the frames of all waiting entries, then a commit frame, one write,
// one fdatasync, and only then the answers. Meanwhile the next group is made up; it is written when
// the one before is on disk. A group is in the ledger when its commit frame is. A sealed
// segment is never written again; the next one is created and its name synced before it is used.
//
// # Failure
//
// At start only the last segment is read whole. What stands behind its last commit is cut off and
// kept as *.torn: nobody was told of it. Its last group, or seal, is written again and synced, because the process
// before may have ended where that was not on disk yet. Damage anywhere else, and a cut that takes away what the key
// index had already seen, stops the start and names file and offset. A write that fails goes back to
// the last commit; a failed sync leaves unknown what is on disk and ends all writing until a restart.
package disk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/keyindex"
)

// Config says where a Store is and what it may use.
type Config struct {
	Dir     string
	Reserve uint64 // bytes of the file system to leave free; 512 MiB when 0
	Segment int64  // bytes after which a segment is sealed; 64 MiB when 0, at most 1 GiB
	Queue   int    // calls of Append that may wait; 256 when 0
	Group   int    // bytes of frames after which a group is committed; 8 MiB when 0

	Existing bool // for one who only reads: refuse a folder without a ledger instead of creating one, take no entries, and leave the log as it is
	Import   bool // take records of another ledger and no entries: see ledger.Importer; none is created

	Now    func() time.Time // of the first record; time.Now when nil
	Logger *slog.Logger     // slog.Default() when nil
	Fatal  func(error)      // called when the store or its index cannot go on; the caller shuts down

	// How the store touches the disk; the system's when nil. Tests make them fail.
	Sync  func(*os.File) error
	Write func(f *os.File, b []byte, at int64) (int, error)
	Free  func(dir string) (uint64, error) // bytes that may still be written
}

func (c *Config) defaults() error {
	if c.Dir == "" {
		return errors.New("disk: no folder given")
	}
	if c.Reserve == 0 {
		c.Reserve = 512 << 20
	}
	if c.Segment == 0 {
		c.Segment = 64 << 20
	}
	if c.Segment > 1<<30 {
		return fmt.Errorf("disk: segments of %d bytes, at most %d", c.Segment, 1<<30)
	}
	if c.Queue == 0 {
		c.Queue = 256
	}
	if c.Group == 0 {
		c.Group = 8 << 20
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Fatal == nil {
		c.Fatal = func(error) {}
	}
	if c.Write == nil {
		c.Write = func(f *os.File, b []byte, at int64) (int, error) { return f.WriteAt(b, at) }
	}
	if c.Free == nil {
		c.Free = freeBytes
	}
	return nil
}

func freeBytes(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return uint64(st.Bavail) * uint64(st.Bsize), nil
}

// Store is a ledger.Store in a folder. One goroutine, the writer, owns the end of the log.
type Store struct {
	c     Config
	sync  *syncer // where c.Sync is its; nil: not
	lock  *os.File
	log   *segments
	index *keyindex.Index

	queue   chan *call
	waiting atomic.Int64 // calls that are not yet written
	closing sync.RWMutex // held for reading while a call is put into queue; guards closed
	closed  bool
	written chan struct{} // closed when the writer has ended
	marked  bool          // the folder, as unfinished; of the one who imports

	mu     sync.RWMutex // guards all below
	head   ledger.Position
	recent recent        // records up to head
	moved  chan struct{} // closed when head moves
	failed error         // why nothing is written any more
	full   error         // why nothing is written for now
}

var _ ledger.Importer = (*Store)(nil)

// Open opens the ledger in c.Dir, or creates it with its first record. Errors name the file and
// the rule: a folder in use, of another version, damaged, or without the rights needed.
func Open(c Config) (*Store, error) {
	if err := c.defaults(); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(c.Dir, "ledger-id")); err == nil {
		return nil, fmt.Errorf("data folder %s holds what is derived from a ledger on a server; name another one", c.Dir)
	}
	if c.Existing && !holdsLedger(c.Dir) {
		return nil, fmt.Errorf("data folder %s holds no ledger: %w", c.Dir, ledger.ErrNotFound)
	}
	for _, dir := range []string{c.Dir, filepath.Join(c.Dir, logDir)} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return nil, fmt.Errorf("data folder: %w", err)
		}
	}
	if err := syncDir(c.Dir); err != nil { // the name of the log's folder
		return nil, fmt.Errorf("data folder: %w", err)
	}
	s := &Store{queue: make(chan *call, c.Queue), written: make(chan struct{}), moved: make(chan struct{})}
	if c.Sync == nil {
		c.Sync = fdatasync
		if with, err := newSyncer(); err == nil {
			s.sync, c.Sync = with, with.sync
		}
	}
	s.c = c
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.release())
	}
	go s.write()
	if s.head == 0 && c.Existing {
		return nil, errors.Join(fmt.Errorf("data folder %s holds no record: %w", c.Dir, ledger.ErrNotFound), s.Close())
	}
	if s.head == 0 && !c.Import {
		if _, err := s.Append(context.Background(), []*ledger.Entry{ledger.Creation(c.Now())}); err != nil {
			return nil, errors.Join(fmt.Errorf("create the ledger: %w", err), s.Close())
		}
	}
	return s, nil
}

func (s *Store) open() (err error) {
	if s.lock, err = keyindex.LockFolder(s.c.Dir, s.c.Now()); err != nil {
		return err
	}
	if err := s.refuseUnfinished(); err != nil {
		return err
	}
	s.index, err = keyindex.Open(keyindex.Config{Dir: filepath.Join(s.c.Dir, indexDir), Logger: s.c.Logger, Fatal: s.c.Fatal})
	if err != nil {
		return err
	}
	if s.log, err = openSegments(s.c, s.index.Cursor()); err != nil {
		return err
	}
	s.head = s.log.last()
	return s.catchUp()
}

// catchUp brings the index to the end of the log.
func (s *Store) catchUp() error {
	cursor := s.index.Cursor()
	if behind := s.head - cursor; behind > 100_000 {
		s.c.Logger.Info("reading the log into the key index", "records", behind)
	}
	for cursor < s.head {
		recs, err := s.log.read(cursor+1, s.head, maxBatchRecords, maxBatchBytes)
		if err != nil {
			return err
		}
		applied := make([]keyindex.Applied, len(recs))
		heads := map[string]ledger.StreamHead{}
		for i := range recs {
			stream := recs[i].Header.Stream
			before, ok := heads[stream]
			if !ok {
				if before, _, err = s.index.Head(stream); err != nil {
					return err
				}
			}
			applied[i] = keyindex.Of(&recs[i], before)
			heads[stream] = applied[i].Head
		}
		if err := s.index.Apply(applied); err != nil {
			return err
		}
		cursor = recs[len(recs)-1].Position
	}
	return nil
}

// Close takes no more entries, commits the ones that wait, and releases the folder. Whoever asks for something from
// then on gets an error; once more, Close does nothing.
func (s *Store) Close() error {
	s.closing.Lock()
	again := s.closed
	if s.closed = true; !again {
		close(s.queue)
	}
	s.closing.Unlock()
	if <-s.written; again {
		return nil
	}
	return s.release()
}

func (s *Store) release() error {
	var errs []error
	if s.index != nil {
		errs = append(errs, s.index.Close())
	}
	if s.log != nil {
		errs = append(errs, s.log.close())
	}
	if s.sync != nil {
		errs = append(errs, s.sync.close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// Healthy says why nothing can be stored now; nil when all is well. Whether there is room again it finds out
// itself: nothing may be sent to a store that is not healthy, so that no append would.
func (s *Store) Healthy(context.Context) error {
	s.mu.RLock()
	failed, full := s.failed, s.full
	s.mu.RUnlock()
	switch {
	case failed != nil:
		return failed
	case errors.Is(full, errNoRoom):
		return s.room(0)
	}
	return full
}

// Package eventstore keeps a ledger on an EventStoreDB or KurrentDB server, from version 23.10, which
// any number of instances share.
//
// # Format
//
// Each stream of the ledger is a stream of the server, of the same name. A record is an event whose
// type is the record's, whose data is the record's JSON form (ledger.Record.AppendJSON), and whose
// metadata is {"appendToken":"…"}. An accepted event's ID is the UUIDv5 of its key and generation, any
// other's is random. A record's position is that of its event in the server's log.
//
// # Guarantees
//
// The server answers when an append is committed by a quorum. An expected revision alone does not
// say who was first: where the same IDs stand at the same place, the server calls a repeat a success
// whatever is in it. So each append is decided on an index that is complete up to a revision of its
// stream, sent with exactly that revision, and read back: what carries the append's own token is
// stored, anything else was there first and is decided on. Where the revision is not the expected
// one, the index takes in what is new and all is decided again. "Duplicate" is said from the index,
// for that never changes; anything else that is not stored is said only after the stream's end was read.
//
// # Failure
//
// An outcome that is not known is asked for again with the same bytes, the same revision and the same
// token, as long as the time of an append lasts, and is ledger.ErrUnknown after that. Everything in the
// folder is derived and may be deleted while the program is stopped; the folder remembers which ledger it
// belongs to and what stood where it had read to, and is refused before a server that says otherwise.
// Events in the ledger's streams that are no records of it are passed over, logged and counted.
package eventstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/renameio/v2"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/keyindex"
)

// Config says where a Store is and what it may use.
type Config struct {
	URL string // connection string: esdb://, esdb+discover://, kurrentdb:// or kurrentdb+discover://
	Dir string // folder of what is derived; one process at a time

	Start    time.Duration // to wait for the server when it is away at the start; 2 min when 0
	Budget   time.Duration // of an append with all its tries; 10 s when 0
	Try      time.Duration // of one try; 3 s when 0: a server needs two to say that it gave up
	Watchdog time.Duration // without a sign of life, after which a subscription is looked after; 2 min when 0
	Lag      time.Duration // for which a node may lack what was read before, after a fail-over; then it is gone. 30 s when 0
	Queue    int           // entries that may wait; 20,000 when 0
	Streams  int           // appended to at once; 32 when 0

	Now     func() time.Time // of the first record; time.Now when nil
	Logger  *slog.Logger     // slog.Default() when nil
	Fatal   func(error)      // called when the store cannot go on; the caller shuts down
	Foreign func()           // called for each event in the ledger's streams that is no record of it
}

func (c *Config) defaults() error {
	if c.Dir == "" {
		return errors.New("eventstore: no folder given")
	}
	for d, v := range map[*time.Duration]time.Duration{&c.Start: 2 * time.Minute, &c.Budget: 10 * time.Second, &c.Try: 3 * time.Second, &c.Watchdog: 2 * time.Minute, &c.Lag: 30 * time.Second} {
		if *d == 0 {
			*d = v
		}
	}
	if c.Queue == 0 {
		c.Queue = 20_000
	}
	if c.Streams == 0 {
		c.Streams = 32
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
	if c.Foreign == nil {
		c.Foreign = func() {}
	}
	return nil
}

// Store is a ledger.Store on a server.
type Store struct {
	c      Config
	t      *target
	client client
	lock   *os.File
	index  *keyindex.Index

	life     context.Context // of all that runs in the background
	end      context.CancelFunc
	running  sync.WaitGroup // appends that were taken
	follower sync.WaitGroup
	slots    chan struct{}   // one for each stream that is appended to
	start    ledger.Position // head when the store was opened
	seen     atomic.Uint64   // highest position of a record that was read

	mu       sync.Mutex // guards all below
	queues   map[string]*queue
	waiting  int // entries in queues
	closed   bool
	ahead    map[string]int64 // by how much events' numbers are higher than revisions, where they are known to be
	reported map[uint64]bool  // positions of foreign events that were logged
}

var _ ledger.Store = (*Store)(nil)

// Open connects to the server and opens the ledger on it, or creates it with its first record. It waits
// for a server that is away, for c.Start. An error says what to look at: the address, the certificates,
// the password, the server's version, or a folder that belongs to another ledger.
func Open(ctx context.Context, c Config) (*Store, error) {
	if err := c.defaults(); err != nil {
		return nil, err
	}
	t, err := parseTarget(c.URL)
	if err != nil {
		return nil, err
	}
	if !t.verify {
		c.Logger.Warn("the server's certificate is not verified: anybody in between can read and answer")
	}
	s := &Store{
		c: c, t: t, slots: make(chan struct{}, c.Streams), queues: map[string]*queue{}, ahead: map[string]int64{}, reported: map[uint64]bool{},
	}
	s.life, s.end = context.WithCancel(context.Background())
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.release())
	}
	s.follower.Go(s.warm)
	return s, nil
}

func (s *Store) open(ctx context.Context) (err error) {
	if err := os.MkdirAll(s.c.Dir, 0o750); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	if s.lock, err = keyindex.LockFolder(s.c.Dir, s.c.Now()); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(s.c.Dir, "log")); err == nil {
		return fmt.Errorf("data folder %s holds a ledger of its own; name another one for what is derived from the server's", s.c.Dir)
	}
	es, err := newClient(s.t, s.c.Try, s.c.Logger)
	if err != nil {
		return err
	}
	s.client = es
	if err := s.waitForServer(ctx); err != nil {
		return err
	}
	s.index, err = keyindex.Open(keyindex.Config{Dir: filepath.Join(s.c.Dir, "index"), Logger: s.c.Logger, Fatal: s.c.Fatal})
	if err != nil {
		return err
	}
	if err := s.identify(ctx); err != nil {
		return err
	}
	s.start, err = s.head(ctx)
	return err
}

// floor is the oldest version of a server: before, what is not yet committed could be read.
var floor = [2]int{23, 10}

// waitForServer returns when the server can be used, or why it never will be.
func (s *Store) waitForServer(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.c.Start, fmt.Errorf("waited for %s", s.c.Start))
	defer cancel()
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		lasting, err := s.greet(ctx)
		if err == nil {
			return nil
		}
		if lasting {
			return fmt.Errorf("the ledger's server %s: %w", s.t, err)
		}
		s.c.Logger.Warn("waiting for the ledger's server", "nodes", s.t.String(), "error", err)
		if pause(ctx, wait) != nil {
			return fmt.Errorf("the ledger's server %s cannot be reached: %w: %w: %w", s.t, context.Cause(ctx), err, ledger.ErrUnavailable)
		}
	}
}

// greet tries what all else needs. lasting says that it is of no use to wait.
func (s *Store) greet(ctx context.Context) (lasting bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.c.Try)
	defer cancel()
	major, minor, _, err := s.client.version(ctx)
	if err == nil && (major < floor[0] || major == floor[0] && minor < floor[1]) {
		return true, fmt.Errorf("version %d.%d is too old, it must be %d.%d or later", major, minor, floor[0], floor[1])
	}
	if err == nil {
		_, _, err = s.client.readAll(ctx, end, backwards, 1)
	}
	if err == nil || errors.Is(err, errDenied) {
		return true, err
	}
	for _, host := range s.t.hosts {
		if lasting, cause := s.t.diagnose(host, 2*time.Second); cause != nil {
			return lasting, cause
		}
	}
	return false, err
}

// identify finds the ledger's first record, or writes it, and holds the folder against it: what is
// derived from one ledger must not meet another, or an older copy of the same.
func (s *Store) identify(ctx context.Context) error {
	file := filepath.Join(s.c.Dir, "ledger-id")
	known, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	mine := strings.TrimSpace(string(known))
	top := s.index.Top()
	if mine == "" && top.Position+s.index.Cursor() > 0 {
		return fmt.Errorf("data folder %s holds the index of another ledger; name another folder, or empty this one", s.c.Dir)
	}
	first, err := s.first(ctx, mine == "")
	if err != nil {
		return err
	}
	if id := first.Leaf.String(); mine != "" && mine != id {
		return fmt.Errorf("data folder %s belongs to the ledger %s and the server holds the ledger %s: is it the right server? If so, empty the folder", s.c.Dir, mine, id)
	}
	if top.Position > 0 {
		if err := s.awaitMark(ctx, top.Position, top.Leaf); err != nil {
			return fmt.Errorf("data folder %s: %w; is it an older copy of the server, or another? If it is meant to be, empty the folder", s.c.Dir, err)
		}
	}
	if mine == "" {
		return renameio.WriteFile(file, []byte(first.Leaf.String()+"\n"), 0o600)
	}
	return nil
}

// errLacks says that a node has less than was read before. Right after a fail-over that may be so for a while.
var errLacks = errors.New("the server does not have what was read from it before")

// awaitMark is checkMark for a node that may lag.
func (s *Store) awaitMark(ctx context.Context, at ledger.Position, mark ledger.Hash) error {
	ctx, cancel := context.WithTimeout(ctx, s.c.Lag)
	defer cancel()
	for {
		err := s.checkMark(ctx, at, mark)
		if !errors.Is(err, errLacks) || pause(ctx, jitter(firstWait)) != nil {
			return err
		}
	}
}

// checkMark says why the record that was read at the position is not there any more. A zero mark is any record's.
func (s *Store) checkMark(ctx context.Context, at ledger.Position, mark ledger.Hash) error {
	events, _, err := s.client.readAll(ctx, uint64(at), forwards, 1)
	if err != nil && !errors.Is(err, errRefused) {
		return unavailable(err)
	}
	if len(events) == 0 || events[0].position != uint64(at) {
		return fmt.Errorf("position %d: %w", at, errLacks)
	}
	if mark.IsZero() {
		return nil
	}
	if rec, _, err := decode(&events[0]); err != nil || rec.Leaf != mark {
		return fmt.Errorf("the server has another event at position %d than was read there: %w", at, ledger.ErrDamaged)
	}
	return nil
}

// first returns the ledger's first record. Of several instances that create it, the server lets one.
func (s *Store) first(ctx context.Context, create bool) (ledger.Record, error) {
	creation := ledger.Creation(s.c.Now())
	rec, _ := creation.Record(ledger.Decide(creation, ledger.EmptyStream, ledger.Found{}), ledger.EmptyStream, 0)
	ev := encode(&rec, newToken())
	ctx, cancel := context.WithTimeout(ctx, s.c.Budget)
	defer cancel()
	for {
		events, _, err := s.client.readStream(ctx, ledger.LedgerStream, 0, forwards, 1)
		switch {
		case err == nil && len(events) == 1:
			first, _, err := decode(&events[0])
			if err != nil || first.Header.Type != ledger.LedgerCreated {
				return first, fmt.Errorf("the server's stream %s begins with an event that is no ledger's first record", ledger.LedgerStream)
			}
			return first, nil
		case err == nil && !create:
			return rec, fmt.Errorf("the server holds no ledger, and data folder %s belongs to one: is it the right server? If so, empty the folder", s.c.Dir)
		case err == nil:
			_, err = s.client.append(ctx, ledger.LedgerStream, noStream, []event{ev})
		}
		if err == nil || errors.Is(err, errWrongRevision) {
			continue
		}
		if errors.Is(err, errDenied) || errors.Is(err, errDeleted) || pause(ctx, 100*time.Millisecond) != nil {
			return rec, fmt.Errorf("create the ledger: %w", unavailable(err))
		}
	}
}

// warm keeps the index at the head of the ledger, which spares appends the reading of their streams.
func (s *Store) warm() {
	for wait := firstWait; s.life.Err() == nil; wait = min(2*wait, lastWait) {
		var err error
		for batch, failure := range s.Follow(s.life, s.index.Cursor()) {
			if err = failure; err != nil {
				break
			}
			s.index.Advance(batch.Records[len(batch.Records)-1].Position)
			wait = firstWait
		}
		if errors.Is(err, ledger.ErrDamaged) || errors.Is(err, ledger.ErrBeyondHead) {
			s.c.Logger.Error("the ledger on the server is not the one that was read", "error", err)
			s.c.Fatal(err)
			return
		}
		_ = pause(s.life, jitter(wait))
	}
}

// Healthy says why nothing can be stored now; nil when all is well.
func (s *Store) Healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, _, err := s.client.readAll(ctx, end, backwards, 1)
	return unavailable(err)
}

// Close takes no more entries, finishes the ones it has, and releases everything.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	finished := make(chan struct{})
	go func() {
		s.running.Wait()
		close(finished)
	}()
	select {
	case <-finished:
	case <-time.After(s.c.Budget):
		s.end()
		<-finished
	}
	return s.release()
}

func (s *Store) release() error {
	s.end()
	s.follower.Wait()
	var errs []error
	if s.client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), min(2*time.Second, s.patience()))
		defer cancel()
		s.client.close(ctx)
	}
	if s.index != nil {
		errs = append(errs, s.index.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// unavailable marks an error of which nothing is stored.
func unavailable(err error) error {
	if err == nil || errors.Is(err, ledger.ErrUnavailable) || errors.Is(err, ledger.ErrDamaged) {
		return err
	}
	return fmt.Errorf("%w: %w", ledger.ErrUnavailable, err)
}

// MaxRecord is how many bytes an event may have on the server: a record's JSON form, its metadata,
// and twice its type. An entry whose record would be larger is refused.
func (s *Store) MaxRecord() int { return maxBytes }

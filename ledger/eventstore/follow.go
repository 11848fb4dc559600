package eventstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/talenttrust/auditledger/ledger"
)

// What a feed holds for a slow reader at most, and a batch; beyond that the server waits.
const (
	feedRecords = 2000
	feedBytes   = 4 << 20
)

// Follow implements ledger.Reader. Each call has a subscription of its own; when there can be none at
// once, that is its error. Later it is taken up again behind the last event received whenever it
// ends. What the server says of how far it has looked is no more than a sign of life, for that has
// been wrong in several of its versions.
//
// A batch's Behind counts what was received behind it; it is at least 1 while a record is known to
// exist that was not received.
func (s *Store) Follow(ctx context.Context, after ledger.Position) iter.Seq2[ledger.Batch, error] {
	return func(yield func(ledger.Batch, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(s.life, func() { cancel(fmt.Errorf("the store is closed: %w", ledger.ErrUnavailable)) })()
		if err := s.within(ctx, after); err != nil {
			yield(ledger.Batch{}, err)
			return
		}
		f := &feed{s: s, filled: make(chan struct{}, 1), room: make(chan struct{}, 1)}
		f.at.Store(uint64(after))
		var pump sync.WaitGroup
		pump.Go(func() { f.run(ctx) })
		defer pump.Wait()
		defer cancel(nil)
		for {
			batch, err := f.take(ctx)
			if !yield(batch, err) || err != nil {
				return
			}
		}
	}
}

// within refuses a position that the ledger has not come to.
func (s *Store) within(ctx context.Context, p ledger.Position) error {
	if uint64(p) <= s.seen.Load() {
		return nil
	}
	head, err := s.Head(ctx)
	if err == nil && p > head {
		err = fmt.Errorf("position %d, the head is %d: %w", p, head, ledger.ErrBeyondHead)
	}
	return err
}

// feed is what lies between a subscription and its reader.
type feed struct {
	s    *Store
	on   bool          // there was a subscription once
	at   atomic.Uint64 // position of the last event received
	leaf ledger.Hash   // of the record there, if it is one

	alive, blocked atomic.Bool // something came since it was last looked; the reader is slower

	filled, room chan struct{} // one token: something was put, or taken
	mu           sync.Mutex    // guards all below
	records      []ledger.Record
	bytes        int
	err          error // that ends the feed
}

// run receives until ctx ends or the server's log is found to be another one.
func (f *feed) run(ctx context.Context) {
	complete := time.Now() // when the server did not lack anything
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		before := f.at.Load()
		err := f.receive(ctx)
		if ctx.Err() != nil {
			return
		}
		if !errors.Is(err, errLacks) {
			complete = time.Now()
		} else if time.Since(complete) > f.s.c.Lag {
			err = fmt.Errorf("%w, for %s: %w", err, f.s.c.Lag, ledger.ErrDamaged)
		}
		if !f.on && !errors.Is(err, errLacks) || errors.Is(err, ledger.ErrDamaged) {
			f.finish(err)
			return
		}
		if f.at.Load() > before {
			wait = firstWait
		}
		f.s.c.Logger.Warn("the ledger's server is followed again after a break", slog.Duration("in", wait), slog.Any("error", err))
		if pause(ctx, jitter(wait)) != nil {
			return
		}
	}
}

// receive subscribes behind the last event and puts what comes. The reads before it make the client
// look for a node again where it must, and tell whether the log is still the one that was read.
func (f *feed) receive(ctx context.Context) error {
	s, at := f.s, f.at.Load()
	if err := f.look(ctx, at); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	established := time.AfterFunc(readLimit, func() { cancel(errors.New("no subscription within " + readLimit.String())) })
	sub, err := s.client.subscribe(ctx, at, prefixes)
	if !established.Stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return unavailable(err)
	}
	f.on = true
	defer sub.close()
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel(nil)
	watch.Go(func() { f.watch(ctx, cancel) })
	for {
		ev, err := sub.recv()
		if err != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		if f.alive.Store(true); ev == nil || ev.position <= f.at.Load() {
			continue
		}
		p, ok, err := s.place(ctx, ev)
		if err != nil {
			return err
		}
		f.leaf = ledger.Hash{}
		if ok {
			if err := f.put(ctx, p.Record, len(ev.data)); err != nil {
				return err
			}
			f.leaf = p.Leaf
		}
		f.at.Store(ev.position)
	}
}

// look reads the record at the position, and the head, so that from then on it is known what must come.
func (f *feed) look(ctx context.Context, at uint64) error {
	if !f.on {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.s.patience())
		defer cancel()
	}
	if at > 0 {
		err := f.s.checkMark(ctx, ledger.Position(at), f.leaf)
		if err != nil {
			return err
		}
	}
	_, err := f.s.head(ctx)
	return err
}

// watch ends a subscription from which nothing comes although there is something.
func (f *feed) watch(ctx context.Context, end context.CancelCauseFunc) {
	for pause(ctx, f.s.c.Watchdog) == nil {
		if f.alive.Swap(false) || f.blocked.Load() {
			continue
		}
		if head, err := f.s.Head(ctx); err == nil && uint64(head) > f.at.Load() && !f.alive.Load() && !f.blocked.Load() {
			end(fmt.Errorf("nothing came for %s and the ledger goes on", f.s.c.Watchdog))
		}
	}
}

// put waits while the reader has enough.
func (f *feed) put(ctx context.Context, r ledger.Record, bytes int) error {
	for {
		f.mu.Lock()
		if len(f.records) < feedRecords && f.bytes < feedBytes {
			f.records, f.bytes = append(f.records, r), f.bytes+bytes
			f.mu.Unlock()
			signal(f.filled)
			return nil
		}
		f.mu.Unlock()
		f.blocked.Store(true)
		select {
		case <-f.room:
			f.blocked.Store(false)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (f *feed) finish(err error) {
	f.mu.Lock()
	f.err = err
	f.mu.Unlock()
	signal(f.filled)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// take returns all that was put, when it is something.
func (f *feed) take(ctx context.Context) (ledger.Batch, error) {
	for {
		if ctx.Err() != nil {
			return ledger.Batch{}, context.Cause(ctx)
		}
		f.mu.Lock()
		records, err := f.records, f.err
		f.records, f.bytes = nil, 0
		f.mu.Unlock()
		if signal(f.room); len(records) > 0 {
			return f.batch(records), nil
		}
		if err != nil {
			return ledger.Batch{}, err
		}
		select {
		case <-f.filled:
		case <-ctx.Done():
		}
	}
}

func (f *feed) batch(records []ledger.Record) ledger.Batch {
	b := ledger.Batch{Records: records, Head: records[len(records)-1].Position}
	if seen := ledger.Position(f.s.seen.Load()); seen > b.Head {
		f.mu.Lock()
		b.Head, b.Behind = seen, max(1, int64(len(f.records)))
		f.mu.Unlock()
	}
	return b
}

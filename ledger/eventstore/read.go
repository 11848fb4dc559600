package eventstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/talenttrust/auditledger/ledger"
)

// parallel reads of one call.
const parallel = 16

// Find implements ledger.Store.
func (s *Store) Find(ctx context.Context, keys []ledger.Key) ([]ledger.Found, error) {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	asked := map[string]bool{}
	for _, k := range keys {
		if stream := k.Stream(); !asked[stream] {
			asked[stream] = true
			g.Go(func() error { return s.filled(gctx, stream) })
		}
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	found, err := s.index.Keys(keys)
	if err != nil {
		return nil, unavailable(err)
	}
	return found, nil
}

// Known reports whether the index has the key, so that a repeat of it costs nothing on the server.
func (s *Store) Known(k ledger.Key) bool {
	head, _, err := s.index.Head(k.Stream())
	if err != nil || k.Sequence > head.HighestSequence {
		return false
	}
	found, _, err := s.index.Key(k)
	return err == nil && found.Known()
}

// Head implements ledger.Reader. While the server is away it does not wait for it for long.
func (s *Store) Head(ctx context.Context) (ledger.Position, error) {
	ctx, cancel := context.WithTimeout(ctx, s.patience())
	defer cancel()
	head, err := s.head(ctx)
	if errors.Is(err, errLacks) { // a node that lags has no say in what was read
		return ledger.Position(s.seen.Load()), nil
	}
	return head, err
}

// patience is how long to wait for what can be asked for again.
func (s *Store) patience() time.Duration {
	if s.client.away() {
		return 100 * time.Millisecond
	}
	return 5 * time.Second
}

// head reads the log backwards until it meets a record. It is errLacks when the log ends before what was read.
func (s *Store) head(ctx context.Context) (ledger.Position, error) {
	var from uint64 = end
	before := s.seen.Load()
	for count := 1; ; count = min(8*count, pageEvents) {
		events, more, err := s.client.readAll(ctx, from, backwards, count)
		if err != nil {
			return 0, unavailable(err)
		}
		if from == end && before > 0 && (len(events) == 0 || events[0].position < before) {
			return 0, errLacks
		}
		for i := range events {
			from = events[i].position
			if seen := s.seen.Load(); from <= seen {
				return ledger.Position(seen), nil
			}
			if p, ok, err := s.place(ctx, &events[i]); err != nil || ok {
				return p.Position, err
			}
		}
		if len(events) < count && !more {
			return ledger.Position(s.seen.Load()), nil
		}
	}
}

// Read implements ledger.Reader.
func (s *Store) Read(ctx context.Context, positions []ledger.Position) ([]ledger.Record, error) {
	recs := make([]ledger.Record, len(positions))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i, p := range positions {
		g.Go(func() (err error) {
			recs[i], err = s.read(ctx, p)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return recs, nil
}

func (s *Store) read(ctx context.Context, p ledger.Position) (ledger.Record, error) {
	missing := fmt.Errorf("position %d: %w", p, ledger.ErrNotFound)
	if uint64(p) > s.seen.Load() {
		if head, err := s.Head(ctx); err != nil || p > head {
			return ledger.Record{}, errors.Join(err, missing)
		}
	}
	if p == 0 {
		return ledger.Record{}, missing
	}
	events, _, err := s.client.readAll(ctx, uint64(p), forwards, 1)
	if errors.Is(err, errRefused) || err == nil && (len(events) == 0 || events[0].position != uint64(p)) {
		return ledger.Record{}, missing
	}
	if err != nil {
		return ledger.Record{}, unavailable(err)
	}
	rec, ok, err := s.place(ctx, &events[0])
	if err == nil && !ok {
		err = missing
	}
	return rec.Record, err
}

// Stream implements ledger.Reader.
func (s *Store) Stream(ctx context.Context, stream string, from int64, back bool) iter.Seq2[ledger.Record, error] {
	return func(yield func(ledger.Record, error) bool) {
		f := s.forwards
		if back {
			f = s.backwards
		}
		step, next := int64(1), from
		if back {
			step = -1
		}
		err := f(ctx, stream, from, func(r ledger.Record, err error) bool {
			next = r.Header.Revision + step
			return yield(r, err)
		})
		if errors.Is(err, errDeleted) {
			err = s.known(ctx, stream, next, step, yield)
		}
		if err != nil {
			yield(ledger.Record{}, err)
		}
	}
}

// known yields what the index has of a stream that was deleted: the server's log has its records still, until it
// is compacted.
func (s *Store) known(ctx context.Context, stream string, from, step int64, yield func(ledger.Record, error) bool) error {
	head, _, err := s.index.Head(stream)
	if err != nil {
		return unavailable(err)
	}
	if step > 0 {
		from = max(from, 0)
	} else {
		from = min(from, head.Revision)
	}
	for ; from >= 0 && from <= head.Revision; from += step {
		at, ok, err := s.index.At(stream, from)
		if err != nil || !ok {
			return unavailable(err)
		}
		r, err := s.read(ctx, at)
		if err != nil || !yield(r, nil) {
			return err
		}
	}
	return nil
}

// errEnough ends a walk that its caller has ended.
var errEnough = errors.New("enough")

// walk reads a stream page by page, the first one small, and passes its records on.
func (s *Store) walk(ctx context.Context, stream string, from int64, d direction, f func(ledger.Record) error) error {
	for count := 8; ; count = min(4*count, pageEvents) {
		events, more, err := s.client.readStream(ctx, stream, from, d, count)
		if err != nil {
			return unavailable(err)
		}
		for i := range events {
			p, ok, err := s.place(ctx, &events[i])
			if err == nil && ok {
				err = f(p.Record)
			}
			if err != nil {
				return err
			}
		}
		if len(events) < count && !more {
			return nil
		}
		if from = events[len(events)-1].number + 1; d == backwards {
			from -= 2
		}
		if from < 0 {
			return nil
		}
	}
}

// forwards yields records from a revision on. The number of a record's event is never lower than its revision.
func (s *Store) forwards(ctx context.Context, stream string, from int64, yield func(ledger.Record, error) bool) error {
	err := s.walk(ctx, stream, max(from, 0), forwards, func(r ledger.Record) error {
		if r.Header.Revision >= from && !yield(r, nil) {
			return errEnough
		}
		return nil
	})
	return unlessEnough(err)
}

// errHigher says that a record stands further up in its stream than its revision says.
var errHigher = errors.New("higher")

// backwards yields records from a revision down. It looks for the first of them where it stands if all
// events of the stream are records, and from the stream's end if it is not there or not known.
func (s *Store) backwards(ctx context.Context, stream string, from int64, yield func(ledger.Record, error) bool) error {
	if from < 0 {
		return nil
	}
	head, _, err := s.index.Head(stream)
	if err != nil {
		return unavailable(err)
	}
	started := false
	f := func(exact bool) func(ledger.Record) error {
		return func(r ledger.Record) error {
			switch {
			case r.Header.Revision > from:
				return nil
			case exact && !started && r.Header.Revision < from:
				return errHigher
			}
			if started = true; !yield(r, nil) {
				return errEnough
			}
			return nil
		}
	}
	if from <= head.Revision {
		if err := s.walk(ctx, stream, from, backwards, f(true)); started || err != nil && !errors.Is(err, errHigher) {
			return unlessEnough(err)
		}
	}
	return unlessEnough(s.walk(ctx, stream, end, backwards, f(false)))
}

func unlessEnough(err error) error {
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

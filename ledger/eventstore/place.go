package eventstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/keyindex"
)

// prefixes of the streams of a ledger.
var prefixes = []string{"contract-", "rejections-", "duplicates-", "access-", ledger.LedgerStream}

// isOurs reports whether a stream may hold records.
func isOurs(stream string) bool {
	for _, p := range prefixes[:len(prefixes)-1] {
		if strings.HasPrefix(stream, p) {
			return true
		}
	}
	return stream == ledger.LedgerStream
}

// placed is an event that is a record of the ledger, and who wrote it.
type placed struct {
	ledger.Record
	token string
}

// place takes an event that was read, wherever, into the index, if it is the next of its stream. ok is
// false for events that are no records of the ledger. Where records before it are not in the index
// yet, they are read first.
func (s *Store) place(ctx context.Context, ev *recorded) (p placed, ok bool, err error) {
	return s.placeAfter(ev, func(stream string) error { return s.fill(ctx, stream) })
}

func (s *Store) placeAfter(ev *recorded, fill func(stream string) error) (p placed, ok bool, err error) {
	if !isOurs(ev.stream) {
		return p, false, nil
	}
	var why error
	if p.Record, p.token, why = decode(ev); why != nil {
		s.foreign(ev, why)
		return p, false, nil
	}
	fit, err := s.index.Extend(&p.Record)
	if fit == keyindex.Missing && err == nil {
		if err = fill(ev.stream); err == nil {
			fit, err = s.index.Extend(&p.Record)
		}
	}
	if err != nil {
		return p, false, unavailable(err)
	}
	if fit != keyindex.Known && fit != keyindex.Added {
		s.foreign(ev, errors.New("it does not continue the records before it"))
		return p, false, nil
	}
	s.sawUpTo(p.Position)
	return p, true, nil
}

func (s *Store) sawUpTo(p ledger.Position) {
	for at := s.seen.Load(); at < uint64(p) && !s.seen.CompareAndSwap(at, uint64(p)); at = s.seen.Load() {
	}
}

// foreign says, once for each event, that it is passed over.
func (s *Store) foreign(ev *recorded, why error) {
	s.mu.Lock()
	known := s.reported[ev.position]
	if len(s.reported) >= 10_000 { // they are said again then
		clear(s.reported)
	}
	s.reported[ev.position] = true
	s.mu.Unlock()
	if known {
		return
	}
	s.c.Foreign()
	s.c.Logger.Warn("an event in a stream of the ledger is no record of it and is passed over",
		slog.String("stream", ev.stream), slog.Int64("number", ev.number), slog.Any("error", why))
}

// fill brings the index up to the end of a stream.
func (s *Store) fill(ctx context.Context, stream string) error {
	head, _, err := s.index.Head(stream)
	if err != nil {
		return unavailable(err)
	}
	_, err = s.readOn(ctx, stream, s.next(stream, head), func(*recorded, *placed) {})
	return err
}

// filled calls fill, and leaves it at what is known where the stream was deleted: nothing comes
// any more.
func (s *Store) filled(ctx context.Context, stream string) error {
	if err := s.fill(ctx, stream); !errors.Is(err, errDeleted) {
		return err
	}
	return nil
}

// pageEvents is how many events of a stream are asked for at once.
const pageEvents = 256

// readOn reads a stream from an event's number to its end, takes it into the index, and passes on the
// events, with their records where they are some. It returns how many events there were.
func (s *Store) readOn(ctx context.Context, stream string, from int64, f func(*recorded, *placed)) (n int, err error) {
	for {
		events, more, err := s.client.readStream(ctx, stream, from, forwards, pageEvents)
		if err != nil {
			return n, unavailable(err)
		}
		for i := range events {
			p, ok, err := s.placeAfter(&events[i], func(string) error { return nil })
			if err != nil {
				return n, err
			}
			if n++; ok {
				f(&events[i], &p)
			} else {
				f(&events[i], nil)
			}
		}
		if len(events) > 0 {
			from = events[len(events)-1].number + 1
		}
		if len(events) < pageEvents && !more {
			return n, s.note(stream, from)
		}
	}
}

// next is the number that the event behind the head has, as far as it is known: events that are no
// records take numbers, too. It may be too low, never too high.
func (s *Store) next(stream string, head ledger.StreamHead) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return head.Revision + 1 + s.ahead[stream]
}

// note keeps the number of the event that comes next in a stream that was read to its end.
func (s *Store) note(stream string, next int64) error {
	head, _, err := s.index.Head(stream)
	if err != nil {
		return unavailable(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch by := next - head.Revision - 1; {
	case by > 0:
		if len(s.ahead) >= 10_000 { // it is found out again
			clear(s.ahead)
		}
		s.ahead[stream] = by
	case s.ahead[stream] != 0:
		delete(s.ahead, stream)
	}
	return nil
}

const (
	firstWait = 100 * time.Millisecond
	lastWait  = 10 * time.Second
)

// jitter spreads what many do at the same time.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// pause waits; an error is ctx's.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait: %w", context.Cause(ctx))
	}
}

package disk

import (
	"context"
	"fmt"
	"iter"

	"github.com/talenttrust/auditledger/ledger"
)

const (
	maxBatchRecords = 2000
	maxBatchBytes   = 1 << 20
	singleRead      = 4 << 10
)

// Head implements ledger.Reader.
func (s *Store) Head(context.Context) (ledger.Position, error) {
	head, _ := s.durable()
	return head, nil
}

// durable is the last durable position and a channel that is closed when there is a later one.
func (s *Store) durable() (ledger.Position, <-chan struct{}) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.head, s.moved
}

// Find implements ledger.Store.
func (s *Store) Find(ctx context.Context, keys []ledger.Key) ([]ledger.Found, error) {
	found, err := s.index.Keys(keys)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ledger.ErrUnavailable, err)
	}
	return found, ctx.Err()
}

// Read implements ledger.Reader.
func (s *Store) Read(ctx context.Context, positions []ledger.Position) ([]ledger.Record, error) {
	head, _ := s.durable()
	recs := make([]ledger.Record, len(positions))
	for i, p := range positions {
		if p > head {
			return nil, fmt.Errorf("position %d: %w", p, ledger.ErrNotFound)
		}
		one, err := s.log.read(p, p, 1, singleRead)
		if err != nil {
			return nil, err
		}
		if recs[i] = one[0]; ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return recs, nil
}

// Stream implements ledger.Reader.
func (s *Store) Stream(ctx context.Context, stream string, from int64, backwards bool) iter.Seq2[ledger.Record, error] {
	return func(yield func(ledger.Record, error) bool) {
		head, _, err := s.index.Head(stream)
		if err != nil {
			yield(ledger.Record{}, err)
			return
		}
		step, last := int64(1), head.Revision
		if from = max(from, 0); backwards {
			from, step, last = min(from, head.Revision), -1, 0
		}
		for rev := from; rev >= 0 && (last-rev)*step >= 0; rev += step {
			rec, err := s.revision(ctx, stream, rev)
			if !yield(rec, err) || err != nil {
				return
			}
		}
	}
}

func (s *Store) revision(ctx context.Context, stream string, rev int64) (ledger.Record, error) {
	at, ok, err := s.index.At(stream, rev)
	if err == nil && !ok {
		err = fmt.Errorf("the key index has no position for %s %d: %w", stream, rev, ledger.ErrDamaged)
	}
	if err != nil {
		return ledger.Record{}, err
	}
	recs, err := s.Read(ctx, []ledger.Position{at})
	if err != nil {
		return ledger.Record{}, err
	}
	return recs[0], nil
}

// next returns records behind a position, from memory if they are still there.
func (s *Store) next(after, head ledger.Position) ([]ledger.Record, error) {
	s.mu.RLock()
	recs := s.recent.after(after)
	s.mu.RUnlock()
	if len(recs) > 0 {
		return recs, nil
	}
	return s.log.read(after+1, head, maxBatchRecords, maxBatchBytes)
}

// Follow implements ledger.Reader.
func (s *Store) Follow(ctx context.Context, after ledger.Position) iter.Seq2[ledger.Batch, error] {
	return func(yield func(ledger.Batch, error) bool) {
		if head, _ := s.durable(); after > head {
			yield(ledger.Batch{}, fmt.Errorf("position %d, the head is %d: %w", after, head, ledger.ErrBeyondHead))
			return
		}
		for {
			head, moved := s.durable()
			if after == head {
				select {
				case <-moved:
					continue
				case <-ctx.Done():
				}
			}
			if err := ctx.Err(); err != nil {
				yield(ledger.Batch{}, err)
				return
			}
			recs, err := s.next(after, head)
			if err != nil {
				yield(ledger.Batch{}, err)
				return
			}
			after = recs[len(recs)-1].Position
			head = max(head, after)
			if !yield(ledger.Batch{Records: recs, Head: head, Behind: int64(head - after)}, nil) {
				return
			}
		}
	}
}

package projections

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sort"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/sync/errgroup"

	"github.com/talenttrust/auditledger/ledger"
)

// Run follows the ledger until ctx ends. It returns early, with an error, only when the database fails.
func (p *Projections) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.follow(ctx) })
	g.Go(func() error { return p.flushNowAndThen(ctx) })
	g.Go(func() error {
		for {
			select {
			case r := <-p.jobs:
				g.Go(func() error { return p.bringUp(ctx, r) })
			case <-ctx.Done():
				return nil
			}
		}
	})
	return g.Wait()
}

func (p *Projections) flushNowAndThen(ctx context.Context) error {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-p.flush:
		}
		p.applying.Lock()
		unsaved := p.unsaved
		p.unsaved = 0
		p.applying.Unlock()
		if unsaved == 0 {
			continue
		}
		if _, err := p.db.AsyncFlush(); err != nil {
			return fmt.Errorf("flush the projections: %w", err)
		}
	}
}

// follow keeps the group at the head of the ledger.
func (p *Projections) follow(ctx context.Context) error {
	return p.retry(ctx, "all projections", func(progress func()) error {
		for batch, err := range p.batches(ctx, p.position()) {
			p.setBroken(err != nil)
			if err != nil {
				return err
			}
			if err := p.advance(batch); err != nil {
				return err
			}
			progress()
		}
		return nil
	})
}

// batches follows the ledger, in larger batches while there is more to come, and where much comes.
func (p *Projections) batches(ctx context.Context, after ledger.Position) iter.Seq2[ledger.Batch, error] {
	return func(yield func(ledger.Batch, error) bool) {
		var all ledger.Batch
		for batch, err := range p.c.Reader.Follow(ctx, after) {
			if len(all.Records) > 0 && err == nil {
				batch.Records = append(all.Records, batch.Records...)
			}
			if all = batch; batch.Behind > 0 && len(batch.Records) < gather {
				all.Records = slices.Clip(batch.Records) // the ledger may go on to use what is behind them
				continue
			}
			if !yield(all, err) || err != nil {
				return
			}
			if all.Behind == 0 && len(all.Records) >= busy {
				pause(ctx, breath)
			}
			all = ledger.Batch{}
		}
	}
}

// errDatabase marks what trying again does not help against.
var errDatabase = errors.New("the database of the projections failed")

// retry runs a loop over the ledger again after it failed, until it ends well or ctx ends. The loop
// tells when it gets ahead.
func (p *Projections) retry(ctx context.Context, who string, loop func(progress func()) error) error {
	wait := firstRetry
	for {
		err := loop(func() { wait = firstRetry })
		if ctx.Err() != nil || err == nil {
			return nil
		}
		if errors.Is(err, errDatabase) {
			return err
		}
		p.c.Logger.Warn("the ledger cannot be followed; trying again", "for", who, "in", wait, "error", err)
		pause(ctx, wait)
		wait = min(2*wait, lastRetry)
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

func (p *Projections) setBroken(broken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = broken
}

func (p *Projections) position() ledger.Position {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.at.position
}

// advance takes a batch of the ledger into the rows of the group.
func (p *Projections) advance(batch ledger.Batch) error {
	p.applying.Lock()
	defer p.applying.Unlock()
	if err := p.apply(p.group, batch.Records); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at, p.seen, p.behind = p.at.after(batch.Records), batch.Head, batch.Behind
	return nil
}

// apply folds the records into each of the rows, and writes all that follows from them and the
// cursors at once. Rows that cannot take a record in stop before it. It is called with applying held.
func (p *Projections) apply(group []*rows, recs []ledger.Record) error {
	for done := false; !done; {
		b := p.db.NewBatch()
		var err error
		if done, err = p.fold(group, b, recs); done && err == nil {
			err = b.Commit(pebble.NoSync)
		}
		if err := errors.Join(err, b.Close()); err != nil {
			return fmt.Errorf("%w: %w", errDatabase, err)
		}
	}
	if p.unsaved += int64(len(recs)); p.unsaved >= flushRecords {
		select {
		case p.flush <- struct{}{}:
		default:
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range group {
		r.at = r.next
	}
	close(p.moved)
	p.moved = make(chan struct{})
	return nil
}

// fold folds the records into the batch. It is not done when a record stopped one of the rows: then
// the batch is not to be written, and folding again leaves the record out.
func (p *Projections) fold(group []*rows, b *pebble.Batch, recs []ledger.Record) (done bool, err error) {
	for _, r := range group {
		failure := r.take(b, recs)
		if r.err != nil {
			return false, r.err
		}
		if failure != nil {
			p.stop(r, failure)
			for _, r := range group {
				r.folder = nil // it remembers what will not be written
			}
			return false, nil
		}
		if err := r.saveCursor(b, r.next); err != nil {
			return false, err
		}
	}
	return true, nil
}

// stop keeps the rows from taking in the record at which they failed, and any after it.
func (p *Projections) stop(r *rows, f *Failure) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.failure = f
	p.c.Logger.Error("a projection stopped", "projection", r.name, "position", f.Position, "reason", f.Reason)
}

// take folds those of the records that are the rows' to take.
func (r *rows) take(b *pebble.Batch, recs []ledger.Record) *Failure {
	r.batch, r.err, r.next = b, nil, r.at
	r.forget()
	if r.folder == nil {
		r.folder = r.open(&r.table)
	}
	recs = r.due(recs)
	r.folder.prepare(recs)
	for i := range recs {
		if err := r.safely(&recs[i]); err != nil {
			return &Failure{recs[i].Position, err.Error()}
		}
	}
	r.folder.finish()
	r.write()
	r.next = r.at.after(recs)
	return nil
}

// due leaves out what was taken in before, and what must not be.
func (r *rows) due(recs []ledger.Record) []ledger.Record {
	from := sort.Search(len(recs), func(i int) bool { return recs[i].Position > r.at.position })
	to := len(recs)
	if r.failure != nil {
		to = sort.Search(len(recs), func(i int) bool { return recs[i].Position >= r.failure.Position })
	}
	return recs[from:max(from, to)]
}

// safely folds one record. A record of a type that this version does not know could change any row.
func (r *rows) safely(rec *ledger.Record) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	switch rec.Header.Type {
	case ledger.LedgerCreated, ledger.EventAccepted, ledger.EventRejected, ledger.DuplicatesCounted, ledger.AccessRecorded:
		return r.folder.fold(rec)
	}
	return fmt.Errorf("record type %q is not known", rec.Header.Type)
}

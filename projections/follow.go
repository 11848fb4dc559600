package projections

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/sync/errgroup"

	"github.com/talenttrust/auditledger/ledger"
)

// Run follows the ledger until ctx ends. It returns early, with an error, only when the database fails.
func (p *Projections) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.follow(ctx) })
	g.Go(func() error { return p.saveNowAndThen(ctx) })
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

// saveNowAndThen writes what is folded where the next records take their time although there are more, or
// said to be more, as from a server. Where they come fast, advance soon has enough to write.
func (p *Projections) saveNowAndThen(ctx context.Context) error {
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	var before progress
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var err error
		if before, err = p.saveIfSlow(before); err != nil {
			return err
		}
	}
}

// progress is how many records were folded, and up to where they are written.
type progress struct {
	folded  int64
	written ledger.Position
}

// saveIfSlow writes what is folded when little was since before, and none of it was written. It returns
// how far things are.
func (p *Projections) saveIfSlow(before progress) (progress, error) {
	p.applying.Lock()
	defer p.applying.Unlock()
	now := progress{p.next.records, p.at.position}
	if now.written == before.written && now.folded-before.folded < slow {
		return now, p.save()
	}
	return now, nil
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
		return errors.Join(p.followOn(ctx, progress), p.saveGroup())
	})
}

func (p *Projections) followOn(ctx context.Context, progress func()) error {
	for batch, err := range p.batches(ctx, p.next.position) {
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
}

// batches follows the ledger. Where much comes, it waits a moment for more once it is at the head:
// rows that many records change are written once for all of them.
func (p *Projections) batches(ctx context.Context, after ledger.Position) iter.Seq2[ledger.Batch, error] {
	return func(yield func(ledger.Batch, error) bool) {
		came := 0
		for batch, err := range readAhead(ctx, p.c.Reader, after) {
			if !yield(batch, err) || err != nil {
				return
			}
			if came += len(batch.Records); batch.Behind > 0 {
				continue
			}
			if came >= busy {
				pause(ctx, breath)
			}
			came = 0
		}
	}
}

// ahead is how many batches are read ahead: as much as comes while what was folded is written.
const ahead = 24

// readAhead follows the ledger. Where there is more to come, it is read and decoded while the batches
// before are in use.
func readAhead(ctx context.Context, from Reader, after ledger.Position) iter.Seq2[ledger.Batch, error] {
	type step struct {
		batch ledger.Batch
		err   error
	}
	return func(yield func(ledger.Batch, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		steps, used := make(chan step, ahead), make(chan struct{})
		wg.Go(func() {
			defer close(steps)
			for batch, err := range from.Follow(ctx, after) {
				if !send(ctx, steps, step{batch, err}) {
					return
				}
				if batch.Behind > 0 {
					continue
				}
				select {
				case <-used:
				case <-ctx.Done():
					return
				}
			}
		})
		for s := range steps {
			if !yield(s.batch, s.err) || s.err != nil {
				return
			}
			if s.batch.Behind == 0 && !send(ctx, used, struct{}{}) {
				return
			}
		}
	}
}

func send[T any](ctx context.Context, to chan<- T, v T) bool {
	select {
	case to <- v:
		return true
	case <-ctx.Done():
		return false
	}
}

var (
	// errDatabase marks what trying again does not help against.
	errDatabase = errors.New("the database of the projections failed")
	// errAgain: a record stopped rows, and what was folded since they were written is to be folded again.
	errAgain = errors.New("fold again")
)

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
		if errors.Is(err, errAgain) {
			continue
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

// advance folds a batch of the ledger into the rows of the group, and writes them when there is no more
// to come for now, or enough to write. Until then they are written now and then, see saveNowAndThen.
func (p *Projections) advance(batch ledger.Batch) error {
	p.applying.Lock()
	defer p.applying.Unlock()
	if err := p.fold(p.group, batch.Records); err != nil {
		p.next = p.at
		return err
	}
	p.next = tip{p.next.after(batch.Records), batch.Head, batch.Behind}
	if batch.Behind > 0 && !p.enough(p.group) {
		return nil
	}
	return p.save()
}

// enough reports whether so much is folded that it is time to write it.
func (p *Projections) enough(group []*rows) bool {
	size := 0
	for _, r := range group {
		if r.next.records-r.at.records+r.counts >= p.gather {
			return true
		}
		size += r.size()
	}
	return size >= gatherBytes
}

func (p *Projections) saveGroup() error {
	p.applying.Lock()
	defer p.applying.Unlock()
	return p.save()
}

// save writes what is folded into the group. It is called with applying held.
func (p *Projections) save() error {
	if p.next == p.at {
		return nil
	}
	if err := p.write(p.group); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = p.next
	return nil
}

// manyRecords is from how many records on it is worth while to fold them into several rows side by side.
const manyRecords = 256

// fold folds the records into each of the rows. It is errAgain when a record stopped one of them: then
// nothing of what was folded since they were written is kept, and folding again leaves the record out.
// It is called with applying held.
func (p *Projections) fold(group []*rows, recs []ledger.Record) error {
	failures := make([]*Failure, len(group))
	var wg sync.WaitGroup
	for i, r := range group {
		if len(recs) < manyRecords || i == len(group)-1 {
			failures[i] = r.take(recs)
			continue
		}
		wg.Go(func() { failures[i] = r.take(recs) })
	}
	wg.Wait()
	again := false
	for i, r := range group {
		if r.err != nil {
			return fmt.Errorf("%w: %w", errDatabase, r.err)
		}
		if failures[i] != nil {
			p.stop(r, failures[i])
			again = true
		}
	}
	for _, r := range group {
		if !again {
			p.writeEarly(r)
		} else if err := r.reset(); err != nil {
			return fmt.Errorf("%w: %w", errDatabase, err)
		}
	}
	if again {
		return errAgain
	}
	return nil
}

// write writes all that follows from what is folded into the rows, and their cursors, at once. It is
// called with applying held.
func (p *Projections) write(group []*rows) error {
	more := p.enough(group) || slices.ContainsFunc(group, func(r *rows) bool { return r.early != nil })
	var pending []*rows
	var wg sync.WaitGroup
	for _, r := range group {
		if r.next != r.at {
			pending = append(pending, r)
			wg.Go(r.finish)
		}
	}
	wg.Wait()
	if len(pending) == 0 {
		return nil
	}
	for _, r := range pending { // what was not read was folded as if it were not there
		if r.err != nil {
			return fmt.Errorf("%w: %w", errDatabase, r.err)
		}
	}
	slices.SortFunc(pending, func(x, y *rows) int { return bytes.Compare(x.prefix[:], y.prefix[:]) })
	write := p.commit
	if more {
		write = p.ingest
	}
	if err := write(pending); err != nil {
		return fmt.Errorf("%w: %w", errDatabase, err)
	}
	for _, r := range pending {
		r.forget(more)
		r.counts = 0
	}
	p.wrote(pending)
	return nil
}

// commit writes the changes of the rows, and their cursors, as a batch. It is all in the order of its
// keys: a large batch that is sorted needs no sorting by the database.
func (p *Projections) commit(group []*rows) error {
	size := 0
	for _, r := range group {
		for _, l := range r.lots {
			size += len(l.arena) + 8*len(l.list)
		}
	}
	b := p.db.NewBatchWithSize(size + 64*len(group))
	set := func(key, val []byte) error { return b.Set(key, val, nil) }
	remove := func(key []byte) error { return b.Delete(key, nil) }
	err := saveCursors(group, set)
	for _, r := range group {
		for tag := range r.lots {
			err = cmp.Or(err, r.lots[tag].emit(set, remove))
		}
	}
	if err == nil {
		err = b.Commit(pebble.NoSync)
	}
	return errors.Join(err, b.Close())
}

func saveCursors(group []*rows, set func(key, val []byte) error) error {
	for _, r := range group {
		if err := set(r.cursorRow(r.next)); err != nil {
			return err
		}
	}
	return nil
}

// wrote shows what was written, by rows of the group or others, and asks for a flush when it has become much.
func (p *Projections) wrote(group []*rows) {
	p.mu.Lock()
	most := int64(0)
	for _, r := range group {
		most = max(most, r.next.records-r.at.records)
		r.at = r.next
	}
	p.wake()
	p.mu.Unlock()
	if p.unsaved += most; p.unsaved >= flushRecords {
		select {
		case p.flush <- struct{}{}:
		default:
		}
	}
}

// wake wakes who waits for a cursor to move. It is called with mu held.
func (p *Projections) wake() {
	close(p.moved)
	p.moved = make(chan struct{})
}

// stop keeps the rows from taking in the record at which they failed, and any after it.
func (p *Projections) stop(r *rows, f *Failure) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.failure = f
	p.c.Logger.Error("a projection stopped", "projection", r.name, "position", f.Position, "reason", f.Reason)
}

// take folds those of the records that are the rows' to take.
func (r *rows) take(recs []ledger.Record) *Failure {
	if r.folder == nil {
		r.folder = r.open(&r.table)
	}
	recs = r.due(recs)
	r.folder.prepare(recs)
	if n, err := r.foldAll(recs); err != nil {
		return &Failure{recs[n].Position, err.Error()}
	}
	r.next = r.next.after(recs)
	for i := range recs {
		r.counts += int64(len(recs[i].Body.Counts))
	}
	return nil
}

// finish makes all changes that follow from what is folded, in the order of their keys.
func (r *rows) finish() {
	r.folder.finish()
	for tag := range r.lots {
		r.lots[tag].sort()
	}
}

// reset forgets what is folded and not written.
func (r *rows) reset() error {
	r.folder, r.next, r.counts = nil, r.at, 0
	r.forget(false)
	return r.dropEarly()
}

// due leaves out what was taken in before, and what must not be.
func (r *rows) due(recs []ledger.Record) []ledger.Record {
	from := sort.Search(len(recs), func(i int) bool { return recs[i].Position > r.next.position })
	to := len(recs)
	if r.failure != nil {
		to = sort.Search(len(recs), func(i int) bool { return recs[i].Position >= r.failure.Position })
	}
	return recs[from:max(from, to)]
}

// foldAll folds records until one cannot be, and says which. A record of a type that this version does not
// know could change any row.
func (r *rows) foldAll(recs []ledger.Record) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	for ; n < len(recs); n++ {
		switch rec := &recs[n]; rec.Header.Type {
		case ledger.LedgerCreated, ledger.EventAccepted, ledger.EventRejected, ledger.DuplicatesCounted, ledger.AccessRecorded:
			err = r.folder.fold(rec)
		default:
			err = fmt.Errorf("record type %q is not known", rec.Header.Type)
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

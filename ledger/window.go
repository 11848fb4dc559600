package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sync/errgroup"
)

// lookInWindow settles the events that the window knows where to find. Whatever the window says, the
// record it names decides; where there is no such record, the event goes on to the store.
func (l *Ledger) lookInWindow(ctx context.Context, drafts []draft, now int64) error {
	if l.Window == nil {
		return nil
	}
	var asked []*draft
	var keys []Key
	for i := range drafts {
		if d := &drafts[i]; d.entry != nil && (l.Known == nil || !l.Known(d.entry.Key())) {
			asked, keys = append(asked, d), append(keys, d.entry.Key())
		}
	}
	if len(keys) == 0 {
		return nil
	}
	hints, err := l.Window.Look(ctx, keys)
	if err != nil {
		l.Logger.LogAttrs(ctx, slog.LevelDebug, "the window did not answer", slog.Any("error", err))
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(hintReads)
	for i, h := range hints {
		if h.Hit {
			g.Go(func() error { return l.followHint(ctx, asked[i], h, now) })
		}
	}
	return g.Wait()
}

// hintReads is how many records that hints name are read at once: each may be a call to a server.
const hintReads = 16

// followHint reads the record that a hint names and settles the event if it is a duplicate of that, which
// it stays. Anything else only the store can say: the hint may be one of an earlier generation, and another
// instance's clock may have ended that one's window before ours does.
func (l *Ledger) followHint(ctx context.Context, d *draft, h Hint, now int64) error {
	rec, err := l.recordAt(ctx, d.entry.Header.Stream, h.Revision)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the record that the window names for %s: %w", d.entry.Key(), err)
	}
	if rec.Header.Type != EventAccepted || rec.Header.Key() != d.entry.Key() {
		return nil
	}
	found := FoundIn(&rec)
	head := StreamHead{Revision: found.Revision, RecordedAt: found.RecordedAt}
	if Decide(d.entry, head, found).Verdict == Duplicate {
		d.duplicate(found)
		l.repeats.count(d.entry.Header.Stream, found.Revision, now)
	}
	return nil
}

func (l *Ledger) recordAt(ctx context.Context, stream string, revision int64) (Record, error) {
	if revision < 0 {
		return Record{}, ErrNotFound
	}
	for rec, err := range l.Store.Stream(ctx, stream, revision, false) {
		return rec, err
	}
	return Record{}, ErrNotFound
}

// bindInWindow tells the window what is durable now. It may fail without harm.
func (l *Ledger) bindInWindow(ctx context.Context, drafts []draft) {
	if l.Window == nil {
		return
	}
	var bound []Binding
	for i := range drafts {
		d := &drafts[i]
		if d.result.Status != StatusAccepted {
			continue
		}
		b := Binding{Key: d.entry.Key(), Revision: d.result.Revision, PayloadHash: d.result.PayloadHash}
		if d.entry.Window > 0 {
			b.BoundUntil = d.result.ProcessedAt + d.entry.Window
		}
		bound = append(bound, b)
	}
	if len(bound) == 0 {
		return
	}
	if err := l.Window.Bind(ctx, bound); err != nil {
		l.Logger.LogAttrs(ctx, slog.LevelDebug, "the window was not told", slog.Any("error", err))
	}
}

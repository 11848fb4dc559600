package ledger

import (
	"context"
	"fmt"
)

// Preview is what Ingest would say of an event now.
type Preview struct {
	Result
	CanonicalPayload []byte // nil when there is none
}

// Preview says what Ingest would answer, and stores, counts and remembers nothing.
func (l *Ledger) Preview(ctx context.Context, req Request, contractType string, events [][]byte) ([]Preview, error) {
	now, err := l.clock.now()
	if err != nil {
		return nil, err
	}
	drafts := l.prepare(req, contractType, events, now)
	var keys []Key
	for i := range drafts {
		if drafts[i].entry != nil {
			keys = append(keys, drafts[i].entry.Key())
		}
	}
	found, err := l.Store.Find(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("find keys: %w", err)
	}
	known := make(map[Key]Found, len(keys))
	for i, k := range keys {
		known[k] = found[i]
	}
	previews := make([]Preview, len(drafts))
	for i := range drafts {
		l.preview(&drafts[i], known)
		previews[i] = Preview{drafts[i].result, drafts[i].event.Payload}
	}
	return previews, nil
}

// preview decides one event; an accepted one becomes known to those behind it in the batch.
func (l *Ledger) preview(d *draft, known map[Key]Found) {
	if d.entry != nil {
		key, found := d.entry.Key(), known[d.entry.Key()]
		head := StreamHead{Revision: found.Revision, RecordedAt: found.RecordedAt}
		switch decision := Decide(d.entry, head, found); decision.Verdict {
		case Accepted:
			d.result.Status, d.result.Generation, d.result.ProcessedAt = StatusAccepted, decision.Generation, decision.RecordedAt
			rec, _ := d.entry.Record(decision, head, 0)
			known[key] = FoundIn(&rec)
		case Duplicate:
			d.duplicate(found)
		case Refused:
			d.refuse(decision.Rejection)
		case Conflict:
			d.refuse(l.conflict(found.PayloadHash, d))
		}
	}
	if d.rejection != nil {
		d.result.Status, d.result.Rejection = StatusRejected, d.rejection
	}
}

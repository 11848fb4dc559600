package projections

import (
	"context"

	"github.com/talenttrust/auditledger/ledger"
)

// states says where each projection stands against the head of the ledger.
func (p *Projections) states(ctx context.Context) (all []State) {
	head := p.head(ctx)
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, known := range p.known {
		pair := p.sets[known.name]
		a := pair.active
		s := State{Name: known.name, Position: a.at.position, Head: max(head, a.at.position), Lag: p.behindHead(a.at, head), Progress: 1, Failure: a.failure}
		switch {
		case pair.building != nil:
			s.State, s.Progress = Rebuilding, share(pair.building.at.position, s.Head)
		case a.failure != nil:
			s.State = Failed
		case !a.joined || p.broken || s.Lag > behindMuch:
			s.State, s.Progress = CatchingUp, share(a.at.position, s.Head)
		default:
			s.State = Live
		}
		all = append(all, s)
	}
	return all
}

func share(at, head ledger.Position) float64 {
	if head == 0 {
		return 1
	}
	return min(1, float64(at)/float64(head))
}

// behindHead is how many records there are from the cursor to the head of the ledger. Where positions do
// not count records, it is those that came and are not taken in and one for what did not come, or what
// the distance says at the distance that records have had so far, whichever is more. It is called with mu held.
func (p *Projections) behindHead(at cursor, head ledger.Position) int64 {
	if head <= at.position {
		return 0
	}
	distance := int64(head - max(at.position, p.first-1))
	if p.first == 1 {
		return distance
	}
	known := max(0, p.at.records-at.records) + p.at.behind
	if head > p.at.head {
		known++
	}
	apart := int64(1000)
	if came := p.at.records - 1; came > 0 {
		apart = max(1, int64(p.at.position-p.first)/came)
	}
	return max(1, known, distance/apart)
}

// head is the position of the ledger's last record, or the last one known while the ledger cannot
// be asked: what is in the rows can be read all the same.
func (p *Projections) head(ctx context.Context) ledger.Position {
	head, err := p.c.Reader.Head(ctx)
	p.mu.RLock()
	defer p.mu.RUnlock()
	if err != nil {
		return p.at.head
	}
	return head
}

// lag is how many records, and repeats that are not yet one, wait to be taken in behind the cursor,
// and for how many milliseconds the first record does.
func (p *Projections) lag(ctx context.Context, at cursor) (records, millis int64) {
	head := p.head(ctx)
	p.mu.RLock()
	records = p.behindHead(at, head)
	p.mu.RUnlock()
	if records > 0 {
		millis = max(0, p.c.Now().UnixMilli()-p.waiting(ctx, at))
	}
	return records + p.c.Pending(), millis
}

// waiting is when the record behind the cursor was stored, or while the ledger cannot be asked the one at it.
func (p *Projections) waiting(ctx context.Context, at cursor) int64 {
	for batch, err := range p.c.Reader.Follow(ctx, at.position) {
		if err == nil {
			return batch.Records[0].Header.RecordedAt
		}
	}
	return at.recordedAt
}

// reached reports whether all projections that have not failed have taken in the position, and
// returns a channel that is closed when that may have changed. It is never so when all have failed.
func (p *Projections) reached(position ledger.Position) (bool, <-chan struct{}) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	reached := false
	for _, pair := range p.sets {
		if pair.active.failure != nil {
			continue
		}
		if pair.active.at.position < position {
			return false, p.moved
		}
		reached = true
	}
	return reached, p.moved
}

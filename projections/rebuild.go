package projections

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/sync/errgroup"

	"github.com/talenttrust/auditledger/ledger"
)

// Rebuild starts to build the named projection's rows anew, beside the old ones, which answer until
// the new ones are at the same record; States shows how far it is. If both are whole and of the same
// version they must be equal: if they are not, the old ones stay, stopped and marked as failed, and a
// second Rebuild replaces them. When Rebuild returns, the wish is on disk: a rebuild that the end of the
// program interrupts, even a kill, goes on at the next start. It is a *ParameterError when there is no
// such projection; one under way is not started again.
func (p *Projections) Rebuild(_ context.Context, name string) error {
	pair, err := p.pair(name)
	if err != nil {
		return err
	}
	done, err := p.use()
	if err != nil {
		return err
	}
	defer done()
	r, err := p.begin(pair, name)
	if r == nil || err != nil {
		return err
	}
	if err := p.db.Flush(); err != nil {
		return fmt.Errorf("rebuild %s: %w", name, err)
	}
	p.jobs <- r
	p.c.Logger.Info("a projection is being rebuilt", "projection", name)
	return nil
}

// begin makes the rows that are to be built; nil when there are some already.
func (p *Projections) begin(pair *pair, name string) (*rows, error) {
	p.applying.Lock()
	defer p.applying.Unlock()
	if pair.building != nil {
		return nil, nil
	}
	old := pair.active
	generation := old.prefix[1]%255 + 1 // never 0
	r := p.newRows(old.projection, generation)
	b := p.db.NewBatch()
	defer b.Close()
	err := firstOf(
		b.DeleteRange(r.prefix[:], r.prefix.end(), nil),
		r.saveCursor(b, r.at),
		b.Set(metaKey("set", r.id), []byte{old.prefix[1], generation}, nil),
		b.Commit(pebble.NoSync))
	if err != nil {
		return nil, fmt.Errorf("rebuild %s: %w", name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	pair.building = r
	return r, nil
}

func (p *Projections) pair(name string) (*pair, error) {
	if pair := p.sets[name]; pair != nil {
		return pair, nil
	}
	var names []string
	for _, known := range p.known {
		names = append(names, known.name)
	}
	return nil, &ParameterError{"name", "must be one of " + strings.Join(names, ", ")}
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// bringUp makes rows that are behind the group part of it, and lets them answer when they were built anew.
func (p *Projections) bringUp(ctx context.Context, r *rows) error {
	err := p.retry(ctx, r.name, func(progress func()) error {
		return errors.Join(p.catchUpOn(ctx, r, progress), p.saveRows(r))
	})
	if err != nil || ctx.Err() != nil {
		return err
	}
	return p.settle(ctx, r)
}

// catchUpOn follows the ledger until the rows are where the group is. While events come in, it leaves
// them half of the time.
func (p *Projections) catchUpOn(ctx context.Context, r *rows, progress func()) error {
	done, err := p.catchUp(r, nil)
	if done || err != nil {
		return err
	}
	at, moved := p.position(), time.Time{}
	for batch, err := range p.batches(ctx, r.next.position) {
		if err != nil {
			return err
		}
		began := time.Now()
		if done, err := p.catchUp(r, batch.Records); done || err != nil {
			return err
		}
		progress()
		if now := p.position(); now != at {
			at, moved = now, time.Now()
		}
		if time.Since(moved) < time.Second {
			pause(ctx, time.Since(began))
		}
	}
	return nil
}

func (p *Projections) saveRows(r *rows) error {
	p.applying.Lock()
	defer p.applying.Unlock()
	if r.joined || r.dropped {
		return nil
	}
	return p.write([]*rows{r})
}

// catchUp takes records into rows that are behind. It is done when they are where the group is,
// and part of it, or can go no further.
func (p *Projections) catchUp(r *rows, recs []ledger.Record) (done bool, err error) {
	p.applying.Lock()
	defer p.applying.Unlock()
	if r.dropped {
		return true, nil
	}
	recs = recs[:sort.Search(len(recs), func(i int) bool { return recs[i].Position > p.next.position })]
	group := []*rows{r}
	if err := p.fold(group, recs); err != nil {
		return false, err
	}
	stopped := r.failure != nil && len(recs) > 0 && recs[len(recs)-1].Position >= r.failure.Position
	there := r.failure == nil && r.next.position == p.next.position
	if stopped || there || p.enough(group) { // rows of the group are written as far as the group is, or farther
		err = p.write(group)
	}
	if there && err == nil {
		p.join(r)
	}
	return r.joined || stopped, err
}

// settle ends a rebuild: the new rows answer, or they go.
func (p *Projections) settle(ctx context.Context, r *rows) error {
	pair := p.sets[r.name]
	p.mu.RLock()
	old, rebuilt := pair.active, pair.building == r
	p.mu.RUnlock()
	if !rebuilt {
		return nil
	}
	same, err := p.compare(ctx, old, r)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errDatabase, err)
	}
	p.applying.Lock()
	defer p.applying.Unlock()
	switch {
	case r.failure != nil:
		p.c.Logger.Error("a projection could not be rebuilt", "projection", r.name, "position", r.failure.Position, "reason", r.failure.Reason)
		return p.replace(pair, old, r)
	case !same:
		p.stop(old, &Failure{old.at.position + 1, "rows built anew from the same records are not the same; rebuild once more to replace the old ones"})
		return p.replace(pair, old, r)
	}
	p.c.Logger.Info("a projection was rebuilt", "projection", r.name, "position", r.at.position)
	return p.replace(pair, r, old)
}

// compare reports whether the two generations hold the same rows, where that can be expected: they
// are whole and follow together.
func (p *Projections) compare(ctx context.Context, a, b *rows) (same bool, err error) {
	p.applying.Lock()
	err = p.save()
	comparable := a.joined && b.joined && a.failure == nil && b.failure == nil
	snap := p.db.NewSnapshot()
	p.applying.Unlock()
	defer func() { err = errors.Join(err, snap.Close()) }()
	if err != nil {
		return false, err
	}
	if !comparable {
		return true, nil
	}
	var sums [2]ledger.Hash
	g, ctx := errgroup.WithContext(ctx)
	for i, r := range []*rows{a, b} {
		g.Go(func() (err error) {
			sums[i], err = digest(ctx, r.view(snap))
			return err
		})
	}
	err = g.Wait()
	return sums[0].Equal(sums[1]), err
}

// replace lets one generation answer and drops the other. It is called with applying held.
func (p *Projections) replace(pair *pair, stays, goes *rows) error {
	b := p.db.NewBatch()
	defer b.Close()
	err := firstOf(
		b.Set(metaKey("set", stays.id), []byte{stays.prefix[1], 0}, nil),
		b.DeleteRange(goes.prefix[:], goes.prefix.end(), nil),
		b.Delete(metaKey("cursor", goes.prefix[:]...), nil),
		b.Commit(pebble.NoSync))
	if err != nil {
		return fmt.Errorf("%w: %w", errDatabase, err)
	}
	p.group = without(p.group, goes)
	goes.dropped = true
	if err := goes.dropEarly(); err != nil {
		return fmt.Errorf("%w: %w", errDatabase, err)
	}
	p.unsaved++
	p.mu.Lock()
	defer p.mu.Unlock()
	pair.active, pair.building = stays, nil
	p.wake()
	return nil
}

func without(group []*rows, goes *rows) (rest []*rows) {
	for _, r := range group {
		if r != goes {
			rest = append(rest, r)
		}
	}
	return rest
}

// Digest is the SHA-256 of all rows of the named projection and the position they are at. The same
// records give the same digest.
func (p *Projections) Digest(ctx context.Context, name string) (sum ledger.Hash, at ledger.Position, err error) {
	err = p.Query().on(name, func(_ *moment, v *view) error {
		at = v.at.position
		sum, err = digest(ctx, v)
		return err
	})
	return sum, at, err
}

// digest hashes every row: the length of its key and the key, without projection and generation,
// the length of its value and the value. Packed rows are hashed item by item, each under the key of its own.
func digest(ctx context.Context, v *view) (sum ledger.Hash, err error) {
	h := sha256.New()
	var length []byte
	add := func(part []byte) {
		length = binary.AppendUvarint(length[:0], uint64(len(part)))
		h.Write(length)
		h.Write(part)
	}
	var own []byte
	err = v.scan(ctx, v.prefix[:], v.prefix.end(), false, func(key, val []byte) (bool, error) {
		name := key[len(v.prefix):]
		if strings.IndexByte(v.packed, name[0]) < 0 {
			add(name)
			add(val)
			return true, nil
		}
		for it, err := range unpack(key, val) {
			if err != nil {
				return false, err
			}
			own = appendNumbers(append(own[:0], name[:len(name)-8]...), uint64(it.at))
			add(own)
			add(it.val)
		}
		return true, nil
	})
	h.Sum(sum[:0])
	return sum, err
}

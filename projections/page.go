package projections

import (
	"context"
	"fmt"
	"slices"

	"github.com/talenttrust/auditledger/ledger"
)

// span is a part of a list: the items behind one key and before another, exclusive; nil is the end
// of the list. Backwards walks it from its end.
type span struct {
	after, before []byte
	backwards     bool
}

// list walks a span of itself and hands out items with their keys until use returns false.
type list[T any] func(ctx context.Context, s span, use func(key []byte, item T) (bool, error)) error

// paging is a Page that was found to be right.
type paging struct {
	span
	sealer
	size int
	asOf ledger.Position // 0: now
}

// check resolves the page's sizes and cursors.
func (g *Page) check(s sealer) (p paging, err error) {
	p = paging{sealer: s, size: g.First, asOf: g.AsOf}
	switch {
	case g.First != 0 && g.Last != 0:
		return p, &ParameterError{"last", "must not stand beside first"}
	case g.First < 0 || g.First > MaxPage:
		return p, &ParameterError{"first", fmt.Sprintf("must be from 1 to %d", MaxPage)}
	case g.Last < 0 || g.Last > MaxPage:
		return p, &ParameterError{"last", fmt.Sprintf("must be from 1 to %d", MaxPage)}
	case g.Last != 0:
		p.size, p.backwards = g.Last, true
	case g.First == 0:
		p.size = DefaultPage
	}
	if p.after, err = p.cursor("after", g.After); err != nil {
		return p, err
	}
	p.before, err = p.cursor("before", g.Before)
	return p, err
}

// cursor opens a cursor and takes over its as-of position.
func (p *paging) cursor(name, text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	asOf, key, ok := p.open(text)
	if !ok {
		return nil, &ParameterError{name, "must be a cursor that was answered to the same query"}
	}
	if p.asOf != 0 && p.asOf != asOf {
		return nil, &ParameterError{name, "must be a cursor as of the same position"}
	}
	p.asOf = asOf
	return key, nil
}

// cursors are those of a page's items.
type cursors struct {
	sealer
	asOf ledger.Position
	keys [][]byte
}

func (c *cursors) at(i int) string { return c.seal(c.asOf, c.keys[i]) }

// fetch takes the page out of the list.
func fetch[T any](ctx context.Context, p *paging, from list[T]) (items []T, c cursors, info PageInfo, err error) {
	c = cursors{sealer: p.sealer, asOf: p.asOf}
	more := false
	err = from(ctx, p.span, func(key []byte, item T) (bool, error) {
		if more = len(items) == p.size; more {
			return false, nil
		}
		items, c.keys = append(items, item), append(c.keys, slices.Clone(key))
		return true, nil
	})
	info.HasNextPage, info.HasPreviousPage = p.before != nil, p.after != nil
	if p.backwards {
		slices.Reverse(items)
		slices.Reverse(c.keys)
		info.HasPreviousPage = info.HasPreviousPage || more
	} else {
		info.HasNextPage = info.HasNextPage || more
	}
	if n := len(items); n > 0 {
		info.StartCursor, info.EndCursor = c.at(0), c.at(n-1)
	}
	return items, c, info, err
}

// count counts the list's items in a span, nil when there are more than most.
func count[T any](ctx context.Context, from list[T], s span, most int64) (*int64, error) {
	n := int64(0)
	err := from(ctx, s, func([]byte, T) (bool, error) {
		n++
		return n <= most, nil
	})
	if err != nil || n > most {
		return nil, err
	}
	return &n, nil
}

// first is the first item in a span of the list, nil when there is none.
func first[T any](ctx context.Context, from list[T], s span) (found *T, err error) {
	err = from(ctx, s, func(_ []byte, item T) (bool, error) {
		found = &item
		return false, nil
	})
	return found, err
}

package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"
)

// DeadLetter is an event the ledger will never take as it is, or input that is not an event.
type DeadLetter struct {
	ID int64
	Event
	EnqueuedAt time.Time
	DiedAt     time.Time // the last time
	Reason     Reason
	Times      int // how often the very same event was refused
}

// Selection picks dead letters. The zero value picks all.
type Selection struct {
	IDs  []int64 // these, if any are named
	Code string  // of this code, if it is set
}

func (s Selection) where() (string, []any) {
	var terms []string
	var args []any
	if len(s.IDs) > 0 {
		terms = append(terms, "id IN (?"+strings.Repeat(", ?", len(s.IDs)-1)+")")
		for _, id := range s.IDs {
			args = append(args, id)
		}
	}
	if s.Code != "" {
		terms, args = append(terms, "code = ?"), append(args, s.Code)
	}
	if len(terms) == 0 {
		return "true", nil
	}
	return strings.Join(terms, " AND "), args
}

const deadColumns = `id, form, type, contract_id, event_id, sequence, payload_hash, body, origin, enqueued_at, died_at, status, code, reason, times`

// deadPage bounds how long one read transaction lives: a long one would keep the WAL from shrinking.
const deadPage = 100

// DeadLetters yields the selected dead letters in the order in which they first died. An error is
// yielded and ends it.
func (o *Outbox) DeadLetters(ctx context.Context, pick Selection) iter.Seq2[DeadLetter, error] {
	return paged(func(after int64) ([]DeadLetter, error) { return o.deadAfter(ctx, pick, after) },
		func(d DeadLetter) int64 { return d.ID })
}

func (o *Outbox) deadAfter(ctx context.Context, pick Selection, after int64) ([]DeadLetter, error) {
	where, args := pick.where()
	rows, err := o.read.QueryContext(ctx, `SELECT `+deadColumns+` FROM dead WHERE `+where+` AND id > ? ORDER BY id LIMIT ?`, append(args, after, deadPage)...)
	if err != nil {
		return nil, fmt.Errorf("read dead letters: %w", err)
	}
	defer rows.Close()
	var page []DeadLetter
	for rows.Next() {
		d, err := scanDead(rows)
		if err != nil {
			return nil, fmt.Errorf("read dead letters: %w", err)
		}
		page = append(page, d)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read dead letters: %w", err)
	}
	return page, nil
}

func scanDead(rows *sql.Rows) (DeadLetter, error) {
	var d DeadLetter
	var hash []byte
	var enqueued, died int64
	err := rows.Scan(&d.ID, &d.Form, &d.Type, &d.ContractID, &d.EventID, &d.Sequence, &hash, &d.Body, &d.Origin,
		&enqueued, &died, &d.Reason.Status, &d.Reason.Code, &d.Reason.Text, &d.Times)
	copy(d.PayloadHash[:], hash)
	d.EnqueuedAt, d.DiedAt = time.UnixMilli(enqueued), time.UnixMilli(died)
	return d, err
}

// DeadCodes counts the dead letters by code.
func (o *Outbox) DeadCodes(ctx context.Context) (map[string]int, error) {
	rows, err := o.read.QueryContext(ctx, `SELECT code, count(*) FROM dead GROUP BY code`)
	if err != nil {
		return nil, fmt.Errorf("count dead letters: %w", err)
	}
	defer rows.Close()
	counts := map[string]int{}
	for rows.Next() {
		var code string
		var n int
		if err := rows.Scan(&code, &n); err != nil {
			return nil, fmt.Errorf("count dead letters: %w", err)
		}
		counts[code] = n
	}
	return counts, rows.Err()
}

// AllPending yields every pending event, parked ones too, in no particular order between the two
// kinds. An error is yielded and ends it.
func (o *Outbox) AllPending(ctx context.Context) iter.Seq2[Pending, error] {
	return func(yield func(Pending, error) bool) {
		for _, parked := range []bool{false, true} {
			pages := paged(func(after int64) ([]Pending, error) {
				return o.Next(ctx, after, parked, deadPage, defaultMaxEventBytes)
			},
				func(p Pending) int64 { return p.Seq })
			for p, err := range pages {
				if !yield(p, err) || err != nil {
					return
				}
			}
		}
	}
}

// paged yields what read returns, page after page, until there is nothing after the last one.
func paged[T any](read func(after int64) ([]T, error), id func(T) int64) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for after := int64(0); ; {
			page, err := read(after)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			if len(page) == 0 {
				return
			}
			for _, item := range page {
				if !yield(item, nil) {
					return
				}
			}
			after = id(page[len(page)-1])
		}
	}
}

// Requeue makes a dead letter pending again, after everything that waits. It reports false when
// there is no dead letter of that id, and an error for one that is not an event.
func (o *Outbox) Requeue(ctx context.Context, id int64) (bool, error) {
	return o.takeDead(ctx, id, func(tx txn, d DeadLetter) error {
		if d.Form == FormLine {
			return errors.New("it is not an event: export it, mend it and send it again")
		}
		_, err := tx.o.stmt.insert.ExecContext(tx.ctx, d.identity(), d.PayloadHash[:], string(d.Form), d.Type, d.ContractID, d.EventID, d.Sequence,
			column(d.Body), len(d.Body), d.Origin, tx.now)
		return err
	})
}

// Remove deletes a dead letter; it is for those that were exported. It reports false when there is
// none of that id.
func (o *Outbox) Remove(ctx context.Context, id int64) (bool, error) {
	return o.takeDead(ctx, id, func(txn, DeadLetter) error { return nil })
}

// takeDead removes a dead letter in the transaction in which use has used it.
func (o *Outbox) takeDead(ctx context.Context, id int64, use func(txn, DeadLetter) error) (found bool, err error) {
	err = o.commit(ctx, func(tx txn) error {
		rows, err := o.conn.QueryContext(tx.ctx, `SELECT `+deadColumns+` FROM dead WHERE id = ?`, id)
		if err != nil {
			return err
		}
		defer rows.Close()
		if found = rows.Next(); !found {
			return rows.Err()
		}
		d, err := scanDead(rows)
		if err := errors.Join(err, rows.Close()); err != nil {
			return err
		}
		if err := use(tx, d); err != nil {
			return err
		}
		_, err = o.conn.ExecContext(tx.ctx, `DELETE FROM dead WHERE id = ?`, id)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("dead letter %d: %w", id, err)
	}
	o.wake()
	return found, nil
}

package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// leasePoll is how often a sender that stands by looks whether the lease is free.
const leasePoll = 250 * time.Millisecond

// Lease is the right to send what an outbox holds. At most one exists per file, over all
// processes, so that two senders never take one event and a contract's order is kept.
type Lease struct {
	db   *sql.DB
	conn *sql.Conn
}

// Lease waits until no other sender has the lease, and takes it. It ends with Release or with the
// process, however that dies, and with nothing else: it is a file lock (the write lock of the
// SQLite file Path-sender), so it needs no clock and the next sender never has to wait for a time
// to pass. standby, if not nil, is called once when another sender has it.
func (o *Outbox) Lease(ctx context.Context, standby func()) (*Lease, error) {
	path := o.cfg.Path + "-sender"
	if err := createPrivate(path); err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	db, err := sql.Open("sqlite", databaseURL(path))
	if err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("lease: %w", errors.Join(err, db.Close()))
	}
	l := &Lease{db, conn}
	if err := l.wait(ctx, standby); err != nil {
		return nil, fmt.Errorf("lease: %w", errors.Join(err, l.close()))
	}
	return l, nil
}

func (l *Lease) wait(ctx context.Context, standby func()) error {
	tick := time.NewTicker(leasePoll)
	defer tick.Stop()
	for {
		_, err := l.conn.ExecContext(ctx, "BEGIN EXCLUSIVE")
		if err == nil || !isBusy(err) {
			return err
		}
		if standby != nil {
			standby()
			standby = nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func isBusy(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_BUSY
}

// Release gives the lease to the next sender.
func (l *Lease) Release() error {
	_, err := l.conn.ExecContext(context.Background(), "ROLLBACK")
	return errors.Join(err, l.close())
}

func (l *Lease) close() error { return errors.Join(l.conn.Close(), l.db.Close()) }

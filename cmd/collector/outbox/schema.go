package outbox

import (
	"context"
	"database/sql"
	"fmt"
)

// An outbox file is told by its application id ("OBX1"), its form by user_version. A later form
// gets the next version and a step that turns the one before into it.
const (
	applicationID = 0x4f425831
	schemaVersion = 1
)

// schema is version 1. The totals are kept by triggers, so that they stay right when a person
// edits the file, and so that a start costs the same with 5,000,000 rows as with none.
const schema = `
CREATE TABLE outbox (
  seq          INTEGER PRIMARY KEY AUTOINCREMENT, -- order of arrival and of delivery, never used twice
  event_key    BLOB NOT NULL,    -- identity: 16 bytes of SHA-256 over form, contract_id, event_id, sequence
  payload_hash BLOB NOT NULL,    -- SHA-256 of the canonical payload
  form         TEXT NOT NULL,    -- event | envelope
  type         TEXT NOT NULL,
  contract_id  TEXT NOT NULL,
  event_id     TEXT NOT NULL,
  sequence     TEXT NOT NULL,
  body         ANY NOT NULL,     -- JSON; a blob when it is not clean UTF-8
  size         INTEGER NOT NULL, -- bytes of body
  origin       TEXT NOT NULL,
  enqueued_at  INTEGER NOT NULL, -- milliseconds since 1970
  parked       TEXT,             -- why it is tried only now and then, if it is
  UNIQUE (event_key, payload_hash)
) STRICT;
CREATE INDEX outbox_parked ON outbox (seq) WHERE parked IS NOT NULL;

CREATE TABLE dead (
  id           INTEGER PRIMARY KEY AUTOINCREMENT,
  event_key    BLOB NOT NULL,
  payload_hash BLOB NOT NULL,
  body_hash    BLOB NOT NULL,    -- SHA-256 of body
  form         TEXT NOT NULL,    -- event | envelope | line (not an event at all)
  type         TEXT NOT NULL,
  contract_id  TEXT NOT NULL,
  event_id     TEXT NOT NULL,
  sequence     TEXT NOT NULL,
  body         ANY NOT NULL,
  size         INTEGER NOT NULL,
  origin       TEXT NOT NULL,
  enqueued_at  INTEGER NOT NULL,
  died_at      INTEGER NOT NULL,
  status       INTEGER NOT NULL, -- HTTP status that decided, 0 when the collector did
  code         TEXT NOT NULL,
  reason       TEXT NOT NULL,
  times        INTEGER NOT NULL DEFAULT 1, -- how often the very same event was refused
  UNIQUE (event_key, payload_hash, body_hash)
) STRICT;

CREATE TABLE source (
  name       TEXT PRIMARY KEY,   -- identity of a followed file: device and inode
  path       TEXT NOT NULL,      -- where it was last seen
  position   INTEGER NOT NULL,   -- bytes whose events are in the outbox, or were
  head       BLOB NOT NULL,      -- SHA-256 of the file's first bytes, to tell another file from it
  tail       BLOB NOT NULL,      -- SHA-256 of the last bytes before position
  updated_at INTEGER NOT NULL
) STRICT;

CREATE TABLE totals (pending INTEGER NOT NULL, bytes INTEGER NOT NULL, parked INTEGER NOT NULL, dead INTEGER NOT NULL) STRICT;
INSERT INTO totals VALUES (0, 0, 0, 0);
CREATE TRIGGER outbox_added AFTER INSERT ON outbox BEGIN
  UPDATE totals SET pending = pending + 1, bytes = bytes + NEW.size, parked = parked + (NEW.parked IS NOT NULL);
END;
CREATE TRIGGER outbox_removed AFTER DELETE ON outbox BEGIN
  UPDATE totals SET pending = pending - 1, bytes = bytes - OLD.size, parked = parked - (OLD.parked IS NOT NULL);
END;
CREATE TRIGGER outbox_parked_changed AFTER UPDATE OF parked ON outbox BEGIN
  UPDATE totals SET parked = parked - (OLD.parked IS NOT NULL) + (NEW.parked IS NOT NULL);
END;
CREATE TRIGGER dead_added AFTER INSERT ON dead BEGIN UPDATE totals SET dead = dead + 1; END;
CREATE TRIGGER dead_removed AFTER DELETE ON dead BEGIN UPDATE totals SET dead = dead - 1; END;
`

// prepareSchema creates the tables in an empty file and refuses a file that is not an outbox, or
// one of another version. Two programs that start at once wait for each other.
func prepareSchema(ctx context.Context, conn *sql.Conn) error {
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if err := checkOrCreate(ctx, conn); err != nil {
		conn.ExecContext(ctx, "ROLLBACK")
		return err
	}
	_, err := conn.ExecContext(ctx, "COMMIT")
	return err
}

func checkOrCreate(ctx context.Context, conn *sql.Conn) error {
	var app, version, tables int
	row := conn.QueryRowContext(ctx, `SELECT (SELECT application_id FROM pragma_application_id),
		(SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)`)
	if err := row.Scan(&app, &version, &tables); err != nil {
		return err
	}
	switch {
	case app == applicationID && version == schemaVersion:
		return nil
	case app == applicationID:
		return fmt.Errorf("the file has schema version %d, this program knows %d", version, schemaVersion)
	case app != 0 || version != 0 || tables != 0:
		return fmt.Errorf("the file is an SQLite database, but not an outbox")
	}
	_, err := conn.ExecContext(ctx, schema+fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d;", applicationID, schemaVersion))
	return err
}

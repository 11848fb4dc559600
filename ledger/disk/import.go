package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/talenttrust/auditledger/ledger"
)

// Import implements ledger.Importer. The records go through the writer, as entries do.
func (s *Store) Import(ctx context.Context, records []ledger.Record) (int, error) {
	if !s.c.Import {
		return 0, fmt.Errorf("the store was not opened to import records: %w", ledger.ErrUnavailable)
	}
	if len(records) == 0 {
		return 0, nil
	}
	if err := s.mark(); err != nil {
		return 0, fmt.Errorf("mark the folder as unfinished: %w: %w", ledger.ErrUnavailable, err)
	}
	c := &call{ctx: ctx, records: records, seen: make([]sight, len(records)), done: make(chan struct{})}
	for i := range records {
		var err error
		if c.seen[i], err = s.look(&records[i].Header); err != nil {
			return 0, fmt.Errorf("%w: %w", ledger.ErrUnavailable, err)
		}
		c.seen[i].body = appendBody(nil, &records[i].Body)
	}
	if err := s.enqueue(c); err != nil {
		return 0, err
	}
	<-c.done // the writer does not wait for anybody
	if c.err != nil {
		return 0, c.err
	}
	return c.stored, c.refused
}

// stageRecords appends a call's records to the group as they are, up to the first that does not continue
// what is there.
func (g *group) stageRecords(c *call) error {
	for i := range c.records {
		rec := c.records[i]
		head, found, err := g.now(&rec.Header, &c.seen[i])
		if err != nil {
			return fmt.Errorf("%w: %w", ledger.ErrUnavailable, err)
		}
		if c.refused = rec.Continue(head, found); c.refused == nil && g.next == 1 && rec.Header.Type != ledger.LedgerCreated {
			c.refused = fmt.Errorf("a ledger begins with a record of type %s", ledger.LedgerCreated)
		}
		if c.refused != nil {
			return nil
		}
		rec.Position = g.next
		g.add(&rec, c.seen[i].body, head)
		c.stored++
	}
	return nil
}

// markName is the file that says that the ledger is not whole.
const markName = "IMPORT"

// mark says so, before the first record is there.
func (s *Store) mark() error {
	if s.marked {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(s.c.Dir, markName), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%v\n", ledger.ErrUnfinished)
	if err = errors.Join(err, f.Sync(), f.Close(), syncDir(s.c.Dir)); err == nil {
		s.marked = true
	}
	return err
}

// Finish implements ledger.Importer.
func (s *Store) Finish(context.Context) error {
	if err := os.Remove(filepath.Join(s.c.Dir, markName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.marked = false
	return syncDir(s.c.Dir)
}

// refuseUnfinished refuses a folder that is marked, unless it was opened to go on with the import.
func (s *Store) refuseUnfinished() error {
	if _, err := os.Stat(filepath.Join(s.c.Dir, markName)); err == nil && !s.c.Import {
		return fmt.Errorf("data folder %s: %w", s.c.Dir, ledger.ErrUnfinished)
	}
	return nil
}

// holdsLedger reports whether there is a log in the folder.
func holdsLedger(dir string) bool {
	names, err := filepath.Glob(filepath.Join(dir, logDir, "*.seg"))
	return err == nil && len(names) > 0
}

package projections

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cockroachdb/pebble/v2/sstable"
	"golang.org/x/sync/errgroup"

	"github.com/talenttrust/auditledger/ledger/keyindex"
)

// Many rows are written as tables that the database takes in whole and all at once, behind what it still
// has in memory: the same rows in a batch would be sorted into memory, written out from there and merged.
// Rows under a packed tag are tables of their own, since those before and after them change and they do not.

// tableItems is how many rows come into one table where they are by position only. Such tables are
// written side by side.
const tableItems = 32_768

// section is what comes into one table, in the order of the keys.
type section struct {
	lasting bool // its rows lie behind all that are there
	parts   []part
}

// part is rows under one tag: some that are sorted, or all.
type part struct {
	r    *rows
	tag  byte
	some []change
}

func (s *section) write(w *sstable.Writer) error {
	for _, p := range s.parts {
		if p.some == nil {
			p.r.sort(p.tag)
			p.some = p.r.changes[p.tag]
		}
		if err := p.r.emit(p.tag, p.some, w.Set, w.Delete); err != nil {
			return err
		}
	}
	return nil
}

// sections divides what is to be written into tables, in the order of the keys.
func sections(group []*rows) (all []section) {
	var mixed section
	end := func() {
		if len(mixed.parts) > 0 {
			all = append(all, mixed)
		}
		mixed = section{}
	}
	for _, r := range group {
		for i, changes := range r.changes {
			switch tag := byte(i); {
			case len(changes) == 0:
			case !r.isPacked(tag):
				mixed.parts = append(mixed.parts, part{r: r, tag: tag})
			case len(r.group(&changes[0])) == len(r.prefix)+1: // by position only
				end()
				r.sort(tag)
				for some := range slices.Chunk(r.changes[tag], tableItems) {
					all = append(all, section{true, []part{{r, tag, some}}})
				}
			default:
				end()
				all = append(all, section{parts: []part{{r: r, tag: tag}}})
			}
		}
	}
	end()
	return all
}

// ingest writes the changes of the rows, and their cursors, as tables and has the database take them in.
func (p *Projections) ingest(group []*rows) (err error) {
	dir := filepath.Join(p.c.Dir, tablesDir)
	defer func() { err = errors.Join(err, p.files.RemoveAll(dir)) }()
	if err := p.files.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var g errgroup.Group
	var paths []string
	table := func(lasting bool, write func(*sstable.Writer) error) {
		path := filepath.Join(dir, strconv.Itoa(len(paths))+".sst")
		paths = append(paths, path)
		g.Go(func() error { return keyindex.WriteTable(p.files, path, lasting, write) })
	}
	table(false, func(w *sstable.Writer) error { return saveCursors(group, w.Set) })
	for _, s := range sections(group) {
		table(s.lasting, s.write)
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("write tables: %w", err)
	}
	return p.db.Ingest(context.Background(), paths) // to its end: it is all or nothing
}

// tablesDir is where tables are written before the database takes them in. What a kill leaves there is
// part of nothing.
const tablesDir = "tables"

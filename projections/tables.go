package projections

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
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
// Rows that are by position only are final as soon as they are folded: where there are enough for a table
// it is written at once, while more is folded, and taken in with the others.

const (
	// tablesDir is where tables are written before the database takes them in. What a kill leaves there is
	// part of nothing.
	tablesDir = "tables"
	// tableItems is how many items come into one table, and from how many on those that are final do.
	tableItems = 32_768
)

// tables are some that are being written, side by side.
type tables struct {
	p     *Projections
	paths []string
	g     errgroup.Group
}

// add begins to write a table. write puts its rows in the order of their keys; lasting is as in
// keyindex.WriteTable. It is called with applying held.
func (t *tables) add(lasting bool, write func(*sstable.Writer) error) {
	path := filepath.Join(t.p.c.Dir, tablesDir, strconv.FormatInt(t.p.begun, 10)+".sst")
	t.p.begun++
	t.paths = append(t.paths, path)
	t.g.Go(func() error { return keyindex.WriteTable(t.p.files, path, lasting, write) })
}

// remove waits for the tables and removes those that are still there.
func (t *tables) remove() (err error) {
	_ = t.g.Wait()
	for _, path := range t.paths {
		if gone := t.p.files.Remove(path); gone != nil && !errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// writeEarly begins to write those of the folded rows that are final, where they are enough for a table.
// It is called with applying held.
func (p *Projections) writeEarly(r *rows) {
	for tag := range r.lots {
		l := &r.lots[tag]
		if len(l.list) < p.tableItems || !l.lasting() {
			continue
		}
		full := *l
		*l = lot{arena: make([]byte, 0, cap(full.arena)), list: make([]change, 0, cap(full.list))} // for as many again
		if r.early == nil {
			r.early = &tables{p: p}
		}
		r.early.add(true, func(w *sstable.Writer) error { return full.emit(w.Set, w.Delete) })
	}
}

// dropEarly throws away what writeEarly began.
func (r *rows) dropEarly() error {
	if r.early == nil {
		return nil
	}
	err := r.early.remove()
	r.early = nil
	return err
}

// ingest writes the changes of the rows, and their cursors, as tables and has the database take them in.
func (p *Projections) ingest(group []*rows) (err error) {
	late := &tables{p: p}
	defer func() { err = errors.Join(err, late.remove()) }()
	late.add(false, func(w *sstable.Writer) error { return saveCursors(group, w.Set) })
	for _, lots := range inTables(group) {
		late.add(lots[0].lasting(), func(w *sstable.Writer) (err error) {
			for _, l := range lots {
				err = cmp.Or(err, l.emit(w.Set, w.Delete))
			}
			return err
		})
	}
	paths := late.paths
	err = late.g.Wait()
	for _, r := range group {
		if r.early != nil {
			paths = append(paths, r.early.paths...)
			err = errors.Join(err, r.early.g.Wait())
			r.early = nil
		}
	}
	late.paths = paths // to be removed
	if err != nil {
		return fmt.Errorf("write tables: %w", err)
	}
	return p.db.Ingest(context.Background(), paths) // to its end: it is all or nothing
}

// inTables divides what is to be written into tables, in the order of the keys.
func inTables(group []*rows) (all [][]lot) {
	var mixed []lot
	end := func() {
		if len(mixed) > 0 {
			all = append(all, mixed)
		}
		mixed = nil
	}
	for _, r := range group {
		for _, l := range r.lots {
			switch {
			case len(l.list) == 0:
			case l.packed:
				end()
				for some := range slices.Chunk(l.list, tableItems) {
					all = append(all, []lot{{l.packed, l.arena, some}})
				}
			default:
				mixed = append(mixed, l)
			}
		}
	}
	end()
	return all
}

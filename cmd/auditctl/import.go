package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sync/errgroup"

	"github.com/talenttrust/auditledger/ledger"
)

type importCmd struct {
	houseFlags
	File    string `arg:"" optional:"" default:"-" help:"File that an export wrote; standard input when left out." placeholder:"FILE"`
	SHA256  string `name:"sha256" help:"SHA-256 that the export said: the import finishes only if the file has it. Nothing else tells a file whose last lines are missing." placeholder:"HEX"`
	MaxLine int    `default:"33554432" help:"Longest line in bytes."`
}

// Help is the long help text.
func (c *importCmd) Help() string {
	return `The store must be empty, or hold the beginning of exactly this file: then the import goes on behind that, so
that after a kill the same command is given again. Every hash is computed anew. The first line that is not
right is named; what came before it stays. Until all is there, no service opens the ledger.`
}

// Validate is called by kong once the flags are read.
func (c *importCmd) Validate() error {
	if b, err := hex.DecodeString(c.SHA256); c.SHA256 != "" && (err != nil || len(b) != 32) {
		return errors.New("--sha256 must be 64 hex digits")
	}
	if c.MaxLine < 1024 {
		return errors.New("--max-line must be at least 1024")
	}
	return nil
}

// Run fills a store with the records of a file.
func (c *importCmd) Run(ctx context.Context, s *streams) (err error) {
	in, size := s.in, int64(0)
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return err
		}
		defer f.Close() // it was only read
		if info, err := f.Stat(); err == nil {
			size = info.Size()
		}
		in = f
	}
	store, done, err := c.open(ctx, s, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	i := &importing{importCmd: c, store: store, lines: newLines(in, c.MaxLine), size: size, talk: s.err}
	if err := i.run(ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "%s records of ledger %s, SHA-256 of the export %s: it is what an export of this store gives now\n%s were there already, %s were imported (%s, %s records per second)\n",
		humanize.Comma(i.stored), i.id, i.digest(), humanize.Comma(i.there), humanize.Comma(i.stored-i.there), i.took.Round(time.Millisecond), perSecond(i.stored-i.there, i.took))
	return err
}

// importing is an import on its way.
type importing struct {
	*importCmd
	store ledger.Importer
	lines *lines
	size  int64 // of the file; 0 when it is not known
	talk  io.Writer

	there, stored int64 // records that were in the store at the start, that are now
	id            string
	took          time.Duration // to import
}

func (i *importing) digest() string { return hex.EncodeToString(i.lines.sum.Sum(nil)) }

// run skips what is there, imports the rest, and compares the whole before it says that it is one.
func (i *importing) run(ctx context.Context) (err error) {
	if err := i.skip(ctx); err != nil {
		return err
	}
	start := time.Now()
	if err := i.fill(ctx); err != nil {
		return fmt.Errorf("%w (%s records are stored, and the ledger stays closed; an import of the right file goes on behind them)", err, humanize.Comma(i.stored))
	}
	i.took = time.Since(start)
	if i.stored == 0 {
		return errors.New("the file is empty: a ledger has at least one record")
	}
	if want, got := i.SHA256, i.digest(); want != "" && !equalHex(want, got) {
		return fmt.Errorf("the file has SHA-256 %s, not the one of --sha256: lines are missing at its end, or it is another one; nothing was finished", got)
	}
	if err := i.compare(ctx); err != nil {
		return err
	}
	if i.id, err = ledger.ID(ctx, i.store); err != nil {
		return err
	}
	return i.store.Finish(ctx)
}

func equalHex(a, b string) bool { return bytes.EqualFold([]byte(a), []byte(b)) }

// skip holds the beginning of the file against what the store holds.
func (i *importing) skip(ctx context.Context) error {
	head, err := i.store.Head(ctx)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(i.DataDir, "projections")); head == 0 && err == nil {
		return fmt.Errorf("data folder %s holds projections of another ledger; name an empty folder", i.DataDir)
	}
	m := newMeter(i.talk, i.Progress, 0, 0)
	defer m.end()
	var have []byte
	for r, err := range recordsUpTo(ctx, i.store, 0, head) {
		if err != nil {
			return err
		}
		line, err := i.lines.next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("the store has more records than the file has lines: %s; an import goes on only with a file that begins with all that is there", humanize.Comma(i.there))
		}
		if err != nil {
			return err
		}
		if have = r.AppendJSON(have[:0]); !bytes.Equal(have, line) {
			return fmt.Errorf("the store is not empty, and what it holds is not the beginning of this file: line %d is not its record at position %s, revision %d of %s",
				i.there+1, r.Position, r.Header.Revision, r.Header.Stream)
		}
		i.there++
		m.show(i.there, i.share(i.lines.bytes))
	}
	i.stored = i.there
	return nil
}

func (i *importing) share(bytes int64) float64 {
	if i.size == 0 {
		return -1
	}
	return float64(bytes) / float64(i.size)
}

// Records are handed to the store in lots of about this size.
const (
	lotRecords = 500
	lotBytes   = 4 << 20
)

// lot is some consecutive lines.
type lot struct {
	records []ledger.Record
	end     int64 // bytes of the file up to here
}

// fill stores what is left of the file. Lines are read and checked while those before are stored.
func (i *importing) fill(ctx context.Context) error {
	m := newMeter(i.talk, i.Progress, i.stored, max(0, i.share(i.lines.bytes)))
	defer m.end()
	lots := make(chan lot)
	g, ctx := errgroup.WithContext(ctx)
	var bad error // the first line that is not right; those before it are stored all the same
	g.Go(func() error {
		defer close(lots)
		bad = i.read(ctx, lots)
		return nil
	})
	g.Go(func() error {
		for l := range lots {
			n, err := i.store.Import(ctx, l.records)
			if i.stored += int64(n); err != nil {
				return fmt.Errorf("line %d: %w", i.stored+1, err)
			}
			m.show(i.stored, i.share(l.end))
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return err
	}
	return bad
}

// read cuts the file into lots.
func (i *importing) read(ctx context.Context, lots chan<- lot) error {
	for {
		from := i.lines.bytes
		var l lot
		var err error
		for err == nil && len(l.records) < lotRecords && l.end-from < lotBytes {
			var r ledger.Record
			if r, err = i.record(); err == nil {
				l.records = append(l.records, r)
			}
			l.end = i.lines.bytes
		}
		if len(l.records) > 0 {
			select {
			case lots <- l:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// record reads the next line.
func (i *importing) record() (ledger.Record, error) {
	line, err := i.lines.next()
	if err != nil {
		return ledger.Record{}, err
	}
	r, err := ledger.ParseForeign(line)
	if err != nil {
		return r, fmt.Errorf("line %d: %w", i.lines.count, err)
	}
	return r, nil
}

// compare reads the whole store again: an export of it would be the file that was read.
func (i *importing) compare(ctx context.Context) error {
	head, err := i.store.Head(ctx)
	if err != nil {
		return err
	}
	t := newTarget(io.Discard)
	m := newMeter(i.talk, i.Progress, 0, 0)
	defer m.end()
	for r, err := range recordsUpTo(ctx, i.store, 0, head) {
		if err == nil {
			err = t.put(r)
		}
		if err != nil {
			return err
		}
		m.show(t.records, float64(r.Position)/float64(head))
	}
	if err := t.out.Flush(); err != nil {
		return err
	}
	if !bytes.Equal(t.sum.Sum(nil), i.lines.sum.Sum(nil)) {
		return fmt.Errorf("the store does not give back what was imported; it stays closed: %w", ledger.ErrDamaged)
	}
	return nil
}

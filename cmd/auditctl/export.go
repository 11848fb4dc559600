package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/talenttrust/auditledger/ledger"
)

type exportCmd struct {
	houseFlags
	File string `arg:"" optional:"" default:"-" help:"File to write; standard output when left out. It appears when it is whole; until then it is FILE.part, with which a later export goes on." placeholder:"FILE"`
}

// Help is the long help text.
func (c *exportCmd) Help() string {
	return `One line is one record, {"body":…,"header":…} in canonical form, in the order of the ledger, up to what was
its head at the start. The service must be stopped where the ledger is a folder. Everything is in the file,
payloads too: keep it as you keep the ledger.`
}

// Run writes the whole ledger.
func (c *exportCmd) Run(ctx context.Context, s *streams) (err error) {
	store, done, err := c.open(ctx, s, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	id, err := ledger.ID(ctx, store)
	if err != nil {
		return err
	}
	talk, target := s.err, newTarget(s.out)
	if c.File != "-" {
		talk = s.out
		if target, err = openPart(ctx, c.File, store); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, target.close()) }()
	}
	start, from := time.Now(), target.records
	if err := c.write(ctx, s, store, target); err != nil {
		return err
	}
	if err := target.finish(c.File); err != nil {
		return fmt.Errorf("write %s: %w", c.File, err)
	}
	took := time.Since(start)
	_, err = fmt.Fprintf(talk, "%s records of ledger %s, SHA-256 of the export %x (%s, %s records per second)\n",
		humanize.Comma(target.records), id, target.sum.Sum(nil), took.Round(time.Millisecond), perSecond(target.records-from, took))
	return err
}

func perSecond(n int64, took time.Duration) string {
	return humanize.Comma(int64(float64(n) / max(took.Seconds(), 1e-9)))
}

// write writes the records that the target does not have.
func (c *exportCmd) write(ctx context.Context, s *streams, store ledger.Reader, t *target) error {
	head, err := store.Head(ctx)
	if err != nil {
		return err
	}
	share := func(p ledger.Position) float64 { return float64(p) / float64(head) }
	m := newMeter(s.err, c.Progress, t.records, share(t.after))
	defer m.end()
	for r, err := range recordsUpTo(ctx, store, t.after, head) {
		if err == nil {
			err = t.put(r)
		}
		if err != nil {
			return fmt.Errorf("export: %w", err)
		}
		m.show(t.records, share(r.Position))
	}
	return nil
}

// target is what an export goes to.
type target struct {
	out     *bufio.Writer
	sum     hash.Hash // of all of it
	records int64     // in it
	after   ledger.Position
	line    []byte
	file    *os.File // nil: out is not ours
}

func newTarget(w io.Writer) *target {
	t := &target{sum: sha256.New()}
	t.out = bufio.NewWriterSize(io.MultiWriter(w, t.sum), 256<<10)
	return t
}

func (t *target) put(r *ledger.Record) error {
	t.line = append(r.AppendJSON(t.line[:0]), '\n')
	t.records++
	_, err := t.out.Write(t.line)
	return err
}

// openPart opens name.part, to go on behind what is in it already.
func openPart(ctx context.Context, name string, store ledger.Reader) (t *target, err error) {
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("%s is there already; an export does not write over anything", name), err)
	}
	f, err := os.OpenFile(name+".part", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", f.Name(), err), f.Close())
		}
	}()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("another export writes it: %w", err)
	}
	l, last := newLines(f, math.MaxInt), []byte(nil)
	for {
		line, err := l.next()
		if errors.Is(err, io.EOF) || errors.Is(err, errCut) {
			break
		}
		if err != nil {
			return nil, err
		}
		last = append(last[:0], line...)
	}
	t = newTarget(f)
	t.file, t.records = f, l.count
	t.out.Reset(io.MultiWriter(f, l.sum))
	t.sum = l.sum
	if t.after, err = whereIs(ctx, last, store); err != nil {
		return nil, err
	}
	if _, err := f.Seek(l.bytes, io.SeekStart); err != nil {
		return nil, err
	}
	return t, f.Truncate(l.bytes)
}

// whereIs finds the record of a line in the ledger; no line is before the first one.
func whereIs(ctx context.Context, line []byte, store ledger.Reader) (ledger.Position, error) {
	if line == nil {
		return 0, nil
	}
	r, err := ledger.ParseRecord(line)
	if err != nil {
		return 0, fmt.Errorf("its last line: %w; remove the file", err)
	}
	for there, err := range store.Stream(ctx, r.Header.Stream, r.Header.Revision, false) {
		if err != nil {
			return 0, err
		}
		if bytes.Equal(there.AppendJSON(nil), line) {
			return there.Position, nil
		}
		break
	}
	return 0, fmt.Errorf("its last line, revision %d of %s, is not in this ledger; remove the file if it is of another one", r.Header.Revision, r.Header.Stream)
}

// finish makes the file whole, durable and known by its name.
func (t *target) finish(name string) error {
	if err := t.out.Flush(); err != nil || t.file == nil {
		return err
	}
	if err := t.file.Sync(); err != nil {
		return err
	}
	if err := os.Rename(t.file.Name(), name); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(name))
}

// close leaves a part for the next export to go on with.
func (t *target) close() error { return errors.Join(t.out.Flush(), t.file.Close()) }

package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/talenttrust/auditledger/cmd/collector/outbox"
)

const (
	followPoll  = time.Second           // beside the file system's own notices
	followPause = 20 * time.Millisecond // between a notice and the look
	printBytes  = 1024                  // of a file's beginning, and before the mark, that must still be the same
	readBytes   = 1 << 20
	retire      = time.Minute // after which nothing more is expected in a file that was rotated away
)

// follower reads files that are appended to, and goes on where it was: how far a file has been
// read is committed with its events. A file is known by device and inode, so that a rotated file
// is read to its end under its new name. A file that became shorter, or holds something else at the
// places that were read, is read again from its start; the events that are known already are then
// dropped by the outbox and the ledger.
type follower struct {
	patterns []string // file names, or patterns in the last element
	in       *intake
	poll     time.Duration // followPoll; less in tests
	retire   time.Duration // retire; less in tests

	tails   []*tail         // in the order in which they are read
	refused map[string]bool // identities of files that are no text
	trouble bool            // something was wrong in this look
}

// tail is one file that is being read.
type tail struct {
	name   string // identity
	path   string
	file   *os.File
	lines  splitter
	last   *outbox.Mark // as stored; nil before the first
	listed bool         // a followed path still leads to it
	quiet  time.Time    // since when nothing new has come
	size   int64        // of the file at the last look, and when it was written
	time   time.Time
}

// Run follows until ctx ends.
func (f *follower) Run(ctx context.Context) error {
	notices, stop := f.watch()
	defer stop()
	tick := time.NewTicker(f.poll)
	defer tick.Stop()
	defer func() {
		for _, t := range f.tails {
			t.file.Close()
		}
	}()
	f.refused = map[string]bool{}
	if err := f.resume(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := f.look(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-notices:
			// Others may write in this folder without end, the outbox for one: not each of their
			// notices is worth a look.
			select {
			case <-ctx.Done():
			case <-time.After(min(followPause, f.poll)):
			}
		}
	}
	return nil
}

// watch asks the file system for notices about the folders. It is a means to be quick only: where
// it does not work, the poll finds everything.
func (f *follower) watch() (notices <-chan struct{}, stop func()) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		f.in.log.Info("no file notices, polling", "error", err)
		return nil, func() {}
	}
	for _, p := range f.patterns {
		if err := w.Add(filepath.Dir(p)); err != nil {
			f.in.log.Info("no file notices, polling", "folder", filepath.Dir(p), "error", err)
		}
	}
	noticed := make(chan struct{}, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		for open := true; open; {
			select {
			case _, open = <-w.Events:
			case _, open = <-w.Errors: // such as a queue that ran over: the next look finds what it was about
			}
			select {
			case noticed <- struct{}{}:
			default:
			}
		}
	})
	return noticed, func() { w.Close(); wg.Wait() }
}

// resume opens files that were followed before and have been renamed since: what was appended to
// them before the rename must not be lost.
func (f *follower) resume(ctx context.Context) error {
	marks, err := f.in.box.Marks(ctx)
	if err != nil {
		return err
	}
	listed := f.list()
	for _, m := range marks {
		if !f.follows(m.Path) || slices.ContainsFunc(listed, func(c candidate) bool { return c.name == m.Name }) {
			continue
		}
		path := findIdentity(filepath.Dir(m.Path), m.Name)
		if path == "" {
			f.in.log.Warn("a followed file is gone; if lines were appended after the last look, they are lost", "path", m.Path, "read", m.Position)
			if err := f.in.box.Forget(ctx, m.Name); err != nil {
				return err
			}
			continue
		}
		t, err := f.open(ctx, m.Name, path)
		for try := 0; try < 5 && (errors.Is(err, errMoved) || errors.Is(err, fs.ErrNotExist)); try++ {
			path = findIdentity(filepath.Dir(m.Path), m.Name) // it has yet another name
			t, err = f.open(ctx, m.Name, path)
		}
		if err != nil {
			return err
		}
		t.path = m.Path
		f.tails = append(f.tails, t)
	}
	return nil
}

func (f *follower) follows(path string) bool {
	return slices.ContainsFunc(f.patterns, func(p string) bool { ok, _ := filepath.Match(p, path); return ok || p == path })
}

// candidate is a file that a pattern leads to.
type candidate struct {
	name, path string
	modified   time.Time
}

// list returns the files that the patterns lead to, the one that was written first in front: of a
// rotated set that is the order of its lines.
func (f *follower) list() []candidate {
	var found []candidate
	for _, p := range f.patterns {
		paths := []string{p}
		if _, err := os.Stat(p); err != nil {
			paths, _ = filepath.Glob(p)
		}
		for _, path := range paths {
			info, err := os.Stat(path)
			if err != nil || !info.Mode().IsRegular() {
				continue
			}
			c := candidate{identity(path, info), path, info.ModTime()}
			if !slices.ContainsFunc(found, func(other candidate) bool { return other.name == c.name }) {
				found = append(found, c)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return a.modified.Compare(b.modified) })
	return found
}

func findIdentity(dir, name string) string {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && identity(path, info) == name {
			return path
		}
	}
	return ""
}

// look reads every file to its end, one after the other, so that the lines of a rotated set stay in
// order. An error ends the follower: the outbox cannot be read.
func (f *follower) look(ctx context.Context) error {
	was := f.trouble
	f.trouble = false
	listed := f.list()
	for _, t := range f.tails {
		at := slices.IndexFunc(listed, func(c candidate) bool { return c.name == t.name })
		if t.listed = at >= 0; t.listed {
			t.path, t.quiet = listed[at].path, time.Now()
			listed = slices.Delete(listed, at, at+1)
		}
	}
	for _, c := range listed {
		if f.refused[c.name] {
			continue
		}
		t, err := f.open(ctx, c.name, c.path)
		if errors.Is(err, errMoved) {
			continue // the next look finds it under its new name
		}
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
			f.raise(err.Error())
			continue
		}
		if err != nil {
			return err
		}
		t.listed = true
		f.tails = append(f.tails, t)
	}
	for _, t := range slices.Clone(f.tails) {
		err := f.read(ctx, t)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			f.give(t, err)
		case !t.listed && time.Since(t.quiet) > f.retire:
			f.finish(ctx, t)
		}
	}
	if was && !f.trouble && len(f.refused) == 0 {
		f.in.alerts.Clear(outbox.AlertSource)
	}
	return nil
}

func (f *follower) raise(what string) {
	f.trouble = true
	f.in.alerts.Raise(outbox.AlertSource, 1, what)
}

// errMoved: between being found and being opened, the path came to lead to another file. Read under
// the first one's name, that would be taken for it, and it would never be read.
var errMoved = errors.New("the file was renamed at this moment")

// open opens a file at its mark, or at its start when it has none or is another file now.
func (f *follower) open(ctx context.Context, name, path string) (*tail, error) {
	mark, err := f.in.box.Mark(ctx, name)
	if err != nil {
		return nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("follow: %w", err)
	}
	info, err := file.Stat()
	if err == nil && identity(path, info) != name {
		err = errMoved
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("follow %s: %w", path, err), file.Close())
	}
	t := &tail{name: name, path: path, file: file, last: mark, quiet: time.Now()}
	if mark != nil {
		t.lines.start = mark.Position
	}
	return t, nil // whether the mark still fits is checked before the first read
}

// prints returns the fingerprints of what lies before an offset: of the file's first bytes and of
// the last ones.
func (t *tail) prints(offset int64) (head, end []byte, err error) {
	n := min(offset, printBytes)
	buf := make([]byte, n)
	for _, p := range []struct {
		at  int64
		sum *[]byte
	}{{0, &head}, {offset - n, &end}} {
		if _, err := t.file.ReadAt(buf, p.at); err != nil {
			return nil, nil, err // shorter than it was
		}
		sum := sha256.Sum256(buf)
		*p.sum = sum[:]
	}
	return head, end, nil
}

func (t *tail) mark(offset int64) (*outbox.Mark, error) {
	head, end, err := t.prints(offset)
	return &outbox.Mark{Name: t.name, Path: t.path, Position: offset, Head: head, Tail: end}, err
}

// read takes what was appended, up to the end of the file.
func (f *follower) read(ctx context.Context, t *tail) error {
	info, err := t.file.Stat()
	if err != nil {
		return err
	}
	if info.Size() == t.size && info.ModTime().Equal(t.time) {
		return nil
	}
	f.checkSame(t, info.Size())
	var l lot
	buf := make([]byte, readBytes)
	for {
		n, err := t.file.ReadAt(buf, t.lines.read())
		lines, splitErr := t.lines.split(buf[:n])
		if splitErr != nil {
			return splitErr
		}
		for _, ln := range lines {
			f.in.add(&l, t.path, ln)
		}
		if err != nil && err != io.EOF {
			return err
		}
		if l.full() || err == io.EOF {
			if err := f.commit(ctx, t, &l); err != nil {
				return err
			}
		}
		if err == io.EOF {
			t.size, t.time, t.quiet = info.Size(), info.ModTime(), time.Now()
			return nil
		}
	}
}

// commit stores a lot together with how far the file has been read.
func (f *follower) commit(ctx context.Context, t *tail, l *lot) error {
	if l.end == 0 {
		return nil
	}
	mark, err := t.mark(l.end)
	if err != nil {
		*l = lot{}
		return nil // the file shrank meanwhile: the next look reads it again
	}
	if err := f.in.insist(ctx, l, mark); err != nil {
		return err
	}
	t.last = mark
	return nil
}

// checkSame starts again when the file holds something else than what was read of it.
func (f *follower) checkSame(t *tail, size int64) {
	same := size >= t.lines.read()
	if same && t.last != nil {
		head, end, err := t.prints(t.last.Position)
		same = err == nil && slices.Equal(head, t.last.Head) && slices.Equal(end, t.last.Tail)
	}
	if same {
		return
	}
	f.in.log.Warn("a followed file shrank or was overwritten; reading it again from its start", "path", t.path, "read", t.lines.read(), "size", size)
	f.raise(t.path + " shrank or was overwritten and is read again from its start; what was lost in between is not known")
	t.lines, t.last = splitter{}, nil
}

// give gives a file up until the next start: it cannot be read, or is no text.
func (f *follower) give(t *tail, err error) {
	f.raise(fmt.Sprintf("%s is not followed any more: %v", t.path, err))
	f.refused[t.name] = true
	f.drop(t)
}

func (f *follower) drop(t *tail) {
	t.file.Close()
	f.tails = slices.DeleteFunc(f.tails, func(other *tail) bool { return other == t })
}

// finish closes a file that was rotated away; what it ends with is a line now, even without a line
// feed.
func (f *follower) finish(ctx context.Context, t *tail) {
	var l lot
	for _, ln := range t.lines.rest() {
		f.in.add(&l, t.path, ln)
	}
	if f.commit(ctx, t, &l) == nil { // else ctx has ended; the next start does it
		f.drop(t)
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/cmd/collector/outbox"

	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// following is a follower that runs.
type following struct {
	t    *testing.T
	in   *intake
	dir  string
	stop func()

	mu  sync.Mutex
	sum tally // guarded by mu while it runs
}

func (f *following) lines() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sum.Queued + f.sum.Known + f.sum.Dead
}

func follow(t *testing.T, in *intake, dir string, patterns ...string) *following {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	fl := &following{t: t, in: in, dir: dir}
	in.counted = func(t tally, _ int) { fl.mu.Lock(); defer fl.mu.Unlock(); fl.sum.add(t) }
	f := &follower{in: in, poll: 10 * time.Millisecond, retire: 50 * time.Millisecond}
	for _, p := range patterns {
		f.patterns = append(f.patterns, filepath.Join(dir, p))
	}
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	stopped := false
	fl.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(fl.stop)
	return fl
}

// want waits until exactly these events are in the outbox, in this order.
func (f *following) want(ids ...string) {
	f.t.Helper()
	ledgertest.Until(f.t, fmt.Sprintf("%d events", len(ids)), func() bool { return len(pendingIDs(f.t, f.in.box)) >= len(ids) })
	if got := pendingIDs(f.t, f.in.box); !slices.Equal(got, ids) {
		f.t.Errorf("got %v, want %v", got, ids)
	}
}

func TestFollow(t *testing.T) {
	in, dir := testIntake(t), t.TempDir()
	path := filepath.Join(dir, "app.log")
	f := follow(t, in, dir, "app.log") // does not exist yet
	writeFile(t, path, eventLines("c", 0, 3))
	f.want(eventIDs(0, 3)...)
	appendFile(t, path, "\n  \n"+eventLines("c", 3, 5))
	f.want(eventIDs(0, 5)...)

	// A line is taken when it is complete, however long that takes.
	whole := eventLine("c", 5)
	appendFile(t, path, whole[:20])
	appendFile(t, filepath.Join(dir, "other.log"), eventLine("c", 99))
	appendFile(t, path, whole[20:len(whole)-1])
	f.want(eventIDs(0, 5)...)
	appendFile(t, path, "\n")
	f.want(eventIDs(0, 6)...)
	if f.stop(); f.sum.Known != 0 || f.sum.Dead != 0 {
		t.Errorf("got %+v, want every line read once", f.sum)
	}
}

func TestFollowGoesOnAfterRestart(t *testing.T) {
	in, dir := testIntake(t), t.TempDir()
	path := filepath.Join(dir, "app.log")
	writeFile(t, path, eventLines("c", 0, 100)+eventLine("c", 100)[:30])
	f := follow(t, in, dir, "app.log")
	f.want(eventIDs(0, 100)...)
	f.stop()
	appendFile(t, path, eventLine("c", 100)[30:]+eventLines("c", 101, 110))
	f = follow(t, in, dir, "app.log")
	f.want(eventIDs(0, 110)...)
	if f.stop(); f.sum.Known != 0 || f.sum.Dead != 0 {
		t.Errorf("after the restart: got %+v, want nothing read twice", f.sum)
	}
}

func TestFollowRotation(t *testing.T) {
	in, dir := testIntake(t), t.TempDir()
	path := filepath.Join(dir, "app.log")
	writeFile(t, path, eventLines("c", 0, 3))
	f := follow(t, in, dir, "app.log")
	f.want(eventIDs(0, 3)...)

	// The writer goes on in the renamed file for a while, and ends it without a line feed.
	old, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	old.WriteString(eventLine("c", 3))
	f.want(eventIDs(0, 4)...)
	old.WriteString(strings.TrimSpace(eventLine("c", 4)))
	old.Close()
	f.want(eventIDs(0, 5)...)
	writeFile(t, path, eventLines("c", 5, 7))
	f.want(eventIDs(0, 7)...)
	f.stop()

	// Twice while nobody looks: the older one is found by its identity, and read first.
	appendFile(t, path, eventLines("c", 7, 9))
	if err := os.Rename(path, path+".2"); err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, eventLines("c", 9, 11))
	f = follow(t, in, dir, "app.log")
	f.want(eventIDs(0, 11)...)
	if f.stop(); f.sum.Known != 0 || f.sum.Dead != 0 {
		t.Errorf("got %+v, want nothing read twice", f.sum)
	}
}

func TestFollowPattern(t *testing.T) {
	in, dir := testIntake(t), t.TempDir()
	f := follow(t, in, dir, "*.log", "*.log.*")
	writeFile(t, filepath.Join(dir, "a.log"), eventLines("c", 0, 2))
	f.want(eventIDs(0, 2)...)
	writeFile(t, filepath.Join(dir, "b.log"), eventLines("c", 2, 4))
	f.want(eventIDs(0, 4)...)
	// Renamed to a name that is followed too: still the same file.
	if err := os.Rename(filepath.Join(dir, "a.log"), filepath.Join(dir, "a.log.1")); err != nil {
		t.Fatal(err)
	}
	appendFile(t, filepath.Join(dir, "a.log.1"), eventLines("c", 4, 5))
	f.want(eventIDs(0, 5)...)
	if f.stop(); f.sum.Known != 0 {
		t.Errorf("got %+v, want nothing read twice", f.sum)
	}
}

// A file that shrinks, or is overwritten with more than it held, is read again from its start.
func TestFollowFileChangesUnderUs(t *testing.T) {
	for name, next := range map[string]string{
		"shrinks":                   eventLines("c", 10, 12),
		"is overwritten, as long":   strings.ReplaceAll(eventLines("c", 0, 5), "lease", "bease"),
		"is overwritten, as longer": eventLines("d", 10, 30),
	} {
		t.Run(name, func(t *testing.T) {
			in, dir := testIntake(t), t.TempDir()
			path := filepath.Join(dir, "app.log")
			writeFile(t, path, eventLines("c", 0, 5))
			f := follow(t, in, dir, "app.log")
			f.want(eventIDs(0, 5)...)
			writeFile(t, path, next) // truncates and writes, as copytruncate does
			ledgertest.Until(t, "the alert", func() bool { return in.alerts.State(outbox.AlertSource).At.After(time.Time{}) })
			want := 5 + strings.Count(next, "\n")
			ledgertest.Until(t, "the new lines", func() bool { return f.lines() >= want })
			if f.stop(); f.lines() != want {
				t.Errorf("got %d lines read, want %d", f.lines(), want)
			}
		})
	}
}

// The same while nobody looks, and with the inode used again.
func TestFollowAnotherFileAfterRestart(t *testing.T) {
	in, dir := testIntake(t), t.TempDir()
	path := filepath.Join(dir, "app.log")
	writeFile(t, path, eventLines("c", 0, 5))
	f := follow(t, in, dir, "app.log")
	f.want(eventIDs(0, 5)...)
	f.stop()
	writeFile(t, path, eventLines("d", 5, 25))
	f = follow(t, in, dir, "app.log")
	f.want(eventIDs(0, 25)...)
}

// A rotated set that is met for the first time is read in the order in which it was written.
func TestFollowOrderOfRotatedSet(t *testing.T) {
	in, dir := testIntake(t), t.TempDir()
	for i, name := range []string{"app.log.3", "app.log.2", "app.log.1", "app.log"} {
		path := filepath.Join(dir, name)
		writeFile(t, path, eventLines("c", 2*i, 2*i+2))
		at := time.Now().Add(time.Duration(i-10) * time.Minute)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	f := follow(t, in, dir, "app.log*")
	f.want(eventIDs(0, 8)...)
}

func TestFollowBinary(t *testing.T) {
	in, dir := testIntake(t), t.TempDir()
	writeFile(t, filepath.Join(dir, "a.bin"), "\x7fELF\x00\x00\x00"+strings.Repeat("\x00\n", 1000))
	writeFile(t, filepath.Join(dir, "b.log"), eventLines("c", 0, 2))
	f := follow(t, in, dir, "*")
	f.want(eventIDs(0, 2)...)
	ledgertest.Until(t, "the alert", func() bool { return in.alerts.State(outbox.AlertSource).Raised })
	f.stop()
	if f.sum.Dead != 0 {
		t.Errorf("got %d dead letters, want none of a binary file", f.sum.Dead)
	}
}

// While the outbox is full, nothing is lost: the file waits, and goes on when there is room.
func TestFollowFullOutbox(t *testing.T) {
	in, dir := testIntake(t, func(c *outbox.Config) { c.MaxBytes = 300 << 10 }), t.TempDir()
	path := filepath.Join(dir, "app.log")
	pad := `"n":"` + strings.Repeat("x", 2000) + `",`
	var want []string
	f := follow(t, in, dir, "app.log")
	full := func() bool { return in.alerts.State(outbox.AlertFull).Raised }
	for n := range 400 {
		appendFile(t, path, strings.Replace(eventLine("c", n), `{"n"`, `{`+pad+`"m"`, 1))
		want = append(want, fmt.Sprintf("e-%d", n))
		if !full() { // line by line: a lot is taken or refused as a whole
			ledgertest.Until(t, "the line, or the alert", func() bool { return f.lines() > n || full() })
		}
	}
	if !full() {
		t.Fatal("all lines found room")
	}
	var got []string
	ledgertest.Until(t, "everything", func() bool {
		list, err := in.box.Next(t.Context(), 0, false, 50, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		var sent []outbox.Settlement
		for _, p := range list {
			got = append(got, p.EventID)
			sent = append(sent, outbox.Settlement{Pending: p, Fate: outbox.Sent})
		}
		if err := in.box.Settle(t.Context(), sent); err != nil {
			t.Fatal(err)
		}
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) {
		t.Errorf("got %d events %v, want %d in order", len(got), got, len(want))
	}
	ledgertest.Until(t, "the alert to be over", func() bool { return !in.alerts.State(outbox.AlertFull).Raised })
}

// TestOpenAfterRename: a path that leads to another file than the one that was found there is not
// taken for it.
func TestOpenAfterRename(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "app.log")
	if err := os.WriteFile(path, []byte("one\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	found := identity(path, info)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("two\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	box, err := outbox.Open(t.Context(), outbox.Config{Path: filepath.Join(dir, "outbox.db"), Reserve: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	f := &follower{in: &intake{box: box}}
	if _, err := f.open(t.Context(), found, path); !errors.Is(err, errMoved) {
		t.Errorf("the file that took the path: %v, want errMoved", err)
	}
	moved, err := f.open(t.Context(), found, path+".1")
	if err != nil {
		t.Fatal(err)
	}
	moved.file.Close()
}

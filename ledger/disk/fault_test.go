package disk_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/disk"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

func event(n int) *ledger.Entry {
	return ledgertest.Event(ledger.Key{ContractID: fmt.Sprint("c", n%3), EventID: fmt.Sprint("e", n), Sequence: int64(n)}, fmt.Sprintf(`{"n":%d}`, n), int64(n))
}

func mustOpen(t *testing.T, c disk.Config) *disk.Store {
	t.Helper()
	s, err := disk.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustClose(t *testing.T, s *disk.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func appendEvents(t *testing.T, s *disk.Store, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		if _, err := s.Append(t.Context(), []*ledger.Entry{event(n)}); err != nil {
			t.Fatalf("event %d: %v", n, err)
		}
	}
}

func wantRecords(t *testing.T, s *disk.Store, want int) {
	t.Helper()
	if n := len(ledgertest.ReadAll(t, s)); n != want {
		t.Errorf("%d records are shown, want %d", n, want)
	}
}

// TestHeldSync: while the disk has not said that an event is on it, neither the event nor a repeat
// of it gets an answer, and no reader sees it.
func TestHeldSync(t *testing.T) {
	hold := make(chan struct{})
	var holding atomic.Bool
	entered := make(chan struct{}, 10)
	s := mustOpen(t, disk.Config{Dir: t.TempDir(), Sync: func(f *os.File) error {
		if holding.Load() {
			entered <- struct{}{}
			<-hold
		}
		return f.Sync()
	}})
	defer s.Close()
	holding.Store(true)
	answers := make(chan ledger.Outcome, 2)
	send := func() {
		o, err := s.Append(context.Background(), []*ledger.Entry{event(1)})
		if err != nil {
			t.Error(err)
		}
		answers <- o[0]
	}
	go send()
	<-entered
	go send()
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Append(short, []*ledger.Entry{event(1)}); !errors.Is(err, ledger.ErrUnknown) {
		t.Errorf("a repeat that cannot wait: %v, want ErrUnknown", err)
	}
	if head, _ := s.Head(t.Context()); head != 1 {
		t.Errorf("readers see position %d", head)
	}
	select {
	case o := <-answers:
		t.Fatalf("an answer before the disk's: %+v", o)
	default:
	}
	close(hold)
	if a, b := <-answers, <-answers; a.Position != 2 || b.Position != 2 || a.Verdict+b.Verdict != ledger.Accepted+ledger.Duplicate {
		t.Errorf("answers %+v, %+v", a, b)
	}
}

func TestWriteFails(t *testing.T) {
	var fail atomic.Bool
	c := disk.Config{Dir: t.TempDir(), Write: func(f *os.File, b []byte, at int64) (int, error) {
		if fail.Load() {
			n, _ := f.WriteAt(b[:len(b)/2], at)
			return n, syscall.ENOSPC
		}
		return f.WriteAt(b, at)
	}}
	s := mustOpen(t, c)
	appendEvents(t, s, 0, 5)
	fail.Store(true)
	for range 3 {
		if _, err := s.Append(t.Context(), []*ledger.Entry{event(5)}); !errors.Is(err, ledger.ErrUnavailable) || errors.Is(err, ledger.ErrUnknown) {
			t.Fatalf("write fails: %v, want ErrUnavailable", err)
		}
	}
	if o, err := s.Append(t.Context(), []*ledger.Entry{event(4)}); err != nil || o[0].Verdict != ledger.Duplicate {
		t.Errorf("a repeat needs no write: %+v, %v", o, err)
	}
	if s.Healthy(t.Context()) == nil {
		t.Error("the store calls itself healthy")
	}
	fail.Store(false)
	appendEvents(t, s, 5, 8)
	if err := s.Healthy(t.Context()); err != nil {
		t.Error(err)
	}
	mustClose(t, s)
	s = mustOpen(t, c)
	defer s.Close()
	if n := len(ledgertest.ReadAll(t, s)); n != 9 {
		t.Errorf("%d records, want 9", n)
	}
}

func TestReserve(t *testing.T) {
	var free atomic.Uint64
	free.Store(1 << 40)
	s := mustOpen(t, disk.Config{Dir: t.TempDir(), Reserve: 1000, Free: func(string) (uint64, error) { return free.Load(), nil }})
	defer s.Close()
	appendEvents(t, s, 0, 1)
	free.Store(999)
	if _, err := s.Append(t.Context(), []*ledger.Entry{event(1)}); !errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("under the reserve: %v", err)
	}
	if err := s.Healthy(t.Context()); !errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("under the reserve, it is said to be: %v", err)
	}
	free.Store(1 << 40)
	if err := s.Healthy(t.Context()); err != nil {
		t.Errorf("there is room again: %v", err)
	}
	appendEvents(t, s, 1, 2)
}

func TestSyncFails(t *testing.T) {
	var fail atomic.Bool
	var fatal atomic.Int32
	dir := t.TempDir()
	s := mustOpen(t, disk.Config{Dir: dir, Fatal: func(error) { fatal.Add(1) }, Sync: func(f *os.File) error {
		if fail.Load() {
			return syscall.EIO
		}
		return f.Sync()
	}})
	appendEvents(t, s, 0, 3)
	fail.Store(true)
	if _, err := s.Append(t.Context(), []*ledger.Entry{event(3)}); !errors.Is(err, ledger.ErrUnknown) {
		t.Errorf("the sync fails: %v, want ErrUnknown", err)
	}
	fail.Store(false)
	for range 2 {
		if _, err := s.Append(t.Context(), []*ledger.Entry{event(4)}); !errors.Is(err, ledger.ErrUnavailable) || errors.Is(err, ledger.ErrUnknown) {
			t.Errorf("after a failed sync: %v, want ErrUnavailable", err)
		}
	}
	wantRecords(t, s, 4)
	if fatal.Load() != 1 {
		t.Errorf("Fatal was called %d times", fatal.Load())
	}
	mustClose(t, s)
	s = mustOpen(t, disk.Config{Dir: dir})
	defer s.Close()
	appendEvents(t, s, 3, 6)
	wantRecords(t, s, 7)
}

// TestStartMakesSure: a group that was written and not synced is on disk before the next start shows it, and where it
// cannot be, there is no start.
func TestStartMakesSure(t *testing.T) {
	dir := t.TempDir()
	var fail atomic.Bool
	var synced, written atomic.Int64
	c := disk.Config{Dir: dir, Logger: quiet(),
		Write: func(f *os.File, b []byte, at int64) (int, error) {
			written.Store(at + int64(len(b)))
			return f.WriteAt(b, at)
		},
		Sync: func(f *os.File) error {
			if fail.Load() {
				return syscall.EIO
			}
			synced.Store(written.Load())
			return f.Sync()
		}}
	s := mustOpen(t, c)
	appendEvents(t, s, 0, 3)
	fail.Store(true)
	if _, err := s.Append(t.Context(), []*ledger.Entry{event(3)}); !errors.Is(err, ledger.ErrUnknown) {
		t.Fatalf("a failed sync: %v", err)
	}
	end := written.Load()
	mustClose(t, s)
	if s, err := disk.Open(c); err == nil {
		t.Error("it starts on what cannot be synced")
		s.Close()
	}
	fail.Store(false)
	written.Store(0)
	s = mustOpen(t, c)
	defer s.Close()
	if synced.Load() != end {
		t.Errorf("synced up to %d at the start, want %d", synced.Load(), end)
	}
	wantRecords(t, s, 5)
}

// TestStagedOnFailedSync: what came in while a sync was going on and then failed is stored no more than what
// was synced, and a repeat of that is told no more of it.
func TestStagedOnFailedSync(t *testing.T) {
	var holding atomic.Bool
	entered, hold := make(chan struct{}), make(chan struct{})
	dir := t.TempDir()
	s := mustOpen(t, disk.Config{Dir: dir, Logger: quiet(), Sync: func(f *os.File) error {
		if holding.Load() {
			entered <- struct{}{}
			<-hold
			return syscall.EIO
		}
		return f.Sync()
	}})
	appendEvents(t, s, 0, 3)
	holding.Store(true)
	var wg sync.WaitGroup
	send := func(want error, events ...int) {
		var entries []*ledger.Entry
		for _, n := range events {
			entries = append(entries, event(n))
		}
		wg.Go(func() {
			if o, err := s.Append(context.Background(), entries); !errors.Is(err, want) {
				t.Errorf("events %v: %+v, %v, want %v", events, o, err, want)
			}
		})
	}
	send(ledger.ErrUnknown, 3)
	<-entered
	send(ledger.ErrUnavailable, 3, 4)
	send(ledger.ErrUnavailable, 5)
	send(ledger.ErrUnavailable, 1, 3)
	awaitStaged(t, s, 3)
	holding.Store(false)
	close(hold)
	wg.Wait()
	wantRecords(t, s, 4)
	mustClose(t, s)
	s = mustOpen(t, disk.Config{Dir: dir})
	defer s.Close()
	appendEvents(t, s, 3, 6)
	wantRecords(t, s, 7)
}

// awaitStaged waits until the n calls that were made wait in the group behind the one that is synced.
func awaitStaged(t *testing.T, s *disk.Store, n int) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 20_000 {
		if s.Staged() == n {
			return
		}
		<-tick.C
	}
	t.Fatalf("%d calls are staged, want %d", s.Staged(), n)
}

// TestRepeatOfUnsynced: a repeat that came in while the first was synced, alone, is no duplicate when that fails.
func TestRepeatOfUnsynced(t *testing.T) {
	var holding atomic.Bool
	entered, hold := make(chan struct{}), make(chan struct{})
	s := mustOpen(t, disk.Config{Dir: t.TempDir(), Logger: quiet(), Sync: func(f *os.File) error {
		if holding.Load() {
			entered <- struct{}{}
			<-hold
			return syscall.EIO
		}
		return f.Sync()
	}})
	defer s.Close()
	holding.Store(true)
	errs := make(chan error, 2)
	send := func() {
		_, err := s.Append(context.Background(), []*ledger.Entry{event(1)})
		errs <- err
	}
	go send()
	<-entered
	go send()
	awaitStaged(t, s, 1)
	close(hold)
	for range 2 {
		if err := <-errs; !errors.Is(err, ledger.ErrUnknown) && !errors.Is(err, ledger.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	}
}

// TestEntriesAfterTheContext: a call that ended with its context while it was staged leaves its entries to the
// caller, who may send them again at once.
func TestEntriesAfterTheContext(t *testing.T) {
	entered, hold := make(chan struct{}), make(chan struct{})
	var once sync.Once
	holding := false
	s := mustOpen(t, disk.Config{Dir: t.TempDir(), Sync: func(f *os.File) error {
		if holding {
			once.Do(func() {
				close(entered)
				<-hold
			})
		}
		return f.Sync()
	}})
	defer s.Close()
	holding = true
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { appendEvents(t, s, 0, 1) })
	<-entered
	entries := []*ledger.Entry{event(1), event(2)}
	short, cancel := context.WithCancel(t.Context())
	wg.Go(func() {
		if _, err := s.Append(short, entries); !errors.Is(err, ledger.ErrUnknown) {
			t.Errorf("a call that ended while it was staged: %v, want ErrUnknown", err)
		}
		o, err := s.Append(t.Context(), entries)
		if err != nil || o[0].Verdict != ledger.Duplicate || o[1].Verdict != ledger.Duplicate || o[1].Position != 4 {
			t.Errorf("the same entries again: %+v, %v", o, err)
		}
	})
	awaitStaged(t, s, 1)
	cancel()
	awaitStaged(t, s, 2)
	close(hold)
}

// TestGroupsOverlap: what comes in while a sync goes on waits for that, and then goes to disk in one group.
func TestGroupsOverlap(t *testing.T) {
	var holding atomic.Bool
	var syncs atomic.Int32
	entered, hold := make(chan struct{}, 1), make(chan struct{})
	s := mustOpen(t, disk.Config{Dir: t.TempDir(), Sync: func(f *os.File) error {
		if syncs.Add(1); holding.CompareAndSwap(true, false) {
			entered <- struct{}{}
			<-hold
		}
		return f.Sync()
	}})
	defer s.Close()
	syncs.Store(0)
	holding.Store(true)
	var wg sync.WaitGroup
	for n := range 30 {
		wg.Go(func() {
			o, err := s.Append(t.Context(), []*ledger.Entry{event(n), event(n / 2), event(n)})
			if err != nil || o[2].Position != o[0].Position || o[2].Verdict != ledger.Duplicate {
				t.Errorf("event %d: %+v, %v", n, o, err)
			}
		})
		if n == 0 {
			<-entered
		}
	}
	awaitStaged(t, s, 29)
	close(hold)
	wg.Wait()
	if n := len(ledgertest.ReadAll(t, s)); n != 31 {
		t.Errorf("%d records, want 31", n)
	}
	if n := syncs.Load(); n != 2 {
		t.Errorf("%d syncs, want one for the first call and one for all others", n)
	}
}

var errPower = errors.New("no power")

// TestPowerCut lets the power go at the n-th touch of the disk, for every n: the write before it is
// whole, half or lost, and nothing works from then on. After a restart everything that was
// acknowledged is there, once.
func TestPowerCut(t *testing.T) {
	for _, share := range []float64{0, 0.5, 1} {
		for n := 1; ; n++ {
			if !powerCut(t, n, share) {
				break
			}
		}
	}
}

// powerCut reports whether the power went at all.
func powerCut(t *testing.T, n int, share float64) bool {
	dir := t.TempDir()
	var touched atomic.Int32
	off := func() bool { return int(touched.Add(1)) >= n }
	c := disk.Config{Dir: dir, Segment: 2500, Logger: quiet(),
		Write: func(f *os.File, b []byte, at int64) (int, error) {
			if off() {
				if int(touched.Load()) == n {
					f.WriteAt(b[:int(float64(len(b))*share)], at)
				}
				return 0, errPower
			}
			return f.WriteAt(b, at)
		},
		Sync: func(f *os.File) error {
			if off() {
				return errPower
			}
			return nil // the page cache survives this test
		}}
	acked := map[int]bool{}
	s, err := disk.Open(c)
	if err == nil {
		var mu sync.Mutex
		var wg sync.WaitGroup
		for w := range 3 {
			wg.Go(func() {
				for i := w; i < 18; i += 3 {
					if _, err := s.Append(context.Background(), []*ledger.Entry{event(i)}); err == nil {
						mu.Lock()
						acked[i] = true
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		s.Close()
	}
	cut := int(touched.Load()) >= n
	s, err = disk.Open(disk.Config{Dir: dir, Segment: 2500, Logger: quiet()})
	if err != nil {
		t.Fatalf("power cut at %d (%v): %v", n, share, err)
	}
	defer s.Close()
	stored := map[string]int{}
	for _, r := range ledgertest.ReadAll(t, s) {
		stored[r.Header.EventID]++
	}
	for i := range 18 {
		if got := stored[fmt.Sprint("e", i)]; got > 1 || acked[i] && got != 1 {
			t.Fatalf("power cut at %d (%v): event %d is stored %d times, acknowledged: %v", n, share, i, got, acked[i])
		}
		if _, err := s.Append(t.Context(), []*ledger.Entry{event(i)}); err != nil {
			t.Fatalf("power cut at %d (%v): event %d sent again: %v", n, share, i, err)
		}
	}
	if all := ledgertest.ReadAll(t, s); len(all) != 19 {
		t.Fatalf("power cut at %d (%v): %d records in the end, want 19", n, share, len(all))
	}
	return cut
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// damageBase writes a ledger of several groups in one segment and returns its folder, the segment,
// and the size of the file after each group.
func damageBase(t *testing.T, dir string, segment int64) (file string, sizes []int64) {
	s := mustOpen(t, disk.Config{Dir: dir, Segment: segment})
	file = filepath.Join(dir, "log", fmt.Sprintf("%020d.seg", 1))
	for n := range 6 {
		appendEvents(t, s, n, n+1)
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, info.Size())
	}
	mustClose(t, s)
	return file, sizes
}

// TestTornTail cuts the last group at many places, its edges among them.
func TestTornTail(t *testing.T) {
	base := t.TempDir()
	whole, sizes := damageLog(t, base)
	before, end := sizes[4], sizes[5]
	for size := before; size < end; size = min(size+29, max(size+1, end-2)) {
		for _, garbage := range []bool{false, true} {
			dir := t.TempDir()
			tail := bytes.Clone(whole[:size])
			if garbage && size > before+1 {
				tail[size-1] ^= 0x55
			}
			writeLog(t, dir, tail)
			s := mustOpen(t, disk.Config{Dir: dir, Logger: quiet()})
			if n := len(ledgertest.ReadAll(t, s)); n != 6 {
				t.Fatalf("cut at %d: %d records, want 6", size, n)
			}
			kept, err := filepath.Glob(filepath.Join(dir, "log", "*.torn"))
			if err != nil || (len(kept) == 1) != (size > before) {
				t.Fatalf("cut at %d: kept %v, %v", size, kept, err)
			}
			appendEvents(t, s, 5, 6)
			mustClose(t, s)
		}
	}
}

// TestTornSeal: a power cut while a seal is synced may leave its end without all that stands before. The segment is
// then gone on with.
func TestTornSeal(t *testing.T) {
	file, _ := damageBase(t, t.TempDir(), 1000)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const size = 28 // of what ends a seal, behind the records' offsets
	offsets := len(whole) - size
	end := int(binary.LittleEndian.Uint32(whole[offsets+16:]))
	for from := end; from < offsets; from += 4 {
		dir := t.TempDir()
		torn := bytes.Clone(whole)
		clear(torn[from:offsets])
		writeLog(t, dir, torn)
		s := mustOpen(t, disk.Config{Dir: dir, Segment: 1000, Logger: quiet()})
		if n := len(ledgertest.ReadAll(t, s)); n != (offsets-end)/4 {
			t.Errorf("offsets from %d on are gone: %d records, want %d", from-end, n, (offsets-end)/4)
		}
		appendEvents(t, s, 0, 6)
		mustClose(t, s)
		s = mustOpen(t, disk.Config{Dir: dir, Segment: 1000, Logger: quiet()})
		if n := len(ledgertest.ReadAll(t, s)); n != 7 {
			t.Errorf("offsets from %d on are gone: %d records in the end, want 7", from-end, n)
		}
		mustClose(t, s)
	}
}

func writeLog(t *testing.T, dir string, segment []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "log"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "log", fmt.Sprintf("%020d.seg", 1)), segment, 0o644); err != nil {
		t.Fatal(err)
	}
}

// damageLog is damageBase with all in one segment, and what stands in that.
func damageLog(t *testing.T, dir string) (whole []byte, sizes []int64) {
	t.Helper()
	file, sizes := damageBase(t, dir, 0)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return whole, sizes
}

// TestDamage flips one bit of every byte before the last group: the start stops and names the file.
func TestDamage(t *testing.T) {
	base := t.TempDir()
	whole, sizes := damageLog(t, base)
	dir := t.TempDir()
	for at := range int(sizes[4]) {
		b := bytes.Clone(whole)
		b[at] ^= 0x10
		writeLog(t, dir, b)
		s, err := disk.Open(disk.Config{Dir: dir, Logger: quiet()})
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, ledger.ErrDamaged) || !strings.Contains(err.Error(), fmt.Sprintf("%020d.seg, offset ", 1)) {
			t.Fatalf("byte %d flipped: %v, want ErrDamaged with file and offset", at, err)
		}
	}
	// The index has seen the last group: that cannot be taken for a torn end.
	writeLog(t, base, whole[:sizes[5]-1])
	for _, existing := range []bool{true, false} {
		if _, err := disk.Open(disk.Config{Dir: base, Existing: existing, Logger: quiet()}); !errors.Is(err, ledger.ErrDamaged) ||
			!strings.Contains(err.Error(), "records that were stored are gone") || !strings.Contains(err.Error(), fmt.Sprintf("offset %d", sizes[4])) {
			t.Errorf("the last group is gone, the index knows it: %v", err)
		}
	}
	wantLog(t, base, whole[:sizes[5]-1])
}

// wantLog checks that nothing in the folder of the log was changed since writeLog.
func wantLog(t *testing.T, dir string, segment []byte) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "log", "*"))
	if err != nil || len(names) != 1 {
		t.Fatalf("%q, %v", names, err)
	}
	if got, err := os.ReadFile(names[0]); err != nil || !bytes.Equal(got, segment) {
		t.Errorf("the log was changed: %d bytes, before %d, %v", len(got), len(segment), err)
	}
}

// TestReadTornLog: who only reads a log with a torn end reads what is before it, and leaves it for whoever writes next.
func TestReadTornLog(t *testing.T) {
	base := t.TempDir()
	whole, sizes := damageLog(t, base)
	dir := t.TempDir()
	torn := whole[:sizes[5]-1]
	writeLog(t, dir, torn)
	s := mustOpen(t, disk.Config{Dir: dir, Existing: true, Logger: quiet()})
	before := len(ledgertest.ReadAll(t, s))
	if _, err := s.Append(t.Context(), []*ledger.Entry{event(99)}); !errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("it takes events: %v", err)
	}
	mustClose(t, s)
	wantLog(t, dir, torn)
	s = mustOpen(t, disk.Config{Dir: dir, Logger: quiet()})
	defer s.Close()
	wantRecords(t, s, before)
	if names, _ := filepath.Glob(filepath.Join(dir, "log", "*.torn")); len(names) != 1 {
		t.Errorf("kept: %q", names)
	}
}

// TestDamageInSealed: damage in an older segment does not stop the start, which does not read it,
// but no read passes over it.
func TestDamageInSealed(t *testing.T) {
	dir := t.TempDir()
	file, _ := damageBase(t, dir, 1000)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[200] ^= 1
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, disk.Config{Dir: dir, Segment: 1000})
	defer s.Close()
	for _, err := range s.Follow(t.Context(), 0) {
		if !errors.Is(err, ledger.ErrDamaged) {
			t.Errorf("follow over damage: %v", err)
		}
		break
	}
}

func TestFolderRefused(t *testing.T) {
	fresh := func(t *testing.T, segment int64) string {
		dir := t.TempDir()
		damageBase(t, dir, segment)
		return dir
	}
	seg := func(dir string, i int) string {
		names, _ := filepath.Glob(filepath.Join(dir, "log", "*.seg"))
		return names[i]
	}
	for name, c := range map[string]struct {
		segment int64
		spoil   func(dir string) error
		want    string
	}{
		"another version": {0, func(dir string) error { return patch(seg(dir, 0), 8, 9) }, "format version 9 is not known"},
		"no ledger":       {0, func(dir string) error { return os.WriteFile(seg(dir, 0), bytes.Repeat([]byte("no"), 100), 0o644) }, "no segment of a ledger"},
		"a gap":           {900, func(dir string) error { return os.Remove(seg(dir, 1)) }, "is missing"},
		"the first gone":  {900, func(dir string) error { return os.Remove(seg(dir, 0)) }, "position 1 is missing"},
		"the last gone": {900, func(dir string) error {
			return errors.Join(os.Remove(seg(dir, -1+count(dir))), os.Remove(seg(dir, -1+count(dir))))
		}, "records that were stored are gone"},
		"no seal": {900, func(dir string) error { return os.Truncate(seg(dir, 0), 500) }, "seal is not where it should be"},
		"a file": {0, func(dir string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, "log")), os.WriteFile(filepath.Join(dir, "log"), nil, 0o644))
		}, "log: not a directory"},
		"index broken": {0, breakIndex, "key index"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := fresh(t, c.segment)
			if err := c.spoil(dir); err != nil {
				t.Fatal(err)
			}
			s, err := disk.Open(disk.Config{Dir: dir, Segment: c.segment, Logger: quiet()})
			if err == nil {
				s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("got %v, want an error that names %s and says %q", err, dir, c.want)
			}
		})
	}
}

func breakIndex(dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "index", "*.sst"))
	for _, name := range names {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

func count(dir string) int {
	names, _ := filepath.Glob(filepath.Join(dir, "log", "*.seg"))
	return len(names)
}

func patch(file string, at int64, v byte) error {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte{v}, at)
	return errors.Join(err, f.Close())
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, disk.Config{Dir: dir})
	_, err := disk.Open(disk.Config{Dir: dir})
	for _, want := range []string{fmt.Sprintf("in use by process %d since", os.Getpid()), "stop that first"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("second open: %v, want %q", err, want)
		}
	}
	mustClose(t, s)
	mustClose(t, mustOpen(t, disk.Config{Dir: dir}))
}

// TestClosing closes the store while others use it: each call is answered, by what is then in the ledger or by an error,
// and so is each later one.
func TestClosing(t *testing.T) {
	dir := t.TempDir()
	stored := map[int]bool{}
	for round := range 30 {
		s := mustOpen(t, disk.Config{Dir: dir, Logger: quiet(), Sync: func(*os.File) error { return nil }})
		var mu sync.Mutex
		var wg sync.WaitGroup
		begun := make(chan struct{}, 4)
		for w := range 4 {
			wg.Go(func() {
				first := round*100_000 + w*20_000
				for n := first; ; n++ {
					_, err := s.Append(context.Background(), []*ledger.Entry{event(n)})
					if n == first {
						begun <- struct{}{}
					}
					if errors.Is(err, ledger.ErrUnavailable) {
						break
					} else if err != nil {
						t.Error(err)
						break
					}
					mu.Lock()
					stored[n] = true
					mu.Unlock()
					for _, err := range s.Stream(context.Background(), event(n).Header.Stream, 0, false) {
						if err != nil {
							break
						}
					}
				}
			})
		}
		<-begun
		wg.Go(func() { _ = s.Close() })
		wg.Go(func() { _ = s.Close() })
		wg.Wait()
		if _, err := s.Append(t.Context(), []*ledger.Entry{event(0)}); !errors.Is(err, ledger.ErrUnavailable) {
			t.Errorf("after the end: %v", err)
		}
	}
	s := mustOpen(t, disk.Config{Dir: dir, Logger: quiet()})
	defer s.Close()
	wantRecords(t, s, 1+len(stored))
}

// TestIndexIsDerived: without its index, and with one that is behind, a ledger opens as it was.
func TestIndexIsDerived(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, disk.Config{Dir: dir, Segment: 4000})
	appendEvents(t, s, 0, 50)
	mustClose(t, s)
	old := t.TempDir()
	if err := os.CopyFS(old, os.DirFS(filepath.Join(dir, "index"))); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, disk.Config{Dir: dir, Segment: 4000})
	appendEvents(t, s, 50, 100)
	want := ledgertest.ReadAll(t, s)
	mustClose(t, s)
	for _, index := range []fs.FS{os.DirFS(old), nil} {
		if err := os.RemoveAll(filepath.Join(dir, "index")); err != nil {
			t.Fatal(err)
		}
		if index != nil {
			if err := os.CopyFS(filepath.Join(dir, "index"), index); err != nil {
				t.Fatal(err)
			}
		}
		s = mustOpen(t, disk.Config{Dir: dir, Segment: 4000})
		for n := range 100 {
			if o, err := s.Append(t.Context(), []*ledger.Entry{event(n)}); err != nil || o[0].Verdict != ledger.Duplicate || o[0].Position != want[n+1].Position {
				t.Fatalf("event %d: %+v, %v", n, o, err)
			}
		}
		if n := len(ledgertest.ReadAll(t, s)); n != len(want) {
			t.Errorf("%d records, want %d", n, len(want))
		}
		mustClose(t, s)
	}
}

// TestQueueIsBounded: so many calls may wait as the queue is long, whether they are staged or a full group has
// them wait in the queue.
func TestQueueIsBounded(t *testing.T) {
	for _, groupSize := range []int{0, 1} {
		queueIsBounded(t, groupSize)
	}
}

func queueIsBounded(t *testing.T, groupSize int) {
	hold, entered := make(chan struct{}), make(chan struct{}, 20)
	var holding atomic.Bool
	s := mustOpen(t, disk.Config{Dir: t.TempDir(), Queue: 2, Group: groupSize, Sync: func(f *os.File) error {
		if holding.Load() {
			entered <- struct{}{}
			<-hold
		}
		return f.Sync()
	}})
	defer s.Close()
	holding.Store(true)
	var busy atomic.Int32
	var wg sync.WaitGroup
	send := func(n int) {
		_, err := s.Append(context.Background(), []*ledger.Entry{event(n)})
		if errors.Is(err, ledger.ErrBusy) {
			if busy.Add(1) == 7 { // of ten, one is at the disk and two wait
				close(hold)
			}
		} else if err != nil {
			t.Error(err)
		}
	}
	wg.Go(func() { send(0) })
	<-entered
	for n := range 9 {
		wg.Go(func() { send(n + 1) })
	}
	wg.Wait()
	holding.Store(false)
	appendEvents(t, s, 0, 10)
}

// TestDamagedIndex: damage in the derived index is an error that says what to do, at start or when it is
// met. It never hangs or ends the process, and with the folder deleted all is as it was.
func TestDamagedIndex(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, disk.Config{Dir: dir})
	var entries []*ledger.Entry
	for n := range 3000 {
		entries = append(entries, event(3000-n)) // against the order: later ones must look their keys up
	}
	if _, err := s.Append(t.Context(), entries); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	tables, err := filepath.Glob(filepath.Join(dir, "index", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("index tables %v, %v", tables, err)
	}
	for _, name := range tables {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for at := 1000; at < len(b)-3000; at += 2048 {
			b[at] ^= 0xff
		}
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var fatal atomic.Value
	s, err = disk.Open(disk.Config{Dir: dir, Logger: quiet(), Fatal: func(err error) { fatal.Store(err) }})
	if err == nil {
		_, err = s.Append(t.Context(), entries)
		if !errors.Is(err, ledger.ErrUnavailable) {
			t.Errorf("append over a damaged index: %v", err)
		}
		s.Close()
		err, _ = fatal.Load().(error)
	}
	if err == nil || !strings.Contains(err.Error(), "derived: delete it") || !strings.Contains(err.Error(), dir) {
		t.Errorf("a damaged index: %v, want its folder and what to do", err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "index")); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, disk.Config{Dir: dir})
	defer s.Close()
	if o, err := s.Append(t.Context(), entries[:1]); err != nil || o[0].Verdict != ledger.Duplicate {
		t.Errorf("after the index was built again: %+v, %v", o, err)
	}
}

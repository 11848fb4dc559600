package projections

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/disk"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// TestDigests folds the same records in one batch, one by one, with restarts, and with crashes that
// take back what was not flushed, and expects the same rows every time.
func TestDigests(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 9))
			b := newBook()
			scribble(b, rnd, 250)
			want := digests(t, caughtUp(t, b))
			for name, follow := range map[string]func(*testing.T, *book, *rand.Rand) *Projections{"one by one": oneByOne, "restarts": restarts, "crashes": crashes} {
				diff(t, name, want, digests(t, follow(t, b.copy(), rnd)))
			}
		})
	}
}

// copy is a book of its own with the same records.
func (b *book) copy() *book {
	c := newBook()
	c.records, c.streams, c.heads, c.found = nil, map[string][]int{}, map[string]ledger.StreamHead{}, map[ledger.Key]ledger.Found{}
	for _, r := range b.all() {
		c.put(r)
	}
	return c
}

func oneByOne(t *testing.T, b *book, _ *rand.Rand) *Projections {
	b.batch, b.alone = 1, true
	return caughtUp(t, b)
}

// restarts closes the projections at random records.
func restarts(t *testing.T, b *book, rnd *rand.Rand) *Projections {
	dir := t.TempDir()
	for range 5 {
		b.batch, b.alone = 1+rnd.IntN(5), rnd.IntN(3) > 0
		p, stop := running(t, Config{Dir: dir, Reader: b}, shipped())
		until(t, func() bool { return p.position() >= ledger.Position(rnd.IntN(len(b.records))) })
		stop()
	}
	p, _ := running(t, Config{Dir: dir, Reader: b}, shipped())
	wait(t, p, b)
	return p
}

// crashes copies the folder while it is being written, as a kill would leave it, and goes on there.
func crashes(t *testing.T, b *book, rnd *rand.Rand) *Projections {
	dir := t.TempDir()
	for range 4 {
		b.batch, b.alone = 1+rnd.IntN(20), rnd.IntN(3) > 0
		p, stop := running(t, Config{Dir: dir, Reader: b}, shipped())
		until(t, func() bool { return p.position() >= ledger.Position(rnd.IntN(len(b.records))) })
		if _, err := p.db.AsyncFlush(); err != nil {
			t.Fatal(err)
		}
		if dir = filepath.Join(t.TempDir(), "killed"); rnd.IntN(2) == 0 {
			if err := p.db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		// A checkpoint is what the files on disk hold: what is in memory only is lost.
		if err := p.db.Checkpoint(dir); err != nil {
			t.Fatal(err)
		}
		stop()
	}
	p, _ := running(t, Config{Dir: dir, Reader: b}, shipped())
	wait(t, p, b)
	return p
}

// failing is a projection of the name whose fold fails or panics at a position.
func failing(known []projection, name string, at ledger.Position, how func() error) []projection {
	known = append([]projection(nil), known...)
	for i := range known {
		if known[i].name == name {
			open := known[i].open
			known[i].open = func(t *table) folder { return poisoned{open(t), at, how} }
		}
	}
	return known
}

type poisoned struct {
	folder
	at  ledger.Position
	how func() error
}

func (p poisoned) fold(r *ledger.Record) error {
	if r.Position == p.at {
		if err := p.how(); err != nil {
			return err
		}
	}
	return p.folder.fold(r)
}

func stateOf(t *testing.T, p *Projections, name string) State {
	t.Helper()
	states, err := p.Query().States(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range states {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("there is no state of %s", name)
	return State{}
}

// TestPoison lets one record stop one projection before it; the others go on, and after a repair so
// does that one.
func TestPoison(t *testing.T) {
	const at = 100
	b := newBook()
	scribble(b, rand.New(rand.NewPCG(3, 3)), 200)
	b.batch, b.alone = 64, true
	want := digests(t, caughtUp(t, b))
	until100 := b.copy()
	until100.records = until100.records[:at-1]
	before := digests(t, caughtUp(t, until100))
	for _, name := range []string{"history", "stats", "contracts", "findings"} {
		for how, fail := range map[string]func() error{
			"error": func() error { return errors.New("it is poison") },
			"panic": func() error { panic("it is poison") },
		} {
			dir := t.TempDir()
			p, stop := running(t, Config{Dir: dir, Reader: b}, failing(shipped(), name, at, fail))
			wait(t, p, b)
			s := stateOf(t, p, name)
			if s.State != Failed || s.Position != at-1 || s.Failure == nil || s.Failure.Position != at || !strings.Contains(s.Failure.Reason, "it is poison") || s.Lag != int64(s.Head-s.Position) {
				t.Errorf("%s, %s: state %+v, failure %+v", name, how, s, s.Failure)
			}
			got := digests(t, p)
			if got[name] != before[name] {
				t.Errorf("%s, %s: the rows are not those before the record", name, how)
			}
			for other := range want {
				if other != name && (got[other] != want[other] || stateOf(t, p, other).State != Live) {
					t.Errorf("%s, %s: %s is not live with all rows", name, how, other)
				}
			}
			stop()
			p, stop = running(t, Config{Dir: dir, Reader: b}, shipped())
			wait(t, p, b)
			diff(t, name+", repaired", want, digests(t, p))
			stop()
		}
	}
}

// TestBadRecords puts records into the ledger that no store should hold.
func TestBadRecords(t *testing.T) {
	bad := func(edit func(r *ledger.Record)) ledger.Record {
		r, _ := accepted("c", "a", 1, 0).Record(ledger.Decision{Generation: 1}, ledger.EmptyStream, 0)
		edit(&r)
		return r
	}
	for name, c := range map[string]struct {
		r     ledger.Record
		stops string
	}{
		"unknown type":  {bad(func(r *ledger.Record) { r.Header.Type = "EventForgotten" }), "history stats contracts findings"},
		"no contract":   {bad(func(r *ledger.Record) { r.Header.ContractID = "" }), "history contracts findings"},
		"zero byte":     {bad(func(r *ledger.Record) { r.Header.ContractID = "c\x00c" }), "history contracts findings"},
		"no sequence":   {bad(func(r *ledger.Record) { r.Header.Sequence = ledger.Absent }), "history contracts findings"},
		"no generation": {bad(func(r *ledger.Record) { r.Header.Generation = 0 }), "history contracts findings"},
		"negative time": {bad(func(r *ledger.Record) { r.Header.RecordedAt = -1 }), "history stats contracts findings"},
	} {
		b := newBook()
		b.put(c.r)
		b.add(accepted("d", "a", 1, 0))
		p, _ := running(t, Config{Reader: b}, shipped())
		until(t, func() bool { return p.position() == 3 })
		states, err := p.Query().States(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var stopped []string
		for _, s := range states {
			if s.State == Failed && s.Failure.Position == 2 {
				stopped = append(stopped, s.Name)
			} else if s.Position != 3 {
				t.Errorf("%s: %+v", name, s)
			}
		}
		if got := strings.Join(stopped, " "); got != c.stops {
			t.Errorf("%s stops %s, want %s", name, got, c.stops)
		}
	}
}

func TestRebuild(t *testing.T) {
	b := newBook()
	b.batch, b.alone = 10, true
	rnd := rand.New(rand.NewPCG(5, 5))
	scribble(b, rnd, 500)
	p := caughtUp(t, b)
	want := digests(t, p)
	for range 2 {
		for name := range want {
			rebuild(t, p, name)
			diff(t, "after the rebuild of "+name, want, digests(t, p))
		}
	}
	compareAll(t, p.Query(), modelOf(b.all()))
	scribble(b, rnd, 50)
	wait(t, p, b)
	diff(t, "rebuilt and followed on", digests(t, caughtUp(t, b)), digests(t, p))
	if n := count2(t, p.db, 'h', 's', 'c', 'f'); n != 4 {
		t.Errorf("%d generations of rows are left, want 4", n)
	}
	var pe *ParameterError
	if err := p.Rebuild(t.Context(), "nothing"); !errors.As(err, &pe) {
		t.Errorf("rebuild of an unknown projection: %v", err)
	}
}

func rebuild(t *testing.T, p *Projections, name string) {
	t.Helper()
	if err := p.Rebuild(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if err := p.Rebuild(t.Context(), name); err != nil {
		t.Fatalf("again at once: %v", err)
	}
	until(t, func() bool { return stateOf(t, p, name).State != Rebuilding })
}

// count2 counts the generations that have rows.
func count2(t *testing.T, db *pebble.DB, ids ...byte) (n int) {
	t.Helper()
	for _, id := range ids {
		for generation := range 256 {
			from := prefix{id, byte(generation)}
			found := false
			v := view{prefix: from, from: db}
			if err := v.scan(context.Background(), from[:], from.end(), false, func(_, _ []byte) (bool, error) { found = true; return false, nil }); err != nil {
				t.Fatal(err)
			}
			if found {
				n++
			}
		}
	}
	return n
}

// TestRebuildAnswers reads without a break while rows are rebuilt and the ledger grows: what was
// there stays there.
func TestRebuildAnswers(t *testing.T) {
	b := newBook()
	rnd := rand.New(rand.NewPCG(6, 6))
	scribble(b, rnd, 400)
	b.batch, b.alone = 5, true
	p := caughtUp(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		var entries, contracts, total int64
		for ctx.Err() == nil {
			page, err1 := p.Query().History(t.Context(), HistoryRequest{})
			n, err2 := page.Total(t.Context())
			s, err3 := p.Query().Stats(t.Context(), StatsRequest{})
			if err := errors.Join(err1, err2, err3); err != nil {
				t.Error(err)
				return
			}
			if *n < entries || s.Contracts < contracts || s.Total() < total {
				t.Errorf("%d entries, %d contracts, %d events, before there were %d, %d, %d", *n, s.Contracts, s.Total(), entries, contracts, total)
				return
			}
			entries, contracts, total = *n, s.Contracts, s.Total()
		}
	})
	for _, known := range p.known {
		scribble(b, rnd, 20)
		rebuild(t, p, known.name)
	}
	cancel()
	wg.Wait()
	wait(t, p, b)
	compareAll(t, p.Query(), modelOf(b.all()))
	diff(t, "rebuilt while the ledger grew", digests(t, caughtUp(t, b)), digests(t, p))
}

// TestRebuildInterrupted stops in the middle of a rebuild; it goes on from there at the next start.
func TestRebuildInterrupted(t *testing.T) {
	b := newBook()
	scribble(b, rand.New(rand.NewPCG(8, 8)), 300)
	dir := t.TempDir()
	p, stop := running(t, Config{Dir: dir, Reader: b}, shipped())
	wait(t, p, b)
	want := digests(t, p)
	b.mu.Lock()
	b.batch, b.alone, b.breakAfter = 10, true, 150
	b.mu.Unlock()
	if err := p.Rebuild(t.Context(), "findings"); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return stateOf(t, p, "findings").Progress > 0.4 })
	diff(t, "meanwhile", want, digests(t, p))
	stop()
	b.mu.Lock()
	b.breakAfter = 0
	b.mu.Unlock()
	p, err := Open(t.Context(), Config{Dir: dir, Reader: b, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if s := stateOf(t, p, "findings"); s.State != Rebuilding || s.Progress < 0.4 || s.Progress == 1 {
		t.Errorf("at the next start: %+v", s)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p, _ = running(t, Config{Dir: dir, Reader: b}, shipped())
	until(t, func() bool { return stateOf(t, p, "findings").State == Live })
	diff(t, "after the restart", want, digests(t, p))
}

// TestClosing closes the projections while they are read and rebuilt: what is asked for is answered, or is an error.
func TestClosing(t *testing.T) {
	b := newBook()
	scribble(b, rand.New(rand.NewPCG(1, 1)), 100)
	for range 20 {
		p, stop := running(t, Config{Reader: b}, shipped())
		wait(t, p, b)
		var wg sync.WaitGroup
		begun := make(chan struct{}, 2)
		again := func(ask func() error) {
			wg.Go(func() {
				err := ask()
				for begun <- struct{}{}; err == nil; err = ask() {
				}
				if !strings.Contains(err.Error(), "closed") {
					t.Error(err)
				}
			})
		}
		again(func() error {
			_, err := p.Query().Contracts(t.Context(), ContractsRequest{})
			return err
		})
		again(func() error { return p.Rebuild(t.Context(), "stats") })
		<-begun
		<-begun
		stop()
		wg.Wait()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRebuildFindsDamage changes a row behind the projection's back. The rebuild says so and leaves
// it; the next one replaces it.
func TestRebuildFindsDamage(t *testing.T) {
	b := newBook()
	scribble(b, rand.New(rand.NewPCG(4, 4)), 200)
	p := caughtUp(t, b)
	want := digests(t, p)
	key := metricKey(prefix{'s', 1}, allHours, metricAccepted)
	if err := p.db.Set(key, row{1}, pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	rebuild(t, p, "stats")
	if s := stateOf(t, p, "stats"); s.State != Failed || s.Failure == nil || !strings.Contains(s.Failure.Reason, "not the same") {
		t.Errorf("state %+v, failure %v", s, s.Failure)
	}
	rebuild(t, p, "stats")
	if s := stateOf(t, p, "stats"); s.State != Live {
		t.Errorf("after the second rebuild: %+v", s)
	}
	diff(t, "replaced", want, digests(t, p))
}

// TestRebuildOfPoison replaces rows that stopped once the reason is gone, and not before.
func TestRebuildOfPoison(t *testing.T) {
	b := newBook()
	scribble(b, rand.New(rand.NewPCG(2, 2)), 100)
	var poison sync.Map
	poison.Store("is", true)
	p, _ := running(t, Config{Reader: b}, failing(shipped(), "contracts", 50, func() error {
		if _, ok := poison.Load("is"); ok {
			return errors.New("poison")
		}
		return nil
	}))
	wait(t, p, b)
	rebuild(t, p, "contracts")
	if s := stateOf(t, p, "contracts"); s.State != Failed || s.Position != 49 {
		t.Errorf("state %+v", s)
	}
	poison.Delete("is")
	rebuild(t, p, "contracts")
	if s := stateOf(t, p, "contracts"); s.State != Live {
		t.Errorf("state %+v", s)
	}
	compareAll(t, p.Query(), modelOf(b.all()))
}

// TestVersion builds rows of another version anew, next to the others, which are live.
func TestVersion(t *testing.T) {
	b := newBook()
	scribble(b, rand.New(rand.NewPCG(1, 1)), 200)
	dir := t.TempDir()
	p, stop := running(t, Config{Dir: dir, Reader: b}, shipped())
	wait(t, p, b)
	stop()
	b.batch, b.alone = 10, true
	known := shipped()
	known[2].version++
	p, _ = running(t, Config{Dir: dir, Reader: b}, known)
	if s := stateOf(t, p, "findings"); s.State != Live {
		t.Errorf("findings: %+v", s)
	}
	scribble(b, rand.New(rand.NewPCG(1, 2)), 1)
	wait(t, p, b)
	diff(t, "all at one position", digests(t, caughtUp(t, b)), digests(t, p))
	if at := p.sets["contracts"].active.at; at.version != known[2].version || at.records != int64(len(b.all())) {
		t.Errorf("the cursor of the rows built anew is %+v", at)
	}
}

// TestManyCounts: records with many counts of repeats are written as soon as there are many of those, for
// each is a row; what is in memory does not grow with a ledger to which everything was sent again.
func TestManyCounts(t *testing.T) {
	b := newBook()
	p, err := open(t.Context(), Config{Dir: t.TempDir(), Reader: b, Logger: slog.New(slog.DiscardHandler)}, shipped())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.gather = 100
	for i := range int64(5) {
		var counts []ledger.Count
		for n := range int64(40) {
			counts = append(counts, ledger.Count{Stream: ledger.ContractStream("c"), Revision: 40*i + n, Count: 1, LastSeen: 1})
		}
		b.add(counted(i, counts...))
	}
	recs := b.all()
	for i, want := range []ledger.Position{0, 0, 0, 4, 4, 4} {
		if err := p.advance(ledger.Batch{Records: recs[i : i+1], Head: 100, Behind: 1}); err != nil {
			t.Fatal(err)
		}
		if got := p.position(); got != want {
			t.Errorf("after %d records with 40 counts each: written up to %s, want %s", i, got, want)
		}
	}
}

// unread is a folder for which the database cannot be read at some point.
type unread struct {
	folder
	t               *table
	folding, ending bool
}

func (u unread) fold(r *ledger.Record) error {
	if u.folding {
		u.t.fail(errors.New("damaged"))
	}
	return u.folder.fold(r)
}

func (u unread) finish() {
	if u.folder.finish(); u.ending {
		u.t.fail(errors.New("damaged"))
	}
}

// TestUnread: what was folded without a row that could not be read is never written.
func TestUnread(t *testing.T) {
	b := newBook()
	scribble(b, rand.New(rand.NewPCG(1, 1)), 50)
	recs, head := b.all(), ledger.Position(len(b.all()))
	for _, gather := range []int64{1, gather} {
		for _, folding := range []bool{false, true} {
			known := shipped()
			whole := known[1].open
			known[1].open = func(t *table) folder { return unread{whole(t), t, folding, !folding} }
			p, err := open(t.Context(), Config{Dir: t.TempDir(), Reader: b, Logger: slog.New(slog.DiscardHandler)}, known)
			if err != nil {
				t.Fatal(err)
			}
			p.gather = gather
			r, err := p.begin(p.sets["stats"], "stats")
			if err != nil {
				t.Fatal(err)
			}
			err = p.advance(ledger.Batch{Records: recs, Head: head})
			if !errors.Is(err, errDatabase) || p.saveGroup() == nil != folding {
				t.Errorf("the group, gather %d, folding %v: %v", gather, folding, err)
			}
			p.next.position = head // as where the group is there
			_, err = p.catchUp(r, recs)
			if last := p.saveRows(r); !errors.Is(err, errDatabase) || !errors.Is(last, errDatabase) {
				t.Errorf("alone, gather %d, folding %v: %v, %v", gather, folding, err, last)
			}
			for _, r := range []*rows{r, p.sets["stats"].active} {
				v := r.view(p.db)
				if err := v.scan(t.Context(), v.prefix[:], v.prefix.end(), false, func(key, _ []byte) (bool, error) {
					return false, fmt.Errorf("row %q was written", key)
				}); err != nil {
					t.Errorf("gather %d, folding %v: %v", gather, folding, err)
				}
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestMoved: whoever waits for rows is woken also where those are built on their own, while the group
// has nothing to write, and where they take the place of others.
func TestMoved(t *testing.T) {
	b := newBook()
	scribble(b, rand.New(rand.NewPCG(1, 1)), 50)
	dir := t.TempDir()
	p, stop := running(t, Config{Dir: dir, Reader: b}, shipped())
	wait(t, p, b)
	stop()
	known := shipped()
	known[0].version++
	p, err := open(t.Context(), Config{Dir: dir, Reader: b, Logger: slog.New(slog.DiscardHandler)}, known)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	woken := func(what string, move func() error) {
		t.Helper()
		_, moved := p.reached(0)
		if err := move(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-moved:
		default:
			t.Errorf("%s: nobody was woken", what)
		}
	}
	woken("rows catch up", func() error { _, err := p.catchUp(<-p.jobs, b.all()); return err })
	anew, err := p.begin(p.sets["history"], "history")
	if err != nil {
		t.Fatal(err)
	}
	woken("rows are replaced", func() error { return p.settle(t.Context(), anew) })
}

func TestOpenErrors(t *testing.T) {
	b := newBook()
	scribble(b, rand.New(rand.NewPCG(1, 1)), 20)
	dir := t.TempDir()
	p, stop := running(t, Config{Dir: dir, Reader: b}, shipped())
	wait(t, p, b)
	stop()
	short := b.copy()
	short.records = short.records[:10]
	if _, err := Open(t.Context(), Config{Dir: dir, Reader: short}); !errors.Is(err, ledger.ErrBeyondHead) || !strings.Contains(err.Error(), dir) {
		t.Errorf("a ledger that lost records: %v", err)
	}
	if _, err := Open(t.Context(), Config{Dir: dir, Reader: newBook()}); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("another ledger: %v", err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{Dir: file, Reader: b}); err == nil {
		t.Error("a file as the folder is no error")
	}
}

// TestWait covers reading one's writes.
func TestWait(t *testing.T) {
	b := newBook()
	p := caughtUp(t, b)
	q := p.Query()
	for i := range int64(100) {
		at := b.add(accepted("c", fmt.Sprint("e", i), i, i))[0]
		if err := q.Wait(t.Context(), at); err != nil {
			t.Fatal(err)
		}
		c, err := q.Contract(t.Context(), "c")
		if err != nil || c.Accepted != i+1 || c.LastPosition != at {
			t.Fatalf("after %d events: %+v, %v", i+1, c, err)
		}
	}
	if err := q.Wait(t.Context(), 1000); !errors.Is(err, ledger.ErrBeyondHead) {
		t.Errorf("beyond the head: %v", err)
	}
	b.setBroken(errors.New("no connection"))
	until(t, func() bool { return stateOf(t, p, "stats").State == CatchingUp })
	at := b.add(accepted("c", "late", 1, 0))[0]
	if err := q.Wait(t.Context(), at); !errors.Is(err, ErrNotCaughtUp) {
		t.Errorf("while the ledger cannot be followed: %v", err)
	}
	if _, err := q.History(t.Context(), HistoryRequest{Page: Page{AsOf: at}}); !errors.Is(err, ErrNotCaughtUp) {
		t.Errorf("as of a position that is not there yet: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := q.Wait(ctx, at); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	b.setBroken(nil)
	wait(t, p, b)
	until(t, func() bool { return stateOf(t, p, "stats").State == Live })
}

// TestLag says how many records and counts wait, and since when.
func TestLag(t *testing.T) {
	b := newBook()
	b.setBroken(errors.New("no connection"))
	b.add(accepted("c", "a", 1, 1000), accepted("c", "b", 2, 5000))
	p, err := Open(t.Context(), Config{
		Dir: t.TempDir(), Reader: b, Pending: func() int64 { return 7 },
		Now: func() time.Time { return ledgertest.Epoch.Add(9 * time.Second) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b.setBroken(nil)
	s, err := p.Query().Stats(t.Context(), StatsRequest{})
	if err != nil || s.Lag.Records != 3+7 || s.Lag.Milliseconds != 9000 || s.AsOf.Position != 0 || !s.AsOf.Time.IsZero() {
		t.Errorf("%+v, %v", s, err)
	}
	if err := errors.Join(p.advance(ledger.Batch{Records: b.records[:2], Head: 3, Behind: 1}), p.save()); err != nil {
		t.Fatal(err)
	}
	if s, err = p.Query().Stats(t.Context(), StatsRequest{}); err != nil || s.Lag.Records != 1+7 || s.Lag.Milliseconds != 4000 {
		t.Errorf("%+v, %v", s, err)
	}
	b.setBroken(errors.New("no connection"))
	if s, err = p.Query().Stats(t.Context(), StatsRequest{}); err != nil || s.Accepted != 1 || s.Lag.Records != 1+7 || s.Lag.Milliseconds != 8000 {
		t.Errorf("while the ledger cannot be read: %+v, %v", s, err)
	}
}

// TestLagOnServer: where positions do not count records, lag is about what is missing, before the first
// record came too, and 0 only at the head.
func TestLagOnServer(t *testing.T) {
	const records, more = behindMuch + 1000, 500
	b := newBook()
	b.stride = 1100
	b.records[0].Position = 1100
	for i := range int64(records - 1) {
		b.add(accepted(fmt.Sprint("c-", i%100), "e", i, i))
	}
	p, err := Open(t.Context(), Config{Dir: t.TempDir(), Reader: b})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	head := b.records[records-1].Position
	for at := 0; records-at > behindMuch; at += more {
		s := stateOf(t, p, "history")
		if missing := int64(records - at); s.State != CatchingUp || s.Lag < missing/2 || s.Lag > 2*missing || s.Progress != share(s.Position, head) {
			t.Errorf("%d records taken in: got %+v", at, s)
		}
		if err := errors.Join(p.advance(ledger.Batch{Records: b.records[at : at+more], Head: head, Behind: 1}), p.save()); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.advance(ledger.Batch{Records: b.records, Head: head}); err != nil {
		t.Fatal(err)
	}
	if s := stateOf(t, p, "history"); s.State != Live || s.Lag != 0 || s.Progress != 1 {
		t.Errorf("at the head: got %+v", s)
	}
}

// silent is a book whose Follow says that there is more and gives no more than some records.
type silent struct {
	*book
	gives int
}

func (s silent) Follow(ctx context.Context, after ledger.Position) iter.Seq2[ledger.Batch, error] {
	return func(yield func(ledger.Batch, error) bool) {
		if batch, _, _ := s.next(after); after == 0 {
			rest := int64(len(batch.Records) - s.gives)
			if !yield(ledger.Batch{Records: batch.Records[:s.gives], Head: batch.Head, Behind: rest}, nil) {
				return
			}
		}
		<-ctx.Done()
		yield(ledger.Batch{}, ctx.Err())
	}
}

// TestSilence: what came can be read, though more was promised.
func TestSilence(t *testing.T) {
	b := newBook()
	at := b.add(accepted("c", "a", 1, 1), accepted("c", "b", 2, 2), accepted("c", "d", 3, 3))
	p, _ := running(t, Config{Reader: silent{b, 3}}, shipped())
	if err := p.Query().Wait(t.Context(), at[1]); err != nil {
		t.Error(err)
	}
	if s := stateOf(t, p, "stats"); s.Position != at[1] || s.Lag != 1 {
		t.Errorf("got %+v", s)
	}
}

// TestDisk runs the projections beside a real ledger with concurrent senders: what was answered is
// what can be read.
func TestDisk(t *testing.T) {
	store, err := disk.Open(disk.Config{Dir: t.TempDir(), Sync: func(*os.File) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	l, err := ledger.New(ledger.Config{Store: store, Now: func() time.Time { return ledgertest.Epoch }})
	if err != nil {
		t.Fatal(err)
	}
	p, stop := running(t, Config{Reader: store, Pending: l.Pending}, shipped())
	const senders, batches, size = 4, 25, 100
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for i := range batches {
				var events [][]byte
				for j := range size {
					events = append(events, fmt.Appendf(nil, `{"contractId":"c%d","eventId":"e%d","sequence":%d,"timestamp":1767225600000,"payload":{}}`, s%2, s, i*size+j))
				}
				results, err := l.Ingest(t.Context(), ledger.Request{Source: &ledger.Source{Name: "s"}}, "any", events)
				if err != nil {
					t.Error(err)
					return
				}
				if err := p.Query().Wait(t.Context(), results[size-1].Position); err != nil {
					t.Error(err)
				}
				found, err := p.Query().Event(t.Context(), results[0].Key)
				if err != nil || len(found) != 1 || found[0].LeafHash != results[0].Leaf {
					t.Errorf("event %s: %v, %v", results[0].Key, found, err)
				}
			}
		})
	}
	wg.Wait()
	head, _ := store.Head(t.Context())
	if err := p.Query().Wait(t.Context(), head); err != nil {
		t.Fatal(err)
	}
	for id := range 2 {
		var n int64
		r := HistoryRequest{ContractID: fmt.Sprint("c", id), Page: Page{First: 777}}
		for more := true; more; {
			page, err := p.Query().History(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			n += int64(len(page.Entries))
			r.After, more = page.Info.EndCursor, page.Info.HasNextPage
		}
		if n != senders*batches*size/2 {
			t.Errorf("contract c%d has %d entries, want %d", id, n, senders*batches*size/2)
		}
	}
	stop()
}

// TestCase30 is one event accepted, repeated, and a bad one.
func TestCase30(t *testing.T) {
	store, err := disk.Open(disk.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	l, err := ledger.New(ledger.Config{Store: store, Now: func() time.Time { return ledgertest.Epoch }})
	if err != nil {
		t.Fatal(err)
	}
	good := []byte(`{"contractId":"c","eventId":"e","sequence":1,"timestamp":1767225600000,"payload":{}}`)
	bad := []byte(`{"contractId":"c","eventId":"e","sequence":-1,"timestamp":1767225600000,"payload":{}}`)
	if _, err := l.Ingest(t.Context(), ledger.Request{Source: &ledger.Source{}}, "any", [][]byte{good, good, bad}); err != nil {
		t.Fatal(err)
	}
	p, stop := running(t, Config{Reader: store, Pending: l.Pending}, shipped())
	until(t, func() bool { ok, _ := p.reached(3); return ok })
	if s, err := p.Query().Stats(t.Context(), StatsRequest{}); err != nil || s.Lag.Records != 1 || s.Duplicates != 0 {
		t.Errorf("before the count is stored: %+v, %v", s, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = l.Run(ctx) })
	until(t, func() bool { return l.Pending() == 0 })
	cancel()
	wg.Wait()
	want := Tally{Accepted: 1, Rejected: 1, Duplicates: 1, Contracts: 1}
	check := func(when string) {
		t.Helper()
		if err := p.Query().Wait(t.Context(), 4); err != nil {
			t.Fatal(err)
		}
		s, err := p.Query().Stats(t.Context(), StatsRequest{})
		if err != nil || s.Tally != want || s.Total() != 2 || s.Lag.Records != 0 {
			t.Errorf("%s: %+v, %v, want %+v", when, s, err, want)
		}
	}
	check("at once")
	for _, known := range p.known {
		rebuild(t, p, known.name)
	}
	check("after every rebuild")
	stop()
}

// TestCase33 is the sequences 1, 2, 5, 4, 5.
func TestCase33(t *testing.T) {
	b := newBook()
	at := b.add(accepted("c", "a", 1, 0), accepted("c", "b", 2, 0), accepted("c", "c", 5, 0), accepted("c", "d", 4, 0), accepted("c", "e", 5, 0))
	p := caughtUp(t, b)
	check := func(want ...string) {
		t.Helper()
		wait(t, p, b)
		found, err := p.Query().Findings(t.Context(), "c", Page{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range found.Findings {
			got = append(got, fmt.Sprint(f.Kind, f.FromSequence, f.ToSequence, f.Positions, f.Message))
		}
		diff(t, "findings", want, got)
	}
	gap := fmt.Sprint(SequenceGap, 3, 3, []ledger.Position{at[1], at[3]}, "No event with sequence 3 was accepted, though there are some before and behind it.")
	reused := fmt.Sprint(SequenceReused, 5, 5, at[4:5], "Sequence 5 was accepted once more, under another event id.")
	late := fmt.Sprint(SequenceRegression, 4, 4, at[3:4], "Sequence 4 arrived after a higher one.")
	check(gap, reused, late)
	at = append(at, b.add(accepted("c", "f", 3, 0))...)
	check(reused, fmt.Sprint(SequenceRegression, 3, 3, at[5:6], "Sequence 3 arrived after a higher one."), late)
}

// TestJoinBeforePoison lets rows that are built anew join the others while those hold what is folded and
// not written; then a record stops one of the others, and that is thrown away.
func TestJoinBeforePoison(t *testing.T) {
	b := newBook()
	scribble(b, rand.New(rand.NewPCG(9, 9)), 60)
	recs := b.all()
	known := failing(shipped(), "stats", 30, func() error { return errors.New("poison") })
	p, err := open(t.Context(), Config{Dir: t.TempDir(), Reader: b, Logger: slog.New(slog.DiscardHandler)}, known)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	advance := func(from, to, behind int) error {
		return p.advance(ledger.Batch{Records: recs[from:to], Head: recs[len(recs)-1].Position, Behind: int64(behind)})
	}
	if err := errors.Join(advance(0, 10, 0), advance(10, 20, 40)); err != nil {
		t.Fatal(err)
	}
	r, err := p.begin(p.sets["findings"], "findings")
	if err != nil {
		t.Fatal(err)
	}
	if joined, err := p.catchUp(r, recs[:40]); !joined || err != nil {
		t.Fatalf("joined %v, %v", joined, err)
	}
	if err := advance(20, 40, 20); !errors.Is(err, errAgain) {
		t.Fatalf("at the poison: %v", err)
	}
	from := int(p.next.position)
	if err := errors.Join(advance(from, 40, 20), advance(40, len(recs), 0)); err != nil || from != 10 {
		t.Fatalf("again from record %d: %v", from, err)
	}
	if same, err := p.compare(t.Context(), p.sets["findings"].active, r); !same || err != nil || r.at.position != p.position() {
		t.Errorf("the rows built anew are at %s: same %v, %v", r.at.position, same, err)
	}
	if s := stateOf(t, p, "stats"); s.State != Failed || s.Position != 29 {
		t.Errorf("stats: %+v", s)
	}
}

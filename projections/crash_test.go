package projections

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/talenttrust/auditledger/ledger"
)

// TestCrash takes the power away at random writes of the database, while batches and tables are written and
// taken in. What is left is the rows of all projections up to one record; from there on all comes right.
func TestCrash(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 31))
			b := newBook()
			scribble(b, rnd, 150)
			recs := b.all()
			for range 2 {
				disk := crashed(t, b, rnd)
				p := onFiles(t, b, disk, 20)
				at := p.at.position
				for name, pair := range p.sets {
					if pair.active.at.position != at {
						t.Errorf("%s is at %s, others at %s", name, pair.active.at.position, at)
					}
				}
				anew := onFiles(t, b, vfs.NewMem(), gather)
				take(t, anew, recs[:at], nil)
				diff(t, fmt.Sprint("left of a crash, at ", at), digests(t, anew), digests(t, p))
				take(t, anew, recs[at:], nil)
				take(t, p, recs[at:], rnd)
				diff(t, "gone on to the end", digests(t, anew), digests(t, p))
				if err := errors.Join(p.Close(), anew.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// crashed follows the whole book, and returns what was on disk when one of the writes was asked for.
func crashed(t *testing.T, b *book, rnd *rand.Rand) vfs.FS {
	disk := vfs.NewCrashableMem()
	var left vfs.FS
	var writes atomic.Int64
	at, lost := int64(1+rnd.IntN(300)), vfs.CrashCloneCfg{UnsyncedDataPercent: rnd.IntN(101), RNG: rand.New(rand.NewPCG(rnd.Uint64(), 1))}
	p := onFiles(t, b, errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && writes.Add(1) == at {
			left = disk.CrashClone(lost)
		}
		return nil
	})), int64(1+rnd.IntN(25)))
	take(t, p, b.all(), rnd)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if left == nil {
		return disk
	}
	return left
}

// onFiles opens projections on files that are not the system's.
func onFiles(t *testing.T, b *book, files vfs.FS, gather int64) *Projections {
	t.Helper()
	const dir = "projections"
	db, err := pebble.Open(dir, &pebble.Options{FS: files, DisableWAL: true, MemTableSize: 64 << 10, CacheSize: 1 << 20, FormatMajorVersion: pebble.FormatNewest, Logger: noLogger{}})
	if err != nil {
		t.Fatal(err)
	}
	p := newProjections(Config{Dir: dir, Reader: b, Logger: slog.New(slog.DiscardHandler)}.complete(), shipped(), db)
	p.files, p.gather, p.tableItems = files, gather, int(1+gather/3)
	if err := p.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// take takes the records in: at once, or in random batches, and flushes now and then.
func take(t *testing.T, p *Projections, recs []ledger.Record, rnd *rand.Rand) {
	t.Helper()
	for from, to := 0, len(recs); from < len(recs); from = to {
		behind := 0
		if rnd != nil {
			to = min(len(recs), from+1+rnd.IntN(25))
			behind = (len(recs) - to) * rnd.IntN(2)
		}
		if err := p.advance(ledger.Batch{Records: recs[from:to], Head: recs[len(recs)-1].Position, Behind: int64(behind)}); err != nil {
			t.Fatal(err)
		}
		if rnd != nil && rnd.IntN(6) == 0 {
			if _, err := p.db.AsyncFlush(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

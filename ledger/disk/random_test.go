package disk_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/disk"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// faultyDisk fails at random, keeps in mind what it said is on it, and loses what it likes of the rest.
type faultyDisk struct {
	mu      sync.Mutex
	rnd     *rand.Rand
	noWrite float64 // how likely a write fails, or finds no room
	noSync  float64
	durable map[string]int64 // bytes of each file
}

func (d *faultyDisk) chance(p float64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rnd.Float64() < p
}

func (d *faultyDisk) number(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rnd.IntN(n)
}

func (d *faultyDisk) write(f *os.File, b []byte, at int64) (int, error) {
	if d.chance(d.noWrite) {
		n, _ := f.WriteAt(b[:d.number(len(b)+1)], at)
		return n, syscall.ENOSPC
	}
	return f.WriteAt(b, at)
}

// sync takes as long as it takes others to come in, but does not wait for the real disk: nothing here cuts its power.
func (d *faultyDisk) sync(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	for range d.number(100) {
		runtime.Gosched()
	}
	if d.chance(d.noSync) {
		return syscall.EIO
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.durable[f.Name()] = info.Size()
	return nil
}

func (d *faultyDisk) free(string) (uint64, error) {
	if d.chance(d.noWrite) {
		return 0, nil
	}
	return 1 << 40, nil
}

// lose cuts off or blanks a part of what was never said to be on the disk.
func (d *faultyDisk) lose(t *testing.T) {
	for path, safe := range d.durable {
		info, err := os.Stat(path)
		if err != nil || info.Size() <= safe {
			continue
		}
		at := safe + d.rnd.Int64N(info.Size()-safe+1)
		if err := os.Truncate(path, at); err != nil {
			t.Fatal(err)
		}
		if d.rnd.IntN(2) == 0 {
			if err := os.Truncate(path, info.Size()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestRandomFaults appends from many goroutines, with repeats and conflicts of what is on its way, while writes and syncs
// fail, callers lose patience and segments end; then lets the power go, and again. What was answered is there as it was told, what
// was said not to be stored is not, and all else is there once or not at all.
func TestRandomFaults(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomFaults(t, seed) })
	}
}

func randomFaults(t *testing.T, seed uint64) {
	dir := t.TempDir()
	var answers []ledgertest.Answer
	refused := map[string]bool{} // correlation ids of calls of which nothing was stored
	durable := map[string]int64{}
	for life := range uint64(3) {
		d := &faultyDisk{rnd: rand.New(rand.NewPCG(seed, life)), durable: durable}
		s := mustOpen(t, disk.Config{Dir: dir, Logger: quiet(), Segment: 1000 + d.rnd.Int64N(8000), Queue: 3 + d.rnd.IntN(8), Group: 1 + d.rnd.IntN(5000),
			Write: d.write, Sync: d.sync, Free: d.free})
		d.mu.Lock()
		d.noWrite, d.noSync = []float64{0, 0.05, 0.4}[d.rnd.IntN(3)], []float64{0, 0.02}[d.rnd.IntN(2)]
		d.mu.Unlock()
		var mu sync.Mutex
		var calls atomic.Uint64
		var wg sync.WaitGroup
		for w := range uint64(6) {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, 100*life+w+10))
				for n := range 12 {
					batch := ledgertest.RandomBatch(rand.New(rand.NewPCG(seed, 1000*life+calls.Add(1)/3))) // three at a time are the same
					id := fmt.Sprintf("%d-%d-%d", life, w, n)
					for _, e := range batch {
						e.Body.CorrelationID = id
						e.Seal()
					}
					ctx, cancel := context.WithCancel(context.Background())
					if rnd.IntN(10) == 0 {
						go cancel()
					}
					out, err := s.Append(ctx, batch)
					cancel()
					mu.Lock()
					switch {
					case err == nil:
						for i := range out {
							answers = append(answers, ledgertest.Answer{Entry: batch[i], Outcome: out[i]})
						}
					case errors.Is(err, ledger.ErrUnknown):
					case errors.Is(err, ledger.ErrUnavailable), errors.Is(err, ledger.ErrBusy):
						refused[id] = true
					default:
						t.Error(err)
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		_ = s.Close()
		d.lose(t)
	}
	s := mustOpen(t, disk.Config{Dir: dir})
	defer s.Close()
	all := ledgertest.ReadAll(t, s)
	ledgertest.CheckAnswers(t, all, answers)
	for i := range all {
		if id := all[i].Body.CorrelationID; refused[id] {
			t.Fatalf("position %d is of call %s, of which nothing should be stored", all[i].Position, id)
		}
	}
}

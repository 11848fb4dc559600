//go:build soak

package eventstore_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// TestSoakAway: the server is away for a minute under load. No caller waits longer than it said, and
// afterwards the store works and its goroutines are gone.
func TestSoakAway(t *testing.T) {
	n := startNode(t)
	s := open(t, config(t, n))
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for w := range 32 {
		wg.Go(func() {
			for i := int64(0); ctx.Err() == nil; i++ {
				rctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
				began := time.Now()
				_, err := appendOne(rctx, s, ledgertest.Event(key(fmt.Sprint("w", w), fmt.Sprint("e", i), i), `{}`, i))
				cancel()
				if took := time.Since(began); took > 4*time.Second {
					t.Errorf("a caller with 2 s waited for %s", took)
				}
				if err != nil && !errors.Is(err, ledger.ErrUnknown) && !errors.Is(err, ledger.ErrUnavailable) {
					t.Error(err)
				}
			}
		})
	}
	ledgertest.Until(t, "events are stored", func() bool { return n.Len() > 500 })
	before := runtime.NumGoroutine()
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Minute)
	t.Logf("%d goroutines before, %d while the server is away", before, runtime.NumGoroutine())
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	stored := n.Len()
	ledgertest.Until(t, "events are stored again", func() bool { return n.Len() > stored+500 })
	stop()
	wg.Wait()
	ledgertest.ReadAll(t, s)
	t.Logf("%d goroutines when it is back", runtime.NumGoroutine())
	ledgertest.Until(t, "the goroutines are near what they were", func() bool { return runtime.NumGoroutine() < before+100 })
}

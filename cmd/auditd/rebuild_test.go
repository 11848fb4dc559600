package main

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/disk"
)

// TestKillInRebuild kills the service while it rebuilds every projection. At the next start the
// rebuilds go on and end, the answers are those of before, and the rows those of a build from nothing.
func TestKillInRebuild(t *testing.T) {
	bin, dir := buildProgram(t), t.TempDir()
	store := openStore(t, dir)
	fillLedger(t, store, 30_000)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	p := startProgram(t, bin, dir)
	names := rebuilt(t, p.url)
	var before, after struct{ Total, Accepted, Rejected, Duplicates, Contracts int64 }
	get(t, p.url+"/api/v1/stats", &before)
	for _, name := range names {
		resp, err := http.Post(p.url+"/api/v1/projections/"+name+"/rebuild", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusAccepted {
			t.Fatalf("rebuild of %s: status %d", name, resp.StatusCode)
		}
	}
	under := inState(t, p.url, "rebuilding")
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.cmd.Wait()

	p = startProgram(t, bin, dir)
	t.Logf("rebuilding at the kill: %v, at the next start: %v", under, inState(t, p.url, "rebuilding"))
	if len(under) == 0 {
		t.Error("no rebuild was under way at the kill")
	}
	rebuilt(t, p.url)
	get(t, p.url+"/api/v1/stats", &after)
	if after != before || before.Total == 0 {
		t.Errorf("stats %+v, before the rebuild %+v", after, before)
	}
	p.cmd.Process.Signal(os.Interrupt)
	if err := p.cmd.Wait(); err != nil {
		t.Fatalf("an orderly stop: %v", err)
	}
	store = openStore(t, dir)
	defer store.Close()
	kept, anew := digestsOf(t, store, filepath.Join(dir, "projections")), digestsOf(t, store, t.TempDir())
	for _, name := range names {
		if kept[name] != anew[name] {
			t.Errorf("%s: digest %s, built from nothing %s", name, kept[name], anew[name])
		}
	}
}

func openStore(t testing.TB, dir string) *disk.Store {
	t.Helper()
	store, err := disk.Open(disk.Config{Dir: dir, Sync: func(*os.File) error { return nil }, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// inState names the projections that are in a state.
func inState(t *testing.T, url, state string) (names []string) {
	t.Helper()
	var answer struct {
		Projections []struct{ Name, State string }
	}
	get(t, url+"/api/v1/projections", &answer)
	for _, p := range answer.Projections {
		if p.State == state {
			names = append(names, p.Name)
		}
	}
	return names
}

// rebuilt waits until every projection is live and at the head, and returns their names.
func rebuilt(t *testing.T, url string) (names []string) {
	t.Helper()
	until(t, func() bool {
		if failed := inState(t, url, "failed"); len(failed) > 0 {
			t.Fatalf("%v failed", failed)
		}
		names = inState(t, url, "live")
		var stats struct{ Lag struct{ Records int64 } }
		get(t, url+"/api/v1/stats", &stats)
		return len(names) == 4 && stats.Lag.Records == 0
	})
	return names
}

// digestsOf is what the projections in the folder hold once they have taken in all of the store.
func digestsOf(t *testing.T, store *disk.Store, dir string) map[string]ledger.Hash {
	t.Helper()
	views, stop := openViews(t, store, dir)
	defer stop()
	reached(t, views, func(float64) {})
	sums := map[string]ledger.Hash{}
	states, err := views.Query().States(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range states {
		if sums[s.Name], _, err = views.Digest(t.Context(), s.Name); err != nil {
			t.Fatal(err)
		}
	}
	return sums
}

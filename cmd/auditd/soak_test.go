//go:build soak

package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestSoak loads the service, as a process of its own, for ten minutes or as long as SOAK says, reads from
// it meanwhile, and wants goroutines, open files and memory in the last third of the time to be what
// they were in the second.
func TestSoak(t *testing.T) {
	length := 10 * time.Minute
	if text := os.Getenv("SOAK"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	p := startProgram(t, buildProgram(t), t.TempDir())
	defer func() {
		p.cmd.Process.Signal(os.Interrupt)
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("an orderly stop: %v", err)
		}
	}()
	end := time.Now().Add(length)
	var wg sync.WaitGroup
	for c := range int64(8) {
		wg.Go(func() {
			for n := c; time.Now().Before(end); n += 8 {
				body := appendBatch(nil, n)
				if err := send(p.url, body); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var samples []sample
	for tick := time.NewTicker(length / 60); time.Now().Before(end); <-tick.C {
		var page map[string]any
		get(t, p.url+"/api/v1/contracts/payment-contract-00001/history?payload=true", &page)
		s := takeSample(t, p)
		samples = append(samples, s)
		t.Logf("%+v", s)
	}
	wg.Wait()
	third := len(samples) / 3
	before, after := highest(samples[third:2*third]), highest(samples[2*third:])
	t.Logf("second third at most %+v, last third at most %+v", before, after)
	if after.goroutines > before.goroutines+20 || after.files > before.files+20 || after.rss > before.rss*5/4 {
		t.Errorf("growth: %+v, then %+v", before, after)
	}
}

// sample is what the process holds at a moment.
type sample struct {
	goroutines, files int
	rss               int // MiB
	events            int
}

func takeSample(t *testing.T, p *program) (s sample) {
	t.Helper()
	resp, err := http.Get(p.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		v, _ := strconv.ParseFloat(value, 64)
		switch name {
		case "go_goroutines":
			s.goroutines = int(v)
		case "process_resident_memory_bytes":
			s.rss = int(v) >> 20
		case `ledger_events_total{code="",status="accepted"}`:
			s.events = int(v)
		}
	}
	files, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "fd"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files { // files of the log and the databases grow with the ledger, not with time
		target, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "fd", f.Name()))
		if err == nil && !strings.HasSuffix(target, ".seg") && !strings.HasSuffix(target, ".sst") {
			s.files++
		}
	}
	return s
}

func highest(samples []sample) (h sample) {
	for _, s := range samples {
		h = sample{max(h.goroutines, s.goroutines), max(h.files, s.files), max(h.rss, s.rss), max(h.events, s.events)}
	}
	return h
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"

	"github.com/talenttrust/auditledger/ledger/canonical"
)

const (
	benchClients  = 16
	benchBatch    = 100
	benchContract = 1000 // different contracts
)

// BenchmarkIngest sends batches of 100 payment events of about 350 bytes from 16 clients through HTTP
// and reports µs per event: once to the whole service with all its followers, and once to a bare path
// that does nothing but read, decode, hash, append and sync. ratio is the bare path's time per event
// over the service's: 1 would be a service that costs nothing.
func BenchmarkIngest(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent)) // for both alike
	var bare, full float64
	b.Run("bare", func(b *testing.B) { bare = ingest(b, startBare(b)) })
	b.Run("service", func(b *testing.B) {
		full = ingest(b, startService(b))
		if bare > 0 {
			b.ReportMetric(bare/full, "ratio")
		}
	})
}

// BenchmarkStart is the start of the service on an empty folder, until it listens, and its stop.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		ctx, cancel := context.WithCancel(context.Background())
		out, in := io.Pipe()
		done := make(chan error, 1)
		go func() {
			done <- run(ctx, []string{"--listen=127.0.0.1:0", "--data-dir=" + b.TempDir(), "--log-level=error"}, in, io.Discard)
			in.Close()
		}()
		if _, err := out.Read(make([]byte, 200)); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		cancel()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// ingest sends b.N batches of new events and returns µs per event.
func ingest(b *testing.B, url string) float64 { return sendBatches(b, url, appendBatch) }

// sendBatches sends b.N batches, each as write appends it, and returns µs per event.
func sendBatches(b *testing.B, url string, write func(b []byte, n int64) []byte) float64 {
	var next atomic.Int64
	var wg sync.WaitGroup
	before := cpuTime(b)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: benchClients}}
	b.ReportAllocs()
	b.ResetTimer()
	for range benchClients {
		wg.Go(func() {
			var body []byte
			var answer bytes.Buffer // used again and again: what a client costs is not the service's
			for {
				n := next.Add(1) - 1
				if n >= int64(b.N) {
					return
				}
				body = write(body[:0], n)
				resp, err := client.Post(url+"/api/v1/events", "application/json", bytes.NewReader(body))
				if err != nil {
					b.Error(err)
					return
				}
				answer.Reset()
				_, err = answer.ReadFrom(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != 200 {
					b.Errorf("status %d, %v: %.300s", resp.StatusCode, err, answer.Bytes())
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	us := float64(b.Elapsed().Microseconds()) / float64(b.N*benchBatch)
	b.ReportMetric(us, "µs/event")
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N*benchBatch), "cpu-µs/event")
	b.ReportMetric(1e6/us, "events/s")
	return us
}

// send sends a batch that is answered, or refused for now.
func send(url string, body []byte) error {
	resp, err := http.Post(url+"/api/v1/events", "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 && resp.StatusCode != 503 {
		return fmt.Errorf("status %d, %v", resp.StatusCode, err)
	}
	return nil
}

// cpuTime is what the whole process has used, clients included.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// appendBatch writes batch n: its events go round the contracts, each with the next sequence.
func appendBatch(b []byte, n int64) []byte {
	now := time.Now().UnixMilli()
	b = append(b, `{"contractType":"payment_contract","events":[`...)
	for i := range int64(benchBatch) {
		if i > 0 {
			b = append(b, ',')
		}
		k := n*benchBatch + i
		b = fmt.Appendf(b, `{"contractId":"payment-contract-%05d","eventId":"payment-event-%010d","sequence":%d,"timestamp":%d,"payload":{"paymentId":"pay-%012d","amount":%d.%02d,"currency":"EUR","status":"completed","timestamp":%d,"debtor":{"name":"Example Company %d","country":"DE"},"reference":"invoice 2026-%06d"}}`,
			k%benchContract, k, k/benchContract, now, k, k%9999, k%100, now, k%77, k)
	}
	return append(b, `]}`...)
}

// startService runs the program in a folder of its own.
func startService(b *testing.B, args ...string) string {
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, append([]string{"--listen=127.0.0.1:0", "--data-dir=" + b.TempDir(), "--log-level=error"}, args...), in, io.Discard)
		in.Close()
	}()
	line := make([]byte, 200)
	n, err := out.Read(line)
	if err != nil {
		b.Fatal(err)
	}
	go io.Copy(io.Discard, out)
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	return regexp.MustCompile(`http://[0-9.:]+`).FindString(string(line[:n]))
}

// startBare serves the bare path.
func startBare(b *testing.B) string {
	f, err := os.Create(filepath.Join(b.TempDir(), "log"))
	if err != nil {
		b.Fatal(err)
	}
	type write struct {
		bytes []byte
		done  chan error
	}
	queue := make(chan write, 256)
	go func() {
		for w := range queue {
			group, buf := []write{w}, bytes.Clone(w.bytes)
			for more := true; more; {
				select {
				case w, more = <-queue:
					if more {
						group, buf = append(group, w), append(buf, w.bytes...)
					}
				default:
					more = false
				}
			}
			_, err := f.Write(buf)
			if err == nil {
				err = fdatasync(f)
			}
			for _, w := range group {
				w.done <- err
			}
		}
	}()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			b.Error(err)
		}
		var out []byte
		dec := jsontext.NewDecoder(bytes.NewBuffer(body))
		for depth := 0; ; {
			kind := dec.PeekKind()
			if kind == '{' && depth == 2 {
				raw, err := dec.ReadValue()
				if err != nil {
					b.Error(err)
					return
				}
				form, err := canonical.Append(nil, raw)
				if err != nil {
					b.Error(err)
					return
				}
				hash := canonical.Sum(form)
				out = append(append(out, form...), hash[:]...)
				continue
			}
			tok, err := dec.ReadToken()
			if err == io.EOF {
				break
			}
			if err != nil {
				b.Error(err)
				return
			}
			switch tok.Kind() {
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
		}
		done := make(chan error, 1)
		queue <- write{out, done}
		if err := <-done; err != nil {
			b.Error(err)
		}
		w.Write([]byte(`{"processed":100}`))
	}))
	b.Cleanup(func() {
		srv.Close()
		close(queue)
		f.Close()
	})
	return srv.URL
}

package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/cmd/collector/internal/testledger"
	"github.com/talenttrust/auditledger/ledger/canonical"

	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

// paymentEvents are n events of about 350 bytes over 1000 contracts.
func paymentEvents(from, n int) []Event {
	events := make([]Event, n)
	for i := range events {
		n := from + i
		payload := fmt.Sprintf(`{"amount":%d.5,"currency":"EUR","note":%q,"paymentId":"p-%d","status":"completed","timestamp":1767225600000}`, n%1000, strings.Repeat("x", 120), n)
		e := event(fmt.Sprintf("contract_%d", n%1000), EventID(chatNamespace, fmt.Sprint(n)).String(), n, payload)
		e.Type = "payment_contract"
		events[i] = e
	}
	return events
}

func BenchmarkEnqueue(b *testing.B) {
	for _, batch := range []int{100, 1000, 4000} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			o := open(b)
			sync := testledger.Fsyncs(b)
			n := 0
			for b.Loop() {
				b.StopTimer()
				events := paymentEvents(n, batch)
				n += batch
				b.StartTimer()
				if _, err := o.Enqueue(b.Context(), events...); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(sync, "disk-fsyncs/s")
		})
	}
}

func BenchmarkRead(b *testing.B) {
	rules := chat(b)
	event := []byte(`{"contractType":"payment_contract","contractId":"contract_1","eventId":"event_1","sequence":1,"timestamp":1767225600000,"payload":{"paymentId":"p-1","amount":12.5,"currency":"EUR","status":"completed","timestamp":1767225600000,"note":"` + strings.Repeat("x", 120) + `"}}`)
	message := []byte(`{"type":"messages.upsert","payload":{"type":"notify","messages":[{"key":{"remoteJid":"777001@g.us","fromMe":false,"id":"KX-1","participant":"r9@lid"},"messageTimestamp":1767225600,"pushName":"Robin","message":{"conversation":"` + strings.Repeat("x", 120) + `"}}]}}`)
	snapshot := []byte(`{"type":"groups.metadata","payload":{"id":"777001@g.us","subject":"Rota","participants":[` + strings.Repeat(`{"id":"r9@lid","admin":null},`, 29) + `{"id":"a@lid","admin":"admin"}]}}`)
	for name, input := range map[string][]byte{"event": event, "message": message, "snapshot-of-30": snapshot} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if events, _ := rules.Read(input, ""); len(events) != 1 || events[0].Refused != "" {
					b.Fatal(events)
				}
			}
		})
	}
}

// yesLedger accepts everything and keeps nothing, so that the figure is the collector's own.
func yesLedger(b *testing.B) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		n := strings.Count(string(body), `"contractId":`)
		w.Write([]byte(`{"results":[` + strings.TrimSuffix(strings.Repeat(`{"status":"accepted"},`, n), ",") + `]}`))
	}))
	b.Cleanup(srv.Close)
	return srv.URL
}

// BenchmarkEndToEnd is from the input of the rules to an empty outbox, in one process with what
// stands for the ledger.
func BenchmarkEndToEnd(b *testing.B) {
	o, rules := open(b), chat(b)
	sync := testledger.Fsyncs(b)
	s, err := NewSender(o, SenderConfig{URL: yesLedger(b), Auth: NoAuth})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	const lot = 4000
	n := 0
	for b.Loop() {
		var events []Event
		for i := range lot {
			n++
			line := fmt.Sprintf(`{"contractType":"payment_contract","contractId":"contract_%d","eventId":"event_%d","sequence":%d,"timestamp":1767225600000,"payload":{"paymentId":"p-%d","amount":12.5,"currency":"EUR","status":"completed","note":%q}}`, i%1000, n, n, n, strings.Repeat("x", 120))
			read, _ := rules.Read([]byte(line), "bench")
			events = append(events, read...)
		}
		if _, err := o.Enqueue(b.Context(), events...); err != nil {
			b.Fatal(err)
		}
	}
	ledgertest.Until(b, "everything is delivered", func() bool { return stats(b, o).Pending == 0 })
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(sync, "disk-fsyncs/s")
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

// BenchmarkBacklog starts on an outbox with a large backlog (BACKLOG, 200,000 by default) and
// delivers the first of it: the start must not depend on the backlog, and memory stays flat.
func BenchmarkBacklog(b *testing.B) {
	backlog, err := strconv.Atoi(cmp.Or(os.Getenv("BACKLOG"), "200000"))
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(b.TempDir(), "outbox.db")
	cfg := Config{Path: path, Reserve: -1}
	fillBacklog(b, cfg, backlog)
	url := yesLedger(b)
	var started, first time.Duration
	var peak uint64
	for b.Loop() {
		begin := time.Now()
		o, err := Open(b.Context(), cfg)
		if err != nil {
			b.Fatal(err)
		}
		if s := stats(b, o); s.Pending < backlog/2 {
			b.Fatalf("got %d pending", s.Pending)
		}
		started = time.Since(begin)
		ctx, cancel := context.WithCancel(b.Context())
		sent := 0
		s, err := NewSender(o, SenderConfig{URL: url, Auth: NoAuth, Settled: func(list []Settlement) {
			if sent == 0 {
				first = time.Since(begin)
			}
			if sent += len(list); sent > 10000 {
				cancel()
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapInuse)
		}, Connections: 1})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Run(ctx); err != nil {
			b.Fatal(err)
		}
		if err := o.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(backlog), "backlog")
	b.ReportMetric(float64(started.Microseconds())/1000, "start-ms")
	b.ReportMetric(float64(first.Microseconds())/1000, "first-delivered-ms")
	b.ReportMetric(float64(peak)/(1<<20), "heap-MiB")
	b.ReportMetric(residentMiB(b), "peak-resident-MiB")
	b.ReportMetric(0, "ns/op")
}

// residentMiB is the most memory the process ever had, SQLite's included; 0 where it is not known.
func residentMiB(b *testing.B) float64 {
	b.Helper()
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		var kib float64
		if _, err := fmt.Sscanf(line, "VmHWM: %g kB", &kib); err == nil {
			return kib / 1024
		}
	}
	return 0
}

// fillBacklog writes rows as Enqueue would, but by SQLite itself, which is much quicker.
func fillBacklog(b *testing.B, cfg Config, n int) {
	b.Helper()
	o, err := Open(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer o.Close()
	body, err := json.Marshal(strings.Repeat("x", 200))
	if err != nil {
		b.Fatal(err)
	}
	hash := canonical.Sum(body)
	for done := 0; done < n; done += 100_000 {
		_, err := o.conn.ExecContext(b.Context(), `WITH RECURSIVE c(i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM c WHERE i + 1 < ?2)
			INSERT INTO outbox (event_key, payload_hash, form, type, contract_id, event_id, sequence, body, size, origin, enqueued_at)
			SELECT CAST(i AS BLOB), ?3, 'event', 'lease_contract', 'contract_' || (i % 1000), 'event_' || i, i,
			'{"contractId":"contract_' || (i % 1000) || '","eventId":"event_' || i || '","sequence":' || i || ',"timestamp":1767225600000,"payload":{"a":' || ?4 || '}}',
			300, 'bench', 0 FROM c`, done, min(done+100_000, n), hash[:], string(body))
		if err != nil {
			b.Fatal(err)
		}
	}
}

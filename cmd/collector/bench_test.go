package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/cmd/collector/internal/testledger"
)

// BenchmarkSend is end to end: a file of 350-byte payment events, the collector as a process, the
// real service as another one, until the ledger has every event on disk. The disk's own fsync rate,
// measured in the same run, stands beside it.
func BenchmarkSend(b *testing.B) {
	const events = 50_000
	dir := b.TempDir()
	binary := filepath.Join(dir, "auditd")
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/talenttrust/auditledger/cmd/auditd").CombinedOutput(); err != nil {
		b.Fatalf("the service does not build: %v\n%s", err, out)
	}
	c := &chaos{t: b, dir: dir, ledgerAddr: freePort(b)}
	c.startIt = func() *process { return startAuditd(b, binary, c.ledgerAddr, dir) }
	c.startLedger()
	syncs := testledger.Fsyncs(b)
	n, cpu := 0, time.Duration(0)
	for b.Loop() {
		b.StopTimer()
		file := filepath.Join(dir, "events.ndjson")
		var text strings.Builder
		for range events {
			n++
			fmt.Fprintf(&text, `{"contractType":"payment_contract","contractId":"contract_%d","eventId":"event_%d","sequence":%d,"timestamp":1767225600000,"payload":{"paymentId":"p-%d","amount":12.5,"currency":"EUR","status":"completed","timestamp":1767225600000,"note":%q}}`+"\n",
				n%1000, n, n, n, strings.Repeat("x", 130))
		}
		writeFile(b, file, text.String())
		b.StartTimer()
		p := startProcess(b, "collector", "send", "--quiet", "--db", filepath.Join(dir, "outbox.db"), "--url", "http://"+c.ledgerAddr, "--secret", chaosToken, file)
		if code := p.wait(b); code != 0 {
			b.Fatalf("send ended with %d:\n%s", code, p.stderr.String())
		}
		cpu += p.cpu()
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(syncs, "disk-fsyncs/s")
	c.ledger.kill()
	b.ReportMetric(float64(cpu.Microseconds())/float64(n), "collector-cpu-µs/event")
	b.ReportMetric(float64(c.ledger.cpu().Microseconds())/float64(n), "ledger-cpu-µs/event")
}

// cpu is the processor time of a process that has ended, which a busy machine does not change much.
func (p *process) cpu() time.Duration {
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestForgedPayload changes a payload in the log, with checksums that fit, while the service is stopped. From then on neither
// REST nor GraphQL shows it; what is beside it is shown as before.
func TestForgedPayload(t *testing.T) {
	bin, dir := buildProgram(t), t.TempDir()
	p := startProgram(t, bin, dir)
	for n, rent := range []string{"12.5", "13.5"} {
		body := fmt.Sprintf(`{"contractType":"lease_contract","eventId":"e-%d","sequence":%d,"timestamp":%d,"payload":{"rent":%s}}`, n+1, n+1, time.Now().UnixMilli(), rent)
		if status, text := (&instance{url: p.url}).do(t, "POST", "/api/v1/contracts/c-1/events", body); status != http.StatusCreated {
			t.Fatalf("status %d: %s", status, text)
		}
	}
	p.end(t)
	forge(t, dir, `"rent":12.5`, `"rent":92.5`)

	p = startProgramLogging(t, bin, dir, io.Discard)
	defer p.end(t)
	ask := func(event string) (status int, rest, graph string) {
		status, rest = (&instance{url: p.url}).do(t, "GET", "/api/v1/contracts/c-1/events/"+event+"?payload=true", "")
		id, sequence, _ := strings.Cut(event, "/")
		query := `{"query":"{event(contractId:\"c-1\",eventId:\"` + id + `\",sequence:` + sequence + `){payload}}"}`
		_, graph = (&instance{url: p.url}).do(t, "POST", "/graphql", query)
		return status, rest, graph
	}
	if status, rest, graph := ask("e-1/1"); status != http.StatusInternalServerError || !strings.Contains(rest, "auditctl verify") || !strings.Contains(graph, "LEDGER_DAMAGED") || strings.Contains(rest+graph, "92.5") {
		t.Errorf("forged: %d %s\n%s", status, rest, graph)
	}
	if status, rest, graph := ask("e-2/2"); status != http.StatusOK || !strings.Contains(rest, "13.5") || !strings.Contains(graph, "13.5") {
		t.Errorf("the one beside it: %d %s\n%s", status, rest, graph)
	}
}

// forge replaces a text in a record's body by one of the same length, and makes the checksums of its frame fit, see
// ledger/disk/frame.go.
func forge(t *testing.T, dir, old, forged string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "log", "*.seg"))
	if err != nil || len(names) != 1 {
		t.Fatalf("%q, %v", names, err)
	}
	b, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(b, []byte(old))
	if at < 0 || len(old) != len(forged) {
		t.Fatal("there is nothing to forge")
	}
	table, le := crc32.MakeTable(crc32.Castagnoli), binary.LittleEndian
	for frame := at; frame > 0; frame-- {
		f := b[frame:]
		if len(f) < 24 || crc32.Checksum(f[:20], table) != le.Uint32(f[20:]) {
			continue
		}
		copy(b[at:], forged)
		body := f[24+le.Uint32(f[4:]):][:le.Uint32(f[8:])]
		le.PutUint32(f[16:], crc32.Checksum(body, table))
		le.PutUint32(f[20:], crc32.Checksum(f[:20], table))
		if err := os.WriteFile(names[0], b, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("there is no frame around the text")
}

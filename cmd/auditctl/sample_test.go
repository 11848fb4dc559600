package main

import (
	"bytes"
	"context"

	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/talenttrust/auditledger/ledger"
)

const sampleNow = "2026-03-01T12:00:00Z"

// naiveLedger judges events by the letter of the public contract, with a map of all it has seen.
type naiveLedger struct {
	now        time.Time
	acceptLate bool
	schemas    *ledger.Schemas
	idRule     *regexp.Regexp
	payloads   map[string]string              // canonical payload by key
	sequences  map[string]map[int64]struct{}  // accepted, by contract
	types      map[string]map[string]struct{} // contracts by type
	summary    *sampleSummary
}

func newNaiveLedger(t testing.TB, acceptLate bool) *naiveLedger {
	t.Helper()
	schemas, err := ledger.LoadSchemas("")
	if err != nil {
		t.Fatal(err)
	}
	now, err := time.Parse(time.RFC3339, sampleNow)
	if err != nil {
		t.Fatal(err)
	}
	return &naiveLedger{
		now: now, acceptLate: acceptLate, schemas: schemas, idRule: regexp.MustCompile(`^"[A-Za-z0-9_.@-]{1,255}"$`),
		payloads: make(map[string]string), sequences: make(map[string]map[int64]struct{}), types: make(map[string]map[string]struct{}),
		summary: &sampleSummary{ByContractType: make(map[string]*typeCounts), ByCode: make(map[string]int)},
	}
}

type naiveResult struct {
	Status string `json:"status"`
	Code   string `json:"code,omitzero"`
}

// take judges a batch.
func (l *naiveLedger) take(batch []byte) ([]naiveResult, error) {
	var body struct {
		ContractType string           `json:"contractType"`
		Events       []jsontext.Value `json:"events"`
	}
	if err := json.Unmarshal(batch, &body, json.RejectUnknownMembers(true), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return nil, err
	}
	l.summary.Batches++
	counts := l.summary.ByContractType[body.ContractType]
	if counts == nil {
		counts = new(typeCounts)
		l.summary.ByContractType[body.ContractType] = counts
	}
	var results []naiveResult
	for _, event := range body.Events {
		status, code := l.judge(body.ContractType, event)
		results = append(results, naiveResult{status, code})
		l.summary.Events++
		switch status {
		case "accepted":
			l.summary.Accepted++
			counts.Accepted++
		case "duplicate":
			l.summary.Duplicates++
			counts.Duplicates++
		default:
			l.summary.Rejected++
			l.summary.ByCode[code]++
			counts.Rejected++
		}
	}
	return results, nil
}

// judge returns the status and code of one event.
func (l *naiveLedger) judge(contractType string, event jsontext.Value) (status, code string) {
	clean := jsontext.Value(strings.ReplaceAll(string(event), `\u0000`, ""))
	if err := clean.Canonicalize(jsontext.AllowInvalidUTF8(true)); errors.Is(err, jsontext.ErrDuplicateName) {
		return "rejected", "duplicate_member"
	} else if err != nil {
		return "rejected", "not JSON: " + err.Error()
	}
	e, err := l.parse(clean)
	age := l.now.Sub(time.UnixMilli(e.timestamp))
	key := fmt.Sprintf("%s:%s:%d", e.contractID, e.eventID, e.sequence)
	known, isKnown := l.payloads[key]
	switch {
	case err != nil:
		return "rejected", "invalid_event"
	case age < -5*time.Minute:
		return "rejected", "event_in_future"
	case len(e.payload) > 262144:
		return "rejected", "payload_too_large"
	case isKnown && known == e.payload:
		return "duplicate", ""
	case l.schemas.Validate(contractType, []byte(e.payload)) != nil:
		return "rejected", "invalid_payload"
	case isKnown:
		return "rejected", "IDEMPOTENCY_PAYLOAD_CONFLICT"
	case age > 24*time.Hour && !l.acceptLate:
		return "rejected", "event_too_old"
	}
	l.payloads[key] = e.payload
	if l.sequences[e.contractID] == nil {
		l.sequences[e.contractID] = make(map[int64]struct{})
		l.summary.ByContractType[contractType].Contracts++
	}
	l.sequences[e.contractID][e.sequence] = struct{}{}
	return "accepted", ""
}

type parsedEvent struct {
	contractID, eventID string
	sequence, timestamp int64
	payload             string
}

func (l *naiveLedger) parse(event jsontext.Value) (e parsedEvent, err error) {
	var members map[string]jsontext.Value
	if err := json.Unmarshal(event, &members); err != nil {
		return e, err
	}

	for _, name := range []string{"contractId", "eventId"} {
		if !l.idRule.Match(members[name]) {
			return e, fmt.Errorf("%s: %q", name, members[name])
		}
	}
	e.contractID, e.eventID = string(members["contractId"]), string(members["eventId"])
	sequence, err1 := strconv.ParseInt(string(members["sequence"]), 10, 64)
	timestamp, err2 := strconv.ParseInt(string(members["timestamp"]), 10, 64)
	e.sequence, e.timestamp, e.payload = sequence, timestamp, string(members["payload"])
	if err := errors.Join(err1, err2); err != nil {
		return e, err
	}
	if sequence < 0 || sequence >= 1<<53 || !strings.HasPrefix(e.payload, "{") || len(members) != 5 {
		return e, errors.New("out of range, not an object or unknown member")
	}
	return e, nil
}

// finish counts what can only be told at the end.
func (l *naiveLedger) finish() *sampleSummary {
	l.summary.Conflicts = l.summary.ByCode["IDEMPOTENCY_PAYLOAD_CONFLICT"]
	l.summary.Contracts = len(l.sequences)
	l.summary.Gaps, l.summary.MissingSequences = 0, 0
	for _, set := range l.sequences {
		var sequences []int64
		for s := range set {
			sequences = append(sequences, s)
		}
		slices.Sort(sequences)
		for i := 1; i < len(sequences); i++ {
			if missing := sequences[i] - sequences[i-1] - 1; missing > 0 {
				l.summary.Gaps++
				l.summary.MissingSequences += int(missing)
			}
		}
	}
	return l.summary
}

// sample runs "auditctl sample" and returns its output and the summary it wrote.
func sample(t testing.TB, args ...string) (out string, summary *sampleSummary) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "summary.json")
	var stdout, stderr bytes.Buffer
	args = append([]string{"sample", "--now", sampleNow, "--summary", file}, args...)
	if err := run(t.Context(), args, strings.NewReader(""), &stdout, &stderr); err != nil {
		t.Fatalf("auditctl %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), readSummary(t, file)
}

func readSummary(t testing.TB, file string) *sampleSummary {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	summary := new(sampleSummary)
	if err := json.Unmarshal(text, summary, json.RejectUnknownMembers(true)); err != nil {
		t.Fatal(err)
	}
	return summary
}

// TestSampleSummaryIsExact holds the announced numbers against those of the naive ledger.
func TestSampleSummaryIsExact(t *testing.T) {
	for _, flags := range []string{
		"",
		"--seed 2 --events 3333 --batch 1000",
		"--events 1",
		"--events 40 --batch 1 --contracts 1",
		"--types payment_contract --contracts 3 --events 1001 --batch 7",
		"--biggest 0.9 --contracts 40",
		"--biggest 1 --contracts 2 --types review_contract,talent_contract",
		"--malformed 0.94",
		"--conflicts 0.9 --events 1000",
		"--repeats 0.9 --events 1000",
		"--reused 0.9 --events 1000",
		"--repeats 0.3 --conflicts 0.3 --malformed 0.2 --reused 0.1 --gaps 0.3 --late 0.3 --poison 0.3",
		"--gaps 1 --events 1000 --contracts 20",
		"--late 1 --events 1000 --contracts 20",
		"--late 1 --gaps 1 --poison 1 --events 1000 --contracts 20",
		"--repeats 0 --conflicts 0 --reused 0 --malformed 0 --gaps 0 --late 0 --poison 0",
		"--span 4380h --malformed 0.3",
		"--span 10m",
	} {
		t.Run(flags, func(t *testing.T) {
			t.Parallel()
			args := strings.Fields(flags)
			if !slices.Contains(args, "--events") {
				args = append(args, "--events", "1200")
			}
			out, got := sample(t, args...)
			naive := newNaiveLedger(t, strings.Contains(flags, "4380h"))
			for line := range strings.Lines(out) {
				if _, err := naive.take([]byte(line)); err != nil {
					t.Fatalf("batch: %v", err)
				}
			}
			if diff := cmp.Diff(naive.finish(), got); diff != "" {
				t.Errorf("-naive +announced:\n%s", diff)
			}
		})
	}
}

func TestSampleIsDeterministic(t *testing.T) {
	one, summary := sample(t, "--events", "3000")
	two, again := sample(t, "--events", "3000")
	if one != two || !cmp.Equal(summary, again) {
		t.Error("the same flags gave other bytes")
	}
	if other, _ := sample(t, "--events", "3000", "--seed", "2"); one == other {
		t.Error("another seed gave the same bytes")
	}
}

// TestSampleMix looks for everything that a sample promises to hold.
func TestSampleMix(t *testing.T) {
	const events = 20000
	out, summary := sample(t, "--events", strconv.Itoa(events), "--contracts", "100", "--biggest", "0.4")
	for _, code := range []string{"invalid_event", "invalid_payload", "duplicate_member", "payload_too_large", "event_in_future", "event_too_old", "IDEMPOTENCY_PAYLOAD_CONFLICT"} {
		if summary.ByCode[code] == 0 {
			t.Errorf("%s: got none", code)
		}
	}
	near := func(name string, got int, share float64) {
		if want := share * events; math.Abs(float64(got)-want) > 0.25*want {
			t.Errorf("%s: got %d, want about %.0f", name, got, want)
		}
	}
	near("repeats", summary.Duplicates, 0.05)
	near("refused", summary.Rejected-summary.Conflicts, 0.02)
	near("conflicts", summary.Conflicts, 0.005)
	near("gaps", summary.Gaps, 0.005)
	near("events of the biggest contract", strings.Count(out, `"contractId":"talent-000000"`), 0.4)
	if summary.Contracts != 100 {
		t.Errorf("contracts: got %d, want 100", summary.Contracts)
	}
	for _, part := range []string{`\u0000`, "\xe9", `\ud83d`, `no\u0000te`, `@talent.example-`, `"sequence":2.5`, `e-2`} {
		if !strings.Contains(out, part) {
			t.Errorf("%q: got none", part)
		}
	}
	before, after := "2025-10-01T00:00:00Z", "2026-02-20T00:00:00Z"
	for _, date := range []string{before, after} {
		at, _ := time.Parse(time.RFC3339, date)
		if day := strconv.FormatInt(at.UnixMilli(), 10)[:5]; !strings.Contains(out, `"createdAt":`+day) {
			t.Errorf("dates inside payloads about %s: got none", date)
		}
	}
}

// TestSampleMemoryIsFlat holds that events leave nothing behind.
func TestSampleMemoryIsFlat(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	cfg := sampleCmd{Events: 100_000, Contracts: 500, Batch: 100, Types: []string{"payment_contract", "review_contract"}, Now: time.Now(), Span: time.Hour,
		Repeats: 0.1, Conflicts: 0.05, Reused: 0.01, Gaps: 0.05, Late: 0.1, Poison: 0.01}
	gen := newGenerator(cfg)
	var early uint64
	err := gen.run(t.Context(), func([]byte, int) error {
		if early == 0 && gen.sent > 10_000 {
			early = heap()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if late := heap(); late > early+1<<20 {
		t.Errorf("got %d bytes after all events, %d after a tenth", late, early)
	}
	runtime.KeepAlive(gen)
}

func TestSampleRefusesFlags(t *testing.T) {
	for flags, want := range map[string]string{
		"--events 0":                        "--events",
		"--contracts -1":                    "--contracts",
		"--batch 1001":                      "--batch",
		"--span 1s":                         "--span",
		"--repeats 1.1":                     "--repeats",
		"--gaps -0.1":                       "--gaps",
		"--late NaN":                        "--late",
		"--repeats 0.6 --malformed 0.6":     "add up",
		"--types lease_contract":            "--types",
		"--expect":                          "--post",
		"--post localhost:8080":             "--post",
		"--now yesterday":                   "--now",
		"--summary /nowhere/at/all/s.json":  "write summary",
		"--post ftp://localhost --events 1": "--post",
	} {
		var stdout, stderr bytes.Buffer
		err := run(t.Context(), append([]string{"sample", "--events", "1"}, strings.Fields(flags)...), nil, &stdout, &stderr)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want one that holds %q", flags, err, want)
		}
	}
}

func TestSampleSaysJSON(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), []string{"sample", "--events", "10", "--json"}, nil, &stdout, &stderr); err != nil {
		t.Fatal(err)
	}
	var got sampleSummary
	if err := json.Unmarshal(stderr.Bytes(), &got); err != nil || got.Events != 10 {
		t.Errorf("got %s (%v), want the summary of 10 events", stderr.String(), err)
	}
}

// failingWriter fails after n bytes, as a pipe whose reader has gone.
type failingWriter struct{ n int }

func (w *failingWriter) Write(b []byte) (int, error) {
	if w.n -= len(b); w.n < 0 {
		return 0, io.ErrClosedPipe
	}
	return len(b), nil
}

func TestSampleStops(t *testing.T) {
	err := run(t.Context(), []string{"sample"}, nil, &failingWriter{100_000}, io.Discard)
	if !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("closed pipe: got %v, want %v", err, io.ErrClosedPipe)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, []string{"sample"}, nil, io.Discard, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: got %v, want %v", err, context.Canceled)
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"sample", "--help"}} {
		var stdout, stderr bytes.Buffer
		if err := run(t.Context(), args, nil, &stdout, &stderr); err != nil || !strings.Contains(stdout.String(), "sample") {
			t.Errorf("%v: got %v and %q", args, err, stdout.String())
		}
	}
	var stderr bytes.Buffer
	if code := exitCode(run(t.Context(), []string{"nonsense"}, nil, io.Discard, &stderr), &stderr); code != 1 || stderr.Len() == 0 {
		t.Errorf("unknown command: got exit %d and %q", code, stderr.String())
	}
}

func TestAppendDecimal(t *testing.T) {
	for _, tc := range []struct {
		n           int64
		scale       int
		plain, also string
	}{
		{0, 0, "0", "0.0"}, {0, 2, "0", "0e-2"}, {5, 2, "0.05", "5e-2"}, {50, 2, "0.5", "50e-2"}, {500, 2, "5", "500e-2"},
		{124950, 2, "1249.5", "124950e-2"}, {45, 1, "4.5", "45e-1"}, {1767225600000, 0, "1767225600000", "1767225600000.0"},
	} {
		plain, also := string(appendDecimal(nil, tc.n, tc.scale)), string(appendRespelled(nil, tc.n, tc.scale))
		if plain != tc.plain || also != tc.also {
			t.Errorf("%d / 10^%d: got %s and %s, want %s and %s", tc.n, tc.scale, plain, also, tc.plain, tc.also)
		}
	}
}

func BenchmarkSample(b *testing.B) {
	cfg := sampleCmd{Events: b.N, Batch: 100, Types: []string{"talent_contract", "payment_contract", "review_contract"}, Now: time.Now(), Span: time.Hour,
		Repeats: 0.05, Conflicts: 0.005, Reused: 0.005, Malformed: 0.02, Gaps: 0.005, Late: 0.02, Poison: 0.005}
	gen := newGenerator(cfg)
	b.ReportAllocs()
	var bytes int
	if err := gen.run(b.Context(), func(batch []byte, _ int) error { bytes += len(batch); return nil }); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(bytes)/float64(b.N), "B/event")
}

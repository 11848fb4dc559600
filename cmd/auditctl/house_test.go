package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/disk"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
	"github.com/talenttrust/auditledger/ledger/ledgertest/esnode/node"
)

// asProgram makes the test's own binary auditctl, for tests that kill it.
const asProgram = "AUDITCTL_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// lived is the life of a ledger: what was sent to it, and when.
type lived struct {
	dir    string
	events [][]byte // of type sample, in order, without those of the second day
	now    time.Time
}

// live makes a ledger of n sample events, a day later some of them again, and some envelopes.
func live(t *testing.T, n int) *lived {
	t.Helper()
	h := &lived{dir: t.TempDir(), now: ledgertest.Epoch}
	s, err := disk.Open(disk.Config{Dir: h.dir, Now: h.clock})
	if err != nil {
		t.Fatal(err)
	}
	results := h.send(t, s, n)
	h.now = h.now.Add(30 * time.Hour)
	l, stop := h.ledger(t, s)
	again, err := l.Ingest(t.Context(), h.request(), "sample", h.events[:50])
	if err != nil {
		t.Fatal(err)
	}
	for i, envelope := range []string{`{"type":"chat","chat_jid":"123@g.us","payload":["x",1]}`, `{"type":"chat","chat_jid":"чат","payload":{"n":9007199254740993}}`, `{"type":"chat","chat_jid":null,"payload":{}}`} {
		r, err := l.IngestEnvelope(t.Context(), h.request(), fmt.Sprint("env-", i), []byte(envelope))
		if err != nil || r.Status != ledger.StatusAccepted {
			t.Fatalf("envelope %d: %s, %v", i, r.Status, err)
		}
	}
	stop()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	count := map[ledger.Status]int{}
	generations := 0
	for _, r := range append(results, again...) {
		count[r.Status]++
		if r.Generation > 1 {
			generations++
		}
	}
	if count[ledger.StatusAccepted] == 0 || count[ledger.StatusRejected] == 0 || count[ledger.StatusDuplicate] == 0 || generations == 0 {
		t.Fatalf("the ledger is too simple: %v, %d later generations", count, generations)
	}
	return h
}

func (h *lived) clock() time.Time { return h.now }

func (h *lived) request() ledger.Request {
	return ledger.Request{Source: &ledger.Source{Name: "house", Window: 24 * time.Hour}, CorrelationID: "house-1"}
}

// ledger runs until stop is called, which stores what is counted.
func (h *lived) ledger(t *testing.T, s ledger.Store) (l *ledger.Ledger, stop func()) {
	t.Helper()
	l, err := ledger.New(ledger.Config{Store: s, Instance: "old", Lax: true, Now: h.clock, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	return l, func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	}
}

// send sends n sample events, odd bytes and all that is wrong with some of them included.
func (h *lived) send(t *testing.T, s ledger.Store, n int) (all []ledger.Result) {
	t.Helper()
	l, stop := h.ledger(t, s)
	defer stop()
	c := sampleCmd{Events: n, Batch: 100, Types: []string{"talent_contract", "payment_contract"}, Seed: 7, Now: h.now, Span: 20 * time.Hour,
		Repeats: 0.1, Conflicts: 0.02, Reused: 0.01, Malformed: 0.05, Gaps: 0.01, Late: 0.05, Poison: 0.05}
	h.events = nil
	err := newGenerator(c).run(t.Context(), func(batch []byte, _ int) error {
		var b struct {
			ContractType string           `json:"contractType"`
			Events       []jsontext.Value `json:"events"`
		}
		if err := json.Unmarshal(batch, &b, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
			return err
		}
		var events [][]byte
		for _, e := range b.Events {
			events = append(events, e)
		}
		h.events = append(h.events, events...)
		results, err := l.Ingest(t.Context(), h.request(), "sample", events)
		all = append(all, results...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func startNode(t *testing.T) *node.Node {
	t.Helper()
	n, err := node.Open(node.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

func mustAsk(t *testing.T, args ...string) string {
	t.Helper()
	out, err := ask(t, args...)
	if err != nil {
		t.Fatalf("auditctl %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func contents(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// digests finds the SHA-256 that export and import say.
var digestSaid = regexp.MustCompile(`SHA-256 of the export ([0-9a-f]{64})`)

// From a folder to a server to another folder: the three exports are the same file, and the last folder
// serves as the first one did.
func TestMovingHouse(t *testing.T) {
	h, n, tmp := live(t, 800), startNode(t), t.TempDir()
	server := "--ledger-store=" + n.URL()
	one, two, three, last := filepath.Join(tmp, "1"), filepath.Join(tmp, "2"), filepath.Join(tmp, "3"), filepath.Join(tmp, "data")

	said := digestSaid.FindStringSubmatch(mustAsk(t, "export", one, "--data-dir", h.dir))
	if len(said) != 2 {
		t.Fatal("the export does not say its SHA-256")
	}
	out := mustAsk(t, "import", one, server, "--sha256", said[1])
	if !strings.Contains(out, said[1]) || !strings.Contains(out, "\n0 were there already") {
		t.Errorf("import: got %s", out)
	}
	mustAsk(t, "export", two, server)
	mustAsk(t, "import", two, "--data-dir", last)
	mustAsk(t, "export", three, "--data-dir", last)
	want := contents(t, one)
	for _, file := range []string{two, three} {
		if contents(t, file) != want {
			t.Errorf("export %s is not the file that was imported", filepath.Base(file))
		}
	}
	if out := mustAsk(t, "export", "--data-dir", last); out != want {
		t.Error("an export to standard output is not the file that was imported")
	}
	for _, part := range []string{`"type":"LedgerCreated"`, `"type":"EventRejected"`, `"type":"DuplicatesCounted"`, `"sanitized":true`, `"generation":2`, `"chatJid":"чат"`} {
		if !strings.Contains(want, part) {
			t.Errorf("the ledger has nothing with %s", part)
		}
	}
	if out := mustAsk(t, "verify", "--data-dir", last); !strings.Contains(out, "every hash, chain and key holds") {
		t.Errorf("verify: got %s", out)
	}
	if out := mustAsk(t, "import", one, server); !strings.Contains(out, " 0 were imported") {
		t.Errorf("import of what is there: got %s", out)
	}
	h.comesBack(t, last)
}

// comesBack sends the first events again to a copy of the ledger: they are duplicates of what they were before.
func (h *lived) comesBack(t *testing.T, dir string) {
	t.Helper()
	var answers [2][]ledger.Result
	for i, d := range []string{h.dir, dir} {
		s, err := disk.Open(disk.Config{Dir: d, Now: h.clock})
		if err != nil {
			t.Fatal(err)
		}
		l, stop := h.ledger(t, s)
		if answers[i], err = l.Ingest(t.Context(), h.request(), "sample", h.events[:50]); err != nil {
			t.Fatal(err)
		}
		stop()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	duplicates := 0
	for i, was := range answers[0] {
		is := answers[1][i]
		if is.Status != was.Status || is.Revision != was.Revision || is.ProcessedAt != was.ProcessedAt || !is.PayloadHash.Equal(was.PayloadHash) {
			t.Errorf("event %d: got %+v, in the old house %+v", i, is, was)
		}
		if is.Status == ledger.StatusDuplicate {
			if duplicates++; is.Position != was.Position {
				t.Errorf("event %d: a duplicate of position %s, in the old house of %s", i, is.Position, was.Position)
			}
		}
	}
	if duplicates < 20 {
		t.Errorf("%d duplicates of 50 events, want nearly all", duplicates)
	}
}

// program is auditctl as a process of its own.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// An import that is killed is gone on with by the same command.
func TestKilledImport(t *testing.T) {
	h, n, tmp := live(t, 1600), startNode(t), t.TempDir()
	file := filepath.Join(tmp, "export")
	mustAsk(t, "export", file, "--data-dir", h.dir)
	text := contents(t, file)
	all := strings.SplitAfter(text, "\n")
	for name, where := range map[string][]string{"disk": {"--data-dir=" + filepath.Join(tmp, "new")}, "server": {"--ledger-store=" + n.URL(), "--data-dir=" + filepath.Join(tmp, "cache")}} {
		t.Run(name, func(t *testing.T) {
			cmd := program(t, append([]string{"import", "--progress"}, where...)...)
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			talk, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			wrote := make(chan struct{})
			go func() { // the end of the file never comes, so that it cannot have finished
				defer close(wrote)
				in.Write([]byte(strings.Join(all[:1200], "")))
			}()
			var said []byte
			for buf := make([]byte, 1000); !bytes.Contains(said, []byte(" records, ")); {
				k, err := talk.Read(buf)
				if said = append(said, buf[:k]...); err != nil {
					t.Fatalf("the import ended: %s", said)
				}
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			cmd.Wait()
			<-wrote
			if _, err := ask(t, append([]string{"export"}, where...)...); err == nil || !strings.Contains(err.Error(), "has not finished") {
				t.Errorf("export half a ledger: got %v", err)
			}
			out := mustAsk(t, append([]string{"import", file}, where...)...)
			if strings.Contains(out, "\n0 were there already") || strings.Contains(out, " 0 were imported") {
				t.Errorf("the second import: got %s", out)
			}
			if out := mustAsk(t, append([]string{"export"}, where...)...); out != text {
				t.Error("the export is not the file that was imported")
			}
		})
	}
}

// An export that is killed is gone on with by the same command.
func TestKilledExport(t *testing.T) {
	h, n, tmp := live(t, 2500), startNode(t), t.TempDir()
	whole := filepath.Join(tmp, "whole")
	mustAsk(t, "export", whole, "--data-dir", h.dir)
	text := contents(t, whole)
	mustAsk(t, "import", whole, "--ledger-store="+n.URL())
	for name, where := range map[string]string{"disk": "--data-dir=" + h.dir, "server": "--ledger-store=" + n.URL()} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(tmp, name)
			killedInside(t, file, where)
			before, err := os.Stat(file + ".part")
			if err != nil {
				t.Fatal(err)
			}
			mustAsk(t, "export", file, where)
			if contents(t, file) != text {
				t.Errorf("the export that went on behind %d bytes is not the whole", before.Size())
			}
			if _, err := os.Stat(file + ".part"); err == nil {
				t.Error("the part is still there")
			}
		})
	}
}

// killedInside kills an export after it has written something and before it is done.
func killedInside(t *testing.T, file, where string) {
	t.Helper()
	for range 10 {
		cmd := program(t, "export", file, where)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { cmd.Wait(); close(ended) }()
		tick := time.NewTicker(time.Millisecond)
		for begun := false; !begun; {
			select {
			case <-ended:
				begun = true
			case <-tick.C:
				info, err := os.Stat(file + ".part")
				begun = err == nil && info.Size() > 0
			}
		}
		tick.Stop()
		cmd.Process.Kill()
		<-ended
		if _, err := os.Stat(file); err != nil {
			return
		}
		os.Remove(file) // it was faster
	}
	t.Fatal("the export was never killed in the middle")
}

// pastFile is an export of ledgertest.Past.
func pastFile(t *testing.T) (file string, all []string) {
	t.Helper()
	for _, r := range ledgertest.Past(t) {
		all = append(all, string(r.AppendJSON(nil))+"\n")
	}
	return write(t, strings.Join(all, "")), all
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "export")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// A part that a torn line ends is gone on with; one that is not of this ledger is not.
func TestExportPart(t *testing.T) {
	file, all := pastFile(t)
	dir, text := t.TempDir(), strings.Join(all, "")
	mustAsk(t, "import", file, "--data-dir", dir)
	for name, c := range map[string]struct{ part, says string }{
		"empty":            {"", ""},
		"no whole line":    {all[0][:100], ""},
		"whole lines":      {strings.Join(all[:100], ""), ""},
		"a torn line":      {strings.Join(all[:100], "") + all[100][:200], ""},
		"all":              {text, ""},
		"another ledger's": {string(ledgerOf(t)), "is not in this ledger"},
		"something else":   {"hello\n", "its last line: not a record"},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			if err := os.WriteFile(out+".part", []byte(c.part), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := ask(t, "export", out, "--data-dir", dir)
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("got %v, want an error that says %q", err, c.says)
				}
				return
			}
			if err != nil || contents(t, out) != text {
				t.Errorf("the export is not the whole ledger: %v", err)
			}
			if _, err := ask(t, "export", out, "--data-dir", dir); err == nil || !strings.Contains(err.Error(), "is there already") {
				t.Errorf("a second export to the file: %v", err)
			}
		})
	}
}

// ledgerOf is the export of a new ledger.
func ledgerOf(t *testing.T) []byte {
	dir := t.TempDir()
	fill(t, dir, 3)
	return []byte(mustAsk(t, "export", "--data-dir", dir))
}

// Whatever is done to a file, the first line that is not right is named, nothing of it or behind it is
// stored, and the right file is taken behind what came before. That a header was edited or a line is missing
// shows at the next line of its stream: then what came before is not of the right file.
func TestImportDamaged(t *testing.T) {
	file, all := pastFile(t)
	text := strings.Join(all, "")
	find := func(part string) int {
		for i, line := range all {
			if strings.Contains(line, part) {
				return i
			}
		}
		t.Fatalf("no line with %s", part)
		return 0
	}
	at := find(`"payload":{"i":9}`)
	next := find(`"payload":{"i":12}`) // of the same contract
	edit := func(old, new string) string {
		if !strings.Contains(all[at], old) {
			t.Fatalf("line %d has no %s", at, old)
		}
		return strings.Join(all[:at], "") + strings.Replace(all[at], old, new, 1) + strings.Join(all[at+1:], "")
	}
	without := strings.Join(all[:at], "") + strings.Join(all[at+1:], "")
	swapped := strings.Join(all[:at], "") + all[next] + strings.Join(all[at+1:next], "") + all[at] + strings.Join(all[next+1:], "")
	for name, c := range map[string]struct {
		text string
		line int
		says string
	}{
		"edited payload":  {edit(`{"i":9}`, `{"i":8}`), at + 1, "payload hash"},
		"edited body":     {edit(`"correlationId":"suite-1"`, `"correlationId":"suite-2"`), at + 1, "commitment"},
		"edited id":       {edit(`"eventId":"e9"`, `"eventId":"e8"`), at + 1, "not a record"},
		"edited header":   {edit(`"source":"suite"`, `"source":"other"`), next + 1, "prev does not name"},
		"edited prev":     {edit(`"prev":"`, `"prev":"0`), at + 1, "not a record"},
		"removed":         {without, next, "where revision"},
		"reordered":       {swapped, at + 1, "where revision"},
		"line twice":      {strings.Join(all[:at+1], "") + strings.Join(all[at:], ""), at + 2, "where revision"},
		"first line gone": {strings.Join(all[1:], ""), 1, "begins with a record of type LedgerCreated"},
		"cut":             {strings.Join(all[:at], "") + all[at][:100], at + 1, "is cut"},
		"unknown member":  {edit(`"v":1`, `"v":1,"w":"secret"`), at + 1, "not one of a record"},
		"wrong version":   {edit(`"v":1`, `"v":2`), at + 1, "version 2"},
		"a space":         {edit(`"v":1`, `"v": 1`), at + 1, "not in the form"},
		"empty line":      {strings.Join(all[:at], "") + "\n" + strings.Join(all[at:], ""), at + 1, "not JSON"},
		"CR":              {strings.Join(all[:at], "") + strings.Replace(all[at], "\n", "\r\n", 1), at + 1, "not a record"},
		"not JSON":        {strings.Join(all[:at], "") + "secret\n", at + 1, "not JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			_, err := ask(t, "import", write(t, c.text), "--data-dir", dir)
			line := fmt.Sprintf("line %d: ", c.line)
			if err == nil || !strings.Contains(err.Error(), line) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret") {
				t.Fatalf("got %v, want an error that says %q and %q", err, line, c.says)
			}
			if name == "edited header" || name == "removed" {
				_, err := ask(t, "import", file, "--data-dir", dir)
				if say := fmt.Sprintf("line %d is not its record", at+1); err == nil || !strings.Contains(err.Error(), say) {
					t.Errorf("the right file: got %v, want an error that says %q", err, say)
				}
				return
			}
			if out := mustAsk(t, "import", file, "--data-dir", dir); !strings.Contains(out, fmt.Sprintf("\n%d were there already", c.line-1)) {
				t.Errorf("the right file: got %s, want %d records there already", out, c.line-1)
			}
			if out := mustAsk(t, "export", "--data-dir", dir); out != text {
				t.Error("the export is not the right file")
			}
		})
	}
}

func TestImportRefused(t *testing.T) {
	file, all := pastFile(t)
	used, projected, whole := t.TempDir(), t.TempDir(), t.TempDir()
	fill(t, used, 3)
	if err := os.Mkdir(filepath.Join(projected, "projections"), 0o750); err != nil {
		t.Fatal(err)
	}
	short := write(t, strings.Join(all[:len(all)-1], ""))
	sum := digestSaid.FindStringSubmatch(mustAsk(t, "import", file, "--data-dir", whole))[1]
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"a ledger in use":     {[]string{file, "--data-dir", used}, "line 1 is not its record at position 1, revision 0 of ledger"},
		"projections":         {[]string{file, "--data-dir", projected}, "projections of another ledger"},
		"last line missing":   {[]string{short, "--data-dir", t.TempDir(), "--sha256", sum}, "not the one of --sha256"},
		"an older file":       {[]string{short, "--data-dir", whole}, "more records than the file has lines"},
		"an empty file later": {[]string{write(t, ""), "--data-dir", whole}, "more records than the file has lines: 0;"},
		"no digest":           {[]string{file, "--sha256", "abc"}, "64 hex digits"},
		"empty file":          {[]string{write(t, ""), "--data-dir", t.TempDir()}, "the file is empty"},
		"long lines":          {[]string{file, "--data-dir", t.TempDir(), "--max-line", "4096"}, "is too long"},
		"no file":             {[]string{filepath.Join(used, "none"), "--data-dir", t.TempDir()}, "no such file"},
		"no store":            {[]string{file, "--ledger-store", "postgres://u:secret@h"}, "must be disk, esdb"},
		"no server's address": {[]string{file, "--ledger-store", "esdb://u:secret@h?tls=maybe"}, "option tls"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ask(t, append([]string{"import"}, c.args...)...); err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want an error that says %q", err, c.says)
			}
		})
	}
	if out := mustAsk(t, "export", "--data-dir", used); strings.Count(out, "\n") != 4 {
		t.Errorf("the ledger in use has %d records, want 4", strings.Count(out, "\n"))
	}
	if _, err := ask(t, "export", "--data-dir", projected); err == nil || !strings.Contains(err.Error(), "holds no") {
		t.Errorf("export of nothing: got %v", err)
	}
}

// FuzzLines: what is read is what is there, up to the first line that is cut or too long, which is named.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\n\nb\n"), 10)
	f.Add([]byte("a\ncut"), 10)
	f.Add([]byte("longer than that\n"), 10)
	f.Fuzz(func(t *testing.T, text []byte, longest int) {
		if longest < 1 || longest > 1<<20 {
			return
		}
		l := newLines(iotest.OneByteReader(bytes.NewReader(text)), longest)
		var got []byte
		for {
			line, err := l.next()
			if err != nil {
				whole := int64(bytes.LastIndexByte(text, '\n') + 1)
				if err == io.EOF && whole != int64(len(text)) || err != io.EOF && !strings.Contains(err.Error(), fmt.Sprintf("line %d: ", l.count+1)) {
					t.Errorf("%q ends with %v", text, err)
				}
				break
			}
			if bytes.IndexByte(line, '\n') >= 0 || len(line) > longest {
				t.Errorf("%q has the line %q", text, line)
			}
			got = append(append(got, line...), '\n')
		}
		if !bytes.HasPrefix(text, got) || int64(len(got)) != l.bytes || [32]byte(l.sum.Sum(nil)) != sha256.Sum256(got) {
			t.Errorf("of %q, %q was read, %d bytes", text, got, l.bytes)
		}
	})
}

func TestMeter(t *testing.T) {
	m := &meter{unit: "records", from: 0.5, first: 1000}
	for _, c := range []struct {
		records int64
		share   float64
		want    string
	}{
		{3000, 0.75, "[######################........]  75 %  3,000 records, 1,000 per second, 2s left"},
		{5000, 1, "[##############################] 100 %  5,000 records, 2,000 per second, 0s left"},
		{3000, -1, "3,000 records, 1,000 per second"},
	} {
		if got := m.line(2*time.Second, c.records, c.share); got != c.want {
			t.Errorf("%d records, %v: got %q, want %q", c.records, c.share, got, c.want)
		}
	}
}

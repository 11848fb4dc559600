package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/mattn/go-isatty"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/disk"
	"github.com/talenttrust/auditledger/ledger/eventstore"
)

// houseFlags say where a ledger is, for the commands that carry it from one store to another.
type houseFlags struct {
	LedgerStore string `env:"LEDGER_STORE" default:"disk" help:"Where the ledger is kept: disk, which is the data folder, or the esdb:// or kurrentdb:// connection string of a server." placeholder:"STORE"`
	DataDir     string `env:"DATA_DIR" help:"Folder of the ledger, ./data when left out; for a server, folder of what is derived, a temporary one when left out." placeholder:"FOLDER"`
	Progress    bool   `help:"Show a progress bar also where no terminal is."`
}

// open opens the ledger, to be imported into or else as it is there. done closes it.
func (f *houseFlags) open(ctx context.Context, s *streams, toImport bool) (store ledger.Importer, done func() error, err error) {
	log := slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: ledger.Redact}))
	if f.LedgerStore == "disk" {
		if f.DataDir == "" {
			f.DataDir = "./data"
		}
		d, err := disk.Open(disk.Config{Dir: f.DataDir, Existing: !toImport, Import: toImport, Logger: log})
		if err != nil {
			return nil, nil, err
		}
		return d, d.Close, nil
	}
	if !eventstore.IsURL(f.LedgerStore) {
		return nil, nil, errors.New("--ledger-store must be disk, esdb://… or kurrentdb://…")
	}
	remove := func() error { return nil }
	if f.DataDir == "" {
		if f.DataDir, err = os.MkdirTemp("", "auditctl-"); err != nil {
			return nil, nil, err
		}
		remove = func() error { return os.RemoveAll(f.DataDir) }
	}
	e, err := eventstore.Open(ctx, eventstore.Config{URL: f.LedgerStore, Dir: f.DataDir, Existing: !toImport, Import: toImport, Logger: log})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("--ledger-store: %w", err), remove())
	}
	return e, func() error { return errors.Join(e.Close(), remove()) }, nil
}

// recordsUpTo yields the records of a ledger behind a position, up to head, which it has come to.
func recordsUpTo(ctx context.Context, store ledger.Reader, after, head ledger.Position) iter.Seq2[*ledger.Record, error] {
	return func(yield func(*ledger.Record, error) bool) {
		if after >= head {
			return
		}
		for batch, err := range store.Follow(ctx, after) {
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range batch.Records {
				r := &batch.Records[i]
				if r.Position > head || !yield(r, nil) || r.Position == head {
					return
				}
			}
		}
	}
}

// errCut says that the end of a file is missing.
var errCut = errors.New("the line is cut: it does not end with a newline")

// lines reads a file of lines.
type lines struct {
	scanner *bufio.Scanner
	sum     hash.Hash // of the lines that were read, with their ends
	count   int64
	bytes   int64
}

func newLines(r io.Reader, longest int) *lines {
	l := &lines{scanner: bufio.NewScanner(r), sum: sha256.New()}
	l.scanner.Buffer(make([]byte, min(64<<10, longest)), longest)
	l.scanner.Split(wholeLine)
	return l
}

func wholeLine(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i+1], nil
	}
	if atEOF && len(data) > 0 {
		return 0, nil, errCut
	}
	return 0, nil, nil
}

// next returns the next line without its end, until it is called again; io.EOF behind the last one. Other
// errors name the line.
func (l *lines) next() ([]byte, error) {
	if !l.scanner.Scan() {
		switch err := l.scanner.Err(); {
		case err == nil:
			return nil, io.EOF
		case errors.Is(err, bufio.ErrTooLong):
			return nil, fmt.Errorf("line %d: is too long: --max-line sets how long one may be", l.count+1)
		default:
			return nil, fmt.Errorf("line %d: %w", l.count+1, err)
		}
	}
	line := l.scanner.Bytes()
	l.sum.Write(line)
	l.count++
	l.bytes += int64(len(line))
	return line[:len(line)-1], nil
}

// meter shows how far a command has come, in a line that is written over.
type meter struct {
	w     io.Writer // nil: it shows nothing
	start time.Time
	shown time.Time
	from  float64 // share that was done at the start
	first int64   // records that were
	unit  string  // of what is counted
}

// newMeter starts from what is done already. It shows something where w is a terminal, or always.
func newMeter(w io.Writer, always bool, records int64, share float64) *meter {
	m := &meter{start: time.Now(), from: share, first: records, unit: "records"}
	if file, ok := w.(*os.File); always || ok && isatty.IsTerminal(file.Fd()) {
		m.w = w
	}
	return m
}

// show is for calling often. Where share, of 1, is not known it is negative.
func (m *meter) show(records int64, share float64) {
	if now := time.Now(); m.w != nil && now.Sub(m.shown) >= 100*time.Millisecond {
		m.shown = now
		fmt.Fprintf(m.w, "\r%s   ", m.line(now.Sub(m.start), records, share))
	}
}

const barWidth = 30

func (m *meter) line(elapsed time.Duration, records int64, share float64) string {
	rate := float64(records-m.first) / max(elapsed.Seconds(), 1e-9)
	text := fmt.Sprintf("%s %s, %s per second", humanize.Comma(records), m.unit, humanize.Comma(int64(rate)))
	if share < 0 {
		return text
	}
	filled := int(min(share, 1) * barWidth)
	bar := strings.Repeat("#", filled) + strings.Repeat(".", barWidth-filled)
	left := time.Duration(float64(elapsed) * (1 - share) / max(share-m.from, 1e-9)).Round(time.Second)
	return fmt.Sprintf("[%s] %3.0f %%  %s, %s left", bar, 100*share, text, min(max(left, 0), 999*time.Hour))
}

// end takes the line away.
func (m *meter) end() {
	if m.w != nil && !m.shown.IsZero() {
		fmt.Fprint(m.w, "\r\x1b[K")
		m.shown = time.Time{}
	}
}

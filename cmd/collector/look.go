package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"github.com/talenttrust/auditledger/cmd/collector/outbox"
)

// openExisting opens an outbox for a look; it creates none.
func openExisting(ctx context.Context, path string) (*outbox.Outbox, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("there is no outbox (--db): %w", err)
	}
	return outbox.Open(ctx, outbox.Config{Path: path})
}

// withOutbox opens the outbox, uses it and closes it.
func withOutbox(shared *Shared, p *program, use func(context.Context, *outbox.Outbox) error) error {
	box, err := openExisting(p.ctx, shared.DB)
	if err != nil {
		return err
	}
	return errors.Join(use(p.ctx, box), box.Close())
}

// statusCommand shows what an outbox holds, also while a collector uses it.
type statusCommand struct {
	JSON bool `name:"json" help:"As JSON."`
}

// state is the status as JSON.
type state struct {
	outbox.Stats
	DeadByCode map[string]int `json:"deadByCode"`
	Files      []fileState    `json:"files"`
}

type fileState struct {
	Path string `json:"path"`
	Read int64  `json:"read"` // bytes
}

func (c *statusCommand) Run(shared *Shared, p *program) error {
	return withOutbox(shared, p, func(ctx context.Context, box *outbox.Outbox) error {
		var s state
		var err error
		if s.Stats, err = box.Stats(ctx); err != nil {
			return err
		}
		if s.DeadByCode, err = box.DeadCodes(ctx); err != nil {
			return err
		}
		marks, err := box.Marks(ctx)
		if err != nil {
			return err
		}
		for _, m := range marks {
			s.Files = append(s.Files, fileState{m.Path, m.Position})
		}
		if c.JSON {
			return json.NewEncoder(p.stdout).Encode(s)
		}
		return s.print(p.stdout)
	})
}

func (s state) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	age := ""
	if !s.Oldest.IsZero() {
		age = fmt.Sprintf(", the oldest waits for %v", time.Since(s.Oldest).Round(time.Second))
	}
	fmt.Fprintf(t, "pending\t%s events, %s%s\n", humanize.Comma(int64(s.Pending)), humanize.Bytes(uint64(s.Bytes)), age)
	fmt.Fprintf(t, "parked\t%s of them\n", humanize.Comma(int64(s.Parked)))
	fmt.Fprintf(t, "dead\t%s\n", humanize.Comma(int64(s.Dead)))
	for _, code := range slices.Sorted(keys(s.DeadByCode)) {
		fmt.Fprintf(t, "\t%s  %s\n", humanize.Comma(int64(s.DeadByCode[code])), code)
	}
	fmt.Fprintf(t, "file\t%s, %s free on the disk\n", humanize.Bytes(uint64(s.FileBytes)), humanize.Bytes(uint64(s.FreeBytes)))
	for _, f := range s.Files {
		fmt.Fprintf(t, "read\t%s  %s\n", humanize.Bytes(uint64(f.Read)), f.Path)
	}
	return t.Flush()
}

func keys[V any](m map[string]V) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// letter is a dead letter as JSON. What was sent stands in event; input that is not an event, in
// base64, in input.
type letter struct {
	ID         int64           `json:"id"`
	Code       string          `json:"code"`
	Status     int             `json:"httpStatus,omitempty"`
	Reason     string          `json:"reason"`
	Form       outbox.Form     `json:"form"`
	Type       string          `json:"type,omitempty"`
	ContractID string          `json:"contractId,omitempty"`
	EventID    string          `json:"eventId,omitempty"`
	Sequence   string          `json:"sequence,omitempty"`
	Hash       string          `json:"payloadHash"`
	Origin     string          `json:"origin,omitempty"`
	EnqueuedAt time.Time       `json:"enqueuedAt"`
	DiedAt     time.Time       `json:"diedAt"`
	Times      int             `json:"times"`
	Size       int             `json:"size"`
	Event      json.RawMessage `json:"event,omitempty"`
	Input      string          `json:"input,omitempty"`
}

func newLetter(d outbox.DeadLetter, payload bool) letter {
	l := letter{ID: d.ID, Code: d.Reason.Code, Status: d.Reason.Status, Reason: d.Reason.Text, Form: d.Form, Type: d.Type, ContractID: d.ContractID,
		EventID: d.EventID, Sequence: d.Sequence, Hash: d.PayloadHash.String(), Origin: d.Origin, EnqueuedAt: d.EnqueuedAt.UTC(), DiedAt: d.DiedAt.UTC(),
		Times: d.Times, Size: len(d.Body)}
	if !payload {
		return l
	}
	if text := d.Line(); d.Form != outbox.FormLine && json.Valid(text) && utf8.Valid(text) {
		l.Event = text
	} else {
		l.Input = base64.StdEncoding.EncodeToString(d.Body)
	}
	return l
}

type deadListCommand struct {
	Code  string `help:"Only those of this code."`
	Limit int    `help:"At most so many; 0 is all." default:"100"`
	JSON  bool   `name:"json" help:"As JSON lines."`
}

func (c *deadListCommand) Run(shared *Shared, p *program) error {
	return withOutbox(shared, p, func(ctx context.Context, box *outbox.Outbox) error {
		t := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
		if !c.JSON {
			fmt.Fprintln(t, "ID\tDIED\tCODE\tSTATUS\tKEY\tTIMES\tORIGIN\tREASON")
		}
		n := 0
		for d, err := range box.DeadLetters(ctx, outbox.Selection{Code: c.Code}) {
			if err != nil {
				return err
			}
			if n++; c.Limit > 0 && n > c.Limit {
				fmt.Fprintf(p.stderr, "there are more: --limit 0 shows all\n")
				break
			}
			if c.JSON {
				if err := json.NewEncoder(p.stdout).Encode(newLetter(d, false)); err != nil {
					return err
				}
				continue
			}
			fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%s\t%d\t%s\t%s\n", d.ID, d.DiedAt.UTC().Format(time.RFC3339), d.Reason.Code, d.Reason.Status, keyColumn(&d), d.Times, printable(d.Origin), printable(d.Reason.Text))
		}
		return t.Flush()
	})
}

// keyColumn is a dead letter's key; input that is no event has none.
func keyColumn(d *outbox.DeadLetter) string {
	if d.ContractID == "" && d.EventID == "" && d.Sequence == "" {
		return "-"
	}
	return printable(d.Key())
}

// printable keeps control characters of a source away from the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '�'
		}
		return r
	}, s)
}

type deadShowCommand struct {
	ID int64 `arg:"" help:"As list shows it."`
}

func (c *deadShowCommand) Run(shared *Shared, p *program) error {
	return withOutbox(shared, p, func(ctx context.Context, box *outbox.Outbox) error {
		for d, err := range box.DeadLetters(ctx, outbox.Selection{IDs: []int64{c.ID}}) {
			if err != nil {
				return err
			}
			enc := json.NewEncoder(p.stdout)
			enc.SetIndent("", "  ")
			return enc.Encode(newLetter(d, true))
		}
		return fmt.Errorf("there is no dead letter %d", c.ID)
	})
}

// choice names dead letters on the command line.
type choice struct {
	IDs  []int64 `arg:"" optional:"" name:"id" help:"As list shows them."`
	Code string  `help:"Those of this code."`
	All  bool    `help:"All of them."`
}

func (c choice) selection() (outbox.Selection, error) {
	if c.All == (len(c.IDs) > 0 || c.Code != "") {
		return outbox.Selection{}, errors.New("which ones? Name ids, or --code, or --all")
	}
	return outbox.Selection{IDs: c.IDs, Code: c.Code}, nil
}

type deadRequeueCommand struct{ choice }

func (c *deadRequeueCommand) Run(shared *Shared, p *program) error {
	pick, err := c.selection()
	if err != nil {
		return err
	}
	return withOutbox(shared, p, func(ctx context.Context, box *outbox.Outbox) error {
		requeued, kept := 0, 0
		for d, err := range box.DeadLetters(ctx, pick) {
			if err != nil {
				return err
			}
			if d.Form == outbox.FormLine {
				kept++
				continue
			}
			if _, err := box.Requeue(ctx, d.ID); err != nil {
				return err
			}
			requeued++
		}
		fmt.Fprintf(p.stdout, "%d requeued\n", requeued)
		if kept > 0 {
			return fmt.Errorf("%d are not events and stay: export them, mend them and send them again", kept)
		}
		return nil
	})
}

type deadExportCommand struct {
	choice
	Out    string `help:"File to write; it must not exist." type:"path" placeholder:"FILE"`
	Remove bool   `help:"Remove them from the outbox once the file is on disk. Needs --out."`
}

func (c *deadExportCommand) Run(shared *Shared, p *program) error {
	pick, err := c.selection()
	if err != nil {
		return err
	}
	if c.Remove && c.Out == "" {
		return errors.New("--remove needs --out: what is removed must be on disk elsewhere")
	}
	return withOutbox(shared, p, func(ctx context.Context, box *outbox.Outbox) error {
		var ids []int64
		err := writeLines(p.stdout, c.Out, func(enc *json.Encoder, _ io.Writer) error {
			for d, err := range box.DeadLetters(ctx, pick) {
				if err != nil {
					return err
				}
				if err := enc.Encode(newLetter(d, true)); err != nil {
					return err
				}
				ids = append(ids, d.ID)
			}
			return nil
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(p.stderr, "%d exported\n", len(ids))
		if !c.Remove {
			return nil
		}
		for _, id := range ids {
			if _, err := box.Remove(ctx, id); err != nil {
				return err
			}
		}
		fmt.Fprintf(p.stderr, "%d removed\n", len(ids))
		return nil
	})
}

type outboxExportCommand struct {
	Out string `help:"File to write; it must not exist." type:"path" placeholder:"FILE"`
}

func (c *outboxExportCommand) Run(shared *Shared, p *program) error {
	return withOutbox(shared, p, func(ctx context.Context, box *outbox.Outbox) error {
		n := 0
		err := writeLines(p.stdout, c.Out, func(_ *json.Encoder, w io.Writer) error {
			for e, err := range box.AllPending(ctx) {
				if err != nil {
					return err
				}
				if _, err := w.Write(append(e.Line(), '\n')); err != nil {
					return err
				}
				n++
			}
			return nil
		})
		if err == nil {
			fmt.Fprintf(p.stderr, "%d exported; they stay in the outbox\n", n)
		}
		return err
	})
}

// writeLines writes to stdout, or to a new file that is on disk when it returns.
func writeLines(stdout io.Writer, path string, write func(*json.Encoder, io.Writer) error) error {
	encoder := func(w io.Writer) *json.Encoder {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		return enc
	}
	if path == "" {
		return write(encoder(stdout), stdout)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = write(encoder(f), f)
	return errors.Join(err, f.Sync(), f.Close())
}

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// sampleCmd are the flags of "auditctl sample". Shares are fractions from 0 to 1.
type sampleCmd struct {
	Events    int       `default:"10000" help:"How many events."`
	Contracts int       `help:"How many contracts the events are about; 0 is one for every 50 events."`
	Batch     int       `default:"100" help:"Events per batch, 1 to 1000."`
	Types     []string  `default:"talent_contract,payment_contract,review_contract" enum:"talent_contract,payment_contract,review_contract" help:"Contract types, taken in turn by the contracts."`
	Seed      uint64    `default:"1" help:"The same seed, flags and --now give the same bytes."`
	Now       time.Time `help:"Time (RFC 3339) that counts as now; when absent, the time of the start."`

	Span time.Duration `default:"22h" help:"How far back the events' timestamps reach. Services refuse unknown events that are older than 24h (MAX_EVENT_AGE_MS): spans over 23h, such as 4380h, are for a source that accepts late events. The summary then counts no event as too old, and none is made to be. Dates inside the payloads reach back 180 days in any case."`

	Biggest   float64 `default:"0" help:"Share of the new events that belongs to one contract."`
	Repeats   float64 `default:"0.05" help:"Share of events sent before: the same bytes, or the same event with its members in another order and its numbers spelled otherwise."`
	Conflicts float64 `default:"0.005" help:"Share of events with the key of an earlier one and another payload."`
	Reused    float64 `default:"0.005" help:"Share of events with the sequence of an earlier one and an event id of their own."`
	Malformed float64 `default:"0.02" help:"Share of events that are refused for what they are: members missing or of the wrong type, bad ids, payloads against their schema or too large, a member twice, times out of bounds."`
	Gaps      float64 `default:"0.005" help:"Share of new events before which sequences are left out for ever."`
	Late      float64 `default:"0.02" help:"Share of new events that arrive after later ones."`
	Poison    float64 `default:"0.005" help:"Share of new events with NULs, broken UTF-8 or lone surrogates, which are cleaned and accepted."`

	Post  string `placeholder:"URL" help:"Send the batches to this service (http://host:8080) in order, instead of writing them."`
	Token string `env:"AUDITCTL_TOKEN" help:"Bearer token for --post."`

	Expect  bool   `help:"With --post: fail when the service's answers do not add up to the summary. The ledger must have been fresh."`
	Summary string `placeholder:"FILE" help:"Also write the summary to this file, as JSON."`
	JSON    bool   `name:"json" help:"Say the summary in JSON."`
}

// Help is the long help text.
func (c *sampleCmd) Help() string {
	return `One line of output is one body of POST /api/v1/events. At the end the summary says exactly what
a fresh ledger with default settings reports when it gets the batches in order from one sender.

The batches of one run belong together: whoever writes them to a file should send them within the
hour, before the oldest events are refused for their age, or choose a shorter --span.`
}

// Validate is called by kong once the flags are read.
func (c *sampleCmd) Validate() error {
	switch {
	case c.Events < 1:
		return errors.New("--events must be at least 1")
	case c.Contracts < 0:
		return errors.New("--contracts must not be negative")
	case c.Batch < 1 || c.Batch > 1000:
		return errors.New("--batch must be from 1 to 1000")
	case c.Span < time.Minute:
		return errors.New("--span must be at least 1m")
	case c.Expect && c.Post == "":
		return errors.New("--expect needs --post")
	}
	for name, share := range map[string]float64{"biggest": c.Biggest, "repeats": c.Repeats, "conflicts": c.Conflicts, "reused": c.Reused,
		"malformed": c.Malformed, "gaps": c.Gaps, "late": c.Late, "poison": c.Poison} {
		if !(0 <= share && share <= 1) {
			return fmt.Errorf("--%s must be from 0 to 1", name)
		}
	}
	if c.Repeats+c.Conflicts+c.Reused+c.Malformed > 1 {
		return errors.New("--repeats, --conflicts, --reused and --malformed must not add up to more than 1")
	}
	if c.Post != "" && !isAddress(c.Post) {
		return errors.New("--post must be the http or https address of a service")
	}
	return nil
}

// Run writes or posts the batches and then announces the summary.
func (c *sampleCmd) Run(ctx context.Context, s *streams) error {
	if c.Now.IsZero() {
		c.Now = time.Now()
	}
	gen := newGenerator(*c)
	if c.Post != "" {
		return c.post(ctx, gen, newPoster(c.Post, c.Token, c.Events, s.err), s)
	}
	out := bufio.NewWriterSize(s.out, 1<<16)
	err := gen.run(ctx, func(batch []byte, events int) error {
		out.Write(batch) // a bufio.Writer keeps its error until Flush
		return out.WriteByte('\n')
	})
	if err := errors.Join(err, out.Flush()); err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	return c.announce(gen.summary, s.err)
}

// post sends all batches and compares what the service said with what was expected of it.
func (c *sampleCmd) post(ctx context.Context, gen *generator, p *poster, s *streams) error {
	if err := gen.run(ctx, func(batch []byte, events int) error { return p.send(ctx, batch, events) }); err != nil {
		return fmt.Errorf("post events: %w", err)
	}
	p.progress(true)
	if err := c.announce(gen.summary, s.err); err != nil {
		return err
	}
	differences := p.differences(gen.summary)
	if len(differences) == 0 {
		fmt.Fprintln(s.err, "The service's answers agree with the summary.")
		return nil
	}
	fmt.Fprintf(s.err, "The service's answers DIFFER from the summary: %s.\n", strings.Join(differences, "; "))
	if p.resent > 0 {
		fmt.Fprintf(s.err, "%d batches were sent again after an answer was missing or an error; events stored the first time came back as duplicates.\n", p.resent)
	}
	if c.Expect {
		return errors.New("the service's answers differ from the summary")
	}
	return nil
}

// sampleSummary is what a fresh ledger reports after the batches, received in order.
type sampleSummary struct {
	Events           int                    `json:"events"`
	Batches          int                    `json:"batches"`
	Accepted         int                    `json:"accepted"`
	Duplicates       int                    `json:"duplicates"`
	Rejected         int                    `json:"rejected"`  // conflicts included
	Conflicts        int                    `json:"conflicts"` // IDEMPOTENCY_PAYLOAD_CONFLICT
	Gaps             int                    `json:"gaps"`      // ranges never accepted between a contract's lowest and highest accepted sequence
	MissingSequences int                    `json:"missingSequences"`
	Contracts        int                    `json:"contracts"`
	ByContractType   map[string]*typeCounts `json:"byContractType"`
	ByCode           map[string]int         `json:"byCode"`
}

// typeCounts are the counts of one contract type.
type typeCounts struct {
	Contracts  int `json:"contracts"`
	Accepted   int `json:"accepted"`
	Duplicates int `json:"duplicates"`
	Rejected   int `json:"rejected"`
}

// announce says the summary on w, and writes the file if one was asked for.
func (c *sampleCmd) announce(summary *sampleSummary, w io.Writer) error {
	text, err := json.Marshal(summary, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return fmt.Errorf("encode summary: %w", err)
	}
	text = append(text, '\n')
	if c.Summary != "" {
		if err := os.WriteFile(c.Summary, text, 0o644); err != nil {
			return fmt.Errorf("write summary: %w", err)
		}
	}
	if c.JSON {
		_, err = w.Write(text)
		return err
	}
	return summary.print(w)
}

func (s *sampleSummary) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "A fresh ledger that receives these %d batches in order reports:\n", s.Batches)
	line := func(name string, n int) { fmt.Fprintf(&b, "  %-32s %10d\n", name, n) }
	line("events", s.Events)
	line("accepted", s.Accepted)
	line("duplicates", s.Duplicates)
	line("rejected", s.Rejected)
	for _, code := range sortedKeys(s.ByCode) {
		line("  "+code, s.ByCode[code])
	}
	line("conflicts", s.Conflicts)
	line("gaps", s.Gaps)
	line("missing sequences", s.MissingSequences)
	line("contracts", s.Contracts)
	for _, name := range sortedKeys(s.ByContractType) {
		t := s.ByContractType[name]
		fmt.Fprintf(&b, "    %s: %d contracts, %d accepted, %d duplicates, %d rejected\n", name, t.Contracts, t.Accepted, t.Duplicates, t.Rejected)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

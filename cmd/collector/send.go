package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/mattn/go-isatty"
	"github.com/talenttrust/auditledger/cmd/collector/outbox"
	"golang.org/x/sync/errgroup"
)

// sendCommand delivers files once.
type sendCommand struct {
	Delivery
	Limits

	Files []string `arg:"" help:"Files of JSON lines; - is standard input." type:"path" placeholder:"FILE"`
	Quiet bool     `help:"No progress."`
}

func (c *sendCommand) Run(shared *Shared, p *program) error {
	ctx, stop := signal.NotifyContext(p.ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := errors.Join(c.Delivery.check(), c.Limits.check()); err != nil {
		return err
	}
	rules, err := c.rules()
	if err != nil {
		return err
	}
	if _, err := c.auth(); err != nil {
		return err
	}
	box, err := outbox.Open(ctx, c.Limits.config(shared.DB))
	if err != nil {
		return err
	}
	err = c.send(ctx, shared, p, box, rules)
	return errors.Join(err, box.Close())
}

func (c *sendCommand) send(ctx context.Context, shared *Shared, p *program, box *outbox.Outbox, rules *outbox.Rules) error {
	log := shared.logger(p.stderr)
	alerts := outbox.NewAlerts(log, nil)
	progress := &progress{out: p.stderr, quiet: c.Quiet, start: time.Now()}
	sender, err := c.sender(box, alerts, log, nil, progress.settled)
	if err != nil {
		return err
	}
	in, err := newIntake(box, rules, alerts, log, nil)
	if err != nil {
		return err
	}
	in.counted = progress.counted
	for _, path := range c.Files {
		if info, err := os.Stat(path); err == nil {
			progress.total += info.Size()
		} else if path != "-" {
			return err
		}
	}

	g, gctx := errgroup.WithContext(ctx)
	gctx, done := context.WithCancel(gctx)
	g.Go(func() error { return sender.Run(gctx) })
	g.Go(func() error { return progress.Run(gctx) })
	g.Go(func() error {
		defer done()
		for _, path := range c.Files {
			if err := sendFile(gctx, in, path, p.stdin); err != nil {
				return err
			}
		}
		waitDelivered(gctx, box)
		return nil
	})
	if err := g.Wait(); err != nil {
		return err
	}
	return c.summary(ctx, p, box, progress)
}

func sendFile(ctx context.Context, in *intake, path string, stdin io.Reader) error {
	if path == "-" {
		return in.stream(ctx, stdin, "stdin")
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return in.stream(ctx, f, path)
}

// summary says what became of the files. Everything delivered is the only success.
func (c *sendCommand) summary(ctx context.Context, p *program, box *outbox.Outbox, done *progress) error {
	stats, err := box.Stats(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "read: %s queued, %s known, %s filtered, %s dead\n", comma(done.queued.Load()), comma(done.known.Load()), comma(done.filtered.Load()), comma(done.refused.Load()))
	fmt.Fprintf(p.stdout, "ledger: %s accepted, %s duplicates, %s dead\n", comma(done.accepted.Load()), comma(done.duplicates.Load()), comma(done.dead.Load()))
	if stats.Dead > 0 {
		fmt.Fprintf(p.stdout, "%s dead letters wait for a person: collector dead list\n", comma(int64(stats.Dead)))
	}
	switch {
	case stats.Pending > stats.Parked:
		return fmt.Errorf("stopped: %d events are still pending and safe; run it again, or collector run", stats.Pending)
	case stats.Parked > 0:
		return fmt.Errorf("%d events are parked: the ledger does not take them from this source", stats.Parked)
	case done.dead.Load()+done.refused.Load()+done.knownDead.Load() > 0: // also those that were dead before
		return errors.New("not everything could be delivered: collector dead list")
	}
	return nil
}

func comma(n int64) string { return humanize.Comma(n) }

// progress counts what happens and shows it: a bar on a terminal, a line now and then elsewhere.
type progress struct {
	out   io.Writer
	quiet bool
	start time.Time
	total int64 // bytes of the files, 0 when not known

	bytes, queued, known, knownDead, filtered, refused atomic.Int64
	accepted, duplicates, dead, parked                 atomic.Int64
}

func (p *progress) counted(t tally, bytes int) {
	p.bytes.Add(int64(bytes))
	p.queued.Add(int64(t.Queued))
	p.known.Add(int64(t.Known))
	p.knownDead.Add(int64(t.KnownDead))
	p.filtered.Add(int64(t.Filtered))
	p.refused.Add(int64(t.Dead))
}

func (p *progress) settled(list []outbox.Settlement) {
	for _, s := range list {
		switch {
		case s.Fate == outbox.Dead:
			p.dead.Add(1)
		case s.Fate == outbox.Parked:
			p.parked.Add(1)
		case s.Reason.Code == "duplicate":
			p.duplicates.Add(1)
		default:
			p.accepted.Add(1)
		}
	}
}

// Run shows the progress until ctx ends.
func (p *progress) Run(ctx context.Context) error {
	if p.quiet {
		return nil
	}
	f, ok := p.out.(*os.File)
	bar := ok && isatty.IsTerminal(f.Fd())
	every := 5 * time.Second
	if bar {
		every = 200 * time.Millisecond
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			if bar {
				fmt.Fprintf(p.out, "\r\x1b[K%s\n", p.line(time.Now()))
			}
			return nil
		case now := <-tick.C:
			if bar {
				fmt.Fprintf(p.out, "\r\x1b[K%s", p.line(now))
			} else {
				fmt.Fprintln(p.out, p.line(now))
			}
		}
	}
}

const barWidth = 30

// line is the progress in one line. What is left is reckoned from the bytes read and from the
// share of the events that the ledger has answered.
func (p *progress) line(now time.Time) string {
	seconds := max(now.Sub(p.start).Seconds(), 0.001)
	settled := p.accepted.Load() + p.duplicates.Load() + p.dead.Load() + p.parked.Load()
	rate := float64(settled) / seconds
	text := fmt.Sprintf("%s delivered, %s/s, %s waiting", comma(settled), comma(int64(rate)), comma(max(p.queued.Load()-settled, 0)))
	if p.total <= 0 {
		return text
	}
	share := min(float64(p.bytes.Load())/float64(p.total), 1)
	if queued := p.queued.Load(); queued > 0 {
		share *= min(float64(settled)/float64(queued), 1)
	}
	left := "?"
	if share > 0.01 {
		left = time.Duration(seconds * (1 - share) / share * float64(time.Second)).Round(time.Second).String()
	}
	done := int(share * barWidth)
	return fmt.Sprintf("[%s%s] %3.0f%%  %s, %s left", bars[:done], dots[:barWidth-done], share*100, text, left)
}

const (
	bars = "##############################"
	dots = ".............................."
)

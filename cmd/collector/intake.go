package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/talenttrust/auditledger/cmd/collector/outbox"
)

// A commit holds at most this many events or bytes of a source that has more waiting.
const (
	commitEvents = 4000
	commitBytes  = 4 << 20
)

// fullRetry is how soon a source tries again when the outbox has refused its events.
const fullRetry = time.Second

// intake puts what sources say into the outbox.
type intake struct {
	box     *outbox.Outbox
	rules   *outbox.Rules
	alerts  *outbox.Alerts
	log     *slog.Logger
	events  *prometheus.CounterVec
	retry   time.Duration    // fullRetry; less in tests
	counted func(tally, int) // told of every commit, with the bytes of input; may be nil
}

// tally counts what became of a source's events.
type tally struct {
	Queued   int `json:"queued"`   // pending now
	Known    int `json:"known"`    // pending or dead already
	Filtered int `json:"filtered"` // left out by the rules
	Dead     int `json:"dead"`     // kept as dead letters

	KnownDead int `json:"-"` // of the known
}

func (t *tally) add(other tally) {
	t.Queued += other.Queued
	t.Known += other.Known
	t.Filtered += other.Filtered
	t.Dead += other.Dead
	t.KnownDead += other.KnownDead
}

func newIntake(box *outbox.Outbox, rules *outbox.Rules, alerts *outbox.Alerts, log *slog.Logger, reg prometheus.Registerer) (*intake, error) {
	in := &intake{box: box, rules: rules, alerts: alerts, log: log, retry: fullRetry}
	in.events = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "collector_events_total",
		Help: "Events of the sources by what became of them: queued, known, filtered or dead."}, []string{"outcome"})
	if reg == nil {
		return in, nil
	}
	return in, reg.Register(in.events)
}

// lot collects the events of lines until they are committed together.
type lot struct {
	events   []outbox.Event
	filtered int
	bytes    int
	end      int64 // offset behind the last line
}

func (l *lot) full() bool { return len(l.events) >= commitEvents || l.bytes >= commitBytes }

func (in *intake) add(l *lot, from string, ln line) {
	origin := fmt.Sprintf("%s:%d", from, ln.start)
	l.end, l.bytes = ln.end, l.bytes+len(ln.text)
	if ln.length > 0 {
		l.events = append(l.events, ln.event(origin))
		return
	}
	events, filtered := in.rules.Read(ln.text, origin)
	l.events = append(l.events, events...)
	l.filtered += filtered
}

// commit stores a lot once. The error is outbox.ErrFull when there is no room.
func (in *intake) commit(ctx context.Context, l *lot, mark *outbox.Mark) (tally, error) {
	if len(l.events) == 0 && l.filtered == 0 && mark == nil {
		return tally{}, nil
	}
	outcomes, err := in.box.EnqueueFrom(ctx, mark, l.events)
	if err != nil {
		return tally{}, err
	}
	count := tally{Filtered: l.filtered}
	first := -1
	for i, outcome := range outcomes {
		switch outcome {
		case outbox.Queued:
			count.Queued++
		case outbox.Known:
			count.Known++
		case outbox.KnownBuried:
			count.Known++
			count.KnownDead++
		case outbox.Buried:
			count.Dead++
			if first < 0 {
				first = i
			}
		}
	}
	if first >= 0 {
		e := l.events[first]
		in.log.Warn("input became dead letters", "events", count.Dead, "first", e.Origin, "reason", e.Refused)
		in.alerts.Raise(outbox.AlertDead, count.Dead, fmt.Sprintf("%d of the input, the first one from %s", count.Dead, e.Origin))
	}
	for name, n := range map[string]int{"queued": count.Queued, "known": count.Known, "filtered": count.Filtered, "dead": count.Dead} {
		in.events.WithLabelValues(name).Add(float64(n))
	}
	if in.counted != nil {
		in.counted(count, l.bytes)
	}
	return count, nil
}

// insist commits a lot, and waits with an alert as long as the outbox does not take it: the source
// is not read on meanwhile. It fails only when ctx ends.
func (in *intake) insist(ctx context.Context, l *lot, mark *outbox.Mark) error {
	for {
		_, err := in.commit(ctx, l, mark)
		if err == nil {
			in.alerts.Clear(outbox.AlertFull)
			*l = lot{}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		in.refused(err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(in.retry):
		}
	}
}

func (in *intake) refused(err error) {
	kind := outbox.AlertOutbox
	if errors.Is(err, outbox.ErrFull) {
		kind = outbox.AlertFull
	}
	in.alerts.Raise(kind, 1, "new events are refused: "+err.Error())
}

// stream takes the lines of r until it ends. Events are committed as soon as no more input is at
// hand, so that a slow source waits for nobody.
func (in *intake) stream(ctx context.Context, r io.Reader, from string) error {
	chunks, failed := make(chan []byte, 16), make(chan error, 1)
	// A read cannot be interrupted: when ctx ends, this goroutine stays until the next byte or
	// the end of the program.
	go func() {
		defer close(chunks)
		for {
			chunk := make([]byte, 64<<10)
			n, err := r.Read(chunk)
			if n > 0 {
				select {
				case chunks <- chunk[:n]:
				case <-ctx.Done():
					return
				}
			}
			if err != nil {
				failed <- err
				return
			}
		}
	}()
	var s splitter
	var l lot
	for {
		select {
		case <-ctx.Done():
			return nil
		case chunk, ok := <-chunks:
			if !ok {
				for _, ln := range s.rest() {
					in.add(&l, from, ln)
				}
				select {
				case err := <-failed:
					return in.ended(ctx, &l, from, err)
				case <-ctx.Done():
					return nil
				}
			}
			lines, err := s.split(chunk)
			if err != nil {
				return fmt.Errorf("%s: %w", from, err)
			}
			for _, ln := range lines {
				in.add(&l, from, ln)
			}
			if l.full() || len(chunks) == 0 {
				if err := in.insist(ctx, &l, nil); err != nil {
					return nil
				}
			}
		}
	}
}

func (in *intake) ended(ctx context.Context, l *lot, from string, cause error) error {
	if err := in.insist(ctx, l, nil); err != nil {
		return nil
	}
	if cause != io.EOF {
		return fmt.Errorf("read %s: %w", from, cause)
	}
	return nil
}

package eventstore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/renameio/v2"
	"github.com/google/uuid"

	"github.com/talenttrust/auditledger/ledger"
)

// errEmpty says that there is nothing to open.
var errEmpty = errors.New("the server holds no ledger")

// Import implements ledger.Importer. Runs of records of one stream are appended together, one run
// after the other, so that the server's log has the order of the ledger. What is not known is asked for
// again for as long as the start would wait.
func (s *Store) Import(ctx context.Context, records []ledger.Record) (n int, err error) {
	if !s.c.Import {
		return 0, fmt.Errorf("the store was not opened to import records: %w", ledger.ErrUnavailable)
	}
	for n < len(records) {
		if err := s.begin(ctx, &records[n]); err != nil {
			return n, err
		}
		run, err := s.importRun(ctx, records[n:])
		if n += run; err != nil {
			return n, err
		}
	}
	return n, nil
}

// begin marks the server before its first record, and gives the folder its name once that is there.
func (s *Store) begin(ctx context.Context, r *ledger.Record) error {
	if s.importing.name == "" {
		first := *r
		if r.Header.Type != ledger.LedgerCreated { // the import goes on
			var err error
			if first, err = s.firstThere(ctx); err != nil {
				return err
			}
		}
		s.importing.name = first.Leaf.String()
		return s.setMark(ctx, true)
	}
	if s.importing.named {
		return nil
	}
	s.importing.named = true
	return renameio.WriteFile(filepath.Join(s.c.Dir, "ledger-id"), []byte(s.importing.name+"\n"), 0o600)
}

// firstThere is the first record on the server.
func (s *Store) firstThere(ctx context.Context) (r ledger.Record, err error) {
	events, _, err := s.client.readStream(ctx, ledger.LedgerStream, 0, forwards, 1)
	switch {
	case err != nil:
		return r, unavailable(err)
	case len(events) == 0:
		return r, fmt.Errorf("a ledger begins with a record of type %s", ledger.LedgerCreated)
	}
	r, _, err = decode(&events[0])
	return r, err
}

// importRun stores the first of the records, as many as go into one append.
func (s *Store) importRun(ctx context.Context, records []ledger.Record) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.c.Start, fmt.Errorf("%s have passed", s.c.Start))
	defer cancel()
	w := &writer{s: s, stream: records[0].Header.Stream}
	for {
		b, err := s.stage(w.stream, records)
		if err != nil && !w.fresh { // the index may not have seen the stream
			w.fresh = true
			if err = s.fill(ctx, w.stream); err == nil {
				continue
			}
		}
		if err != nil {
			return 0, err
		}
		stored, err := w.store(ctx, b)
		if stored || err != nil {
			return b.items, err
		}
		if ctx.Err() != nil {
			return 0, unavailable(context.Cause(ctx))
		}
		// Something else stood there. Where that was a record, this one does not continue it.
	}
}

// stage makes a batch of the records of a stream that records begin with. An error says why not even the
// first can be stored.
func (s *Store) stage(stream string, records []ledger.Record) (*batch, error) {
	head, _, err := s.index.Head(stream)
	if err != nil {
		return nil, unavailable(err)
	}
	b := &batch{head: head.Revision, expected: s.next(stream, head) - 1, token: newToken()}
	staged := map[ledger.Key]ledger.Found{}
	for i := range records {
		r := records[i]
		if r.Header.Stream != stream || len(b.events) == maxEvents {
			return b, nil
		}
		found, ok := staged[r.Header.Key()]
		if !ok && r.Header.Type == ledger.EventAccepted && r.Header.Sequence <= head.HighestSequence {
			if found, _, err = s.index.Key(r.Header.Key()); err != nil {
				return nil, unavailable(err)
			}
		}
		ev := encode(&r, b.token)
		if err = r.Continue(head, found); err == nil && ev.size() > maxBytes {
			err = fmt.Errorf("it has %d bytes, and the server takes at most %d", ev.size(), maxBytes)
		}
		if err != nil && b.items == 0 {
			return nil, err
		}
		if err != nil || b.bytes+ev.size() > maxBytes {
			return b, nil
		}
		b.records, b.events, b.bytes, b.items = append(b.records, r), append(b.events, ev), b.bytes+ev.size(), b.items+1
		if head = head.After(&r); r.Header.Type == ledger.EventAccepted {
			staged[r.Header.Key()] = ledger.FoundIn(&r)
		}
	}
	return b, nil
}

// markStream is none of the ledger's. Its last event says whether an import goes on, and of which ledger.
const (
	markStream = "auditledger-import"
	started    = "ImportStarted"
	finished   = "ImportFinished"
)

// mark is an event of that stream.
type mark struct {
	Ledger string `json:"ledger"` // leaf hash of its first record

	number int64
	open   bool
}

// Finish implements ledger.Importer.
func (s *Store) Finish(ctx context.Context) error {
	if s.importing.name == "" {
		m, err := s.readMark(ctx)
		if err != nil || !m.open {
			return err
		}
		s.importing.name = m.Ledger
	}
	return s.setMark(ctx, false)
}

func (s *Store) readMark(ctx context.Context) (m mark, err error) {
	events, _, err := s.client.readStream(ctx, markStream, end, backwards, 1)
	if err != nil {
		return m, unavailable(err)
	}
	if m.number = noStream; len(events) > 0 {
		if err := json.Unmarshal(events[0].data, &m); err != nil {
			return m, fmt.Errorf("the last event of stream %s cannot be read", markStream)
		}
		m.number, m.open = events[0].number, events[0].typ == started
	}
	return m, nil
}

// setMark says that an import of the ledger goes on, or has finished.
func (s *Store) setMark(ctx context.Context, open bool) error {
	ctx, cancel := context.WithTimeout(ctx, s.c.Start)
	defer cancel()
	ev := event{typ: finished, data: []byte(`{"ledger":"` + s.importing.name + `"}`), meta: []byte("{}")}
	if open {
		ev.typ = started
	}
	for {
		m, err := s.readMark(ctx)
		if err == nil && m.open == open && (!open || m.Ledger == s.importing.name) {
			return nil
		}
		if err == nil {
			ev.id = uuid.New()
			_, err = s.client.append(ctx, markStream, m.number, []event{ev})
		}
		if err == nil || errors.Is(err, errWrongRevision) {
			continue
		}
		if errors.Is(err, errDenied) || errors.Is(err, errDeleted) || pause(ctx, 100*time.Millisecond) != nil {
			return fmt.Errorf("mark the server: %w", unavailable(err))
		}
	}
}

// refuseUnfinished refuses a server into which the ledger with this first record, or while there is none any
// ledger, is being imported, unless it was opened to go on with that. A mark of another ledger than the one
// that is there means nothing: that import came too late.
func (s *Store) refuseUnfinished(ctx context.Context, first ledger.Hash) error {
	if s.c.Import {
		return nil
	}
	m, err := s.readMark(ctx)
	if err == nil && m.open && (first.IsZero() || m.Ledger == first.String()) {
		err = ledger.ErrUnfinished
	}
	return err
}

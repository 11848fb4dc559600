package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/disk"
	"github.com/talenttrust/auditledger/ledger/eventstore"
	"github.com/talenttrust/auditledger/projections"
)

type verifyCmd struct {
	DataDir     string `env:"DATA_DIR" default:"./data" help:"Folder of a service that is stopped." type:"existingdir"`
	LedgerStore string `env:"LEDGER_STORE" default:"disk" help:"Where the service keeps its ledger: disk, or the connection string of a server."`
	AtLeast     string `help:"A position that must be there, of an answer of the service that was kept elsewhere." placeholder:"POSITION"`
}

// Run replays the ledger in a folder, checks everything its records say of one another and the key
// index, and builds every projection anew to compare it with the one that is stored.
func (c *verifyCmd) Run(ctx context.Context, s *streams) (err error) {
	atLeast := ledger.Position(0)
	if c.AtLeast != "" {
		if atLeast, err = ledger.ParsePosition(c.AtLeast); err != nil {
			return fmt.Errorf("--at-least: %w", err)
		}
	}
	quiet := slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	store, foreign, err := c.open(ctx, quiet)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	id, err := ledger.ID(ctx, store)
	if err != nil {
		return err
	}
	start := time.Now()
	m := newMeter(s.err, false, 0, 0)
	v, err := ledger.Verify(ctx, store, atLeast, progress(m))
	m.end()
	if err != nil {
		return err
	}
	if n := foreign.Load(); n > 0 {
		return fmt.Errorf("%d events in the ledger's streams on the server are no records of it, see above: they are others', or records that were changed", n)
	}
	fmt.Fprintf(s.out, "ledger %s\n%d records in %d streams, %d accepted events, head at position %s: every hash, chain and key holds (%s)\n",
		id, v.Records, v.Streams, v.Keys, v.Head, time.Since(start).Round(time.Millisecond))
	return c.projections(ctx, s, store, quiet)
}

// open opens the ledger where it is. Events on a server that are no records are counted.
func (c *verifyCmd) open(ctx context.Context, log *slog.Logger) (ledger.Store, *atomic.Int64, error) {
	foreign := new(atomic.Int64)
	switch {
	case c.LedgerStore != "disk" && !eventstore.IsURL(c.LedgerStore):
		return nil, nil, errors.New("LEDGER_STORE must be disk, or an esdb:// or kurrentdb:// connection string")
	case c.LedgerStore == "disk":
		store, err := disk.Open(disk.Config{Dir: c.DataDir, Existing: true, Logger: log})
		return store, foreign, err
	}
	store, err := eventstore.Open(ctx, eventstore.Config{
		URL: c.LedgerStore, Dir: c.DataDir, Existing: true, Start: 10 * time.Second, Logger: log, Foreign: func() { foreign.Add(1) },
	})
	return store, foreign, err
}

// progress shows how far it is by positions, for on a server there are more of them than records.
func progress(m *meter) func(ledger.Verified) {
	return func(v ledger.Verified) { m.show(v.Records, float64(v.At)/float64(v.Head)) }
}

// projections compares the digest of each stored projection with that of one built anew.
func (c *verifyCmd) projections(ctx context.Context, s *streams, store ledger.Store, log *slog.Logger) error {
	scratch, err := os.MkdirTemp("", "auditctl-verify-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	stored, err := digests(ctx, filepath.Join(c.DataDir, "projections"), store, log)
	if err != nil {
		return fmt.Errorf("stored projections: %w", err)
	}
	rebuilt, err := digests(ctx, scratch, store, log)
	if err != nil {
		return fmt.Errorf("projections built anew: %w", err)
	}
	for i, d := range stored {
		if d != rebuilt[i] {
			return &ledger.Fault{Kind: ledger.Misled, Position: d.at, Reason: fmt.Sprintf("projection %s has digest %s, built anew it has %s", d.name, d.sum, rebuilt[i].sum)}
		}
		fmt.Fprintf(s.out, "projection %-9s %s at position %s: as built anew\n", d.name, d.sum, d.at)
	}
	return nil
}

type digest struct {
	name string
	sum  ledger.Hash
	at   ledger.Position
}

// digests brings the projections in a folder to the head of the ledger and returns their digests.
func digests(ctx context.Context, dir string, store ledger.Store, log *slog.Logger) (all []digest, err error) {
	p, err := projections.Open(ctx, projections.Config{Dir: dir, Reader: store, Logger: log})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- p.Run(running) }()
	defer func() { stop(); <-done }()
	head, err := store.Head(ctx)
	if err != nil {
		return nil, err
	}
	for err = p.Query().Wait(ctx, head); errors.Is(err, projections.ErrNotCaughtUp); {
		err = p.Query().Wait(ctx, head)
	}
	if err != nil {
		return nil, err
	}
	states, err := p.Query().States(ctx)
	if err != nil {
		return nil, err
	}
	for _, st := range states {
		if st.Failure != nil {
			return nil, fmt.Errorf("%s stopped at position %s: %s", st.Name, st.Failure.Position, st.Failure.Reason)
		}
		sum, at, err := p.Digest(ctx, st.Name)
		if err != nil {
			return nil, err
		}
		all = append(all, digest{st.Name, sum, at})
	}
	return all, nil
}

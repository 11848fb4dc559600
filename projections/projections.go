// Package projections keeps read models of a ledger: histories, numbers, contracts and findings.
package projections

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/talenttrust/auditledger/ledger"
)

// Reader is the part of a ledger.Store that projections use: what is stored, and where a key is.
type Reader interface {
	ledger.Reader
	Find(ctx context.Context, keys []ledger.Key) ([]ledger.Found, error)
}

// Config is where the projections are and what they follow.
type Config struct {
	Dir     string
	Reader  Reader           // any ledger.Store
	Pending func() int64     // repeats that are counted but not stored yet; they are lag. nil: none
	Now     func() time.Time // time.Now when nil
	Logger  *slog.Logger     // slog.Default() when nil
	Fatal   func(error)      // called when the database cannot go on; the caller shuts down
}

// Projections follow a ledger. Run must be running.
type Projections struct{}

// Open opens or creates the projections in c.Dir.
func Open(ctx context.Context, c Config) (*Projections, error) { return nil, errors.ErrUnsupported }

// Run follows the ledger until ctx ends.
func (p *Projections) Run(ctx context.Context) error { return errors.ErrUnsupported }

// Close writes everything to disk and releases the folder. Run must have returned.
func (p *Projections) Close() error { return errors.ErrUnsupported }

// Query returns the one way to read.
func (p *Projections) Query() *Query { return &Query{} }

// Rebuild starts to build the named projection's rows anew, beside the old ones, which answer until
// the new ones have caught up. States shows how far it is.
func (p *Projections) Rebuild(ctx context.Context, name string) error { return errors.ErrUnsupported }

// Digest is the SHA-256 of all rows of the named projection and the position they are at. The same
// records give the same digest.
func (p *Projections) Digest(ctx context.Context, name string) (ledger.Hash, ledger.Position, error) {
	return ledger.Hash{}, 0, errors.ErrUnsupported
}

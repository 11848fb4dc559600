//go:build !linux

package disk

import (
	"errors"
	"os"
)

// syncer is for Linux alone, see syncer_linux.go.
type syncer struct{}

func newSyncer() (*syncer, error)     { return nil, errors.ErrUnsupported }
func (*syncer) sync(f *os.File) error { return fdatasync(f) }
func (*syncer) close() error          { return nil }
func fdatasync(f *os.File) error      { return f.Sync() }

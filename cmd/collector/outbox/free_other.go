//go:build !(linux || darwin || freebsd || dragonfly)

package outbox

import "math"

// freeBytes does not know on this system; SQLite itself then says when the disk is full.
func freeBytes(string) (int64, error) { return math.MaxInt64, nil }

//go:build !linux

package ledger

import "time"

// systemElapsed counts since the start of the program.
func systemElapsed() time.Duration { return time.Since(started) }

var started = time.Now()

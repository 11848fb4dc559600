package ledger

import (
	"time"

	"golang.org/x/sys/unix"
)

// systemElapsed counts since boot, also while the machine sleeps: waking up is no jump.
func systemElapsed() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return time.Since(started)
	}
	return time.Duration(t.Nano())
}

var started = time.Now()

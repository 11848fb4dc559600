package ledger

import (
	"fmt"
	"sync"
	"time"
)

// maxJump is how far the wall clock may run ahead of the clock that only counts.
const maxJump = 5 * time.Minute

// clock guards recordedAt, which never goes backwards in a stream: one moment at which the wall
// clock is years ahead would pin the stream there. It compares the wall clock with one that only
// counts and refuses while the wall clock has jumped ahead of it.
type clock struct {
	wall    func() time.Time
	elapsed func() time.Duration

	mu          sync.Mutex
	lastWall    time.Time
	lastElapsed time.Duration
}

// start begins to compare. Without a clock that counts, the wall clock is compared with the
// monotonic reading that comes with it, if any.
func (c *clock) start(wall func() time.Time, elapsed func() time.Duration) {
	if elapsed == nil {
		first := wall()
		elapsed = func() time.Duration { return wall().Sub(first) }
	}
	c.wall, c.elapsed = wall, elapsed
	c.lastWall, c.lastElapsed = wall().Round(0), elapsed()
}

// now is the wall clock in epoch milliseconds, or ErrUnavailable while it cannot be trusted.
func (c *clock) now() (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall, elapsed := c.wall().Round(0), c.elapsed()
	ahead := wall.Sub(c.lastWall) - (elapsed - c.lastElapsed)
	if ahead > maxJump {
		return 0, fmt.Errorf("the wall clock jumped %s ahead; set it right, or restart when it is right now: %w", ahead.Round(time.Second), ErrUnavailable)
	}
	c.lastWall, c.lastElapsed = wall, elapsed
	return wall.UnixMilli(), nil
}

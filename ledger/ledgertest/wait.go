package ledgertest

import (
	"bytes"
	"io"
	"sync"
	"testing"
	"time"
)

// Log is an output that may be read while it is written.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// String is all that was written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Until asks again and again until it is so, because what it waits for happens in the system's time. The
// test ends if it is not so within a minute: a loaded machine may take long.
func Until(t testing.TB, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !so(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// Last holds what a test opens again and again: one at a time, and the last until the test ends.
type Last struct {
	t    testing.TB
	open io.Closer
}

// NewLast returns a Last that holds nothing yet.
func NewLast(t testing.TB) *Last {
	l := &Last{t: t}
	t.Cleanup(l.Close)
	return l
}

// Keep holds what was opened.
func (l *Last) Keep(c io.Closer) { l.open = c }

// Close closes what is held, if anything is.
func (l *Last) Close() {
	l.t.Helper()
	if l.open == nil {
		return
	}
	if err := l.open.Close(); err != nil {
		l.t.Errorf("close: %v", err)
	}
	l.open = nil
}

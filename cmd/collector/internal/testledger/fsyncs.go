package testledger

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Fsyncs measures how often per second the disk takes 4 KiB appended and synced: what the figures of a
// benchmark that syncs stand beside.
func Fsyncs(b *testing.B) float64 {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), "fsync"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, 4096)
	n, start := 0, time.Now()
	for ; time.Since(start) < 300*time.Millisecond; n++ {
		if _, err := f.Write(page); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
	}
	return float64(n) / time.Since(start).Seconds()
}

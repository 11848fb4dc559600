//go:build linux || darwin || freebsd || dragonfly

package outbox

import "golang.org/x/sys/unix"

// freeBytes returns how much an ordinary user may still write on the disk that holds dir.
func freeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil
}

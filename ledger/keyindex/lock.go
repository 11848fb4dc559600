package keyindex

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// LockFolder makes the folder this process's until the file is closed, also by the process's end.
func LockFolder(dir string, now time.Time) (*os.File, error) {
	name := filepath.Join(dir, "LOCK")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(name)
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("data folder %s is in use by %s: stop that first, or name another folder", dir, strings.TrimSpace(string(holder)))
		} else {
			err = fmt.Errorf("lock data folder %s: %w", dir, err)
		}
		return nil, errors.Join(err, f.Close())
	}
	text := fmt.Sprintf("process %d since %s\n", os.Getpid(), now.UTC().Format(time.RFC3339))
	if err := errors.Join(f.Truncate(0), writeAll(f, text)); err != nil {
		return nil, errors.Join(fmt.Errorf("write %s: %w", name, err), f.Close())
	}
	return f, nil
}

func writeAll(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

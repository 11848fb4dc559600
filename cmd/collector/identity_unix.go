//go:build unix

package main

import (
	"fmt"
	"os"
	"syscall"
)

// identity names a file whatever it is called: by device and inode.
func identity(path string, info os.FileInfo) string {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprintf("%d:%d", s.Dev, s.Ino)
	}
	return path
}

package disk

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// syncer has the kernel sync files while the goroutine that waits for it is parked. One that waits in
// fdatasync keeps a processor from all others until the scheduler takes it back, which is about as long
// as a sync takes.
//
// It is for one goroutine at a time.
type syncer struct {
	context uintptr  // of io_setup(2)
	event   int      // eventfd(2)
	ended   *os.File // the same, to wait for
	order   iocb
	orders  [1]*iocb
	lost    bool // an order was given whose end was not heard of; it may end at any time, and pass for another's
}

// spare are some whose stores were closed: io_destroy(2) takes tens of milliseconds.
var spare = make(chan *syncer, 4)

func newSyncer() (*syncer, error) {
	select {
	case s := <-spare:
		return s, nil
	default:
	}
	s := &syncer{}
	s.orders[0] = &s.order
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&s.context)), 0); errno != 0 {
		return nil, os.NewSyscallError("io_setup", errno)
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("eventfd", err), s.destroy())
	}
	s.event, s.ended = fd, os.NewFile(uintptr(fd), "eventfd")
	return s, nil
}

// iocb and ioEvent are the kernel's, see io_submit(2) and linux/aio_abi.h. What is 0 here always has no name.
type iocb struct {
	_      [2]uint64
	opcode uint16
	_      int16
	fd     uint32
	_      [4]uint64
	flags  uint32
	event  uint32
}

type ioEvent struct {
	_      [2]uint64
	result int64
	_      int64
}

const (
	opFdsync  = 3
	withEvent = 1
)

// sync does what fdatasync(2) does, and returns its errors. Where the kernel takes no such order, or none for
// such a file, it calls that.
func (s *syncer) sync(f *os.File) error {
	s.order = iocb{opcode: opFdsync, fd: uint32(f.Fd()), flags: withEvent, event: uint32(s.event)}
	if n, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, s.context, 1, uintptr(unsafe.Pointer(&s.orders[0]))); errno != 0 || n != 1 {
		return fdatasync(f)
	}
	result, err := s.wait()
	if err != nil {
		// To sync once more would not do: the kernel tells of a failed write only once.
		s.lost = true
		return err
	}
	if result < 0 {
		return os.NewSyscallError("fdatasync", unix.Errno(-result))
	}
	return nil
}

// wait returns the result of the order that was given.
func (s *syncer) wait() (int64, error) {
	var count [8]byte
	if _, err := s.ended.Read(count[:]); err != nil {
		return 0, err
	}
	var ev ioEvent
	for {
		n, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, s.context, 1, 1, uintptr(unsafe.Pointer(&ev)), 0, 0)
		switch {
		case errno == unix.EINTR:
			continue
		case errno != 0:
			return 0, os.NewSyscallError("io_getevents", errno)
		case n != 1:
			return 0, errors.New("io_getevents: there is no event")
		}
		return ev.result, nil
	}
}

func (s *syncer) close() error {
	if s.lost {
		return s.destroy()
	}
	select {
	case spare <- s:
		return nil
	default:
		return s.destroy()
	}
}

func (s *syncer) destroy() error {
	if _, _, errno := unix.Syscall(unix.SYS_IO_DESTROY, s.context, 0, 0); errno != 0 {
		return os.NewSyscallError("io_destroy", errno)
	}
	if s.ended == nil {
		return nil
	}
	return s.ended.Close()
}

func fdatasync(f *os.File) error { return os.NewSyscallError("fdatasync", unix.Fdatasync(int(f.Fd()))) }

package fork

import (
	"encoding/binary"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SetClock sets CLOCK_REALTIME.
func SetClock(now time.Time) error {
	ts := unix.NsecToTimespec(now.UnixNano())
	return unix.ClockSettime(unix.CLOCK_REALTIME, &ts)
}

// MonotonicClock is CLOCK_MONOTONIC in nanoseconds.
func MonotonicClock() int64 {
	var ts unix.Timespec
	// It cannot fail for this clock.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}

// Requests of /dev/urandom, from include/uapi/linux/random.h.
const (
	rndAddEntropy = 0x40085203 // _IOW('R', 0x03, int[2])
	rndReseedCRNG = 0x5207     // _IO('R', 0x07)
)

// Reseed credits entropy to the kernel's generator and reseeds it, so that no
// later random byte can equal one of another copy of this machine.
func Reseed(entropy []byte) error {
	dev, err := os.OpenFile("/dev/urandom", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	if err := ioctl(dev, rndAddEntropy, randPoolInfo(entropy)); err != nil {
		return fmt.Errorf("RNDADDENTROPY: %w", err)
	}
	if err := ioctl(dev, rndReseedCRNG, nil); err != nil {
		return fmt.Errorf("RNDRESEEDCRNG: %w", err)
	}
	return nil
}

// randPoolInfo is struct rand_pool_info: bits, bytes, data.
func randPoolInfo(entropy []byte) []byte {
	b := make([]byte, 8, 8+len(entropy))
	binary.NativeEndian.PutUint32(b, uint32(len(entropy)*8))
	binary.NativeEndian.PutUint32(b[4:], uint32(len(entropy)))
	return append(b, entropy...)
}

func ioctl(f *os.File, request uintptr, arg []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(unsafe.SliceData(arg))))
	if errno != 0 {
		return errno
	}
	return nil
}

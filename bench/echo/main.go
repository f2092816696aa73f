// Command echo answers every read of a serial port with the same bytes: the
// least that a guest can do on a carrier. It runs in a guest.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	if err := echo(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

func echo(port string) error {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return err
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil || strings.TrimSpace(string(b)) != port {
			continue
		}
		fd, err := syscall.Open("/dev/"+filepath.Base(filepath.Dir(name)), syscall.O_RDWR, 0)
		if err != nil {
			return err
		}
		fmt.Println("ready")
		return serve(fd)
	}
	return fmt.Errorf("no port %s", port)
}

func serve(fd int) error {
	buf := make([]byte, 4096)
	for {
		n, err := syscall.Read(fd, buf)
		if err == nil && n > 0 {
			_, err = syscall.Write(fd, buf[:n])
		}
		if err != nil && err != syscall.EINTR {
			return err
		}
	}
}

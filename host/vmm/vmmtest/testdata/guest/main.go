// Guest is the /init of the machines that package vmmtest starts. It answers
// lines on the control port; its memory holds pages that the host can tell.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

const page = 4096

func main() {
	must(unix.Mount("none", "/proc", "proc", 0, ""))
	must(unix.Mount("none", "/sys", "sysfs", 0, ""))
	must(unix.Mount("none", "/dev", "devtmpfs", 0, ""))
	order, _ := os.ReadFile("/modules/order")
	for name := range strings.Lines(string(order)) {
		b, err := os.ReadFile(filepath.Join("/modules", strings.TrimSpace(name)))
		must(err)
		if err := unix.InitModule(b, ""); err != nil && !errors.Is(err, unix.EEXIST) {
			fmt.Println("load", name, err)
		}
	}
	bulk, control := port("ratoon.bulk"), port("ratoon.control")
	echoed := make(chan struct{})
	go func() {
		defer close(echoed)
		echo(conn{bulk})
	}()
	serve(bufio.NewReader(conn{control}), conn{control})
	// From here on the ports carry links.
	bulk.SetReadDeadline(time.Now())
	<-echoed
	bulk.SetReadDeadline(time.Time{})
	links(link.NewSerialPorts(control, bulk))
}

// links answers each outcome with a call that has its value as arguments.
func links(ports link.Carrier) {
	for {
		l, err := link.Accept(context.Background(), ports, link.Options{})
		for err == nil {
			var m protocol.Message
			if m, err = l.Receive(context.Background()); err == nil {
				if o, ok := m.(*protocol.Outcome); ok {
					err = l.Send(context.Background(), &protocol.Call{Key: o.Key, Kind: protocol.CallWhoami, Arguments: o.Value})
				}
			}
		}
		fmt.Println("link:", err)
		if l != nil {
			l.Close()
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func must(err error) {
	if err != nil {
		fmt.Println("guest:", err)
		time.Sleep(time.Second)
		os.Exit(1) // of PID 1: a panic
	}
}

// conn hides that reads return 0 while no host is connected.
type conn struct{ *os.File }

func (c conn) Read(p []byte) (int, error) {
	for {
		n, err := c.File.Read(p)
		if n > 0 || err != nil && err != io.EOF {
			return n, err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func port(name string) *os.File {
	for {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			if b, _ := os.ReadFile(n); strings.TrimSpace(string(b)) == name {
				f, err := os.OpenFile("/dev/"+filepath.Base(filepath.Dir(n)), os.O_RDWR|unix.O_NONBLOCK, 0)
				must(err)
				return f
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func echo(c conn) { io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) }

func serve(r *bufio.Reader, w io.Writer) {
	var region []byte
	counter := 0
	for {
		line, err := r.ReadString('\n')
		must(err)
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if f[0] == "link" {
			fmt.Fprintln(w, "ok")
			return
		}
		answer, err := run(f, &region, &counter)
		if err != nil {
			answer = "error " + err.Error()
		}
		fmt.Fprintf(w, "%s\n", answer)
	}
}

func run(f []string, region *[]byte, counter *int) (string, error) {
	arg := func(i int) int { n, _ := strconv.Atoi(f[i]); return n }
	switch f[0] {
	case "echo":
		return strings.Join(f[1:], " "), nil
	case "count":
		*counter++
		return strconv.Itoa(*counter), nil
	case "map": // pages
		p, err := unix.Mmap(-1, 0, arg(1)*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		*region = p
		return "ok", err
	case "fill": // seed, first, pages, step
		for i := arg(2); i < arg(2)+arg(3); i += arg(4) {
			fill((*region)[i*page:][:page], uint64(arg(1)), uint64(i))
		}
		return "ok", nil
	case "zero": // first, pages
		clear((*region)[arg(1)*page:][:arg(2)*page])
		return "ok", nil
	case "hash":
		return strconv.FormatUint(hash(*region), 16), nil
	case "where": // page: its guest-physical address
		return where(&(*region)[arg(1)*page])
	case "disk":
		d, err := os.OpenFile("/dev/vda", os.O_RDWR, 0)
		if err != nil {
			return "", err
		}
		defer d.Close()
		b := make([]byte, 512)
		if _, err := d.ReadAt(b, 512); err != nil {
			return "", err
		}
		_, err = d.WriteAt(b, 1024)
		return fmt.Sprintf("%q %v", bytes.TrimRight(b, "\x00"), errors.Join(err, d.Sync())), nil
	case "random": // past what the driver had fetched before
		b := make([]byte, 1024)
		d, err := os.Open("/dev/hwrng")
		if err != nil {
			return "", err
		}
		defer d.Close()
		_, err = io.ReadFull(d, b)
		return fmt.Sprintf("%x", b[len(b)-16:]), err
	case "flood": // MiB on the console
		line := bytes.Repeat([]byte("flood the console "), 56)
		for n := 0; n < arg(1)<<20; n += len(line) {
			os.Stdout.Write(line)
		}
		fmt.Println("\nend of flood")
		return "ok", nil
	case "poweroff":
		return "", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	case "reset":
		return "", unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	case "panic":
		return "", os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0)
	}
	return "", fmt.Errorf("no command %q", f[0])
}

// hash takes the head of each page and one word more, another in each: an
// emulated CPU is slow, and the host sees the pages whole.
func hash(p []byte) (h uint64) {
	for i := 0; i < len(p)/page; i++ {
		for _, at := range []int{0, 8, 16, i % (page / 8) * 8} {
			h = (h ^ binary.LittleEndian.Uint64(p[i*page+at:])) * 0x9fb21c651e98df25
			h ^= h >> 29
		}
	}
	return h
}

// fill makes a page that names its seed and index and follows from them.
func fill(p []byte, seed, index uint64) {
	copy(p, "RATOONPG")
	binary.LittleEndian.PutUint64(p[8:], seed)
	binary.LittleEndian.PutUint64(p[16:], index)
	x := seed<<32 ^ index
	for at := 24; at < page; at += 8 {
		x += 0x9e3779b97f4a7c15
		z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(p[at:], z^z>>31)
	}
}

func where(p *byte) (string, error) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return "", err
	}
	defer f.Close()
	var e [8]byte
	if _, err := f.ReadAt(e[:], int64(address(p)/page*8)); err != nil {
		return "", err
	}
	return strconv.FormatUint(binary.LittleEndian.Uint64(e[:])&(1<<55-1)*page, 10), nil
}

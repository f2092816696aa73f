package qemu_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/host/vmm/qemu"
	"github.com/ratoon-project/ratoon/protocol"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in, text string
		readOnly bool
	}{
		{"QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright", "7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)", false},
		{"QEMU emulator version 8.2.0\n", "8.2.0", true},
		{"QEMU emulator version 8.1.5", "8.1.5", false},
		{"QEMU emulator version 10.0.2 (x)\n", "10.0.2 (x)", true},
	} {
		if text, ro, err := qemu.ParseVersion(tt.in); text != tt.text || ro != tt.readOnly || err != nil {
			t.Errorf("%q: %q, %v, %v", tt.in, text, ro, err)
		}
	}
	for _, in := range []string{"", "qemu 7", "QEMU emulator version", "QEMU emulator version x.y", "QEMU emulator version 7"} {
		if _, _, err := qemu.ParseVersion(in); protocol.CodeOf(err) != protocol.CodeNotSupported {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestOptionDoublesCommas(t *testing.T) {
	t.Parallel()
	if got, want := qemu.Option("file", "path", "/a,b=c", "append", "on"), "file,path=/a,,b=c,append=on"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := qemu.Option("", "size", "1", "x", "2"), "size=1,x=2"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestCommandLines(t *testing.T) {
	t.Parallel()
	load, readOnly, boot := qemu.LoadArgs(false), qemu.LoadArgs(true), qemu.BootArgs()
	for _, tt := range []struct {
		name string
		args []string
		want map[string]string // option: what a value of it must be
	}{
		{"load", load, map[string]string{
			"-object":   "memory-backend-file,id=ram,size=268435456,mem-path=/proc/self/fd/3,share=off,merge=off,dump=off",
			"-incoming": "defer",
			"-global":   "migration.send-configuration=off",
			"-chardev":  "socket,id=control,fd=5,server=on,wait=off",
			"-accel":    "tcg,thread=multi,tb-size=32",
		}},
		{"load read-only", readOnly, map[string]string{
			"-object": "memory-backend-file,id=ram,size=268435456,mem-path=/proc/self/fd/3,share=off,merge=off,dump=off,readonly=on,rom=off",
		}},
		{"boot", boot, map[string]string{
			"-object": "memory-backend-file,id=ram,size=268435456,mem-path=/proc/self/fd/3,share=on,merge=off,dump=off",
			"-kernel": "/proc/self/fd/20", "-initrd": "/proc/self/fd/21", "-append": "a=b,c d",
		}},
	} {
		for opt, value := range tt.want {
			found := false
			for i, a := range tt.args[:len(tt.args)-1] {
				found = found || a == opt && tt.args[i+1] == value
			}
			if !found {
				t.Errorf("%s: no %s %s in %q", tt.name, opt, value, tt.args)
			}
		}
	}
	// Device state only loads into the devices that it was saved from.
	if diff := cmp.Diff(devices(boot), devices(load)); diff != "" {
		t.Errorf("boot and load differ in devices:\n%s", diff)
	}
	for _, args := range [][]string{load, boot} {
		for _, never := range []string{"balloon", "virtio-mem", "pc-dimm", "-netdev", "mem-merge=on", "free-page"} {
			if strings.Contains(strings.Join(args, " "), never) {
				t.Errorf("%s is in %q", never, args)
			}
		}
	}
}

func devices(args []string) (out []string) {
	for i, a := range args {
		if a == "-device" || a == "-machine" || a == "-cpu" || a == "-smp" || a == "-m" || a == "-global" {
			out = append(out, a+" "+args[i+1])
		}
	}
	return out
}

func TestTail(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pieces []string
		want   string
	}{
		{nil, ""},
		{[]string{"abc"}, "abc"},
		{[]string{"abcd", "efgh"}, "abcdefgh"},
		{[]string{"abcd", "efghi"}, "bcdefghi"},
		{[]string{"abcdefgh", "123", "45678"}, "12345678"},
		{[]string{"abcdefgh", "12345678901"}, "45678901"},
		{[]string{"abc", "12345678", "xy"}, "345678xy"},
		{[]string{"abcdefgh", "123", "1234567890"}, "34567890"},
		{[]string{"abcdefgh", "123456", "xyzw"}, "3456xyzw"},
	} {
		if got := qemu.TailOf(8, tt.pieces...); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.pieces, got, tt.want)
		}
	}
}

func TestRAMRegions(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	for size, want := range map[int64][]vmm.RAMRegion{
		256 << 20:      {{Length: 256 << 20}},
		0xb0000000 - 1: {{Length: 0xb0000000 - 1}},
		0xb0000000:     {{Length: 2 * gib}, {GuestAddress: 4 * gib, Offset: 2 * gib, Length: 0xb0000000 - 2*gib}},
		4 * gib:        {{Length: 2 * gib}, {GuestAddress: 4 * gib, Offset: 2 * gib, Length: 2 * gib}},
	} {
		if diff := cmp.Diff(want, qemu.RAMRegions(size)); diff != "" {
			t.Errorf("%#x (-want +got):\n%s", size, diff)
		}
	}
}

func TestNoQEMU(t *testing.T) {
	t.Parallel()
	d := qemu.New(qemu.Options{Program: "qemu-of-no-kind"})
	if _, err := d.Info(t.Context()); protocol.CodeOf(err) != protocol.CodeNotSupported {
		t.Error(err)
	}
	if _, err := qemu.New(qemu.Options{Program: "true"}).Info(t.Context()); protocol.CodeOf(err) != protocol.CodeNotSupported {
		t.Error(err)
	}
}

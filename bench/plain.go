package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/ratoon-project/ratoon/host/program"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// echoPort is a third port of plain machines, for bench/echo.
const echoPort = "ratoon.bench"

// plain is QEMU as one would run it without Ratoon: the same devices and
// processor as the driver's, RAM of its own.
type plain struct {
	cmd *exec.Cmd
	dir string
	qmp net.Conn
	in  *bufio.Scanner
	end chan struct{} // closed when the process was reaped
	*link.Link
}

// startPlain boots the image, or waits for the migration that incoming names.
func (l *lab) startPlain(ctx context.Context, mib int64, incoming string) (*plain, error) {
	info, err := l.driver.Info(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "ratoon-bench") // sockets need a short path
	if err != nil {
		return nil, err
	}
	socket := func(name string) string {
		return fmt.Sprintf("socket,id=%s,path=%s,server=on,wait=off", name, filepath.Join(dir, name))
	}
	args := []string{"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "null",
		"-accel", "tcg,thread=multi,tb-size=32", "-cpu", info.CPUModel, "-smp", "1", "-m", strconv.FormatInt(mib, 10) + "M",
		"-machine", "q35,usb=off,vmport=off,smm=off,sata=off,smbus=off,i8042=off,mem-merge=off,dump-guest-core=off",
		"-chardev", socket("qmp"), "-mon", "chardev=qmp,mode=control",
		"-device", "pvpanic-pci", "-object", "rng-builtin,id=rng", "-device", "virtio-rng-pci,rng=rng",
		"-device", "virtio-serial-pci,id=serial,max_ports=4",
		"-chardev", socket("control"), "-device", "virtserialport,bus=serial.0,nr=1,chardev=control,name=" + protocol.SerialControl,
		"-chardev", socket("bulk"), "-device", "virtserialport,bus=serial.0,nr=2,chardev=bulk,name=" + protocol.SerialBulk,
		"-chardev", socket("echo"), "-device", "virtserialport,bus=serial.0,nr=3,chardev=echo,name=" + echoPort,
		"-drive", "if=none,id=root,format=raw,readonly=on,file.locking=off,file=" + l.boot.Rootfs, "-device", "virtio-blk-pci,drive=root",
		"-kernel", l.boot.Kernel, "-initrd", l.boot.Initrd, "-append", info.Cmdline + " " + l.boot.Cmdline}
	if info.Accel != "tcg" {
		args[8] = info.Accel
	}
	if incoming != "" {
		args = append(args, "-incoming", incoming)
	}
	p := &plain{cmd: exec.Command("qemu-system-x86_64", args...), dir: dir, end: make(chan struct{})}
	p.cmd.Stderr = os.Stderr
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	go func() {
		p.cmd.Wait()
		close(p.end)
	}()
	if err := p.connectQMP(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start QEMU: %w", err), p.kill())
	}
	return p, nil
}

// kill ends the machine.
func (p *plain) kill() error {
	if p.Link != nil {
		p.Link.Close()
	}
	if p.qmp != nil {
		p.qmp.Close()
	}
	p.cmd.Process.Kill()
	<-p.end
	return os.RemoveAll(p.dir)
}

// poll tries f until it succeeds, the machine or ctx ends.
func (p *plain) poll(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-p.end:
			return fmt.Errorf("%w: QEMU ended: %v", err, p.cmd.ProcessState)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (p *plain) connectQMP(ctx context.Context) error {
	err := p.poll(ctx, func() (err error) {
		p.qmp, err = net.Dial("unix", filepath.Join(p.dir, "qmp"))
		return err
	})
	if err != nil {
		return err
	}
	p.in = bufio.NewScanner(p.qmp)
	return p.execute("qmp_capabilities", nil, nil)
}

// execute runs one QMP command; events are passed over.
func (p *plain) execute(command string, arguments, out any) error {
	b, err := json.Marshal(map[string]any{"execute": command, "arguments": arguments})
	if arguments == nil {
		b, err = json.Marshal(map[string]any{"execute": command})
	}
	if err != nil {
		return err
	}
	if _, err := p.qmp.Write(b); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	for p.in.Scan() {
		var m struct {
			Return json.RawMessage `json:"return"`
			Error  json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(p.in.Bytes(), &m); err != nil {
			return err
		}
		switch {
		case m.Error != nil:
			return fmt.Errorf("%s: %s", command, m.Error)
		case m.Return != nil && out != nil:
			return json.Unmarshal(m.Return, out)
		case m.Return != nil:
			return nil
		}
	}
	return fmt.Errorf("%s: the connection ended: %w", command, p.in.Err())
}

// migrate writes the machine to a file, as fast as it can.
func (p *plain) migrate(ctx context.Context, path string) error {
	unlimited := map[string]any{"max-bandwidth": int64(1) << 40}
	if err := p.execute("migrate-set-parameters", unlimited, nil); err != nil {
		return err
	}
	if err := p.execute("migrate", map[string]any{"uri": "exec:cat > " + path}, nil); err != nil {
		return err
	}
	return p.poll(ctx, func() error { return p.status("query-migrate", "completed") })
}

func (p *plain) status(query, want string) error {
	var m struct {
		Status string `json:"status"`
	}
	if err := p.execute(query, nil, &m); err != nil {
		return err
	}
	if m.Status != want {
		return fmt.Errorf("%s: %s", query, m.Status)
	}
	return nil
}

// hello waits until the guest's agent answers.
func (p *plain) hello(ctx context.Context) error {
	// A machine that is still loading would lose the first try.
	if err := p.poll(ctx, func() error { return p.status("query-status", "running") }); err != nil {
		return err
	}
	var err error
	p.Link, err = link.Connect(ctx, &link.UnixDialer{Control: filepath.Join(p.dir, "control"), Bulk: filepath.Join(p.dir, "bulk")}, link.Options{})
	if err != nil {
		return err
	}
	m, err := p.Receive(ctx)
	if err != nil {
		return err
	}
	if _, ok := m.(*protocol.Hello); !ok {
		return fmt.Errorf("the guest's first message is %s", m.Type())
	}
	return nil
}

// plainSource is the one timeline of a plain machine.
type plainSource struct{ p *plain }

func (plainSource) Places(context.Context) ([]program.Place, error) {
	return make([]program.Place, 1), nil
}

func (s plainSource) OpenStream(ctx context.Context, _ protocol.TimelineID, o protocol.Open) (program.Stream, error) {
	return s.p.OpenStream(ctx, o)
}

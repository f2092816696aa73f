package vmmtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/ratoon-project/ratoon/host/memory"
	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// hostEnv holds the orders of a process that plays a host.
const hostEnv = "RATOON_VMMTEST_HOST"

// orders of a host.
type orders struct {
	Spec  vmm.Spec
	Base  protocol.BaseID
	RAM   string
	State string
	Steps []hostStep
}

// hostStep is one thing that a host does.
type hostStep struct{ Do, Text string }

// loaded is what a host prints: how its machine is adopted.
type loaded struct {
	Process vmm.Process
	Name    memory.Name
}

// Host plays the host process that loads a machine and is killed, when the
// test binary was started for that, and then does not return. Every TestMain of
// a package that calls Run calls it first.
func Host(d vmm.Driver) {
	text := os.Getenv(hostEnv)
	if text == "" {
		return
	}
	var o orders
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		err = play(context.Background(), d, o)
	}
	fmt.Println("error", err)
	os.Exit(1)
}

func play(ctx context.Context, d vmm.Driver, o orders) error {
	base, err := memory.OpenBase(o.Base, o.RAM)
	if err != nil {
		return err
	}
	vm, err := d.Load(ctx, o.Spec, vmm.Image{Base: base, State: o.State})
	if err != nil {
		return err
	}
	l := loaded{Process: vm.Process()}
	if l.Name, err = memory.NameIn(vm.PID(), base); err != nil {
		return err
	}
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	fmt.Printf("loaded %s\n", b)
	var conn net.Conn
	for _, s := range o.Steps {
		switch s.Do {
		case "resume":
			if err = vm.Resume(ctx); err == nil {
				conn, err = vm.Carrier().Open(ctx, link.Control)
			}
		case "say": // and wait for the answer
			if _, err = fmt.Fprintln(conn, s.Text); err == nil {
				_, err = bufio.NewReader(conn).ReadString('\n')
			}
		case "begin": // a line that is not ended
			_, err = conn.Write([]byte(s.Text))
		case "pause":
			err = vm.Pause(ctx)
		case "save":
			err = vm.SaveState(ctx, s.Text)
		case "link":
			conn.Close()
			err = flood(ctx, vm, s.Text)
		}
		if err != nil {
			return fmt.Errorf("%s %s: %w", s.Do, s.Text, err)
		}
	}
	fmt.Println("done")
	select {}
}

// flood sends large messages on a link and reads few of the answers, until
// neither side can write.
func flood(ctx context.Context, vm vmm.VM, text string) error {
	l, err := link.Connect(ctx, vm.Carrier(), link.Options{})
	if err != nil {
		return err
	}
	m := &protocol.Outcome{Key: protocol.Key{Timeline: protocol.NewTimelineID(), Start: 1, Sequence: 1}, Value: bytes.Repeat([]byte(text), 64<<10)}
	started := make(chan error, 1)
	go func() {
		err := l.Send(ctx, m)
		started <- err
		for err == nil {
			err = l.Send(ctx, m)
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	_, err = l.Receive(ctx)
	return err
}

// orphan has a host process load a machine, take these steps and be killed. It
// returns what the machine was loaded with and how it is adopted. env is added
// to the host's.
func (s *suite) orphan(t testing.TB, env string, steps ...hostStep) (vmm.Spec, loaded) {
	t.Helper()
	spec := s.template.spec
	spec.Dir, spec.Resident = longDir(t), true
	text, err := json.Marshal(orders{Spec: spec, Base: s.template.base.ID(), RAM: s.template.base.Path(), State: s.template.state, Steps: steps})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), hostEnv+"="+string(text), env)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var l loaded
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = append(said, lines.Text())
		if text, ok := strings.CutPrefix(lines.Text(), "loaded "); ok {
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				t.Error(err)
			}
			t.Cleanup(func() { reap(t, l.Process) })
		}
		if lines.Text() == "done" || strings.HasPrefix(lines.Text(), "error") {
			break
		}
	}
	err = errors.Join(cmd.Process.Kill())
	cmd.Wait()
	if l.Process.PID == 0 || len(said) == 0 || strings.HasPrefix(said[len(said)-1], "error") {
		t.Fatalf("the host said %q, %v", said, err)
	}
	return spec, l
}

// reap ends what a failed test has left.
func reap(t testing.TB, p vmm.Process) {
	if !memory.Alive(p.PID, p.StartTime) {
		return
	}
	t.Errorf("the machine of process %d was left", p.PID)
	if proc, err := os.FindProcess(p.PID); err == nil {
		proc.Kill()
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/ratoon-project/ratoon/host/program"
	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/link"
)

// measureLink times round trips, programs and boots.
func measureLink(ctx context.Context, l *lab, r *report) error {
	return errors.Join(measureRoundTrip(ctx, l, r), measureExec(ctx, l, r), measureBoot(ctx, l, r))
}

// measureRoundTrip compares a ping with a bare echo, by turns, in one machine.
func measureRoundTrip(ctx context.Context, l *lab, r *report) (err error) {
	p, err := l.startPlain(ctx, 256, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.kill()) }()
	if err := p.hello(ctx); err != nil {
		return err
	}
	conn, err := p.startEcho(ctx, l)
	if err != nil {
		return err
	}
	defer conn.Close()
	var pings, echoes sample
	const block = 25
	for range l.pick(20, 8) {
		for i := range block {
			began := time.Now()
			if err := p.ping(ctx, uint64(i)); err != nil {
				return err
			}
			pings = append(pings, time.Since(began))
		}
		for range block {
			began := time.Now()
			var buf [32]byte
			if _, err := conn.Write(buf[:]); err != nil {
				return err
			}
			if _, err := io.ReadFull(conn, buf[:]); err != nil {
				return err
			}
			echoes = append(echoes, time.Since(began))
		}
	}
	r.roundTrip = echoes.median()
	ratio := ms(pings.median()) / ms(echoes.median())
	r.figure(figure{name: "round trip on the link (p50)", measured: millis(pings.median()), baseline: millis(echoes.median()) + " bare echo, same carrier",
		ratio: times(ratio) + " of it", target: "1.5x", met: met(ratio <= 1.5)})
	t := r.table("Round trips", "Virtio-serial ports of one machine, by turns.", "what", "p50", "p99")
	t.add("ping over the link", millis(pings.median()), millis(pings.at(0.99)))
	t.add("bare echo of 32 bytes", millis(echoes.median()), millis(echoes.at(0.99)))
	return nil
}

func (p *plain) ping(ctx context.Context, n uint64) error {
	if err := p.Send(ctx, &protocol.Ping{N: n}); err != nil {
		return err
	}
	for {
		m, err := p.Receive(ctx)
		if err != nil {
			return err
		}
		if pong, ok := m.(*protocol.Pong); ok && pong.N == n {
			return nil
		}
	}
}

// startEcho brings bench/echo into the guest and connects to its port.
func (p *plain) startEcho(ctx context.Context, l *lab) (net.Conn, error) {
	path, err := l.buildEcho(ctx)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	g := follow(ctx, plainSource{p}, program.Options{Stdin: f, Spec: &protocol.ExecSpec{Stdin: true,
		Argv: []string{"sh", "-c", "cat >/tmp/echo && chmod 755 /tmp/echo && exec /tmp/echo " + echoPort}}})
	if _, _, err := g.await(ctx, "ready"); err != nil {
		return nil, err
	}
	return net.Dial("unix", filepath.Join(p.dir, "echo"))
}

// measureExec times /bin/true, from the host and within the guest.
func measureExec(ctx context.Context, l *lab, r *report) (err error) {
	b, err := l.open(ctx, 256, sandbox.Limits{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	rounds := l.pick(40, 15)
	var took sample
	for range rounds {
		began := time.Now()
		if err := b.start(ctx, "/bin/true").end(ctx); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	g := b.python(ctx, "calls.py", strconv.Itoa(rounds))
	inside := map[string]time.Duration{}
	for _, what := range []string{"spawn", "whoami"} {
		text, _, err := g.await(ctx, what)
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return err
		}
		inside[what] = time.Duration(n)
	}
	r.figure(figure{name: "exec of /bin/true from the host (p50)", measured: millis(took.median()), baseline: millis(inside["spawn"]) + " spawned in the guest",
		ratio: times(ms(took.median())/ms(inside["spawn"])) + " of it"})
	t := r.table("Programs", "Guest of 256 MiB.", "what", "p50", "p99")
	t.add("exec of /bin/true from the host", millis(took.median()), millis(took.at(0.99)))
	t.add("posix_spawn of /bin/true in the guest", millis(inside["spawn"]), "")
	t.add("`ratoon.whoami()` in the guest", millis(inside["whoami"]), "")
	return g.end(ctx)
}

// measureBoot compares a cold boot with a start from a template.
func measureBoot(ctx context.Context, l *lab, r *report) error {
	var boots, starts sample
	for range l.pick(5, 2) {
		took, err := l.bootOnce(ctx)
		if err != nil {
			return err
		}
		boots = append(boots, took)
		b, err := l.open(ctx, 256, sandbox.Limits{})
		if err != nil {
			return err
		}
		starts = append(starts, b.took)
		if err := b.close(); err != nil {
			return err
		}
	}
	r.figure(figure{name: "start from a template to running", measured: millis(starts.median()), baseline: millis(boots.median()) + " cold boot to ready",
		ratio: times(ms(boots.median()) / ms(starts.median()))})
	return nil
}

// bootOnce boots a machine as for a template, up to the agent's hello.
func (l *lab) bootOnce(ctx context.Context) (took time.Duration, err error) {
	dir, err := os.MkdirTemp(l.tmp, "vm")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	spec := l.spec(dir, 256)
	began := time.Now()
	vm, err := l.driver.Boot(ctx, spec, filepath.Join(dir, "ram"))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, vm.Kill(context.WithoutCancel(ctx))) }()
	k, err := link.Connect(ctx, vm.Carrier(), link.Options{})
	if err != nil {
		return 0, fmt.Errorf("wait for the guest's agent: %w", err)
	}
	defer k.Close()
	if _, err := k.Receive(ctx); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}

package program

import (
	"context"
	"sync"

	"github.com/ratoon-project/ratoon/protocol"
)

// attach follows the program on one link. It returns the exit when the
// program ended, else whether anything arrived.
func (p *Program) attach(ctx context.Context, src Source, place Place) (exit *protocol.ExecExit, progress bool, err error) {
	at := p.position(place.Timeline)
	o := protocol.ExecOpen{ID: p.id, Stdout: at.Stdout, Stderr: at.Stderr}
	if !p.started() {
		o.Start = p.spec
	}
	st, err := src.OpenStream(ctx, place.Timeline, protocol.Open{Op: protocol.OpExec, Exec: &o})
	if err != nil {
		return nil, false, err
	}
	defer context.AfterFunc(ctx, func() { st.Close() })() // Receive does not know ctx
	a := &attachment{Program: p, st: st, place: place, ended: make(chan struct{})}
	defer a.end()
	for {
		var f protocol.ExecFrame
		if err := st.Receive(&f); err != nil {
			return nil, progress, err
		}
		progress = true
		if exit, err = a.take(f); exit != nil || err != nil {
			return exit, true, err
		}
	}
}

// attachment is a program on one link.
type attachment struct {
	*Program
	st      Stream
	place   Place
	ended   chan struct{}
	feeding sync.WaitGroup
	greeted bool
}

func (a *attachment) end() {
	close(a.ended)
	a.st.Close()
	if a.input != nil {
		a.input.wake()
	}
	a.feeding.Wait()
	a.use(nil)
}

// take handles one frame of the guest. It returns the exit when f is that.
func (a *attachment) take(f protocol.ExecFrame) (*protocol.ExecExit, error) {
	switch {
	case f.Error != nil && f.Error.Code == protocol.CodeBusy:
		return nil, f.Error
	case f.Error != nil:
		return nil, &refusal{f.Error}
	case f.Started != nil:
		return nil, a.begin(f.Started)
	case f.Taken != nil && a.input != nil:
		if err := a.input.take(*f.Taken); err != nil {
			return nil, &refusal{protocol.AsError(err)}
		}
	case f.Output != nil:
		if err := a.write(a.place.Timeline, f.Output); err != nil {
			return nil, err
		}
		return nil, a.ack()
	case f.Exit != nil:
		a.st.Send(protocol.ExecFrame{Ack: &protocol.ExecAck{Stdout: f.Exit.Stdout, Stderr: f.Exit.Stderr}})
		return f.Exit, nil
	}
	return nil, nil
}

func (a *attachment) begin(s *protocol.ExecStarted) error {
	if a.greeted {
		return refuse("the program started twice on one stream")
	}
	a.greeted = true
	a.use(a.st)
	// What was taken on an earlier link need not be kept any longer.
	if err := a.ack(); err != nil || a.input == nil {
		return err
	}
	if err := a.input.attach(s.Stdin); err != nil {
		return &refusal{protocol.AsError(err)}
	}
	a.feeding.Go(func() { a.input.feed(a.st, s.Stdin, a.ended) })
	return nil
}

func (a *attachment) ack() error {
	at := a.position(a.place.Timeline)
	return a.st.Send(protocol.ExecFrame{Ack: &protocol.ExecAck{Stdout: at.Stdout, Stderr: at.Stderr}})
}

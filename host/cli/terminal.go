package cli

import (
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/ratoon-project/ratoon/host/program"
)

// rawTerminal passes keys on as they are while the program has a terminal.
func rawTerminal(in io.Reader) (restore func(), err error) {
	f, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil, usage("--tty: standard input is not a terminal")
	}
	old, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	return func() { term.Restore(int(f.Fd()), old) }, nil
}

// watchSize keeps the program's terminal as large as ours.
func watchSize(in io.Reader, p *program.Program) (stop func()) {
	f := in.(*os.File)
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	changes <- syscall.SIGWINCH
	go func() {
		for range changes {
			if columns, rows, err := term.GetSize(int(f.Fd())); err == nil {
				p.Resize(uint16(rows), uint16(columns)) // also remembered while the program cannot be reached
			}
		}
	}()
	return func() { signal.Stop(changes); close(changes) }
}

package program_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ratoon-project/ratoon/host/program"
	"github.com/ratoon-project/ratoon/protocol"
)

// token is the length of what the program prints at a time, and of the steps
// in which it arrives: bytes of two timelines would mix otherwise.
const token = 4

// world is a program whose machine is snapshotted and restored while the
// links to it break. Everything happens inside the calls of Follow.
type world struct {
	t        *rapid.T
	id       protocol.ExecID
	made     int // tokens printed
	lives    []*life
	frozen   []checkpoint
	attached int
	stdout   bytes.Buffer
}

// life is the program in one timeline.
type life struct {
	place    program.Place
	log      []byte
	dropped  uint64 // acknowledged
	finished bool
}

type checkpoint struct {
	by  int
	log []byte
	// dropped is where the ring of a loaded copy begins.
	dropped uint64
}

func (w *world) now() *life { return w.lives[len(w.lives)-1] }

func (w *world) print() {
	w.made++
	l := w.now()
	l.log = append(l.log[:len(l.log):len(l.log)], fmt.Sprintf("%0*d", token, w.made)...)
}

func (w *world) snapshot() {
	l := w.now()
	w.frozen = append(w.frozen, checkpoint{len(w.lives) - 1, l.log, l.dropped})
}

func (w *world) restore(c checkpoint) {
	at := protocol.ExecOffsets{ID: w.id, Stdout: uint64(len(c.log))}
	w.lives = append(w.lives, &life{log: c.log, dropped: c.dropped, place: program.Place{
		Timeline: protocol.TimelineID(fmt.Sprint("t", len(w.lives))), Origin: w.lives[c.by].place.Timeline, Offsets: &at}})
}

// between is what happens while no link stands.
func (w *world) between() {
	for range rapid.IntRange(0, 6).Draw(w.t, "events") {
		switch rapid.SampledFrom([]string{"print", "print", "snapshot", "restore"}).Draw(w.t, "event") {
		case "print":
			w.print()
		case "snapshot":
			w.snapshot()
		case "restore":
			if len(w.frozen) > 0 {
				w.restore(rapid.SampledFrom(w.frozen).Draw(w.t, "checkpoint"))
			}
		}
	}
}

func (w *world) Places(context.Context) ([]program.Place, error) {
	var out []program.Place
	for _, l := range w.lives {
		out = append(out, l.place)
	}
	return out, nil
}

func (w *world) OpenStream(_ context.Context, t protocol.TimelineID, o protocol.Open) (program.Stream, error) {
	l := w.now()
	if t != l.place.Timeline {
		w.t.Fatalf("opened %s, the line is held by %s", t, l.place.Timeline)
	}
	if o.Exec.Stdout < l.dropped {
		w.t.Fatalf("asks for output at %d, which was acknowledged up to %d", o.Exec.Stdout, l.dropped)
	}
	w.attached++
	s := &scripted{world: w, life: l, at: o.Exec.Stdout, frames: rapid.IntRange(0, 5).Draw(w.t, "frames")}
	s.last = w.attached > 20
	return s, nil
}

// scripted is one link: a few frames, then its end.
type scripted struct {
	world  *world
	life   *life
	at     uint64
	frames int
	last   bool
	begun  bool
}

func (s *scripted) Send(v any) error {
	if a := v.(protocol.ExecFrame).Ack; a != nil {
		if a.Stdout > uint64(len(s.life.log)) {
			s.world.t.Fatalf("acknowledges %d of %d bytes", a.Stdout, len(s.life.log))
		}
		s.life.dropped = max(s.life.dropped, a.Stdout)
	}
	return nil
}

func (s *scripted) Receive(v any) error {
	w, f := s.world, v.(*protocol.ExecFrame)
	switch {
	case !s.begun:
		s.begun = true
		f.Started = &protocol.ExecStarted{PID: 1}
	case s.last && s.at == uint64(len(s.life.log)):
		s.life.finished = true
		f.Exit = &protocol.ExecExit{Stdout: s.at}
	case s.frames == 0 && !s.last:
		w.between()
		return errors.New("the link broke")
	case s.at == uint64(len(s.life.log)):
		w.print()
		fallthrough
	default:
		n := min(len(s.life.log)-int(s.at), token*rapid.IntRange(1, 3).Draw(w.t, "tokens"))
		// Also what is known already: rings are sent from where they begin.
		from := max(s.life.dropped, s.at-min(s.at, uint64(rapid.IntRange(0, 4).Draw(w.t, "again"))))
		f.Output = &protocol.ExecOutput{Stream: "stdout", Offset: from, Data: s.life.log[from : s.at+uint64(n)]}
		s.at += uint64(n)
		s.frames--
	}
	return nil
}

func (s *scripted) Close() error { return nil }

// Whatever is snapshotted and restored while links break: nothing is written
// twice, and all that the program printed on its way to the end is there.
func TestOutputOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{t: t, id: protocol.NewExecID()}
		w.lives = []*life{{place: program.Place{Timeline: "t0"}}}
		p := program.New(program.Options{ID: w.id, Spec: &protocol.ExecSpec{Argv: []string{"x"}}, Stdout: &w.stdout})
		if _, err := p.Follow(context.Background(), w); err != nil {
			t.Fatal(err)
		}
		if !w.now().finished {
			t.Fatal("Follow ended before the program")
		}
		seen := map[string]bool{}
		var out []string
		for b := range slices.Chunk(w.stdout.Bytes(), token) {
			if seen[string(b)] {
				t.Errorf("%s was written twice: %s", b, w.stdout.Bytes())
			}
			seen[string(b)] = true
			out = append(out, string(b))
		}
		at := 0
		for tok := range slices.Chunk(w.now().log, token) {
			i := slices.Index(out[at:], string(tok))
			if i < 0 {
				t.Fatalf("%s of %s is missing or out of order: %s", tok, w.now().log, out)
			}
			at += i + 1
		}
	})
}

func TestOutputOfNoProgram(t *testing.T) {
	t.Parallel()
	for name, out := range map[string]protocol.ExecOutput{
		"beyond":  {Stream: "stdout", Offset: 1, Data: []byte("x")},
		"unknown": {Stream: "stdlog", Data: []byte("x")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := newPipe()
			p := program.New(program.Options{Spec: &protocol.ExecSpec{}, Stdout: io.Discard})
			go st.put(protocol.ExecFrame{Output: &out})
			if _, err := p.Follow(t.Context(), &oneLine{streams: []*pipe{st}}); protocol.CodeOf(err) != protocol.CodeProtocol {
				t.Errorf("got %v, want %s", err, protocol.CodeProtocol)
			}
		})
	}
}

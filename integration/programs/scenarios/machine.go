package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratoon-project/ratoon/guest/client"
	"github.com/ratoon-project/ratoon/protocol"
	"github.com/ratoon-project/ratoon/protocol/wire"
)

func pending() {
	slow := fork(1)
	if slow.Index != nil {
		hang()
	}
	outcome := make(chan string, 1)
	go func() {
		list, err := slow.Results(ctx, nil)
		if err != nil {
			outcome <- code(err)
			return
		}
		outcome <- string(list[0].Err.Code)
	}()
	time.Sleep(time.Second) // until the call is under way
	b := fork(1)
	if b.Index != nil {
		finish(<-outcome)
	}
	showResults(b)
	show("pending", len(outcome) == 0)
	check(slow.Cancel(ctx, 0))
	show("outcome", <-outcome)
}

func callers() {
	ids := make(chan protocol.CheckpointID, 2)
	for i := range 2 {
		go func() { ids <- take(fmt.Sprint("caller ", i)).ID }()
	}
	a, b := <-ids, <-ids
	var labels []string
	for _, c := range tree().Checkpoints {
		if c.ID == a || c.ID == b {
			labels = append(labels, c.Label)
		}
	}
	sort.Strings(labels)
	show("made", labels)
}

// counter is a process that numbers the lines it is sent.
type counter struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func (c counter) use(line string) string {
	must(fmt.Fprintln(c.in, line))
	return strings.TrimSpace(must(c.out.ReadString('\n')))
}

func startCounter(argv ...string) counter {
	cmd := exec.Command(argv[0], argv[1:]...)
	in, out := must(cmd.StdinPipe()), must(cmd.StdoutPipe())
	check(cmd.Start())
	return counter{cmd, in, bufio.NewReader(out)}
}

func survive() {
	worker := startCounter("sh", "-c", `n=0; while read -r x; do n=$((n+1)); echo "$n $x"; done`)
	journal := must(os.Create("/workspace/journal"))
	use := func(name string) []string {
		answer := worker.use(name)
		must(fmt.Fprintln(journal, name))
		lines := strings.Split(strings.TrimSpace(string(must(os.ReadFile("/workspace/journal")))), "\n")
		return []string{answer, fmt.Sprint(len(lines), " ", lines[len(lines)-1])}
	}
	inEveryTimeline(use)
	check(worker.cmd.Process.Kill())
}

// inEveryTimeline uses something before, in two children, in their parent and
// after a restore.
func inEveryTimeline(use func(string) []string) {
	show("before", use("first"))
	cp := take("")
	if cp.Restored {
		show("restored", use("again"))
		return
	}
	b := fork(2)
	if b.Index != nil {
		finish(use(fmt.Sprint("child ", *b.Index)))
	}
	show("parent", use("parent"))
	showResults(b)
	back(cp.ID, client.RestoreOptions{})
}

func threads() {
	fds := must(syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0))
	here := os.NewFile(uintptr(fds[0]), "here")
	there := os.NewFile(uintptr(fds[1]), "there")
	server := exec.Command("/proc/self/exe", "count", "3")
	server.ExtraFiles = []*os.File{there}
	check(server.Start())
	check(there.Close())
	answers := bufio.NewReader(here)

	var mu sync.Mutex
	changed := sync.NewCond(&mu)
	var asked, answered []string
	go func() {
		mu.Lock()
		defer mu.Unlock()
		for {
			for len(asked) == 0 {
				changed.Wait()
			}
			answered = append(answered, fmt.Sprint(len(answered)+1, " ", asked[0]))
			asked = nil
			changed.Broadcast()
		}
	}()
	inEveryTimeline(func(name string) []string {
		must(fmt.Fprintln(here, name))
		line := strings.TrimSpace(must(answers.ReadString('\n')))
		mu.Lock()
		defer mu.Unlock()
		had := len(answered)
		asked = append(asked, name)
		changed.Broadcast()
		for len(answered) == had {
			changed.Wait()
		}
		return []string{line, answered[had]}
	})
	check(here.Close())
	check(server.Wait())
}

// count numbers the lines on a socket, as another process.
func count(fd string) {
	f := os.NewFile(3, fd)
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		must(fmt.Fprintln(f, n, lines.Text()))
	}
}

type identity struct {
	Who    protocol.WhoamiResult
	Limits map[string]int64
}

func me() identity { return identity{whoami(), limits()} }

func environment() {
	before := me()
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "RATOON_") {
			check(os.Unsetenv(name))
		}
	}
	check(os.Setenv("RATOON_NODE", "0.7"))
	check(os.Setenv("RATOON_TIMELINE", "tl-aaaaaaaaaaaaaaaa"))
	check(os.Setenv("RATOON_MAX_DEPTH", "99"))
	show("same", cmp.Equal(before, me()))
}

// ask sends bytes to the agent and returns the code of its answer.
func ask(data []byte, more bool) string {
	conn := must(net.Dial("unix", protocol.GuestSocket)).(*net.UnixConn)
	defer conn.Close()
	must(conn.Write(data))
	if !more {
		check(conn.CloseWrite())
	}
	var r protocol.LocalReply
	if wire.ReadFrame(conn, &r, protocol.MaxMessage) != nil || r.Error == nil {
		return "closed"
	}
	return string(r.Error.Code)
}

func frame(fields map[string]any) []byte {
	body := must(wire.Marshal(fields))
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func raw() {
	before := me()
	show("garbage", ask([]byte("\x00\x00\x00\x04\xff\xff\xff\xff"), true))
	show("huge", ask([]byte("\xff\xff\xff\xff"), true))
	whole := frame(map[string]any{"version": 1, "kind": "whoami"})
	show("cut", ask(whole[:len(whole)-3], false))
	show("version", ask(frame(map[string]any{"version": 99, "kind": "whoami", "arguments": []byte{}}), true))
	show("kind", ask(frame(map[string]any{"version": 1, "kind": "raise_budget", "arguments": []byte{}}), true))
	show("arguments", ask(frame(map[string]any{"version": 1, "kind": "snapshot", "arguments": []byte("\xdd\xff\xff\xff\xff")}), true))
	target := must(wire.Marshal(map[string]any{"id": "cp-aaaaaaaaaaaaaaaa"}))
	show("forged", ask(frame(map[string]any{"version": 1, "kind": "restore", "watch": 1, "timeline": "tl-aaaaaaaaaaaaaaaa", "arguments": target}), true))
	show("same", cmp.Equal(before, me()))
}

func unfrozen() {
	events := make(chan string, 16)
	stop := must(ratoon.OnResume(ctx, func(e client.Event) { events <- string(e.Reason) }))
	for n := 4; n > 1; n-- {
		ratoon.Branch(ctx, client.BranchOptions{N: n})
	}
	stop()
	seen := make([]string, len(events))
	for i := range seen {
		seen[i] = <-events
	}
	show("stopped", seen)
}

func model() {
	show("answer", must(ratoon.LLMQuery(ctx, "hello", "")))
	show("named", must(ratoon.LLMQuery(ctx, "hello", "other")))
	_, err := ratoon.LLMQuery(ctx, "fail", "")
	show("failed", code(err))
}

func batched() {
	var out []string
	for _, c := range must(ratoon.LLMQueryBatched(ctx, []string{"a", "b", "c"}, "")) {
		out = append(out, c.Text)
	}
	show("answers", out)
}

func flight() {
	outcome := make(chan []string, 1)
	go func() {
		text, err := ratoon.LLMQuery(ctx, "hold", "")
		if err != nil {
			text = code(err)
		}
		outcome <- []string{text}
	}()
	must(ratoon.LLMQuery(ctx, "await hold", ""))
	b := fork(1)
	if b.Index != nil {
		finish(<-outcome)
	}
	showResults(b)
	must(ratoon.LLMQuery(ctx, "release", ""))
	show("parent", <-outcome)
}

func siblings() {
	b := fork(8)
	if b.Index != nil {
		finish(must(ratoon.LLMQuery(ctx, fmt.Sprint("sibling ", *b.Index), "")))
	}
	showResults(b)
	show("calls", must(ratoon.Budget(ctx))["llm_calls"].Used)
}

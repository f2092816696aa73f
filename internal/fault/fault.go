// Package fault names the steps at which a test can make the host fail.
//
// Every fsync, rename, write of state, VMM command and journal transaction is
// preceded by a Point. In normal runs a Point costs one map look-up and does
// nothing. A test arms a label, in the process with Set or in a child process
// by the environment (RATOON_FAULT="label=enospc,label2#3=kill"): the nth time
// the label is passed (#n, default 1) the action happens: kill ends the process,
// stop halts it until SIGCONT, enospc and eio make the step fail. RATOON_FAULT_TRACE
// names a file for the labels that a process passes.
//
// Safe for concurrent use.
package fault

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Environment variables of a process.
const (
	// Env arms labels.
	Env = "RATOON_FAULT"
	// EnvTrace names a file to which each label passed is appended.
	EnvTrace = "RATOON_FAULT_TRACE"
)

// Action says what happens at an armed label.
type Action func(label string) error

// Error makes the step fail with err.
func Error(err error) Action {
	return func(label string) error { return fmt.Errorf("fault at %s: %w", label, err) }
}

// Kill ends the process at once, as kill -9 does.
func Kill(string) error {
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// Stop halts the process as SIGSTOP does; the step happens once somebody has
// continued it.
func Stop(string) error {
	// To this very thread, so that the signal is taken before the call returns.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return unix.Tgkill(os.Getpid(), unix.Gettid(), syscall.SIGSTOP)
}

type armed struct {
	nth    int
	action Action
}

var state = struct {
	sync.Mutex
	armed map[string][]armed
	count map[string]int
	trace *os.File // nil: none
}{armed: map[string][]armed{}, count: map[string]int{}}

func init() {
	if err := parse(os.Getenv(Env)); err != nil {
		fmt.Fprintf(os.Stderr, "ratoon: %s: %v\n", Env, err)
		os.Exit(2)
	}
	if path := os.Getenv(EnvTrace); path != "" {
		var err error
		if state.trace, err = os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
			fmt.Fprintf(os.Stderr, "ratoon: %s: %v\n", EnvTrace, err)
			os.Exit(2)
		}
	}
}

func parse(spec string) error {
	for item := range strings.SplitSeq(spec, ",") {
		if item == "" {
			continue
		}
		name, what, ok := strings.Cut(item, "=")
		if !ok {
			return fmt.Errorf("%q: want label[#n]=kill|stop|enospc|eio", item)
		}
		label, num, has := strings.Cut(name, "#")
		nth := 1
		if has {
			n, err := strconv.Atoi(num)
			if err != nil || n < 1 {
				return fmt.Errorf("%q: %q is not a count", item, num)
			}
			nth = n
		}
		actions := map[string]Action{"kill": Kill, "stop": Stop, "enospc": Error(syscall.ENOSPC), "eio": Error(syscall.EIO)}
		a, ok := actions[what]
		if !ok {
			return fmt.Errorf("%q: want kill, stop, enospc or eio", item)
		}
		Set(label, nth, a)
	}
	return nil
}

// Set arms a label: its nth passing from now on (1: the next) does a. The
// returned function disarms it.
func Set(label string, nth int, a Action) (clear func()) {
	state.Lock()
	defer state.Unlock()
	entry := armed{state.count[label] + nth, a}
	state.armed[label] = append(state.armed[label], entry)
	return func() {
		state.Lock()
		defer state.Unlock()
		state.armed[label] = slices.DeleteFunc(state.armed[label], func(x armed) bool { return x.nth == entry.nth })
	}
}

// Point is passed before the step that label names. A non-nil error means
// that the step must fail with it.
func Point(label string) error {
	state.Lock()
	state.count[label]++
	n := state.count[label]
	if state.trace != nil {
		fmt.Fprintln(state.trace, label)
	}
	var act Action
	for _, a := range state.armed[label] {
		if a.nth == n {
			act = a.action
		}
	}
	state.Unlock()
	if act == nil {
		return nil
	}
	return act(label)
}

// Passed lists the labels passed so far and how often.
func Passed() map[string]int {
	state.Lock()
	defer state.Unlock()
	return maps.Clone(state.count)
}

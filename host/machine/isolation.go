package machine

import (
	"os"
	"strings"
)

// Isolation says what holds machines apart from the host and each other,
// beside what each driver does for itself.
type Isolation struct {
	// Users: every machine runs as a user of its own.
	Users bool
	// Cgroup is where each machine has a cgroup; empty: none has.
	Cgroup string
	// Memory and Processes are limited for each machine.
	Memory, Processes bool
	// Missing says what is not there and why; empty when all is.
	Missing string
}

// LookIsolation tells what an Engine of this process would have, with cgroup as
// in Options. It changes nothing.
func LookIsolation(cgroup string) Isolation {
	i, _ := lookIsolation(cgroup)
	return i
}

func lookIsolation(cgroup string) (Isolation, cgroups) {
	c, err := lookCgroups(cgroup)
	return isolationOf(c, err), c
}

func isolationOf(c cgroups, err error) Isolation {
	i := Isolation{Users: os.Geteuid() == 0, Cgroup: c.dir, Memory: c.memory, Processes: c.pids}
	var missing []string
	if !i.Users {
		missing = append(missing, "an ordinary user's machines all run as that user")
	}
	switch {
	case err != nil:
		missing = append(missing, "machines' memory and processes are not limited: "+err.Error())
	case !c.memory:
		missing = append(missing, "machines' memory is not limited: "+c.dir+" lacks the controller")
	case !c.pids:
		missing = append(missing, "machines' processes are not limited: "+c.dir+" lacks the controller")
	}
	i.Missing = strings.Join(missing, "; ")
	return i
}

// String says what there is in one line.
func (i Isolation) String() string {
	have := []string{"one user for all"}
	if i.Users {
		have[0] = "a user each"
	}
	if i.Cgroup != "" {
		have = append(have, "a cgroup each in "+i.Cgroup)
	}
	if i.Memory {
		have = append(have, "memory limited")
	}
	if i.Processes {
		have = append(have, "processes limited")
	}
	return strings.Join(have, ", ")
}

package exec

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ratoon-project/ratoon/protocol"
)

// account is whom a program runs as.
type account struct {
	name   string
	uid    uint32
	gid    uint32
	groups []uint32
	home   string
}

// lookupAccount understands name, uid, name:group and uid:gid, by the passwd
// and group files in dir. A number needs no entry. "" is root, or whoever this
// process runs as in tests.
func lookupAccount(dir, spec string) (account, error) {
	user, group, hasGroup := strings.Cut(spec, ":")
	if spec == "" {
		user = strconv.Itoa(os.Geteuid())
	}
	entry, err := find(filepath.Join(dir, "passwd"), 7, user, 2)
	if err != nil {
		return account{}, err
	}
	a := account{name: user, home: "/"}
	switch uid, isNumber := number(user); {
	case entry != nil:
		a.name, a.home = entry[0], entry[5]
		uid, okUID := number(entry[2])
		gid, okGID := number(entry[3])
		if !okUID || !okGID {
			return account{}, protocol.Errorf(protocol.CodeInvalidArgument, "the entry of user %q in the guest's passwd file has a bad number", user)
		}
		a.uid, a.gid = uid, gid
	case isNumber:
		a.uid, a.gid = uid, 0
	default:
		return account{}, protocol.Errorf(protocol.CodeNotFound, "no user %q in the guest's passwd file", user)
	}
	if hasGroup {
		if a.gid, err = lookupGroup(dir, group); err != nil {
			return account{}, err
		}
	}
	a.groups, err = memberships(dir, a)
	return a, err
}

func lookupGroup(dir, name string) (uint32, error) {
	entry, err := find(filepath.Join(dir, "group"), 4, name, 2)
	if err != nil {
		return 0, err
	}
	text := name
	if entry != nil {
		text = entry[2]
	}
	gid, ok := number(text)
	if !ok {
		return 0, protocol.Errorf(protocol.CodeNotFound, "no group %q in the guest's group file", name)
	}
	return gid, nil
}

func memberships(dir string, a account) ([]uint32, error) {
	groups := []uint32{a.gid}
	err := each(filepath.Join(dir, "group"), 4, func(entry []string) bool {
		gid, ok := number(entry[2])
		if ok && slices.Contains(strings.Split(entry[3], ","), a.name) && !slices.Contains(groups, gid) {
			groups = append(groups, gid)
		}
		return true
	})
	return groups, err
}

// find is the first entry whose name is key, else the first whose field by is.
func find(file string, fields int, key string, by int) ([]string, error) {
	var named, numbered []string
	err := each(file, fields, func(entry []string) bool {
		if entry[0] == key {
			named = entry
			return false
		}
		if numbered == nil && entry[by] == key {
			numbered = entry
		}
		return true
	})
	if named != nil {
		return named, err
	}
	return numbered, err
}

// each calls f for each entry with at least that many fields until it says
// false. A file that does not exist has none.
func each(file string, fields int, f func([]string) bool) error {
	r, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up account: %w", err)
	}
	defer r.Close()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20) // a group may have many members
	for lines.Scan() {
		entry := strings.Split(lines.Text(), ":")
		if len(entry) >= fields && !f(entry) {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("look up account: %w", err)
	}
	return nil
}

func number(s string) (uint32, bool) {
	// 2^32-1 means "unchanged" to the kernel's set-id calls.
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n != 1<<32-1
}

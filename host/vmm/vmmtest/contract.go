package vmmtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ratoon-project/ratoon/host/vmm"
	"github.com/ratoon-project/ratoon/protocol"
)

// Options of a run of the suite.
type Options struct {
	Driver vmm.Driver
	// Fixtures are built when zero.
	Fixtures Fixtures
	// UID is what the VMMs run as when the test runs as root, else the
	// caller's; default 64123, which need not exist.
	UID int
}

const defaultUID = 64123

// diskMark lies in the second sector of the machines' disk.
const diskMark = "one-disk-for-all"

// Run holds a driver to the contract of package vmm.
func Run(t *testing.T, opt Options) {
	if _, err := opt.Driver.Info(t.Context()); err != nil {
		if protocol.CodeOf(err) == protocol.CodeNotSupported {
			Unable(t, "%v", err)
		}
		t.Fatal(err)
	}
	if opt.Fixtures == (Fixtures{}) {
		opt.Fixtures = Build(t)
	}
	s := &suite{driver: opt.Driver, fixtures: opt.Fixtures, uid: -1, rootfs: makeDisk(t)}
	if os.Geteuid() == 0 {
		if s.uid = opt.UID; s.uid == 0 {
			s.uid = defaultUID
		}
	}
	s.template = s.makeTemplate(t, 256*mib, func(m *machine) {
		m.say(t, "map %d", regionPages)
		m.say(t, "fill 1 0 %d 1", regionPages)
		m.say(t, "count")
	})
	newModel(regionPages, 1).checkImage(t, s.template.base, nil)
	before := digestBase(t, s.template.base)
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Generations", s.testGenerations},
		{"ParentRunsOn", s.testParentRunsOn},
		{"ZeroOverData", s.testZeroOverData},
		{"ChildrenAreApart", s.testChildrenAreApart},
		{"FlattenedBase", s.testFlattenedBase},
		{"LargeMemory", s.testLargeMemory},
		{"Devices", s.testDevices},
		{"SaveStateRefusals", s.testSaveStateRefusals},
		{"DamagedImages", s.testDamagedImages},
		{"FailedBoots", s.testFailedBoots},
		{"Killed", s.testKilled},
		{"GuestEnds", s.testGuestEnds},
		{"ConsoleFlood", s.testConsoleFlood},
		{"Privileges", s.testPrivileges},
		{"Adopted", s.testAdopted},
		{"AdoptedOnce", s.testAdoptedOnce},
		{"AdoptedInCapture", s.testAdoptedInCapture},
		{"AdoptedLink", s.testAdoptedLink},
		{"AdoptedEnds", s.testAdoptedEnds},
		{"AdoptRefusals", s.testAdoptRefusals},
		{"Detached", s.testDetached},
	} {
		t.Run(test.name, test.run)
	}
	if digestBase(t, s.template.base) != before {
		t.Error("the base has changed")
	}
}

// makeDisk makes a raw image that only its owner may read.
func makeDisk(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	b := make([]byte, mib)
	copy(b[512:], diskMark)
	if err := os.WriteFile(path, b, 0o400); err != nil {
		t.Fatal(err)
	}
	return path
}

package qemu_test

import (
	"testing"

	"github.com/ratoon-project/ratoon/host/vmm/qemu"
	"github.com/ratoon-project/ratoon/host/vmm/vmmtest"
)

func TestContract(t *testing.T) {
	vmmtest.Run(t, vmmtest.Options{Driver: qemu.New(qemu.Options{})})
}

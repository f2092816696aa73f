// Package boot is PID 1 of a guest: it brings the machine up, keeps a worker
// running, and reaps what nobody else does.
//
//	boot.Main(boot.Options{Release: "1.2.0"}) // never returns
//
// The kernel starts agentd as /init of an initramfs that holds besides it
// /modules/*.ko and /modules/order. The kernel's command line may say
//
//	ratoon.root=/dev/vda     the read-only ext4 image (default)
//	ratoon.carrier=serial    or vsock: what carries the link to the host
//	ratoon.debug             log more
//
// The root is an overlay: the image below, one tmpfs above. That tmpfs also
// holds /workspace, /tmp and /dev/shm and is bounded, so that a full disk is
// ENOSPC and not the OOM killer. agentd lives in a cgroup of its own beside the
// users', whose memory limit leaves enough for it.
//
// What cannot be done during boot ends the machine: the console gets one line
// "ratoon: boot: STAGE: ERROR" and the machine is powered off. After boot
// nothing does: a worker that ends is started again with the next start number
// and the record that PID 1 keeps for it (package keep), a panic is logged and
// supervision begun again, and signals are taken and dropped.
package boot

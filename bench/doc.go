// Command bench measures the product on this machine and writes the figures as
// tables.
//
//	go run ./bench -quick                      # a few minutes, tables on stdout
//	go run ./bench -o docs/BENCHMARKS.md       # all of them
//	go run ./bench -only 'pause|restore'       # some
//
// It drives the real engine in this process: ports.go of host/sandbox is where
// it listens, so that each step of an operation is timed without a hook in the
// product. Baselines (cold boots, QEMU's own migration, a bare echo) run on the
// same machine in the same run, and what is reported beside each is a ratio.
// Nothing fails because of a slow machine: targets are printed, met or not.
//
// Progress goes to stderr. A figure that could not be measured is reported as
// such and makes the exit status 1.
package main

package image

// Cmdline is the kernel command line of every guest.
const Cmdline = "console=ttyS0"

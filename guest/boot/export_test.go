package boot

// ParseCmdline shows what a kernel command line means.
func ParseCmdline(s string) (root string, worker []string, err error) {
	c, err := parseCmdline(s)
	return c.root, c.workerArgs(), err
}

package memory

// The two ways of Scan, to hold them to each other.
var (
	ScanIoctl   = func(pid int, r []Region) ([]Range, error) { return scanWith(pid, r, scanIoctl) }
	ScanPagemap = func(pid int, r []Region) ([]Range, error) { return scanWith(pid, r, scanPagemap) }
)

const MaxRun = maxRun

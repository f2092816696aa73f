package image

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Progress is told what a build is doing. done and total count steps or bytes
// of the stage; total is 0 where it is not known. A Cache calls it from one
// goroutine at a time. It must not block, nor use that Cache.
type Progress func(stage string, done, total int64)

// serial makes p, which may be nil, safe for the goroutines of a build.
func serial(p Progress) Progress {
	if p == nil {
		return func(string, int64, int64) {}
	}
	var mu sync.Mutex
	return func(stage string, done, total int64) {
		mu.Lock()
		defer mu.Unlock()
		p(stage, done, total)
	}
}

// Terminal reports each new stage as one line on w.
func Terminal(w io.Writer) Progress {
	var mu sync.Mutex
	var last string
	start := time.Now()
	return func(stage string, _, _ int64) {
		mu.Lock()
		defer mu.Unlock()
		if stage == last {
			return
		}
		last = stage
		fmt.Fprintf(w, "ratoon: %3.0fs %s\n", time.Since(start).Seconds(), stage)
	}
}

// counter reports the bytes that pass through it.
type counter struct {
	r     io.Reader
	stage string
	done  int64
	total int64
	tell  Progress
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.done += int64(n)
	c.tell(c.stage, c.done, c.total)
	return n, err
}

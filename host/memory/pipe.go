package memory

import (
	"context"
	"sync"
)

// maxBatchRuns bounds the runs of one batch: as many as vectors fit one
// process_vm_readv (UIO_MAXIOV).
const maxBatchRuns = 1024

// batch is up to 1 MiB of guest memory on its way. data[:used] is the content
// of those runs that are not zero.
type batch struct {
	data []byte
	used int
	runs []Run
}

var batches = sync.Pool{New: func() any {
	return &batch{data: make([]byte, maxRun), runs: make([]Run, 0, maxBatchRuns)}
}}

// each calls do with every run and its content, nil for a zero run.
func (b *batch) each(do func(r Run, content []byte) error) error {
	at := 0
	for _, r := range b.runs {
		var content []byte
		if !r.Zero {
			content, at = b.data[at:at+int(r.Length)], at+int(r.Length)
		}
		if err := do(r, content); err != nil {
			return err
		}
	}
	return nil
}

// pipe overlaps a goroutine that fills batches with a consumer. A few batches
// go round, so that memory is bounded and warm.
type pipe struct {
	ctx    context.Context
	cancel context.CancelFunc
	free   chan *batch
	full   chan *batch
	err    error // of the filler; read after full is closed
	next   int   // the filler's place
}

const pipeDepth = 4

func startPipe(ctx context.Context, fill func(*pipe) error) *pipe {
	ctx, cancel := context.WithCancel(ctx)
	p := &pipe{ctx: ctx, cancel: cancel, free: make(chan *batch, pipeDepth), full: make(chan *batch, pipeDepth)}
	for range pipeDepth {
		p.free <- batches.Get().(*batch)
	}
	go func() {
		defer close(p.full)
		p.err = fill(p)
	}()
	return p
}

// empty waits for a batch to fill; nil when the work was cancelled.
func (p *pipe) empty() *batch {
	if p.ctx.Err() != nil {
		return nil
	}
	select {
	case b := <-p.free:
		b.used, b.runs = 0, b.runs[:0]
		return b
	case <-p.ctx.Done():
		return nil
	}
}

// send hands a filled batch over. It never blocks: there are no more batches
// than places.
func (p *pipe) send(b *batch) bool {
	p.full <- b
	return p.ctx.Err() == nil
}

// drain consumes until the filler ended, and waits for it in any case.
func (p *pipe) drain(do func(*batch) error) error {
	var err error
	for b := range p.full {
		if err == nil {
			err = context.Cause(p.ctx)
		}
		if err == nil {
			err = do(b)
		}
		if err != nil {
			p.cancel()
		}
		p.free <- b
	}
	if err == nil {
		err = p.err
	}
	if err == nil {
		err = context.Cause(p.ctx)
	}
	p.cancel()
	for {
		select {
		case b := <-p.free:
			batches.Put(b)
		default:
			return err
		}
	}
}

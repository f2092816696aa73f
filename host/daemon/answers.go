package daemon

import (
	"context"
	"encoding/json"
	"time"

	"github.com/ratoon-project/ratoon/host/sandbox"
	"github.com/ratoon-project/ratoon/protocol"
)

// answerLife is for how long the answer to a request with a key is kept.
const answerLife = 24 * time.Hour

const tableAnswer = "answer"

// Answer is what a request with an idempotency key was answered.
type Answer struct {
	Request string // digest of method, path and body
	Started time.Time
	Done    bool // else its outcome is not known
	Status  int
	Body    []byte
}

// Once runs a request that has a key, unless it was run before: then its
// answer is given again. Another request with the same key is CodeConflict. One
// whose process ended half-way is CodeHostRestarted. Of requests at the same
// time the later waits for the earlier. Only an answer that keep accepts is
// kept; after another one the request may be tried again.
func (d *Daemon) Once(ctx context.Context, key, request string, run func() Answer, keep func(Answer) bool) (a Answer, again bool, err error) {
	leave, err := d.enter(ctx, key)
	if err != nil {
		return a, false, err
	}
	defer leave()
	j := d.files.Journal.Host()
	var old *Answer
	err = j.View(func(tx sandbox.Tx) error {
		b := tx.Get(tableAnswer, key)
		if b == nil {
			return nil
		}
		old = new(Answer)
		return decode(tableAnswer, key, b, old)
	})
	switch {
	case err != nil:
		return a, false, err
	case old != nil && old.Request != request:
		return a, false, protocol.Errorf(protocol.CodeConflict, "the idempotency key %q was used for another request", clip(key))
	case old != nil && old.Done:
		return *old, true, nil
	case old != nil:
		return a, false, protocol.Errorf(protocol.CodeHostRestarted, "the daemon ended while the request with the key %q was under way", clip(key))
	}
	started := time.Now().UTC()
	if err := d.putAnswer("daemon.answer.begin", key, Answer{Request: request, Started: started}); err != nil {
		return a, false, err
	}
	a = run()
	a.Request, a.Started, a.Done = request, started, true
	if keep(a) {
		return a, false, d.putAnswer("daemon.answer", key, a)
	}
	return a, false, j.Update("daemon.answer.drop", func(tx sandbox.Tx) error { return tx.Delete(tableAnswer, key) })
}

func (d *Daemon) putAnswer(label, key string, a Answer) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return d.files.Journal.Host().Update(label, func(tx sandbox.Tx) error { return tx.Put(tableAnswer, key, b) })
}

// enter waits until no request with the key is under way.
func (d *Daemon) enter(ctx context.Context, key string) (leave func(), err error) {
	for {
		d.mu.Lock()
		other := d.keys[key]
		if other == nil {
			mine := make(chan struct{})
			d.keys[key] = mine
			d.mu.Unlock()
			return func() {
				d.mu.Lock()
				delete(d.keys, key)
				d.mu.Unlock()
				close(mine)
			}, nil
		}
		d.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// forgetAnswers removes those that are too old.
func (d *Daemon) forgetAnswers() error {
	j := d.files.Journal.Host()
	var old []string
	err := j.View(func(tx sandbox.Tx) error {
		return tx.Each(tableAnswer, func(key string, b []byte) error {
			var a Answer
			if decode(tableAnswer, key, b, &a) != nil || time.Since(a.Started) > answerLife {
				old = append(old, key)
			}
			return nil
		})
	})
	if err != nil || len(old) == 0 {
		return err
	}
	return j.Update("daemon.answer.forget", func(tx sandbox.Tx) error {
		for _, key := range old {
			if err := tx.Delete(tableAnswer, key); err != nil {
				return err
			}
		}
		return nil
	})
}

package fork

import (
	"context"
	"errors"
	"fmt"

	"github.com/ratoon-project/ratoon/protocol"
)

// Participant is a part of the worker that takes part in quiescing.
// Participants are stopped in order and resumed in reverse order.
type Participant interface {
	Name() string
	// Prepare runs while users run: it ends the participant's own work and
	// moves to the host what is already there (pre-sync).
	Prepare(ctx context.Context) error
	// Drain runs while users are frozen: it moves the rest. Position is
	// where the log then stands, zero if the participant has none.
	Drain(ctx context.Context) (protocol.Position, error)
	// Resume undoes Prepare and Drain; users run again.
	Resume()
}

// Stopper stops and starts the user processes; a *Freezer.
type Stopper interface {
	Freeze(ctx context.Context) error
	Thaw() error
}

var _ Stopper = (*Freezer)(nil)

// Quiescer stops users and participants together.
type Quiescer struct {
	users    Stopper
	parts    []Participant
	prepared int // how many of parts are stopped
}

// NewQuiescer makes a quiescer of users and parts, in that order of stopping.
func NewQuiescer(users Stopper, parts ...Participant) *Quiescer {
	return &Quiescer{users: users, parts: parts}
}

// Stop prepares all participants, freezes the users and drains. On an error
// everything runs again.
func (q *Quiescer) Stop(ctx context.Context) (protocol.Position, error) {
	for _, p := range q.parts {
		q.prepared++
		if err := p.Prepare(ctx); err != nil {
			q.resume()
			return protocol.Position{}, fmt.Errorf("prepare %s: %w", p.Name(), err)
		}
	}
	if err := q.users.Freeze(ctx); err != nil {
		q.resume()
		return protocol.Position{}, err
	}
	var position protocol.Position
	for _, p := range q.parts {
		at, err := p.Drain(ctx)
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return protocol.Position{}, errors.Join(fmt.Errorf("drain %s: %w", p.Name(), err), q.Go())
		}
		if at != (protocol.Position{}) {
			position = at
		}
	}
	return position, nil
}

// Go lets users and participants run again. When the users cannot be unfrozen
// the participants stay stopped too, and Go may be called again.
func (q *Quiescer) Go() error {
	if err := q.users.Thaw(); err != nil {
		return err
	}
	q.resume()
	return nil
}

func (q *Quiescer) resume() {
	for ; q.prepared > 0; q.prepared-- {
		q.parts[q.prepared-1].Resume()
	}
}

package admin

import (
	"time"

	"github.com/ratoon-project/ratoon/host/checkpoint"
	"github.com/ratoon-project/ratoon/protocol"
)

// progressEvery is how often a stream tells of progress.
const progressEvery = time.Second

// verifyCheckpoints answers a stream of reports.
func (s *Server) verifyCheckpoints(q *request) error {
	var body Verify
	if err := q.decode(&body); err != nil {
		return err
	}
	for _, id := range body.Checkpoints {
		if _, err := s.d.Checkpoint(id); err != nil && !isDamage(err) {
			return err
		}
	}
	st := q.stream()
	var end VerifyEnd
	var told time.Time
	var failed error // of the stream
	err := s.d.VerifyCheckpoints(q.Context(), body.Checkpoints, func(p checkpoint.Progress) {
		if time.Since(told) >= progressEvery && failed == nil {
			told = time.Now()
			failed = st.send(VerifyElement{Progress: &p})
		}
	}, func(r checkpoint.Report) error {
		end.Checked++
		if len(r.Damage) > 0 {
			end.Damaged++
		}
		return st.send(VerifyElement{Report: &r})
	})
	if err != nil {
		return st.send(VerifyElement{Error: toWire(err)})
	}
	return st.send(VerifyElement{End: &end})
}

// isDamage tells whether there is something that a report can say more of.
func isDamage(err error) bool {
	c := protocol.CodeOf(err)
	return c == protocol.CodeCheckpointLost || c == protocol.CodeCheckpointRefused
}

"""Finish of child A, plain and with keep=True (section 6)."""
from __future__ import annotations

from .. import mutants as m
from ..expansion import Expansion, daemon_step
from ..state import CHILD_A, CHILD_FINISH, CHILD_KEEP, FINISHED_A, RUNNING, State
from .journal import commit


def record_finish(x: Expansion) -> None:
    """finish(result): one transaction {result, timeline ended}, then kill."""
    now = x.now
    child = now.child_a
    if CHILD_A in now.live and child and child.alive and child.guest == RUNNING and child.pending == CHILD_FINISH:
        if x.without(m.FINISH_KILLS_EARLY):
            with x.step("daemon reads finish of child_a and kills it") as s:
                s.remove(CHILD_A)
                s.loss = "result of child_a"
        else:
            with x.step("COMMIT finish: result of child_a, timeline ended") as s:
                _end_with_result(s)
    if now.loss == "result of child_a":
        with x.step("daemon records the result of child_a") as s:
            s.loss = ""
            _end_with_result(s)
    if FINISHED_A in now.results and (child is not None or CHILD_A in now.vm_records):
        with x.step("daemon kills child_a, which has finished") as s:
            s.remove(CHILD_A)


def _end_with_result(s: State) -> None:
    s.live -= {CHILD_A}
    s.results |= {FINISHED_A}


@daemon_step("finish-commit")
def commit_finish_keep(x: Expansion) -> None:
    """finish(keep=True): {result with the checkpoint, timeline ended}."""

    def apply(s: State) -> None:
        s.loss = ""
        _end_with_result(s)
        s.kept = s.capture
        s.committed |= {CHILD_KEEP}

    commit(x, "finish-keep: result with checkpoint, child_a ended", apply, "finish-kill", "rollback")


@daemon_step("finish-kill")
def kill_finished(x: Expansion) -> None:
    with x.step("daemon kills child_a, which is kept") as s:
        s.remove(CHILD_A)
        s.become_idle()


@daemon_step("finish-kill-early")
def kill_before_commit(x: Expansion) -> None:
    """Mutant: kill first."""
    with x.step("daemon kills child_a before its result is written") as s:
        s.remove(CHILD_A)
        s.loss = "result of child_a"
        s.step = "finish-commit"

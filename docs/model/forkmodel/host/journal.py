"""Commits: journal writes that succeed, fail, or leave it unclear (section 9)."""
from __future__ import annotations

from collections.abc import Callable

from .. import mutants as m
from ..expansion import Expansion, daemon_step
from ..state import EMPTY, State


def commit(x: Expansion, label: str, apply: Callable[[State], None], forward: str, back: str, may_fail: bool = True) -> None:
    """Write a transaction; go on at forward, or at back if it is absent."""
    with x.step("COMMIT " + label) as s:
        apply(s)
        s.step = forward
        s.notes = EMPTY
    if may_fail and x.may("journal"):
        _unclear_write(x, apply, True, forward, back)
        _unclear_write(x, apply, False, forward, back)


def _unclear_write(x: Expansion, apply: Callable[[State], None], on_disk: bool, forward: str, back: str) -> None:
    where = "is" if on_disk else "is not"
    with x.fault("journal", f"journal write returns an error, the record {where} on disk") as s:
        if on_disk:
            apply(s)
        if back != "branch-undo":
            s.notes = EMPTY
        if x.without(m.FAILED_WRITE_TAKEN_AS_ABSENT):
            s.step = back
        else:
            s.step = "journal-retry"
            s.journal_resumes_at = forward if on_disk else back


@daemon_step("journal-retry")
def retry(x: Expansion) -> None:
    """A later transaction reads whether the record is there, and decides."""
    with x.step(f"a later journal transaction succeeds: go on at {x.now.journal_resumes_at}") as s:
        s.notes = EMPTY
        s.step = s.journal_resumes_at or s.step
        s.journal_resumes_at = None

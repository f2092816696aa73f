"""Move: rebase, hibernate and wake (section 5)."""
from __future__ import annotations

from .. import mutants as m
from ..expansion import Expansion, daemon_step
from ..scenario import REBASE
from ..state import (
    ABSENT,
    DURABLE,
    HIBERNATED,
    PARENT,
    PUBLISHED,
    SANDBOX_RUNNING,
    SUCCESSOR,
    Hibernated,
    State,
)
from .journal import commit


@daemon_step("move-durable")
def make_durable(x: Expansion) -> None:
    """Hibernate: the checkpoint must survive a host crash."""
    with x.step("daemon makes the checkpoint durable") as s:
        s.set_checkpoint(s.operation, DURABLE)
        s.step = "move-commit-1"
    if x.may("no_space"):
        with x.fault("no_space", "fsync: no space, the checkpoint is removed") as s:
            s.set_checkpoint(s.operation, ABSENT)
            s.step = "rollback"


@daemon_step("move-commit-1")
def commit_hibernated(x: Expansion) -> None:
    def apply(s: State) -> None:
        assert s.capture is not None
        wake_now = x.kind == REBASE
        s.hibernated = Hibernated(s.capture.freeze, s.capture.pending, wake_now, s.operation)
        s.live -= {PARENT}
        s.sandbox = HIBERNATED
        s.epoch_before_move = s.parent_epoch
        s.incarnation_ran = False

    early = x.without(m.MOVE_COMMITS_BEFORE_PUBLISH)
    commit(x, "move 1: timeline hibernated", apply, "move-kill-old", "rollback", may_fail=not early)


@daemon_step("move-kill-old")
def kill_old(x: Expansion) -> None:
    hibernated = x.now.hibernated
    assert hibernated is not None
    if x.kind == REBASE and x.now.parent is not None and x.without(m.MOVE_LEAVES_OLD_VM):
        with x.step("daemon leaves the old VM for later") as s:
            s.step = "move-record"
        return
    with x.step("daemon kills and reaps the old VM") as s:
        s.kill(PARENT)
        s.vm_records -= {PARENT}
        if x.without(m.MOVE_COMMITS_BEFORE_PUBLISH):
            s.set_checkpoint(s.operation, PUBLISHED)
        s.become_idle()
        if hibernated.wake_now:
            s.operation = x.now.operation
            s.freeze = hibernated.freeze
            s.capture = hibernated.capture
            s.step = "move-record"


@daemon_step("move-record")
def write_record(x: Expansion) -> None:
    with x.step("daemon writes the vm record of the next incarnation") as s:
        s.vm_records |= {SUCCESSOR}
        s.step = "move-load"


@daemon_step("move-load")
def load(x: Expansion) -> None:
    if x.now.successor is None:
        with x.step("daemon starts and loads the next incarnation") as s:
            assert s.capture is not None
            s.load(SUCCESSOR, s.capture)
            if s.incarnation_ran:
                s.double_use = "capture loaded again"
        if x.may("no_space"):
            with x.fault("no_space", "load of the next incarnation fails") as s:
                s.step = "move-undo"
        return
    alive = x.now.alive(SUCCESSOR)
    with x.step("the next incarnation says hello, frozen" if alive else "the next incarnation died") as s:
        s.step = "move-commit-2" if alive else "move-undo"
    x.drop_messages()


@daemon_step("move-undo")
def undo(x: Expansion) -> None:
    """The wake failed: the timeline stays hibernated."""
    if x.now.successor is not None:
        with x.step("daemon kills the next incarnation") as s:
            s.kill(SUCCESSOR)
        return
    with x.step("daemon: the wake failed, the timeline stays hibernated") as s:
        s.vm_records -= {SUCCESSOR}
        s.become_idle()


@daemon_step("move-commit-2")
def commit_incarnation(x: Expansion) -> None:
    def apply(s: State) -> None:
        if s.parent is not None:
            s.double_use = "two incarnations"
        s.live |= {PARENT}
        s.sandbox = SANDBOX_RUNNING
        s.parent = s.successor
        s.successor = None
        s.vm_records = s.vm_records - {SUCCESSOR} | {PARENT}
        s.incarnation += 1
        s.cut_links(PARENT)
        s.cut_links(SUCCESSOR)
        if not x.without(m.CAPTURE_LOADED_TWICE):
            s.hibernated = None

    commit(x, "move 2: the next incarnation is live", apply, "thaw", "move-undo")

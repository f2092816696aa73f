"""Restore of a line to a checkpoint, and adopt (sections 6 and 8)."""
from __future__ import annotations

from .. import mutants as m
from ..expansion import Expansion, daemon_step
from ..scenario import ADOPT, RESTORE_BY_CHILD
from ..state import (
    C0,
    CHILD_A,
    CHILDREN,
    OK,
    PARENT,
    PUBLISHED,
    REPLACEMENT,
    STOPPED,
    TEMPORARY,
    Capture,
    OpRecord,
    State,
    sent,
    thaw,
    thawed,
)
from .journal import commit


def _checkpoint(x: Expansion) -> Capture:
    """What is restored: the kept checkpoint of child A, or C0."""
    if x.kind == ADOPT:
        assert x.now.kept is not None
        return x.now.kept
    return C0


# ---- before the commit


@daemon_step("restore-records")
def write_records(x: Expansion) -> None:
    if x.without(m.DEAD_OLD_VM_IGNORED) and not x.now.alive(x.now.target):
        with x.step(f"daemon notices that {x.now.target} died") as s:
            s.step = "rollback"
        return
    if x.target_died():
        return
    with x.step("daemon writes the vm and stream records of the replacement") as s:
        s.streams |= {REPLACEMENT}
        if not x.without(m.NO_VM_RECORD):
            s.vm_records |= {REPLACEMENT}
        s.step = "restore-load"


@daemon_step("restore-load")
def load(x: Expansion) -> None:
    now = x.now
    if now.replacement is None:
        with x.step("daemon starts and loads the replacement") as s:
            s.load(REPLACEMENT, _checkpoint(x))
        if x.may("no_space"):
            with x.fault("no_space", "load of the replacement fails") as s:
                s.step = "restore-undo"
        return
    for slot in (now.target, REPLACEMENT):
        if not now.alive(slot):
            with x.step(f"daemon notices that {slot} died") as s:
                s.step = "restore-undo"
    if now.alive(REPLACEMENT):
        with x.step("the replacement says hello, frozen") as s:
            s.step = "restore-commit"
    x.drop_messages()


@daemon_step("restore-undo")
def undo(x: Expansion) -> None:
    if x.now.replacement is not None:
        with x.step("daemon kills the replacement") as s:
            s.kill(REPLACEMENT)
        return
    with x.step("daemon removes the records of the replacement") as s:
        s.vm_records &= s.live
        s.streams &= s.owners()
        s.step = "rollback"


# ---- the commit


@daemon_step("restore-commit")
def commit_restore(x: Expansion) -> None:
    label = "restore: the replacement is live, the old timeline ended"
    commit(x, label, lambda s: _write_restore(x, s), "restore-kill-old", "restore-undo")


def _write_restore(x: Expansion, s: State) -> None:
    checkpoint = _checkpoint(x)
    s.op_record = OpRecord(
        kind="restore",
        operation=s.operation,
        freeze=checkpoint.freeze,
        payload=not x.without(m.PAYLOAD_NOT_RECORDED),
        caller=s.operation if x.without(m.COPY_ANSWERED_UNDER_PARENTS_KEY) else checkpoint.pending,
        replaced=s.target,
    )
    s.vm_records |= {REPLACEMENT}
    s.committed |= {s.operation}
    if x.kind == RESTORE_BY_CHILD and not x.without(m.CHILD_RESTORE_REPLACES_SANDBOX):
        s.live = s.live - {CHILD_A} | {REPLACEMENT}
        s.slot_holder = CHILD_A if x.without(m.SLOT_NOT_INHERITED) else REPLACEMENT
        return
    s.current = REPLACEMENT
    if x.without(m.RESTORE_SPARES_CHILDREN):
        s.live = s.live - {PARENT} | {REPLACEMENT}
    else:
        s.live = frozenset([REPLACEMENT])


# ---- after the commit


@daemon_step("restore-kill-old")
def kill_old(x: Expansion) -> None:
    """Kill the ended timelines' VMs, wait for their ends, remove the records."""
    now = x.now
    record = now.op_record
    assert record is not None
    if x.without(m.KEPT_PRESENT_PUBLISHED_LATE) and TEMPORARY in now.checkpoints and now.parent is not None:
        with x.step("daemon publishes the kept present") as s:
            s.set_checkpoint(record.operation, PUBLISHED)
        return
    for slot in (PARENT,) + CHILDREN:
        if now.vm(slot) is not None and (slot not in now.live or x.without(m.RESTORE_SPARES_CHILDREN)):
            with x.step(f"daemon kills {slot}, waits on its pidfd") as s:
                s.kill(slot)
                s.live -= {slot}
            return
    with x.step("daemon removes the records of the ended timelines") as s:
        s.vm_records &= s.live
        s.streams &= s.owners()
        s.step = "restore-thaw"


@daemon_step("restore-thaw")
def thaw_replacement(x: Expansion) -> None:
    now = x.now
    record = now.op_record
    assert record is not None
    if not now.alive(REPLACEMENT):
        if not x.without(m.DEAD_NEW_VM_IGNORED):
            _stop_replacement(x)
        return
    ack = thawed(REPLACEMENT, record.freeze)
    was_sent = x.without(m.RECORD_CLOSED_WHEN_SENT) and sent(REPLACEMENT) in now.notes
    if ack in now.to_host:
        with x.step("daemon reads thawed of the replacement, removes the op record") as s:
            s.to_host -= {ack}
            s.op_record = None
            s.become_idle()
    elif not was_sent and not now.in_flight("thaw", REPLACEMENT):
        with x.step("daemon sends thaw(restored) to the replacement") as s:
            s.note(sent(REPLACEMENT))
            payload = record.payload or s.payload_known
            s.send(thaw(REPLACEMENT, record.freeze, 1, record.caller, OK, payload))
    if was_sent:
        with x.step("daemon removes the op record: thaw was sent") as s:
            s.op_record = None
            s.become_idle()
    x.drop_messages((ack,))


def _stop_replacement(x: Expansion) -> None:
    with x.step("the replacement died: sandbox stopped, or a result in its slot") as s:
        s.end(REPLACEMENT)
        s.op_record = None
        if s.current == REPLACEMENT:
            s.sandbox = STOPPED
        else:
            s.results |= {CHILD_A}
        s.become_idle()

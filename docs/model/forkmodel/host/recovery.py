"""Recovery of a restarted daemon (section 9)."""
from __future__ import annotations

from .. import mutants as m
from ..expansion import Expansion, daemon_step
from ..scenario import SNAPSHOT_DURABLE, SNAPSHOTS_BY_GUEST
from ..state import (
    ABSENT,
    CHILD_A,
    CHILD_FINISH,
    CHILDREN,
    DURABLE,
    EMPTY,
    ERROR,
    HIBERNATED,
    NO_KEY,
    OK,
    PARENT,
    PUBLISHED,
    QUIESCED,
    RECOVERING,
    REPLACEMENT,
    RUNNING,
    SLOTS,
    STOPPED,
    UP,
    State,
    gave_up,
    thaw,
)
from .settle import settle


def restart(x: Expansion) -> None:
    with x.step("daemon restarts") as s:
        s.daemon = RECOVERING
        s.step = "recover-unpause-early" if x.without(m.UNPAUSED_BEFORE_JOURNAL) else "recover-sweep"


@daemon_step("recover-unpause-early")
def unpause_early(x: Expansion) -> None:
    """Mutant: pauses end and quiesced guests are thawed before A and B."""
    parent = x.now.parent
    if parent is not None and parent.alive and (parent.paused or parent.guest == QUIESCED):
        if not x.now.in_flight("thaw", PARENT) or parent.paused:
            _revive_parent(x)
            return
    with x.step("recovery goes on to the journal") as s:
        s.step = "recover-sweep"


def _revive_parent(x: Expansion) -> None:
    """Mutants: un-pause the parent's VM, then thaw it with an error."""
    parent = x.now.must(PARENT)
    if parent.paused:
        with x.step("recovery un-pauses parent") as s:
            s.update(PARENT, paused=False)
    elif parent.guest == QUIESCED and not x.now.in_flight("thaw", PARENT):
        with x.step("recovery thaws parent with an error") as s:
            s.raise_epoch(PARENT)
            s.send(thaw(PARENT, parent.freeze, s.parent_epoch, parent.pending, ERROR))


# ---- A: sweep


@daemon_step("recover-sweep")
def sweep(x: Expansion) -> None:
    """Kill the VMs that are no live timeline's, then remove what they left."""
    for slot in SLOTS:
        if slot == PARENT and _revives_old_vm(x):
            parent = x.now.must(PARENT)
            if parent.paused or parent.guest == QUIESCED:
                _revive_parent(x)
                return
        elif _to_be_swept(x, slot):
            with x.step(f"recovery kills {slot}: no live timeline") as s:
                s.kill(slot)
            return
    with x.step("recovery sweeps records, streams and captures") as s:
        s.vm_records &= s.live
        if s.parent is not None and x.without(m.OLD_VM_UNPAUSED_BY_RECOVERY):
            s.vm_records |= {PARENT}
        if not x.without(m.NO_SWEEP):
            s.streams &= s.owners()
            s.checkpoints = x.scenario.without_garbage(s)
        s.step = "recover-ends"


def _revives_old_vm(x: Expansion) -> bool:
    now = x.now
    return bool(now.hibernated) and now.alive(PARENT) and x.without(m.OLD_VM_UNPAUSED_BY_RECOVERY)


def _to_be_swept(x: Expansion, slot: str) -> bool:
    """A VM without a record cannot be found, and so not be killed."""
    now = x.now
    found = slot in now.vm_records or not x.without(m.NO_VM_RECORD)
    return now.vm(slot) is not None and slot not in now.live and found


# ---- B: ends


@daemon_step("recover-ends")
def record_ends(x: Expansion) -> None:
    now = x.now
    for slot in CHILDREN + (REPLACEMENT, PARENT):
        if slot not in now.live or now.alive(slot) or _restore_ignores(x, slot):
            continue
        with x.step(f"recovery records the end of {slot}") as s:
            s.end(slot)
            _record_end(x, s, slot)
        return
    hibernated = now.hibernated
    if hibernated and now.checkpoints[hibernated.operation] == ABSENT:
        with x.step("recovery: the checkpoint of the hibernated timeline is lost: stopped") as s:
            s.loss = "" if hibernated.wake_now else "hibernated timeline"
            s.hibernated = None
            s.streams -= {PARENT}
            s.sandbox = STOPPED
        return
    with x.step("recovery: ends are recorded") as s:
        s.step = "recover-journal"


def _restore_ignores(x: Expansion, slot: str) -> bool:
    record = x.now.op_record
    is_new = record is not None and record.kind == "restore" and slot == REPLACEMENT
    return is_new and x.without(m.DEAD_NEW_VM_IGNORED)


def _record_end(x: Expansion, s: State, slot: str) -> None:
    if slot != s.current:
        s.results |= {s.branch_slot(slot)}
        if slot == CHILD_A and s.loss == "result of child_a":
            s.loss = "result of child_a is lost"
    elif s.hibernated and x.without(m.CAPTURE_LOADED_TWICE):
        s.sandbox = HIBERNATED
        s.streams |= {PARENT}
    else:
        s.sandbox = STOPPED


# ---- C: by journal


@daemon_step("recover-journal")
def follow_journal(x: Expansion) -> None:
    record = x.now.op_record
    if record is None:
        with x.step("recovery: no op record") as s:
            s.operation = NO_KEY
            if s.alive(PARENT):
                s.raise_epoch(PARENT)
            if s.alive(CHILD_A):
                s.raise_epoch(CHILD_A)
            s.target = PARENT if PARENT in s.live else CHILD_A
            s.step = "recover-settle"
    elif record.kind == "branch":
        with x.step("recovery: an open branch") as s:
            s.operation = record.operation
            s.target = PARENT
            s.step = "recover-settle"
    else:
        with x.step("recovery: an open restore") as s:
            s.daemon = UP
            s.operation = record.operation
            s.notes = EMPTY
            s.step = "restore-kill-old"
            if REPLACEMENT not in s.live:
                s.op_record = None
                s.become_idle()


@daemon_step("recover-settle")
def settle_survivors(x: Expansion) -> None:
    """Settle the parent, then child A; then the daemon is up."""
    target = x.now.target
    if target not in x.now.live:
        with x.step(f"recovery: nothing to settle in {target}") as s:
            _survivor_done(x, s)
    elif not x.now.alive(target):
        with x.step(f"recovery: {target} died") as s:
            s.step = "recover-ends"
    elif target == CHILD_A:
        key = x.now.must(CHILD_A).pending
        settle(x, NO_KEY if key == CHILD_FINISH else key, ERROR, lambda s: _survivor_done(x, s))
    else:
        _settle_parent(x)


def _survivor_done(x: Expansion, s: State) -> None:
    if x.now.target == PARENT and not s.op_record and CHILD_A in s.live:
        s.target = CHILD_A
        return
    s.daemon = UP
    s.notes = EMPTY
    s.target = PARENT
    if s.op_record:
        s.step = "branch-forward"
    else:
        s.become_idle()
        s.checkpoints = x.scenario.without_garbage(s)


def _settle_parent(x: Expansion) -> None:
    parent = x.now.must(PARENT)
    key = parent.pending
    if parent.runs and x.without(m.RUNNING_GUEST_LEFT_ALONE):
        _leave_alone(x, key)
    elif parent.runs and key != NO_KEY and x.without(m.CALL_RUN_AGAIN):
        _run_again(x, key)
    elif _durability_is_due(x, key):
        with x.step(f"recovery makes the checkpoint of call {key} durable") as s:
            s.set_checkpoint(key, DURABLE)
    else:
        settle(x, key, _recorded_outcome(x, key), lambda s: _survivor_done(x, s))


def _durability_is_due(x: Expansion, key: int) -> bool:
    if x.scenario.kind(key) != SNAPSHOT_DURABLE or x.without(m.FSYNC_NOT_REPEATED):
        return False
    return x.now.checkpoints[key] == PUBLISHED


def _recorded_outcome(x: Expansion, key: int) -> str:
    """What journal and manifests say of a pending call of the parent."""
    if key == NO_KEY:
        return ERROR
    record = x.now.op_record
    if record and record.operation == key:
        return OK
    if x.scenario.kind(key) in SNAPSHOTS_BY_GUEST and x.now.checkpoints[key] >= PUBLISHED:
        return OK
    return ERROR


def _leave_alone(x: Expansion, key: int) -> None:
    """Mutant: a guest that runs is not settled."""
    with x.step("recovery leaves the running guest alone") as s:
        _survivor_done(x, s)
        if key != NO_KEY and not s.op_record:
            s.notes = frozenset([gave_up(key)])


def _run_again(x: Expansion, key: int) -> None:
    """Mutant: the pending call is taken as a new one."""
    if x.now.must(PARENT).guest == RUNNING and x.now.must(PARENT).epoch != x.now.parent_epoch and not x.now.op_record:
        settle(x, NO_KEY, ERROR, lambda s: _survivor_done(x, s))
        return
    with x.step(f"recovery takes call {key} again") as s:
        s.daemon = UP
        s.become_idle()
        s.op_record = None

"""Branch of two, in one wave or two, here or at a checkpoint (section 7)."""
from __future__ import annotations

from .. import mutants as m
from ..expansion import Expansion, daemon_step
from ..scenario import BRANCH_MIN_OK, BRANCH_WAVES, OPERATOR_BRANCH_AT
from ..state import (
    CHILD_A,
    CHILD_B,
    CHILDREN,
    EMPTY,
    ERROR,
    OK,
    PARENT,
    QUIESCED,
    RUNNING,
    SENT_OUTCOME,
    STOPPED,
    Capture,
    OpRecord,
    State,
    done,
    failed,
    outcome,
    outcome_ack,
    sent,
    thaw,
    thawed,
)
from .checkpoint import answer_parent
from .finish import record_finish
from .journal import commit


def _first_wave(x: Expansion) -> tuple[str, ...]:
    return (CHILD_A,) if x.kind == BRANCH_WAVES else CHILDREN


# ---- before the commit


@daemon_step("branch-records", needs_target=True)
def write_records(x: Expansion) -> None:
    with x.step("daemon writes the vm and stream records of the wave") as s:
        wave = frozenset(_first_wave(x))
        s.streams |= wave
        if not x.without(m.NO_VM_RECORD):
            s.vm_records |= wave
        s.notes = EMPTY
        s.step = "branch-load"


@daemon_step("branch-load", needs_target=True)
def load_wave(x: Expansion) -> None:
    wave = _first_wave(x)
    left = [slot for slot in wave if failed(slot) not in x.now.notes]
    if len(left) < (1 if x.kind == BRANCH_MIN_OK else len(wave)):
        with x.step("daemon: fewer than min_ok children") as s:
            s.step = "branch-undo"
        return
    if _load_next(x, left) or _notice_death(x, left):
        return
    with x.step(f"{' and '.join(left)} said hello, frozen") as s:
        s.step = "branch-commit"
    x.drop_messages()


def _load_next(x: Expansion, slots: list[str]) -> bool:
    for slot in slots:
        if x.now.vm(slot) is not None:
            continue
        with x.step(f"daemon starts and loads {slot}") as s:
            assert s.capture is not None
            s.load(slot, s.capture)
        if x.may("no_space"):
            with x.fault("no_space", f"load of {slot} fails") as s:
                s.note(failed(slot))
                s.vm_records -= {slot}
                s.streams -= {slot}
        return True
    return False


def _notice_death(x: Expansion, slots: list[str]) -> bool:
    for slot in slots:
        if not x.now.alive(slot):
            with x.step(f"daemon notices that {slot} died, removes its records") as s:
                s.remove(slot)
                s.note(failed(slot))
            return True
    return False


@daemon_step("branch-undo", needs_target=True)
def undo(x: Expansion) -> None:
    """Too few children: kill the wave, remove its traces, answer the parent."""
    now = x.now
    for slot in CHILDREN:
        if now.vm(slot) is not None:
            with x.step(f"daemon kills {slot}") as s:
                s.kill(slot)
            return
    clean = x.scenario.without_garbage(now)
    if now.vm_records - now.live or now.streams - now.owners() or clean != now.checkpoints:
        with x.step("daemon removes the children's records and the capture") as s:
            s.vm_records &= s.live
            s.streams &= s.live
            s.checkpoints = clean
    elif x.kind == OPERATOR_BRANCH_AT:
        with x.step("the operator gets BranchFailed") as s:
            s.become_idle()
    elif x.without(m.PARENT_ANSWERED_AT_THAW):
        with x.step("the parent was answered already") as s:
            s.become_idle()
    else:
        answer_parent(x, ERROR)


# ---- the commit


@daemon_step("branch-commit")
def commit_branch(x: Expansion) -> None:
    commit(x, "branch", lambda s: _write_branch(x, s), "branch-forward", "branch-undo")


def _write_branch(x: Expansion, s: State) -> None:
    assert s.capture is not None
    wave = frozenset(_first_wave(x))
    lost = frozenset(slot for slot in wave if failed(slot) in s.notes)
    if not x.without(m.FAILED_CHILDREN_FORGOTTEN):
        s.results |= lost
    s.op_record = OpRecord(
        kind="branch",
        operation=s.operation,
        freeze=s.capture.freeze,
        payload=not x.without(m.PAYLOAD_NOT_RECORDED),
        caller=s.operation if x.without(m.COPY_ANSWERED_UNDER_PARENTS_KEY) else s.capture.pending,
        waiting=x.kind == BRANCH_WAVES,
    )
    s.live |= wave - lost
    s.vm_records |= wave - lost
    if s.operation in s.committed:
        s.double_use = "branch committed twice"
    s.committed |= {s.operation}


# ---- after the commit


def _record(x: Expansion) -> OpRecord:
    record = x.now.op_record
    assert record is not None
    return record


@daemon_step("branch-forward")
def go_forward(x: Expansion) -> None:
    """Thaw the children and answer the parent, in any order."""
    now, record = x.now, _record(x)
    record_finish(x)
    if record.waiting:
        _second_wave(x, record)
    for slot in CHILDREN:
        if done(slot) not in now.notes and not (slot == CHILD_B and record.waiting):
            _forward_child(x, record, slot)
    if done(PARENT) not in now.notes:
        if x.scenario.kind(record.operation) == OPERATOR_BRANCH_AT:
            with x.step("the operator is told") as s:
                s.note(done(PARENT))
            return
        _answer_parent_once_due(x, record)
    _close_record(x)
    acks = [thawed(slot, record.freeze) for slot in CHILDREN]
    x.drop_messages(acks + [outcome_ack(PARENT, record.operation)])


def _forward_child(x: Expansion, record: OpRecord, slot: str) -> None:
    now = x.now
    if slot == CHILD_A and now.loss == "result of child_a":
        return
    if slot not in now.live:
        with x.step(f"{slot} has a result already") as s:
            s.note(done(slot))
    elif not now.alive(slot):
        if not x.without(m.PARENT_WAITS_FOR_CHILDREN):
            with x.step(f"daemon records the result of {slot}: died") as s:
                s.end(slot)
                s.results |= {slot}
                s.note(done(slot))
    elif thawed(slot, record.freeze) in now.to_host:
        with x.step(f"daemon reads thawed of {slot}") as s:
            s.to_host -= {thawed(slot, record.freeze)}
            s.note(done(slot))
    elif not now.in_flight("thaw", slot):
        _thaw_child(x, record, slot)


def _thaw_child(x: Expansion, record: OpRecord, slot: str) -> None:
    if x.without(m.RECORD_CLOSED_WHEN_SENT) and sent(slot) in x.now.notes:
        with x.step(f"daemon counts {slot} as thawed") as s:
            s.note(done(slot))
        return
    with x.step(f"daemon sends thaw(ok) to {slot}") as s:
        s.note(sent(slot))
        payload = record.payload or s.payload_known
        s.send(thaw(slot, record.freeze, 1, record.caller, OK, payload))


def _answer_parent_once_due(x: Expansion, record: OpRecord) -> None:
    now = x.now
    waits = x.without(m.PARENT_WAITS_FOR_CHILDREN) and not {done(c) for c in CHILDREN} <= now.notes
    if waits:
        return
    ack = outcome_ack(PARENT, record.operation)
    if not now.alive(PARENT):
        with x.step("daemon records the end of the parent") as s:
            s.note(done(PARENT))
            if PARENT in s.live:
                s.end(PARENT)
                s.sandbox = STOPPED
    elif ack in now.to_host:
        with x.step("daemon reads outcome-ack") as s:
            s.to_host -= {ack}
            s.note(done(PARENT))
    elif x.without(m.PARENT_ANSWERED_AT_THAW):
        with x.step("the parent was answered already") as s:
            s.note(done(PARENT))
    elif not now.in_flight("outcome", PARENT):
        _send_parent_outcome(x, record)


def _send_parent_outcome(x: Expansion, record: OpRecord) -> None:
    if x.without(m.NOT_RESENT) and SENT_OUTCOME in x.now.notes:
        with x.step("daemon awaits no outcome-ack") as s:
            s.note(done(PARENT))
    elif x.now.must(PARENT).guest == RUNNING:
        with x.step("daemon sends outcome(ok) to parent") as s:
            s.note(SENT_OUTCOME)
            s.send(outcome(PARENT, record.operation, OK))


def _close_record(x: Expansion) -> None:
    notes = x.now.notes
    everyone = {done(CHILD_A), done(CHILD_B), done(PARENT)}
    all_sent = SENT_OUTCOME in notes and all(sent(c) in notes or done(c) in notes for c in CHILDREN)
    if everyone <= notes or (all_sent and x.without(m.RECORD_CLOSED_WHEN_SENT)):
        with x.step("daemon removes the op record") as s:
            s.op_record = None
            s.become_idle()


# ---- the second wave


def _second_wave(x: Expansion, record: OpRecord) -> None:
    """max_live=1: child B is loaded once child A is settled."""
    now = x.now
    if not now.alive(PARENT):
        with x.step("child_b is not started: its parent ended") as s:
            _give_up_child_b(s, record)
    if done(CHILD_A) not in now.notes:
        return
    if CHILD_B not in now.vm_records:
        with x.step("daemon writes the vm and stream records of child_b") as s:
            s.vm_records |= {CHILD_B}
            s.streams |= {CHILD_B}
    elif now.child_b is None:
        _load_child_b(x, record)
    elif now.child_b.alive:
        with x.step("COMMIT wave: child_b said hello, its timeline is live") as s:
            s.live |= {CHILD_B}
            s.op_record = record._replace(waiting=False)
    else:
        with x.step("child_b died: typed result") as s:
            _give_up_child_b(s, record)


def _load_child_b(x: Expansion, record: OpRecord) -> None:
    with x.step("daemon starts and loads child_b from the published capture") as s:
        s.load(CHILD_B, Capture(QUIESCED, record.freeze, record.caller))
    if x.may("no_space"):
        with x.fault("no_space", "load of child_b fails: typed result") as s:
            _give_up_child_b(s, record)


def _give_up_child_b(s: State, record: OpRecord) -> None:
    s.remove(CHILD_B)
    s.results |= {CHILD_B}
    s.op_record = record._replace(waiting=False)

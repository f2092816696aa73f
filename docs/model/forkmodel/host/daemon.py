"""The daemon between operations: it takes calls and watches its VMs."""
from __future__ import annotations

from ..expansion import Expansion, daemon_step
from ..scenario import BRANCHES_AT, LLM_QUERY, OPERATOR_KINDS, Scenario
from ..state import (
    C0,
    CHILD_A,
    CHILD_KEEP,
    CHILD_RESTORE,
    EMPTY,
    HIBERNATED,
    NO_KEY,
    PARENT,
    RUNNING,
    SANDBOX_RUNNING,
    SLOTS,
    STOPPED,
    State,
    gave_up,
)
from .finish import record_finish


def start_operation(scenario: Scenario, s: State, key: int, target: str = PARENT) -> None:
    """Choose the first step of the operation with this key."""
    s.operation = key
    s.target = target
    s.payload_known = True
    s.notes = EMPTY
    kind = scenario.kind(key)
    if kind in BRANCHES_AT:
        s.capture = C0
        s.step = "branch-records"
    elif kind == LLM_QUERY:
        s.step = "outcome-ok"
    else:
        s.last_freeze += 1
        s.freeze = s.last_freeze
        s.step = "prepare"


@daemon_step("idle")
def idle(x: Expansion) -> None:
    record_finish(x)
    if x.now.sandbox == SANDBOX_RUNNING:
        _watch_current(x)
        _take_operator_request(x)
        _take_parent_call(x)
    _wake(x)
    _take_child_call(x)
    _report_dead_children(x)
    x.drop_messages()


def _watch_current(x: Expansion) -> None:
    current = x.now.current
    if not x.now.alive(current):
        with x.step(f"daemon reports the sandbox stopped: the VM of {current} died") as s:
            s.end(current)
            s.sandbox = STOPPED


def _parent_is_current_and_runs(x: Expansion) -> bool:
    parent = x.now.parent
    return x.now.current == PARENT and parent is not None and parent.alive and parent.guest == RUNNING


def _take_operator_request(x: Expansion) -> None:
    now, operations = x.now, x.scenario.operations
    if not _parent_is_current_and_runs(x) or now.op_record or now.next_operation >= len(operations):
        return
    kind = operations[now.next_operation]
    if kind in OPERATOR_KINDS:
        with x.step(f"operator asks for {kind}") as s:
            s.next_operation += 1
            start_operation(x.scenario, s, now.next_operation)


def _take_parent_call(x: Expansion) -> None:
    if not _parent_is_current_and_runs(x):
        return
    key = x.now.must(PARENT).pending
    if key != NO_KEY and gave_up(key) not in x.now.notes:
        with x.step(f"daemon takes call {key}") as s:
            start_operation(x.scenario, s, key)


def _wake(x: Expansion) -> None:
    hibernated = x.now.hibernated
    if hibernated and x.now.sandbox == HIBERNATED:
        with x.step("daemon wakes the hibernated timeline") as s:
            s.operation = hibernated.operation
            s.freeze = hibernated.freeze
            s.capture = hibernated.capture
            s.target = PARENT
            s.payload_known = True
            s.notes = EMPTY
            s.step = "move-record"


def _take_child_call(x: Expansion) -> None:
    now = x.now
    if CHILD_A not in now.live or not now.alive(CHILD_A) or now.op_record:
        return
    child = now.must(CHILD_A)
    if child.guest == RUNNING and child.pending in (CHILD_KEEP, CHILD_RESTORE):
        with x.step(f"daemon takes {x.scenario.kind(child.pending)} of child_a") as s:
            start_operation(x.scenario, s, child.pending, CHILD_A)


def _report_dead_children(x: Expansion) -> None:
    now = x.now
    for slot in SLOTS:
        if slot not in now.live or slot == now.current or now.alive(slot):
            continue
        if slot == CHILD_A and now.loss == "result of child_a":
            continue
        with x.step(f"daemon records that {slot} died") as s:
            s.end(slot)
            s.results |= {s.branch_slot(slot)}


@daemon_step("target-died")
def clean_up_after_target(x: Expansion) -> None:
    """The target's VM died before a commit: undo, and stop the timeline."""
    now = x.now
    for slot in SLOTS:
        if slot not in now.live and now.vm(slot) is not None:
            with x.step(f"daemon kills the uncommitted VM of {slot}") as s:
                s.kill(slot)
            return
    with x.step(f"daemon stops the timeline of {now.target}, its records are removed") as s:
        s.kill(now.target)
        s.live -= {now.target}
        s.vm_records &= s.live
        s.streams &= s.live
        if now.target == PARENT:
            s.sandbox = STOPPED
        else:
            s.results |= {now.target}
        s.become_idle()
        s.checkpoints = x.scenario.without_garbage(s)


@daemon_step("stuck")
def stuck(x: Expansion) -> None:
    """Where a mutant has no way on."""

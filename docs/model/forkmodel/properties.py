"""What must hold: in every state, and where nothing is left to do.

The numbers in the reports:

    I1  each call gets one outcome, none is lost, none that is not its own
    I2  the old and the new timeline of a restore never both run, nor neither
    I3  no user code runs between a capture and the identity fix
    I4  what a commit has replaced never runs again
    I5  nothing is left behind: VMs, records, captures
    I6  a branch commits once; slots never lose their child or result
    I7  an id or a result names only what is published, durable where asked
    I8  a running guest is not left frozen, and its epoch is the newest
    I9  at most one incarnation runs; none while hibernated; no capture is
        loaded again under its id after its incarnation may have run
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from . import mutants as m
from .scenario import (
    BRANCHES,
    LINE_RESTORES,
    LLM_QUERY,
    REBASE,
    RESTORES,
    SNAPSHOT,
    SNAPSHOT_DURABLE,
    Scenario,
)
from .state import (
    CHILD_A,
    CHILD_B,
    CHILD_RESTORE,
    CHILDREN,
    DAEMON_KILLS,
    DURABLE,
    ERROR,
    FINISHED_A,
    HIBERNATED,
    IDLE,
    INTERRUPTED,
    NO_KEY,
    OK,
    OLD_CALLER,
    PARENT,
    PUBLISHED,
    REPLACEMENT,
    SANDBOX_RUNNING,
    SLOTS,
    SUCCESSOR,
    TEMPORARY,
    UP,
    State,
)

Violation = Optional[str]  # noqa: UP045 - evaluated, and for pypy3 of Python 3.9
Check = Callable[[Scenario, State], Violation]

# No run of the protocol comes near this epoch.
EPOCH_LIMIT = 30

# ---- in every state


def _each_vm(scenario: Scenario, s: State) -> Violation:
    for slot in SLOTS:
        vm = s.vm(slot)
        if vm is None:
            continue
        if vm.runs and not vm.identity:
            return f"I3 {slot} runs user code before the identity fix"
        if vm.outcomes > 1:
            return f"I1 second outcome in {slot}"
        if slot not in (PARENT, SUCCESSOR) and vm.runs and not vm.payload:
            return f"I1 {slot} got an outcome without its payload"
    return None


def _restore_is_exclusive(scenario: Scenario, s: State) -> Violation:
    child_restored = s.slot_holder == REPLACEMENT
    if not child_restored and s.runs(REPLACEMENT) and s.runs(PARENT):
        return "I2 old and new timeline both run"
    if s.current == REPLACEMENT and s.runs(PARENT):
        return "I2/I4 a replaced timeline runs after the commit"
    if child_restored and s.runs(CHILD_A):
        return "I2/I4 a replaced child runs after the commit"
    return None


def _one_incarnation(scenario: Scenario, s: State) -> Violation:
    both = s.runs(SUCCESSOR) and s.runs(PARENT)
    stopped = s.hibernated and m.CAPTURE_LOADED_TWICE not in scenario.mutants
    if both or (stopped and (s.runs(PARENT) or s.runs(SUCCESSOR))):
        return "I9 an incarnation runs though the timeline is hibernated, or two run"
    return None


def _bystanders(scenario: Scenario, s: State) -> Violation:
    """Only a lost daemon may fail a call that takes part in no operation."""
    parent = s.parent
    if parent is None or parent.last_outcome != ERROR or scenario.kind(parent.last_key) != LLM_QUERY:
        return None
    if s.budget.kill_daemon == DAEMON_KILLS and not s.host_crashed:
        return "I1 a call is failed by an operation that it has no part in"
    return None


def _move(scenario: Scenario, s: State) -> Violation:
    if s.parent_epoch > EPOCH_LIMIT:
        return "LIVELOCK thaw is re-sent without end"
    if s.double_use == "two incarnations":
        return "I9 a second incarnation is committed while the VM of the first exists"
    if s.double_use == "capture loaded again":
        return "I9 a capture whose incarnation has run is loaded again for the same timeline"
    if s.parent is None:
        return None
    if s.parent.runs and s.incarnation > 1 and s.parent.epoch <= s.epoch_before_move:
        return "I8 an incarnation runs at an epoch of the one before"
    if s.parent.last_outcome == INTERRUPTED:
        return "I1 a pending call is interrupted by a move"
    return None


def _hibernation(scenario: Scenario, s: State) -> Violation:
    hibernated = s.hibernated
    if hibernated and not s.host_crashed:
        needed = PUBLISHED if hibernated.wake_now else DURABLE
        if s.checkpoints[hibernated.operation] < needed:
            return f"I7 hibernated without a {'published' if hibernated.wake_now else 'durable'} checkpoint"
    if s.loss == "hibernated timeline":
        return "I7 a hibernated timeline did not survive a host crash"
    return None


def _slots(scenario: Scenario, s: State) -> Violation:
    child_restored = CHILD_RESTORE in s.committed
    if child_restored and s.current == PARENT and REPLACEMENT in s.live and s.slot_holder != REPLACEMENT:
        return "I6 the slot of the replaced child has no timeline"
    if child_restored and s.current == REPLACEMENT:
        return "I6 a restore by a child replaced the sandbox's line"
    if s.kept and s.checkpoints[-1] < PUBLISHED and not s.host_crashed:
        return "I7 a result names a checkpoint that is not published"
    return None


def _branch_commits(scenario: Scenario, s: State) -> Violation:
    if s.runs(CHILD_A) or s.runs(CHILD_B):
        if not any(scenario.kind(key) in BRANCHES for key in s.committed):
            return "I6 a child runs without a commit"
    return None


def _what_the_parent_was_told(scenario: Scenario, s: State) -> Violation:
    parent = s.parent
    if parent is None or not parent.outcomes or parent.pending != NO_KEY or parent.last_key >= OLD_CALLER:
        return None
    key, told = parent.last_key, parent.last_outcome
    kind = scenario.kind(key)
    if kind == SNAPSHOT_DURABLE and told == OK and s.checkpoints[key] != DURABLE:
        return "I7 a durable checkpoint is told before it is durable"
    if kind in (SNAPSHOT, REBASE) and told == OK and s.checkpoints[key] != PUBLISHED and not s.host_crashed:
        return "I7 the caller holds the id of a checkpoint that is not published"
    if kind in BRANCHES and told == OK and key not in s.committed:
        return "I6 the parent is told ok before the commit"
    if kind in BRANCHES and told == ERROR and key in s.committed:
        return "I6 the parent is told an error though children are committed"
    return None


def _kept_present(scenario: Scenario, s: State) -> Violation:
    if s.host_crashed:
        return None
    for key in s.committed:
        if scenario.kind(key) in RESTORES:
            old = s.child_a if key == CHILD_RESTORE else s.parent
            if old is None and s.checkpoints[scenario.checkpoint_index(key)] != PUBLISHED:
                return "I7 the old timeline is gone and the kept present not published"
    return None


def _ghosts(scenario: Scenario, s: State) -> Violation:
    if s.loss == "result of child_a is lost":
        return "I1/I5 a finished child is reported dead, its result is lost"
    if s.double_use == "branch committed twice":
        return "I6 a branch is committed twice"
    return None


IN_EVERY_STATE: tuple[Check, ...] = (
    _each_vm,
    _restore_is_exclusive,
    _one_incarnation,
    _bystanders,
    _move,
    _hibernation,
    _slots,
    _branch_commits,
    _what_the_parent_was_told,
    _kept_present,
    _ghosts,
)

# ---- where nothing is left to do


def _daemon_is_up(scenario: Scenario, s: State) -> Violation:
    return None if s.daemon == UP else f"stuck in recovery at {s.step}"


def _current_timeline_goes_on(scenario: Scenario, s: State) -> Violation:
    if s.sandbox != SANDBOX_RUNNING:
        return None
    vm = s.vm(s.current)
    if vm is None or not vm.alive:
        return "I2 no timeline is left and no error is reported"
    if not vm.runs:
        return "I8 the current timeline is frozen or paused for ever"
    if vm.pending != NO_KEY:
        return "I1 a pending call is never answered"
    if s.current == PARENT and vm.epoch != s.parent_epoch:
        return "I8 the workspace stream of the parent stays fenced off"
    return None


def _nothing_is_open(scenario: Scenario, s: State) -> Violation:
    if s.op_record:
        return "I5 an op record is never removed"
    for slot in SLOTS:
        violation = _slot_is_tidy(s, slot)
        if violation:
            return violation
    return None


def _slot_is_tidy(s: State, slot: str) -> Violation:
    vm = s.vm(slot)
    if vm is None:
        return f"I5 orphan VM record of {slot}" if slot in s.vm_records else None
    if slot not in s.live:
        return f"I5 orphan VM {slot}"
    if slot not in s.vm_records:
        return f"I5 VM {slot} without a record"
    if slot in (CHILD_A, CHILD_B, REPLACEMENT) and not vm.runs:
        return "I6 a committed child is never thawed"
    if vm.pending != NO_KEY:
        return f"I1 a pending call in {slot} is never answered"
    return None


def _nothing_is_left_over(scenario: Scenario, s: State) -> Violation:
    if s.sandbox == HIBERNATED:
        return "I8 hibernated and nothing can wake it"
    if PARENT in s.results:
        return "I6 the parent has a result in a branch slot"
    if s.streams - s.live:
        return "I5 orphan stream record"
    for index, stage in enumerate(s.checkpoints):
        if stage and scenario.unreferenced(s, index):
            return "I5 a capture of class internal is left to which nothing refers"
    if TEMPORARY in s.checkpoints:
        return "I5 a half-made checkpoint is left"
    return None


def _children_are_accounted_for(scenario: Scenario, s: State) -> Violation:
    kinds = [scenario.kind(key) for key in s.committed]
    if any(kind in LINE_RESTORES for kind in kinds):
        return "I5 children of the replaced timeline live on" if s.live - {REPLACEMENT} else None
    if not any(kind in BRANCHES for kind in kinds):
        return None
    for slot in CHILDREN:
        if slot == CHILD_A and s.slot_holder == REPLACEMENT and REPLACEMENT in s.live:
            continue
        has_result = slot in s.results or (slot == CHILD_A and FINISHED_A in s.results)
        if slot not in s.live and not has_result:
            return "I6 a child is lost without a result"
    return None


def _daemon_is_idle(scenario: Scenario, s: State) -> Violation:
    return None if s.step == IDLE else f"stuck at {s.step}"


WHEN_QUIESCENT: tuple[Check, ...] = (
    _daemon_is_up,
    _current_timeline_goes_on,
    _nothing_is_open,
    _nothing_is_left_over,
    _children_are_accounted_for,
    _daemon_is_idle,
)


def safety(scenario: Scenario, s: State) -> Violation:
    """The first property that this state breaks."""
    return _first(IN_EVERY_STATE, scenario, s)


def quiescence(scenario: Scenario, s: State) -> Violation:
    """What is wrong with a state in which nothing is left to do."""
    return _first(WHEN_QUIESCENT, scenario, s)


def _first(checks: tuple[Check, ...], scenario: Scenario, s: State) -> Violation:
    for check in checks:
        violation = check(scenario, s)
        if violation:
            return violation
    return None

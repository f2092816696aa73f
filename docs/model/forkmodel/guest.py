"""The guest: what it accepts, and what it does by itself (section 2)."""
from __future__ import annotations

from collections.abc import Callable

from . import mutants as m
from .expansion import Expansion
from .scenario import ADOPT, CHILD_FINISHES, CHILD_KEEPS, CHILD_RESTORES, FINISH_KEEP, OPERATOR_KINDS, RESTORE_BY_CHILD, Scenario
from .state import (
    CHILD_A,
    CHILD_FINISH,
    CHILD_KEEP,
    CHILD_RESTORE,
    DRAINED,
    ERROR,
    INTERRUPTED,
    NO_KEY,
    OLD_CALLER,
    PARENT,
    PENDING,
    PREPARING,
    QUIESCED,
    RUNNING,
    SLOTS,
    UP,
    VM,
    HostMessage,
    State,
    outcome_ack,
    prepare_failed,
    quiesced,
    thawed,
)

# ---- what a guest receives


def receive(scenario: Scenario, s: State, message: HostMessage) -> None:
    """The guest handles one message of the host."""
    _HANDLERS[message.kind](scenario, s, message)


def settle_call(scenario: Scenario, s: State, slot: str, key: int, result: str) -> None:
    """Apply an outcome, if that call is pending: the table judges."""
    if key == NO_KEY:
        return
    vm = s.must(slot)
    if vm.pending == key:
        s.update(slot, pending=NO_KEY, outcomes=vm.outcomes + 1, last_outcome=result)
    elif m.PENDING_TABLE_IGNORED in scenario.mutants and vm.last_outcome != PENDING:
        s.update(slot, outcomes=vm.outcomes + 1, last_outcome=result)


def _on_prepare(scenario: Scenario, s: State, message: HostMessage) -> None:
    vm = s.must(message.to)
    if message.freeze > vm.freeze and vm.guest != QUIESCED:
        s.update(message.to, guest=PREPARING, freeze=message.freeze, freeze_key=message.key)


def _on_abort(scenario: Scenario, s: State, message: HostMessage) -> None:
    slot, vm = message.to, s.must(message.to)
    same = message.freeze == vm.freeze
    any_freeze = m.FREEZE_NOT_COMPARED in scenario.mutants
    if vm.guest in (PREPARING, DRAINED) and (same or any_freeze):
        s.update(slot, guest=RUNNING)
        settle_call(scenario, s, slot, vm.freeze_key, ERROR)
    elif vm.guest == QUIESCED and (any_freeze or (m.ABORT_WHEN_QUIESCED in scenario.mutants and same)):
        s.update(slot, guest=RUNNING)
        settle_call(scenario, s, slot, vm.freeze_key, ERROR)
        s.answer(thawed(slot, message.freeze))


def _on_thaw(scenario: Scenario, s: State, message: HostMessage) -> None:
    slot, vm = message.to, s.must(message.to)
    same = message.freeze == vm.freeze
    if vm.guest == QUIESCED and (same or m.FREEZE_NOT_COMPARED in scenario.mutants):
        _thaw_first(scenario, s, message)
    elif vm.guest == RUNNING and same:
        s.update(slot, epoch=_newer_epoch(scenario, vm, message))
    else:
        return
    if message.outcome:
        settle_call(scenario, s, slot, message.key, message.outcome)
    s.answer(thawed(slot, message.freeze))


def _thaw_first(scenario: Scenario, s: State, message: HostMessage) -> None:
    slot, vm = message.to, s.must(message.to)
    moved = slot == PARENT and s.incarnation > 1
    if moved:
        s.incarnation_ran = True
        if m.MOVE_INTERRUPTS in scenario.mutants and vm.pending not in (NO_KEY, message.key):
            settle_call(scenario, s, slot, vm.pending, INTERRUPTED)
    s.update(
        slot,
        guest=RUNNING,
        identity=vm.identity or message.freeze == vm.freeze,
        epoch=_newer_epoch(scenario, vm, message),
        payload=message.payload or vm.payload,
    )


def _newer_epoch(scenario: Scenario, vm: VM, message: HostMessage) -> int:
    if m.OLDER_EPOCH_TAKEN in scenario.mutants:
        return message.epoch
    return max(message.epoch, vm.epoch)


def _on_outcome(scenario: Scenario, s: State, message: HostMessage) -> None:
    if s.must(message.to).guest == RUNNING:
        settle_call(scenario, s, message.to, message.key, message.outcome)
        s.answer(outcome_ack(message.to, message.key))


def _on_attach(scenario: Scenario, s: State, message: HostMessage) -> None:
    s.update(message.to, epoch=max(s.must(message.to).epoch, message.epoch))


_HANDLERS: dict[str, Callable[[Scenario, State, HostMessage], None]] = {
    "prepare": _on_prepare,
    "abort": _on_abort,
    "thaw": _on_thaw,
    "outcome": _on_outcome,
    "attach": _on_attach,
}

# ---- what guests do


def act(x: Expansion) -> None:
    """Every step of every guest that executes."""
    for slot in SLOTS:
        vm = x.now.vm(slot)
        if vm is None or not vm.alive or vm.paused:
            continue
        if vm.runs and vm.pending == NO_KEY:
            if slot == PARENT:
                _parent_calls(x)
            elif slot == CHILD_A:
                _child_calls(x, vm)
        _receive_any(x, slot)
        if vm.guest in (PREPARING, DRAINED):
            _prepare_goes_on(x, slot, vm)
        if vm.guest == QUIESCED:
            _quiesced_deadline(x, slot, vm)


def _parent_calls(x: Expansion) -> None:
    now, operations = x.now, x.scenario.operations
    number = now.next_operation
    if number >= len(operations):
        return
    kind = operations[number]
    if kind in OPERATOR_KINDS or (kind == ADOPT and not now.kept):
        return
    with x.step(f"parent calls {kind} (call {number})") as s:
        s.update(PARENT, pending=number, outcomes=0, last_outcome=PENDING, last_key=number)
        s.next_operation += 1


def _child_calls(x: Expansion, vm: VM) -> None:
    options = x.scenario.options
    if CHILD_FINISHES in options:
        with x.step("child_a calls finish") as s:
            s.update(CHILD_A, pending=CHILD_FINISH)
    if vm.last_key in (CHILD_KEEP, CHILD_RESTORE):
        return
    for option, kind, key in ((CHILD_KEEPS, FINISH_KEEP, CHILD_KEEP), (CHILD_RESTORES, RESTORE_BY_CHILD, CHILD_RESTORE)):
        if option in options:
            with x.step(f"child_a calls {kind}") as s:
                s.update(CHILD_A, pending=key, outcomes=0, last_outcome=PENDING, last_key=key)


def _receive_any(x: Expansion, slot: str) -> None:
    for message in sorted(x.now.to_guests):
        if message.to != slot:
            continue
        with x.step(f"{slot} receives {message}") as s:
            s.to_guests -= {message}
            receive(x.scenario, s, message)
        if x.may("duplicate"):
            with x.fault("duplicate", f"{slot} receives {message}, a copy stays in flight") as s:
                receive(x.scenario, s, message)


def _prepare_goes_on(x: Expansion, slot: str, vm: VM) -> None:
    now = x.now
    if vm.guest == PREPARING:
        awaited = now.daemon == UP and now.step == "await-quiesced" and now.freeze == vm.freeze
        if awaited or x.without(m.NO_POSITION_ACK):
            with x.step(f"{slot} is frozen and drained, the host acknowledges the position") as s:
                s.update(slot, guest=DRAINED)
    with x.step(f"{slot} misses a deadline of prepare and aborts") as s:
        s.update(slot, guest=RUNNING)
        settle_call(x.scenario, s, slot, vm.freeze_key, ERROR)
        if now.daemon == UP:
            s.answer(prepare_failed(slot, vm.freeze))
    if vm.guest == DRAINED:
        with x.step(f"{slot} is quiesced") as s:
            s.update(slot, guest=QUIESCED)
            if now.daemon == UP:
                s.answer(quiesced(slot, vm.freeze))


def _quiesced_deadline(x: Expansion, slot: str, vm: VM) -> None:
    if x.without(m.DEADLINE_WHEN_QUIESCED) and quiesced(slot, vm.freeze) in x.now.to_host:
        with x.step(f"{slot}: a deadline thaws the quiesced guest") as s:
            s.update(slot, guest=RUNNING)
            settle_call(x.scenario, s, slot, vm.freeze_key, ERROR)


def restart_worker(x: Expansion, s: State, slot: str) -> None:
    """A new worker: its pending table is empty, what PID 1 keeps is not."""
    vm = s.must(slot)
    if x.without(m.START_NUMBER_REUSED) and slot == PARENT and 0 <= vm.pending < OLD_CALLER:
        s.next_operation = vm.pending
    freeze = 0 if x.without(m.NEWEST_FREEZE_FORGOTTEN) else vm.freeze
    s.update(
        slot,
        guest=RUNNING,
        pending=NO_KEY,
        outcomes=0,
        last_outcome=PENDING,
        last_key=NO_KEY,
        freeze_key=NO_KEY,
        freeze=freeze,
    )

"""Settle: after a failed or unclear prepare, and by recovery (section 3)."""
from __future__ import annotations

from collections.abc import Callable

from .. import mutants as m
from ..expansion import Expansion, daemon_step
from ..state import DRAINED, ERROR, NO_KEY, PENDING, PREPARING, RUNNING, VM, State, abort, attach, outcome, thaw


def settle(x: Expansion, key: int, result: str, done: Callable[[State], None]) -> None:
    """One round: by what hello says, until the target runs and key is answered."""
    target = x.now.target
    vm = x.now.must(target)
    if vm.paused:
        with x.step(f"daemon un-pauses {target}") as s:
            s.update(target, paused=False)
    elif vm.guest == RUNNING:
        _settle_running(x, vm, key, result, done)
    elif vm.guest in (PREPARING, DRAINED):
        if not x.now.in_flight("abort", target):
            with x.step(f"hello: preparing -> abort(freeze {vm.freeze})") as s:
                s.send(abort(target, vm.freeze))
    elif not x.now.thaw_in_flight(target, vm.freeze):
        with x.step(f"hello: quiesced -> thaw({result or 'pending'})") as s:
            s.raise_epoch(target)
            named = vm.pending if key == NO_KEY else key
            s.send(thaw(target, vm.freeze, s.epoch(target), named, result))


def _settle_running(x: Expansion, vm: VM, key: int, result: str, done: Callable[[State], None]) -> None:
    target = x.now.target
    epoch = x.now.epoch(target)
    if key != NO_KEY and vm.pending == key:
        if not x.now.in_flight("outcome", target):
            with x.step(f"hello: running, call pending -> outcome({result})") as s:
                s.send(outcome(target, key, result))
    elif vm.epoch != epoch:
        if not x.now.in_flight("attach", target):
            with x.step(f"hello: running -> attach(epoch {epoch})") as s:
                s.send(attach(target, epoch))
    else:
        with x.step("hello: running, nothing pending: settled") as s:
            done(s)


@daemon_step("settle", needs_target=True)
def settle_prepare(x: Expansion) -> None:
    key = x.scenario.caller(x.now)
    failed_call = key != NO_KEY or x.without(m.BYSTANDERS_FAILED)
    settle(x, key, ERROR if failed_call else PENDING, State.become_idle)
    x.drop_messages()

"""The faults that come from outside: kills, crashes, lost messages.

Faults inside a step of the daemon (no space, an unclear journal write) stand
with that step, duplicated messages with the guest that receives them.
"""
from __future__ import annotations

from .expansion import Expansion
from .guest import restart_worker
from .scenario import PER_USER, Scenario
from .state import (
    ABSENT,
    DOWN,
    DRAINED,
    EMPTY,
    NO_STEP,
    PARENT,
    PREPARING,
    PUBLISHED,
    QUIESCED,
    RUNNING,
    SLOTS,
    State,
)


def inject(x: Expansion) -> None:
    """Every outside fault that the budget still allows."""
    if x.now.budget.total <= 0:
        return
    _kill_daemon(x)
    _crash_host(x)
    for slot in SLOTS:
        if x.now.alive(slot):
            _kill_vm(x, slot)
            _kill_worker(x, slot)
    _lose_message(x)


def _kill_daemon(x: Expansion) -> None:
    if x.now.daemon != DOWN and x.may("kill_daemon"):
        with x.fault("kill_daemon", f"kill daemon at {x.now.step}") as s:
            _forget_memory(x.scenario, s)


def _forget_memory(scenario: Scenario, s: State) -> None:
    """The daemon's process ends; in per-user mode its VMs do too."""
    s.become_idle()
    s.daemon = DOWN
    s.step = NO_STEP
    s.journal_resumes_at = None
    s.to_host = EMPTY
    if scenario.mode == PER_USER:
        _kill_all_vms(s)


def _kill_all_vms(s: State) -> None:
    s.to_guests = EMPTY
    for slot in SLOTS:
        if s.vm(slot) is not None:
            s.update(slot, alive=False)


def _crash_host(x: Expansion) -> None:
    if not x.may("host_crash") or not (x.now.alive(PARENT) or x.now.hibernated):
        return
    for fate in ("kept", "lost"):
        with x.fault("host_crash", f"host crash, published checkpoints {fate}") as s:
            _forget_memory(x.scenario, s)
            _kill_all_vms(s)
            s.host_crashed = True
            if fate == "lost":
                s.checkpoints = tuple(ABSENT if stage == PUBLISHED else stage for stage in s.checkpoints)


def _kill_vm(x: Expansion, slot: str) -> None:
    if x.may("kill_vm"):
        with x.fault("kill_vm", f"kill VM of {slot}") as s:
            s.update(slot, alive=False)
            s.cut_links(slot)


def _kill_worker(x: Expansion, slot: str) -> None:
    """agentd's worker dies. Frozen, it cannot come back: the host ends the VM."""
    vm = x.now.must(slot)
    if vm.paused or not x.may("worker_death"):
        return
    if vm.guest in (RUNNING, PREPARING):
        with x.fault("worker_death", f"worker of {slot} dies, a new one starts") as s:
            s.cut_links(slot)
            restart_worker(x, s, slot)
    if vm.guest in (PREPARING, DRAINED, QUIESCED):
        with x.fault("worker_death", f"worker of {slot} dies while frozen") as s:
            s.cut_links(slot)
            s.update(slot, alive=False)


def _lose_message(x: Expansion) -> None:
    if not x.may("lose"):
        return
    for message in sorted(x.now.to_guests):
        with x.fault("lose", f"lose {message} to {message.to}") as s:
            s.to_guests -= {message}
    for answer in sorted(x.now.to_host):
        with x.fault("lose", f"lose {answer}") as s:
            s.to_host -= {answer}

"""How the steps of the model are written.

An Expansion collects the successors of one state. A step is a `with` block
that changes a fresh copy of it:

    with x.step(f"daemon pauses {x.now.target}") as s:
        s.update(s.target, paused=True)

    if x.may("no_space"):
        with x.fault("no_space", "capture: no space") as s:
            s.step = "rollback"
"""
from __future__ import annotations

from collections.abc import Callable, Collection
from types import TracebackType
from typing import NamedTuple

from .scenario import OPERATOR_BRANCH_AT, Scenario
from .state import GuestMessage, Packed, State, pack


class Successor(NamedTuple):
    """One way on from a state."""

    label: str
    is_fault: bool
    packed: Packed


class Expansion:
    """The successors of one state, as far as they have been written."""

    __slots__ = ("scenario", "now", "successors", "_packed", "_copy", "_label", "_is_fault")

    def __init__(self, scenario: Scenario, packed: Packed, now: State) -> None:
        self.scenario = scenario
        self.now = now  # the state itself: read only
        self.successors: list[Successor] = []
        self._packed = packed

    # ---- steps

    def step(self, label: str) -> Expansion:
        self._label = label
        self._is_fault = False
        self._copy = State(*self._packed)
        return self

    def may(self, fault: str) -> bool:
        """Faults of this kind may still happen."""
        budget = self.now.budget
        return budget.total > 0 and getattr(budget, fault) > 0

    def fault(self, fault: str, label: str) -> Expansion:
        self.step("FAULT " + label)
        self._is_fault = True
        budget = self.now.budget
        left = {"total": budget.total - 1, fault: getattr(budget, fault) - 1}
        self._copy.budget = budget._replace(**left)
        return self

    def __enter__(self) -> State:
        return self._copy

    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.successors.append(Successor(self._label, self._is_fault, pack(self._copy)))

    # ---- questions

    def without(self, mutant: str) -> bool:
        """The run is without the rule that this mutant takes away."""
        return mutant in self.scenario.mutants

    @property
    def kind(self) -> str:
        """The kind of the daemon's present operation."""
        return self.scenario.kind(self.now.operation)

    # ---- steps that many daemon steps share

    def target_died(self) -> bool:
        """Before a commit: go and clean up when the target's VM is dead."""
        target = self.now.target
        if self.now.alive(target) or self.kind == OPERATOR_BRANCH_AT:
            return False
        with self.step(f"daemon notices that {target} died") as s:
            s.step = "target-died"
        return True

    def drop_messages(self, awaited: Collection[GuestMessage] = ()) -> None:
        """Drop one message that nobody waits for."""
        unawaited = [m for m in self.now.to_host if m not in awaited]
        if unawaited:
            message = min(unawaited)
            with self.step(f"daemon drops {message}") as s:
                s.to_host -= {message}


DaemonStep = Callable[[Expansion], None]
DAEMON_STEPS: dict[str, DaemonStep] = {}


def daemon_step(name: str, needs_target: bool = False) -> Callable[[DaemonStep], DaemonStep]:
    """Register what the daemon does at State.step == name.

    With needs_target the step is for as long as the target's VM lives.
    """

    def register(function: DaemonStep) -> DaemonStep:
        def guarded(x: Expansion) -> None:
            if not x.target_died():
                function(x)

        DAEMON_STEPS[name] = guarded if needs_target else function
        return function

    return register

"""The search: every reachable state, breadth first."""
from __future__ import annotations

import time
from array import array
from typing import NamedTuple

from . import faults, guest, host, properties
from .expansion import DAEMON_STEPS, Expansion, Successor
from .host import recovery
from .scenario import Scenario
from .state import DOWN, Packed, State, pack

assert host  # imported for the steps that it registers

NO_WAY_BACK = "LIVELOCK no way to a quiescent state"


class Result(NamedTuple):
    """What a search found."""

    states: int
    depth: int
    quiescent: int
    seconds: float
    complete: bool  # every reachable state was visited
    violation: str | None = None
    trace: tuple[str, ...] = ()  # steps that lead to the violation
    final: State | None = None


def successors(scenario: Scenario, packed: Packed, state: State) -> list[Successor]:
    """Every step that can be taken from a state."""
    x = Expansion(scenario, packed, state)
    faults.inject(x)
    guest.act(x)
    if state.daemon == DOWN:
        recovery.restart(x)
    else:
        DAEMON_STEPS[state.step](x)
    return x.successors


def check(scenario: Scenario, limit: int = 6_000_000) -> Result:
    """Visit every reachable state, or up to a first violation or the limit.

    Safety is checked in every state, a second list of properties where only
    faults can go on, and in the end that from every state such a one can be
    reached without faults.
    """
    return _Search(scenario).run(limit)


class _Search:
    """States are numbered in the order in which they are found."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.started = time.monotonic()
        first = pack(scenario.initial())
        self.numbers: dict[Packed, int] = {first: 0}
        self.states: list[Packed] = [first]
        self.depths = array("i", [0])
        # How each state was found first: for traces.
        self.parents = array("i", [-1])
        self.labels: list[str] = [""]
        self.interned: dict[str, str] = {}
        # Steps without faults: for the way to a quiescent state.
        self.sources = array("i")
        self.targets = array("i")
        self.quiescent: list[int] = []

    def run(self, limit: int) -> Result:
        number = 0
        while number < len(self.states):
            if len(self.states) > limit:
                return self._result(complete=False)
            violation = self._visit(number)
            if violation:
                return self._result(False, violation, number)
            number += 1
        stranded = self._stranded()
        if stranded is not None:
            return self._result(True, NO_WAY_BACK, stranded)
        return self._result(complete=True)

    def _visit(self, number: int) -> str | None:
        packed = self.states[number]
        state = State(*packed)
        violation = properties.safety(self.scenario, state)
        if violation:
            return violation
        steps = 0
        for successor in successors(self.scenario, packed, state):
            target = self._number(successor, number)
            if not successor.is_fault:
                steps += 1
                self.sources.append(number)
                self.targets.append(target)
        if steps == 0:
            self.quiescent.append(number)
            return properties.quiescence(self.scenario, state)
        return None

    def _number(self, successor: Successor, parent: int) -> int:
        known = self.numbers.get(successor.packed)
        if known is not None:
            return known
        number = len(self.states)
        self.numbers[successor.packed] = number
        self.states.append(successor.packed)
        self.parents.append(parent)
        self.labels.append(self.interned.setdefault(successor.label, successor.label))
        self.depths.append(self.depths[parent] + 1)
        return number

    def _stranded(self) -> int | None:
        """The first state from which no quiescent state can be reached."""
        starts, sources = self._steps_by_target()
        reached = bytearray(len(self.states))
        todo = list(self.quiescent)
        for number in todo:
            reached[number] = 1
        while todo:
            target = todo.pop()
            for i in range(starts[target], starts[target + 1]):
                source = sources[i]
                if not reached[source]:
                    reached[source] = 1
                    todo.append(source)
        stranded = reached.find(0)
        return stranded if stranded >= 0 else None

    def _steps_by_target(self) -> tuple[array[int], array[int]]:
        """Counting sort: the sources of target t are sources[starts[t]:starts[t+1]]."""
        count = len(self.states)
        starts = array("i", [0]) * (count + 1)
        for target in self.targets:
            starts[target + 1] += 1
        for number in range(count):
            starts[number + 1] += starts[number]
        free = array("i", starts)
        sources = array("i", [0]) * len(self.sources)
        for source, target in zip(self.sources, self.targets):
            sources[free[target]] = source
            free[target] += 1
        return starts, sources

    def _result(self, complete: bool, violation: str | None = None, at: int = 0) -> Result:
        return Result(
            states=len(self.states),
            depth=max(self.depths),
            quiescent=len(self.quiescent),
            seconds=time.monotonic() - self.started,
            complete=complete,
            violation=violation,
            trace=self._trace(at) if violation else (),
            final=State(*self.states[at]) if violation else None,
        )

    def _trace(self, number: int) -> tuple[str, ...]:
        steps = []
        while number > 0:
            steps.append(self.labels[number])
            number = self.parents[number]
        return tuple(reversed(steps))

"""branch() and the handle by which a parent follows its children."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from . import _agent, _calls, _errors, _wire

_T = TypeVar("_T")

_MAX_INT64 = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ChildResult:
    """How one child of a branch ended.

    Attributes:
        index: the child's number, from 0.
        result: what it gave to ``finish()``; None if it failed.
        error: None if it finished; else ChildExited, ChildLost, Timeout,
            Cancelled or another typed error, not raised but held here.
        checkpoint: id of its final checkpoint, with ``finish(keep=True)``.
    """

    index: int
    result: Any = None
    error: _errors.RatoonError | None = None
    checkpoint: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the child finished."""
        return self.error is None


@dataclass(eq=False)
class Branch:
    """What ``branch()`` returns: in the parent and in each child.

    In the parent ``index`` is None and the methods follow the children;
    iterating is ``as_completed()`` without a timeout. In a child, and in any
    timeline restored or branched from the parent's later on, the methods
    raise WrongTimeline. They may be used from several threads.

    Attributes:
        id: name of the branch.
        index: None in the parent, the child's number in a child.
        n: how many children there are.
        payload: the child's; None in the parent.
        checkpoint: id of the checkpoint that the children started from.
    """

    id: str
    index: int | None
    n: int
    payload: Any
    checkpoint: str
    _results: dict[int, ChildResult] = field(default_factory=dict, repr=False)

    def __iter__(self) -> Iterator[ChildResult]:
        return self.as_completed()

    def as_completed(self, timeout: float | None = None) -> Iterator[ChildResult]:
        """Yields every child's result as it comes in, those that are there first.

        Args:
            timeout: seconds from now until all must be there; None for no
                limit, 0 for those that are there.

        Raises:
            Timeout: from the iterator, when results are missing by then. The
                children run on; call again to go on waiting.
            WrongTimeline: this is not the parent.
        """
        self._check_parent("as_completed")
        deadline = None if timeout is None else time.monotonic() + _seconds(timeout, "timeout")
        return self._as_completed(deadline)

    def results(self, timeout: float | None = None) -> list[ChildResult]:
        """Waits for all children and returns their results in order of index.

        Args:
            timeout: seconds; None for no limit.

        Raises:
            Timeout: results are missing by then. None is lost; call again.
            WrongTimeline: this is not the parent.
        """
        return sorted(self.as_completed(timeout), key=lambda child: child.index)

    def cancel(self, i: int) -> None:
        """Ends child i; its result is then a Cancelled error, unless it has one.

        Args:
            i: the child's number.
        """
        self._check_parent("cancel")
        _calls.call("cancel", {"branch": self.id, "index": self._child(i)})

    def adopt(self, i: int, payload: Any = None) -> _calls.Checkpoint:
        """Ends this timeline and goes on in child i's code, after its ``finish()``.

        Args:
            i: the child's number; it must have ended with ``finish(keep=True)``.
            payload: what its ``finish()`` returns, as for ``restore``.

        Returns:
            As ``restore``: only if this timeline's present is restored later.

        Raises:
            NotKept: the child kept no checkpoint; nothing changed.
            WrongTimeline: this is not the parent.
        """
        self._check_parent("adopt")
        arguments = {
            "branch": self.id,
            "index": self._child(i),
            "payload": _calls.optional_payload(payload, "payload"),
        }
        _calls.flush_output()
        return _calls.came_back(_calls.call("adopt", arguments))

    def discard(self) -> None:
        """Gives up the kept checkpoints of the results: none can be adopted then."""
        self._check_parent("discard")
        _calls.call("discard", {"branch": self.id})

    def _as_completed(self, deadline: float | None) -> Iterator[ChildResult]:
        given: set[int] = set()
        while True:
            for index in [i for i in self._results if i not in given]:
                given.add(index)
                yield self._results[index]
            if len(given) == self.n:
                return
            if len(self._results) == len(given):
                self._fetch(deadline)

    def _fetch(self, deadline: float | None) -> None:
        """Waits for at least one more result."""
        have = sorted(self._results)
        fields = _calls.call(
            "results", {"branch": self.id, "have": have, "timeout": _time_left(deadline)}
        )
        found = [_child_result(child) for child in _wire.take_maps(fields, "results")]
        for child in found:
            if not 0 <= child.index < self.n:
                raise _errors.ProtocolViolation(f"a result of child {child.index} of {self.n}")
            # Another thread may have fetched the same one.
            self._results.setdefault(child.index, child)
        if len(self._results) > len(have):
            return
        if deadline is None:
            raise _errors.ProtocolViolation("no new result came although none was timed")
        raise _errors.Timeout(
            f"branch {self.id}: {len(have)} of {self.n} results when the timeout passed"
        )

    def _check_parent(self, method: str) -> None:
        if self.index is not None:
            raise _errors.WrongTimeline(
                f"{method} of branch {self.id} was called in its child {self.index}"
            )

    def _child(self, i: int) -> int:
        if not _is_int(i):
            raise TypeError(f"i is {type(i).__name__}, not int")
        if not 0 <= i < self.n:
            raise _errors.InvalidArgument(f"i is {i}; the children are 0 to {self.n - 1}")
        return i


def branch(
    n: int,
    payloads: Sequence[Any] | None = None,
    max_live: int | None = None,
    at: str | _calls.Checkpoint | None = None,
    env: Sequence[Mapping[str, str]] | None = None,
    labels: Sequence[str] | None = None,
    timeout: float | None = None,
    min_ok: int | None = None,
) -> Branch:
    """Forks the whole machine into n running copies that share memory copy-on-write.

    Returns in this timeline with ``index`` None and in each child with its
    number. With ``at`` the children come back elsewhere: in that checkpoint's
    ``snapshot()``, with ``restored`` True, index, branch and payload.

    Args:
        n: number of children, 1 to 1024.
        payloads: one per child, as for ``restore``.
        max_live: how many run at once, the others as these end; None for all.
        at: start them from this checkpoint instead of the present.
        env: one per child: environment variables, set in os.environ of the
            process that comes back and seen in its ``whoami().env``.
        labels: one per child, at most 256 bytes each.
        timeout: seconds that each child may run; then it ends, its result Timeout.
        min_ok: go on when at least so many could be started, the others having
            their error as result; None for all.

    Returns:
        The handle.

    Raises:
        BranchFailed: no child was started; ``details`` holds the reasons.
        OverBudget: depth, width, live machines, memory or disk; nothing was stopped.
        TypeError: a payload holds a value of a type that cannot be sent.
        InvalidArgument, TooLarge: an argument is not as above.
    """
    _check_range(n, "n", 1, _wire.MAX_BRANCH)
    arguments: dict[str, object] = {"n": n}
    if payloads is not None:
        arguments["payloads"] = [
            _wire.pack_payload(payload, f"payloads[{i}]")
            for i, payload in enumerate(_per_child(payloads, "payloads", n))
        ]
    if max_live is not None:
        arguments["max_live"] = _check_range(max_live, "max_live", 1, _wire.MAX_BRANCH)
    if at is not None:
        arguments["at"] = _calls.checkpoint_id(at, "at")
    environments = None if env is None else _environments(_per_child(env, "env", n))
    if environments is not None:
        arguments["env"] = environments
    if labels is not None:
        arguments["labels"] = [
            _calls.checked_label(label, f"labels[{i}]")
            for i, label in enumerate(_per_child(labels, "labels", n))
        ]
    if timeout is not None:
        arguments["timeout"] = _nanoseconds(_seconds(timeout, "timeout"))
    if min_ok is not None:
        arguments["min_ok"] = _check_range(min_ok, "min_ok", 1, n)
    _calls.flush_output()
    handle = _handle(_calls.call("branch", arguments))
    if handle.index is not None and environments is not None:
        os.environ.update(environments[handle.index])
    return handle


def _handle(fields: Mapping[str, Any]) -> Branch:
    handle = Branch(
        id=_wire.take(fields, "id", str, ""),
        index=_wire.take_index(fields),
        n=_wire.take(fields, "n", int, 0),
        payload=_wire.unpack_payload(_wire.take(fields, "payload", bytes, b"")),
        checkpoint=_wire.take(fields, "checkpoint", str, ""),
    )
    if handle.index is not None and not 0 <= handle.index < handle.n:
        raise _errors.ProtocolViolation(f"child {handle.index} of {handle.n}")
    return handle


def _child_result(fields: Mapping[str, Any]) -> ChildResult:
    return ChildResult(
        index=_wire.take(fields, "index", int, -1),
        result=_wire.unpack_payload(_wire.take(fields, "result", bytes, b"")),
        error=_agent.error_of(fields),
        checkpoint=_wire.take(fields, "checkpoint", str, "") or None,
    )


def _per_child(values: Sequence[_T], name: str, n: int) -> list[_T]:
    if isinstance(values, (str, bytes, Mapping)):
        raise TypeError(f"{name} is {type(values).__name__}; give a list with one per child")
    found = list(values)
    if len(found) != n:
        raise _errors.InvalidArgument(f"{name} has {len(found)} items for {n} children")
    return found


def _environments(values: list[Mapping[str, str]]) -> list[dict[str, str]]:
    for i, variables in enumerate(values):
        if not isinstance(variables, Mapping):
            raise TypeError(f"env[{i}] is {type(variables).__name__}, not a dict")
        for name, value in variables.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(f"env[{i}] has {name!r:.40}: {value!r:.40}; both must be str")
            if not name or "=" in name or "\0" in name + value:
                raise _errors.InvalidArgument(f"env[{i}] has the impossible name {name!r:.40}")
    return [dict(variables) for variables in values]


def _check_range(value: int, name: str, low: int, high: int) -> int:
    if not _is_int(value):
        raise TypeError(f"{name} is {type(value).__name__}, not int")
    if not low <= value <= high:
        raise _errors.InvalidArgument(f"{name} is {value}; it must be {low} to {high}")
    return value


def _seconds(value: float, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {type(value).__name__}, not a number of seconds")
    if not (math.isfinite(value) and value >= 0):
        raise _errors.InvalidArgument(f"{name} is {value}; it must be finite and not negative")
    return float(value)


def _nanoseconds(seconds: float) -> int:
    # At least 1: on the wire 0 stands for no limit.
    return min(max(round(seconds * 1e9), 1), _MAX_INT64)


def _time_left(deadline: float | None) -> int:
    """Returns the timeout of a results call: 0 for no limit, negative for no waiting."""
    if deadline is None:
        return 0
    left = deadline - time.monotonic()
    return _nanoseconds(left) if left > 0 else -1


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

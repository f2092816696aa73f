"""The calls that need no handle: snapshot, restore, finish, the model, the tree."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, overload

from . import _agent, _errors, _events, _identity, _wire

# What agentd sends for a call without a result, encoded.
_NIL = b"\xc0"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What ``snapshot()`` returns, once in each timeline.

    Attributes:
        id: name of the checkpoint, such as "cp-3jk5m2q7xw4n6c2a".
        restored: False in the timeline that took the snapshot, True in every
            timeline restored from it or branched at it.
        payload: what the restorer or brancher passed; None if nothing.
        index: number of this child of ``branch(at=id)``, from 0; None elsewhere.
        branch: id of that branch; None elsewhere.
    """

    id: str
    restored: bool
    payload: Any = None
    index: int | None = None
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """One timeline of the tree.

    Attributes:
        id: name, never used again.
        line: name of the line: of this timeline and those that replace it by restore.
        node: index path in the tree, "0" for the first line, "0.2.1".
        origin: id of the checkpoint it started from; None for the first.
        state: "live", "hibernated", "stopped" or "ended".
        reason: why it is stopped or ended.
        label: as given to ``branch``.
    """

    id: str
    line: str
    node: str
    origin: str | None
    state: str
    reason: str
    label: str


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One checkpoint of the tree.

    Attributes:
        id: name, for ``restore`` and ``branch(at=)``.
        timeline: id of the timeline it was taken of.
        label: as given to ``snapshot``.
        kind: "named", "pinned" (by an operator), "auto" (a kept present) or
            "internal".
        durable: whether it survives the host.
        created: when, in nanoseconds since 1970.
        bytes: what it takes on the host's disk.
    """

    id: str
    timeline: str
    label: str
    kind: str
    durable: bool
    created: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Tree:
    """The sandbox's tree.

    Attributes:
        sandbox: id of the sandbox.
        state: "running", "paused", "hibernated", "stopped" or "ended".
        timelines: oldest first.
        checkpoints: published ones, oldest first.
    """

    sandbox: str
    state: str
    timelines: list[Timeline]
    checkpoints: list[CheckpointInfo]


@dataclass(frozen=True, slots=True)
class Whoami:
    """Which timeline this is.

    Attributes:
        sandbox: id of the sandbox.
        timeline: id of this timeline.
        line: id of its line.
        node: index path in the tree, "0" for the first line.
        depth: how many branches lie between the first line and this one.
        origin: id of the checkpoint it started from; None for the first.
        branch: id of the branch that made this line; None for the first.
        index: this line's number in that branch; None for the first.
        label: as given to ``branch``.
        env: as given to ``branch``.
    """

    sandbox: str
    timeline: str
    line: str
    node: str
    depth: int
    origin: str | None
    branch: str | None
    index: int | None
    label: str
    env: dict[str, str]


@dataclass(frozen=True, slots=True)
class Budget:
    """One limit as this timeline sees it.

    Attributes:
        limit: None for no limit.
        used: how much of it is used; a restore does not lower it.
    """

    limit: int | None
    used: int

    @property
    def left(self) -> int | None:
        """What can still be used; None without a limit."""
        return None if self.limit is None else max(self.limit - self.used, 0)


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the log of /workspace.

    Attributes:
        stream: id of the log's stream, one per timeline.
        sequence: number of the last record in it.
    """

    stream: str
    sequence: int


def call(kind: str, arguments: Mapping[str, object]) -> dict[str, Any]:
    """Makes one call, in this thread, and returns the fields of its result.

    Raises:
        RatoonError: the typed error of the reply, or of the connection.
    """
    process = os.getpid()
    with _agent.connection() as connection:
        _agent.send(connection, kind, arguments)
        reply = _agent.receive(connection, kind, process)
    # First of all: whatever comes next may draw random numbers.
    if resume := _wire.take(reply, "resume", dict, {}):
        _events.thawed(_identity.parse(resume))
    if (error := _agent.error_of(reply)) is not None:
        raise error
    value = _wire.take(reply, "value", bytes, b"")
    return {} if value in (b"", _NIL) else _wire.unpack_map(value)


def snapshot(label: str = "", durable: bool = False) -> Checkpoint:
    """Checkpoints the whole machine: memory, processes, open files, /workspace.

    Returns now, and once more in each timeline that is later restored from the
    checkpoint or branched at it, there with ``restored`` True and a payload.

    Args:
        label: for people and ``tree()``; at most 256 bytes.
        durable: return only when the checkpoint would survive the host's crash.

    Returns:
        The checkpoint.

    Raises:
        PrepareFailed, CaptureFailed, DiskFull: it was not taken; all runs on.
        OverBudget: the disk budget is used up; nothing was stopped.
        InterruptedByFork: another thread or program copied the machine meanwhile.
    """
    flush_output()
    return came_back(
        call("snapshot", {"label": checked_label(label, "label"), "durable": bool(durable)})
    )


def restore(
    id: str | Checkpoint,  # noqa: A002 - the name of the API
    payload: Any = None,
    keep_present: bool = True,
    detach: bool = False,
) -> Checkpoint:
    """Ends this timeline and goes on from a checkpoint of this sandbox's tree.

    Everything since then is gone, in memory and in /workspace, except what
    ``payload`` carries: there ``snapshot()`` returns with it. Running timelines
    that descend from this one end too.

    Args:
        id: the checkpoint or its id.
        payload: None, bool, int, float, str, bytes, and lists, tuples (they
            arrive as lists) and dicts of these; at most 16 MiB encoded and 32
            levels. Dict keys other than str can be read by Python only.
        keep_present: first checkpoint the present, so that it can be restored.
        detach: let descendants run on, without a place in their branch.

    Returns:
        Only if the kept present is itself restored later: then a checkpoint
        with ``restored`` True and that restorer's payload.

    Raises:
        UnknownCheckpoint, ForeignCheckpoint, CheckpointLost, CheckpointRefused:
            it cannot be used; this timeline goes on unchanged.
        TypeError: payload holds a value of another type.
        TooLarge: payload is too long or too deep.
    """
    arguments = {
        "id": checkpoint_id(id, "id"),
        "payload": optional_payload(payload, "payload"),
        "drop_present": not keep_present,
        "detach": bool(detach),
    }
    flush_output()
    return came_back(call("restore", arguments))


@overload
def finish(result: Any = None, keep: Literal[False] = False) -> NoReturn: ...


@overload
def finish(result: Any = None, keep: bool = False) -> Checkpoint: ...


def finish(result: Any = None, keep: bool = False) -> Checkpoint:
    """Delivers this child's result to the parent of its branch and ends its timeline.

    The whole machine ends, not only this process. In the first timeline it
    ends the sandbox. Python's standard output and error are flushed; other
    files must be closed before.

    Args:
        result: as a payload of ``restore``.
        keep: also keep a final checkpoint, which the parent can ``adopt``.

    Returns:
        Only with keep, in a parent that adopts this child: then a checkpoint
        with ``restored`` True and the payload of ``adopt``.

    Raises:
        TypeError, TooLarge: the result cannot be sent; the timeline goes on.
        PrepareFailed, CaptureFailed, DiskFull: keep failed; the timeline goes on.
    """
    arguments = {"result": optional_payload(result, "result"), "keep": bool(keep)}
    flush_output()
    fields = call("finish", arguments)
    if not keep:
        raise _errors.ProtocolViolation("finish: a timeline that has ended got an answer")
    return came_back(fields)


def llm_query(prompt: str, model: str | None = None) -> str:
    """Asks the language model of the sandbox.

    Args:
        prompt: at most 16 MiB of UTF-8.
        model: name of the model; None for the sandbox's default.

    Returns:
        The answer.

    Raises:
        NoModel: the sandbox has none.
        ModelFailed: its server refused or failed.
        OverBudget: calls, tokens or cost are used up.
        InterruptedByFork: the machine was copied meanwhile, and this is a copy.
            The original gets the answer, and nothing is billed twice.
    """
    (answer,) = _complete([prompt], model)
    if isinstance(answer, _errors.RatoonError):
        raise answer
    return answer


@overload
def llm_query_batched(
    prompts: Iterable[str],
    model: str | None = None,
    *,
    return_exceptions: Literal[False] = False,
) -> list[str]: ...


@overload
def llm_query_batched(
    prompts: Iterable[str], model: str | None = None, *, return_exceptions: bool
) -> list[str | _errors.RatoonError]: ...


def llm_query_batched(
    prompts: Iterable[str], model: str | None = None, *, return_exceptions: bool = False
) -> list[str] | list[str | _errors.RatoonError]:
    """Asks the language model several prompts at once.

    Args:
        prompts: at most 1024, together at most 16 MiB of UTF-8.
        model: name of the model; None for the sandbox's default.
        return_exceptions: put the errors of single prompts into the list
            instead of raising.

    Returns:
        One answer per prompt, in order.

    Raises:
        ModelFailed: at least one prompt failed. ``error.results`` holds the
            answers that there are and the errors of the others.
        TooLarge: too many or too long prompts.
    """
    if isinstance(prompts, str):
        raise TypeError("prompts is a str; give a list of them, or use llm_query")
    answers = _complete(list(prompts), model)
    failed = {n: a for n, a in enumerate(answers) if isinstance(a, _errors.RatoonError)}
    if return_exceptions or not failed:
        return answers
    first = next(iter(failed))
    error = _errors.ModelFailed(
        f"{len(failed)} of {len(answers)} prompts failed; prompt {first}: {failed[first]}",
        {"failed": {n: {"code": e.code, "message": e.message} for n, e in failed.items()}},
    )
    error.results = answers
    raise error from failed[first]


def tree() -> Tree:
    """Returns the sandbox's timelines and checkpoints."""
    fields = call("tree", {})
    return Tree(
        sandbox=_wire.take(fields, "sandbox", str, ""),
        state=_wire.take(fields, "state", str, ""),
        timelines=[
            Timeline(
                id=_wire.take(t, "id", str, ""),
                line=_wire.take(t, "line", str, ""),
                node=_wire.take(t, "node", str, ""),
                origin=_wire.take(t, "origin", str, "") or None,
                state=_wire.take(t, "state", str, ""),
                reason=_wire.take(t, "reason", str, ""),
                label=_wire.take(t, "label", str, ""),
            )
            for t in _wire.take_maps(fields, "timelines")
        ],
        checkpoints=[
            CheckpointInfo(
                id=_wire.take(c, "id", str, ""),
                timeline=_wire.take(c, "timeline", str, ""),
                label=_wire.take(c, "label", str, ""),
                kind=_wire.take(c, "class", str, ""),
                durable=_wire.take(c, "durable", bool, False),
                created=_wire.take(c, "created", int, 0),
                bytes=_wire.take(c, "bytes", int, 0),
            )
            for c in _wire.take_maps(fields, "checkpoints")
        ],
    )


def whoami() -> Whoami:
    """Returns which timeline this is."""
    fields = call("whoami", {})
    env = _wire.take(fields, "env", dict, {})
    return Whoami(
        sandbox=_wire.take(fields, "sandbox", str, ""),
        timeline=_wire.take(fields, "timeline", str, ""),
        line=_wire.take(fields, "line", str, ""),
        node=_wire.take(fields, "node", str, ""),
        depth=_wire.take(fields, "depth", int, 0),
        origin=_wire.take(fields, "origin", str, "") or None,
        branch=_wire.take(fields, "branch", str, "") or None,
        index=_wire.take_index(fields),
        label=_wire.take(fields, "label", str, ""),
        env={str(name): _wire.take(env, name, str, "") for name in env},
    )


def budget() -> dict[str, Budget]:
    """Returns the budgets of this timeline by name.

    Names and units: "depth" (branches of branches), "width" (children of one
    branch), "live" (running machines of the sandbox), "memory" (bytes of their
    RAM), "disk" (bytes of checkpoints), "llm_calls" (prompts), "llm_tokens"
    (prompt and completion tokens), "llm_cost" (millionths of a US dollar).
    """
    budgets = _wire.take(call("budget", {}), "budgets", dict, {})
    found = {}
    for name in budgets:
        fields = _wire.take(budgets, name, dict, {})
        limit = _wire.take(fields, "limit", int, -1)
        found[str(name)] = Budget(
            limit=None if limit < 0 else limit, used=_wire.take(fields, "used", int, 0)
        )
    return found


def sync() -> Position:
    """Makes /workspace durable: returns when all earlier changes are on stable storage.

    Returns:
        The position in the workspace's log up to which they are.
    """
    position = _wire.take(call("sync", {}), "position", dict, {})
    return Position(
        stream=_wire.take(position, "stream", str, ""),
        sequence=_wire.take(position, "sequence", int, 0),
    )


def came_back(fields: Mapping[str, Any]) -> Checkpoint:
    """Reads a protocol.SnapshotResult, in a child also applying its environment."""
    checkpoint = Checkpoint(
        id=_wire.take(fields, "id", str, ""),
        restored=_wire.take(fields, "restored", bool, False),
        payload=_wire.unpack_payload(_wire.take(fields, "payload", bytes, b"")),
        index=_wire.take_index(fields),
        branch=_wire.take(fields, "branch", str, "") or None,
    )
    if checkpoint.index is not None:
        # branch(at=, env=) of a timeline whose memory this one does not have.
        os.environ.update(whoami().env)
    return checkpoint


def flush_output() -> None:
    """Writes out what standard output and error buffer.

    A copy would print the buffer again, and a timeline that ends would lose it.
    """
    for stream in (sys.stdout, sys.stderr):
        # None without a console; closed; or its reader is gone: not this call's
        # error.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()


def optional_payload(value: object, name: str) -> bytes:
    """Encodes a payload; None is no bytes at all."""
    return b"" if value is None else _wire.pack_payload(value, name)


def checkpoint_id(value: object, name: str) -> str:
    """Returns the id of a checkpoint that may be given as an object."""
    if isinstance(value, Checkpoint):
        return value.id
    if not isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__}, not a checkpoint or its id")
    if not value:
        raise _errors.InvalidArgument(f"{name} is empty; give the id of a checkpoint")
    return value


def checked_label(value: object, name: str) -> str:
    """Returns a label that is not over the limit."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__}, not str")
    if (size := len(value.encode("utf-8", "surrogatepass"))) > _wire.MAX_LABEL:
        raise _errors.TooLarge(f"{name} takes {size} bytes, over the limit of {_wire.MAX_LABEL}")
    return value


def _complete(prompts: list[str], model: str | None) -> list[str | _errors.RatoonError]:
    if model is not None and not isinstance(model, str):
        raise TypeError(f"model is {type(model).__name__}, not str")
    if len(prompts) > _wire.MAX_BATCH:
        raise _errors.TooLarge(
            f"{len(prompts)} prompts at once, over the limit of {_wire.MAX_BATCH}"
        )
    for number, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise TypeError(f"prompt {number} is {type(prompt).__name__}, not str")
    if not prompts:
        return []
    fields = call("llm_query", {"prompts": prompts, "model": model or ""})
    completions = _wire.take_maps(fields, "completions")
    if len(completions) != len(prompts):
        raise _errors.ProtocolViolation(
            f"{len(completions)} completions for {len(prompts)} prompts"
        )
    return [_agent.error_of(c) or _wire.take(c, "text", str, "") for c in completions]

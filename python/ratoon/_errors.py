"""The error hierarchy: one class for each code of protocol/errors.go.

The name of a class is its code in camel case. A test holds codes and remedies
to the Go file.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any, ClassVar


class RatoonError(Exception):
    """A call of this package failed.

    Attributes:
        code: stable name of the kind of failure, the same in Python, Go, the
            command line and on the wire, such as ``"over_budget"``.
        message: what happened, for people. Also ``str(error)``.
        details: values that a program may want; empty if there are none.
        remedy: what a user can do about it. Tracebacks show it as a note.
    """

    default_code: ClassVar[str] = ""
    default_remedy: ClassVar[str] = ""

    code: str
    message: str
    details: dict[str, Any]
    remedy: str

    def __init__(
        self, message: str, details: Mapping[str, Any] | None = None, *, code: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.message = message
        self.details = dict(details or {})
        self.remedy = self.default_remedy
        if self.remedy:
            self.add_note(f"remedy: {self.remedy}")

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process pools; the constructor restores every field.
        return _rebuild, (type(self), self.message, self.details, self.code)


def _rebuild(
    kind: type[RatoonError], message: str, details: dict[str, Any], code: str
) -> RatoonError:
    return kind(message, details, code=code)


class InvalidArgument(RatoonError, ValueError):
    """An argument is not acceptable. Also a ValueError."""

    default_code = "invalid_argument"
    default_remedy = "correct the argument; the message names it and what is accepted"


class NotFound(RatoonError):
    """Something named does not exist."""

    default_code = "not_found"
    default_remedy = "list what exists and use one of those names"


class NotSupported(RatoonError):
    """This build, driver or host cannot do it."""

    default_code = "not_supported"
    default_remedy = "this build, driver or host cannot do it; `ratoon doctor` says what is missing"


class TooLarge(RatoonError):
    """A value is over a limit of the protocol."""

    default_code = "too_large"
    default_remedy = "send less at once, or put large data into /workspace"


class Busy(RatoonError):
    """Another operation is under way."""

    default_code = "busy"
    default_remedy = "wait and try again; another operation is under way"


class Conflict(RatoonError):
    """An idempotency key was used for another request."""

    default_code = "conflict"
    default_remedy = "use a new idempotency key for each new request"


class Cancelled(RatoonError):
    """The call or child was cancelled."""

    default_code = "cancelled"
    default_remedy = "the call was cancelled; call again if it is still wanted"


class Timeout(RatoonError, TimeoutError):
    """A timeout passed. Also a TimeoutError."""

    default_code = "timeout"
    default_remedy = "raise the timeout, or find out why it takes so long"


class Internal(RatoonError):
    """A defect of Ratoon."""

    default_code = "internal"
    default_remedy = "a defect of Ratoon; please report it with the message"


class ProtocolViolation(RatoonError):
    """The agent's answer broke the protocol."""

    default_code = "protocol_violation"
    default_remedy = "the other end broke the protocol; use helpers and agentd of the same release"


class VersionMismatch(RatoonError):
    """This package and the agent are of different protocol versions."""

    default_code = "version_mismatch"
    default_remedy = "use the same release at both ends; the message names both versions"


class Unavailable(RatoonError):
    """The agent or the host cannot be reached."""

    default_code = "unavailable"
    default_remedy = "the other end cannot be reached; the message names the stage"


class InterruptedByFork(RatoonError):
    """The call was pending when this copy of the machine was made.

    The original timeline still gets its answer; nothing was done twice.
    """

    default_code = "interrupted_by_fork"
    default_remedy = "the call was under way when this copy was made; call again, as a new request"


class WrongTimeline(RatoonError):
    """A branch handle was used outside of the timeline that made it."""

    default_code = "wrong_timeline"
    default_remedy = "a branch handle belongs to the timeline that made it; branch again here"


class AgentRestarted(RatoonError):
    """The agent in the guest was restarted while the call was pending."""

    default_code = "agent_restarted"
    default_remedy = "the agent in the guest was restarted while the call was pending; call again"


class HostRestarted(RatoonError):
    """The host was restarted while the call was pending."""

    default_code = "host_restarted"
    default_remedy = (
        "the host was restarted while the call was pending; look at the tree, then call again"
    )


class OverBudget(RatoonError):
    """A limit set at the start of the sandbox was reached; nothing was done."""

    default_code = "over_budget"
    default_remedy = "a limit set at start was reached; the message names it, its limit and its use"

    @property
    def budget(self) -> str | None:
        """Name of the budget, a key of ``ratoon.budget()``."""
        value = self.details.get("budget")
        return value if isinstance(value, str) else None

    @property
    def limit(self) -> int | None:
        """The budget's limit, in the budget's unit."""
        value = self.details.get("limit")
        return value if isinstance(value, int) else None

    @property
    def used(self) -> int | None:
        """How much of it is used, in the budget's unit."""
        value = self.details.get("used")
        return value if isinstance(value, int) else None


class PrepareFailed(RatoonError):
    """The guest could not be stopped for a capture in time; it runs on unchanged."""

    default_code = "prepare_failed"
    default_remedy = (
        "the guest could not be stopped for a capture in time; nothing changed, call again"
    )


class CaptureFailed(RatoonError):
    """The machine could not be captured; it runs on unchanged."""

    default_code = "capture_failed"
    default_remedy = "the machine could not be captured; nothing changed; the message says why"


class DiskFull(RatoonError):
    """The host has no room for the checkpoint; the guest runs on unchanged."""

    default_code = "disk_full"
    default_remedy = (
        "free disk space under the state directory (`ratoon checkpoint rm`), then call again"
    )


class BranchFailed(RatoonError):
    """No child was started; this timeline goes on alone."""

    default_code = "branch_failed"
    default_remedy = "no child was started; the reasons per child are in the details"

    @property
    def reasons(self) -> dict[int, str]:
        """Why, by the numbers of the children that could not be started."""
        children = self.details.get("children")
        if not isinstance(children, dict):
            return {}
        return {int(i): str(why) for i, why in children.items() if str(i).isdecimal()}


class ChildExited(RatoonError):
    """The child's program ended without ``ratoon.finish()``."""

    default_code = "child_exited"
    default_remedy = (
        "the child's program ended without ratoon.finish(); "
        "its status and standard error are in the details"
    )

    @property
    def status(self) -> int | None:
        """Its exit status, as subprocess gives it: 0-255, or minus a signal's number.

        None if it is not known.
        """
        name = self.details.get("signal")
        if isinstance(name, str) and name:
            number = getattr(signal, name, None)
            return -number if isinstance(number, signal.Signals) else None
        code = self.details.get("status")
        known = isinstance(code, int) and not isinstance(code, bool) and code >= 0
        return code if known else None

    @property
    def stderr(self) -> str:
        """The last bytes of its standard error (at most 4096), as text."""
        value = self.details.get("stderr", "")
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        return value if isinstance(value, str) else ""


class ChildLost(RatoonError):
    """The child's machine died or fell silent."""

    default_code = "child_lost"
    default_remedy = "the child's machine died or fell silent; branch again"


class NotKept(RatoonError):
    """The child to adopt did not end with ``finish(keep=True)``."""

    default_code = "not_kept"
    default_remedy = "the child must end with finish(keep=True) to be adopted"


class UnknownCheckpoint(RatoonError):
    """There is no checkpoint of that id."""

    default_code = "unknown_checkpoint"
    default_remedy = "no such checkpoint; `ratoon checkpoint ls` or ratoon.tree() lists them"


class ForeignCheckpoint(RatoonError):
    """The checkpoint belongs to another tree."""

    default_code = "foreign_checkpoint"
    default_remedy = "a guest may name checkpoints of its own tree only"


class CheckpointLost(RatoonError):
    """The checkpoint's files are gone or damaged."""

    default_code = "checkpoint_lost"
    default_remedy = "the checkpoint's files are gone or damaged; use another one"


class CheckpointRefused(RatoonError):
    """The checkpoint does not fit this host; nothing was changed."""

    default_code = "checkpoint_refused"
    default_remedy = (
        "it was made by another VMM, CPU model, kernel, image or release; the message names which"
    )


class CheckpointInUse(RatoonError):
    """Other checkpoints or running copies need this one."""

    default_code = "checkpoint_in_use"
    default_remedy = (
        "others are based on it, an operation needs it, or it is pinned; "
        "remove those first, with --cascade, or unpin it"
    )


class SandboxStopped(RatoonError):
    """The sandbox's machine died."""

    default_code = "sandbox_stopped"
    default_remedy = "its machine died; restore one of its checkpoints"


class NoModel(RatoonError):
    """The sandbox was started without a language model."""

    default_code = "no_model"
    default_remedy = "start with --llm (see `ratoon run --help`)"


class ModelFailed(RatoonError):
    """The model's server refused or failed.

    Raised by ``llm_query_batched``, ``results`` holds one entry per prompt:
    the answer, or the error in its place. Otherwise it is empty.
    """

    default_code = "model_failed"
    default_remedy = "the model's server refused or failed; the message holds its answer"

    results: list[str | RatoonError]

    def __init__(
        self, message: str, details: Mapping[str, Any] | None = None, *, code: str = ""
    ) -> None:
        super().__init__(message, details, code=code)
        self.results = []

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"results": self.results})


def _known() -> dict[str, type[RatoonError]]:
    return {kind.default_code: kind for kind in RatoonError.__subclasses__()}


#: Class of each code.
CLASSES: dict[str, type[RatoonError]] = _known()


def make(code: str, message: str, details: Mapping[str, Any] | None = None) -> RatoonError:
    """Makes the error of a code; a code of a newer agent becomes a plain RatoonError."""
    return CLASSES.get(code, RatoonError)(message, details, code=code)

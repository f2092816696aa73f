"""Ratoon: a program inside a microVM checkpoints, restores and branches its own machine.

    import ratoon

    b = ratoon.branch(3, payloads=["a", "b", "c"])     # like fork(), of the whole machine
    if b.index is not None:
        ratoon.finish(attempt(b.payload))              # a child delivers its result and ends
    best = max((r.result for r in b if r.ok), default=None)

Every call is one connection to the agent in the guest and blocks the calling
thread, any thread; under asyncio use ``await asyncio.to_thread(ratoon.llm_query,
prompt)``. A call may take as long as what it waits for. An exception that ends
the wait, such as KeyboardInterrupt, gives the call up.

A stop of the machine interrupts waiting system calls. Python repeats those
that end with EINTR, except where a signal handler of the program raises.

All errors of the sandbox are subclasses of RatoonError, one for each code.
Wrong types of arguments are TypeErrors.

The package keeps no connection and no state on which copies of the machine
could disagree. Only ``on_resume`` starts a thread.
"""

from ._branch import Branch, ChildResult, branch
from ._calls import (
    Budget,
    Checkpoint,
    CheckpointInfo,
    Position,
    Timeline,
    Tree,
    Whoami,
    budget,
    finish,
    llm_query,
    llm_query_batched,
    restore,
    snapshot,
    sync,
    tree,
    whoami,
)
from ._errors import (
    AgentRestarted,
    BranchFailed,
    Busy,
    Cancelled,
    CaptureFailed,
    CheckpointInUse,
    CheckpointLost,
    CheckpointRefused,
    ChildExited,
    ChildLost,
    Conflict,
    DiskFull,
    ForeignCheckpoint,
    HostRestarted,
    Internal,
    InterruptedByFork,
    InvalidArgument,
    ModelFailed,
    NoModel,
    NotFound,
    NotKept,
    NotSupported,
    OverBudget,
    PrepareFailed,
    ProtocolViolation,
    RatoonError,
    SandboxStopped,
    Timeout,
    TooLarge,
    Unavailable,
    UnknownCheckpoint,
    VersionMismatch,
    WrongTimeline,
)
from ._events import on_resume
from ._identity import reseed

#: Other names of branch and restore.
fork = branch
rollback = restore

__version__ = "0.1.0"

__all__ = [
    "AgentRestarted",
    "Branch",
    "BranchFailed",
    "Budget",
    "Busy",
    "Cancelled",
    "CaptureFailed",
    "Checkpoint",
    "CheckpointInUse",
    "CheckpointInfo",
    "CheckpointLost",
    "CheckpointRefused",
    "ChildExited",
    "ChildLost",
    "ChildResult",
    "Conflict",
    "DiskFull",
    "ForeignCheckpoint",
    "HostRestarted",
    "Internal",
    "InterruptedByFork",
    "InvalidArgument",
    "ModelFailed",
    "NoModel",
    "NotFound",
    "NotKept",
    "NotSupported",
    "OverBudget",
    "Position",
    "PrepareFailed",
    "ProtocolViolation",
    "RatoonError",
    "SandboxStopped",
    "Timeline",
    "Timeout",
    "TooLarge",
    "Tree",
    "Unavailable",
    "UnknownCheckpoint",
    "VersionMismatch",
    "Whoami",
    "WrongTimeline",
    "branch",
    "budget",
    "finish",
    "fork",
    "llm_query",
    "llm_query_batched",
    "on_resume",
    "reseed",
    "restore",
    "rollback",
    "snapshot",
    "sync",
    "tree",
    "whoami",
]

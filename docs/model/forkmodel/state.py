"""The state of the model: virtual machines, messages, journal and daemon."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, NamedTuple

# The slots for VMs. PARENT is the timeline that is current at first, in its
# committed incarnation; SUCCESSOR its next incarnation, loaded and not yet
# committed; REPLACEMENT is what a restore loads.
PARENT = "parent"
CHILD_A = "child_a"
CHILD_B = "child_b"
REPLACEMENT = "replacement"
SUCCESSOR = "successor"
SLOTS = (PARENT, CHILD_A, CHILD_B, REPLACEMENT, SUCCESSOR)
CHILDREN = (CHILD_A, CHILD_B)

# A result that child A delivered by finish; a typed end is just the slot.
FINISHED_A = "child_a finished"

# States of a guest. DRAINED is the second half of the protocol's `preparing`:
# frozen, drained, and the host has acknowledged the log position.
RUNNING = "running"
PREPARING = "preparing"
DRAINED = "drained"
QUIESCED = "quiesced"

# Stages of a checkpoint.
ABSENT, TEMPORARY, PUBLISHED, DURABLE = 0, 1, 2, 3

# Outcomes of a call. PENDING in a thaw leaves the call pending.
PENDING = ""
OK = "ok"
ERROR = "error"
INTERRUPTED = "InterruptedByFork"

# Keys of calls. The parent's calls are numbered by their operation.
NO_KEY = -1
OLD_CALLER = 100  # the call pending in the older checkpoint C0
CHILD_FINISH = 200  # child A: finish(result)
CHILD_KEEP = 201  # child A: finish(keep=True)
CHILD_RESTORE = 202  # child A: restore of its own line

# The daemon.
UP = "up"
DOWN = "down"
RECOVERING = "recovering"
IDLE = "idle"  # the step between operations
NO_STEP = "-"  # the step of a daemon that is down

# States of the sandbox.
SANDBOX_RUNNING = "running"
HIBERNATED = "hibernated"
STOPPED = "stopped"


class VM(NamedTuple):
    """One virtual machine and the guest in it."""

    alive: bool = True
    paused: bool = False
    guest: str = RUNNING
    freeze: int = 0  # newest freeze number seen
    pending: int = NO_KEY  # key of the pending call
    outcomes: int = 0  # how many outcomes the last call got
    last_outcome: str = PENDING
    identity: bool = False  # the identity was fixed since the capture
    epoch: int = 0
    payload: bool = False  # the payload has arrived
    freeze_key: int = NO_KEY  # key that the prepare named
    last_key: int = NO_KEY  # key of the last call

    @property
    def runs(self) -> bool:
        """User code can run."""
        return self.alive and not self.paused and self.guest == RUNNING


class HostMessage(NamedTuple):
    """A message to a guest. Fields that a kind does not have stay empty."""

    kind: str
    to: str
    freeze: int = 0
    key: int = NO_KEY
    outcome: str = PENDING
    epoch: int = 0
    payload: bool = False

    def __str__(self) -> str:
        parts = {
            "prepare": f"freeze {self.freeze}, key {self.key}",
            "abort": f"freeze {self.freeze}",
            "thaw": f"freeze {self.freeze}, epoch {self.epoch}, key {self.key}, {self.outcome or 'pending'}",
            "outcome": f"key {self.key}, {self.outcome}",
            "attach": f"epoch {self.epoch}",
        }
        return f"{self.kind}({parts[self.kind]})"


class GuestMessage(NamedTuple):
    """A message from a guest; number is a freeze, or a key in outcome-ack."""

    kind: str
    sender: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}({self.number}) of {self.sender}"


# The messages, by their names in protocol/messages.go.


def prepare(to: str, freeze: int, key: int) -> HostMessage:
    return HostMessage("prepare", to, freeze=freeze, key=key)


def abort(to: str, freeze: int) -> HostMessage:
    return HostMessage("abort", to, freeze=freeze)


def thaw(to: str, freeze: int, epoch: int, key: int, outcome: str, payload: bool = False) -> HostMessage:
    return HostMessage("thaw", to, freeze, key, outcome, epoch, payload)


def outcome(to: str, key: int, result: str) -> HostMessage:
    return HostMessage("outcome", to, key=key, outcome=result)


def attach(to: str, epoch: int) -> HostMessage:
    return HostMessage("attach", to, epoch=epoch)


def quiesced(sender: str, freeze: int) -> GuestMessage:
    return GuestMessage("quiesced", sender, freeze)


def prepare_failed(sender: str, freeze: int) -> GuestMessage:
    return GuestMessage("prepare-failed", sender, freeze)


def thawed(sender: str, freeze: int) -> GuestMessage:
    return GuestMessage("thawed", sender, freeze)


def outcome_ack(sender: str, key: int) -> GuestMessage:
    return GuestMessage("outcome-ack", sender, key)


class Capture(NamedTuple):
    """What a checkpoint holds of the guest."""

    guest: str
    freeze: int
    pending: int


# An older checkpoint that restores and branch(at=ID) use.
C0 = Capture(QUIESCED, 0, OLD_CALLER)


class Hibernated(NamedTuple):
    """The `hibernated` state of the parent's timeline."""

    freeze: int
    key: int
    wake_now: bool
    operation: int

    @property
    def capture(self) -> Capture:
        return Capture(QUIESCED, self.freeze, self.key)


class OpRecord(NamedTuple):
    """The journal's record of an open branch or restore."""

    kind: str  # "branch" or "restore"
    operation: int  # key of the asking call
    freeze: int  # freeze of the checkpoint
    payload: bool
    caller: int  # key of the checkpoint's caller
    waiting: bool = False  # branch: child B is still to be loaded
    replaced: str = ""  # restore: the slot that it replaces


class Budget(NamedTuple):
    """How many faults may still happen: in all, and of each kind."""

    total: int
    kill_daemon: int
    kill_vm: int
    lose: int
    duplicate: int
    no_space: int
    journal: int
    host_crash: int
    worker_death: int


# Daemon kills that a run starts with; see properties.py.
DAEMON_KILLS = 2

# Facts that the current step of the daemon remembers.
SENT_THAW = ("sent", "thaw")
SENT_OUTCOME = ("sent", "outcome")
Note = tuple[str, Any]
Packed = tuple[Any, ...]
EMPTY: frozenset[Any] = frozenset()


def done(slot: str) -> Note:
    """The slot needs nothing more in this step."""
    return ("done", slot)


def sent(slot: str) -> Note:
    """A thaw was sent to the slot."""
    return ("sent", slot)


def failed(slot: str) -> Note:
    """The child could not be loaded."""
    return ("failed", slot)


def gave_up(key: int) -> Note:
    """The daemon no longer thinks of this call (mutants only)."""
    return ("gave up", key)


@dataclass
class State:
    """One state. Steps change a fresh copy; pack makes it a dictionary key."""

    # The daemon's memory: lost when it is killed.
    daemon: str
    step: str  # what the daemon does next
    operation: int  # key of the operation, NO_KEY when idle
    freeze: int  # its freeze number
    capture: Capture | None
    notes: frozenset[Note]
    payload_known: bool
    target: str  # the VM that the operation acts on
    journal_resumes_at: str | None  # where an unclear journal write leads

    # Virtual machines and messages.
    parent: VM | None
    child_a: VM | None
    child_b: VM | None
    replacement: VM | None
    successor: VM | None
    to_guests: frozenset[HostMessage]
    to_host: frozenset[GuestMessage]

    # The journal and the checkpoint store.
    last_freeze: int
    parent_epoch: int
    child_epoch: int  # of the stream of child A
    vm_records: frozenset[str]
    streams: frozenset[str]
    checkpoints: tuple[int, ...]  # stage, by operation; the last is child A's
    op_record: OpRecord | None
    sandbox: str
    current: str  # slot of the current timeline
    live: frozenset[str]  # live timelines
    results: frozenset[str]  # branch slots that have a result
    hibernated: Hibernated | None
    kept: Capture | None  # kept checkpoint in the result of child A
    slot_holder: str  # who holds the branch slot of child A
    incarnation: int

    # The script and the faults.
    next_operation: int
    budget: Budget

    # History. Only properties and mutants read it, and of `committed` the
    # question whether a branch still refers to its capture.
    committed: frozenset[int]  # keys of committed operations
    epoch_before_move: int
    incarnation_ran: bool  # an incarnation of the present capture has run
    host_crashed: bool
    double_use: str  # something happened twice that must happen once
    loss: str  # something is about to be lost, or was

    # ---- virtual machines

    def vm(self, slot: str) -> VM | None:
        return getattr(self, slot)  # type: ignore[no-any-return]

    def must(self, slot: str) -> VM:
        """The VM of a slot that is known to hold one."""
        return getattr(self, slot)  # type: ignore[no-any-return]

    def alive(self, slot: str) -> bool:
        vm = getattr(self, slot)
        return vm is not None and vm.alive

    def runs(self, slot: str) -> bool:
        vm = getattr(self, slot)
        return vm is not None and vm.runs

    def update(self, slot: str, **changes: Any) -> None:
        setattr(self, slot, getattr(self, slot)._replace(**changes))

    def load(self, slot: str, capture: Capture) -> None:
        """Start a VM from a capture: a frozen copy with its pending call."""
        key = capture.pending
        setattr(self, slot, VM(guest=capture.guest, freeze=capture.freeze, pending=key, freeze_key=key, last_key=key))

    def kill(self, slot: str) -> None:
        """Kill and reap a VM; its links go with it."""
        setattr(self, slot, None)
        self.cut_links(slot)

    def remove(self, slot: str) -> None:
        """Kill a VM and remove its records."""
        self.kill(slot)
        self.vm_records -= {slot}
        self.streams -= {slot}

    def end(self, slot: str) -> None:
        """End a timeline: its VM, its records, its place among the live."""
        self.remove(slot)
        self.live -= {slot}

    # ---- messages

    def cut_links(self, slot: str) -> None:
        self.to_guests = frozenset(m for m in self.to_guests if m.to != slot)
        self.to_host = frozenset(m for m in self.to_host if m.sender != slot)

    def send(self, message: HostMessage) -> None:
        self.to_guests |= {message}

    def answer(self, message: GuestMessage) -> None:
        self.to_host |= {message}

    def in_flight(self, kind: str, slot: str) -> bool:
        return any(m.kind == kind and m.to == slot for m in self.to_guests)

    def thaw_in_flight(self, slot: str, freeze: int) -> bool:
        return any(m.kind == "thaw" and m.to == slot and m.freeze == freeze for m in self.to_guests)

    # ---- journal

    def epoch(self, slot: str) -> int:
        return self.child_epoch if slot == CHILD_A else self.parent_epoch

    def raise_epoch(self, slot: str) -> None:
        if slot == CHILD_A:
            self.child_epoch += 1
        else:
            self.parent_epoch += 1

    def owners(self) -> frozenset[str]:
        """Timelines that own a stream: live ones and a hibernated one."""
        return self.live | {PARENT} if self.hibernated else self.live

    def set_checkpoint(self, index: int, stage: int) -> None:
        stages = list(self.checkpoints)
        stages[index] = stage
        self.checkpoints = tuple(stages)

    def branch_slot(self, slot: str) -> str:
        """The branch slot that a timeline holds."""
        return CHILD_A if slot == REPLACEMENT and self.slot_holder == REPLACEMENT else slot

    # ---- daemon

    def become_idle(self) -> None:
        self.step = IDLE
        self.operation = NO_KEY
        self.freeze = 0
        self.capture = None
        self.notes = EMPTY
        self.payload_known = False
        self.target = PARENT

    def note(self, note: Note) -> None:
        self.notes |= {note}


# pack(state) is the tuple of its fields; State(*packed) is the way back.
pack: Callable[[State], Packed] = attrgetter(*(f.name for f in fields(State)))

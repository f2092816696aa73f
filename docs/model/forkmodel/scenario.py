"""What is fixed during one run of the model."""
from __future__ import annotations

from collections.abc import Iterable

from . import mutants as m
from .state import (
    ABSENT,
    CHILD_A,
    CHILD_KEEP,
    CHILD_RESTORE,
    DAEMON_KILLS,
    EMPTY,
    IDLE,
    NO_KEY,
    PARENT,
    SANDBOX_RUNNING,
    TEMPORARY,
    UP,
    VM,
    Budget,
    State,
)

# Modes. In per-user mode a killed daemon takes its VMs along.
ROOT = "root"
PER_USER = "per-user"
MODES = (ROOT, PER_USER)

# Operations that the parent asks for.
SNAPSHOT = "snapshot"
SNAPSHOT_DURABLE = "snapshot-durable"
REBASE = "rebase"
LLM_QUERY = "llm-query"
BRANCH = "branch"
BRANCH_WAVES = "branch-waves"
BRANCH_MIN_OK = "branch-min-ok"
BRANCH_AT = "branch-at"
RESTORE = "restore"
ADOPT = "adopt"
# Operations that an operator asks for: no key.
OPERATOR_SNAPSHOT = "operator-snapshot"
OPERATOR_RESTORE = "operator-restore"
OPERATOR_BRANCH_AT = "operator-branch-at"
HIBERNATE = "hibernate"
# Operations of child A, by options.
FINISH_KEEP = "finish-keep"
RESTORE_BY_CHILD = "restore-by-child"

OPERATIONS = {
    SNAPSHOT: "snapshot()",
    SNAPSHOT_DURABLE: "snapshot(durable=True)",
    REBASE: "snapshot() that the daemon joins with a move onto a new base",
    LLM_QUERY: "a call without a freeze",
    BRANCH: "branch(2), one wave, all or nothing",
    BRANCH_WAVES: "branch(2, max_live=1)",
    BRANCH_MIN_OK: "branch(2, min_ok=1)",
    BRANCH_AT: "branch(2, at=C0), C0 being an older checkpoint",
    RESTORE: "restore(C0), the present kept",
    ADOPT: "adopt(0), once child A has finished with keep=True",
    OPERATOR_SNAPSHOT: "a snapshot by an operator",
    OPERATOR_RESTORE: "a restore of the current line to C0 by an operator",
    OPERATOR_BRANCH_AT: "a branch of two at C0 by an operator, without a parent",
    HIBERNATE: "hibernate by an operator; the wake may come at any later time",
}

# What else a run may hold.
CHILD_FINISHES = "child-finish"
CHILD_KEEPS = "child-finish-keep"
CHILD_RESTORES = "child-restore"
HOST_CRASH = "host-crash"
WORKER_DEATH = "worker-death"
OPTIONS = {
    CHILD_FINISHES: "child A may call finish(result)",
    CHILD_KEEPS: "child A may call finish(result, keep=True)",
    CHILD_RESTORES: "child A may call restore(C0)",
    HOST_CRASH: "one host crash: every VM and the daemon die; all checkpoints that are only published survive, or all are lost",
    WORKER_DEATH: "one death of an agentd worker",
}

# Kinds of operations that share rules.
OPERATOR_KINDS = (OPERATOR_SNAPSHOT, OPERATOR_RESTORE, OPERATOR_BRANCH_AT, HIBERNATE)
CAPTURING_BRANCHES = (BRANCH, BRANCH_WAVES, BRANCH_MIN_OK)
BRANCHES_AT = (BRANCH_AT, OPERATOR_BRANCH_AT)
BRANCHES = CAPTURING_BRANCHES + BRANCHES_AT
LINE_RESTORES = (RESTORE, OPERATOR_RESTORE, ADOPT)  # of the sandbox's first line
RESTORES = LINE_RESTORES + (RESTORE_BY_CHILD,)
MOVES = (REBASE, HIBERNATE)
ANSWERED_AT_THAW = (SNAPSHOT, OPERATOR_SNAPSHOT, REBASE)
SNAPSHOTS_BY_GUEST = (SNAPSHOT, SNAPSHOT_DURABLE, REBASE)

_CHILD_KINDS = {CHILD_KEEP: FINISH_KEEP, CHILD_RESTORE: RESTORE_BY_CHILD}


class Scenario:
    """The script of a run: mode, operations in their order, faults, mutants."""

    def __init__(
        self,
        mode: str,
        operations: Iterable[str],
        faults: int = 3,
        options: Iterable[str] = (),
        mutants: Iterable[str] = (),
    ) -> None:
        self.mode = mode
        self.operations: tuple[str, ...] = tuple(operations)
        self.faults = faults
        self.options: frozenset[str] = frozenset(options)
        self.mutants: frozenset[str] = frozenset(mutants)
        _refuse_unknown("mode", [mode], MODES)
        _refuse_unknown("operation", self.operations, OPERATIONS)
        _refuse_unknown("option", self.options, OPTIONS)
        _refuse_unknown("mutant", self.mutants, m.MUTANTS)

    def kind(self, key: int) -> str:
        """The kind of the operation with this key; empty if there is none."""
        if 0 <= key < len(self.operations):
            return self.operations[key]
        return _CHILD_KINDS.get(key, "")

    def checkpoint_index(self, key: int) -> int:
        """Where an operation's checkpoint stands in State.checkpoints."""
        return len(self.operations) if key in _CHILD_KINDS else key

    def caller(self, state: State) -> int:
        """The key that prepare and thaw name for the present operation."""
        return NO_KEY if self.kind(state.operation) in OPERATOR_KINDS else state.operation

    def unreferenced(self, state: State, index: int) -> bool:
        """The checkpoint is of class `internal` and nothing refers to it."""
        if index < len(self.operations):
            kind = self.operations[index]
        else:
            kind = FINISH_KEEP if CHILD_KEEPS in self.options else RESTORE_BY_CHILD
        if kind in CAPTURING_BRANCHES:
            return index not in state.committed
        if kind == FINISH_KEEP:
            return not state.kept
        if kind == HIBERNATE:
            held = state.hibernated is not None and state.hibernated.operation == index
            waking = state.step == "thaw" and state.operation == index
            return not held and not waking
        return False

    def without_garbage(self, state: State) -> tuple[int, ...]:
        """The checkpoints without temporary directories and captures to which nothing refers."""
        keep = m.INTERNAL_CAPTURES_KEPT in self.mutants
        return tuple(
            ABSENT if stage == TEMPORARY or (self.unreferenced(state, i) and not keep) else stage
            for i, stage in enumerate(state.checkpoints)
        )

    def initial(self) -> State:
        """A running parent, an idle daemon, nothing asked yet."""
        one = frozenset([PARENT])
        return State(
            daemon=UP,
            step=IDLE,
            operation=NO_KEY,
            freeze=0,
            capture=None,
            notes=EMPTY,
            payload_known=False,
            target=PARENT,
            journal_resumes_at=None,
            parent=VM(identity=True, epoch=1),
            child_a=None,
            child_b=None,
            replacement=None,
            successor=None,
            to_guests=EMPTY,
            to_host=EMPTY,
            last_freeze=0,
            parent_epoch=1,
            child_epoch=1,
            vm_records=one,
            streams=one,
            checkpoints=(ABSENT,) * (len(self.operations) + 1),
            op_record=None,
            sandbox=SANDBOX_RUNNING,
            current=PARENT,
            live=one,
            results=EMPTY,
            hibernated=None,
            kept=None,
            slot_holder=CHILD_A,
            incarnation=1,
            next_operation=0,
            budget=self._budget(),
            committed=EMPTY,
            epoch_before_move=0,
            incarnation_ran=False,
            host_crashed=False,
            double_use="",
            loss="",
        )

    def _budget(self) -> Budget:
        return Budget(
            total=self.faults,
            kill_daemon=DAEMON_KILLS,
            kill_vm=2,
            lose=2,
            duplicate=1,
            no_space=1,
            journal=1,
            host_crash=int(HOST_CRASH in self.options),
            worker_death=int(WORKER_DEATH in self.options),
        )


def _refuse_unknown(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ValueError(f"unknown {what} {', '.join(unknown)}; known: {', '.join(known)}")

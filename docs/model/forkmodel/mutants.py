"""The mutants: rules of the protocol that the model can be run without.

Each mutant takes away one rule. A run with a mutant must find a violation; if
it does not, either the rule is not needed or the properties do not see why it
is. MUTANTS is the source of mutants.json.
"""
from __future__ import annotations

import json
from typing import NamedTuple

from .runs import Run


class Mutant(NamedTuple):
    """One rule taken away, and the smallest run found that notices."""

    name: str
    section: int  # of docs/FORK_PROTOCOL.md
    rule: str  # the rule, as the protocol has it
    change: str  # what is done instead
    run: Run  # its `states` counts the states seen up to the violation
    violation: str  # the property that notices, as reported


MUTANTS: dict[str, Mutant] = {}


def _mutant(name: str, section: int, rule: str, change: str, run: Run, violation: str) -> str:
    MUTANTS[name] = Mutant(name, section, rule, change, run, violation)
    return name


# ---- the table, in the order of the sections

PAYLOAD_NOT_RECORDED = _mutant(
    "payload-not-recorded",
    section=1,
    rule="op records hold the payloads",
    change="they do not, and a restarted daemon has lost them",
    run=Run("root", ("operator-branch-at",), 1, (), 517),
    violation="I1 child_a got an outcome without its payload",
)

INTERNAL_CAPTURES_KEPT = _mutant(
    "internal-captures-kept",
    section=1,
    rule="a capture of class internal lives while something refers to it",
    change="it is kept for ever",
    run=Run("root", ("hibernate",), 0, (), 57),
    violation="I5 a capture of class internal is left to which nothing refers",
)

NO_VM_RECORD = _mutant(
    "no-vm-record",
    section=1,
    rule="the vm record is written before the VM exists",
    change="it is written by the commit",
    run=Run("root", ("operator-branch-at",), 1, (), 357),
    violation="I5 orphan VM child_a",
)

FREEZE_NOT_COMPARED = _mutant(
    "freeze-not-compared",
    section=2,
    rule="thaw and abort act only on the freeze that they name",
    change="freeze numbers are not compared",
    run=Run("root", ("snapshot", "snapshot"), 0, (), 1382),
    violation="I3 parent runs user code before the identity fix",
)

ABORT_WHEN_QUIESCED = _mutant(
    "abort-when-quiesced",
    section=2,
    rule="abort is ignored in quiesced",
    change="the host aborts a quiesced guest, and the guest obeys",
    run=Run("root", ("snapshot",), 1, (), 636),
    violation="I3 parent runs user code before the identity fix",
)

DEADLINE_WHEN_QUIESCED = _mutant(
    "deadline-when-quiesced",
    section=2,
    rule="there is no deadline in quiesced",
    change="a deadline thaws the quiesced guest",
    run=Run("root", ("snapshot",), 0, (), 89),
    violation="I3 parent runs user code before the identity fix",
)

NO_POSITION_ACK = _mutant(
    "no-position-ack",
    section=2,
    rule="preparing ends in quiesced only with the host's ack-position",
    change="the guest becomes quiesced without it",
    run=Run("root", ("snapshot",), 0, (), 121),
    violation="I8 the current timeline is frozen or paused for ever",
)

PENDING_TABLE_IGNORED = _mutant(
    "pending-table-ignored",
    section=2,
    rule="an outcome is applied only to a key that is pending",
    change="it is applied to a call already answered",
    run=Run("root", ("snapshot",), 0, (), 48),
    violation="I1 second outcome in parent",
)

OLDER_EPOCH_TAKEN = _mutant(
    "older-epoch-taken",
    section=2,
    rule="an epoch of the same stream is taken only if it is newer",
    change="any epoch is taken",
    run=Run("root", ("hibernate",), 2, (), 2295),
    violation="I8 the workspace stream of the parent stays fenced off",
)

MOVE_INTERRUPTS = _mutant(
    "move-interrupts",
    section=2,
    rule="InterruptedByFork only when the timeline id is new",
    change="a move interrupts the other pending calls",
    run=Run("root", ("llm-query", "hibernate"), 0, (), 151),
    violation="I1 a pending call is interrupted by a move",
)

START_NUMBER_REUSED = _mutant(
    "start-number-reused",
    section=2,
    rule="a new worker gets a higher start number, so keys are never used twice",
    change="its first call has the key of the lost one",
    run=Run("root", ("snapshot",), 2, ("worker-death",), 13370),
    violation="I7 the caller holds the id of a checkpoint that is not published",
)

NEWEST_FREEZE_FORGOTTEN = _mutant(
    "newest-freeze-forgotten",
    section=2,
    rule="PID 1 keeps the newest freeze seen for a new worker",
    change="a new worker has seen none",
    run=Run("root", ("snapshot",), 1, ("worker-death",), 947),
    violation="LIVELOCK thaw is re-sent without end",
)

NOT_RESENT = _mutant(
    "not-resent",
    section=3,
    rule="thaw and outcome are re-sent until acknowledged",
    change="they are sent once",
    run=Run("root", ("snapshot",), 1, (), 658),
    violation="I8 the current timeline is frozen or paused for ever",
)

NO_SETTLE = _mutant(
    "no-settle",
    section=3,
    rule="a failed or unclear prepare is settled",
    change="the daemon sends abort once and gives up",
    run=Run("root", ("snapshot",), 0, (), 45),
    violation="I8 the current timeline is frozen or paused for ever",
)

BYSTANDERS_FAILED = _mutant(
    "bystanders-failed",
    section=3,
    rule="settle gives no outcome to a call that the freeze does not name",
    change="it fails whatever call is pending",
    run=Run("root", ("llm-query", "operator-snapshot"), 0, (), 59),
    violation="I1 a call is failed by an operation that it has no part in",
)

TOLD_BEFORE_PUBLISH = _mutant(
    "told-before-publish",
    section=4,
    rule="the id of a snapshot is told after publish",
    change="thaw{ok, id} comes before publish",
    run=Run("root", ("snapshot",), 0, (), 75),
    violation="I7 the caller holds the id of a checkpoint that is not published",
)

MOVE_COMMITS_BEFORE_PUBLISH = _mutant(
    "move-commits-before-publish",
    section=5,
    rule="a move publishes its capture before commit 1",
    change="commit 1 comes before publish",
    run=Run("root", ("rebase",), 0, (), 65),
    violation="I7 hibernated without a published checkpoint",
)

HIBERNATE_NOT_DURABLE = _mutant(
    "hibernate-not-durable",
    section=5,
    rule="the checkpoint of hibernate and park is durable before commit 1",
    change="it is only published",
    run=Run("root", ("hibernate",), 0, (), 43),
    violation="I7 hibernated without a durable checkpoint",
)

MOVE_LEAVES_OLD_VM = _mutant(
    "move-leaves-old-vm",
    section=5,
    rule="the old VM is killed and reaped before the next incarnation is loaded",
    change="it is left for later",
    run=Run("root", ("rebase",), 0, (), 80),
    violation="I9 a second incarnation is committed while the VM of the first exists",
)

OLD_VM_UNPAUSED_BY_RECOVERY = _mutant(
    "old-vm-unpaused-by-recovery",
    section=5,
    rule="after commit 1 the old VM is never un-paused",
    change="recovery un-pauses and thaws it",
    run=Run("root", ("hibernate",), 1, (), 459),
    violation="I9 an incarnation runs though the timeline is hibernated, or two run",
)

CAPTURE_LOADED_TWICE = _mutant(
    "capture-loaded-twice",
    section=5,
    rule="after commit 2 the capture is never loaded again under this timeline id",
    change="the timeline stays wakeable",
    run=Run("root", ("hibernate",), 1, ("host-crash",), 663),
    violation="I9 a capture whose incarnation has run is loaded again for the same timeline",
)

MOVE_KEEPS_EPOCH = _mutant(
    "move-keeps-epoch",
    section=5,
    rule="the thaw after commit 2 carries a higher epoch",
    change="it carries the same epoch",
    run=Run("root", ("hibernate",), 0, (), 56),
    violation="I8 an incarnation runs at an epoch of the one before",
)

FINISH_KILLS_EARLY = _mutant(
    "finish-kills-early",
    section=6,
    rule="finish writes the result, then kills",
    change="it kills, then writes",
    run=Run("root", ("branch",), 1, ("child-finish",), 3056),
    violation="I1/I5 a finished child is reported dead, its result is lost",
)

FINISH_KEEP_KILLS_EARLY = _mutant(
    "finish-keep-kills-early",
    section=6,
    rule="finish(keep) commits, then kills",
    change="it kills, then commits",
    run=Run("root", ("branch",), 1, ("child-finish-keep",), 5798),
    violation="I1/I5 a finished child is reported dead, its result is lost",
)

PARENT_ANSWERED_AT_THAW = _mutant(
    "parent-answered-at-thaw",
    section=7,
    rule="the parent of a branch is answered after the commit",
    change="its thaw carries ok",
    run=Run("root", ("branch",), 0, (), 77),
    violation="I6 the parent is told ok before the commit",
)

RECORD_CLOSED_WHEN_SENT = _mutant(
    "record-closed-when-sent",
    section=7,
    rule="an op is over when thaw and outcome are acknowledged",
    change="it is over when they are sent",
    run=Run("root", ("branch-at",), 0, (), 145),
    violation="I6 a branch is committed twice",
)

PARENT_WAITS_FOR_CHILDREN = _mutant(
    "parent-waits-for-children",
    section=7,
    rule="children and parent are thawed and answered in any order",
    change="the parent waits for the children's thaws",
    run=Run("root", ("branch-at",), 1, (), 205),
    violation="I1 a pending call is never answered",
)

FAILED_CHILDREN_FORGOTTEN = _mutant(
    "failed-children-forgotten",
    section=7,
    rule="the commit of a min_ok branch writes results for the failed children",
    change="they get none",
    run=Run("root", ("branch-min-ok",), 1, (), 2299),
    violation="I6 a child is lost without a result",
)

COPY_ANSWERED_UNDER_PARENTS_KEY = _mutant(
    "copy-answered-under-parents-key",
    section=7,
    rule="copies are answered under the key of the checkpoint's caller",
    change="they are answered under the key of the asking call",
    run=Run("root", ("branch-at",), 0, (), 72),
    violation="I1 a pending call in child_a is never answered",
)

KEPT_PRESENT_PUBLISHED_LATE = _mutant(
    "kept-present-published-late",
    section=8,
    rule="a kept present is published before the commit of a restore",
    change="it is published after it",
    run=Run("root", ("restore",), 1, (), 710),
    violation="I7 the old timeline is gone and the kept present not published",
)

RESTORE_SPARES_CHILDREN = _mutant(
    "restore-spares-children",
    section=8,
    rule="the commit of a restore ends the old timeline's descendants",
    change="it ends the old timeline only",
    run=Run("root", ("operator-branch-at", "operator-restore"), 2, (), 18548),
    violation="I5 children of the replaced timeline live on",
)

DEAD_OLD_VM_IGNORED = _mutant(
    "dead-old-vm-ignored",
    section=8,
    rule="before the commit of a restore the old VM's death stops its timeline",
    change="the daemon expects the old VM to live",
    run=Run("root", ("restore",), 1, (), 615),
    violation="I2 no timeline is left and no error is reported",
)

DEAD_NEW_VM_IGNORED = _mutant(
    "dead-new-vm-ignored",
    section=8,
    rule="after the commit of a restore the new VM's death stops its timeline",
    change="the daemon expects the new VM to live",
    run=Run("root", ("operator-restore",), 1, (), 476),
    violation="I2 no timeline is left and no error is reported",
)

SLOT_NOT_INHERITED = _mutant(
    "slot-not-inherited",
    section=8,
    rule="the new timeline of a child's restore inherits the branch slot",
    change="it does not",
    run=Run("root", ("branch",), 0, ("child-restore",), 256),
    violation="I6 the slot of the replaced child has no timeline",
)

CHILD_RESTORE_REPLACES_SANDBOX = _mutant(
    "child-restore-replaces-sandbox",
    section=8,
    rule="a restore replaces the timeline of the caller's line only",
    change="a child's restore replaces the sandbox's line",
    run=Run("root", ("branch",), 0, ("child-restore",), 256),
    violation="I2/I4 a replaced timeline runs after the commit",
)

NO_SWEEP = _mutant(
    "no-sweep",
    section=9,
    rule="recovery sweeps streams, temporary directories and unreferenced captures",
    change="it sweeps VMs and their records only",
    run=Run("root", ("operator-branch-at",), 1, (), 258),
    violation="I5 orphan stream record",
)

FAILED_WRITE_TAKEN_AS_ABSENT = _mutant(
    "failed-write-taken-as-absent",
    section=9,
    rule="after a failed write a later transaction reads whether the record is there",
    change="a failed write is taken as absent",
    run=Run("root", ("operator-branch-at",), 1, (), 396),
    violation="I5 an op record is never removed",
)

RUNNING_GUEST_LEFT_ALONE = _mutant(
    "running-guest-left-alone",
    section=9,
    rule="recovery settles every surviving guest",
    change="it leaves running guests alone",
    run=Run("root", ("snapshot",), 1, (), 130),
    violation="I1 a pending call is never answered",
)

CALL_RUN_AGAIN = _mutant(
    "call-run-again",
    section=9,
    rule="a pending operation is never run again by recovery",
    change="recovery takes it as a new call",
    run=Run("root", ("branch-at",), 1, (), 1350),
    violation="I6 a committed child is never thawed",
)

UNPAUSED_BEFORE_JOURNAL = _mutant(
    "unpaused-before-journal",
    section=9,
    rule="no VM is un-paused and no guest is spoken to before A and B are done",
    change="recovery un-pauses and thaws first",
    run=Run("root", ("hibernate",), 1, (), 497),
    violation="I9 an incarnation runs though the timeline is hibernated, or two run",
)

FSYNC_NOT_REPEATED = _mutant(
    "fsync-not-repeated",
    section=9,
    rule="recovery answers a durable snapshot only once it is durable",
    change="a published one is taken as durable",
    run=Run("root", ("snapshot-durable",), 1, (), 764),
    violation="I7 a durable checkpoint is told before it is durable",
)


# ---- the same for other programs


def as_json() -> str:
    """The content of mutants.json."""
    rows = [{"name": x.name, "section": x.section, "rule": x.rule, "change": x.change} for x in MUTANTS.values()]
    return json.dumps({"mutants": rows}, indent=2) + "\n"

"""Snapshot, and the steps that all captures share (section 4)."""
from __future__ import annotations

from .. import mutants as m
from ..expansion import Expansion, daemon_step
from ..scenario import (
    ANSWERED_AT_THAW,
    BRANCH,
    CAPTURING_BRANCHES,
    FINISH_KEEP,
    HIBERNATE,
    MOVES,
    REBASE,
    RESTORE,
    RESTORES,
    SNAPSHOT,
    SNAPSHOT_DURABLE,
)
from ..state import (
    ABSENT,
    DURABLE,
    EMPTY,
    ERROR,
    OK,
    PARENT,
    PENDING,
    PUBLISHED,
    RUNNING,
    SENT_OUTCOME,
    SENT_THAW,
    TEMPORARY,
    Capture,
    State,
    abort,
    gave_up,
    outcome,
    outcome_ack,
    prepare,
    prepare_failed,
    quiesced,
    thaw,
    thawed,
)

# ---- prepare


@daemon_step("prepare", needs_target=True)
def send_prepare(x: Expansion) -> None:
    with x.step(f"daemon sends prepare(freeze {x.now.freeze})") as s:
        s.send(prepare(s.target, s.freeze, x.scenario.caller(s)))
        s.step = "await-quiesced"


@daemon_step("await-quiesced", needs_target=True)
def await_quiesced(x: Expansion) -> None:
    good = quiesced(x.now.target, x.now.freeze)
    bad = prepare_failed(x.now.target, x.now.freeze)
    if good in x.now.to_host:
        with x.step("daemon reads quiesced and end") as s:
            s.to_host -= {good}
            s.step = "pause"
    elif bad in x.now.to_host:
        with x.step("daemon reads prepare-failed") as s:
            s.to_host -= {bad}
            s.step = "settle"
    _prepare_deadline(x)
    x.drop_messages((good, bad))


def _prepare_deadline(x: Expansion) -> None:
    if not x.without(m.NO_SETTLE):
        with x.step("daemon: deadline passed or link lost") as s:
            s.step = "settle"
        return
    with x.step("daemon: deadline passed, sends abort and gives up") as s:
        key = s.operation
        s.send(abort(PARENT, s.freeze))
        if s.must(PARENT).guest == RUNNING:
            s.send(outcome(PARENT, key, ERROR))
        s.become_idle()
        s.notes = frozenset([gave_up(key)])


# ---- pause, capture, publish


@daemon_step("pause", needs_target=True)
def pause(x: Expansion) -> None:
    with x.step(f"daemon pauses {x.now.target}") as s:
        s.update(s.target, paused=True, identity=False)
        s.step = "capture"


@daemon_step("capture", needs_target=True)
def capture(x: Expansion) -> None:
    with x.step("daemon captures into a temporary directory") as s:
        vm = s.must(s.target)
        s.capture = Capture(vm.guest, vm.freeze, vm.pending)
        s.set_checkpoint(x.scenario.checkpoint_index(s.operation), TEMPORARY)
        s.step = _after_capture(x)
    if x.may("no_space"):
        with x.fault("no_space", "capture: no space") as s:
            s.step = "rollback"


def _after_capture(x: Expansion) -> str:
    """An operation that may end this VM leaves it paused until its commit."""
    if x.kind in MOVES and x.without(m.MOVE_COMMITS_BEFORE_PUBLISH):
        return "move-commit-1"
    if x.kind == RESTORE and x.without(m.KEPT_PRESENT_PUBLISHED_LATE):
        return "restore-records"
    if x.kind in RESTORES or x.kind in MOVES or x.kind == FINISH_KEEP:
        return "publish"
    return "unpause"


@daemon_step("unpause", needs_target=True)
def unpause(x: Expansion) -> None:
    with x.step(f"daemon un-pauses {x.now.target}") as s:
        s.update(s.target, paused=False)
        s.step = "thaw" if _told_too_early(x) else "publish"


def _told_too_early(x: Expansion) -> bool:
    return x.kind == SNAPSHOT and x.without(m.TOLD_BEFORE_PUBLISH)


@daemon_step("publish", needs_target=True)
def publish(x: Expansion) -> None:
    index = x.scenario.checkpoint_index(x.now.operation)
    with x.step("daemon publishes the checkpoint (rename)") as s:
        s.set_checkpoint(index, PUBLISHED)
        s.step = _after_publish(x)
        if _told_too_early(x):
            s.become_idle()
    if x.may("no_space"):
        with x.fault("no_space", "publish: no space") as s:
            s.set_checkpoint(index, ABSENT)
            s.step = "rollback"
            if _told_too_early(x):
                s.become_idle()


def _after_publish(x: Expansion) -> str:
    kind = x.kind
    if kind in RESTORES:
        return "restore-records"
    if kind == REBASE:
        return "move-commit-1"
    if kind == HIBERNATE:
        return "move-commit-1" if x.without(m.HIBERNATE_NOT_DURABLE) else "move-durable"
    if kind == FINISH_KEEP:
        return "finish-kill-early" if x.without(m.FINISH_KEEP_KILLS_EARLY) else "finish-commit"
    return "thaw"


# ---- thaw and outcome


@daemon_step("thaw", needs_target=True)
def thaw_target(x: Expansion) -> None:
    answered = x.kind in ANSWERED_AT_THAW or (x.kind == BRANCH and x.without(m.PARENT_ANSWERED_AT_THAW))
    thaw_until_acknowledged(x, OK if answered else PENDING)


def thaw_until_acknowledged(x: Expansion, result: str) -> None:
    """Send thaw to the target, again after a loss, until thawed comes."""
    now = x.now
    ack = thawed(now.target, now.freeze)
    if ack in now.to_host:
        with x.step("daemon reads thawed") as s:
            s.to_host -= {ack}
            _after_thaw(x, s, result)
    elif not now.thaw_in_flight(now.target, now.freeze):
        if x.without(m.NOT_RESENT) and SENT_THAW in now.notes:
            with x.step("daemon goes on without thawed") as s:
                _after_thaw(x, s, result)
        elif not _send_thaw(x, result):
            return
    x.drop_messages((ack,))


def _send_thaw(x: Expansion, result: str) -> bool:
    """Send it; False if a mutant's abort is still in flight."""
    now, target = x.now, x.now.target
    by_abort = x.without(m.ABORT_WHEN_QUIESCED) and result == ERROR
    if by_abort and now.in_flight("abort", PARENT):
        return False
    with x.step(f"daemon sends {'abort' if by_abort else 'thaw'}({result or 'pending'}) to {target}") as s:
        s.note(SENT_THAW)
        if by_abort:
            s.send(abort(PARENT, s.freeze))
            return True
        if not (x.kind in MOVES and x.without(m.MOVE_KEEPS_EPOCH)):
            s.raise_epoch(target)
        s.send(thaw(target, s.freeze, s.epoch(target), x.scenario.caller(s), result))
    return True


def _after_thaw(x: Expansion, s: State, result: str) -> None:
    s.notes = EMPTY
    if _told_too_early(x) and result == OK:
        s.step = "publish"
    elif x.kind in CAPTURING_BRANCHES and result != ERROR:
        s.step = "branch-records"
    elif x.kind == SNAPSHOT_DURABLE and result != ERROR:
        s.step = "make-durable"
    else:
        s.become_idle()
        s.checkpoints = x.scenario.without_garbage(s)


@daemon_step("make-durable", needs_target=True)
def make_durable(x: Expansion) -> None:
    with x.step("daemon makes the checkpoint durable") as s:
        s.set_checkpoint(s.operation, DURABLE)
        s.step = "outcome-ok"
    if x.may("no_space"):
        with x.fault("no_space", "fsync: no space, the checkpoint is removed") as s:
            s.set_checkpoint(s.operation, ABSENT)
            s.step = "outcome-error"


@daemon_step("outcome-ok", needs_target=True)
def answer_ok(x: Expansion) -> None:
    answer_parent(x, OK)


@daemon_step("outcome-error", needs_target=True)
def answer_error(x: Expansion) -> None:
    answer_parent(x, ERROR)


def answer_parent(x: Expansion, result: str) -> None:
    """Send the outcome, again after a loss, until it is acknowledged."""
    ack = outcome_ack(PARENT, x.now.operation)
    if ack in x.now.to_host:
        with x.step("daemon reads outcome-ack") as s:
            s.to_host -= {ack}
            s.become_idle()
    elif not x.now.in_flight("outcome", PARENT):
        if x.without(m.NOT_RESENT) and SENT_OUTCOME in x.now.notes:
            with x.step("daemon goes on without outcome-ack") as s:
                s.become_idle()
        else:
            with x.step(f"daemon sends outcome({result}) to parent") as s:
                s.note(SENT_OUTCOME)
                s.send(outcome(PARENT, s.operation, result))
    x.drop_messages((ack,))


# ---- failure after quiesced


@daemon_step("rollback")
def roll_back(x: Expansion) -> None:
    """Before a commit: remove the capture, un-pause, thaw with the error."""
    now, target = x.now, x.now.target
    if x.kind == RESTORE and x.without(m.DEAD_OLD_VM_IGNORED) and not now.alive(PARENT):
        with x.step("daemon: the old VM to be resumed with the error is gone") as s:
            s.become_idle()
            s.step = "stuck"
        return
    if x.target_died():
        return
    if TEMPORARY in now.checkpoints:
        with x.step("daemon removes the temporary directory") as s:
            s.checkpoints = tuple(ABSENT if stage == TEMPORARY else stage for stage in s.checkpoints)
    elif now.must(target).paused:
        with x.step(f"daemon un-pauses {target}") as s:
            s.update(target, paused=False)
    elif x.kind in (FINISH_KEEP, HIBERNATE) and x.scenario.without_garbage(now) != now.checkpoints:
        with x.step("daemon removes the capture") as s:
            s.checkpoints = x.scenario.without_garbage(s)
    else:
        thaw_until_acknowledged(x, ERROR)

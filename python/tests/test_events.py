"""on_resume callbacks."""

from __future__ import annotations

import logging
import queue
import random
import threading
from pathlib import Path
from typing import Any

import pytest

import ratoon
from ratoon import _events

from .fake import FakeAgent, failed, ok, resume, wait_until
from .test_transport import forked

CP = "cp-3jk5m2q7xw4n6c2a"
PATIENCE = 30.0  # seconds until a test gives up what must come

Call = tuple[str, float, list[str]]


class Recorder:
    """A callback that notes its calls and their threads."""

    def __init__(self) -> None:
        self.calls: queue.Queue[Call] = queue.Queue()
        self.threads: list[int] = []

    def __call__(self, reason: str, slept: float, lost: list[str]) -> None:
        self.threads.append(threading.get_ident())
        self.calls.put((reason, slept, lost))

    def next(self) -> Call:
        return self.calls.get(timeout=PATIENCE)


def snapshot(agent: FakeAgent, event: dict[str, Any]) -> None:
    agent.answer["snapshot"] = lambda _: ok({"id": CP}, resume=event)
    ratoon.snapshot()


def test_every_thaw_is_told_in_the_background(agent: FakeAgent) -> None:
    agent.newest = resume(7)  # before the registration: not told
    heard = Recorder()
    assert ratoon.on_resume(heard) is heard
    agent.thaw(resume(8, reason="wake", slept=2_500_000_000, lost=["workspace"]))
    agent.thaw(resume(9, reason="snapshot"))
    assert heard.next() == ("wake", 2.5, ["workspace"])
    assert heard.next() == ("snapshot", 1.5, [])
    assert heard.calls.empty()
    assert threading.get_ident() not in heard.threads
    listener = next(t for t in threading.enumerate() if t.name == "ratoon-events")
    assert listener.daemon


def test_one_listener_for_all_callbacks_in_order(agent: FakeAgent) -> None:
    order: list[int] = []
    for number in range(3):
        ratoon.on_resume(lambda *_, n=number: order.append(n))
    heard = Recorder()
    ratoon.on_resume(heard)
    agent.thaw(resume(1))
    heard.next()
    assert order == [0, 1, 2]
    assert len(agent.of("events")) == 1


def test_callbacks_are_done_when_the_call_returns(agent: FakeAgent) -> None:
    heard = Recorder()
    ratoon.on_resume(heard)
    snapshot(agent, resume(1, reason="snapshot"))  # the event has not come
    assert heard.calls.get_nowait() == ("snapshot", 1.5, [])
    agent.thaw(resume(1, reason="snapshot"))  # now it has: not told again
    agent.thaw(resume(2, reason="wake"))
    assert heard.next()[0] == "wake"
    assert heard.calls.empty()


def test_the_call_waits_for_callbacks_in_the_background(agent: FakeAgent) -> None:
    begun, go = threading.Event(), threading.Event()
    done: list[str] = []

    def slow(*_: object) -> None:
        begun.set()
        go.wait()
        done.append("callback")

    ratoon.on_resume(slow)
    agent.thaw(resume(1))
    begun.wait()

    def call() -> None:
        snapshot(agent, resume(1))
        done.append("call")

    caller = threading.Thread(target=call)
    caller.start()
    # The reply is there; only the callback keeps the call from returning.
    wait_until(lambda: bool(agent.of("snapshot")))
    assert done == []
    go.set()
    caller.join()
    assert done == ["callback", "call"]


def test_identity_is_new_when_callbacks_run(agent: FakeAgent) -> None:
    state = random.getstate()
    states: list[object] = []
    ratoon.on_resume(lambda *_: states.append(random.getstate()))
    heard = Recorder()
    ratoon.on_resume(heard)
    agent.thaw(resume(1))
    heard.next()
    assert states != [state]
    assert states == [random.getstate()]


def test_registration_does_not_hide_a_thaw_from_a_pending_call(agent: FakeAgent) -> None:
    agent.newest = resume(1)
    heard = Recorder()
    ratoon.on_resume(heard)
    state = random.getstate()
    snapshot(agent, resume(1))  # came back by that thaw, its reply was read later
    assert random.getstate() != state
    assert heard.calls.empty()


def test_a_failing_callback_is_logged(agent: FakeAgent, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise LookupError("of the callback")

    ratoon.on_resume(fail)
    heard = Recorder()
    ratoon.on_resume(heard)
    with caplog.at_level(logging.ERROR, "ratoon"):
        snapshot(agent, resume(1))
    assert heard.calls.get_nowait()
    assert "of the callback" in caplog.text


def test_a_callback_may_make_calls(agent: FakeAgent) -> None:
    order: list[str] = []

    def again(reason: str, *_: object) -> None:
        order.append(f"enter {reason}")
        if reason == "first":
            snapshot(agent, resume(2, reason="second"))
        order.append(f"leave {reason}")

    ratoon.on_resume(again)
    snapshot(agent, resume(1, reason="first"))
    assert order == ["enter first", "leave first", "enter second", "leave second"]


def test_restarted_agent(agent: FakeAgent) -> None:
    heard = Recorder()
    ratoon.on_resume(heard)
    agent.thaw(resume(1))
    heard.next()
    agent.stop()
    agent.newest = resume(2, reason="wake")  # came while nobody listened
    agent.start()
    assert heard.next()[0] == "wake"
    agent.thaw(resume(3, reason="restore"))
    assert heard.next()[0] == "restore"


@pytest.mark.parametrize(
    "reply", [b"\0\0\0\1\xc1", {}, {"resume": {"count": "x"}}, failed("internal")], ids=str
)
def test_malformed_events(agent: FakeAgent, reply: Any, caplog: pytest.LogCaptureFixture) -> None:
    agent.answer["events"] = lambda _: reply
    with pytest.raises(ratoon.RatoonError):
        ratoon.on_resume(Recorder())
    del agent.answer["events"]
    heard = Recorder()
    ratoon.on_resume(heard)
    agent.tell({"count": 1, "lost": 5})  # the listener ends the connection and makes another
    wait_until(lambda: len(agent.of("events")) == 3 and agent.listeners() == 1)
    agent.thaw(resume(1))
    assert heard.next()
    assert "connecting again" in caplog.text


def test_no_agent(socket_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATOON_SOCKET", str(socket_path.parent / "none" / "agent.sock"))
    with pytest.raises(ratoon.Unavailable):
        ratoon.on_resume(Recorder())
    assert _events._thaws._listener is None


def test_a_forked_child_starts_without_callbacks(agent: FakeAgent) -> None:
    heard = Recorder()
    ratoon.on_resume(heard)
    with _events._thaws._lock:  # as if another thread were telling
        status = forked(in_child)
    assert status == 0
    agent.thaw(resume(1))
    assert heard.next()


def in_child() -> bool:
    if threading.active_count() != 1:
        return False
    heard = Recorder()
    ratoon.on_resume(heard)
    return threading.active_count() == 2 and heard.calls.empty()

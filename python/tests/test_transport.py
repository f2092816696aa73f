"""The connection: missing, restarted and hostile agents, threads, forks, signals."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ratoon
from ratoon import _agent, _wire

from .fake import FakeAgent, failed, ok, pack

WHOAMI = {"timeline": "tl-a", "node": "0"}


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def test_no_agent(socket_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATOON_SOCKET", str(socket_path.parent / "none" / "agent.sock"))
    with pytest.raises(ratoon.Unavailable, match="inside a Ratoon sandbox"):
        ratoon.whoami()


def test_nobody_listens_for_long(socket_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_agent, "_CONNECT_SECONDS", 0.02)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(socket_path))
        with pytest.raises(ratoon.Unavailable, match="refused"):
            ratoon.whoami()


def test_agent_that_is_just_starting(agent: FakeAgent) -> None:
    agent.answer["whoami"] = lambda _: ok(WHOAMI)
    agent.stop()
    got: list[str] = []
    caller = threading.Thread(target=lambda: got.append(ratoon.whoami().node))
    caller.start()
    agent.start()
    caller.join()
    assert got == ["0"]


@pytest.mark.parametrize("reply", [None, b"", b"\0\0", b"\0\0\0\5", b"\0\0\0\5\x81\xa1"], ids=repr)
def test_connection_ends_without_a_reply(agent: FakeAgent, reply: bytes | None) -> None:
    agent.answer["sync"] = lambda _: reply
    with pytest.raises(ratoon.AgentRestarted):
        ratoon.sync()


def nested(depth: int) -> bytes:
    return b"\x81\xa1x" + b"\x91" * depth + b"\xc0"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc0",
        b"\x90",
        b"\xc1",
        b"\x80\x80",
        b"\x81\xa1x",
        b"\x81\x01\x02",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\1",
        b"\x81\xa1x" + b"\xdd\0\xff\xff\xff" * 30,
        nested(32),
        nested(600),
        nested(100_000),
        b"\x81\xa1x\xd6\xff\0\0\0\0",
        b"\x81\xa1x\xd4\5\0",
        pack({"error": 1}),
        pack({"error": {"code": 1}}),
        pack({"error": {"code": "busy", "details": []}}),
        pack({"value": "text"}),
        pack({"value": b"\x90"}),
        pack({"value": b"\xdd\xff\xff\xff\xff"}),
        pack({"value": pack({"position": {"sequence": True}})}),
        pack({"value": pack({"position": {"stream": 1}})}),
        pack({"resume": []}),
        pack({"resume": {"count": "1"}}),
        pack({"resume": {"count": 1, "lost": [1]}}),
    ],
    ids=lambda body: repr(body[:24]),
)
def test_malformed_replies(agent: FakeAgent, body: bytes) -> None:
    agent.answer["sync"] = lambda _: framed(body)
    with pytest.raises(ratoon.ProtocolViolation):
        ratoon.sync()


def test_deepest_reply_that_is_accepted(agent: FakeAgent) -> None:
    agent.answer["sync"] = lambda _: framed(nested(31))
    assert ratoon.sync() == ratoon.Position("", 0)


@pytest.mark.parametrize("body", [b"\xc1", b"\xc0\xc0", b"\x91" * 33 + b"\xc0", b"\x81\x90\xc0"])
def test_malformed_payload(agent: FakeAgent, body: bytes) -> None:
    agent.answer["snapshot"] = lambda _: ok({"id": "cp-a", "payload": body})
    with pytest.raises(ratoon.ProtocolViolation):
        ratoon.snapshot()


@pytest.mark.parametrize("length", [_wire.MAX_MESSAGE + 1, 0xFFFFFFFF])
def test_too_long_reply_is_refused_before_it_comes(agent: FakeAgent, length: int) -> None:
    agent.answer["sync"] = lambda _: struct.pack(">I", length)
    with pytest.raises(ratoon.ProtocolViolation, match="over the limit"):
        ratoon.sync()


@pytest.mark.parametrize(
    "reply",
    [
        struct.pack(">I", _wire.MAX_MESSAGE) + b"\xc4",
        framed(b"\xdd\x03\xff\xff\xff"),
        framed(b"\x9f" + b"\xdd\x00\xff\xff\xff" * 15),
    ],
    ids=["length", "array", "arrays"],
)
def test_claims_take_no_memory(agent: FakeAgent, reply: bytes) -> None:
    agent.answer["sync"] = lambda _: reply
    tracemalloc.start()
    try:
        with pytest.raises((ratoon.ProtocolViolation, ratoon.AgentRestarted)):
            ratoon.sync()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_text_that_is_not_utf8(agent: FakeAgent) -> None:
    agent.answer["whoami"] = lambda _: framed(
        pack({"value": pack({"label": "@@"}).replace(b"@@", b"\xff@")})
    )
    assert ratoon.whoami().label == "\N{REPLACEMENT CHARACTER}@"


def test_refusal_of_a_request_that_was_not_read(socket_path: Path) -> None:
    """An agent may refuse a long request by its length and close."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(socket_path))
        server.listen()

        def refuse() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4)
                connection.sendall(framed(pack(failed("too_large", "too much"))))
                connection.shutdown(socket.SHUT_RD)

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises((ratoon.TooLarge, ratoon.AgentRestarted)) as got:
            ratoon.restore("cp-a", payload=b"x" * (8 << 20))
        thread.join()
    # Linux drops unread replies only when the peer resets, which a unix socket
    # does when it closes with unread data.
    assert got.type in (ratoon.TooLarge, ratoon.AgentRestarted)


def test_threads_have_a_connection_each(agent: FakeAgent) -> None:
    together = threading.Barrier(8)

    def answer(arguments: dict[str, Any]) -> dict[str, Any]:
        together.wait()  # all eight calls are pending at once
        return ok({"completions": [{"text": p} for p in arguments["prompts"]]})

    agent.answer["llm_query"] = answer
    got: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda n=n: got.update({n: ratoon.llm_query(str(n))}))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {n: str(n) for n in range(8)}


def test_interrupted_by_fork_in_a_pending_thread(agent: FakeAgent) -> None:
    copied = threading.Event()

    def wait(_: dict[str, Any]) -> dict[str, Any]:
        copied.wait()
        return failed("interrupted_by_fork")

    agent.answer["llm_query"] = wait
    agent.answer["branch"] = lambda _: ok({"id": "br-a", "index": 0, "n": 1})
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            ratoon.llm_query("x")
        except ratoon.RatoonError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert ratoon.branch(1).index == 0
    copied.set()
    thread.join()
    assert [type(e) for e in errors] == [ratoon.InterruptedByFork]


def test_under_asyncio(agent: FakeAgent) -> None:
    agent.answer["llm_query"] = lambda a: ok({"completions": [{"text": p} for p in a["prompts"]]})

    async def main() -> list[str]:
        return await asyncio.gather(*(asyncio.to_thread(ratoon.llm_query, p) for p in "abc"))

    assert asyncio.run(main()) == ["a", "b", "c"]


def test_default_timeout_of_sockets_does_not_apply(agent: FakeAgent) -> None:
    def slow(_: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.05)
        return ok(WHOAMI)

    agent.answer["whoami"] = slow
    socket.setdefaulttimeout(0.001)
    try:
        assert ratoon.whoami().node == "0"
    finally:
        socket.setdefaulttimeout(None)


def in_signal(handler: Callable[..., Any], agent: FakeAgent) -> Any:
    """Makes a call during which a signal comes; returns what the call returns."""
    pending, go = threading.Event(), threading.Event()

    def wait(_: dict[str, Any]) -> dict[str, Any]:
        pending.set()
        go.wait()
        return ok(WHOAMI)

    def interrupt() -> None:
        pending.wait()
        os.kill(os.getpid(), signal.SIGUSR1)

    def handle(*_: object) -> None:
        go.set()
        handler()

    agent.answer["whoami"] = wait
    old = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        return ratoon.whoami()
    finally:
        go.set()
        thread.join()
        signal.signal(signal.SIGUSR1, old)


def test_a_signal_does_not_end_a_call(agent: FakeAgent) -> None:
    assert in_signal(lambda: None, agent).node == "0"


def test_an_exception_gives_the_call_up(agent: FakeAgent) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_signal(interrupt, agent)
    assert agent.closed.wait(30)
    assert _agent._open == set()


def forked(function: Callable[[], object]) -> int:
    """Runs a function in a child of os.fork(); returns 0 if it returned true."""
    process = os.fork()
    if process == 0:
        try:
            os._exit(0 if function() else 1)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def test_calls_in_a_forked_child(agent: FakeAgent) -> None:
    agent.answer["whoami"] = lambda _: ok(WHOAMI)
    ratoon.whoami()
    assert forked(lambda: ratoon.whoami().node == "0") == 0
    assert ratoon.whoami().node == "0"


def test_a_forked_child_does_not_hold_the_parents_calls(agent: FakeAgent) -> None:
    pending, go = threading.Event(), threading.Event()

    def wait(_: dict[str, Any]) -> dict[str, Any]:
        pending.set()
        go.wait()
        return ok(WHOAMI)

    agent.answer["whoami"] = wait
    thread = threading.Thread(target=ratoon.whoami)
    thread.start()
    pending.wait()
    assert len(_agent._open) == 1
    status = forked(lambda: _agent._open == set())
    go.set()
    thread.join()
    assert status == 0


def test_a_fork_within_a_call(agent: FakeAgent) -> None:
    """A signal handler forks: the child must not read its parent's reply."""
    parent = os.getpid()
    statuses: list[int] = []

    def handler() -> None:
        if (process := os.fork()) != 0:
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))

    try:
        in_signal_result = in_signal(handler, agent)
    except ratoon.InterruptedByFork:
        os._exit(0 if os.getpid() != parent else 1)
    except BaseException:
        if os.getpid() != parent:
            os._exit(1)
        raise
    if os.getpid() != parent:
        os._exit(2)
    assert in_signal_result.node == "0"
    assert statuses == [0]


def test_import_costs_no_thread_and_loads_little() -> None:
    code = (
        "import ratoon, sys, threading; "
        "print(threading.active_count(), "
        "sorted({'uuid', 'ssl', 'numpy', 'asyncio', 'concurrent'} & set(sys.modules)))"
    )
    got = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert got == "1 []\n"

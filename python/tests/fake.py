"""An agentd for tests: the same socket, frames and rules, in a thread.

It encodes and decodes by itself, not with the code under test.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

Reply = dict[str, Any] | bytes | None


@dataclass(frozen=True)
class Request:
    """One request, its arguments decoded."""

    version: int
    kind: str
    arguments: dict[str, Any]
    fields: dict[str, Any]


def pack(value: object) -> bytes:
    body: bytes = msgpack.packb(value, use_bin_type=True)
    return body


def ok(value: object, resume: dict[str, Any] | None = None) -> dict[str, Any]:
    """A reply that holds a result."""
    reply: dict[str, Any] = {"value": pack(value)}
    if resume is not None:
        reply["resume"] = resume
    return reply


def failed(code: str, message: str = "it failed", **details: Any) -> dict[str, Any]:
    """A reply that holds an error."""
    return {"error": {"code": code, "message": message, "details": details}}


def resume(count: int, reason: str = "branch", **fields: Any) -> dict[str, Any]:
    """A protocol.ResumeEvent."""
    return {
        "reason": reason,
        "timeline": "tl-aaaaaaaaaaaaaaaa",
        "node": "0",
        "slept": 1_500_000_000,
        "entropy": bytes([count % 256]) * 32,
        "count": count,
        "lost": None,
        **fields,
    }


class FakeAgent:
    """Answers each call by ``answer[kind](arguments)``.

    An answer is a reply's fields, raw bytes to send as they are, or None to
    close the connection without a reply. ``events`` calls are kept open, get
    ``newest`` at once, and every thaw() after it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answer: dict[str, Callable[[dict[str, Any]], Reply]] = {}
        self.requests: list[Request] = []
        self.newest = resume(0, reason="")
        self.closed = threading.Event()
        self._listeners: list[socket.socket] = []
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self.start()

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(self.path))
        self._server.listen(64)
        self._acceptor = self._run(self._accept, self._server)

    def stop(self) -> None:
        """Ends as a worker that is killed: all connections close."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._acceptor.join()  # no connection comes after those that are closed here
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._listeners.clear()
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()

    def thaw(self, event: dict[str, Any]) -> None:
        """Sends an event to all listeners and to those to come."""
        with self._lock:
            self.newest = event
        self.tell(event)

    def tell(self, event: dict[str, Any]) -> None:
        """Sends an event to all listeners."""
        with self._lock:
            for connection in self._listeners:
                send(connection, {"resume": event})

    def listeners(self) -> int:
        with self._lock:
            return len(self._listeners)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The arguments of all calls of a kind."""
        return [r.arguments for r in self.requests if r.kind == kind]

    def _run(
        self, function: Callable[[socket.socket], None], sock: socket.socket
    ) -> threading.Thread:
        thread = threading.Thread(target=function, args=(sock,), daemon=True)
        thread.start()
        with self._lock:
            self._threads.append(thread)
        return thread

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with self._lock:
                self._connections.add(connection)
            self._run(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError, EOFError):
                self._answer(connection)
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _answer(self, connection: socket.socket) -> None:
        fields = receive(connection)
        arguments = msgpack.unpackb(fields["arguments"], raw=False)
        request = Request(fields["version"], fields["kind"], arguments, fields)
        self.requests.append(request)
        if request.kind == "events" and "events" not in self.answer:
            with self._lock:
                self._listeners.append(connection)
                send(connection, {"resume": self.newest})
            connection.recv(1)
            with self._lock, contextlib.suppress(ValueError):
                self._listeners.remove(connection)
            return
        reply = self.answer[request.kind](arguments)
        if isinstance(reply, bytes):
            connection.sendall(reply)
        elif reply is not None:
            with contextlib.suppress(OSError):
                send(connection, reply)
                connection.recv(1)
            self.closed.set()


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits for what another thread does; a test that waits in vain fails."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


def send(connection: socket.socket, value: object) -> None:
    body = pack(value)
    connection.sendall(struct.pack(">I", len(body)) + body)


def receive(connection: socket.socket) -> dict[str, Any]:
    (length,) = struct.unpack(">I", exactly(connection, 4))
    value: dict[str, Any] = msgpack.unpackb(exactly(connection, length), raw=False)
    return value


def exactly(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise EOFError
        data += part
    return data

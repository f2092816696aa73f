"""Connections to agentd: one for each call, closed with it.

Nothing here outlives a call, so neither a branch nor a restore of the machine
finds a connection in a state that the agent does not share.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from . import _errors, _wire

#: Where agentd listens in a guest (protocol.GuestSocket).
SOCKET = "/run/ratoon/agent.sock"
#: Names another socket, for tests.
SOCKET_VARIABLE = "RATOON_SOCKET"

# How long a refused connection is tried again: a worker of agentd that died is
# started anew within this time.
_CONNECT_SECONDS = 2.0
_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.05

# Open connections, to be closed in a child of os.fork(): there a duplicate
# would keep a call alive that the parent has given up.
_open: set[socket.socket] = set()


@contextlib.contextmanager
def connection() -> Iterator[socket.socket]:
    """Opens a connection to agentd and closes it at the end.

    Raises:
        Unavailable: there is no agent.
    """
    sock = connect()
    try:
        yield sock
    finally:
        close(sock)


def connect() -> socket.socket:
    """Opens a connection that the caller has to close with close()."""
    path = os.environ.get(SOCKET_VARIABLE) or SOCKET
    deadline = time.monotonic() + _CONNECT_SECONDS
    pause = _FIRST_PAUSE
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # socket.setdefaulttimeout() of the program is not meant for calls
            # that may rightly take hours.
            sock.settimeout(None)
            sock.connect(path)
        except OSError as error:
            sock.close()
            if not _may_come(path, error) or time.monotonic() >= deadline:
                raise _errors.Unavailable(
                    f"connect to agentd at {path}: {error.strerror or error} "
                    "(this package works inside a Ratoon sandbox only)"
                ) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        except BaseException:
            sock.close()
            raise
        else:
            _open.add(sock)
            return sock


def close(sock: socket.socket) -> None:
    """Closes a connection of connect(); agentd takes a pending call as given up."""
    _open.discard(sock)
    sock.close()


def send(sock: socket.socket, kind: str, arguments: Mapping[str, object]) -> None:
    """Sends the one request of a connection.

    Raises:
        TooLarge: the request is over the protocol's limit; nothing was sent.
        Unavailable: the connection broke in an unexpected way.
    """
    packed = _wire.pack_map(arguments)
    if len(packed) > _wire.MAX_PAYLOAD:
        raise _errors.TooLarge(
            f"the arguments of {kind} take {len(packed)} bytes encoded, "
            f"over the limit of {_wire.MAX_PAYLOAD}"
        )
    data = _wire.frame({"version": _wire.VERSION, "kind": kind, "arguments": packed})
    try:
        sock.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        # An agent that refuses a request may close before it has read all of
        # it. Its reply, or the lack of one, is found by receive().
        pass
    except OSError as error:
        raise _errors.Unavailable(f"send {kind} to agentd: {error}") from error


def receive(sock: socket.socket, kind: str, process: int) -> dict[str, Any]:
    """Waits for one reply.

    Args:
        sock: the connection.
        kind: of the call, for messages.
        process: os.getpid() of before the connection was opened.

    Raises:
        AgentRestarted: the connection ended without a reply.
        InterruptedByFork: this process is a child of the one that called, made
            by os.fork() in a signal handler.
        ProtocolViolation: the reply is malformed.
    """
    try:
        return _wire.read_frame(sock)
    except (_wire.Closed, OSError) as error:
        if os.getpid() != process:
            raise _errors.InterruptedByFork(f"{kind}: the process was forked") from error
        if isinstance(error, (_wire.Closed, ConnectionResetError)):
            raise _errors.AgentRestarted(
                f"{kind}: agentd ended the connection without a reply: {error}"
            ) from error
        raise _errors.Unavailable(f"read the reply to {kind}: {error}") from error


def error_of(reply: Mapping[str, Any]) -> _errors.RatoonError | None:
    """Returns the typed error that a structure holds in its field "error"."""
    fields = _wire.take(reply, "error", dict, {})
    if not fields:
        return None
    return _errors.make(
        _wire.take(fields, "code", str, "") or _errors.Internal.default_code,
        _wire.take(fields, "message", str, ""),
        _wire.take(fields, "details", dict, {}),
    )


def _may_come(path: str, error: OSError) -> bool:
    """Tells whether a socket that cannot be connected may be one of a restarting agent."""
    if isinstance(error, ConnectionRefusedError):
        return True
    return isinstance(error, FileNotFoundError) and os.path.isdir(os.path.dirname(path))


def _close_all() -> None:
    while _open:
        _open.pop().close()


os.register_at_fork(after_in_child=_close_all)

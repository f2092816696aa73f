"""on_resume: telling a program that its machine was stopped and goes on.

Two sources tell of a thaw: the reply to a call that came back after it, and a
stream of events that a background thread listens to. Each thaw is handled
once, by whichever comes first; the other waits until that is done.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from . import _agent, _errors, _identity, _wire

Callback = Callable[[str, float, list[str]], object]
_C = TypeVar("_C", bound=Callback)

_log = logging.getLogger("ratoon")

_KIND = "events"
# How many thaws are remembered. A reply may lag behind the events only by
# thaws that came while its thread had not run yet.
_REMEMBERED = 256
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 1.0


class _Memory:
    """A set of the newest thaws."""

    def __init__(self) -> None:
        self._order: collections.deque[tuple[str, int]] = collections.deque(maxlen=_REMEMBERED)

    def add(self, event: _identity.Resume) -> bool:
        """Remembers a thaw; False if it was there."""
        if event.key in self._order:
            return False
        self._order.append(event.key)
        return True


class _Thaws:
    """Handles each thaw once: new identity first, then the callbacks."""

    def __init__(self) -> None:
        # Held while callbacks run, so that a call whose thaw another thread
        # handles returns after them. Reentrant, for callbacks that call.
        self._lock = threading.RLock()
        self._renewed = _Memory()
        self._told = _Memory()
        self._waiting: collections.deque[_identity.Resume] = collections.deque()
        self._telling = False
        self._callbacks: list[Callback] = []
        self._listener: threading.Thread | None = None
        self._connection: socket.socket | None = None
        self._closed = threading.Event()

    def handle(self, event: _identity.Resume) -> None:
        """Returns when identity is renewed and callbacks have run, once per thaw."""
        if event.count == 0:
            return  # "none so far"
        with self._lock:
            if self._renewed.add(event):
                _identity.renew(event)
            if self._told.add(event):
                self._waiting.append(event)
            if self._telling:
                return  # a callback made this call; its caller's loop goes on
            self._telling = True
            try:
                while self._waiting:
                    self._tell(self._waiting.popleft())
            finally:
                self._telling = False

    def _tell(self, event: _identity.Resume) -> None:
        for callback in tuple(self._callbacks):
            try:
                callback(event.reason, event.slept / 1e9, list(event.lost))
            except Exception:
                # The program's call has succeeded; it must not fail by this.
                _log.exception("on_resume callback failed")

    def add(self, callback: Callback) -> None:
        """Registers a callback; the first one starts the listener."""
        with self._lock:
            if self._listener is None:
                # Connected here, so that no thaw after the registration is
                # missed and a missing agent is the caller's error.
                connection, newest = _subscribe()
                self._told.add(newest)
                self._connection = connection
                self._listener = threading.Thread(
                    target=self._listen, args=(connection,), name="ratoon-events", daemon=True
                )
                self._listener.start()
            self._callbacks.append(callback)

    def close(self) -> None:
        """Ends the listener."""
        self._closed.set()
        while self._listener is not None and self._listener.is_alive():
            # Again and again: the listener may just be connecting.
            if (connection := self._connection) is not None:
                with contextlib.suppress(OSError):  # closed already
                    connection.shutdown(socket.SHUT_RDWR)
            self._listener.join(_FIRST_PAUSE)

    def _listen(self, connection: socket.socket | None) -> None:
        pause = _FIRST_PAUSE
        while not self._closed.is_set():
            try:
                if connection is None:
                    connection, newest = _subscribe()
                    self._connection = connection
                    self.handle(newest)
                while True:
                    self.handle(_read_event(connection))
                    pause = _FIRST_PAUSE
            except (_errors.AgentRestarted, _errors.Unavailable) as error:
                _log.debug("resume events: %s", error)
            except Exception:
                # Whatever it is, the program must not go without callbacks.
                _log.exception("resume events: connecting again")
            finally:
                if connection is not None:
                    _agent.close(connection)
                    connection = None
            self._closed.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _subscribe() -> tuple[socket.socket, _identity.Resume]:
    """Opens the stream of events; the newest thaw comes at once."""
    connection = _agent.connect()
    try:
        _agent.send(connection, _KIND, {})
        return connection, _read_event(connection)
    except BaseException:
        _agent.close(connection)
        raise


def _read_event(connection: socket.socket) -> _identity.Resume:
    reply = _agent.receive(connection, _KIND, os.getpid())
    if (error := _agent.error_of(reply)) is not None:
        raise error
    fields = _wire.take(reply, "resume", dict, {})
    if not fields:
        raise _errors.ProtocolViolation("an event without a resume")
    return _identity.parse(fields)


_thaws = _Thaws()


def thawed(event: _identity.Resume) -> None:
    """Handles a thaw that a reply told of."""
    _thaws.handle(event)


def on_resume(callback: _C) -> _C:
    """Has ``callback(reason, slept, lost)`` called after every thaw of the machine.

    A thaw ends each stop of the machine, also one that another program or an
    operator caused. Its arguments are:

    * reason (str): "snapshot", "branch", "restore" or "wake";
    * slept (float): for how many seconds the machine did not run, which
      time.monotonic() does not show;
    * lost (list of str): what did not come along, such as "workspace".

    A thread whose own call came back by this thaw finds all callbacks done
    when the call returns; they then ran in it or in a background thread, which
    the first registration starts. They run one after another, never two at a
    time, in the order of registration. An exception in one is logged (logger
    "ratoon") and changes nothing else. A callback may make calls, but must not
    wait for a lock that a thread holds while it calls.

    Copies of the machine have the callbacks, being in the memory that is
    copied. A child of os.fork() starts without any, as it does without the
    threads of its parent.

    Args:
        callback: what to call.

    Returns:
        The callback, so that this can be used as a decorator.

    Raises:
        Unavailable: there is no agent.
    """
    _thaws.add(callback)
    return callback


def _forget() -> None:
    # The listener and whoever held the lock do not exist in a forked child.
    global _thaws
    _thaws = _Thaws()


def stop() -> None:
    """Ends the listener and forgets all callbacks, for tests."""
    _thaws.close()
    _forget()


os.register_at_fork(after_in_child=_forget)

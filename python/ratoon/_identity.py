"""What makes a copy of this process differ from the others.

agentd has already set clock, kernel randomness, host name and machine id when
a call returns. Left are the generators in this process's memory, whose state
is the same in every copy.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import _wire


@dataclass(frozen=True, slots=True)
class Resume:
    """A thaw, as agentd tells of it (protocol.ResumeEvent)."""

    reason: str
    timeline: str
    slept: int  # nanoseconds
    entropy: bytes
    seed: bytes
    count: int
    lost: tuple[str, ...]

    @property
    def key(self) -> tuple[str, int]:
        """Names the thaw within this process's memory.

        The timeline is part of it because a restarted agent counts from the
        start, and a copy must never be taken for one already seen.
        """
        return self.timeline, self.count


def parse(fields: Mapping[str, Any]) -> Resume:
    """Reads a Resume from its form on the wire.

    Raises:
        ProtocolViolation: a field is of another type.
    """
    return Resume(
        reason=_wire.take(fields, "reason", str, ""),
        timeline=_wire.take(fields, "timeline", str, ""),
        slept=_wire.take(fields, "slept", int, 0),
        entropy=_wire.take(fields, "entropy", bytes, b""),
        seed=_wire.take(fields, "seed", bytes, b""),
        count=_wire.take(fields, "count", int, 0),
        lost=tuple(_wire.take_texts(fields, "lost")),
    )


class _Settings:
    """What reseed() chose."""

    enabled = True


_settings = _Settings()


def reseed(enabled: bool = True) -> None:
    """Chooses whether `random` and numpy's global generator are seeded anew after a thaw.

    By default they are, in every timeline that a call comes back in, also the
    one that called: copies would draw equal numbers otherwise. After
    ``reseed(False)`` both keep their state, so a program that seeds them itself
    goes on with its own sequence, and so does each copy with the same one.

    The choice is part of the process's memory: copies and children of
    os.fork() inherit it. `uuid`, `tempfile` and OpenSSL's generator are always
    renewed. Generators that a program made itself (``random.Random()``,
    ``numpy.random.default_rng()``, torch) are its own: seed them in an
    ``on_resume`` callback or after the call.

    In deterministic mode the seed is a digest of the host's seed for this
    timeline and thaw, and a wake from hibernation seeds nothing.

    Args:
        enabled: False to opt out, True to opt in again.
    """
    _settings.enabled = enabled


def renew(event: Resume) -> None:
    """Gives the generators in this process's memory new state."""
    fresh = event.entropy + os.urandom(32)
    _renew_uuid(_derive("uuid", fresh))
    _renew_tempfile()
    if (ssl := sys.modules.get("ssl")) is not None:
        ssl.RAND_add(_derive("ssl", fresh), 32.0)
    source = _generator_source(event, fresh)
    if source is not None:
        random.seed(_derive("random", source))
        _renew_numpy(_derive("numpy", source))


def _generator_source(event: Resume, fresh: bytes) -> bytes | None:
    """Returns what to seed `random` and numpy from, None to leave them."""
    if not _settings.enabled:
        return None
    if not event.seed:
        return fresh
    # An operator may hibernate a sandbox at any time. A wake makes no copy, and
    # must not change what a reproducible run draws next.
    return None if event.reason == "wake" else event.seed


def _derive(purpose: str, source: bytes) -> bytes:
    return hashlib.sha256(b"ratoon reseed " + purpose.encode() + b"\0" + source).digest()


def _renew_numpy(seed: bytes) -> None:
    numpy_random = sys.modules.get("numpy.random")
    # numpy.random itself may be half imported, by another thread.
    if (set_seed := getattr(numpy_random, "seed", None)) is not None:
        set_seed([int.from_bytes(seed[at : at + 4], "big") for at in range(0, 32, 4)])


def _renew_uuid(seed: bytes) -> None:
    """Makes uuid1() of copies differ, although their clocks are nearly the same."""
    uuid: Any = sys.modules.get("uuid")
    if uuid is None:
        return
    # A random node, marked by the multicast bit as not being a card's address
    # (RFC 9562, section 6.10): the guest has no card, so all copies would have
    # the one that was drawn before the copying.
    uuid._node = int.from_bytes(seed[:6], "big") | (1 << 40)
    uuid._last_timestamp = None
    # libuuid keeps a node and a clock sequence of its own that cannot be
    # reset; without it uuid1() uses _node and a random clock sequence.
    uuid._generate_time_safe = None


def _renew_tempfile() -> None:
    # The generator of names is made anew, from os.urandom, when next needed.
    vars(tempfile)["_name_sequence"] = None

"""Copies draw other numbers."""

from __future__ import annotations

import random
import ssl
import sys
import tempfile
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import ratoon
from ratoon import _identity

from .fake import FakeAgent, ok, resume

CP = "cp-3jk5m2q7xw4n6c2a"
SEED = b"seed of this timeline"


@pytest.fixture(autouse=True)
def _restore_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_identity, "_settings", _identity._Settings())
    state = random.getstate()
    saved = {
        name: getattr(uuid, name) for name in ("_node", "_last_timestamp", "_generate_time_safe")
    }
    yield
    random.setstate(state)
    vars(uuid).update(saved)


def snapshot(agent: FakeAgent, event: dict[str, Any] | None) -> None:
    agent.answer["snapshot"] = lambda _: ok({"id": CP}, resume=event)
    ratoon.snapshot()


def copies(agent: FakeAgent, draw: Any, **fields: Any) -> list[object]:
    """What equal copies of this process draw after their thaw."""
    numpy = sys.modules.get("numpy")
    state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    settings = vars(_identity._settings).copy()
    drawn = []
    for number in range(2):
        random.setstate(state)
        if numpy:
            numpy.random.set_state(numpy_state)
        vars(_identity._settings).update(settings)
        snapshot(agent, resume(1, timeline=f"tl-{number}-{len(agent.requests)}", **fields))
        drawn.append(draw())
    return drawn


def test_random(agent: FakeAgent) -> None:
    a, b = copies(agent, lambda: [random.random(), random.gauss()])
    assert a != b


def test_equal_entropy_gives_other_numbers(agent: FakeAgent) -> None:
    """Not even an agent that repeats its entropy makes two processes equal."""
    a, b = copies(agent, random.random, entropy=bytes(32))
    assert a != b


def test_without_a_thaw_nothing_is_touched(agent: FakeAgent) -> None:
    state = random.getstate()
    snapshot(agent, None)
    snapshot(agent, resume(0))
    assert random.getstate() == state


def test_numpy(agent: FakeAgent) -> None:
    numpy = pytest.importorskip("numpy", reason="pip install numpy")
    a, b = copies(agent, lambda: numpy.random.random())
    assert a != b
    a, b = copies(agent, lambda: numpy.random.random(), seed=SEED)
    assert a == b


def test_uuid(agent: FakeAgent) -> None:
    node = uuid.getnode()
    nodes = copies(agent, lambda: (uuid.uuid1().node, uuid.uuid1().clock_seq))
    assert len({node, nodes[0], nodes[1]}) == 3
    assert uuid.uuid1().node >> 40 & 1, "not marked as random"
    assert uuid.uuid1() != uuid.uuid1()
    # In deterministic mode too: an identifier is to be unique, not repeated.
    a, b = copies(agent, lambda: uuid.uuid1().node, seed=SEED)
    assert a != b


def test_tempfile(agent: FakeAgent) -> None:
    before = tempfile._get_candidate_names()  # type: ignore[attr-defined]
    snapshot(agent, resume(1))
    after = tempfile._get_candidate_names()  # type: ignore[attr-defined]
    assert before is not after
    with tempfile.NamedTemporaryFile():
        pass


def test_openssl(agent: FakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[tuple[bytes, float]] = []
    monkeypatch.setattr(ssl, "RAND_add", lambda data, entropy: added.append((data, entropy)))
    copies(agent, lambda: None)
    assert [(len(data), entropy) for data, entropy in added] == [(32, 32.0)] * 2
    assert added[0] != added[1]


def test_opt_out(agent: FakeAgent) -> None:
    ratoon.reseed(False)
    a, b = copies(agent, random.random)
    assert a == b
    a, b = copies(agent, random.random, seed=SEED)
    assert a == b
    ratoon.reseed()
    a, b = copies(agent, random.random)
    assert a != b


def test_deterministic(agent: FakeAgent) -> None:
    a, b = copies(agent, random.random, seed=SEED)
    assert a == b
    (c, _) = copies(agent, random.random, seed=b"seed of another timeline")
    assert c != a


def test_a_wake_does_not_disturb_a_deterministic_run(agent: FakeAgent) -> None:
    snapshot(agent, resume(1, seed=SEED))
    state = random.getstate()
    snapshot(agent, resume(2, reason="wake", seed=SEED))
    assert random.getstate() == state
    snapshot(agent, resume(3, reason="wake"))
    assert random.getstate() != state


def test_one_thaw_seeds_once(agent: FakeAgent) -> None:
    """A second pending call of the process must not repeat the first one's numbers."""
    snapshot(agent, resume(1, seed=SEED))
    first = random.random()
    snapshot(agent, resume(1, seed=SEED))
    assert random.random() != first


def test_a_new_timeline_is_never_taken_for_one_seen(agent: FakeAgent) -> None:
    snapshot(agent, resume(5, timeline="tl-parent"))
    state = random.getstate()
    snapshot(agent, resume(5, timeline="tl-child"))
    assert random.getstate() != state

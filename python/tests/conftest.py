from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import ratoon
from ratoon import _events

from .fake import FakeAgent


@pytest.fixture
def socket_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A path short enough for a socket, which the package takes for agentd's."""
    directory = Path(tempfile.mkdtemp(prefix="rt", dir="/tmp"))
    path = directory / "agent.sock"
    monkeypatch.setenv("RATOON_SOCKET", str(path))
    yield path
    shutil.rmtree(directory)


@pytest.fixture
def agent(socket_path: Path) -> Iterator[FakeAgent]:
    before = set(threading.enumerate())
    fake = FakeAgent(socket_path)
    yield fake
    _events.stop()
    fake.stop()
    ratoon.reseed(True)
    assert set(threading.enumerate()) <= before, "threads are left"

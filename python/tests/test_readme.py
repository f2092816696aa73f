"""The example of README.md works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import ratoon

from .fake import FakeAgent, ok, pack

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture
def example() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    return str(code)


def test_as_the_child_that_is_adopted_each_time(
    agent: FakeAgent, example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def child(arguments: dict[str, Any]) -> dict[str, Any]:
        payload = arguments["payloads"][2]
        return ok({"id": "br-a", "checkpoint": "cp-a", "index": 2, "n": 4, "payload": payload})

    agent.answer["branch"] = child
    agent.answer["finish"] = lambda _: ok({"id": "cp-b", "restored": True, "index": None})
    exec(compile(example, str(README), "exec"), {})
    assert capsys.readouterr().out == "ccc\n"


def test_as_the_parent(agent: FakeAgent, example: str) -> None:
    agent.answer["branch"] = lambda a: ok({"id": "br-a", "checkpoint": "cp-a", "n": a["n"]})
    agent.answer["results"] = lambda _: ok(
        {"results": [{"index": i, "result": pack({"score": -abs(i - 2)})} for i in range(4)]}
    )
    agent.answer["adopt"] = lambda _: None  # its machine ends
    with pytest.raises(ratoon.AgentRestarted):
        exec(compile(example, str(README), "exec"), {})
    assert agent.of("adopt") == [{"branch": "br-a", "index": 2, "payload": b""}]

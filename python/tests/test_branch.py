"""A parent follows its children."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import ratoon

from .fake import FakeAgent, failed, ok, pack

BR = "br-3jk5m2q7xw4n6c2a"
CP = "cp-3jk5m2q7xw4n6c2a"


class Children:
    """The host's side of one branch: gives one result per call, last child first."""

    def __init__(self, agent: FakeAgent, n: int) -> None:
        self.there = {
            i: {"index": i, "result": pack(i * 10), "checkpoint": CP if i == 1 else ""}
            for i in range(n)
        }
        agent.answer["branch"] = lambda _: ok({"id": BR, "checkpoint": CP, "index": None, "n": n})
        agent.answer["results"] = self.results

    def results(self, arguments: dict[str, Any]) -> dict[str, Any]:
        new = sorted(set(self.there) - set(arguments["have"]))
        return ok({"results": [self.there[new[-1]]] if new else None})


def test_as_completed(agent: FakeAgent) -> None:
    Children(agent, 3)
    b = ratoon.branch(3)
    assert [(r.index, r.result, r.ok, r.checkpoint) for r in b] == [
        (2, 20, True, None),
        (1, 10, True, CP),
        (0, 0, True, None),
    ]
    assert [a["have"] for a in agent.of("results")] == [[], [2], [1, 2]]
    assert {a["timeout"] for a in agent.of("results")} == {0}
    # What is there is not asked for again.
    assert [r.index for r in b.results()] == [0, 1, 2]
    assert len(agent.of("results")) == 3


def test_typed_ends(agent: FakeAgent) -> None:
    children = Children(agent, 3)
    children.there[0] = {
        "index": 0,
        "error": {
            "code": "child_exited",
            "message": "child 0 exited with 3",
            "details": {"status": 3, "signal": "", "stderr": "Traceback"},
        },
    }
    children.there[1] = {"index": 1, "error": {"code": "timeout", "message": "child 1"}}
    exited, timeout, finished = ratoon.branch(3).results()
    assert isinstance(exited.error, ratoon.ChildExited)
    assert (exited.error.status, exited.error.stderr) == (3, "Traceback")
    assert isinstance(timeout.error, ratoon.Timeout)
    assert (exited.ok, timeout.ok, finished.ok) == (False, False, True)


def test_timeout(agent: FakeAgent) -> None:
    children = Children(agent, 2)
    late = children.there.pop(0)
    b = ratoon.branch(2)
    waiting = b.as_completed(timeout=0)
    assert next(waiting).index == 1
    with pytest.raises(TimeoutError) as error:
        next(waiting)
    assert isinstance(error.value, ratoon.Timeout)
    assert {a["timeout"] for a in agent.of("results")} == {-1}
    with pytest.raises(ratoon.Timeout):
        b.results(timeout=3600)  # the fake host says at once that it passed
    assert 0 < agent.of("results")[-1]["timeout"] <= 3600 * 10**9
    children.there[0] = late
    assert [r.index for r in b.results()] == [0, 1]


def test_two_threads_get_all_results(agent: FakeAgent) -> None:
    Children(agent, 20)
    b = ratoon.branch(20)
    got: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: got.append([r.index for r in b.results()]))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [list(range(20))] * 2


@pytest.mark.parametrize(
    "results", [None, [{"index": 2}], [{"index": -1}], [{}], [1], [{"index": "0"}], "x"], ids=str
)
def test_hostile_results(agent: FakeAgent, results: object) -> None:
    Children(agent, 2)
    agent.answer["results"] = lambda _: ok({"results": results})
    with pytest.raises(ratoon.ProtocolViolation):
        ratoon.branch(2).results()


@pytest.mark.parametrize("result", [{"index": 2, "n": 2}, {"index": -1, "n": 2}, {"index": 0}])
def test_hostile_branch(agent: FakeAgent, result: object) -> None:
    agent.answer["branch"] = lambda _: ok(result)
    with pytest.raises(ratoon.ProtocolViolation):
        ratoon.branch(2)


def test_cancel_discard_adopt(agent: FakeAgent) -> None:
    Children(agent, 2)
    agent.answer["cancel"] = lambda _: ok(None)
    agent.answer["discard"] = lambda _: {}
    agent.answer["adopt"] = lambda a: ok({"id": CP, "restored": True, "payload": a["payload"]})
    b = ratoon.branch(2)
    b.cancel(1)
    b.discard()
    got = b.adopt(0, payload=["p"])
    assert got == ratoon.Checkpoint(CP, restored=True, payload=["p"])
    assert agent.of("cancel") == [{"branch": BR, "index": 1}]
    assert agent.of("discard") == [{"branch": BR}]
    assert agent.of("adopt") == [{"branch": BR, "index": 0, "payload": pack(["p"])}]
    for bad in (-1, 2):
        with pytest.raises(ratoon.InvalidArgument):
            b.cancel(bad)
    with pytest.raises(TypeError):
        b.adopt(True)
    agent.answer["adopt"] = lambda _: failed("not_kept")
    with pytest.raises(ratoon.NotKept):
        b.adopt(1)

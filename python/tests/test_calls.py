"""Every call: what is sent, what is made of the answer, what is refused."""

from __future__ import annotations

import io
import math
import os
import sys
from typing import Any

import pytest

import ratoon

from .fake import FakeAgent, failed, ok, pack, resume

CP = "cp-3jk5m2q7xw4n6c2a"
BR = "br-3jk5m2q7xw4n6c2a"
TL = "tl-3jk5m2q7xw4n6c2a"

VALUES: list[Any] = [
    True,
    0,
    -1,
    2**64 - 1,
    -(2**63),
    1.5,
    "text \N{SNOWMAN}",
    "not utf-8: \udcff",
    b"bytes\xff",
    [],
    [1, [2, [3]]],
    {"a": {"b": [None, 1]}, 3: "three", b"k": 1, None: 2, 1.5: 3},
]


def snapshot_result(**fields: Any) -> dict[str, Any]:
    return {"id": CP, "restored": False, "index": None, **fields}


def test_snapshot_now(agent: FakeAgent) -> None:
    agent.answer["snapshot"] = lambda _: ok(snapshot_result())
    got = ratoon.snapshot("before rm", durable=True)
    assert got == ratoon.Checkpoint(id=CP, restored=False)
    assert agent.of("snapshot") == [{"label": "before rm", "durable": True}]
    assert agent.requests[0].version == 1
    assert "watch" not in agent.requests[0].fields


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_payloads_arrive_as_they_were_sent(agent: FakeAgent, value: Any) -> None:
    def restored(arguments: dict[str, Any]) -> dict[str, Any]:
        return ok(snapshot_result(restored=True, payload=arguments["payload"]))

    agent.answer["restore"] = restored
    got = ratoon.restore(CP, payload=value)
    assert got.restored
    assert got.payload == value
    assert type(got.payload) is type(value)


def test_snapshot_restored_in_child_of_branch_at(
    agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLOUR", raising=False)
    agent.answer["snapshot"] = lambda _: ok(
        snapshot_result(restored=True, index=2, branch=BR, payload=pack({"x": 1}))
    )
    agent.answer["whoami"] = lambda _: ok({"timeline": TL, "env": {"COLOUR": "red"}})
    got = ratoon.snapshot()
    assert got == ratoon.Checkpoint(id=CP, restored=True, payload={"x": 1}, index=2, branch=BR)
    assert os.environ.pop("COLOUR") == "red"


def test_restore_options(agent: FakeAgent) -> None:
    agent.answer["restore"] = lambda _: ok(snapshot_result(restored=True))
    ratoon.restore(CP)
    ratoon.rollback(ratoon.Checkpoint(CP, restored=False), keep_present=False, detach=True)
    assert agent.of("restore") == [
        {"id": CP, "payload": b"", "drop_present": False, "detach": False},
        {"id": CP, "payload": b"", "drop_present": True, "detach": True},
    ]


def test_finish(agent: FakeAgent) -> None:
    agent.answer["finish"] = lambda _: ok(snapshot_result(restored=True, payload=pack("go on")))
    got = ratoon.finish({"score": 1}, keep=True)
    assert (got.restored, got.payload) == (True, "go on")
    assert agent.of("finish") == [{"result": pack({"score": 1}), "keep": True}]
    with pytest.raises(ratoon.ProtocolViolation):
        ratoon.finish()


def test_output_is_flushed_before_the_machine_is_copied(
    agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(raw)))
    monkeypatch.setattr(sys, "stderr", None)
    print("once")
    agent.answer["snapshot"] = lambda _: ok(snapshot_result(payload=pack(raw.getvalue())))
    assert ratoon.snapshot().payload == b"once\n"


def test_branch_arguments(agent: FakeAgent) -> None:
    agent.answer["branch"] = lambda a: ok({"id": BR, "checkpoint": CP, "index": None, "n": a["n"]})
    b = ratoon.branch(
        2,
        payloads=[1, None],
        max_live=1,
        at=CP,
        env=[{"A": "1"}, {}],
        labels=["x", "y"],
        timeout=1.5,
        min_ok=1,
    )
    assert (b.id, b.index, b.n, b.payload, b.checkpoint) == (BR, None, 2, None, CP)
    assert agent.of("branch") == [
        {
            "n": 2,
            "payloads": [pack(1), pack(None)],
            "max_live": 1,
            "at": CP,
            "env": [{"A": "1"}, {}],
            "labels": ["x", "y"],
            "timeout": 1_500_000_000,
            "min_ok": 1,
        }
    ]
    ratoon.fork(1)
    assert agent.of("branch")[1] == {"n": 1}


def test_branch_in_child(agent: FakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLOUR", "none")
    agent.answer["branch"] = lambda a: ok(
        {"id": BR, "checkpoint": CP, "index": 1, "n": 2, "payload": a["payloads"][1]}
    )
    b = ratoon.branch(2, payloads=[{"k": 0}, {"k": 1}], env=[{"COLOUR": "red"}, {"COLOUR": "blue"}])
    assert (b.index, b.payload) == (1, {"k": 1})
    assert os.environ["COLOUR"] == "blue"
    for use in (b.as_completed, b.results, b.discard, lambda: b.cancel(0), lambda: b.adopt(0)):
        with pytest.raises(ratoon.WrongTimeline):
            use()
    assert [r.kind for r in agent.requests] == ["branch"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"n": 0}, ratoon.InvalidArgument),
        ({"n": 1025}, ratoon.InvalidArgument),
        ({"n": True}, TypeError),
        ({"n": 2, "payloads": [1]}, ratoon.InvalidArgument),
        ({"n": 2, "payloads": "ab"}, TypeError),
        ({"n": 1, "payloads": [{1}]}, TypeError),
        ({"n": 1, "max_live": 0}, ratoon.InvalidArgument),
        ({"n": 1, "min_ok": 2}, ratoon.InvalidArgument),
        ({"n": 1, "timeout": -1}, ratoon.InvalidArgument),
        ({"n": 1, "timeout": math.inf}, ratoon.InvalidArgument),
        ({"n": 1, "timeout": "1"}, TypeError),
        ({"n": 1, "env": [{"A": 1}]}, TypeError),
        ({"n": 1, "env": [{"A=": "1"}]}, ratoon.InvalidArgument),
        ({"n": 1, "env": {"A": "1"}}, TypeError),
        ({"n": 1, "labels": ["x" * 257]}, ratoon.TooLarge),
        ({"n": 1, "labels": [1]}, TypeError),
        ({"n": 1, "at": 1}, TypeError),
        ({"n": 1, "at": ""}, ratoon.InvalidArgument),
    ],
    ids=str,
)
def test_branch_refuses(
    agent: FakeAgent, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        ratoon.branch(**arguments)
    assert agent.requests == []


def test_llm_query(agent: FakeAgent) -> None:
    agent.answer["llm_query"] = lambda a: ok(
        {"completions": [{"text": p.upper()} for p in a["prompts"]]}
    )
    assert ratoon.llm_query("hi") == "HI"
    assert ratoon.llm_query_batched(iter(["a", "b"]), model="m") == ["A", "B"]
    assert ratoon.llm_query_batched([]) == []
    assert agent.of("llm_query") == [
        {"prompts": ["hi"], "model": ""},
        {"prompts": ["a", "b"], "model": "m"},
    ]


def test_llm_query_failures(agent: FakeAgent) -> None:
    refusal = {"text": "", "error": {"code": "over_budget", "message": "no tokens left"}}
    agent.answer["llm_query"] = lambda a: ok(
        {"completions": [refusal if p == "bad" else {"text": p} for p in a["prompts"]]}
    )
    with pytest.raises(ratoon.OverBudget, match="no tokens left"):
        ratoon.llm_query("bad")
    with pytest.raises(ratoon.ModelFailed, match="1 of 2 prompts failed; prompt 1: no tok") as got:
        ratoon.llm_query_batched(["good", "bad"])
    assert got.value.results[0] == "good"
    assert isinstance(got.value.results[1], ratoon.OverBudget)
    assert got.value.__cause__ is got.value.results[1]
    mixed = ratoon.llm_query_batched(["bad", "good"], return_exceptions=True)
    assert isinstance(mixed[0], ratoon.OverBudget)
    assert mixed[1] == "good"
    agent.answer["llm_query"] = lambda _: ok({"completions": []})
    with pytest.raises(ratoon.ProtocolViolation):
        ratoon.llm_query("x")
    agent.answer["llm_query"] = lambda _: failed("no_model")
    with pytest.raises(ratoon.NoModel):
        ratoon.llm_query_batched(["x"], return_exceptions=True)


def test_llm_query_refuses(agent: FakeAgent) -> None:
    with pytest.raises(TypeError):
        ratoon.llm_query_batched("abc")
    with pytest.raises(TypeError):
        ratoon.llm_query(1)  # type: ignore[arg-type]
    with pytest.raises(ratoon.TooLarge):
        ratoon.llm_query("x" * ((16 << 20) + 1))
    with pytest.raises(ratoon.TooLarge):
        ratoon.llm_query_batched(["x"] * 1025)
    with pytest.raises(ratoon.TooLarge):  # each is fine, all are not
        ratoon.llm_query_batched(["x" * (9 << 20)] * 2)
    with pytest.raises(ratoon.InvalidArgument):
        ratoon.llm_query("\ud800")
    assert agent.requests == []


def test_tree(agent: FakeAgent) -> None:
    timeline = {"id": TL, "line": "ln-x", "node": "0.1", "state": "live", "label": "a"}
    checkpoint = {
        "id": CP,
        "timeline": TL,
        "class": "auto",
        "durable": True,
        "created": 5,
        "bytes": 7,
    }
    agent.answer["tree"] = lambda _: ok(
        {
            "sandbox": "sb-x",
            "state": "running",
            "timelines": [timeline],
            "checkpoints": [checkpoint],
        }
    )
    assert ratoon.tree() == ratoon.Tree(
        "sb-x",
        "running",
        [ratoon.Timeline(TL, "ln-x", "0.1", None, "live", "", "a")],
        [ratoon.CheckpointInfo(CP, TL, "", "auto", True, 5, 7)],
    )
    agent.answer["tree"] = lambda _: ok({"sandbox": "sb-x", "timelines": None})
    assert ratoon.tree().timelines == []


def test_whoami(agent: FakeAgent) -> None:
    agent.answer["whoami"] = lambda _: ok(
        {"sandbox": "sb-x", "timeline": TL, "node": "0.2", "depth": 1, "branch": BR, "index": 2}
    )
    got = ratoon.whoami()
    assert (got.node, got.depth, got.branch, got.index, got.env) == ("0.2", 1, BR, 2, {})
    assert got.origin is None


def test_budget(agent: FakeAgent) -> None:
    agent.answer["budget"] = lambda _: ok(
        {"budgets": {"live": {"limit": 4, "used": 6}, "llm_cost": {"limit": -1, "used": 10}}}
    )
    got = ratoon.budget()
    assert got == {"live": ratoon.Budget(4, 6), "llm_cost": ratoon.Budget(None, 10)}
    assert (got["live"].left, got["llm_cost"].left) == (0, None)


def test_sync(agent: FakeAgent) -> None:
    agent.answer["sync"] = lambda _: ok({"position": {"stream": "st-x", "sequence": 2**63}})
    assert ratoon.sync() == ratoon.Position("st-x", 2**63)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, "payload is of type set"),
        ({"a": [0, object()]}, r"payload\['a'\]\[1\] is of type object"),
        (1j, "payload is of type complex"),
        ({(1, 2): 3}, "payload has a key of type tuple"),
    ],
)
def test_payload_of_a_type_that_cannot_be_sent(agent: FakeAgent, value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ratoon.restore(CP, payload=value)
    assert agent.requests == []


def test_payload_limits(agent: FakeAgent) -> None:
    agent.answer["restore"] = lambda a: ok(snapshot_result(payload=a["payload"]))
    deep: Any = "leaf"
    for _ in range(32):
        deep = [deep]
    assert ratoon.restore(CP, payload=deep).payload == deep
    with pytest.raises(ratoon.TooLarge, match="deeper than 32"):
        ratoon.restore(CP, payload=[deep])
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ratoon.TooLarge):
        ratoon.restore(CP, payload=endless)
    largest = b"x" * ((16 << 20) - 5)
    with pytest.raises(ratoon.TooLarge, match="payload takes 16777217 bytes"):
        ratoon.restore(CP, payload=largest + b"x")
    with pytest.raises(ratoon.TooLarge, match="the arguments of restore"):
        ratoon.restore(CP, payload=largest)  # no room for what is around it
    largest = largest[:-100]
    assert ratoon.restore(CP, payload=largest).payload == largest
    with pytest.raises(ratoon.InvalidArgument, match="64 bits"):
        ratoon.restore(CP, payload=2**64)
    with pytest.raises(ratoon.InvalidArgument):
        ratoon.restore(CP, payload="\ud800")
    with pytest.raises(ratoon.TooLarge):
        ratoon.snapshot(label="\N{SNOWMAN}" * 86)


def test_error_reply_renews_identity_first(agent: FakeAgent) -> None:
    agent.answer["sync"] = lambda _: {
        **failed("interrupted_by_fork"),
        "resume": resume(1, timeline="tl-copy"),
    }
    import random

    random.seed(1)
    before = random.getstate()
    with pytest.raises(ratoon.InterruptedByFork):
        ratoon.sync()
    assert random.getstate() != before
